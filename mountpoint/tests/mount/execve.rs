//! Programs that execute others while they write files. The kernel closes close-on-exec files inside execve(2), with the process locked.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;

use super::semantics::assert_errno;
use crate::common::{Setup, TestMount, need_tool, run};

/// The time after which the mount is aborted: a FUSE thread and a program wait for each other. A slow machine forks 128 times in a minute.
const HANGS: Duration = Duration::from_secs(200);

/// Writes to a new file `argv[1]` and executes another program. The descriptors are close-on-exec, as Python and Rust open them.
const PROGRAM: &str = "
import os, sys, threading, time
path, ways = sys.argv[1], sys.argv[2].split('+')
file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
if 'empty' not in ways:
    os.write(file, b'written')
if 'duplicate' in ways:
    os.dup(file)
if 'failed' in ways:
    try:
        os.pwrite(file, b'elsewhere', 100_000_000)
    except OSError:
        pass
def execute():
    os.execv('/bin/sh', ['sh', '-c', 'echo executed'])
if 'thread' in ways:
    threading.Thread(target=execute).start()
    time.sleep(1000)
execute()
";

#[test]
fn a_program_that_executes_another_while_it_writes_stores_its_files() {
    let Some(mount) = TestMount::with(&Setup::new(&[]).limit(HANGS)) else { return };
    if !need_tool("python3") {
        return;
    }
    for ways in [
        "written",
        "written+duplicate",
        "written+thread",
        "written+duplicate+thread",
        "failed",
        "failed+duplicate",
        "failed+thread",
        "empty",
    ] {
        let output = run(Command::new("python3").args(["-c", PROGRAM]).arg(mount.path(ways)).arg(ways));
        assert_eq!(output.stdout, b"executed\n", "{ways}");
        match ways {
            "empty" => assert_eq!(fs::read(mount.path(ways)).unwrap(), b""),
            _ if ways.starts_with("failed") => {
                assert!(fs::metadata(mount.path(ways)).is_err(), "{ways}: its name is gone");
            }
            _ => assert_eq!(mount.store().get(ways).unwrap(), b"written", "{ways}"),
        }
    }
    let stored = mount.store().keys();
    assert!(stored.iter().all(|key| !key.starts_with("failed")), "{stored:?}");
}

#[test]
fn a_process_with_threads_starts_programs_while_it_writes_files() {
    let Some(mount) = TestMount::with(&Setup::new(&[]).limit(HANGS)) else { return };
    // Each child inherits the files of all threads until it executes its program.
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let mount = &mount;
            scope.spawn(move || {
                for i in 0..4 {
                    let name = format!("file{thread}-{i}");
                    let mut file = File::create_new(mount.path(&name)).unwrap();
                    let failed = File::create_new(mount.path(&format!("failed{thread}-{i}"))).unwrap();
                    assert_errno(failed.write_all_at(b"elsewhere", 100_000_000), Errno::INVAL);
                    for _ in 0..4 {
                        file.write_all(b"written").unwrap();
                        run(&mut Command::new("true"));
                    }
                    drop((file, failed));
                    assert_eq!(mount.store().get(&name).unwrap(), b"written".repeat(4), "{name}");
                }
            });
        }
    });
    assert_eq!(mount.store().keys().len(), 32);
}
