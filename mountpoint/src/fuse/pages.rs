//! Makes the kernel drop the pages of files: it requests their bytes again at their next use.
//!
//! Enters: the number of a file. Leaves: a notification to the kernel. The notification waits in the kernel until requests for pages of
//! that file are answered, and the kernel sends more of them meanwhile. So a thread of its own waits there, never a FUSE thread.

use std::collections::BTreeSet;
use std::io;

use crate::inode::InodeNo;
use crate::sync::{Arc, Mutex};

/// Drops pages through a notification of the transport.
pub(super) struct Pages {
    notify: Box<dyn Fn(InodeNo) -> io::Result<()> + Send + Sync>,
    queue: Mutex<Queue>,
}

/// Files whose pages are to be dropped. Each is queued once, even if it is requested often.
#[derive(Debug, Default)]
struct Queue {
    files: BTreeSet<u64>,
    has_thread: bool,
}

impl Pages {
    /// Creates the queue. `notify` may wait.
    pub(super) fn new(notify: impl Fn(InodeNo) -> io::Result<()> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { notify: Box::new(notify), queue: Mutex::default() })
    }

    /// Drops the pages of this file soon. Never waits.
    pub(super) fn drop_soon(self: &Arc<Self>, ino: InodeNo) {
        let mut queue = self.queue.lock();
        queue.files.insert(ino.0);
        if std::mem::replace(&mut queue.has_thread, true) {
            return;
        }
        drop(queue);
        let this = Arc::clone(self);
        let started = std::thread::Builder::new().name("fuse-pages".to_owned()).spawn(move || this.run());
        if let Err(error) = started {
            self.queue.lock().has_thread = false;
            tracing::warn!("the pages of inode {} stay in the kernel until its next open: {error}", ino.0);
        }
    }

    fn run(&self) {
        while let Some(ino) = self.next() {
            if let Err(error) = (self.notify)(ino) {
                tracing::debug!("the pages of inode {}: {error}", ino.0);
            }
        }
    }

    fn next(&self) -> Option<InodeNo> {
        let mut queue = self.queue.lock();
        let next = queue.files.pop_first();
        queue.has_thread = next.is_some();
        next.map(InodeNo)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn pages_are_dropped_on_another_thread_once_for_each_waiting_file() {
        let (told, notified) = mpsc::channel();
        let (go, gate) = mpsc::channel();
        let gate = Mutex::new(gate);
        let pages = Pages::new(move |ino| {
            told.send((ino, std::thread::current().id())).unwrap();
            gate.lock().recv().unwrap();
            Err(io::Error::other("an error ends nothing"))
        });
        for round in 0..2 {
            pages.drop_soon(InodeNo(7));
            let (first, thread) = notified.recv().unwrap();
            assert_eq!(first, InodeNo(7), "{round}");
            assert_ne!(thread, std::thread::current().id());
            // The kernel lets it wait.
            for ino in [8, 7, 8, 7] {
                pages.drop_soon(InodeNo(ino));
            }
            (0..3).for_each(|_| go.send(()).unwrap());
            let rest = [notified.recv().unwrap().0, notified.recv().unwrap().0];
            assert_eq!(rest, [InodeNo(7), InodeNo(8)], "what changed meanwhile goes, too");
            while pages.queue.lock().has_thread {
                std::thread::yield_now();
            }
            assert!(notified.try_recv().is_err());
        }
    }
}
