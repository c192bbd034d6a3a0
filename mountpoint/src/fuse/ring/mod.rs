//! FUSE over io_uring (Linux 6.18.3 and later): requests and answers through memory shared with the kernel, one queue and one thread for
//! each processor.
//!
//! The kernel hands a request to the queue of the processor on which it was made, and one system call takes answers and brings the next
//! requests. INIT, FORGET, INTERRUPT and the engine's own notifications stay on `/dev/fuse`. If the system refuses any part of this
//! transport, the mount continues with `/dev/fuse`, and one line of the log gives the reason.

mod entries;
mod queue;
pub(super) mod risk;
mod warm;

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, bounded};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

use self::entries::{Entries, Landed};
use self::queue::{Failure, Queue, meaning};
use self::warm::Warm;
use super::TRANSFER_MAX;
use super::capability;
use super::channel::Channel;
use super::inbox::Inbox;
use super::operations::Operations;
use crate::sync::Arc;

/// Most processors of a machine for which rings are used, because each takes a thread. A larger machine uses `/dev/fuse`.
const QUEUES_MAX: usize = 128;
/// Number of requests that can wait for their answers, in all queues. Each has an address range for a payload, and memory only while it is
/// large. The kernel holds further requests back. Doubling it doubles how many requests may wait for a hanging store before others have to
/// wait.
const ENTRIES: usize = 1024;
/// Least and largest number of entries of one queue: a program that runs on one processor must not be held up by a few slow reads.
const ENTRIES_OF_QUEUE: std::ops::RangeInclusive<usize> = 16..=256;

const PANICKED: &str = "its thread panicked";

/// Threads with a ring each, which wait until INIT is answered.
pub(super) struct Rings<O> {
    queues: Vec<Prepared<O>>,
}

struct Prepared<O> {
    thread: JoinHandle<io::Result<()>>,
    inbox: Arc<Inbox>,
    go: Sender<Arc<Channel<O>>>,
    reports: Receiver<Result<(), Refusal>>,
}

/// The reason why there is no ring.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) why: String,
    /// Whether the kernel got the refusal, and continues with `/dev/fuse`. If not, it waits for rings.
    pub(super) is_known: bool,
}

impl Refusal {
    /// A refusal that the kernel has not seen.
    fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_known: false }
    }
}

/// The shape of each of this many queues, or the reason why there can be none.
fn shape(queues: usize, page: usize) -> Result<entries::Shape, String> {
    if queues > QUEUES_MAX {
        return Err(format!("this machine may have {queues} processors, and {QUEUES_MAX} is the most"));
    }
    let entries = (ENTRIES / queues.max(1)).clamp(*ENTRIES_OF_QUEUE.start(), *ENTRIES_OF_QUEUE.end());
    // The kernel counts the largest request in its own pages.
    Ok(entries::Shape { entries, payload: TRANSFER_MAX as usize / 4096 * page.max(4096) })
}

/// The number of the kernel's queues: one for each possible processor (`/sys/devices/system/cpu/possible`).
fn queues(possible: &str) -> Option<usize> {
    let last = possible.trim().strip_prefix('0')?;
    match last.strip_prefix('-') {
        Some(last) => last.parse().ok().and_then(|last: usize| last.checked_add(1)),
        None => last.is_empty().then_some(1),
    }
}

/// Whether a kernel of this release gives all pages back: from 6.14 to 6.18.2 it keeps a page of each payload ("fuse: missing copy_finish
/// in fuse-over-io-uring argument copies").
pub(super) fn is_sound(release: &str) -> bool {
    capability::version(release) >= [6, 18, 3]
}

/// The reason why there is no ring, for the log.
fn reason(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            "io_uring is not allowed here, by a seccomp profile, a security module or kernel.io_uring_disabled".to_owned()
        }
        Some(Errno::NOSYS) => "this kernel has no io_uring".to_owned(),
        Some(Errno::INVAL) => "this kernel's io_uring is too old".to_owned(),
        _ => error.to_string(),
    }
}

impl<O: Operations> Rings<O> {
    /// Creates a ring for each processor, before INIT is answered.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(super) fn prepare(device: BorrowedFd<'_>) -> Result<Self, String> {
        let probe = || Entries::probe(device).map_err(|error| reason(&error));
        std::thread::scope(|scope| scope.spawn(probe).join().unwrap_or_else(|_| Err(PANICKED.to_owned())))?;
        let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible");
        let queues = possible.ok().and_then(|possible| queues(&possible));
        let queues = queues.ok_or("the number of processors is not known")?;
        Self::prepare_shaped(queues, shape(queues, rustix::param::page_size())?)
    }

    fn prepare_shaped(queues: usize, shape: entries::Shape) -> Result<Self, String> {
        let start = |number: usize| {
            let inbox = Arc::<Inbox>::default();
            let (go, gone) = bounded(1);
            let (report, reports) = bounded(1);
            let of_thread = Arc::clone(&inbox);
            let thread = std::thread::Builder::new()
                .name(format!("fuse-ring-{number}"))
                .spawn(move || run(number, shape, of_thread, &gone, &report));
            let thread = thread.map_err(|error| format!("no thread: {error}"))?;
            Ok(Prepared { thread, inbox, go, reports })
        };
        // Started threads end when their sender is dropped.
        let queues = (0..queues).map(start).collect::<Result<Vec<_>, String>>()?;
        for queue in &queues {
            queue.reports.recv().map_err(|_| PANICKED)?.map_err(|refusal| refusal.why)?;
        }
        Ok(Self { queues })
    }

    /// The inboxes of all queues, to end them.
    pub(super) fn inboxes(&self) -> Vec<Arc<Inbox>> {
        self.queues.iter().map(|queue| Arc::clone(&queue.inbox)).collect()
    }

    /// Begins to serve, after the answer to INIT said that requests may come by rings.
    ///
    /// # Errors
    /// The reason why there is no ring.
    pub(super) fn start(self, channel: &Arc<Channel<O>>) -> Result<Vec<JoinHandle<io::Result<()>>>, Refusal> {
        for queue in &self.queues {
            // A thread that is gone reports nothing.
            let _ = queue.go.send(Arc::clone(channel));
        }
        let report =
            |queue: &Prepared<O>| queue.reports.recv().unwrap_or_else(|_| Err(Refusal::new(PANICKED)));
        let refusals = self.queues.iter().map(report).filter_map(Result::err);
        // One refusal that the kernel has seen is enough.
        let refused = refusals.reduce(|one, other| if other.is_known { other } else { one });
        if refused.is_some() {
            self.queues.iter().for_each(|queue| queue.inbox.close());
        }
        let threads = self.queues.into_iter().map(|queue| queue.thread);
        match refused {
            Some(refusal) => {
                for thread in threads {
                    let _ = thread.join();
                }
                Err(refusal)
            }
            None => Ok(threads.collect()),
        }
    }
}

/// The main function of a queue's thread: reports its ring, waits until INIT is answered, reports whether the kernel accepted the ring, and
/// serves.
fn run<O: Operations>(
    number: usize,
    shape: entries::Shape,
    inbox: Arc<Inbox>,
    go: &Receiver<Arc<Channel<O>>>,
    report: &Sender<Result<(), Refusal>>,
) -> io::Result<()> {
    let mut entries = match Entries::new(number as u16, shape) {
        Ok(entries) => entries,
        Err(error) => {
            let _ = report.send(Err(Refusal::new(reason(&error))));
            return Ok(());
        }
    };
    // The programs whose requests come here run on this processor: their memory is near, and no other processor has to wake.
    let mut here = CpuSet::new();
    here.set(number);
    if let Err(error) = sched_setaffinity(None, &here) {
        tracing::debug!("the FUSE thread of processor {number} may run on any processor: {error}");
    }
    let _ = report.send(Ok(()));
    let Ok(channel) = go.recv() else { return Ok(()) };
    let mut landed = Vec::new();
    let registered = entries.use_device(channel.device.as_fd()).and_then(|()| entries.register(&mut landed));
    let failed = landed.iter().find_map(|landed| match landed {
        Landed::Failed(_, error) => Some(*error),
        Landed::Request(_) => None,
    });
    let failed = failed.or_else(|| registered.err().and_then(|error| Errno::from_io_error(&error)));
    landed.retain(|landed| matches!(landed, Landed::Request(_)));
    let has_entries = entries.any_taken() || !landed.is_empty();
    match failed {
        // A connection that is over already ends as it does later.
        Some(error) if !has_entries && meaning(error) != Failure::Over => {
            let why = format!("the kernel refused its memory: {error}");
            let _ = report.send(Err(Refusal { why, is_known: entries.refuse() }));
            return Ok(());
        }
        _ => {}
    }
    let _ = report.send(Ok(()));
    let warm = Warm::new(channel.queues());
    Queue::new(channel, entries, inbox, warm).run(landed)
}

#[cfg(test)]
pub(super) mod tests {
    pub(in super::super) mod refused;

    use super::*;

    #[test]
    fn there_is_a_queue_for_each_processor_that_may_come() {
        assert_eq!([queues("0\n"), queues("0-1\n"), queues("0-127\n")], [Some(1), Some(2), Some(128)]);
        for odd in ["", "1-3", "0-3,8-11", "0-", "x", "0x", "0-18446744073709551615"] {
            assert_eq!(queues(odd), None, "{odd}");
        }
    }

    #[test]
    fn all_queues_together_have_a_bounded_and_sufficient_number_of_entries() {
        let entries = |queues| shape(queues, 4096).unwrap().entries;
        assert_eq!([1, 2, 4, 8, 64, 128].map(entries), [256, 256, 256, 128, 16, 16]);
        assert!(shape(QUEUES_MAX + 1, 4096).is_err());
        assert_eq!(shape(2, 4096).unwrap().payload, TRANSFER_MAX as usize);
        assert_eq!(shape(2, 65536).unwrap().payload, 16 * TRANSFER_MAX as usize);
    }

    #[test]
    fn a_kernel_is_sound_from_6_18_3_on() {
        for sound in ["6.18.3", "6.18.44-fc-v669", "6.19.0-rc1", "6.19-rc1", "7.0.0+deb14-amd64"] {
            assert!(is_sound(sound), "{sound}");
        }
        for leaking in ["6.14.0-27-generic", "6.17.13", "6.18", "6.18.0-rc7", "6.18.2-1", "5.10.0", ""] {
            assert!(!is_sound(leaking), "{leaking}");
        }
    }

    #[test]
    fn every_refusal_of_io_uring_has_a_reason() {
        assert!(reason(&Errno::PERM.into()).contains("seccomp"));
        assert!(reason(&Errno::NOSYS.into()).contains("kernel"));
        assert!(reason(&Errno::INVAL.into()).contains("old"));
        assert!(!reason(&Errno::NOMEM.into()).is_empty());
    }
}
