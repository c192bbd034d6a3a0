//! One run of one program: a process with a time limit, and the line of JSON that it prints.

use std::fs::File;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

use super::environment::Environment;
use crate::mount::UNSET;

/// Longest run of a task. After it the bench kills the task with all its processes, and the task has failed.
pub(crate) const TASK_LIMIT: Duration = Duration::from_secs(60);
/// Longest run of a preparation, which creates the data of the full scale one by one.
pub(crate) const PREPARE_LIMIT: Duration = Duration::from_secs(600);
/// Interval between checks.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Bytes of the end of a program's output that go into a report.
const LAST_WORDS: usize = 300;

/// The line of JSON that a program printed.
#[derive(Debug, Clone, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(crate) struct Said {
    pub(crate) digest: Option<String>,
    pub(crate) errno: Option<String>,
    /// The program's message, if it failed.
    pub(crate) words: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) cpu_s: f64,
    pub(crate) device_before: Option<String>,
    pub(crate) device_after: Option<String>,
    /// Fewest bytes that the task must read.
    pub(crate) needed: Option<u64>,
}

/// The environment and the files for running programs.
#[derive(Debug)]
pub(crate) struct Runner<'a> {
    pub(crate) environment: &'a Environment,
    /// The folder with the files of all programs.
    pub(crate) sources: &'a Path,
    pub(crate) small: bool,
}

impl Runner<'_> {
    /// Runs `action` of the program `name` on `folder`, with home and temporary folder in `work`.
    ///
    /// # Errors
    /// The program took too long, failed, printed anything else, or left files in its temporary folder.
    pub(crate) fn run(
        &self,
        name: &str,
        action: &str,
        folder: &Path,
        work: &Path,
        limit: Duration,
    ) -> anyhow::Result<Said> {
        let temporary = work.join("tmp");
        std::fs::create_dir_all(&temporary)?;
        let (out, err) = (work.join("out"), work.join("err"));
        let mut command = Command::new(self.environment.python());
        for name in UNSET {
            command.env_remove(name);
        }
        command
            .arg(self.sources.join(format!("{name}.py")))
            .arg(action)
            .arg(folder)
            .arg(if self.small { "small" } else { "full" })
            .env("HOME", work)
            .env("TMPDIR", &temporary)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(work)
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?)
            .process_group(0);
        let mut child = command.spawn().with_context(|| format!("start {name}"))?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if begun.elapsed() > limit {
                if let Some(group) = group {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                let _ = child.wait();
                bail!("not done after {} s, and killed", limit.as_secs());
            }
            std::thread::sleep(LOOK_EVERY);
        };
        // A process that the program started may still be running.
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if let Some(signal) = status.signal() {
            bail!("died by signal {signal}: {}", last_words(&err));
        }
        if !status.success() {
            bail!("{status}: {}", last_words(&err));
        }
        let text = std::fs::read_to_string(&out)?;
        let line = text.lines().last().unwrap_or_default();
        let said = serde_json::from_str(line)
            .with_context(|| format!("{name} printed {line:?} and not its figures"))?;
        let left = std::fs::read_dir(&temporary)?.count();
        anyhow::ensure!(left == 0, "left {left} files in its temporary folder");
        Ok(said)
    }
}

/// The end of a program's output, on one line.
fn last_words(file: &Path) -> String {
    let text = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(LAST_WORDS)..]).into_owned();
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::table::SHARED;

    /// A program of these lines, run by the Python of the machine.
    fn run(lines: &str, limit: Duration) -> anyhow::Result<Said> {
        let folder = tempfile::tempdir().unwrap();
        let (bin, sources) = (folder.path().join("env/bin"), folder.path().join("sources"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&sources).unwrap();
        std::fs::write(bin.join("python"), "#!/bin/sh\nexec python3 \"$@\"\n").unwrap();
        let set = Command::new("chmod").arg("755").arg(bin.join("python")).status();
        assert!(set.unwrap().success());
        std::fs::write(sources.join("kit.py"), SHARED[0].1).unwrap();
        std::fs::write(sources.join("task.py"), lines).unwrap();
        let environment = Environment::at(&folder.path().join("env")).unwrap();
        let runner = Runner { environment: &environment, sources: &sources, small: true };
        let work = folder.path().join("work");
        runner.run("task", "run", folder.path(), &work, limit)
    }

    /// A program whose clock stands still but for these steps.
    const STEPS: &str = "
import time
now = [0]
time.monotonic = lambda: now[0]
import kit
now[0] += 100
def run(folder, small):
    now[0] += 5
    return 'd'
kit.main(lambda folder, small: None, run)
";

    #[test]
    fn imports_are_outside_of_the_time() {
        if !testkit::need_tool("python3") {
            return;
        }
        let said = run(STEPS, Duration::from_secs(60)).unwrap();
        assert_eq!((said.digest.as_deref(), said.seconds), (Some("d"), 5.0));
        assert!(said.device_before.is_some() && said.device_before == said.device_after, "{said:?}");
    }

    #[test]
    fn a_program_that_hangs_dies_or_leaves_files_has_failed() {
        if !testkit::need_tool("python3") {
            return;
        }
        let long = Duration::from_secs(60);
        let good = run("print('{\"digest\": \"d\", \"seconds\": 1.5}')", long).unwrap();
        assert_eq!((good.digest.as_deref(), good.seconds), (Some("d"), 1.5));
        for (lines, limit, wanted) in [
            ("import time\ntime.sleep(600)", Duration::from_millis(300), "not done after"),
            ("import os, signal\nos.kill(os.getpid(), signal.SIGBUS)", long, "died by signal 7"),
            ("import nonsense", long, "ModuleNotFoundError"),
            ("print('hello')", long, "not its figures"),
            ("import tempfile\ntempfile.mkstemp()\nprint('{}')", long, "left 1 files"),
        ] {
            let said = format!("{:#}", run(lines, limit).unwrap_err());
            assert!(said.contains(wanted), "{lines}: {said}");
        }
    }
}
