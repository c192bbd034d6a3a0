//! `--read-mode`: tests whether a program's reads stay in the page cache.

use std::fs;
use std::path::Path;

use crate::common::{Pattern, Setup, Store, TestMount, need_tool, python, until};

/// The least size of a file that `auto` watches.
const LEN: usize = 32 << 20;

/// Files that are enough to learn from, and some more.
const FILES: u64 = 7;

/// Pages of a file that the kernel has in memory.
fn pages_in_memory(path: &Path) -> usize {
    const PROGRAM: &str = "
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
file = os.open(sys.argv[1], os.O_RDONLY)
length = os.fstat(file).st_size
at = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
pages = ctypes.create_string_buffer(length // 4096)
assert libc.mincore(at, length, pages) == 0, os.strerror(ctypes.get_errno())
print(sum(byte & 1 for byte in pages.raw))
";
    python(PROGRAM, path, &[]).trim().parse().unwrap()
}

/// Reads each file once in pieces of 1 MiB. Returns which of them have pages in memory afterwards. `None` without FUSE.
fn left_in_memory(mode: &str) -> Option<Vec<bool>> {
    if !need_tool("python3") || !need_tool("dd") {
        return None;
    }
    let store = Store::new();
    for n in 0..FILES {
        store.plant(&format!("file-{n}"), &Pattern(n).bytes(0, LEN));
    }
    let mount = TestMount::of(&store, &Setup::new(&["--read-mode", mode]))?;
    // The engine sets the read-ahead once it is mounted. A file opened before is read in smaller pieces, which is not its first reading
    // in large ones.
    until("the start is complete", || mount.log().contains("successfully mounted"));
    let path = |n| mount.path(&format!("file-{n}"));
    let scratch = tempfile::tempdir().unwrap();
    for n in 0..FILES {
        let copy = scratch.path().join("copy");
        let dd = std::process::Command::new("dd")
            .args([
                &format!("if={}", path(n).display()),
                &format!("of={}", copy.display()),
                "bs=1M",
                "status=none",
            ])
            .status();
        assert!(dd.unwrap().success());
        assert!(Pattern(n).is(0, &fs::read(&copy).unwrap()), "wrong bytes of file {n}");
    }
    Some((0..FILES).map(|n| pages_in_memory(&path(n)) > 0).collect())
}

#[test]
fn large_files_a_program_reads_once_bypass_the_page_cache_from_the_fifth() {
    let Some(left) = left_in_memory("auto") else { return };
    assert_eq!(left, [true, true, true, true, false, false, false]);
}

#[test]
fn a_read_mode_that_is_chosen_holds_for_the_first_file_too() {
    let Some(left) = left_in_memory("buffered") else { return };
    assert_eq!(left, [true; FILES as usize]);
    assert_eq!(left_in_memory("direct").unwrap(), [false; FILES as usize]);
}

#[test]
fn a_file_read_past_the_page_cache_can_be_mapped_and_read_by_others() {
    let store = Store::new();
    store.plant("file", &Pattern(1).bytes(0, LEN));
    if !need_tool("python3") {
        return;
    }
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--read-mode", "direct"])) else { return };
    let path = mount.path("file");
    let script = "
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
mapping = mmap.mmap(file, 0, mmap.MAP_SHARED, mmap.PROT_READ)
assert mapping[5 << 20:6 << 20] == os.pread(file, 1 << 20, 5 << 20)
print(len(mapping))
";
    assert_eq!(python(script, &path, &[]).trim(), LEN.to_string());
    assert!(Pattern(1).is(0, &fs::read(&path).unwrap()));
}
