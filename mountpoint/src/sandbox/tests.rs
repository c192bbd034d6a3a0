//! A process confines itself and then acts like an intruder: on the confining thread, and on an older thread.
#![expect(unsafe_code, reason = "calls of an intruder have no safe wrapper")]

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown, fchown};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, mount};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket};
use rustix::process::{Pid, Signal, getppid, kill_process};

use super::*;

/// Commands of fcntl(2) that make the kernel signal another process.
const F_SETOWN_EX: i32 = 15;
const F_SETSIG: i32 = 10;

/// The errno of a call; 0 if the call is allowed.
fn errno_of(call: i64, arguments: [i64; 4]) -> i32 {
    let [a, b, c, d] = arguments;
    // SAFETY: each call of these tests is refused, or fails before it reads memory: pointers are null. If a call is allowed, the test
    // fails.
    match unsafe { libc::syscall(call, a, b, c, d) } {
        -1 => io::Error::last_os_error().raw_os_error().unwrap(),
        _ => 0,
    }
}

fn errno<T>(outcome: io::Result<T>) -> i32 {
    outcome.err().map_or(0, |error| error.raw_os_error().unwrap_or(-1))
}

/// A tmpfs of this namespace, with a folder to write to, a folder to read, and a forbidden one.
fn folders() -> Folders {
    mount("tmpfs", "/mnt", "tmpfs", MountFlags::empty(), None).unwrap();
    for name in ["written/deep", "read", "others"] {
        fs::create_dir_all(Path::new("/mnt").join(name)).unwrap();
        fs::write(Path::new("/mnt").join(name).join("file"), name).unwrap();
    }
    Folders { written: vec!["/mnt/written".into(), "/mnt/missing".into()], read: vec!["/mnt/read".into()] }
}

/// Attempts of an intruder that succeed, as text.
fn attempts() -> Vec<String> {
    let of_parent = getppid().unwrap_or(Pid::INIT);
    let parent = i64::from(of_parent.as_raw_nonzero().get());
    let (refused, denied, unknown) = (libc::EPERM, libc::EACCES, libc::ENOSYS);
    let family = |family| errno(socket(family, SocketType::RAW, None).map_err(io::Error::from));
    let open_to_all = fs::Permissions::from_mode(0o666);
    let held = |path: &str| errno(open(path, OFlags::PATH, Mode::empty()).map_err(io::Error::from));
    let own = |command: i32| errno_of(libc::SYS_fcntl, [0, command.into(), parent, 0]);
    let mode_of = |path: &str, mode| fs::File::open(path)?.set_permissions(mode);
    let owner_of = |path: &str| fchown(fs::File::open(path)?, Some(1), None);
    let time_of = |path: &str| fs::File::open(path)?.set_modified(std::time::UNIX_EPOCH);
    let outcomes = [
        ("run a program", refused, errno(Command::new("/bin/true").status())),
        ("execve", refused, errno_of(libc::SYS_execve, [0; 4])),
        ("trace its parent", refused, errno_of(libc::SYS_ptrace, [16, parent, 0, 0])),
        ("read its parent's memory", refused, errno_of(libc::SYS_process_vm_readv, [parent, 0, 0, 0])),
        ("open its parent's memory", denied, errno(fs::File::open(format!("/proc/{parent}/mem")))),
        ("look at its parent's program", denied, errno(fs::read_link(format!("/proc/{parent}/exe")))),
        ("signal its parent", refused, errno(kill_process(of_parent, Signal::CONT).map_err(io::Error::from))),
        ("signal a thread of its parent", refused, errno_of(libc::SYS_tgkill, [parent, parent, 18, 0])),
        (
            "mount",
            refused,
            errno(mount("x", "/mnt", "tmpfs", MountFlags::empty(), None).map_err(io::Error::from)),
        ),
        ("make a namespace", refused, errno_of(libc::SYS_unshare, [i64::from(libc::CLONE_NEWUSER), 0, 0, 0])),
        ("become another user", refused, errno_of(libc::SYS_setuid, [1, 0, 0, 0])),
        ("make a process", refused, errno_of(libc::SYS_clone, [i64::from(libc::SIGCHLD), 0, 0, 0])),
        ("make a ring", refused, errno_of(libc::SYS_io_uring_setup, [4, 0, 0, 0])),
        ("load a program for the kernel", refused, errno_of(libc::SYS_bpf, [0; 4])),
        ("a newer way to make a process", unknown, errno_of(libc::SYS_clone3, [0; 4])),
        ("be dumped again", refused, errno_of(libc::SYS_prctl, [i64::from(libc::PR_SET_DUMPABLE), 1, 0, 0])),
        (
            "map code",
            refused,
            errno_of(libc::SYS_mmap, [0, 4096, i64::from(libc::PROT_READ | libc::PROT_EXEC), 0x22]),
        ),
        ("speak to services of the machine", refused, family(AddressFamily::UNIX)),
        ("make a pair that can be connected anew", refused, errno(UnixDatagram::pair())),
        (
            "the same by an older name",
            refused,
            errno(
                rustix::net::socketpair(AddressFamily::UNIX, SocketType::RAW, SocketFlags::empty(), None)
                    .map_err(io::Error::from),
            ),
        ),
        ("hold a file of others", refused, held("/mnt/others/file")),
        ("hold a file by a newer call", refused, errno_of(libc::SYS_openat2, [0; 4])),
        (
            "change a mode by path",
            refused,
            errno(fs::set_permissions("/mnt/others/file", open_to_all.clone())),
        ),
        ("change a mode by a newer call", refused, errno_of(libc::SYS_fchmodat2, [0; 4])),
        ("change a mode of what it reads", refused, errno(mode_of("/mnt/read/file", open_to_all))),
        ("change an owner by path", refused, errno(chown("/mnt/others/file", Some(1), None))),
        ("change an owner of what it reads", refused, errno(owner_of("/mnt/read/file"))),
        ("change times by path", refused, errno_of(libc::SYS_utimensat, [0; 4])),
        ("change times of what it reads", refused, errno(time_of("/mnt/read/file"))),
        ("change an attribute by path", refused, errno_of(libc::SYS_setxattr, [0; 4])),
        ("have its parent signalled", refused, own(libc::F_SETOWN)),
        ("have its parent signalled by a newer command", refused, own(F_SETOWN_EX)),
        ("choose another signal", refused, own(F_SETSIG)),
        ("have its parent signalled by an ioctl", refused, errno_of(libc::SYS_ioctl, [0, 0x8901, 0, 0])),
        ("the same by an older ioctl", refused, errno_of(libc::SYS_ioctl, [0, 0x8902, 0, 0])),
        ("speak to the kernel", refused, family(AddressFamily::NETLINK)),
        ("see all packets", refused, family(AddressFamily::PACKET)),
        ("speak to the host of a machine", refused, family(AddressFamily::VSOCK)),
        ("read passwords", denied, errno(fs::read("/etc/shadow"))),
        ("list the root", denied, errno(fs::read_dir("/"))),
        ("read others", denied, errno(fs::read("/mnt/others/file"))),
        ("write to others", denied, errno(fs::write("/mnt/others/new", ""))),
        ("write where it reads", denied, errno(fs::write("/mnt/read/new", ""))),
        ("remove where it reads", denied, errno(fs::remove_file("/mnt/read/file"))),
        (
            "write to its own memory's file",
            denied,
            errno(fs::File::options().write(true).open("/proc/self/mem")),
        ),
    ];
    let gone_wrong = outcomes.into_iter().filter(|(_, wanted, found)| wanted != found);
    gone_wrong.map(|(what, wanted, found)| format!("{what}: errno {found}, not {wanted}")).collect()
}

/// Does the work of an engine, which must succeed.
fn works() {
    fs::write("/mnt/written/new", "1").unwrap();
    fs::rename("/mnt/written/new", "/mnt/written/deep/new").unwrap();
    assert_eq!(fs::read("/mnt/written/deep/new").unwrap(), b"1");
    fs::remove_file("/mnt/written/deep/new").unwrap();
    assert_eq!(fs::read("/mnt/read/file").unwrap(), b"read");
    // A rename gave the name another file: the owner renewed a key.
    assert!(fs::read_to_string("/proc/self/status").unwrap().contains("Seccomp:\t2"));
    fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    std::os::unix::net::UnixStream::pair().unwrap();
    // A file of the cache, lent to the kernel.
    fs::File::open("/mnt/written/deep/file")
        .unwrap()
        .set_permissions(fs::Permissions::from_mode(0o400))
        .unwrap();
    rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
}

#[test]
fn a_confined_process_works_and_every_attempt_of_an_intruder_fails() {
    testkit::isolated(|| {
        let folders = folders();
        let (go, gate) = mpsc::channel::<()>();
        let before = std::thread::spawn(move || {
            gate.recv().unwrap();
            works();
            attempts()
        });
        let lacking = enter(&folders, Rings::Open);
        assert!(lacking.is_empty(), "{lacking:?}");
        works();
        assert_eq!(attempts(), Vec::<String>::new());
        go.send(()).unwrap();
        assert_eq!(before.join().unwrap(), Vec::<String>::new(), "on a thread that was there before");
        assert_eq!(std::thread::spawn(attempts).join().unwrap(), Vec::<String>::new(), "on a later thread");
        for thread in fs::read_dir("/proc/self/task").unwrap() {
            let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            for line in
                ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"]
            {
                assert!(status.contains(line), "{line}\n{status}");
            }
        }
        let core = rustix::process::getrlimit(Resource::Core);
        assert_eq!((core.current, core.maximum), (Some(0), Some(0)));
        let dumpable = rustix::process::dumpable_behavior().unwrap();
        assert_eq!(dumpable, DumpableBehavior::NotDumpable);
    });
}

#[test]
fn threads_that_start_others_all_the_while_leave_none_unconfined() {
    testkit::isolated(|| {
        let folders = folders();
        // A chain of threads: each starts the next and ends. The first one after the sandbox reports whether it is free.
        fn chain(is_over: &'static AtomicBool, end: mpsc::Sender<bool>) {
            if is_over.load(SeqCst) {
                let status = fs::read_to_string("/proc/thread-self/status").unwrap();
                end.send(status.contains("NoNewPrivs:\t0") || status.contains("Seccomp:\t0")).unwrap();
                return;
            }
            std::thread::spawn(move || chain(is_over, end));
        }
        static IS_OVER: AtomicBool = AtomicBool::new(false);
        let (end, ended) = mpsc::channel();
        for _ in 0..4 {
            let end = end.clone();
            std::thread::spawn(move || chain(&IS_OVER, end));
        }
        drop(end);
        let lacking = enter(&folders, Rings::Open);
        assert!(lacking.is_empty(), "{lacking:?}");
        IS_OVER.store(true, SeqCst);
        assert_eq!(ended.iter().collect::<Vec<_>>(), [false; 4]);
    });
}

#[test]
fn a_ring_can_still_be_made_where_the_first_request_asks_for_it() {
    testkit::isolated(|| {
        let lacking = enter(&folders(), Rings::Made);
        assert!(lacking.is_empty(), "{lacking:?}");
        // The call is allowed, and finds no parameters.
        assert_eq!(errno_of(libc::SYS_io_uring_setup, [4, 0, 0, 0]), libc::EFAULT);
        assert_eq!(errno_of(libc::SYS_execve, [0; 4]), libc::EPERM);
    });
}
