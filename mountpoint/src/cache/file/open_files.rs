//! Keeps a bounded number of data files open. Beyond it, the clock algorithm closes files that were not read recently.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use super::Entry;
use crate::sync::{Arc, Mutex, Weak};

/// The open files, in the order of the clock's hand.
#[derive(Debug)]
pub(in crate::cache) struct OpenFiles {
    max: usize,
    queue: Mutex<VecDeque<Weak<Entry>>>,
}

impl OpenFiles {
    /// An empty set of at most `max` open files. Files that are being read do not count.
    pub(in crate::cache) fn new(max: usize) -> Self {
        Self { max, queue: Mutex::new(VecDeque::new()) }
    }

    /// Keeps `file` open with `entry`, and closes others beyond the limit.
    pub(in crate::cache) fn keep(&self, entry: &Arc<Entry>, file: &Arc<OwnedFd>) {
        if !entry.keep(file) {
            return;
        }
        // These files are dropped after the lock: on a hanging disk, a close may never return.
        let mut closed = Vec::new();
        let mut queue = self.queue.lock();
        queue.push_back(Arc::downgrade(entry));
        // The hand goes round at most twice: in the first round a file may have been read since, in the second hardly. If all were read,
        // the limit is exceeded until the next call.
        for _ in 0..2 * queue.len() {
            if queue.len() <= self.max {
                break;
            }
            let Some(first) = queue.pop_front() else { break };
            match first.upgrade().map(|entry| entry.close_if_idle()) {
                Some(Err(())) => queue.push_back(first),
                Some(Ok(file)) => closed.extend(file),
                None => {}
            }
        }
        drop(queue);
    }
}

#[cfg(test)]
mod tests {
    use super::super::owner::Owner;
    use super::*;
    use crate::cache::format::{Header, Identity};

    fn entry(key: &str) -> Arc<Entry> {
        let identity = Identity { scope: "s", key, etag: "e", modified: 0 };
        let header = Header { identity, object_size: 1, slots_at: 48, is_proven: true };
        let owner = Owner::read(&Arc::from("s"), &identity);
        Arc::new(Entry::new(owner, identity.name(), &header, [], 0, &Arc::default()))
    }

    #[test]
    fn the_file_nobody_reads_is_closed_first_and_the_bound_holds() {
        let files = OpenFiles::new(2);
        let open = || Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let entries = ["a", "b", "c", "d"].map(entry);
        for e in &entries[..2] {
            files.keep(e, &open());
        }
        assert!(entries[0].close_if_idle().is_ok_and(|file| file.is_some()), "no read used it");
        let entries = ["a", "b", "c", "d"].map(entry);
        let files = OpenFiles::new(2);
        files.keep(&entries[0], &open());
        files.keep(&entries[1], &open());
        assert!(entries[0].file().is_some(), "read just now");
        files.keep(&entries[2], &open());
        let is_open = |i: usize| entries[i].file().is_some();
        assert_eq!([0, 1, 2].map(is_open), [true, false, true]);
        files.keep(&entries[3], &open());
        assert_eq!((0..4).filter(|&i| is_open(i)).count(), 2);
    }

    #[test]
    fn versions_that_left_do_not_count() {
        let files = OpenFiles::new(1);
        for i in 0..10 {
            let gone = entry(&i.to_string());
            files.keep(&gone, &Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap())));
        }
        assert!(files.queue.lock().len() <= 2);
    }
}
