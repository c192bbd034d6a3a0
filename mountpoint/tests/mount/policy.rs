//! A bucket whose policy allows a prefix and answers 403 to everything else, also to a HEAD of a missing key.

use std::fs;

use rustix::io::Errno;

use crate::common::{Pattern, Setup, Store, TestMount};

#[test]
fn a_mount_of_the_allowed_prefix_reads_lists_and_replaces() {
    let store = Store::served(Store::ACCESS_KEY, |mut config| {
        config.policy_prefix = Some("team/".to_owned());
        config.strict()
    });
    store.plant("other/secret", b"s");
    store.plant("team/file", &Pattern(1).bytes(0, 1000));
    store.plant("team/dir/deep", b"deep");
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--prefix", "team/", "--allow-overwrite"])) else {
        return;
    };
    let mut names: Vec<_> =
        fs::read_dir(mount.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["dir", "file"]);
    assert!(Pattern(1).is(0, &fs::read(mount.path("file")).unwrap()));
    assert_eq!(fs::read(mount.path("dir/deep")).unwrap(), b"deep");
    fs::write(mount.path("file"), b"replaced").unwrap();
    assert_eq!(store.get("team/file").unwrap(), b"replaced");
    // A HEAD of a missing key is answered 403 too; a listing of this key says that it is not there.
    let missing = fs::metadata(mount.path("missing")).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(Errno::NOENT.raw_os_error()), "{missing}");
    fs::write(mount.path("new"), b"new").unwrap();
    fs::create_dir(mount.path("folder")).unwrap();
    fs::write(mount.path("folder/new"), Pattern(2).bytes(0, 20 << 20)).unwrap();
    assert_eq!(store.get("team/new").unwrap(), b"new");
    assert!(Pattern(2).is(0, &store.get("team/folder/new").unwrap()));
    // A line's time may hold these three digits.
    let refused: Vec<_> = mount.complaints().into_iter().filter(|line| line.contains(": 403 ")).collect();
    assert!(refused.is_empty(), "nothing failed: {refused:#?}");
}
