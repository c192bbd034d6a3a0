//! Wakes the ring's thread from its wait for the disk, when a read is put into its queue.
//!
//! Enters: a call by the thread that put the read. Leaves: a readable descriptor, if the ring's thread sleeps. While the ring's thread is
//! awake, it checks the queue itself, and the call makes no system call.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Wakes one thread: a flag says whether it sleeps, and a socket pair has the descriptor that it waits for.
#[derive(Debug)]
pub(super) struct Bell {
    sleeps: AtomicBool,
    button: UnixStream,
    sound: UnixStream,
}

impl Bell {
    /// Creates a bell that has not rung.
    ///
    /// # Errors
    /// The process or the system has no free descriptors.
    pub(super) fn new() -> io::Result<Self> {
        let (button, sound) = UnixStream::pair()?;
        button.set_nonblocking(true)?;
        sound.set_nonblocking(true)?;
        Ok(Self { sleeps: AtomicBool::new(false), button, sound })
    }

    /// Wakes the ring's thread, if it sleeps.
    pub(super) fn ring(&self) {
        if self.sleeps.swap(false, SeqCst) {
            // A full socket fails the write, but is readable already.
            let _ = (&self.button).write(&[1]);
        }
    }

    /// Notes that the thread is about to sleep: a put from now on rings. Call this before the last check of the queue, so no put is missed.
    pub(super) fn sleeps(&self) {
        self.sleeps.store(true, SeqCst);
    }

    /// Notes that the thread is awake and checks the queue itself: a put need not ring.
    pub(super) fn wakes(&self) {
        self.sleeps.store(false, SeqCst);
    }

    /// Drains the socket, after the thread woke.
    pub(super) fn silence(&self) {
        let mut heard = [0; 16];
        while (&self.sound).read(&mut heard).is_ok_and(|n| n > 0) {}
    }
}

impl AsFd for Bell {
    /// The descriptor that is readable after the bell rang.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sound.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the bell rang; silences it.
    fn heard(bell: &Bell) -> bool {
        let mut one = [0];
        let rang = (&bell.sound).read(&mut one).is_ok();
        bell.silence();
        rang
    }

    #[test]
    fn it_rings_once_for_a_thread_that_sleeps_and_not_for_one_that_is_awake() {
        let bell = Bell::new().unwrap();
        bell.ring();
        assert!(!heard(&bell), "awake");
        bell.sleeps();
        bell.ring();
        bell.ring();
        assert!(heard(&bell));
        assert!(!heard(&bell), "once");
        bell.sleeps();
        bell.wakes();
        bell.ring();
        assert!(!heard(&bell), "awake again");
    }
}
