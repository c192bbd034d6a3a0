//! Attributes of directories, which their markers keep, with `--keep-metadata` and `--directory-markers`.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use s3server::{Effect, Fault};

use super::semantics::assert_errno;
use crate::common::{Setup, Store, TestMount};

const KEEPS: &[&str] =
    &["--keep-metadata", "--directory-markers", "--allow-rename", "--allow-delete", "--store", "aws"];

fn chmod(path: &Path, mode: u32) -> std::io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode()
}

#[test]
fn what_is_set_on_a_directory_is_kept_on_its_marker_and_read_by_others() {
    let store = Store::new();
    store.plant("plain/file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(KEEPS)) else { return };
    let dir = mount.path("dir");
    DirBuilder::new().mode(0o750).create(&dir).unwrap();
    assert_eq!(mode(&dir), 0o40_750);
    chmod(&dir, 0o1_711).unwrap();
    chown(&dir, Some(12), Some(34)).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
    File::open(&dir).unwrap().set_modified(time).unwrap();
    setxattr(&dir, "user.name", b"value", XattrFlags::empty()).unwrap();
    // A directory that exists by its keys alone gets a marker.
    chmod(&mount.path("plain"), 0o700).unwrap();
    assert_eq!(store.keys(), ["dir/", "plain/", "plain/file"]);
    let kept = store.properties("dir/");
    assert_eq!(kept.content_type.as_deref(), Some("application/x-directory"));
    assert_eq!(kept.user["mode"], 0o41_711.to_string());
    let other = mount.second_mount(KEEPS);
    fs::rename(other.path("dir"), other.path("moved")).unwrap();
    let last = mount.second_mount(KEEPS);
    for moved in [other.path("moved"), last.path("moved")] {
        let of = fs::metadata(&moved).unwrap();
        assert_eq!((of.mode(), of.uid(), of.gid()), (0o41_711, 12, 34));
        assert_eq!(of.modified().unwrap(), time);
        let mut value = [0; 16];
        let len = getxattr(&moved, "user.name", &mut value).unwrap();
        assert_eq!(&value[..len], b"value");
    }
    assert_eq!(mode(&last.path("plain")), 0o40_700);
    assert_eq!(fs::read(last.path("plain/file")).unwrap(), b"1");
    // A directory that is removed and made anew has none of the attributes.
    fs::remove_dir(last.path("moved")).unwrap();
    fs::create_dir(last.path("moved")).unwrap();
    assert_eq!(mode(&last.path("moved")), 0o40_755);
    assert_eq!(getxattr(last.path("moved"), "user.name", &mut [0; 16]), Err(Errno::NODATA));
}

#[test]
fn markers_are_asked_once_for_attributes_and_only_where_they_keep_them() {
    let store = Store::new();
    store.put_with("dir/", "", &[("mode", "16832")]);
    store.plant("dir/file", b"1");
    let options = [KEEPS, &["--metadata-ttl", "indefinite"]].concat();
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    let heads = || store.requests().count("HeadObject");
    assert_eq!(fs::read_dir(mount.path("")).unwrap().count(), 1);
    assert_eq!(heads(), 0, "names alone cost nothing");
    for _ in 0..3 {
        assert_eq!(mode(&mount.path("dir")), 0o40_700);
    }
    assert_eq!(heads(), 1);
    // Without markers it succeeds, and nothing is sent.
    for options in [&["--keep-metadata", "--store", "aws"][..], &["--ignore-attributes", "--store", "aws"]] {
        let plain = mount.second_mount(options);
        let path = plain.path("dir");
        assert_eq!(mode(&path), 0o40_755);
        store.requests().reset();
        chmod(&path, 0o711).unwrap();
        assert_eq!(mode(&path), 0o40_755);
        let sent =
            ["HeadObject", "CopyObject", "PutObject"].map(|operation| store.requests().count(operation));
        assert_eq!(sent, [0, 0, 0], "{options:?}");
    }
}

#[test]
fn a_change_of_a_directory_that_the_store_refuses_changes_nothing() {
    let store = Store::new();
    store.plant("plain/file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(KEEPS)) else { return };
    let (dir, plain) = (mount.path("dir"), mount.path("plain"));
    fs::create_dir(&dir).unwrap();
    let denied = Effect::Error { status: 403, code: "AccessDenied".to_owned() };
    for operation in ["CopyObject", "PutObject"] {
        store.faults().add(Fault::on(operation, denied.clone()));
    }
    for path in [&dir, &plain] {
        assert_errno(chmod(path, 0o700), Errno::ACCESS);
        assert_eq!(mode(path), 0o40_755);
    }
    store.faults().clear();
    assert_eq!(store.keys(), ["dir/", "plain/file"]);
    // More than S3 keeps of an object.
    let much = setxattr(&dir, "user.much", &[1; 2000], XattrFlags::empty());
    assert_eq!(much, Err(Errno::NOSPC));
    // Another client's marker that came meanwhile is not replaced: it is changed.
    let held = mount.path("held");
    store.plant("held/file", b"1");
    fs::metadata(&held).unwrap();
    store.put_with("held/", "", &[("mode", "16832"), ("theirs", "1")]);
    chmod(&held, 0o711).unwrap();
    let kept = store.properties("held/").user;
    assert_eq!((kept["mode"].as_str(), kept["theirs"].as_str()), (&*0o40_711.to_string(), "1"));
}
