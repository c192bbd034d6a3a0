//! A bucket on loopback and real mounts of it: the binary as users run it, a kernel between, everything undone at the end.
//!
//! Enters: options and a script of faults. Leaves: a directory to work in, and afterwards the proof that the engine ended
//! cleanly. A machine without FUSE skips aloud; with `CI=true` that is a failure.

mod bytes;
mod mount;
mod store;

pub(crate) use bytes::{Pattern, hash_file};
pub(crate) use mount::{Setup, TestMount, command, is_mounted, with_descriptor_3};
pub(crate) use store::{BUCKET, Store};

use std::process::{Command, Output};

/// Whether a test that needs this may run. Says so aloud when not, and fails where skipping is no option.
pub(crate) fn need(what: &str, there: bool) -> bool {
    if !there {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "{what} is missing, and in CI nothing is skipped"
        );
        eprintln!("SKIPPED: {what} is missing");
    }
    there
}

/// Whether a tool can be run.
pub(crate) fn need_tool(name: &str) -> bool {
    need(name, Command::new(name).arg("--version").output().is_ok())
}

/// Runs a tool to its end; it must succeed.
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
