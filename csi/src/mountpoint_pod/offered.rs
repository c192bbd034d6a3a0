//! The mounter's end of `hold.sock`. Enters: the device, the journal and the message of a mount that an engine serves. Leaves: copies of
//! the two descriptors, for the holder that connects; at the end of the mount [`hold::END`].
//!
//! A restarted holder connects again. Only the socket's owner and root can connect: pod and node share the directory.
//!
//! Never here: a wait for a holder.

use std::fs::Permissions;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use mountpoint::sync::{Arc, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::contract::comm::Comm;
use crate::contract::hold;
use crate::contract::message::{self, MountMessage};

/// A mount that is offered to the holder. When this value is dropped, the holder closes its copies.
#[derive(Debug)]
pub(super) struct Offered {
    listener: UnixListener,
    registrar: Option<JoinHandle<()>>,
    path: PathBuf,
    holder: Arc<Mutex<Option<UnixStream>>>,
}

impl Offered {
    /// Listens, in place of an earlier container.
    pub(super) fn new(
        comm: &Comm,
        message: &MountMessage,
        device: BorrowedFd<'_>,
        journal: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let path = comm.hold_socket();
        let _ = std::fs::remove_file(&path);
        let listener = message::listen(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let mount = Copies {
            message: MountMessage { adopt: None, ..message.clone() },
            device: device.try_clone_to_owned()?,
            journal: journal.try_clone_to_owned()?,
        };
        let accepts = listener.try_clone()?;
        let holder = Arc::default();
        let of_thread = Arc::clone(&holder);
        let registrar = thread::spawn(move || mount.register_all(&accepts, &of_thread));
        Ok(Self { listener, registrar: Some(registrar), path, holder })
    }

    /// Whether a holder has the copies now: its connection is open, on which it never sends anything.
    pub(super) fn is_held(&self) -> bool {
        let is_open = |stream: &UnixStream| {
            poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&Timespec::default()))
                .is_ok_and(|ready| ready == 0)
        };
        self.holder.lock().as_ref().is_some_and(is_open)
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(registrar) = self.registrar.take() {
            let _ = registrar.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

#[derive(Debug)]
struct Copies {
    message: MountMessage,
    device: OwnedFd,
    journal: OwnedFd,
}

impl Copies {
    /// Registers the mount with each holder that connects, until the listener is shut down.
    fn register_all(self, listener: &UnixListener, holder: &Mutex<Option<UnixStream>>) {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    match hold::register(&stream, &self.message, self.device.as_fd(), self.journal.as_fd()) {
                        Ok(()) => {
                            // Without this, an earlier holder would take the end of its connection for the end of this container.
                            if let Some(earlier) = holder.lock().replace(stream) {
                                hold::end(&earlier);
                            }
                        }
                        Err(error) => tracing::warn!("registering the mount with the node's holder: {error}"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        if let Some(holder) = holder.lock().take() {
            hold::end(&holder);
            // A holder that reads `END` closes its side.
            let _ = holder.shutdown(Shutdown::Write);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use super::*;

    fn offered() -> (Offered, Comm, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let comm = Comm::at(folder.path());
        let message = MountMessage {
            bucket_name: "b".into(),
            args: Vec::new(),
            env: Vec::new(),
            adopt: None,
            stage: false,
        };
        let (device, journal) = (File::open("/dev/null").unwrap(), File::open("/dev/zero").unwrap());
        let offered = Offered::new(&comm, &message, device.as_fd(), journal.as_fd()).unwrap();
        (offered, comm, folder)
    }

    fn to(descriptor: &OwnedFd) -> PathBuf {
        use std::os::fd::AsRawFd as _;
        std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).unwrap()
    }

    #[test]
    fn each_holder_gets_both_descriptors_and_the_last_one_hears_the_end() {
        let (offered, comm, _folder) = offered();
        assert_eq!(comm.hold_socket().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!offered.is_held());
        let first = message::connect(&comm.hold_socket()).unwrap();
        hold::receive(&first).unwrap();
        let second = message::connect(&comm.hold_socket()).unwrap();
        let (said, mount) = hold::receive(&second).unwrap();
        assert_eq!(said.bucket_name, "b");
        assert_eq!(to(&mount.device), PathBuf::from("/dev/null"));
        assert_eq!(to(&mount.journal.unwrap()), PathBuf::from("/dev/zero"));
        testkit::until("the second one counts", || offered.is_held());
        let mut rest = Vec::new();
        (&first).read_to_end(&mut rest).unwrap();
        assert_eq!(rest, hold::END, "another one has its place");
        rest.clear();
        drop(offered);
        (&second).read_to_end(&mut rest).unwrap();
        assert_eq!(rest, hold::END);
        assert!(!comm.hold_socket().exists());
    }

    #[test]
    fn a_holder_that_ended_holds_nothing() {
        let (offered, comm, _folder) = offered();
        let holder = message::connect(&comm.hold_socket()).unwrap();
        hold::receive(&holder).unwrap();
        testkit::until("it holds", || offered.is_held());
        drop(holder);
        testkit::until("its end is noticed", || !offered.is_held());
    }

    #[test]
    fn a_holder_that_reads_nothing_does_not_keep_the_mount() {
        let (offered, comm, _folder) = offered();
        let _silent = message::connect(&comm.hold_socket()).unwrap();
        drop(offered);
        assert!(!comm.hold_socket().exists());
    }
}
