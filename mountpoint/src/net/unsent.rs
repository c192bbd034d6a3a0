//! Sent bytes of a connection that the other side has not acknowledged. A kernel takes much of a body at once and sends it as slowly as the
//! line is. A connection that seems silent is dead only if these bytes do not become fewer.
#![expect(unsafe_code, reason = "the ioctl that tells the length of a send queue has no safe wrapper")]

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, RawFd};

use rustix::ioctl::{Getter, Opcode, ioctl};

use crate::sync::Mutex;

/// The request `SIOCOUTQ`, equal to `TIOCOUTQ`: the unacknowledged bytes in the send queue of a TCP socket.
const SIOCOUTQ: Opcode = 0x5411;

/// The socket of a connection, while it is open.
#[derive(Debug, Default)]
pub(crate) struct Socket(Mutex<Option<RawFd>>);

impl Socket {
    /// Notes that the socket is open. The owner calls [`Socket::closes`] before closing it.
    pub(crate) fn opened(&self, socket: impl AsFd) {
        *self.0.lock() = Some(socket.as_fd().as_raw_fd());
    }

    /// Notes that the socket is about to be closed.
    pub(crate) fn closes(&self) {
        *self.0.lock() = None;
    }

    /// Sent bytes that the other side has not acknowledged; 0 if the kernel does not say.
    pub(crate) fn unsent(&self) -> u64 {
        let socket = self.0.lock();
        let Some(fd) = *socket else { return 0 };
        // SAFETY: the descriptor is open as long as the lock is held: `Tcp` (tcp.rs), which owns the socket, names it when it gets it and
        // takes the lock in `closes` before it closes it.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // SAFETY: this ioctl writes one `int`.
        let unsent = unsafe { ioctl(fd, Getter::<SIOCOUTQ, c_int>::new()) };
        unsent.ok().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_the_kernel_took_and_the_other_side_did_not_take_is_unsent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        let socket = Socket::default();
        assert_eq!(socket.unsent(), 0, "there is none yet");
        socket.opened(&ours);
        ours.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(n) = ours.write(&[7; 1 << 20]) {
            sent += n as u64;
        }
        let full = socket.unsent();
        assert!(full > 0 && full <= sent, "{full} of {sent}");
        let mut rest = vec![0; sent as usize];
        theirs.read_exact(&mut rest).unwrap();
        testkit::until("all of it is acknowledged", || socket.unsent() == 0);
        socket.closes();
        drop(ours);
        assert_eq!(socket.unsent(), 0, "it is closed");
    }
}
