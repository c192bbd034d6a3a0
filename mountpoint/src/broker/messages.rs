//! Messages between engine and helper: each is one JSON text, with descriptors beside it.

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

/// Longest message, in bytes: credentials with a long token. A longer one is not sent. Doubling it doubles the memory that the receiver of
/// a message takes for a moment.
const MESSAGE_MAX: usize = 64 << 10;
/// Most descriptors of one message: a socket for the answer, a device, a file. A message with more is not sent.
const FILES_MAX: usize = 3;

/// A request of an engine to its helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Names the file system that the helper may unmount. Only the first such message counts.
    Mounted {
        /// Major and minor number of the mount's device.
        device: Option<(u32, u32)>,
    },
    /// Unmounts the file system.
    Unmount {
        /// Whether the kernel still has the other end of the mount's device.
        is_connected: bool,
    },
    /// Asks whether a thread has a descriptor of a file.
    Holds {
        /// The thread.
        tid: u32,
        /// Major and minor number of the mount's device.
        device: (u32, u32),
        /// The mount's number in mountinfo.
        mount: Option<u32>,
        /// The file's number.
        ino: u64,
        /// Whether only descriptors that can write count.
        writing: bool,
    },
    /// Asks whether a signal is ending a thread.
    HasEndedBySignal {
        /// The thread.
        tid: u32,
    },
    /// Registers a file with a FUSE device. The message has the descriptors of both.
    Register,
    /// Unregisters a file. The message has the device's descriptor.
    Forget {
        /// The number of the file.
        id: u32,
    },
    /// Asks for the addresses of a host.
    Resolve {
        /// The name of the host.
        host: String,
        /// The port of the addresses.
        port: u16,
    },
    /// Names the program that prints credentials. The message has no effect after another one, or after `Confined`.
    Program {
        /// The command line of the program.
        command: String,
    },
    /// Runs the program that prints credentials, and requests its output.
    Credentials {
        /// The command line of the program. The helper accepts only the first one that it gets, here or in `Program`, and none whose
        /// first arrival is after `Confined`.
        command: String,
    },
    /// Asks whether the program that is installed now could continue the mount. The message has the descriptor of its journal.
    Check,
    /// Announces the confinement of the engine: from now on the helper must expect an intruder's messages.
    Confined,
}

impl Question {
    /// Whether the answer may wait for the network, a disk or a program.
    pub(super) fn may_wait(&self) -> bool {
        matches!(self, Self::Unmount { .. } | Self::Resolve { .. } | Self::Credentials { .. } | Self::Check)
    }
}

/// The helper's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The helper carried the request out.
    Done,
    /// The answer yes or no. `None`: unknown.
    Holds(Option<bool>),
    /// The number of a registered file.
    Number(u32),
    /// The addresses of a host.
    Addresses(Vec<SocketAddr>),
    /// The output of a program.
    Text(String),
    /// The helper refused the request, or failed.
    Refused {
        /// The system's error number.
        errno: Option<i32>,
        /// The reason, in words.
        why: String,
    },
}

impl Answer {
    /// The answer that reports an error.
    pub fn refused(error: &io::Error) -> Self {
        Self::Refused { errno: error.raw_os_error(), why: error.to_string() }
    }
}

pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends a message without waiting for room in the socket. Fails if the socket is full, as when the helper was stopped and reads nothing.
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

/// Receives the next message; `None` at the end of the stream.
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
