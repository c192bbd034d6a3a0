//! Flags with effects that are visible from outside: on the wire, and on the disk.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use crate::common::{Setup, Store, Tap, TestMount, command, is_mounted, need, until};

#[test]
fn flags_about_the_bucket_and_new_objects_are_on_the_wire() {
    let store = Store::new();
    store.plant("in", b"1");
    let tap = Tap::to(&store);
    let options = [
        "--requester-pays",
        "--expected-bucket-owner",
        "111122223333",
        "--storage-class",
        "STANDARD_IA",
        "--sse",
        "aws:kms",
        "--sse-kms-key-id",
        "arn:aws:kms:us-east-1:111122223333:key/1",
        "--user-agent-prefix",
        "a-test",
    ];
    let setup = Setup { endpoint: Some(tap.endpoint()), ..Setup::new(&options) };
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    assert_eq!(fs::read(mount.path("in")).unwrap(), b"1");
    // The server echoes the encryption, which the mount compares.
    fs::write(mount.path("out"), b"2").unwrap();
    assert_eq!(store.get("out").unwrap(), b"2");
    let always = [
        "x-amz-request-payer: requester",
        "x-amz-expected-bucket-owner: 111122223333",
        "user-agent: a-test mount-s3/",
    ];
    let new = [
        "x-amz-storage-class: STANDARD_IA",
        "x-amz-server-side-encryption: aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id: arn:aws:kms:us-east-1:111122223333:key/1",
    ];
    for (begin, begins_an_object) in [
        ("GET /bucket?", false),
        ("HEAD /bucket/in", false),
        ("GET /bucket/in", false),
        ("PUT /bucket/out", true),
    ] {
        let heads = tap.asked(begin);
        assert!(!heads.is_empty(), "{begin} was never asked");
        for head in heads {
            assert!(always.iter().all(|line| head.contains(line)), "{head}");
            assert!(new.iter().all(|line| head.contains(line) == begins_an_object), "{head}");
        }
    }
}

/// Goal: scripts find mounts by the output of `df`, `findmnt` and /proc/mounts.
#[test]
fn the_mount_table_shows_the_source_and_options_of_aws_mounts() {
    let Some(mount) = TestMount::new(&["--read-only", "--allow-other"]) else { return };
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let dir = mount.dir().to_str().unwrap();
    let line: Vec<_> =
        table.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|it| it[1] == dir).unwrap();
    assert_eq!(line[0], "mountpoint-s3");
    assert!(line[2].starts_with("fuse"), "{line:?}");
    let options: Vec<_> = line[3].split(',').collect();
    for option in ["ro", "nosuid", "nodev", "noatime", "default_permissions", "allow_other"] {
        assert!(options.contains(&option), "{option}: {options:?}");
    }
}

#[test]
fn a_log_directory_gets_one_file_for_its_owner_and_group() {
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
    if !need("/dev/fuse", fuse.is_ok()) {
        return;
    }
    for foreground in [true, false] {
        let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
        store.plant("in", b"1");
        let logs = folder.path().join("made/logs");
        let options = ["--log-directory", logs.to_str().unwrap(), "--debug"];
        if foreground {
            let mount = TestMount::of(&store, &Setup::new(&options)).unwrap();
            assert_eq!(fs::read(mount.path("in")).unwrap(), b"1");
        } else {
            let dir = tempfile::tempdir().unwrap();
            let mut command = command(&store, dir.path(), &Setup { foreground, ..Setup::new(&options) });
            let started = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
            let mounted = is_mounted(dir.path());
            let read = fs::read(dir.path().join("in"));
            let _ = rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH);
            assert!(started.success() && mounted, "{started}");
            assert_eq!(read.unwrap(), b"1");
        }
        let files: Vec<_> = fs::read_dir(&logs).unwrap().map(Result::unwrap).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        let name = files[0].file_name().into_string().unwrap();
        assert!(name.starts_with("mountpoint-s3-") && name.ends_with(".log"), "{name}");
        let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        // A umask may take more away.
        assert_eq!((mode(&logs) & !0o750, mode(&files[0].path()) & !0o640), (0, 0));
        let log = || fs::read_to_string(files[0].path()).unwrap();
        // In the background the mount is there, and may be used, a moment before the log says so.
        for words in ["successfully mounted bucket bucket at", "GetObject"] {
            until(&format!("the log says {words}"), || log().contains(words));
        }
        assert!(!log().contains(Store::SECRET_KEY), "a secret is in the log");
    }
}

#[test]
fn the_type_of_a_new_object_is_told_by_its_name_if_it_shall_be() {
    let store = Store::new();
    let tap = Tap::to(&store);
    let setup = |options: &[&str]| Setup { endpoint: Some(tap.endpoint()), ..Setup::new(options) };
    let sent = |begin: &str| {
        let heads = tap.asked(begin);
        assert_eq!(heads.len(), 1, "{begin}: {heads:?}");
        let line = heads[0].lines().find_map(|line| line.strip_prefix("content-type: "));
        line.map(str::to_owned).unwrap_or_default()
    };
    let Some(mount) = TestMount::of(&store, &setup(&["--infer-content-type", "--part-size", "5242880"]))
    else {
        return;
    };
    fs::write(mount.path("photo.PNG"), b"1").unwrap();
    fs::write(mount.path("page.html"), b"1").unwrap();
    fs::write(mount.path("no_extension"), b"1").unwrap();
    fs::write(mount.path("film.mp4"), vec![0; 6 << 20]).unwrap();
    drop(mount);
    assert_eq!(sent("PUT /bucket/photo.PNG"), "image/png");
    assert_eq!(sent("PUT /bucket/page.html"), "text/html");
    assert_eq!(sent("PUT /bucket/no_extension"), "binary/octet-stream");
    assert_eq!(sent("POST /bucket/film.mp4?uploads"), "video/mp4");
    let mount = TestMount::of(&store, &setup(&[])).unwrap();
    fs::write(mount.path("other.png"), b"1").unwrap();
    drop(mount);
    assert_eq!(sent("PUT /bucket/other.png"), "binary/octet-stream");
}
