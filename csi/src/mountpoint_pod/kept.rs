//! The descriptors with which the next engine goes on: the device of the mount, and the journal that the first engine creates. The mounter
//! is the engine's service manager: it takes the journal by `FDSTORE=1` of sd_notify(3), and passes it on by `LISTEN_FDS` of
//! sd_listen_fds(3).
//!
//! Never here: a call that the mount must answer. A process that waits for a mount could not be killed, and the mount could not end.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::offered::Offered;
use crate::contract::comm::Comm;
use crate::contract::message::{Mount, MountMessage};

/// The name of the journal among the descriptors that an engine inherits.
const JOURNAL: &str = "journal";
/// The name of descriptors that the engine must ignore. The journal keeps its number, so no descriptor of this process is replaced.
const NOT_YOURS: &str = "other";
/// The number of the first descriptor of sd_listen_fds(3).
const FIRST: usize = 3;

/// The descriptors of one mount. Both are closed when this value is dropped; without an engine, programs then get an error at once.
#[derive(Debug)]
pub(super) struct Kept {
    device: OwnedFd,
    journal: Option<OwnedFd>,
    socket: UnixDatagram,
    path: PathBuf,
    offered: Option<Offered>,
}

impl Kept {
    /// Takes the device, and the journal if there is one, and listens for the engine's messages.
    ///
    /// # Errors
    /// The socket can't be created; the device is given back.
    pub(super) fn new(
        comm: &Comm,
        Mount { device, journal, .. }: Mount<OwnedFd>,
    ) -> Result<Self, (OwnedFd, io::Error)> {
        let path = comm.notify_socket();
        // A killed container may have left its socket.
        let _ = std::fs::remove_file(&path);
        let bound =
            UnixDatagram::bind(&path).and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        match bound {
            Ok(socket) => Ok(Self { device, journal, socket, path, offered: None }),
            Err(error) => Err((device, error)),
        }
    }

    pub(super) fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Offers device and journal to the node's holder, so the mount outlives this container. Does nothing without a journal: no other
    /// engine could go on with the mount.
    pub(super) fn offer(&mut self, comm: &Comm, message: &MountMessage) {
        let (None, Some(journal)) = (&self.offered, &self.journal) else { return };
        match Offered::new(comm, message, self.device.as_fd(), journal.as_fd()) {
            Ok(offered) => self.offered = Some(offered),
            Err(error) => tracing::warn!(
                "the mount ends with this container, since it can't be offered to the node's holder: {error}"
            ),
        }
    }

    /// Whether the node's holder has copies of both descriptors.
    pub(super) fn is_held(&self) -> bool {
        self.offered.as_ref().is_some_and(Offered::is_held)
    }

    /// Leaves the mount to the holder. The process must end next: when its connection ends without
    /// [`hold::END`](crate::contract::hold::END), the holder brings the mount to the next container.
    pub(super) fn leave(self) {
        std::mem::forget(self);
    }

    pub(super) fn has_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// Whether the kernel still has its end of the device: nobody has unmounted or aborted the mount.
    pub(super) fn is_connected(&self) -> bool {
        poll(&mut [PollFd::new(&self.device, PollFlags::empty())], Some(&Timespec::default()))
            .is_ok_and(|ready| ready == 0)
    }

    /// The variables by which the next engine finds this process's socket and the inherited journal.
    pub(super) fn env(&self) -> io::Result<Vec<(String, String)>> {
        let mut env = vec![("NOTIFY_SOCKET".to_owned(), self.path.to_string_lossy().into_owned())];
        if let Some(journal) = &self.journal {
            rustix::io::fcntl_setfd(journal, FdFlags::empty())?;
            let before = usize::try_from(journal.as_raw_fd()).unwrap_or(FIRST).saturating_sub(FIRST);
            let names = [vec![NOT_YOURS; before], vec![JOURNAL]].concat();
            env.push(("LISTEN_FDS".to_owned(), names.len().to_string()));
            env.push(("LISTEN_FDNAMES".to_owned(), names.join(":")));
        }
        Ok(env)
    }

    /// Receives one message of the engine. An unknown message is ignored; its descriptors are closed, which answers `BARRIER=1`.
    pub(super) fn take(&mut self) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut words = [0; 4096];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let Ok(received) = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut words)], &mut control, flags)
        else {
            return;
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let text = String::from_utf8_lossy(&words[..received.bytes]);
        let has = |wanted: &str| text.lines().any(|line| line == wanted);
        if has("FDSTORE=1") && has(&format!("FDNAME={JOURNAL}")) && descriptors.len() == 1 {
            self.journal = descriptors.pop();
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // The holder closes its copies first: programs get an error when the last copy is closed.
        self.offered = None;
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::IoSlice;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    fn kept() -> (Kept, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let device = OwnedFd::from(File::open("/dev/null").unwrap());
        let mount = Mount { device, journal: None, stage: None };
        (Kept::new(&Comm::at(folder.path()), mount).unwrap(), folder)
    }

    fn send(kept: &mut Kept, words: &str, files: &[&File]) {
        let socket = UnixDatagram::unbound().unwrap();
        socket.connect(&kept.path).unwrap();
        let rights: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !rights.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
        }
        sendmsg(&socket, &[IoSlice::new(words.as_bytes())], &mut control, SendFlags::empty()).unwrap();
        kept.take();
    }

    #[test]
    fn the_journal_is_kept_and_named_to_the_next_engine_by_its_number() {
        let (mut kept, folder) = kept();
        let file = File::open("/dev/zero").unwrap();
        assert!(kept.is_connected() && !kept.has_journal());
        assert_eq!(kept.env().unwrap().len(), 1, "the first engine has no journal");
        send(&mut kept, "FDSTORE=1\nFDNAME=journal\n", &[&file]);
        let env = kept.env().unwrap();
        let value = |name: &str| env.iter().find(|(it, _)| it == name).unwrap().1.clone();
        let names = value("LISTEN_FDNAMES");
        assert_eq!(value("LISTEN_FDS"), names.split(':').count().to_string());
        let number = 2 + names.split(':').count();
        let journal = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
        assert_eq!(journal.to_str(), Some("/dev/zero"));
        assert!(names.ends_with("journal") && names.matches("journal").count() == 1, "{names}");
        assert_eq!(value("NOTIFY_SOCKET"), folder.path().join("notify.sock").to_str().unwrap());
        drop(kept);
        assert!(!folder.path().join("notify.sock").exists());
    }

    #[test]
    fn a_message_that_is_no_journal_is_closed_and_changes_nothing() {
        let (mut kept, _folder) = kept();
        let file = File::open("/dev/zero").unwrap();
        for words in
            ["", "READY=1", "FDSTORE=1\nFDNAME=fuse\n", "FDNAME=journal", "FDSTORE=1\nFDNAME=journal-2"]
        {
            send(&mut kept, words, &[&file]);
        }
        send(&mut kept, "FDSTORE=1\nFDNAME=journal\n", &[]);
        send(&mut kept, "FDSTORE=1\nFDNAME=journal\n", &[&file, &file]);
        kept.take();
        assert!(!kept.has_journal());
        let (mut waits, barrier) = io::pipe().unwrap();
        let barrier = File::from(OwnedFd::from(barrier));
        send(&mut kept, "BARRIER=1", &[&barrier]);
        drop(barrier);
        let mut end = Vec::new();
        assert_eq!(io::Read::read_to_end(&mut waits, &mut end).unwrap(), 0, "the barrier is answered");
    }
}
