//! The gate before the operations of a supervised mount: closed while the mount is handed to another program.
//!
//! A request held at the gate has no answer and no effect yet. If this process ends, the kernel sends it to the next engine.

use std::thread::Thread;

use super::device::FuseDevice;
use super::pending::{Pending, UnderWay};
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use crate::sync::{Arc, Mutex};

/// Holds the threads that bring requests while it is closed.
#[derive(Debug, Default)]
pub(super) struct Gate {
    is_closed: AtomicBool,
    held: Mutex<Vec<Thread>>,
}

/// The requests of one mount: holds new ones back, and counts those without an answer.
#[derive(Clone, Debug)]
pub struct Requests {
    gate: Arc<Gate>,
    pending: Arc<Pending>,
    device: Arc<FuseDevice>,
}

impl Gate {
    /// Waits until the gate is open.
    pub(super) fn pass(&self) {
        while self.is_closed.load(SeqCst) {
            {
                let mut held = self.held.lock();
                if !self.is_closed.load(SeqCst) {
                    return;
                }
                held.push(std::thread::current());
            }
            std::thread::park();
        }
    }

    fn close(&self) {
        self.is_closed.store(true, SeqCst);
    }

    fn open(&self) {
        let mut held = self.held.lock();
        self.is_closed.store(false, SeqCst);
        held.drain(..).for_each(|thread| thread.unpark());
    }
}

impl Requests {
    pub(super) fn new(gate: Arc<Gate>, pending: Arc<Pending>, device: Arc<FuseDevice>) -> Self {
        Self { gate, pending, device }
    }

    /// Holds new requests back until [`Requests::go_on`]. A thread holds one request at most; the kernel keeps the others.
    pub fn hold(&self) {
        self.gate.close();
    }

    /// Lets the held requests and all later ones pass.
    pub fn go_on(&self) {
        self.gate.open();
    }

    /// Counts the requests without an answer, except those that the gate holds.
    pub fn under_way(&self) -> UnderWay {
        self.pending.under_way()
    }

    /// The device of the connection.
    pub fn device(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&*self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::atomic::AtomicUsize;

    #[test]
    fn a_closed_gate_holds_each_thread_until_it_opens() {
        let (gate, passed) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
        gate.pass();
        gate.close();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (gate, passed) = (Arc::clone(&gate), Arc::clone(&passed));
                std::thread::spawn(move || {
                    gate.pass();
                    passed.fetch_add(1, SeqCst);
                })
            })
            .collect();
        while gate.held.lock().len() < 4 {
            std::thread::yield_now();
        }
        assert_eq!(passed.load(SeqCst), 0);
        gate.open();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(passed.load(SeqCst), 4);
        gate.pass();
    }
}
