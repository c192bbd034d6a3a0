//! Programs and engines in other namespaces, as in containers: what `close` means depends on what the engine sees of its caller, and a copied
//! mount must not keep an engine for ever.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::process::Signal;

use crate::common::{Setup, TestMount, is_mounted, need, run, until};

/// Closes a duplicate after the first line: a shell redirects `echo` this way.
const TWO_LINES: &str = "exec 3>\"$0\" && echo one >&3 && echo two >&3 && exec 3>&-";

fn is_root() -> bool {
    need("root, for a process namespace", rustix::process::geteuid().is_root())
}

#[test]
fn a_program_in_a_container_below_the_engine_writes_to_its_end() {
    let Some(mount) = TestMount::new(&[]) else { return };
    if !is_root() {
        return;
    }
    // The engine sees it under another number; its mounts have other numbers, too.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--", "bash", "-c", TWO_LINES]).arg(mount.path("file"));
    run(&mut command);
    assert_eq!(mount.store().get("file").unwrap(), b"one\ntwo\n");
}

#[test]
fn unseen_programs_store_their_file_with_the_first_close_after_a_byte() {
    if !is_root() {
        return;
    }
    let setup = Setup { sees_nobody: true, ..Setup::new(&[]) };
    let Some(mount) = TestMount::with(&setup) else { return };
    let output = Command::new("bash").args(["-c", TWO_LINES]).arg(mount.path("file")).output().unwrap();
    assert!(!output.status.success(), "the second echo should have failed");
    assert_eq!(mount.store().get("file").unwrap(), b"one\n");

    // Before the first byte a close stores nothing; and what closes once is whole.
    run(Command::new("bash").args(["-c", "echo one >\"$0\""]).arg(mount.path("redirected")));
    assert_eq!(mount.store().get("redirected").unwrap(), b"one\n");
    let mut file = File::create_new(mount.path("duplicate")).unwrap();
    drop(file.try_clone().unwrap());
    file.write_all(b"whole").unwrap();
    drop(file);
    assert_eq!(fs::read(mount.path("duplicate")).unwrap(), b"whole");
    assert_eq!(mount.store().get("duplicate").unwrap(), b"whole");
}

/// A process in a mount namespace of its own, which has a copy of one mount.
struct Copied(Child);

/// Copies of other tests' mounts would keep their engines.
const KEEP_ONE: &str = "while read -r _ _ _ _ point _; do
case \"$point\" in \"$1\") ;; */mnt) umount -l \"$point\" ;; esac
done </proc/self/mountinfo
echo there && exec sleep 3600";

impl Copied {
    fn begin(mount: &TestMount) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--", "sh", "-c", KEEP_ONE, "sh"]);
        command.arg(mount.dir());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0; 6]).unwrap();
        Self(child)
    }

    /// The path of a file of the mount there.
    fn path(&self, mount: &TestMount, name: &str) -> PathBuf {
        let path = mount.path(name);
        PathBuf::from(format!("/proc/{}/root", self.0.id())).join(path.strip_prefix("/").unwrap())
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_mount_copied_by_another_namespace_does_not_keep_the_engine() {
    let Some(mut mount) = TestMount::new(&[]) else { return };
    if !is_root() {
        return;
    }
    mount.store().put("before", "there");
    let copied = Copied::begin(&mount);
    let mut file = File::create_new(mount.path("file")).unwrap();
    file.write_all(b"first, ").unwrap();
    for _ in 0..2 {
        mount.signal(Signal::TERM);
        until("the mount is gone here", || !is_mounted(mount.dir()));
    }
    // Nobody is cut off: what is open goes on, and so does what is opened there.
    assert_eq!(fs::read(copied.path(&mount, "before")).unwrap(), b"there");
    file.write_all(b"then").unwrap();
    drop(file);
    assert_eq!(mount.store().get("file").unwrap(), b"first, then");

    let ended = mount.end();
    assert!(ended.success(), "the engine stayed: {ended}: {}", mount.log());
    let error = File::open(copied.path(&mount, "before")).expect_err("the engine is gone");
    // A ring that is being torn down ends the request.
    let gone = [Errno::NOTCONN, Errno::CONNABORTED].map(|errno| Some(errno.raw_os_error()));
    assert!(gone.contains(&error.raw_os_error()), "{error}");
    assert!(mount.log().contains("another mount namespace keeps this mount"), "{}", mount.log());
}
