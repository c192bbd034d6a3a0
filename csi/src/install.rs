//! Installs the engine on a host. Enters: the engine's file. Leaves: a copy under its name, executable by all users. It replaces an
//! older copy as a whole or not at all: systemd never starts half a file, and a running engine keeps its own file.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The name of the engine's file.
const NAME: &str = "mount-s3";

/// Copies `engine` into `directory`, which is created if it is missing. Returns the path of the copy.
///
/// # Errors
/// An error of the file system. The earlier copy stays unchanged.
pub fn install(engine: &Path, directory: &Path) -> io::Result<PathBuf> {
    std::fs::create_dir_all(directory)?;
    let (path, new) = (directory.join(NAME), directory.join(format!(".{NAME}.new")));
    // A container that ended at this point may have left this file.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let copied = copy(engine, &new).and_then(|()| std::fs::rename(&new, &path));
    if copied.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    copied.map(|()| path)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    // The copy is not executable before it is complete.
    let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    io::copy(&mut source, &mut copy)?;
    // The mode does not depend on this process's umask.
    copy.set_permissions(Permissions::from_mode(0o755))?;
    copy.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Runs a program that was just written. A child of another test, between fork and exec, may hold the file open for writing, and such
    /// a file can't be started.
    fn started(path: &Path, arguments: &[&str]) -> Child {
        loop {
            match Command::new(path).args(arguments).stdin(Stdio::null()).spawn() {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                spawned => return spawned.unwrap(),
            }
        }
    }

    #[test]
    fn an_engine_that_runs_is_replaced_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let host = folder.path().join("opt/bin");
        let path = install(Path::new("/bin/sleep"), &host).unwrap();
        assert_eq!(path, host.join("mount-s3"));
        let mut running = started(&path, &["1000"]);
        let before = path.metadata().unwrap().ino();
        std::fs::write(host.join(".mount-s3.new"), "half").unwrap();
        install(Path::new("/bin/true"), &host).unwrap();
        assert!(running.try_wait().unwrap().is_none(), "it goes on");
        assert_ne!(path.metadata().unwrap().ino(), before);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o755);
        assert!(started(&path, &[]).wait().unwrap().success(), "the new one is started");
        assert_eq!(std::fs::read_dir(&host).unwrap().count(), 1, "nothing else is left");
        running.kill().unwrap();
        running.wait().unwrap();
    }

    #[test]
    fn what_is_installed_stays_when_the_new_one_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = install(Path::new("/bin/true"), folder.path()).unwrap();
        assert_eq!(
            install(Path::new("/no/such"), folder.path()).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        assert!(started(&path, &[]).wait().unwrap().success());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
