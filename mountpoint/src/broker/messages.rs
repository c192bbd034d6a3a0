//! Questions and answers as they pass the socket: one message of JSON each, with descriptors beside it.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Bytes of the longest message: credentials with a long token. Doubling it doubles what a question's thread allocates for a moment.
const MESSAGE_MAX: usize = 64 << 10;
/// Descriptors of one message: a socket for the answer, a device, a file.
const FILES_MAX: usize = 3;

/// A question of an engine to its helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// The mount that is to be unmounted is this file system. Only the first one counts.
    Mounted {
        /// Major and minor number.
        device: Option<(u32, u32)>,
    },
    /// Unmount it.
    Unmount {
        /// Whether the kernel has the other end of its device.
        is_connected: bool,
    },
    /// Whether a thread has a descriptor of a file.
    Holds {
        /// The thread.
        tid: u32,
        /// Major and minor number of the mount.
        device: (u32, u32),
        /// The mount's number.
        mount: Option<u32>,
        /// The file's number.
        ino: u64,
        /// Descriptors that only read do not count.
        writing: bool,
    },
    /// Whether a thread is on its way out by a signal.
    HasEndedBySignal {
        /// The thread.
        tid: u32,
    },
    /// Register a file with a FUSE device; both come along.
    Register,
    /// Take a registered file back; the device comes along.
    Forget {
        /// The number of the file.
        id: u32,
    },
    /// The addresses of a host.
    Resolve {
        /// The name of the host.
        host: String,
        /// The port of the addresses.
        port: u16,
    },
    /// The output of the program that prints credentials.
    Credentials {
        /// The command line of the program. Only one counts, and none that comes first from a confined engine.
        command: String,
    },
    /// The engine is about to be confined: from now on it may be in wrong hands.
    Confined,
}

impl Question {
    /// Whether its answer may wait for others: for the network, a disk, a program.
    pub(super) fn may_wait(&self) -> bool {
        matches!(self, Self::Unmount { .. } | Self::Resolve { .. } | Self::Credentials { .. })
    }
}

/// The helper's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// Whether it is so. `None`: not known.
    Holds(Option<bool>),
    /// A registered file's number.
    Number(u32),
    /// Addresses.
    Addresses(Vec<SocketAddr>),
    /// A program's output.
    Text(String),
    /// It is not done.
    Refused {
        /// The system's reason.
        errno: Option<i32>,
        /// The reason in words.
        why: String,
    },
}

impl Answer {
    /// The answer of an error.
    pub fn refused(error: &io::Error) -> Self {
        Self::Refused { errno: error.raw_os_error(), why: error.to_string() }
    }
}

pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Never waits for room: without it, the other end reads no more, as a helper that was stopped.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let words = serde_json::to_vec(message)?;
    if words.len() > MESSAGE_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a message of the sandbox's helper is too long",
        ));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    let (words, flags) = ([io::IoSlice::new(&words)], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    rustix::io::retry_on_intr(|| sendmsg(socket, &words, &mut control, flags))?;
    Ok(())
}

/// The next message; `None` at the end.
pub(super) fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut words = vec![0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut place = [io::IoSliceMut::new(&mut words)];
        match recvmsg(socket, &mut place, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files.collect::<Vec<_>>()),
        _ => None,
    });
    let files: Vec<_> = files.flatten().collect();
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&words[..received.bytes])?, files)))
}
