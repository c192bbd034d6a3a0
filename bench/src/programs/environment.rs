//! The environment of the programs: a folder with Python and libraries of locked versions.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::table::{LOCK, LOCK_MORE};

/// A folder with Python and libraries.
#[derive(Debug, Clone)]
pub(crate) struct Environment {
    python: PathBuf,
}

impl Environment {
    /// Opens the environment in this folder.
    ///
    /// # Errors
    /// The folder has none.
    pub(crate) fn at(folder: &Path) -> anyhow::Result<Self> {
        let folder = std::path::absolute(folder)?;
        let python = folder.join("bin/python");
        ensure!(
            python.exists(),
            "no environment at {}: make one by `bench programs --prepare {}`",
            folder.display(),
            folder.display()
        );
        Ok(Self { python })
    }

    pub(crate) fn python(&self) -> &Path {
        &self.python
    }

    /// Creates the environment, unless the folder has one with the same lock. pip checks each file's hash, and builds none.
    ///
    /// # Errors
    /// Python is missing, or pip fails.
    pub(crate) fn prepare(folder: &Path, more: bool) -> anyhow::Result<()> {
        let lock = if more { LOCK_MORE } else { LOCK };
        let mark = folder.join("installed.txt");
        if std::fs::read_to_string(&mark).is_ok_and(|installed| installed == lock) {
            return Ok(());
        }
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))
            .context("make a virtual environment (Debian's packages: python3 python3-venv)")?;
        let wanted = folder.join("wanted.txt");
        std::fs::write(&wanted, lock).with_context(|| format!("write {}", wanted.display()))?;
        let mut pip = Command::new(folder.join("bin/pip"));
        pip.args(["install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r"]);
        run(pip.arg(&wanted)).context("install the libraries of bench/programs")?;
        // The mark is written last, so an incomplete environment is created again.
        std::fs::rename(&wanted, &mark).with_context(|| format!("write {}", mark.display()))
    }

    /// The modules of `modules` that Python does not find.
    ///
    /// # Errors
    /// Python fails.
    pub(crate) fn lacks(&self, modules: &[&str]) -> anyhow::Result<Vec<String>> {
        const SCRIPT: &str = "import importlib.util, sys\nfor name in sys.argv[1:]:\n    if not importlib.util.find_spec(name): print(name)";
        let output = run(Command::new(&self.python).args(["-c", SCRIPT]).args(modules))?;
        Ok(output.lines().map(str::to_owned).collect())
    }

    /// The versions of the installed libraries, for the report.
    ///
    /// # Errors
    /// pip fails.
    pub(crate) fn versions(&self) -> anyhow::Result<Vec<String>> {
        let output = run(Command::new(&self.python).args(["-m", "pip", "list", "--format", "freeze"]))?;
        let kept = |line: &&str| !["pip==", "setuptools=="].iter().any(|tool| line.starts_with(tool));
        Ok(output.lines().filter(kept).map(str::to_owned).collect())
    }
}

/// Runs a command to its end. Returns its standard output.
fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("start {:?}", command.get_program()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{:?}: {}: {}", command.get_program(), output.status, said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_an_environment_says_how_to_make_one() {
        let folder = tempfile::tempdir().unwrap();
        let said = Environment::at(folder.path()).unwrap_err().to_string();
        assert!(said.contains("bench programs --prepare"), "{said}");
    }
}
