//! The node's access to the comm directory of a Mountpoint Pod. The pod may write there and is not trusted: it could put a
//! symbolic link, a pipe or another pod's directory in the place of a file. So the node follows no link, reads only regular
//! files, and writes credentials only into its own directory.
//!
//! Never here: the content of a credential file.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::Timestamp;
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::contract::comm::Comm;
use crate::contract::restart::Restarting;
use crate::contract::upgrade::HandingOver;

/// Most bytes that are read of `mount.err` and `mount.state`. An engine's error has a line or a few.
const ERROR_MAX_BYTES: u64 = 8 << 10;

/// An open comm directory.
#[derive(Debug)]
pub struct CommFiles {
    directory: OwnedFd,
    group: Gid,
    path: PathBuf,
}

impl CommFiles {
    /// Opens the directory.
    ///
    /// # Errors
    /// `NotFound` after the Mountpoint Pod is gone; an error if the path is not a directory.
    pub fn open(comm: &Comm) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(comm.directory(), flags, Mode::empty())?;
        let group = Gid::from_raw(rustix::fs::fstat(&directory)?.st_gid);
        Ok(Self { directory, group, path: comm.directory().to_owned() })
    }

    /// Opens the directory; `None` if there is none: the kubelet has removed the pod, or a process of the pod the directory.
    ///
    /// # Errors
    /// Other errors of the system, such as too many open files. The directory may be there.
    pub fn find(comm: &Comm) -> io::Result<Option<Self>> {
        match Self::open(comm) {
            Ok(files) => Ok(Some(files)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(error) => {
                let at = comm.directory().display();
                Err(io::Error::new(error.kind(), format!("opening the comm directory {at}: {error}")))
            }
        }
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connects to a socket in the directory; the stream does not block. Refuses a link or a file in the socket's place.
    ///
    /// # Errors
    /// `NotFound`, `ConnectionRefused` or `WouldBlock` while no process accepts connections there yet; other errors of the system.
    pub fn connect(&self, name: &str) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::openat(&self.directory, name, flags, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&socket)?.st_mode) != FileType::Socket {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{name} is not a socket")));
        }
        // The path through the descriptor leads to the checked socket, and is short.
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", socket.as_raw_fd()))?;
        // A listener that accepts nothing must not block this thread: connect(2) would wait for room in its queue.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&stream, &address)?;
        Ok(UnixStream::from(stream))
    }

    /// Announces, by the file `mount.exit`, that the source is unmounted on purpose.
    ///
    /// # Errors
    /// An error of the file system, with the file's path: the mounter does not know, and the caller has to try again later.
    pub fn announce_exit(&self) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.directory, "mount.exit", flags, Mode::from_raw_mode(0o640)) {
            // A link, a pipe or a directory with this name announces the unmount, too.
            Ok(_) | Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => Ok(()),
            // The directory was removed after it was opened: no mounter waits there.
            Err(Errno::NOENT) => Ok(()),
            Err(error) => {
                let (error, at) = (io::Error::from(error), self.path.display());
                Err(io::Error::new(error.kind(), format!("writing {at}/mount.exit: {error}")))
            }
        }
    }

    /// Removes the announcement: the source stays mounted.
    ///
    /// # Errors
    /// An error of the file system; a missing file is not an error.
    pub fn withdraw_exit(&self) -> io::Result<()> {
        absent(rustix::fs::unlinkat(&self.directory, "mount.exit", AtFlags::empty()))
    }

    /// Whether an unmount was announced.
    #[must_use]
    pub fn exit_announced(&self) -> bool {
        rustix::fs::statat(&self.directory, "mount.exit", AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// The mounter's message about a failed engine, in one line without control characters.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        let text = one_line(&self.text("mount.err")?);
        (!text.is_empty()).then_some(text)
    }

    /// The mounter's state, if its engine died and the next one does not serve yet.
    #[must_use]
    pub fn restarting(&self) -> Option<Restarting> {
        Restarting::read(&self.text(Comm::STATE)?, Timestamp::now())
    }

    /// Whether the node's holder wrote the state.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.text(Comm::STATE).is_some_and(|text| Restarting::is_held(&text, Timestamp::now()))
    }

    /// Records for the node's holder that the container ended, and that the next one goes on with the mount. `owner`, the user of the
    /// mounter, owns the files: the directory is sticky, so only the owner can remove or replace them.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn note_ended(&self, words: &str, state: Restarting, owner: Uid) -> io::Result<()> {
        // The error is written before the state, after which the driver reads it.
        self.write("mount.err", words, owner)?;
        self.write(Comm::STATE, &state.held(), owner)
    }

    /// Asks the engine, by a file, to leave its mount to the next container.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn ask_hand_over(&self) -> io::Result<()> {
        let word = HandingOver { since: Timestamp::now() };
        self.write(Comm::HANDOVER, &word.to_string(), rustix::process::geteuid())
    }

    /// Whether the node asks the engine to leave its mount.
    #[must_use]
    pub fn is_handing_over(&self) -> bool {
        let text = self.text(Comm::HANDOVER);
        text.is_some_and(|text| HandingOver::read(&text, Timestamp::now()).is_some())
    }

    /// Withdraws the request to leave the mount.
    ///
    /// # Errors
    /// An error of the file system; a missing file is not an error.
    pub fn forget_hand_over(&self) -> io::Result<()> {
        absent(rustix::fs::unlinkat(&self.directory, Comm::HANDOVER, AtFlags::empty()))
    }

    /// Removes the state file.
    ///
    /// # Errors
    /// An error of the file system; a missing file is not an error.
    pub fn forget_state(&self) -> io::Result<()> {
        absent(rustix::fs::unlinkat(&self.directory, Comm::STATE, AtFlags::empty()))
    }

    /// Writes a file of `owner`, whole or not at all.
    fn write(&self, name: &str, text: &str, owner: Uid) -> io::Result<()> {
        let temporary = format!(".{name}.of-node");
        absent(rustix::fs::unlinkat(&self.directory, &temporary, AtFlags::empty()))?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        let mut file = File::from(rustix::fs::openat(&self.directory, &temporary, flags, mode)?);
        // The umask of the process may have removed bits.
        rustix::fs::fchmod(&file, mode)?;
        rustix::fs::fchown(&file, Some(owner), None)?;
        writeln!(file, "{text}")?;
        Ok(rustix::fs::renameat(&self.directory, &temporary, &self.directory, name)?)
    }

    fn text(&self, name: &str) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.directory, name, flags, Mode::empty()).ok()?);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(ERROR_MAX_BYTES).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Removes the error of an earlier engine.
    ///
    /// # Errors
    /// An error of the file system; a missing file is not an error.
    pub fn forget_error(&self) -> io::Result<()> {
        absent(rustix::fs::unlinkat(&self.directory, "mount.err", AtFlags::empty()))
    }

    /// Opens the directory of credentials, or creates it if it is missing. It is the driver's, and the pod's group may read it.
    ///
    /// # Errors
    /// `PermissionDenied` if another user owns it; other errors of the file system.
    pub fn credentials(&self) -> io::Result<CredentialFiles> {
        match rustix::fs::mkdirat(&self.directory, "credentials", Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let files = self.existing_credentials()?;
        rustix::fs::fchown(&files.directory, None, Some(self.group))?;
        rustix::fs::fchmod(&files.directory, Mode::from_raw_mode(0o750))?;
        Ok(files)
    }

    fn existing_credentials(&self) -> io::Result<CredentialFiles> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.directory, "credentials", flags, Mode::empty())?;
        if rustix::fs::fstat(&directory)?.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("{}/credentials was not made by this driver", self.path.display()),
            ));
        }
        Ok(CredentialFiles { directory, group: self.group, path: self.path.join("credentials") })
    }

    /// Removes the credentials and their directory; it may be missing.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn remove_credentials(&self) -> io::Result<()> {
        let files = match self.existing_credentials() {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut entries = Dir::read_from(&files.directory)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..")
                && entry.file_type() != FileType::Directory
            {
                absent(rustix::fs::unlinkat(&files.directory, entry.file_name(), AtFlags::empty()))?;
            }
        }
        absent(rustix::fs::unlinkat(&self.directory, "credentials", AtFlags::REMOVEDIR))
    }
}

/// An open directory of credentials.
#[derive(Debug)]
pub struct CredentialFiles {
    directory: OwnedFd,
    group: Gid,
    path: PathBuf,
}

impl CredentialFiles {
    /// Opens a directory of the driver, to which no pod can write.
    ///
    /// # Errors
    /// The path is missing, or is not a directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty())?;
        let group = Gid::from_raw(rustix::fs::fstat(&directory)?.st_gid);
        Ok(Self { directory, group, path: path.to_owned() })
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that the pod's group may read, whole or not at all. A file with the same text is not replaced, so the engine does not
    /// read it again.
    ///
    /// # Errors
    /// An error of the file system; then the file is unchanged.
    pub fn write(&self, name: &str, text: &str) -> io::Result<()> {
        if self.says(name, text) {
            return Ok(());
        }
        let temporary = format!(".{name}.new");
        // An earlier driver may have ended here and left this file.
        absent(rustix::fs::unlinkat(&self.directory, &temporary, AtFlags::empty()))?;
        let written = self
            .write_new(&temporary, text)
            .and_then(|()| Ok(rustix::fs::renameat(&self.directory, &temporary, &self.directory, name)?));
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&self.directory, &temporary, AtFlags::empty());
        }
        written
    }

    /// Whether the directory has a file with this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    fn says(&self, name: &str, text: &str) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(&self.directory, name, flags, Mode::empty()) else { return false };
        let mut held = Vec::new();
        let read = File::from(file).take(text.len() as u64 + 1).read_to_end(&mut held);
        read.is_ok() && held == text.as_bytes()
    }

    fn write_new(&self, name: &str, text: &str) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)?);
        rustix::fs::fchown(file.as_fd(), None, Some(self.group))?;
        rustix::fs::fchmod(file.as_fd(), Mode::from_raw_mode(0o640))?;
        file.write_all(text.as_bytes())
    }
}

/// A text of another process for an error message: in one line, without control characters.
#[must_use]
pub fn one_line(text: &str) -> String {
    let plain = text.trim().replace(['\n', '\r', '\t'], " ");
    plain.chars().filter(|c| !c.is_control()).collect()
}

fn absent(removed: rustix::io::Result<()>) -> io::Result<()> {
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    fn comm() -> (CommFiles, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        (CommFiles::open(&Comm::at(folder.path())).unwrap(), folder)
    }

    #[test]
    fn files_are_whole_and_for_the_directorys_group_alone() {
        let (files, folder) = comm();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(folder.path(), None, Some(1234)).unwrap();
        }
        let group = folder.path().metadata().unwrap().gid();
        let files = CommFiles::open(&Comm::at(files.path())).unwrap();
        let credentials = files.credentials().unwrap();
        credentials.write("a", "first and long").unwrap();
        credentials.write("a", "second").unwrap();
        let (dir, file) = (folder.path().join("credentials"), folder.path().join("credentials/a"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "second");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o640);
        assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o7777, 0o750);
        assert_eq!((dir.metadata().unwrap().gid(), file.metadata().unwrap().gid()), (group, group));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "nothing temporary is left");
    }

    #[test]
    fn a_link_that_the_pod_put_there_leads_nowhere() {
        let (files, folder) = comm();
        let elsewhere = tempfile::tempdir().unwrap();
        let secret = elsewhere.path().join("shadow");
        std::fs::write(&secret, "canary").unwrap();
        symlink(elsewhere.path(), folder.path().join("credentials")).unwrap();
        symlink(&secret, folder.path().join("mount.err")).unwrap();
        symlink(elsewhere.path().join("made"), folder.path().join("mount.exit")).unwrap();
        assert!(files.credentials().is_err());
        assert!(files.remove_credentials().is_err());
        assert_eq!(files.error(), None);
        files.announce_exit().unwrap();
        assert_eq!(
            std::fs::read_dir(elsewhere.path()).unwrap().count(),
            1,
            "nothing was made or removed there"
        );
    }

    #[test]
    fn a_directory_of_credentials_that_somebody_else_made_is_refused() {
        if !crate::mounter::testing::need("root", rustix::process::geteuid().is_root()) {
            return;
        }
        let (files, folder) = comm();
        let theirs = folder.path().join("credentials");
        std::fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(1000), None).unwrap();
        assert_eq!(files.credentials().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_pipe_in_place_of_the_error_does_not_stop_the_reader() {
        let (files, folder) = comm();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            folder.path().join("mount.err"),
            FileType::Fifo,
            Mode::from_raw_mode(0o666),
            0,
        )
        .unwrap();
        assert_eq!(files.error(), None);
        files.forget_error().unwrap();
        files.forget_error().unwrap();
        std::fs::write(folder.path().join("mount.err"), "mount-s3: no such\nbucket\x1b[0m\n").unwrap();
        assert_eq!(files.error().unwrap(), "mount-s3: no such bucket[0m");
    }

    #[test]
    fn a_state_is_believed_for_a_time_and_from_a_file_alone() {
        let (files, folder) = comm();
        let state = folder.path().join("mount.state");
        assert_eq!(files.restarting(), None);
        let since = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
        std::fs::write(&state, Restarting { since }.to_string()).unwrap();
        assert_eq!(files.restarting(), Some(Restarting { since }));
        std::fs::write(&state, "restarting since 2025-11-26T16:03:20Z").unwrap();
        assert_eq!(files.restarting(), None, "that mounter was killed itself");
        std::fs::remove_file(&state).unwrap();
        let elsewhere = folder.path().join("elsewhere");
        std::fs::write(&elsewhere, Restarting { since }.to_string()).unwrap();
        symlink(&elsewhere, &state).unwrap();
        assert_eq!(files.restarting(), None);
    }

    #[test]
    fn the_holders_word_is_read_as_a_state_with_its_error_and_goes_again() {
        let (files, folder) = comm();
        symlink("/dev/null", folder.path().join(".mount.state.of-node")).unwrap();
        let state = Restarting { since: Timestamp::from_second(Timestamp::now().as_second()).unwrap() };
        assert!(!files.is_held());
        let is_root = rustix::process::geteuid().is_root();
        let owner = if is_root { Uid::from_raw(65_534) } else { rustix::process::geteuid() };
        files.note_ended("it was killed", state, owner).unwrap();
        for name in ["mount.err", "mount.state"] {
            assert_eq!(folder.path().join(name).metadata().unwrap().uid(), owner.as_raw(), "{name}");
        }
        assert!(files.is_held() && files.restarting() == Some(state));
        assert_eq!(files.error().as_deref(), Some("it was killed"));
        let mode = folder.path().join("mount.state").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "the mounter reads it");
        files.forget_state().unwrap();
        files.forget_state().unwrap();
        assert_eq!(files.restarting(), None);
        std::fs::write(folder.path().join("mount.state"), state.to_string()).unwrap();
        assert!(!files.is_held(), "it is the mounter's own");
    }

    #[test]
    fn a_hand_over_is_asked_for_and_forgotten() {
        let (files, folder) = comm();
        assert!(!files.is_handing_over());
        files.ask_hand_over().unwrap();
        assert!(files.is_handing_over());
        let mode = folder.path().join("mount.handover").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "the mounter reads it");
        files.forget_hand_over().unwrap();
        files.forget_hand_over().unwrap();
        assert!(!files.is_handing_over());
    }

    #[test]
    fn an_announced_exit_is_seen_and_may_be_announced_again() {
        let (files, _folder) = comm();
        assert!(!files.exit_announced());
        files.announce_exit().unwrap();
        files.announce_exit().unwrap();
        assert!(files.exit_announced());
    }

    #[test]
    fn any_file_of_the_name_announces_and_a_pod_that_is_gone_needs_none() {
        let (files, folder) = comm();
        std::fs::create_dir(folder.path().join("mount.exit")).unwrap();
        files.announce_exit().unwrap();
        assert!(files.exit_announced());
        std::fs::write(folder.path().join("file"), "").unwrap();
        let found = |name| CommFiles::find(&Comm::at(folder.path().join(name))).unwrap();
        assert!(found("").is_some() && found("file").is_none() && found("missing").is_none());
        folder.close().unwrap();
        files.announce_exit().unwrap();
    }

    #[test]
    fn a_link_in_place_of_the_socket_is_not_followed() {
        let (files, folder) = comm();
        let elsewhere = tempfile::tempdir().unwrap();
        let (theirs, ours) = (elsewhere.path().join("socket"), folder.path().join("mount.sock"));
        assert_eq!(files.connect(Comm::SOCKET).unwrap_err().kind(), io::ErrorKind::NotFound);
        let other = crate::contract::message::listen(&theirs).unwrap();
        symlink(&theirs, &ours).unwrap();
        other.set_nonblocking(true).unwrap();
        files.connect(Comm::SOCKET).unwrap_err();
        assert_eq!(other.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "nobody connected there");
        std::fs::remove_file(&ours).unwrap();
        std::fs::write(&ours, "").unwrap();
        assert_eq!(files.connect(Comm::SOCKET).unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::fs::remove_file(&ours).unwrap();
        let ended = crate::contract::message::listen(&ours).unwrap();
        // Said, not left to the last close: the child of another test has it open, too, until it executes.
        rustix::net::shutdown(&ended, rustix::net::Shutdown::Both).unwrap();
        drop(ended);
        assert_eq!(files.connect(Comm::SOCKET).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        std::fs::remove_file(&ours).unwrap();
        let listener = crate::contract::message::listen(&ours).unwrap();
        files.connect(Comm::SOCKET).unwrap();
        listener.accept().unwrap();
    }
}
