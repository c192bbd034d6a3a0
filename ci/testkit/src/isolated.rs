//! Tests that need their own mount namespace.
//!
//! The test binary starts itself again under `unshare`, with only the test that needs it. Mounts of that process end with it, and no other
//! process sees them. Its temporary folders go with it, too: inside, a folder with a mount can't be removed.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

/// Variable that is set in the process inside the namespace.
pub(crate) const INSIDE: &str = "TESTKIT_IS_ISOLATED";

/// Runs `body` as root in a new mount namespace. Returns the output of that run; `None` inside the namespace, and if the
/// test was skipped because this process is not root. `body` must be a closure written in the test function itself: its type's
/// name contains the test's name.
///
/// # Panics
/// The run inside failed; the message has its output.
#[track_caller]
pub fn isolated<F: Fn()>(body: F) -> Option<String> {
    if std::env::var_os(INSIDE).is_some() {
        body();
        return None;
    }
    let root = crate::need("root, for a mount namespace", rustix::process::geteuid().is_root());
    root.then(|| again(&name_of::<F>()))
}

/// The test's name for the test harness: the path of the closure without the crate and the closure itself.
pub(crate) fn name_of<F>() -> String {
    let path = std::any::type_name::<F>();
    let inner = path.split_once("::").map_or(path, |(_, rest)| rest);
    inner.split("::{{closure}}").next().unwrap_or(inner).to_owned()
}

#[track_caller]
fn again(test: &str) -> String {
    let binary = std::env::current_exe().expect("the path of this test binary");
    // A short name, because the paths of sockets are limited; and open, because tests start programs of other users.
    let mut folder = tempfile::Builder::new();
    folder.prefix("").rand_bytes(4).permissions(Permissions::from_mode(0o755));
    let folder = folder.tempdir().expect("a temporary folder");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--"]).arg(binary).env(INSIDE, "1");
    run_again(command.env("TMPDIR", folder.path()), test, String::new)
}

/// Runs a command that starts this test binary again for one test. If the test fails, the message also has the text of `look`.
#[track_caller]
pub(crate) fn run_again(command: &mut Command, test: &str, look: impl FnOnce() -> String) -> String {
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    let output = command.output().expect("the command that starts this test again");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    // A run with a wrong name would pass without running any test.
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{test} in its namespace:\n{text}\n{}", look());
    // `ci/test` counts these lines, and nobody else sees what a run inside says.
    text.lines().filter(|line| line.starts_with("SKIPPED: ")).for_each(|line| eprintln!("{line}"));
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn namespace() -> String {
        std::fs::read_link("/proc/self/ns/mnt").unwrap().display().to_string()
    }

    #[test]
    fn the_body_runs_once_in_another_mount_namespace() {
        let said = isolated(|| eprintln!("inside: {}", namespace()));
        if let Some(said) = said {
            assert_eq!(said.matches("inside: mnt:[").count(), 1, "{said}");
            assert!(!said.contains(&namespace()), "{said}");
        }
    }

    #[test]
    fn a_temporary_folder_with_a_mount_goes_with_the_namespace() {
        let said = isolated(|| {
            let folder = tempfile::tempdir().unwrap();
            let mount = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(folder.path()).status();
            assert!(mount.unwrap().success());
            eprintln!("folder: {}", folder.path().display());
        });
        let Some(said) = said else { return };
        let folder = said.split("folder: ").nth(1).and_then(|rest| rest.lines().next()).unwrap();
        assert!(!Path::new(folder).exists(), "{folder}");
    }
}
