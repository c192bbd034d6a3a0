//! Attributes that objects keep, with `--keep-metadata`, and the store's facts about objects, with `--xattrs`.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, symlink,
};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::semantics::assert_errno;
use super::tools::{MANY, diff, tree};
use crate::common::{Pattern, Setup, Store, TestMount, need_tool, run};

const KEEPS: &[&str] = &["--keep-metadata", "--store", "aws"];

fn at(seconds: u64, nanos: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos)
}

/// Mode, owner, group and modification time.
fn shown(path: &Path) -> (u32, u32, u32, SystemTime) {
    let of = fs::symlink_metadata(path).unwrap();
    (of.mode(), of.uid(), of.gid(), of.modified().unwrap())
}

fn xattr(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 4096];
    let len = getxattr(path, name, &mut value)?;
    value.truncate(len);
    Ok(value)
}

fn xattrs(path: &Path) -> Vec<String> {
    let mut names = vec![0; 4096];
    let len = listxattr(path, &mut names).unwrap();
    let names = String::from_utf8(names[..len].to_vec()).unwrap();
    names.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn what_is_set_before_close_goes_with_the_upload_as_s3fs_stores_it() {
    let store = Store::new();
    let Some(mount) = TestMount::of(&store, &Setup::new(KEEPS)) else { return };
    let path = mount.path("file");
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o741).open(&path).unwrap();
    file.write_all(b"bytes").unwrap();
    assert_eq!(shown(&path).0, 0o100_741, "the mode of the create");
    file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
    chown(&path, Some(1234), Some(2345)).unwrap();
    file.set_modified(at(1_354_040_105, 123_456_789)).unwrap();
    setxattr(&path, "user.colour", b"red", XattrFlags::empty()).unwrap();
    let expected = (0o100_640, 1234, 2345, at(1_354_040_105, 123_456_789));
    assert_eq!(shown(&path), expected);
    drop(file);
    let of = |operation| store.requests().count(operation);
    assert_eq!((of("PutObject"), of("CopyObject")), (1, 0));
    store.requests().reset();
    assert_eq!(shown(&path), expected, "after the close");
    let words = store.properties("file").user;
    let word = |name: &str| words.get(name).map(String::as_str);
    assert_eq!((word("mode"), word("uid"), word("gid")), (Some("33184"), Some("1234"), Some("2345")));
    assert_eq!(word("mtime"), Some("1354040105.123456789"));
    assert_eq!(word("xattr"), Some("%7B%22user%2Ecolour%22%3A%22cmVk%22%7D"));
    let other = mount.second_mount(KEEPS);
    assert_eq!(shown(&other.path("file")), expected);
    assert_eq!(xattr(&other.path("file"), "user.colour").unwrap(), b"red");
    let plain = mount.second_mount(&[]);
    assert_eq!(shown(&plain.path("file")).0, 0o100_644, "without the flag nothing is read of it");
    assert_eq!(xattr(&plain.path("file"), "user.colour"), Err(Errno::OPNOTSUPP));
}

#[test]
fn what_is_set_later_is_a_copy_onto_itself_and_readers_go_on() {
    let store = Store::new();
    store.put_with("file", Pattern(1).bytes(0, 3_000_000), &[("colour", "red"), ("mode", "33188")]);
    let Some(mount) = TestMount::of(&store, &Setup::new(KEEPS)) else { return };
    let path = mount.path("file");
    let number = fs::metadata(&path).unwrap().ino();
    let mut reader = File::open(&path).unwrap();
    let mut bytes = vec![0; 1000];
    reader.read_exact(&mut bytes).unwrap();
    store.requests().reset();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let of = |operation| store.requests().count(operation);
    assert_eq!((of("CopyObject"), of("PutObject")), (1, 0), "no byte passes");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&path, None, Some(shown(&path).2)).unwrap();
    assert_eq!(of("CopyObject"), 1, "what is shown already is not set");
    File::open(&path).unwrap().set_modified(at(9, 1)).unwrap();
    assert_eq!((shown(&path).0, shown(&path).3), (0o100_600, at(9, 1)));
    let properties = store.properties("file");
    assert_eq!(properties.content_type.as_deref(), Some("text/plain"));
    let words: Vec<_> = properties.user.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(words, [("colour", "red"), ("mode", "33152"), ("mtime", "9.000000001")]);
    reader.seek(SeekFrom::Start(2_900_000)).unwrap();
    reader.read_exact(&mut bytes).unwrap();
    assert!(Pattern(1).is(2_900_000, &bytes), "a reader goes on");
    assert_eq!(fs::metadata(&path).unwrap().ino(), number, "it is the same file");
    assert!(Pattern(1).is(0, &fs::read(&path).unwrap()));
}

#[test]
fn another_client_that_replaces_a_file_meanwhile_loses_nothing() {
    let store = Store::new();
    store.put_with("file", "old", &[("mode", "33188")]);
    let options = [KEEPS, &["--metadata-ttl", "indefinite"]].concat();
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    let path = mount.path("file");
    assert_eq!(shown(&path).0, 0o100_644);
    store.put_with("file", "another", &[("mode", "33261")]);
    let changed = fs::set_permissions(&path, fs::Permissions::from_mode(0o600));
    // The kernel looks the name up anew after an ESTALE, and may then change what is there now.
    if changed.is_err() {
        assert_errno(changed, Errno::STALE);
        assert_eq!(store.properties("file").user["mode"], "33261");
    }
    assert_eq!(store.get("file").unwrap(), b"another");
}

#[test]
fn attributes_that_rclone_and_aws_wrote_are_shown() {
    let store = Store::new();
    store.put_with("rclone", "1", &[("mtime", "1354040105.5")]);
    store.put_with("aws", "1", &[("file-permissions", "0100750"), ("file-owner", "7"), ("file-group", "8")]);
    store.put_with("odd", "1", &[("mode", "rw-"), ("mtime", "tomorrow")]);
    let Some(mount) = TestMount::of(&store, &Setup::new(KEEPS)) else { return };
    let plain = mount.second_mount(&[]);
    assert_eq!(shown(&mount.path("rclone")).3, at(1_354_040_105, 500_000_000));
    let (mode, uid, gid, _) = shown(&mount.path("aws"));
    assert_eq!((mode, uid, gid), (0o100_750, 7, 8));
    assert_eq!(shown(&mount.path("odd")), shown(&plain.path("odd")));
}

#[test]
fn a_symbolic_link_is_an_object_with_its_target() {
    let store = Store::new();
    store.put_with("of s3fs", "file", &[("mode", "41471")]);
    let options = [KEEPS, &["--allow-delete", "--allow-rename"]].concat();
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    fs::write(mount.path("file"), b"bytes").unwrap();
    symlink("file", mount.path("link")).unwrap();
    symlink("nowhere/at all", mount.path("dangling")).unwrap();
    assert_errno(symlink("file", mount.path("link")), Errno::EXIST);
    assert_eq!(store.get("link").unwrap(), b"file");
    assert_eq!(store.properties("link").user["mode"], "41471");
    for there in [&mount, &mount.second_mount(KEEPS)] {
        for name in ["link", "of s3fs"] {
            assert_eq!(fs::read_link(there.path(name)).unwrap(), Path::new("file"));
            assert_eq!(fs::read(there.path(name)).unwrap(), b"bytes");
        }
        assert_errno(fs::read(there.path("dangling")), Errno::NOENT);
        let kinds = fs::read_dir(there.dir()).unwrap().map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), entry.file_type().unwrap().is_symlink())
        });
        let mut links: Vec<_> = kinds.filter(|(_, is_link)| *is_link).map(|(name, _)| name).collect();
        links.sort();
        assert_eq!(links, ["dangling", "link", "of s3fs"]);
    }
    assert!(!fs::metadata(mount.path("link")).unwrap().file_type().is_fifo());
    fs::rename(mount.path("link"), mount.path("moved")).unwrap();
    assert_eq!(fs::read_link(mount.path("moved")).unwrap(), Path::new("file"));
    fs::remove_file(mount.path("moved")).unwrap();
    assert_eq!(store.keys(), ["dangling", "file", "of s3fs"]);
    let plain = mount.second_mount(&[]);
    assert_errno(symlink("file", plain.path("link")), Errno::PERM);
    assert_eq!(fs::read(plain.path("dangling")).unwrap(), b"nowhere/at all");
}

#[test]
fn extended_attributes_are_kept_with_the_object() {
    let store = Store::new();
    store.plant("dir/file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(KEEPS)) else { return };
    let path = mount.path("dir/file");
    assert_eq!(xattrs(&path), [""; 0]);
    assert_eq!(xattr(&path, "user.a"), Err(Errno::NODATA));
    assert_eq!(setxattr(&path, "user.a", b"1", XattrFlags::REPLACE), Err(Errno::NODATA));
    setxattr(&path, "user.a", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(setxattr(&path, "user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    setxattr(&path, "user.\u{fc}", &[0, 255], XattrFlags::empty()).unwrap();
    assert_eq!(xattrs(&path), ["user.a", "user.\u{fc}"]);
    let mut short = [0; 1];
    assert_eq!(getxattr(&path, "user.\u{fc}", &mut short[..]), Err(Errno::RANGE));
    assert_eq!(setxattr(&path, "user.b", &[0; 3000], XattrFlags::empty()), Err(Errno::NOSPC));
    assert_eq!(setxattr(&path, "trusted.a", b"1", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(setxattr(mount.path("dir"), "user.a", b"1", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    let other = mount.second_mount(KEEPS);
    assert_eq!(xattr(&other.path("dir/file"), "user.\u{fc}").unwrap(), [0, 255]);
    removexattr(&path, "user.a").unwrap();
    assert_eq!(removexattr(&path, "user.a"), Err(Errno::NODATA));
    assert_eq!(xattrs(&path), ["user.\u{fc}"]);
    assert_eq!(store.get("dir/file").unwrap(), b"1");
}

#[test]
fn what_the_store_says_of_an_object_is_shown_and_not_set() {
    let store = Store::new();
    store.plant("file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--xattrs"])) else { return };
    let path = mount.path("file");
    let names = xattrs(&path);
    assert!(
        names.contains(&"user.s3.etag".to_owned()) && names.contains(&"user.s3.storage-class".to_owned())
    );
    let etag = xattr(&path, "user.s3.etag").unwrap();
    assert!(etag.starts_with(b"\"") && etag.len() > 2, "{etag:?}");
    assert_eq!(xattr(&path, "user.s3.storage-class").unwrap(), b"STANDARD");
    assert_eq!(xattr(&path, "user.s3.colour"), Err(Errno::NODATA));
    assert_eq!(setxattr(&path, "user.s3.etag", b"x", XattrFlags::empty()), Err(Errno::PERM));
    assert_eq!(setxattr(&path, "user.a", b"x", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_errno(fs::set_permissions(&path, fs::Permissions::from_mode(0o600)), Errno::PERM);
}

#[test]
fn a_long_listing_asks_once_for_each_file_and_never_after_a_remount() {
    const FILES: u64 = 300;
    let store = Store::new();
    for i in 0..FILES {
        store.plant(&format!("dir/{i}"), b"1");
    }
    let Some(mount) = TestMount::of(&store, &Setup::new(KEEPS)) else { return };
    let list = |mount: &TestMount| {
        let output = run(Command::new("ls").arg("-l").arg(mount.path("dir")));
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .filter(|line| line.starts_with("-rw-r--r--"))
            .count()
    };
    store.requests().reset();
    assert_eq!(list(&mount), FILES as usize);
    let heads = store.requests().count("HeadObject");
    assert!((FILES..FILES + 4).contains(&heads), "{heads} HEADs");
    let again = list(&mount);
    assert_eq!((again as u64, store.requests().count("HeadObject")), (FILES, heads));
    drop(mount);
    let mount = TestMount::of(&store, &Setup::new(KEEPS)).unwrap();
    store.requests().reset();
    assert_eq!(list(&mount), FILES as usize);
    let heads = store.requests().count("HeadObject");
    assert!(heads < 4, "{heads} HEADs of a mount that follows");
}

#[test]
fn a_file_of_many_parts_has_what_was_set_when_its_upload_had_begun() {
    let store = Store::new();
    let options = [KEEPS, &["--part-size", "5242880"]].concat();
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    let path = mount.path("large");
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
    for piece in Pattern(3).bytes(0, 17_000_000).chunks(1 << 20) {
        file.write_all(piece).unwrap();
    }
    file.set_modified(at(1_000_000, 0)).unwrap();
    drop(file);
    let of = |operation| store.requests().count(operation);
    assert_eq!((of("CompleteMultipartUpload"), of("CopyObject")), (1, 1));
    assert_eq!((shown(&path).0, shown(&path).3), (0o100_600, at(1_000_000, 0)));
    let other = mount.second_mount(KEEPS);
    assert_eq!(shown(&other.path("large")), shown(&path));
    let bytes = fs::read(&path).unwrap();
    assert!(bytes.len() == 17_000_000 && Pattern(3).is(0, &bytes));
}

#[test]
fn a_replaced_or_appended_file_keeps_its_mode_and_owner() {
    let store = Store::new();
    store.put_with("file", "1", &[("mode", "33261"), ("uid", "7"), ("gid", "8"), ("mtime", "5")]);
    let options = [KEEPS, &["--allow-overwrite", "--allow-append"]].concat();
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    let path = mount.path("file");
    for truncates in [false, true] {
        let mut open = OpenOptions::new();
        let mut file = open.write(true).append(!truncates).truncate(truncates).open(&path).unwrap();
        file.write_all(b"2").unwrap();
        drop(file);
        let (mode, uid, gid, modified) = shown(&path);
        assert_eq!((mode, uid, gid), (0o100_755, 7, 8), "truncates: {truncates}");
        assert!(modified > at(1_000_000_000, 0), "the time of the write");
    }
    assert_eq!(store.get("file").unwrap(), b"2");
    assert_eq!(store.requests().count("CopyObject"), 0);
}

#[test]
fn a_change_that_the_store_refuses_fails_and_changes_nothing() {
    let store = Store::new();
    store.put_with("file", "1", &[("mode", "33188")]);
    let Some(mount) = TestMount::of(&store, &Setup::new(KEEPS)) else { return };
    let path = mount.path("file");
    let code = || "AccessDenied".to_owned();
    for effect in [
        s3server::Effect::Error { status: 403, code: code() },
        s3server::Effect::OkWithError { code: code() },
    ] {
        store.faults().add(s3server::Fault::on("CopyObject", effect));
        assert_errno(fs::set_permissions(&path, fs::Permissions::from_mode(0o600)), Errno::ACCESS);
        store.faults().clear();
        assert_eq!(shown(&path).0, 0o100_644);
        assert_eq!(store.properties("file").user["mode"], "33188");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(shown(&path).0, 0o100_600);
}

#[test]
fn cp_a_tar_and_rsync_a_keep_modes_times_and_links() {
    if !need_tool("rsync") {
        return;
    }
    let options = [KEEPS, &["--allow-rename", "--allow-overwrite", "--allow-delete"]].concat();
    // tar replaces what it first put in the place of a link that leads upwards.
    let Some(mount) = TestMount::with(&Setup::new(&options).limit(MANY)) else { return };
    let (local, archive) = (mount.scratch("local"), mount.scratch("archive.tar"));
    tree(&local, 200);
    fs::set_permissions(local.join("d0/s0/file 7.txt"), fs::Permissions::from_mode(0o751)).unwrap();
    File::open(local.join("d0/s1/file 150.txt")).unwrap().set_modified(at(1_000_000_000, 7)).unwrap();
    symlink("../s0/file 7.txt", local.join("d0/s1/link")).unwrap();
    let paths = |folder: &str| mount.path(folder);
    run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&local).arg("."));
    run(Command::new("cp").arg("-a").arg(&local).arg(paths("cp")));
    fs::create_dir(paths("tar")).unwrap();
    run(Command::new("tar").arg("-xpf").arg(&archive).arg("-C").arg(paths("tar")));
    let rsync = |arguments: &[&str], to: &Path| {
        let output = run(Command::new("rsync").args(arguments).arg(format!("{}/", local.display())).arg(to));
        String::from_utf8(output.stdout).unwrap()
    };
    rsync(&["-a"], &paths("rsync"));
    for there in ["cp", "tar", "rsync"] {
        diff(&local, &paths(there));
        let file = |name: &str| paths(there).join(name);
        assert_eq!(shown(&file("d0/s0/file 7.txt")).0, 0o100_751, "{there}");
        let exact = if there == "tar" { 0 } else { 7 };
        assert_eq!(shown(&file("d0/s1/file 150.txt")).3, at(1_000_000_000, exact), "{there}");
        assert_eq!(fs::read_link(file("d0/s1/link")).unwrap(), Path::new("../s0/file 7.txt"), "{there}");
    }
    let said = rsync(&["-a", "--itemize-changes", "--dry-run", "--omit-dir-times"], &paths("rsync"));
    let changed: Vec<_> = said.lines().filter(|line| !line.contains("d.")).collect();
    assert_eq!(changed, [""; 0], "nothing is left to do for rsync");
}

#[test]
fn an_empty_directory_with_a_marker_is_there_for_other_mounts() {
    let store = Store::new();
    let options = ["--directory-markers", "--allow-delete", "--keep-metadata", "--store", "aws"];
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    fs::create_dir(mount.path("dir")).unwrap();
    assert_eq!(store.keys(), ["dir/"]);
    let properties = store.properties("dir/");
    assert_eq!(properties.content_type.as_deref(), Some("application/x-directory"));
    assert_eq!(properties.user["mode"], "16877");
    fs::create_dir(mount.path("dir/below")).unwrap();
    fs::write(mount.path("dir/below/file"), b"1").unwrap();
    fs::remove_file(mount.path("dir/below/file")).unwrap();
    assert_eq!(store.keys(), ["dir/", "dir/below/"]);
    let other = mount.second_mount(&options);
    assert!(fs::metadata(other.path("dir/below")).unwrap().is_dir());
    assert_eq!(fs::read_dir(other.path("dir/below")).unwrap().count(), 0);
    fs::remove_dir(other.path("dir/below")).unwrap();
    fs::remove_dir(other.path("dir")).unwrap();
    assert_eq!(store.keys(), [""; 0]);
    let denied = s3server::Effect::Error { status: 403, code: "AccessDenied".to_owned() };
    store.faults().add(s3server::Fault::on("PutObject", denied));
    assert_errno(fs::create_dir(mount.path("new")), Errno::ACCESS);
    store.faults().clear();
    assert_errno(fs::metadata(mount.path("new")), Errno::NOENT);
    fs::create_dir(mount.path("new")).unwrap();
    assert_eq!(store.keys(), ["new/"]);
}
