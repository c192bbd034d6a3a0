//! Scripted faults over real sockets: right bytes or a fitting errno, never wrong bytes, never a hang.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::process::Command;

use rustix::io::Errno;
use s3server::{Effect, Fault};

use crate::common::{Pattern, Setup, Store, TestMount};

const LEN: usize = 12 << 20;

fn error(status: u16, code: &str) -> Effect {
    Effect::Error { status, code: code.to_owned() }
}

/// Reads a large object under a fault; asserts that no wrong byte came.
fn read_under(fault: Fault, env: &[(&'static str, &str)]) -> Option<io::Result<()>> {
    let store = Store::new();
    store.plant("file", &Pattern(1).bytes(0, LEN));
    let mut setup = Setup::new(&[]);
    setup.env.extend(env.iter().map(|(name, value)| (*name, (*value).to_owned())));
    let mount = TestMount::of(&store, &setup)?;
    store.faults().add(fault);
    let read = fs::read(mount.path("file"));
    assert!(store.faults().fired() > 0, "the fault never struck: {}", mount.log());
    store.faults().clear();
    Some(read.map(|bytes| {
        assert!(bytes.len() == LEN && Pattern(1).is(0, &bytes), "wrong bytes under a fault");
    }))
}

/// The read must succeed in spite of the fault.
fn survives(fault: Fault) {
    let what = format!("{fault:?}");
    if let Some(read) = read_under(fault, &[]) {
        read.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// The read must end in one of these errors.
fn ends_in(fault: Fault, errnos: &[Errno]) {
    let what = format!("{fault:?}");
    if let Some(read) = read_under(fault, &[("AWS_MAX_ATTEMPTS", "2")]) {
        let error = read.expect_err(&what);
        let errno = error.raw_os_error();
        assert!(errnos.iter().any(|e| Some(e.raw_os_error()) == errno), "{what}: {error}");
    }
}

#[test]
fn a_read_survives_a_500() {
    survives(Fault::on("GetObject", error(500, "InternalError")).times(2));
}

#[test]
fn a_read_survives_a_503() {
    survives(Fault::on("GetObject", error(503, "SlowDown")).times(3));
}

#[test]
fn a_read_survives_resets_before_and_within_the_body() {
    survives(Fault::on("GetObject", Effect::Reset { after_bytes: None }).times(2));
    survives(Fault::on("GetObject", Effect::Reset { after_bytes: Some(100_001) }).times(3));
}

#[test]
fn a_read_survives_a_truncated_body() {
    survives(Fault::on("GetObject", Effect::Truncate { after_bytes: 77_777 }).times(3));
}

/// The case: the server goes on after an hour, so only a clock of the engine can end the stall.
#[test]
fn a_read_survives_a_stall() {
    survives(Fault::on("GetObject", Effect::Stall { after_bytes: 50_000, for_ms: 3_600_000 }).nth(2));
}

#[test]
fn a_wrong_etag_never_gives_bytes() {
    // An answer of another version is an answer about another object, however the store came to give it.
    ends_in(Fault::on("GetObject", Effect::WrongEtag), &[Errno::STALE, Errno::IO]);
}

#[test]
fn a_store_that_ignores_if_match_never_mixes_versions() {
    let store = Store::new();
    store.put("file", Pattern(1).bytes(0, 64 << 20));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    store.faults().add(Fault::on("GetObject", Effect::IgnoreIfMatch));
    let file = File::open(mount.path("file")).unwrap();
    store.put("file", Pattern(2).bytes(0, 64 << 20));
    let mut buffer = vec![0; 1 << 20];
    let stale = Errno::STALE.raw_os_error();
    for at in (0..64 << 20).step_by(1 << 20) {
        match std::os::unix::fs::FileExt::read_at(&file, &mut buffer, at) {
            Ok(n) => assert!(Pattern(1).is(at, &buffer[..n]), "bytes of another version at {at}"),
            Err(error) => return assert_eq!(error.raw_os_error(), Some(stale), "{error}"),
        }
    }
    panic!("the old version was overwritten, and yet read to its end");
}

#[test]
fn a_store_that_ignores_ranges_gives_right_bytes_or_an_error() {
    if let Some(Err(error)) =
        read_under(Fault::on("GetObject", Effect::IgnoreRange), &[("AWS_MAX_ATTEMPTS", "2")])
    {
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{error}");
    }
}

#[test]
fn errors_that_stay_have_their_errno() {
    ends_in(Fault::on("GetObject", error(500, "InternalError")), &[Errno::IO]);
    ends_in(Fault::on("GetObject", error(503, "SlowDown")), &[Errno::IO]);
    ends_in(Fault::on("GetObject", error(403, "AccessDenied")), &[Errno::ACCESS]);
    ends_in(Fault::on("GetObject", Effect::Truncate { after_bytes: 0 }), &[Errno::IO]);
}

#[test]
fn a_request_that_fails_has_one_line_with_its_id_and_what_to_look_at() {
    let store = Store::new();
    store.plant("file", &Pattern(1).bytes(0, 1000));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    store.faults().add(Fault::on("GetObject", error(403, "AccessDenied")));
    // An open long after its look-up asks by a GET. A HEAD settles what that one did not say, so it does not count as a failure and has no line.
    let mut file = File::open(mount.path("file")).unwrap();
    store.requests().reset();
    let read = file.read(&mut [0; 1000]).unwrap_err();
    assert_eq!(read.raw_os_error(), Some(Errno::ACCESS.raw_os_error()), "{read}");
    // The kernel asks once more for a page that its read-ahead did not get.
    let (lines, asked) = (mount.complaints(), store.requests().count("GetObject"));
    assert!(asked > 0 && lines.len() as u64 == asked, "{asked} requests: {lines:#?}");
    for (line, word) in lines.iter().flat_map(|line| {
        ["GetObject \"file\": 403 AccessDenied", "look at the key's permissions"].map(|word| (line, word))
    }) {
        assert!(line.contains(word), "{word:?} in {line}");
    }
    // The close of a file fails by its PUT.
    store.faults().add(Fault::on("PutObject", error(403, "AccessDenied")));
    let written = fs::write(mount.path("new"), b"1").and_then(|()| fs::metadata(mount.path("new")));
    assert!(written.is_err());
    let news = &mount.complaints()[lines.len()..];
    assert!(news.len() == 1 && news[0].contains("PutObject \"new\": 403 AccessDenied"), "{news:#?}");
}

#[test]
fn a_failing_store_is_eio_and_never_a_missing_file() {
    let store = Store::new();
    store.plant("dir/file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&[]).env("AWS_MAX_ATTEMPTS", "2")) else { return };
    let eio = Some(Errno::IO.raw_os_error());
    store.faults().add(Fault::on("HeadObject", error(500, "InternalError")));
    store.faults().add(Fault::on("ListObjectsV2", error(503, "SlowDown")));
    assert_eq!(fs::metadata(mount.path("dir/file")).unwrap_err().raw_os_error(), eio);
    let listed: io::Result<Vec<_>> = fs::read_dir(mount.dir()).and_then(Iterator::collect);
    assert_eq!(listed.unwrap_err().raw_os_error(), eio);
    store.faults().clear();
    assert_eq!(fs::read(mount.path("dir/file")).unwrap(), b"1", "and it recovers");
}

/// Writes through `dd`, which reports an error of close. Returns its result, and the content of the bucket.
fn write_under(faults: &[Fault], len: usize) -> Option<(bool, Option<Vec<u8>>)> {
    let store = Store::new();
    let mount = TestMount::of(&store, &Setup::new(&[]).env("AWS_MAX_ATTEMPTS", "4"))?;
    let source = mount.scratch("source");
    fs::write(&source, Pattern(3).bytes(0, len)).unwrap();
    for fault in faults {
        store.faults().add(fault.clone());
    }
    let mut dd = Command::new("dd");
    dd.arg(format!("if={}", source.display()))
        .arg(format!("of={}", mount.path("file").display()))
        .arg("bs=1M");
    let written = dd.output().unwrap().status.success();
    assert!(store.faults().fired() > 0, "the fault never struck: {}", mount.log());
    store.faults().clear();
    let log = mount.log();
    assert!(!log.contains(" ERROR "), "what a store does is not an error of ours, under {faults:?}: {log}");
    drop(mount);
    assert_eq!(store.pending_uploads(), 0, "an upload was left behind by {faults:?}");
    let stored = store.get("file");
    if let Some(stored) = &stored {
        assert!(stored.len() == len && Pattern(3).is(0, stored), "wrong bytes were stored under {faults:?}");
    }
    Some((written, stored))
}

#[test]
fn a_write_survives_what_passes() {
    let put = |effect| (Fault::on("PutObject", effect), 1 << 20);
    let part = |effect| (Fault::on("UploadPart", effect), 20 << 20);
    let complete = |effect| (Fault::on("CompleteMultipartUpload", effect), 20 << 20);
    for (fault, len) in [
        put(error(500, "InternalError")),
        put(error(503, "SlowDown")),
        put(Effect::Reset { after_bytes: None }),
        put(Effect::ResetUpload { after_bytes: 100_000 }),
        put(Effect::DropAnswer),
        put(Effect::OkWithError { code: "InternalError".to_owned() }),
        part(Effect::OkWithError { code: "SlowDown".to_owned() }),
        (
            Fault::on("CreateMultipartUpload", Effect::OkWithError { code: "InternalError".to_owned() }),
            20 << 20,
        ),
        part(error(500, "InternalError")),
        part(error(503, "SlowDown")),
        part(Effect::ResetUpload { after_bytes: 1_000_000 }),
        part(Effect::DropAnswer),
        (Fault::on("CreateMultipartUpload", error(500, "InternalError")), 20 << 20),
        complete(error(500, "InternalError")),
        complete(Effect::OkWithError { code: "InternalError".to_owned() }),
        complete(Effect::DropAnswer),
    ] {
        let what = format!("{fault:?}");
        let Some((written, stored)) = write_under(&[fault.times(1)], len) else { return };
        assert!(written && stored.is_some(), "{what}: written {written}, stored {}", stored.is_some());
    }
}

#[test]
fn a_write_that_can_not_be_stored_says_so_and_leaves_nothing() {
    for (operation, effect, len) in [
        ("PutObject", error(500, "InternalError"), 1000),
        ("PutObject", error(403, "AccessDenied"), 1000),
        ("PutObject", error(400, "BadDigest"), 1000),
        ("UploadPart", error(500, "InternalError"), 20 << 20),
        ("UploadPart", error(400, "BadDigest"), 20 << 20),
        ("CreateMultipartUpload", error(403, "AccessDenied"), 20 << 20),
        ("CompleteMultipartUpload", Effect::OkWithError { code: "InternalError".to_owned() }, 20 << 20),
        ("CompleteMultipartUpload", error(400, "InvalidPart"), 20 << 20),
    ] {
        let what = format!("{operation} {effect:?}");
        let Some((written, stored)) = write_under(&[Fault::on(operation, effect)], len) else { return };
        assert!(!written, "{what}: dd heard that all is well");
        assert_eq!(stored, None, "{what}");
    }
}

#[test]
fn a_file_whose_last_answer_was_lost_is_read_at_once() {
    for effect in [
        Effect::DropAnswer,
        Effect::OkWithError { code: "InternalError".to_owned() },
        Effect::Slow { for_ms: 1500 },
        Effect::Truncate { after_bytes: 20 },
    ] {
        let Some(mount) = TestMount::new(&[]) else { return };
        let what = format!("{effect:?}");
        mount.store().faults().add(Fault::on("CompleteMultipartUpload", effect).nth(1));
        let bytes = Pattern(4).bytes(0, 20 << 20);
        fs::write(mount.path("file"), &bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(mount.store().faults().fired(), 1, "{what}");
        assert!(fs::read(mount.path("file")).unwrap() == bytes, "{what}");
    }
}

/// New files and replaced ones, in one request and in parts, as in a bucket with Object Lock on some stores.
#[test]
fn files_of_all_sizes_are_stored_where_each_body_needs_an_md5() {
    let store = Store::new();
    for operation in ["PutObject", "UploadPart"] {
        store.faults().add(Fault::on(operation, Effect::DemandMd5));
    }
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--allow-overwrite"])) else { return };
    for len in [5, 9 << 20, 20 << 20] {
        for seed in [1, 2] {
            let bytes = Pattern(seed).bytes(0, len);
            fs::write(mount.path("file"), &bytes).unwrap();
            assert!(store.get("file").unwrap() == bytes, "{len}");
        }
        fs::write(mount.path(&len.to_string()), Pattern(3).bytes(0, len)).unwrap();
    }
    let said = mount.log().matches("the store demands Content-MD5").count();
    assert_eq!(said, 1, "{}", mount.log());
    assert_eq!(store.pending_uploads(), 0);
}
