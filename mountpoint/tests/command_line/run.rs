//! One run of the binary.

use std::path::Path;
use std::process::{Command, Stdio};

/// The end of a command.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// `mount-s3` with an environment of its own: no keys, no proxies, no files of AWS.
pub(super) fn command(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mount-s3"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", home);
    command.env("AWS_EC2_METADATA_DISABLED", "true").current_dir(home);
    command
}

pub(super) fn end(command: &mut Command) -> Ended {
    let output = command.stdin(Stdio::null()).output().expect("mount-s3 runs");
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The error of a run without a mount point, once its flags were accepted.
pub(super) const ACCEPTED: &str =
    "mount point missing/dir does not exist: make it with `mkdir -p missing/dir`";

/// `mount-s3 test-bucket missing/dir` with these words and variables.
pub(super) fn run(words: &[&str], env: &[(&str, &str)]) -> Ended {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut command = command(home.path());
    command.args(["test-bucket", "missing/dir", "--foreground"]).args(words);
    command.envs(env.iter().copied());
    end(&mut command)
}
