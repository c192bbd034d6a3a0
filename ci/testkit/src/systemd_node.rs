//! Tests that need systemd.
//!
//! The test binary starts itself again in a node of `ci/systemd-node`, with the one test that asked: there systemd is PID 1, and what the
//! test mounts and starts goes with the node.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::isolated::{INSIDE, name_of, run_again};

/// Runs `body` as root of a node with systemd. Returns what that run printed; `None` inside the node, and where the test was skipped because
/// this machine can't have one. `body` must be a closure written in the test function itself: the name of its type names the test.
///
/// # Panics
/// The run inside failed; the message holds its output and the end of the node's journal.
#[track_caller]
pub fn in_systemd_node<F: Fn()>(body: F) -> Option<String> {
    if std::env::var_os(INSIDE).is_some() {
        body();
        return None;
    }
    let lacks = text(&script(&[Path::new("lacks")]));
    if !crate::need(&format!("a node with systemd: {}", lacks.trim()), lacks.trim().is_empty()) {
        return None;
    }
    let binary = std::env::current_exe().expect("the path of this test binary");
    // Where it lies, and one above: the commands that it starts.
    let folder = binary.parent().and_then(Path::parent).expect("target/debug");
    let node = Node::start(folder);
    let mut command = Command::new(SCRIPT);
    command.arg(&node.0).args(["run", "env", &format!("{INSIDE}=1")]);
    if crate::need::in_ci() {
        command.arg("CI=true");
    }
    command.arg(&binary);
    Some(run_again(command, &name_of::<F>(), || {
        text(&script(&[
            &node.0,
            Path::new("run"),
            Path::new("journalctl"),
            Path::new("--unit=mount-s3-*"),
            Path::new("--lines=60"),
        ]))
    }))
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd-node");

fn script(arguments: &[&Path]) -> Output {
    Command::new(SCRIPT).args(arguments).output().expect("ci/systemd-node")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// A node; it ends when it is dropped.
struct Node(PathBuf);

impl Node {
    fn start(folder: &Path) -> Self {
        let name = format!("systemd-node-{}-{:x}", std::process::id(), fastrand::u32(..));
        let node = Self(std::env::temp_dir().join(name));
        let started = script(&[&node.0, Path::new("up"), folder]);
        assert!(started.status.success(), "starting a node:\n{}", text(&started));
        node
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let ended = script(&[&self.0, Path::new("down")]);
        if !ended.status.success() {
            eprintln!("ending the node in {}:\n{}", self.0.display(), text(&ended));
        }
    }
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
