//! A device that another process opened and mounted, as a CSI driver does: the engine serves it and leaves it to its owner at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Pattern, Setup, Store, command, is_mounted, need, until, with_descriptor_3};

/// A test that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(200);

/// The directory argument of an engine with an inherited device.
pub(super) const DEVICE: &str = "/dev/fd/3";

/// The test's own mount and the process that serves it. Neither outlives the test.
pub(super) struct Adopted {
    dir: PathBuf,
    pub(super) engine: Child,
}

impl Drop for Adopted {
    fn drop(&mut self) {
        let _ = self.engine.kill();
        let _ = self.engine.wait();
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
    }
}

/// Mounts a device on `dir` and starts the engine with it as descriptor 3.
fn start(store: &Store, dir: &Path) -> Adopted {
    start_with(store, dir, &[])
}

fn start_with(store: &Store, dir: &Path, options: &[&str]) -> Adopted {
    start_so(dir, &command(store, DEVICE.as_ref(), &Setup::new(options)), Stdio::null())
}

/// Mounts a device and starts this command with it. The command's directory is [`DEVICE`].
pub(super) fn start_so(dir: &Path, plain: &Command, output: Stdio) -> Adopted {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&device);
    let data = format!("fd={number},rootmode=40000,user_id=0,group_id=0,default_permissions");
    let data = std::ffi::CString::new(data).unwrap();
    mount("bucket", dir, "fuse.mount-s3", MountFlags::NOSUID | MountFlags::NODEV, data.as_c_str()).unwrap();

    let mut shell = with_descriptor_3(plain, device);
    shell.stdout(output);
    // The command, and our copy of the device with it, goes here: when the engine ends, its waiters hear so.
    Adopted { dir: dir.to_owned(), engine: shell.spawn().unwrap() }
}

fn wait_for_end(adopted: &mut Adopted) -> ExitStatus {
    until("the signal ends it", || adopted.engine.try_wait().unwrap().is_some());
    adopted.engine.wait().unwrap()
}

#[test]
fn a_device_that_somebody_else_mounted_is_served_and_left_to_its_owner() {
    is_served_and_left_to_its_owner(&[]);
}

#[test]
fn a_confined_engine_serves_a_device_that_somebody_else_mounted() {
    is_served_and_left_to_its_owner(&["--sandbox", "on"]);
}

fn is_served_and_left_to_its_owner(options: &[&str]) {
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
    if !need("/dev/fuse", fuse.is_ok()) || !need("root", rustix::process::geteuid().is_root()) {
        return;
    }
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let len = 3_000_000;
    store.plant("old", &Pattern(1).bytes(0, len));
    let mut adopted = start_with(&store, folder.path(), options);
    let pid = Pid::from_child(&adopted.engine);
    let (alive, ended) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        if ended.recv_timeout(LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            eprintln!("the test takes longer than {LIMIT:?}: killing the engine");
            let _ = kill_process(pid, Signal::KILL);
        }
    });

    let bytes = fs::read(folder.path().join("old")).unwrap();
    assert!(bytes.len() == len && Pattern(1).is(0, &bytes), "what is read is what is stored");
    fs::write(folder.path().join("new"), Pattern(2).bytes(0, len)).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", adopted.engine.id())).unwrap();
    assert_eq!(status.contains("Seccomp:\t2"), options.contains(&"on"), "{status}");

    kill_process(pid, Signal::TERM).unwrap();
    let status = wait_for_end(&mut adopted);
    drop(alive);
    assert_eq!(status.code(), Some(0), "{status}");
    let written = store.get("new").expect("what was closed is stored");
    assert!(written.len() == len && Pattern(2).is(0, &written));
    assert!(is_mounted(folder.path()), "unmounting is the owner's");
    unmount(folder.path(), UnmountFlags::empty()).unwrap();
    assert!(!is_mounted(folder.path()));
}

#[test]
fn a_signal_gives_up_what_is_being_written_to_a_device_of_somebody_else() {
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
    if !need("/dev/fuse", fuse.is_ok()) || !need("root", rustix::process::geteuid().is_root()) {
        return;
    }
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
        let mut adopted = start(&store, folder.path());
        let mut file = fs::File::create_new(folder.path().join("new")).unwrap();
        std::io::Write::write_all(&mut file, &Pattern(1).bytes(0, 20 << 20)).unwrap();
        kill_process(Pid::from_child(&adopted.engine), signal).unwrap();
        let status = wait_for_end(&mut adopted);
        assert_eq!(status.code(), Some(0), "{signal:?}: {status}");
        assert_eq!((store.keys(), store.pending_uploads()), (vec![], 0), "{signal:?}");
        assert!(is_mounted(folder.path()), "unmounting is the owner's");
        let told = file.sync_all().unwrap_err();
        // The second where the kernel takes an io_uring apart after the process is gone.
        let ends = [std::io::ErrorKind::NotConnected, std::io::ErrorKind::ConnectionAborted];
        assert!(ends.contains(&told.kind()), "{told}");
    }
}

#[test]
fn a_device_that_somebody_else_mounted_is_read_only_if_the_engine_is() {
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
    if !need("/dev/fuse", fuse.is_ok()) || !need("root", rustix::process::geteuid().is_root()) {
        return;
    }
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    store.plant("old", b"1");
    let options = ["--read-only", "--allow-delete", "--allow-overwrite", "--allow-rename"];
    let mut adopted = start_with(&store, folder.path(), &options);
    let path = |name: &str| folder.path().join(name);
    assert_eq!(fs::read(path("old")).unwrap(), b"1");
    let modified = std::time::SystemTime::UNIX_EPOCH;
    for (what, refused) in [
        ("create", fs::write(path("new"), b"2")),
        ("replace", fs::write(path("old"), b"2")),
        ("mkdir", fs::create_dir(path("dir"))),
        ("unlink", fs::remove_file(path("old"))),
        ("rename", fs::rename(path("old"), path("new"))),
        ("symlink", std::os::unix::fs::symlink("old", path("link"))),
        ("utimens", fs::File::open(path("old")).unwrap().set_modified(modified)),
    ] {
        let errno = refused.unwrap_err().raw_os_error();
        assert_eq!(errno, Some(rustix::io::Errno::ROFS.raw_os_error()), "{what}");
    }
    assert_eq!((store.keys(), store.get("old").unwrap()), (vec!["old".to_owned()], b"1".to_vec()));
    kill_process(Pid::from_child(&adopted.engine), Signal::TERM).unwrap();
    assert_eq!(wait_for_end(&mut adopted).code(), Some(0));
    unmount(folder.path(), UnmountFlags::empty()).unwrap();
}
