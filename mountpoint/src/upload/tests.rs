//! Whole files against the bucket in memory: boundaries, faults, order.

use tokio::sync::oneshot;

/// Passes a client's requests on to a [`MemoryClient`].
macro_rules! passed_on {
    () => {
        fn abort_multipart_upload<'a>(&'a self, upload: &'a UploadId) -> BoxFuture<'a, Result<()>> {
            self.0.abort_multipart_upload(upload)
        }

        fn head_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<ObjectMeta>> {
            self.0.head_object(key)
        }

        fn list_objects<'a>(&'a self, request: &'a ListObjects) -> BoxFuture<'a, Result<ListPage>> {
            self.0.list_objects(request)
        }

        fn get_object<'a>(&'a self, request: &'a GetObject, into: &'a mut Fill) -> BoxFuture<'a, Result<()>> {
            self.0.get_object(request, into)
        }

        fn get_first<'a>(&'a self, request: &'a GetFirst, room: BlockMut) -> BoxFuture<'a, Result<First>> {
            self.0.get_first(request, room)
        }

        fn list_multipart_uploads<'a>(
            &'a self,
            prefix: &'a str,
        ) -> BoxFuture<'a, Result<Vec<PendingUpload>>> {
            self.0.list_multipart_uploads(prefix)
        }

        fn delete_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<()>> {
            self.0.delete_object(key)
        }
    };
}

mod append;
mod liar;
mod panics;
mod shortage;

use super::*;
use crate::buffer::Use;
use crate::object::ObjectMeta;
use crate::s3::ErrorKind;
use crate::testing::{FaultPlan, MemoryClient, Op, Settings};

const MIB: usize = 1 << 20;

/// Small enough that a test of many parts moves little.
const PART: usize = 64 << 10;

struct Bench {
    client: MemoryClient,
    pool: Pool,
    clock: Clock,
    metrics: Arc<Metrics>,
    uploader: Uploader,
}

impl Bench {
    fn new(config: Config) -> Self {
        Self::with(config, Clock::machine())
    }

    fn with(config: Config, clock: Clock) -> Self {
        Self::through(config, clock, |client| client.arc())
    }

    /// An uploader with a layer between it and the bucket.
    fn through(
        config: Config,
        clock: Clock,
        way: impl FnOnce(&MemoryClient) -> Arc<dyn ObjectClient>,
    ) -> Self {
        Self::on(Settings { part_size_min: 0, ..Settings::default() }, config, clock, way)
    }

    /// An uploader on a bucket with these settings.
    fn on(
        settings: Settings,
        config: Config,
        clock: Clock,
        way: impl FnOnce(&MemoryClient) -> Arc<dyn ObjectClient>,
    ) -> Self {
        let client = MemoryClient::with(settings);
        let pool = Pool::new(&crate::buffer::Config { target: 128 << 20, network: 16 << 20 });
        let metrics = Arc::new(Metrics::default());
        let uploader = Uploader::new(
            way(&client),
            pool.clone(),
            config,
            clock.clone(),
            Arc::clone(&metrics),
            tokio::runtime::Handle::current(),
        );
        Self { client, pool, clock, metrics, uploader }
    }

    fn create(&self, key: &str) -> Arc<Upload> {
        self.uploader.create(key.into(), false)
    }

    /// Asserts that all memory is back, and the bucket has only visible objects.
    fn assert_clean(&self) {
        assert_eq!(self.pool.used(Use::Write), 0, "memory came back");
        assert_eq!(self.pool.waiting(Use::Write), 0);
        assert_eq!(self.client.pending_uploads(), [], "no upload is left behind");
    }
}

fn small_parts() -> Config {
    Config { part_size: PART as u64, ..Config::default() }
}

fn data(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed).wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}

/// Writes, and waits for the reply, as an application does.
async fn write(upload: &Arc<Upload>, offset: usize, data: &[u8]) -> Result<(), Error> {
    start(upload, offset, data).await.expect("a write is always answered")
}

fn start(upload: &Arc<Upload>, offset: usize, data: &[u8]) -> oneshot::Receiver<Result<(), Error>> {
    let (send, receive) = oneshot::channel();
    upload.write(offset as u64, data, Box::new(move |result| _ = send.send(result)));
    receive
}

async fn write_all(upload: &Arc<Upload>, data: &[u8], piece: usize) -> Result<(), Error> {
    for (i, chunk) in data.chunks(piece).enumerate() {
        write(upload, i * piece, chunk).await?;
    }
    Ok(())
}

async fn store(upload: &Arc<Upload>, data: &[u8], piece: usize) -> Result<ObjectMeta, Error> {
    write_all(upload, data, piece).await?;
    upload.finish().await
}

#[tokio::test]
async fn every_boundary_of_a_part_is_stored_exactly_in_the_fewest_requests() {
    for checksum in [None, Some(ChecksumAlgorithm::Crc32c), Some(ChecksumAlgorithm::Crc64Nvme)] {
        for len in [0, 1, PART - 1, PART, PART + 1, 2 * PART, 2 * PART + 1, 7 * PART + 5] {
            for piece in [4096, 10_000, PART, MIB] {
                let bench = Bench::new(Config { checksum, ..small_parts() });
                let data = data(len, piece);
                let upload = bench.create("a");
                let meta = store(&upload, &data, piece).await.unwrap();
                assert_eq!(bench.client.object("a").unwrap(), data, "{len} in pieces of {piece}");
                let stored = bench.client.meta("a").unwrap();
                assert_eq!((meta.size, &meta.etag), (len as u64, &stored.etag));
                assert!(meta.readable);
                let parts = if len > PART { len.div_ceil(PART) } else { 0 };
                assert_eq!(bench.client.calls(Op::UploadPart), parts, "{len} in pieces of {piece}");
                assert_eq!(bench.client.calls(Op::PutObject), usize::from(parts == 0));
                assert_eq!(bench.client.calls(Op::CompleteMultipartUpload), usize::from(parts > 0));
                bench.assert_clean();
            }
        }
    }
}

#[tokio::test]
async fn nothing_is_visible_or_held_before_there_is_reason() {
    let bench = Bench::new(small_parts());
    let upload = bench.create("a");
    assert_eq!(bench.pool.used(Use::Write), 0, "a handle that wrote nothing holds nothing");
    write(&upload, 0, &[1; 4096]).await.unwrap();
    assert_eq!(bench.pool.used(Use::Write), 4096, "a small file holds what it has");
    write(&upload, 4096, &[1; PART - 4096]).await.unwrap();
    assert_eq!(bench.client.log(), [], "up to one part nothing is sent");
    write(&upload, PART, &[1; 1]).await.unwrap();
    while bench.client.calls(Op::UploadPart) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(bench.client.object("a").is_none());
    upload.finish().await.unwrap();
    assert_eq!(bench.client.object("a").unwrap().len(), PART + 1);
    bench.assert_clean();
}

#[tokio::test]
async fn a_write_out_of_order_gives_the_upload_up_for_good() {
    let bench = Bench::new(small_parts());
    let upload = bench.create("a");
    write_all(&upload, &data(3 * PART, 0), PART).await.unwrap();
    while bench.client.calls(Op::UploadPart) == 0 {
        tokio::task::yield_now().await;
    }
    for offset in [0, 3 * PART + 1, 3 * PART] {
        let error = write(&upload, offset, b"x").await.unwrap_err();
        assert!(matches!(error, Error::OutOfOrder { expected } if expected == 3 * PART as u64), "{error}");
    }
    assert!(matches!(upload.finish().await, Err(Error::OutOfOrder { .. })));
    upload.abort().await;
    assert_eq!(bench.client.calls(Op::AbortMultipartUpload), 1);
    assert!(bench.client.keys().is_empty());
    bench.assert_clean();
}

#[tokio::test]
async fn pieces_in_any_order_are_stored_as_they_lie() {
    let pieces = 40;
    for (len, lacks) in
        [(PART / 7, None), (PART + 3, None), (PART / 3, Some(5)), (PART + 9, Some(0)), (PART, Some(39))]
    {
        let bench = Bench::new(small_parts());
        let mut expected = data(pieces * len, 3);
        let upload = bench.create("a");
        // Each group of eight from its end to its start.
        for n in (0..pieces).map(|n| n / 8 * 8 + 7 - n % 8).filter(|n| Some(*n) != lacks) {
            write(&upload, n * len, &expected[n * len..(n + 1) * len]).await.unwrap();
        }
        if let Some(n) = lacks {
            expected[n * len..(n + 1) * len].fill(0);
            // A hole at the end is none.
            expected.truncate(if n + 1 == pieces { n * len } else { pieces * len });
        }
        assert_eq!(upload.length(), expected.len() as u64);
        let meta = upload.finish().await.unwrap();
        assert!(
            bench.client.object("a").unwrap() == expected && meta.size == expected.len() as u64,
            "{len} {lacks:?}"
        );
        bench.assert_clean();
    }
}

#[tokio::test]
async fn pieces_beyond_reach_or_over_others_are_refused_and_memory_is_back() {
    for (first, second) in
        [(9 << 20, None), (100, Some((104, 2))), (100, Some((0, 101))), (100, Some((98, 3)))]
    {
        let bench = Bench::new(small_parts());
        let upload = bench.create("a");
        let refused = match (write(&upload, first, &[1; 8]).await, second) {
            (Ok(()), Some((at, len))) => write(&upload, at, &data(len, 1)).await,
            (outcome, _) => outcome,
        };
        assert!(matches!(refused, Err(Error::OutOfOrder { expected: 0 })), "{refused:?}");
        assert!(matches!(upload.finish().await, Err(Error::OutOfOrder { .. })));
        assert!(bench.client.keys().is_empty());
        bench.assert_clean();
    }
    // All files together: what one gives back, another gets.
    let bench = Bench::new(small_parts());
    let uploads: Vec<_> = (0..5).map(|n| bench.create(&format!("{n}"))).collect();
    for (n, upload) in uploads.iter().enumerate() {
        let kept = write(upload, 1 << 20, &vec![1; 4 << 20]).await;
        assert_eq!(kept.is_ok(), n < 4, "{kept:?}");
    }
    uploads[0].give_up();
    let next = bench.create("next");
    write(&next, 1 << 20, &vec![1; 4 << 20]).await.unwrap();
}

#[tokio::test]
async fn parts_go_side_by_side_up_to_the_limit_and_may_arrive_in_any_order() {
    let bench = Bench::new(Config { parts_in_flight_max: 3, ..small_parts() });
    let first = bench.client.hold(FaultPlan::on(Op::UploadPart).nth(1));
    let others = bench.client.hold(FaultPlan::on(Op::UploadPart).nth(2).times(2));
    let data = data(6 * PART, 1);
    let upload = bench.create("a");
    let writer = tokio::spawn({
        let (upload, data) = (Arc::clone(&upload), data.clone());
        async move { store(&upload, &data, PART).await }
    });
    first.arrived(1).await;
    others.arrived(2).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.client.calls(Op::UploadPart), 3, "the limit holds");
    assert_eq!(upload.size(), 3 * PART as u64, "the reply to the third part is the brake");
    others.release();
    while bench.client.calls(Op::UploadPart) < 5 {
        tokio::task::yield_now().await;
    }
    first.release();
    writer.await.unwrap().unwrap();
    assert_eq!(bench.client.object("a").unwrap(), data);
    bench.assert_clean();
}

/// Goal: whatever call fails, the error is reported, the upload aborted, memory back, nothing visible. Method: fail call
/// N of each kind, N = 1, 2, ... until a run meets no fault.
#[tokio::test]
async fn whichever_call_fails_the_error_is_told_and_nothing_is_left() {
    for op in [Op::PutObject, Op::CreateMultipartUpload, Op::UploadPart, Op::CompleteMultipartUpload] {
        for len in [PART / 2, 5 * PART + 7] {
            for n in 1.. {
                let bench = Bench::new(small_parts());
                bench.client.inject(FaultPlan::on(op).nth(n).fail(ErrorKind::ServerError));
                let upload = bench.create("a");
                let result = store(&upload, &data(len, n), 5000).await;
                let struck = bench.client.calls(op) >= n;
                assert_eq!(result.is_err(), struck, "{op:?} {n}");
                if !struck {
                    assert_eq!(bench.client.object("a").unwrap(), data(len, n));
                    bench.assert_clean();
                    break;
                }
                let later = upload.finish().await.unwrap_err();
                for error in [result.unwrap_err(), later] {
                    let Error::Remote(remote) = error else { panic!("{op:?} {n}: {error}") };
                    assert_eq!(*remote.kind(), ErrorKind::ServerError);
                }
                upload.abort().await;
                upload.abort().await;
                let multipart = bench.client.calls(Op::CreateMultipartUpload) > 0;
                let created = multipart && op != Op::CreateMultipartUpload;
                assert_eq!(bench.client.calls(Op::AbortMultipartUpload), usize::from(created), "{op:?} {n}");
                assert_eq!(bench.metrics.uploads_aborted.get(), u64::from(created));
                assert!(bench.client.keys().is_empty());
                bench.assert_clean();
            }
        }
    }
}

#[tokio::test]
async fn a_failed_abort_is_not_repeated_and_does_not_replace_the_error() {
    let bench = Bench::new(small_parts());
    bench.client.inject(FaultPlan::on(Op::UploadPart).fail(ErrorKind::Denied));
    bench.client.inject(FaultPlan::on(Op::AbortMultipartUpload).always().fail(ErrorKind::Network));
    let upload = bench.create("a");
    let error = store(&upload, &data(4 * PART, 0), PART).await.unwrap_err();
    assert!(matches!(error, Error::Remote(e) if *e.kind() == ErrorKind::Denied));
    upload.abort().await;
    assert_eq!(bench.client.calls(Op::AbortMultipartUpload), 1);
    assert_eq!(bench.pool.used(Use::Write), 0);
}

#[tokio::test]
async fn a_lost_answer_to_complete_is_told_as_unknown() {
    let bench = Bench::new(small_parts());
    bench.client.inject(FaultPlan::on(Op::CompleteMultipartUpload).answer_lost());
    let upload = bench.create("a");
    let data = data(2 * PART, 0);
    let error = store(&upload, &data, PART).await.unwrap_err();
    assert!(matches!(error, Error::Remote(e) if *e.kind() == ErrorKind::Unknown));
    upload.abort().await;
    assert_eq!(bench.client.object("a").unwrap(), data, "the abort after it harms nothing that is there");
    bench.assert_clean();
}

#[tokio::test]
async fn an_object_that_is_there_is_not_replaced_when_asked_not_to() {
    for len in [10, 3 * PART] {
        let bench = Bench::new(small_parts());
        bench.client.insert("a", "theirs");
        let upload = bench.uploader.create("a".into(), true);
        let error = store(&upload, &data(len, 0), PART).await.unwrap_err();
        assert!(matches!(error, Error::Remote(e) if *e.kind() == ErrorKind::Exists));
        upload.abort().await;
        assert_eq!(bench.client.object("a").unwrap(), "theirs");
        bench.assert_clean();
    }
}

#[tokio::test]
async fn everybody_who_finishes_gets_the_one_outcome() {
    let bench = Bench::new(small_parts());
    let gate = bench.client.hold(FaultPlan::on(Op::CompleteMultipartUpload));
    let upload = bench.create("a");
    write_all(&upload, &data(2 * PART, 0), PART).await.unwrap();
    let finish = |upload: &Arc<Upload>| {
        let upload = Arc::clone(upload);
        tokio::spawn(async move { upload.finish().await })
    };
    let (one, two) = (finish(&upload), finish(&upload));
    gate.arrived(1).await;
    let given_up = finish(&upload);
    tokio::task::yield_now().await;
    given_up.abort();
    assert!(matches!(write(&upload, 2 * PART, b"late").await, Err(Error::Finished)));
    gate.release();
    let meta = one.await.unwrap().unwrap();
    assert_eq!(two.await.unwrap().unwrap(), meta);
    assert_eq!(upload.finish().await.unwrap(), meta);
    upload.abort().await;
    assert_eq!(upload.finish().await.unwrap(), meta, "too late to abort");
    assert_eq!(bench.client.calls(Op::CompleteMultipartUpload), 1);
    assert_eq!(bench.client.calls(Op::AbortMultipartUpload), 0);
}

#[tokio::test]
async fn released_files_are_stored_in_turn_and_awaited_ones_at_once() {
    let bench = Bench::new(small_parts());
    let gate = bench.client.hold(FaultPlan::on(Op::PutObject).always());
    let files: Vec<_> = (0..=UNAWAITED_MAX).map(|i| bench.create(&format!("{i:02}"))).collect();
    for file in &files {
        assert_eq!(file.tell(Event::Release), Decision::Store);
    }
    gate.arrived(UNAWAITED_MAX).await;
    let awaited = bench.create("awaited");
    assert_eq!(awaited.tell(Event::Sync), Decision::Store);
    gate.arrived(UNAWAITED_MAX + 1).await;
    assert_eq!(bench.client.calls(Op::PutObject), UNAWAITED_MAX + 1, "the last one released waits");
    gate.release();
    for file in files.iter().chain([&awaited]) {
        file.outcome().await.unwrap();
    }
    assert_eq!(bench.client.keys().len(), UNAWAITED_MAX + 2);
}

#[tokio::test]
async fn abort_stops_parts_in_flight_and_returns_their_memory() {
    let bench = Bench::new(small_parts());
    let gate = bench.client.hold(FaultPlan::on(Op::UploadPart).always());
    let upload = bench.create("a");
    write_all(&upload, &data(3 * PART + 5, 0), PART).await.unwrap();
    gate.arrived(3).await;
    upload.abort().await;
    bench.assert_clean();
    assert_eq!(bench.client.calls(Op::AbortMultipartUpload), 1);
    assert!(matches!(upload.finish().await, Err(Error::Aborted)));
    assert!(matches!(write(&upload, 3 * PART + 5, b"x").await, Err(Error::Aborted)));
    assert!(bench.client.keys().is_empty());
}

#[tokio::test]
async fn an_upload_being_created_is_waited_for_and_then_aborted() {
    let bench = Bench::new(small_parts());
    let gate = bench.client.hold_answer(FaultPlan::on(Op::CreateMultipartUpload));
    let upload = bench.create("a");
    write_all(&upload, &data(2 * PART, 0), PART).await.unwrap();
    gate.arrived(1).await;
    let abort = tokio::spawn({
        let upload = Arc::clone(&upload);
        async move { upload.abort().await }
    });
    while !matches!(upload.finish().await, Err(Error::Aborted)) {}
    assert_eq!(bench.client.calls(Op::AbortMultipartUpload), 0);
    gate.release();
    abort.await.unwrap();
    bench.assert_clean();
}

#[tokio::test]
async fn dropped_without_finish_it_is_aborted() {
    let bench = Bench::new(small_parts());
    let gate = bench.client.hold(FaultPlan::on(Op::UploadPart).always());
    let upload = bench.create("a");
    write_all(&upload, &data(2 * PART + 1, 0), PART).await.unwrap();
    gate.arrived(2).await;
    drop(upload);
    while bench.metrics.uploads_aborted.get() == 0 || !bench.client.pending_uploads().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(bench.client.keys().is_empty());
    bench.assert_clean();
    assert!(bench.uploader.0.open.lock().is_empty());
}

#[tokio::test]
async fn more_than_5_tib_is_refused() {
    let bench = Bench::new(small_parts());
    let upload = bench.create("a");
    write(&upload, 0, &[1; 100]).await.unwrap();
    upload.pretend(size::OBJECT_MAX - 5, 0);
    write(&upload, size::OBJECT_MAX as usize - 5, &[1; 5]).await.unwrap();
    let error = write(&upload, size::OBJECT_MAX as usize, &[1]).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge));
    upload.abort().await;
    bench.assert_clean();
}

#[tokio::test]
async fn more_than_10000_parts_are_refused_and_exactly_as_many_are_not() {
    let bench = Bench::new(small_parts());
    let upload = bench.create("a");
    let limits = PartLimits::default();
    upload.pretend(0, limits.parts_max - 1);
    let last = bench.uploader.0.part_size(limits.parts_max, limits) as usize;
    write_all(&upload, &vec![1; last], MIB).await.unwrap();
    let error = write(&upload, last, &[1]).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge), "{error}");
    assert!(matches!(upload.finish().await, Err(Error::TooLarge)));
    upload.abort().await;
    bench.assert_clean();
}

/// A store of few parts, so that growth begins within a file of a test.
#[tokio::test]
async fn a_file_whose_parts_would_grow_is_stored_where_all_must_be_equal() {
    for are_equal in [true, false] {
        let parts = PartLimits { parts_max: 20, are_equal };
        let settings = Settings { part_size_min: 0, parts, ..Settings::default() };
        let named = Config { part_size_named: true, ..small_parts() };
        let bench = Bench::on(settings, named, Clock::machine(), |client| client.arc());
        let data = data(18 * PART + 5, 1);
        store(&bench.create("a"), &data, MIB).await.unwrap();
        assert_eq!(bench.client.object("a").unwrap(), data);
        let sent = bench.client.calls(Op::UploadPart);
        assert_eq!(sent, if are_equal { 19 } else { 3 }, "parts grow only where they may differ");
        bench.assert_clean();
    }
}

#[tokio::test]
async fn a_file_of_more_parts_than_the_store_takes_is_too_large() {
    let parts = PartLimits { parts_max: 20, are_equal: true };
    let settings = Settings { part_size_min: 0, parts, ..Settings::default() };
    let named = Config { part_size_named: true, ..small_parts() };
    let bench = Bench::on(settings, named, Clock::machine(), |client| client.arc());
    let upload = bench.create("a");
    write_all(&upload, &data(20 * PART, 1), PART).await.unwrap();
    let error = write(&upload, 20 * PART, &[1]).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge) && error.to_string().contains("--write-part-size"), "{error}");
    upload.abort().await;
    bench.assert_clean();
}

#[test]
fn a_silent_state_directory_delays_no_file_and_keeps_no_late_note() {
    let dir = tempfile::tempdir().unwrap();
    let journal = JournalConfig {
        dir: dir.path().to_owned(),
        asked: true,
        endpoint: String::new(),
        bucket: "bucket".into(),
        prefix: String::new(),
    };
    // One thread that may wait for disks, and it does.
    let runtime =
        tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let (answers, disk) = std::sync::mpsc::channel::<()>();
        let waits = tokio::task::spawn_blocking(move || disk.recv().is_err());
        let bench = Bench::with(Config { journal: Some(journal), ..small_parts() }, Clock::manual());
        let bytes = data(3 * PART + 1, 1);
        let (first, second) = (bench.create("first"), bench.create("second"));
        let storing = tokio::spawn({
            let bytes = bytes.clone();
            async move { store(&first, &bytes, PART).await }
        });
        let mut waited = Duration::ZERO;
        while !storing.is_finished() && waited < 2 * NOTE_WITHIN {
            tokio::task::yield_now().await;
            bench.clock.advance(Duration::from_millis(10));
            waited += Duration::from_millis(10);
        }
        assert!(storing.is_finished(), "it waits for the disk");
        storing.await.unwrap().unwrap();
        // The disk has not answered since: nobody waits for it again.
        store(&second, &bytes, PART).await.unwrap();
        for key in ["first", "second"] {
            assert_eq!(bench.client.object(key).unwrap(), bytes);
        }
        drop(answers);
        assert!(waits.await.unwrap());
        // Behind the late note, on the same thread.
        let folder = dir.path().join("uploads");
        let left = tokio::task::spawn_blocking(move || std::fs::read_dir(folder).unwrap().count());
        assert_eq!(left.await.unwrap(), 0, "nothing is left of a note that nobody waited for");
        bench.assert_clean();
    });
}
