//! A bucket on loopback and real mounts of it: the binary as users run it, a kernel between, everything undone at the end.
//!
//! Enters: options and a script of faults. Leaves: a directory to work in, and afterwards the proof that the engine ended cleanly. A
//! machine without FUSE skips the tests with a line on standard error; with `CI=true` that is a failure.

mod bytes;
pub(crate) mod canary;
mod catalogue;
pub(crate) mod certificates;
pub(crate) mod front;
mod mount;
mod store;
mod tap;

pub(crate) use bytes::{Pattern, hash_file};
pub(crate) use catalogue::Catalogue;
pub(crate) use mount::{START_AND_END, Setup, TestMount, command, is_mounted, refused, with_descriptor_3};
pub(crate) use store::{BUCKET, Kind, Store};
pub(crate) use tap::Tap;

pub(crate) use testkit::{need, need_large, need_tool, until};

use std::path::Path;
use std::process::{Command, Output};

/// Runs a tool to its end. The tool must succeed.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Runs a Python script on a file, with more arguments behind the file. Returns its output. Unlike Rust's, Python's `close` reports the
/// result of close(2). The script has `says(what, call)`, which prints `what` and `ok` or the errno of the call.
pub(crate) fn python(script: &str, path: &Path, arguments: &[&str]) -> String {
    python_with(script, path, arguments, &[])
}

/// Runs a script as [`python`] does, with these variables in the environment.
pub(crate) fn python_with(
    script: &str,
    path: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> String {
    const HELPER: &str = "
import errno, os, sys
def says(what, call):
    try:
        call()
        print(what, 'ok')
    except OSError as error:
        print(what, errno.errorcode[error.errno])
";
    let script = format!("{HELPER}{script}");
    let output = run(Command::new("python3")
        .args(["-c", &script])
        .arg(path)
        .args(arguments)
        .envs(environment.iter().copied()));
    String::from_utf8(output.stdout).unwrap()
}
