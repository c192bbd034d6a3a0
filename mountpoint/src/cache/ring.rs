//! Reads that wait for the disk, many at once, on one thread with io_uring.
//!
//! Enters: a read whose sectors are in the index. Leaves: its block, verified by checksums, or nothing; this thread calls the reader's
//! callback. Where the system refuses io_uring, blocking threads do the reads instead.
#![expect(unsafe_code, reason = "the kernel writes into memory after the call: fence 5 of ci/tidy/fences.md")]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
#[cfg(test)]
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::time::Instant;

use crossbeam::channel::{Receiver, RecvError};
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use super::Later;
use super::bell::Bell;
use super::later::{Job, answer};
use super::read::Reading;
use super::store::Store;
use crate::buffer::BlockMut;

/// Reads that the disk has at once; more wait in the queue. Doubling it helps disks that are many behind one name.
pub(super) const DEPTH: u32 = 64;
/// Names the bell among the reads, which are numbered.
const BELL: u64 = u64::MAX;
/// What poll(2) calls "can be read".
const POLLIN: u32 = 1;

/// What of a kernel's io_uring this file needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Features {
    /// No completion is lost.
    keeps_all: bool,
    /// A pipe is waited for without a thread (5.7).
    polls: bool,
}

/// Whether waiting reads go by io_uring, from the answer to setting it up; if not, why.
fn decide(answer: Result<Features, Errno>) -> Result<(), &'static str> {
    match answer {
        Ok(Features { keeps_all: true, polls: true }) => Ok(()),
        Ok(_) => Err("this kernel's io_uring is too old; Linux 5.7 is needed"),
        Err(Errno::NOSYS) => Err("this kernel has no io_uring"),
        Err(Errno::PERM | Errno::ACCESS) => {
            Err("not allowed here, by a seccomp profile or by kernel.io_uring_disabled")
        }
        Err(Errno::NOMEM) => Err("no memory for it; see ulimit -l"),
        Err(Errno::MFILE | Errno::NFILE) => Err("no descriptor left for it"),
        Err(_) => Err("the system refused it"),
    }
}

/// How a read ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// Every byte is there.
    Whole,
    /// The disk failed.
    Failed(Errno),
    /// The file may be cut off, or the ring of this kernel may not be what it should: a plain read decides.
    Unclear,
}

/// What a completion says about a read of `len` bytes.
fn outcome(result: i32, len: usize) -> Outcome {
    match usize::try_from(result) {
        Ok(n) if n == len => Outcome::Whole,
        Ok(_) => Outcome::Unclear,
        Err(_) if result == -Errno::IO.raw_os_error() => Outcome::Failed(Errno::IO),
        Err(_) => Outcome::Unclear,
    }
}

/// A ring for this thread.
///
/// # Errors
/// Why there is none.
pub(super) fn set_up() -> Result<IoUring, &'static str> {
    // Completions are handled when this thread waits for them, not in the midst of other work (6.1). The kernel closes a ring at exec; what a
    // child that only forks could share is unmapped.
    let own = IoUring::builder().dontfork().setup_single_issuer().setup_defer_taskrun().build(2 * DEPTH);
    let ring = own.or_else(|_| IoUring::builder().dontfork().build(2 * DEPTH)).map_err(|e| {
        decide(Err(Errno::from_io_error(&e).unwrap_or(Errno::IO))).err().unwrap_or("the system refused it")
    })?;
    let params = ring.params();
    decide(Ok(Features { keeps_all: params.is_feature_nodrop(), polls: params.is_feature_fast_poll() }))?;
    Ok(ring)
}

/// Carries out jobs until their queue ends, or the ring fails. Then what it has under way is not given, and the rest is in the queue still.
pub(super) fn run(ring: IoUring, store: &Store, queue: &Receiver<Job>, bell: &Bell) {
    let mut air = Air::new(ring);
    let mut landed = Vec::new();
    let mut is_polled = false;
    loop {
        // Without reads under way it does not wait in the ring: the kernel would count that as waiting for a disk.
        if air.is_empty() {
            match queue.recv() {
                Ok(job) => air.take_off(job),
                Err(RecvError) => return,
            }
        }
        // Before the last look into the queue: what comes after it rings.
        bell.sleeps();
        while !air.is_full() {
            match queue.try_recv() {
                Ok(job) => air.take_off(job),
                Err(_) => break,
            }
        }
        is_polled = is_polled || air.poll(bell);
        if let Err(error) = air.wait(&mut landed) {
            tracing::error!(
                "cache: io_uring failed: {error}; reads that wait for the disk wait one after the other from now on"
            );
            return;
        }
        bell.wakes();
        for (number, result) in landed.drain(..) {
            if number == BELL {
                bell.silence();
                is_polled = false;
            } else {
                air.land(store, number as usize, result);
            }
        }
    }
}

/// A read that the kernel works on. It stays where it is, whatever happens, until the kernel has said that it is done.
struct Flight {
    reading: Reading,
    into: BlockMut,
    pads: Vec<u8>,
    slices: [Slice; 3],
    started: Instant,
    done: Option<Later>,
}

/// A `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Slice {
    at: *mut u8,
    len: usize,
}

/// The reads under way.
struct Air {
    ring: IoUring,
    flights: Vec<Option<Box<Flight>>>,
    free: Vec<usize>,
}

impl Air {
    fn new(ring: IoUring) -> Self {
        let depth = DEPTH as usize;
        Self { ring, flights: (0..depth).map(|_| None).collect(), free: (0..depth).rev().collect() }
    }

    fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.flights.len()
    }

    /// Begins a read; goes to the kernel with the next wait.
    fn take_off(&mut self, job: Job) {
        let Some(number) = self.free.pop() else { return };
        let Job { reading, into, started, done } = job;
        let pads = reading.span.pads();
        let none = Slice { at: std::ptr::null_mut(), len: 0 };
        let flight = Box::new(Flight { reading, into, pads, slices: [none; 3], started, done: Some(done) });
        // In its place before any pointer into it exists.
        let Flight { reading, into, pads, slices, .. } = &mut **self.flights[number].insert(flight);
        let parts = reading.span.slices(into.spare(), pads);
        *slices = parts.map(|mut part| Slice { at: part.as_mut_ptr(), len: part.len() });
        let file = types::Fd(reading.file.as_raw_fd());
        let entry = opcode::Readv::new(file, slices.as_ptr().cast(), slices.len() as u32)
            .offset(reading.span.at())
            .build()
            .user_data(number as u64);
        // SAFETY: the file, the slices and the memory that they name belong to the flight. It lies in a box of its own, which `land` frees
        // after the kernel has completed this entry, and which `drop` leaks if it has not.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            // Never: the queue holds twice as many as fly. The kernel has not seen it.
            self.free.push(number);
            answer(self.flights[number].take().and_then(|mut flight| flight.done.take()), None);
        }
    }

    /// Has the bell heard; true unless there is no room for that now.
    fn poll(&mut self, bell: &Bell) -> bool {
        let entry = opcode::PollAdd::new(types::Fd(bell.as_fd().as_raw_fd()), POLLIN).build().user_data(BELL);
        // SAFETY: it names no memory.
        unsafe { self.ring.submission().push(&entry).is_ok() }
    }

    /// Waits until something has landed, and adds it to the list.
    fn wait(&mut self, landed: &mut Vec<(u64, i32)>) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            // Landed entries are in the way, or a signal came.
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::INTR | Errno::BUSY | Errno::AGAIN)) => {}
            Err(e) => return Err(e),
        }
        landed.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        Ok(())
    }

    /// A read is done: its bytes are compared, and the reader gets them.
    fn land(&mut self, store: &Store, number: usize, result: i32) {
        let Some(mut flight) = self.flights.get_mut(number).and_then(Option::take) else { return };
        self.free.push(number);
        let Flight { reading, into, pads, started, done, .. } = &mut *flight;
        let is_sound = match outcome(result, reading.span.len()) {
            Outcome::Whole => store.end(reading, Ok((&*into.spare(), &**pads))),
            Outcome::Failed(errno) => store.end(reading, Err(&errno.into())),
            Outcome::Unclear => store.finish(reading, into.spare()),
        };
        store.count_get(*started, is_sound);
        let done = done.take();
        answer(done, is_sound.then_some(flight.into));
    }
}

impl Drop for Air {
    fn drop(&mut self) {
        // The kernel may still write to the memory of reads in flight: that memory is never used again.
        for flight in self.flights.iter_mut().filter_map(Option::take) {
            let flight = Box::leak(flight);
            answer(flight.done.take(), None);
        }
    }
}

/// A ring that the kernel does not know any more.
#[cfg(test)]
pub(super) fn broken() -> Option<IoUring> {
    let ring = set_up().ok()?;
    let other = std::fs::File::open("/dev/null").ok()?;
    // SAFETY: the ring owns its descriptor, and keeps it.
    let mut of_ring = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(ring.as_raw_fd()) });
    rustix::io::dup2(&other, &mut of_ring).ok()?;
    Some(ring)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_closed_at_exec() {
        let Ok(ring) = set_up() else { return };
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", ring.as_raw_fd())).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
        assert_ne!(flags & rustix::fs::OFlags::CLOEXEC.bits(), 0, "{info}");
    }

    #[test]
    fn a_short_read_is_not_the_blocks_fault_before_a_plain_read_says_so() {
        assert_eq!(outcome(8192, 8192), Outcome::Whole);
        for short in [0, 1, 8191] {
            assert_eq!(outcome(short, 8192), Outcome::Unclear, "{short}");
        }
        assert_eq!(outcome(-Errno::IO.raw_os_error(), 8192), Outcome::Failed(Errno::IO));
        for odd in [Errno::AGAIN, Errno::INTR, Errno::CANCELED, Errno::OPNOTSUPP, Errno::INVAL, Errno::NOMEM]
        {
            assert_eq!(outcome(-odd.raw_os_error(), 8192), Outcome::Unclear, "{odd}");
        }
    }

    #[test]
    fn io_uring_is_used_where_it_suffices_and_each_refusal_has_a_reason() {
        let has = |keeps_all, polls| Ok(Features { keeps_all, polls });
        assert_eq!(decide(has(true, true)), Ok(()));
        assert!(decide(has(true, false)).unwrap_err().contains("5.7"));
        assert!(decide(has(false, true)).is_err());
        assert!(decide(Err(Errno::PERM)).unwrap_err().contains("seccomp"));
        assert!(decide(Err(Errno::NOSYS)).unwrap_err().contains("kernel"));
        for errno in [Errno::ACCESS, Errno::NOMEM, Errno::MFILE, Errno::INVAL, Errno::IO] {
            assert!(decide(Err(errno)).is_err(), "{errno}");
        }
    }
}
