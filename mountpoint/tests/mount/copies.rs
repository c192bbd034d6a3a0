//! Programs that copy tensors and planes out of a file: tests of the requests to the store.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::common::{Pattern, Setup, Store, TestMount, need_tool, python_with, until};

const MIB: usize = 1 << 20;
const LEN: usize = 160 * MIB;

/// Copies of 20 MiB out of a mapping, each by one `memmove`, into a buffer that lies `alike` modulo 4096 or not. The C library chooses
/// the way by processor, length and place: it touches both ends and goes up or down, or it goes up without a sign of the end (`rep
/// movsb`, and stores past the caches, two or four pages at a time). Then only the copy before shows the length: the first one ends with
/// the file.
const COPIES: &str = "
import ctypes, hashlib, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file = os.open(sys.argv[1], os.O_RDONLY)
length, shift, long = os.fstat(file).st_size, int(sys.argv[2]), 20 << 20
at = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
into = libc.mmap(None, long + 8192, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
for start in 140 << 20, 7 << 20, 40 << 20, 100 << 20:
    start = min(start, length - long - 64)
    ctypes.memmove(into + shift, at + start + 64, long)
    copy = ctypes.string_at(into + shift, long)
    print(hashlib.sha256(copy).hexdigest())
";

/// Copies by the program's own loops: the last bytes, then the first ones, and on from either end.
const BY_HAND: &str = "
import hashlib, mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
data, down, long = mmap.mmap(file, 0, prot=mmap.PROT_READ), sys.argv[2] == 'down', 20 << 20
for start in 7 << 20, 40 << 20, 100 << 20:
    start += 64
    steps = range(start, start + long, 4096)
    copy = bytearray(long)
    ends = [start, start + long - 4096] if down else [start + long - 4096, start]
    for at in ends + list(reversed(steps) if down else steps):
        copy[at - start:at - start + 4096] = data[at:at + 4096]
    print(hashlib.sha256(copy).hexdigest())
";

/// The digests of copies that begin 64 bytes behind these MiB, the last possible one for 140.
fn expected(starts: &[usize]) -> Vec<String> {
    use sha2::Digest;
    let copy = |start: usize| Pattern(7).bytes((start * MIB).min(LEN - 20 * MIB - 64) as u64 + 64, 20 * MIB);
    starts.iter().map(|start| base16ct::lower::encode_string(&sha2::Sha256::digest(copy(*start)))).collect()
}

/// Runs a script on a new mount, with this choice of the C library's; the requests for bytes, and the bytes of the answers.
fn cost(script: &str, argument: &str, starts: &[usize], tunables: &str) -> Option<(u64, u64)> {
    if !need_tool("python3") {
        return None;
    }
    let store = Store::new();
    store.plant("model", &Pattern(7).bytes(0, LEN));
    let mount = TestMount::of(&store, &Setup::new(&[]))?;
    let path = mount.path("model");
    store.requests().reset();
    let digests = python_with(script, &path, &[argument], &[("GLIBC_TUNABLES", tunables)]);
    assert_eq!(digests.lines().collect::<Vec<_>>(), expected(starts), "{argument} {tunables}");
    Some((store.requests().count("GetObject"), store.requests().bytes_sent()))
}

#[test]
fn a_copy_out_of_a_mapping_fetches_what_it_copies_in_each_direction() {
    for direction in ["up", "down"] {
        let Some((requests, bytes)) = cost(BY_HAND, direction, &[7, 40, 100], "") else { return };
        assert!(bytes <= 66 << 20, "{direction}: {} MiB for 60", bytes >> 20);
        assert!(requests <= 60, "{direction}: {requests} requests");
    }
}

/// The most that four copies may fetch if they touch both ends first, in MiB, on a C library with that setting: 80, and a part of 8 MiB
/// for each of three whose reads come out of order. On a busy machine 93 were seen. Without bounds of copies the mount fetched 122 to
/// 153.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
const ENDS_FIRST_MIB: u64 = 104;
#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
const ENDS_FIRST_MIB: u64 = 112;

/// Each way in which glibc copies 20 MiB on some processor of x86-64, and the most that four copies may fetch, in MiB: as this processor
/// does it, which is one of these ways or `rep movsb`; both ends first; and stores past the caches. Where a way shows no end, reads that
/// come out of order may make three of the copies seem longer by a part each. A C library without this setting copies as usual.
const WAYS: [(&str, u64); 3] = [
    ("", 112),
    ("glibc.cpu.x86_non_temporal_threshold=0x10000000:glibc.cpu.hwcaps=-ERMS", ENDS_FIRST_MIB),
    ("glibc.cpu.x86_non_temporal_threshold=0x100000", 112),
];

#[test]
fn memcpy_fetches_what_it_copies_in_each_way_and_wherever_its_buffer_lies() {
    for (way, most) in WAYS {
        for shift in ["64", "80", "2048", "4000"] {
            let Some((requests, bytes)) = cost(COPIES, shift, &[140, 7, 40, 100], way) else { return };
            assert!(bytes <= most << 20, "{way} {shift}: {} MiB for 80", bytes >> 20);
            assert!(requests <= 80, "{way} {shift}: {requests} requests");
        }
    }
}

/// A model's head, and two of its eight tensors of 20 MiB. The loop touches each tensor's last page before the others, as `memcpy` does.
const TENSORS: &str = "
import hashlib, mmap, os, sys
data = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ)
print(hashlib.sha256(data[:4000]).hexdigest())
long = 20 << 20
for start in 40 << 20, 100 << 20:
    start += 64
    copy = bytearray(long)
    for at in [start + long - 4096, *range(start, start + long, 4096)]:
        copy[at - start:at - start + 4096] = data[at:at + 4096]
    print(hashlib.sha256(copy).hexdigest())
";

#[test]
fn a_tensor_among_others_is_fetched_without_its_neighbours() {
    use sha2::Digest;
    if !need_tool("python3") {
        return;
    }
    let store = Store::new();
    store.plant("model", &Pattern(7).bytes(0, LEN));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let path = mount.path("model");
    store.requests().reset();
    let digests = python_with(TENSORS, &path, &[], &[]);
    let mut wanted = vec![base16ct::lower::encode_string(&sha2::Sha256::digest(Pattern(7).bytes(0, 4000)))];
    wanted.extend(expected(&[40, 100]));
    assert_eq!(digests.lines().collect::<Vec<_>>(), wanted);
    let (requests, bytes) = (store.requests().count("GetObject"), store.requests().bytes_sent());
    assert!(bytes <= 50 << 20, "{} MiB for 40", bytes >> 20);
    assert!(requests <= 40, "{requests} requests");
}

#[test]
fn the_next_parts_of_a_stride_come_before_a_program_asks_for_them() {
    const PART: usize = 500_000;
    let store = Store::new();
    store.plant("planes", &Pattern(9).bytes(0, LEN));
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let file = File::open(mount.path("planes")).unwrap();
    store.requests().reset();
    let read = |n: usize| {
        let (mut part, at) = (vec![0; PART], (8_000_000 * n + 8000) as u64);
        file.read_exact_at(&mut part, at).unwrap();
        assert!(Pattern(9).is(at, &part), "{n}");
    };
    (0..6).for_each(read);
    // At most this much for six reads alone: whole pages, and one more at each end.
    let of_six = (6 * (PART + 4 * 4096)) as u64;
    until("two parts more are here", || store.requests().bytes_sent() >= of_six + 2 * PART as u64);
    (6..20).for_each(read);
    drop(file);
    drop(mount);
    let (requests, bytes) = (store.requests().count("GetObject"), store.requests().bytes_sent());
    assert!(bytes <= (20 * PART) as u64 * 13 / 10, "{bytes} bytes for {}", 20 * PART);
    assert!(requests <= 30, "{requests} requests for 20 parts");
}

/// Eight processes that map one file and read it from end to end.
const EIGHT: &str = "
import hashlib, mmap, os, sys
def read():
    file = os.open(sys.argv[1], os.O_RDONLY)
    data, digest = mmap.mmap(file, 0, prot=mmap.PROT_READ), hashlib.sha256()
    for at in range(0, len(data), 1 << 20):
        digest.update(data[at:at + (1 << 20)])
    os.write(1, digest.hexdigest().encode() + b'\\n')
children = []
for _ in range(8):
    children.append(os.fork())
    if children[-1] == 0:
        read()
        os._exit(0)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
";

#[test]
fn eight_processes_that_map_one_model_fetch_it_once() {
    use sha2::Digest;
    if !need_tool("python3") {
        return;
    }
    let (store, model) = (Store::new(), Pattern(7).bytes(0, LEN));
    store.plant("model", &model);
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let path = mount.path("model");
    store.requests().reset();
    let digests = python_with(EIGHT, &path, &[], &[]);
    let expected = base16ct::lower::encode_string(&sha2::Sha256::digest(&model));
    assert_eq!(digests.lines().collect::<Vec<_>>(), [&*expected; 8]);
    let sent = store.requests().bytes_sent();
    assert!(sent <= (LEN + LEN / 10) as u64, "{} MiB for {}", sent >> 20, LEN >> 20);
}
