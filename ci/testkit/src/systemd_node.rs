//! Tests that need systemd: they use a node of `ci/systemd-node`, in which systemd is PID 1. Mounts and processes of the test end with it.
//!
//! A test either starts a [`Node`] and runs commands in it, or its binary starts itself again in a node, with only the test that needs it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::isolated::{INSIDE, name_of, run_again};

/// Runs `body` as root in a node with systemd. Returns the output of that run; `None` inside the node, and if the test was skipped because
/// this machine can't have a node. `body` must be a closure written in the test function itself: its type's name contains the test's name.
///
/// # Panics
/// The run inside failed; the message has its output and the end of the node's journal.
#[track_caller]
pub fn in_systemd_node<F: Fn()>(body: F) -> Option<String> {
    if std::env::var_os(INSIDE).is_some() {
        body();
        return None;
    }
    let binary = std::env::current_exe().expect("the path of this test binary");
    // The binary's folder, and the one above it, contain the commands that the test starts.
    let folder = binary.parent().and_then(Path::parent).expect("target/debug");
    let node = Node::start(folder)?;
    let mut command = Command::new(SCRIPT);
    command.arg(&node.0).args(["run", "env", &format!("{INSIDE}=1")]);
    if crate::need::in_ci() {
        command.arg("CI=true");
    }
    command.arg(&binary);
    let journal = || text(&node.ask("run", ["journalctl", "--unit=mount-s3-*", "--lines=60"]));
    Some(run_again(&mut command, &name_of::<F>(), journal))
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd-node");

/// A node with systemd. Dropping it ends it.
#[derive(Debug)]
pub struct Node(PathBuf);

impl Node {
    /// Starts a node that shares `folder` with this machine; `None`, with a line on standard error, if this machine can't have a node.
    ///
    /// # Panics
    /// The node does not start; the message has its output.
    #[must_use]
    #[track_caller]
    pub fn start(folder: &Path) -> Option<Self> {
        let lacks = text(&Command::new(SCRIPT).arg("lacks").output().expect("ci/systemd-node"));
        if !crate::need(&format!("a node with systemd: {}", lacks.trim()), lacks.trim().is_empty()) {
            return None;
        }
        let name = format!("systemd-node-{}-{:x}", std::process::id(), fastrand::u32(..));
        let node = Self(std::env::temp_dir().join(name));
        node.told("up", [folder]);
        Some(node)
    }

    /// Runs a command with the node's files, processes and network. Returns its output.
    ///
    /// # Panics
    /// The command failed; the message has its output.
    #[track_caller]
    pub fn run(&self, command: &[&str]) -> String {
        self.told("run", command)
    }

    /// Shuts systemd down in order and starts it again over the same root.
    ///
    /// # Panics
    /// systemd does not come back.
    #[track_caller]
    pub fn reboot(&self) {
        self.told("reboot", [""; 0]);
    }

    #[track_caller]
    fn told(&self, what: &str, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> String {
        let output = self.ask(what, arguments);
        assert!(output.status.success(), "{what}, in a node with systemd:\n{}", text(&output));
        text(&output)
    }

    fn ask(&self, what: &str, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Output {
        Command::new(SCRIPT).arg(&self.0).arg(what).args(arguments).output().expect("ci/systemd-node")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let ended = self.ask("down", [""; 0]);
        if !ended.status.success() {
            eprintln!("ending the node in {}:\n{}", self.0.display(), text(&ended));
        }
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_runs_beside_systemd() {
        let said = in_systemd_node(|| {
            eprintln!("inside: PID 1 is {}", std::fs::read_to_string("/proc/1/comm").unwrap());
        });
        if let Some(said) = said {
            assert_eq!(said.matches("inside: PID 1 is systemd").count(), 1, "{said}");
        }
    }
}
