//! Programs and engines in process namespaces, as in containers: what `close` means depends on what the engine sees of its caller.

use std::fs::{self, File};
use std::io::Write as _;
use std::process::Command;

use crate::common::{Setup, TestMount, need, run};

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
