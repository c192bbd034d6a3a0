//! Appends to stored files, with `--allow-append`.

use std::fs::File;
use std::io::Write as _;
use std::process::Command;

use rustix::io::Errno;

use super::semantics::assert_errno;
use crate::common::{Pattern, Setup, Store, TestMount, run, until};

const APPENDS: &[&str] = &["--allow-append", "--store", "aws"];

#[test]
fn appended_bytes_follow_those_of_the_object_and_nothing_is_fetched() {
    let store = Store::new();
    const LEN: usize = 12_000_000;
    store.plant("log", &Pattern(1).bytes(0, LEN));
    let Some(mount) = TestMount::of(&store, &Setup::new(APPENDS)) else { return };
    store.requests().reset();
    let mut file = File::options().append(true).open(mount.path("log")).unwrap();
    file.write_all(&[7; 4096]).unwrap();
    assert_eq!(std::fs::metadata(mount.path("log")).unwrap().len(), LEN as u64 + 4096);
    drop(file);
    let count = |operation| store.requests().count(operation);
    assert_eq!((count("UploadPartCopy"), count("UploadPart"), count("PutObject")), (1, 1, 0));
    assert_eq!(count("GetObject"), 0, "nothing is fetched");
    let stored = store.get("log").unwrap();
    assert!(stored.len() == LEN + 4096 && Pattern(1).is(0, &stored[..LEN]) && stored[LEN..] == [7; 4096]);
    assert_eq!(store.pending_uploads(), 0);
    assert!(std::fs::read(mount.path("log")).unwrap() == stored);
}

#[test]
fn shells_append_to_files_of_every_size_from_two_mounts() {
    let store = Store::new();
    let large = Pattern(1).bytes(0, 6 << 20);
    store.plant("empty", b"");
    store.plant("small", b"a\n");
    store.plant("large", &large);
    let Some(one) = TestMount::of(&store, &Setup::new(APPENDS)) else { return };
    let Some(two) = TestMount::of(&store, &Setup::new(APPENDS)) else { return };
    for name in ["empty", "small", "large", "new"] {
        let before = store.get(name).unwrap_or_default();
        for mount in [&one, &two, &one] {
            let lines = store.get(name).map_or(0, |bytes| bytes.len());
            run(Command::new("sh").args(["-c", "echo x >> \"$0\""]).arg(mount.path(name)));
            until("it is stored", || store.get(name).is_some_and(|bytes| bytes.len() == lines + 2));
        }
        let stored = store.get(name).unwrap();
        assert!(stored == [&before[..], b"x\nx\nx\n"].concat(), "{name}: {} bytes", stored.len());
    }
    // An open that writes nothing changes nothing.
    store.requests().reset();
    run(Command::new("sh").args(["-c", ": >> \"$0\""]).arg(one.path("small")));
    until("it can be opened again", || File::open(one.path("small")).is_ok());
    assert_eq!(store.get("small").unwrap(), b"a\nx\nx\nx\n");
    assert_eq!(store.requests().count("PutObject"), 0);
}

#[test]
fn an_append_to_what_another_client_replaced_is_stale_and_spares_that() {
    let store = Store::new();
    let Some(mount) = TestMount::of(&store, &Setup::new(APPENDS)) else { return };
    for len in [100, 6 << 20] {
        for replaced in [true, false] {
            let name = format!("log-{len}-{replaced}");
            store.plant(&name, &Pattern(1).bytes(0, len));
            let file = File::options().append(true).open(mount.path(&name)).unwrap();
            (&file).write_all(b"more").unwrap();
            match replaced {
                true => store.put(&name, "theirs"),
                false => store.remove(&name),
            }
            assert_errno(file.sync_all(), Errno::STALE);
            drop(file);
            assert_eq!(store.get(&name), replaced.then(|| b"theirs".to_vec()), "{name}");
            until("its upload is gone", || store.pending_uploads() == 0);
        }
    }
}

#[test]
fn without_its_flag_nothing_is_appended() {
    let store = Store::new();
    store.plant("log", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--allow-overwrite"])) else { return };
    assert_errno(File::options().append(true).open(mount.path("log")), Errno::PERM);
    assert_eq!(store.get("log").unwrap(), b"1");
}

#[test]
fn a_log_that_is_open_to_append_goes_on_in_its_renamed_directory() {
    // A store whose conditions hold, and one that is asked before each change.
    for kind in ["aws", "generic"] {
        let store = Store::new();
        let options = ["--allow-append", "--allow-rename", "--allow-overwrite", "--store", kind];
        let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
        for (i, (len, first)) in [(100, 10), (6 << 20, 10), (6 << 20, 20 << 20)].into_iter().enumerate() {
            let [old, new, b] = ["old", "new", "b"].map(|name| format!("{name}{i}"));
            let before = Pattern(1).bytes(0, len);
            store.plant(&format!("{old}/log"), &before);
            let mut log = File::options().append(true).open(mount.path(&format!("{old}/log"))).unwrap();
            log.write_all(&Pattern(2).bytes(0, first)).unwrap();
            std::fs::rename(mount.path(&old), mount.path(&new)).unwrap();
            log.write_all(b"more").unwrap();
            log.sync_all().unwrap();
            drop(log);
            let expected = [&before[..], &Pattern(2).bytes(0, first), b"more"].concat();
            let key = format!("{new}/log");
            assert!(store.get(&key).unwrap() == expected, "{kind}: {len} and {first}");
            assert!(store.get(&format!("{old}/log")).is_none() && store.pending_uploads() == 0, "{kind}");
            assert!(std::fs::read(mount.path(&key)).unwrap() == expected, "{kind}: {len} and {first}");
            // `touch` closes an empty file, which is stored after its close.
            run(Command::new("sh")
                .args(["-c", "touch \"$1\" && mv \"$0\" \"$1\""])
                .args([mount.path(&key), mount.path(&b)]));
            assert!(store.get(&b).unwrap() == expected, "{kind}: {len} and {first}");
        }
    }
}
