//! Sizes that are promised, and files that go on where an object ends.

use super::*;
use crate::object::ObjectId;
use crate::s3::{Properties, PutObject, Replaces};

#[tokio::test]
async fn a_promised_size_is_reached_by_zeros_and_a_shorter_one_fails_the_file() {
    for (written, promised) in [(0, 1), (0, PART), (5, PART - 1), (PART, PART + 1), (3, 7 * PART + 5)] {
        let bench = Bench::new(small_parts());
        let upload = bench.create("a");
        upload.set_size(promised as u64).unwrap();
        let bytes = data(written, 1);
        let meta = store(&upload, &bytes, 4096).await.unwrap();
        let stored = bench.client.object("a").unwrap();
        assert_eq!((meta.size, stored.len()), (promised as u64, promised));
        assert!(stored[..written] == bytes && stored[written..].iter().all(|byte| *byte == 0));
        bench.assert_clean();
    }
    let bench = Bench::new(small_parts());
    let upload = bench.create("a");
    write(&upload, 0, b"bytes").await.unwrap();
    assert!(matches!(upload.set_size(3), Err(Error::Unmeant)));
    assert!(matches!(upload.finish().await, Err(Error::Unmeant)));
    let upload = bench.create("b");
    write(&upload, 0, b"bytes").await.unwrap();
    upload.set_size(3).unwrap_err();
    upload.set_size(10).unwrap();
    upload.set_size(5).unwrap();
    upload.finish().await.unwrap();
    assert!(matches!(upload.set_size(9), Err(Error::Finished)));
    assert_eq!(bench.client.object("b").unwrap(), "bytes");
    assert_eq!(bench.client.keys(), ["b"]);
    bench.assert_clean();
}

/// An object with metadata, and its version.
async fn planted(bench: &Bench, bytes: &[u8]) -> (ObjectId, Properties) {
    let properties = Properties {
        content_type: Some("text/plain".into()),
        user: [("a".to_owned(), "b".to_owned())].into(),
        ..Properties::default()
    };
    let object = NewObject { properties: properties.clone(), ..NewObject::new("k") };
    let put = PutObject { object, body: vec![bytes.to_vec().into()], checksum: None };
    let stored = bench.client.arc().put_object(&put).await.unwrap();
    bench.client.reset_log();
    (ObjectId::by_etag("k".into(), stored.etag), properties)
}

/// An upload behind an object, with the object's bytes written first if that is the caller's task.
async fn behind(bench: &Bench, id: &ObjectId, bytes: &[u8]) -> Arc<Upload> {
    let (upload, behind) = bench.uploader.append(id).await.unwrap();
    let fetched = behind.fetched();
    if !fetched.is_empty() {
        let start = fetched.start as usize;
        write(&upload, start, &bytes[start..fetched.end as usize]).await.unwrap();
    }
    assert_eq!((upload.size(), upload.added()), (bytes.len() as u64, 0));
    upload
}

#[tokio::test]
async fn what_is_there_is_copied_by_the_store_and_new_bytes_follow() {
    for checksum in [None, Some(ChecksumAlgorithm::Crc32c), Some(ChecksumAlgorithm::Crc64Nvme)] {
        for before in [0, 100, 5 * MIB, 6 * MIB + 1] {
            for added in [1, PART, 3 * PART + 7] {
                let bench = Bench::new(Config { checksum, ..small_parts() });
                let (old, new) = (data(before, 1), data(added, 2));
                let (id, properties) = planted(&bench, &old).await;
                let upload = behind(&bench, &id, &old).await;
                for (i, piece) in new.chunks(10_000).enumerate() {
                    write(&upload, before + i * 10_000, piece).await.unwrap();
                }
                assert_eq!(bench.client.object("k").unwrap(), old, "nothing shows before the end");
                let meta = upload.finish().await.unwrap();
                assert_eq!(meta.size, (before + added) as u64);
                assert!(bench.client.object("k").unwrap() == [old, new].concat(), "{before} and {added}");
                let copies = usize::from(before >= 5 * MIB);
                assert_eq!(bench.client.calls(Op::UploadPartCopy), copies, "{before} and {added}");
                let told = bench.client.arc().describe_object(&id.key).await.unwrap();
                assert_eq!(told.properties, properties);
                bench.assert_clean();
            }
        }
    }
}

#[tokio::test]
async fn an_empty_append_sends_nothing_and_an_aborted_one_leaves_the_object() {
    for before in [100, 6 * MIB] {
        let bench = Bench::new(small_parts());
        let old = data(before, 1);
        let (id, _) = planted(&bench, &old).await;
        let upload = behind(&bench, &id, &old).await;
        assert_eq!(upload.finish().await.unwrap().etag, id.etag);
        let sent = bench.client.log().into_iter().filter(|call| call.op != Op::HeadObject);
        assert_eq!(sent.count(), 0);
        let upload = behind(&bench, &id, &old).await;
        write(&upload, before, &data(3 * PART, 2)).await.unwrap();
        upload.abort().await;
        assert_eq!(bench.client.object("k").unwrap(), old);
        bench.assert_clean();
    }
}

#[tokio::test]
async fn the_store_makes_no_copy_after_one_that_failed() {
    let bench = Bench::new(Config { parts_in_flight_max: 1, ..Config::default() });
    let bytes = data(32 * MIB, 1);
    let (id, _) = planted(&bench, &bytes).await;
    bench.client.inject(FaultPlan::on(Op::UploadPartCopy).always().fail(ErrorKind::Timeout));
    let size = bytes.len() as u64;
    let unchanged = [0..10, 11..21, 22..32].map(|run| (run.start * MIB as u64)..(run.end * MIB as u64));
    let to = (id.key.clone(), Replaces::Anything);
    let mut patch = bench.uploader.patch(to, (id, size), size, (unchanged.to_vec(), Vec::new())).unwrap();
    let read = |range: std::ops::Range<u64>| {
        let read = bytes[range.start as usize..range.end as usize].to_vec();
        async { Ok::<_, Error>(read) }
    };
    let Err(Error::Remote(error)) = patch.send(read).await else { panic!("a copy failed") };
    assert_eq!(*error.kind(), ErrorKind::Timeout);
    assert_eq!(bench.client.calls(Op::UploadPartCopy), 1);
    patch.abort().await;
    assert_eq!(bench.client.object("k").unwrap(), bytes);
    bench.assert_clean();
}

#[tokio::test]
async fn an_append_spares_what_another_client_stored_meanwhile() {
    for before in [100, 6 * MIB] {
        for replaced in [true, false] {
            let bench = Bench::new(small_parts());
            let old = data(before, 1);
            let (id, _) = planted(&bench, &old).await;
            let upload = behind(&bench, &id, &old).await;
            write(&upload, before, b"more").await.unwrap();
            match replaced {
                true => drop(bench.client.insert("k", "theirs")),
                false => assert!(bench.client.remove("k")),
            }
            let error = upload.finish().await.unwrap_err();
            assert!(
                matches!(&error, Error::Remote(error) if matches!(error.kind(), ErrorKind::Changed | ErrorKind::NotFound)),
                "{error}"
            );
            assert_eq!(bench.client.object("k"), replaced.then(|| "theirs".into()));
            upload.abort().await;
            bench.assert_clean();
            let error = bench.uploader.append(&id).await.unwrap_err();
            assert!(matches!(error, Error::Remote(_)), "{error}");
        }
    }
}

#[tokio::test]
async fn an_append_has_parts_of_one_size_where_a_store_takes_no_others() {
    let parts = PartLimits { parts_max: 200, are_equal: true };
    for before in [0, 100, PART, PART + 1, 3 * PART, 3 * PART + 5, 6 * MIB + 1] {
        for added in [1, PART, 2 * PART + 7] {
            let settings = Settings { part_size_min: 0, parts, ..Settings::default() };
            let named = Config { part_size_named: true, ..small_parts() };
            let bench = Bench::on(settings, named, Clock::machine(), |client| client.arc());
            let (old, new) = (data(before, 1), data(added, 2));
            let (id, _) = planted(&bench, &old).await;
            let upload = behind(&bench, &id, &old).await;
            for (i, piece) in new.chunks(10_000).enumerate() {
                write(&upload, before + i * 10_000, piece).await.unwrap();
            }
            upload.finish().await.unwrap();
            assert!(bench.client.object("k").unwrap() == [old, new].concat(), "{before} and {added}");
            assert_eq!(bench.client.calls(Op::UploadPartCopy), before / PART, "{before} and {added}");
            bench.assert_clean();
        }
    }
}

#[tokio::test]
async fn an_object_of_as_many_parts_as_a_store_takes_is_too_large_to_append() {
    let parts = PartLimits { parts_max: 20, are_equal: true };
    let settings = Settings { part_size_min: 0, parts, ..Settings::default() };
    let named = Config { part_size_named: true, ..small_parts() };
    let bench = Bench::on(settings, named, Clock::machine(), |client| client.arc());
    for (before, fits) in [(20 * PART - 1, true), (20 * PART, false)] {
        let (id, _) = planted(&bench, &data(before, 1)).await;
        match bench.uploader.append(&id).await {
            Ok(_) => assert!(fits, "{before}"),
            Err(error) => assert!(!fits && matches!(error, Error::TooLarge), "{before}: {error}"),
        }
    }
}

#[tokio::test]
async fn after_a_refused_copy_no_open_appends_to_an_object_that_needs_one() {
    let bench = Bench::new(Config::default());
    let old = data(6 * MIB, 1);
    let (id, _) = planted(&bench, &old).await;
    bench.client.inject(FaultPlan::on(Op::UploadPartCopy).fail(ErrorKind::Unsupported));
    let upload = behind(&bench, &id, &old).await;
    write(&upload, old.len(), b"more").await.unwrap();
    upload.finish().await.unwrap_err();
    let Err(Error::Remote(error)) = bench.uploader.append(&id).await else { panic!("it was refused") };
    assert_eq!(*error.kind(), ErrorKind::Unsupported);
    let (small, _) = planted(&bench, b"small").await;
    bench.uploader.append(&small).await.unwrap();
}
