//! Reads that wait for the disk, many at once, on one thread with io_uring.
//!
//! Enters: a read whose sectors are in the index, and whose file is open. Leaves: its block, verified by checksums; this thread calls the
//! reader's callback. A failed read is repeated by a thread of the crew, which may wait. Where the system refuses io_uring, the crew does
//! all reads.
#![expect(unsafe_code, reason = "the kernel writes into memory after the call: fence 5 of ci/tidy/fences.md")]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
#[cfg(test)]
use std::os::fd::{FromRawFd as _, OwnedFd};

use crossbeam::channel::{Receiver, RecvError};
use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use super::bell::Bell;
use super::crew::{Crew, Work};
use super::later::Job;
use super::read::Reading;
use super::store::Store;
use super::waits::Ticket;
use crate::buffer::BlockMut;

/// Most reads in flight; others wait in the queue. Doubling it helps an array of disks, and doubles the memory that a hanging disk may
/// hold.
pub(super) const DEPTH: u32 = 48;
/// The number of the bell's entry, beside the numbers of reads.
const BELL: u64 = u64::MAX;
/// The event "can be read" of poll(2).
const POLLIN: u32 = 1;

/// The features of io_uring that this file needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Features {
    /// Whether the kernel keeps completions that do not fit into the queue.
    keeps_all: bool,
    /// Whether the kernel polls a pipe without a thread (5.7).
    polls: bool,
}

/// Decides whether reads use io_uring, by the kernel's answer to the set-up. The error is the reason why not.
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

/// The outcome of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// All bytes were read.
    Whole,
    /// The disk failed, the file may be cut off, or this kernel's ring may be faulty: a plain read decides.
    Unclear,
}

/// The outcome of a read of `len` bytes, by the result in its completion.
fn outcome(result: i32, len: usize) -> Outcome {
    match usize::try_from(result) {
        Ok(n) if n == len => Outcome::Whole,
        Ok(_) => Outcome::Unclear,
        Err(_) => Outcome::Unclear,
    }
}

/// Limits a ring to the operations that this file requests. No filter of system calls sees the operations of a ring, such as opening a
/// socket, so an intruder in a sandboxed engine could otherwise use them.
fn limited(ring: io::Result<IoUring>) -> io::Result<IoUring> {
    let ring = ring?;
    let mut allowed = [opcode::Readv::CODE, opcode::PollAdd::CODE].map(Restriction::sqe_op);
    ring.submitter().register_restrictions(&mut allowed)?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

/// Sets up a ring for this thread.
///
/// # Errors
/// The reason why there is none.
pub(super) fn set_up() -> Result<IoUring, &'static str> {
    // Completions are handled when this thread waits for them, not in the midst of other work (6.1). The kernel closes a ring at exec;
    // `dontfork` unmaps the memory that a forked child could share.
    let mut plain = IoUring::builder();
    plain.dontfork();
    let mut own = plain.clone();
    let own = limited(own.setup_single_issuer().setup_defer_taskrun().setup_r_disabled().build(2 * DEPTH));
    let older = |_| limited(plain.clone().setup_r_disabled().build(2 * DEPTH));
    // Linux before 5.10 has no limited ring, and no landlock that would confine an engine.
    let oldest = |e: io::Error| match Errno::from_io_error(&e) {
        Some(Errno::INVAL) => plain.build(2 * DEPTH),
        _ => Err(e),
    };
    let ring = own.or_else(older).or_else(oldest).map_err(|e| {
        decide(Err(Errno::from_io_error(&e).unwrap_or(Errno::IO))).err().unwrap_or("the system refused it")
    })?;
    let params = ring.params();
    decide(Ok(Features { keeps_all: params.is_feature_nodrop(), polls: params.is_feature_fast_poll() }))?;
    Ok(ring)
}

/// Carries out reads until their queue ends or the ring fails. After a failure the reads in flight are answered as late, and the queued
/// ones stay in the queue.
pub(super) fn run(ring: IoUring, store: &Store, crew: &Crew, queue: &Receiver<Job>, bell: &Bell) {
    let mut air = Air::new(ring);
    let mut landed = Vec::new();
    let mut is_polled = false;
    loop {
        // Without reads in flight the thread does not wait in the ring: the kernel would count that as waiting for a disk.
        if air.is_empty() {
            match queue.recv() {
                Ok(job) => air.take_off(job),
                Err(RecvError) => return,
            }
        }
        // This comes before the last check of the queue: a later put rings.
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
                "cache: io_uring failed: {error}; reads that wait for the disk take a thread each from now on, which is slower"
            );
            return;
        }
        bell.wakes();
        for (number, result) in landed.drain(..) {
            if number == BELL {
                bell.silence();
                is_polled = false;
            } else {
                air.land(store, crew, number as usize, result);
            }
        }
    }
}

/// A read in flight. Its memory stays in place, whatever happens, until the kernel has reported the read's end.
struct Flight {
    reading: Reading,
    into: BlockMut,
    pads: Vec<u8>,
    slices: [Slice; 3],
    ticket: Ticket,
}

/// A `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Slice {
    at: *mut u8,
    len: usize,
}

/// The reads in flight.
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

    /// Starts a read. It goes to the kernel with the next wait.
    fn take_off(&mut self, job: Job) {
        let Job { reading, ticket } = job;
        // The caller of a late read has its answer already. A free number exists: `run` takes a read only if the ring is not full.
        let Some(Some(into)) = ticket.begin() else { return };
        let Some(number) = self.free.pop() else { return };
        let pads = reading.span().pads();
        let none = Slice { at: std::ptr::null_mut(), len: 0 };
        let flight = Box::new(Flight { reading, into, pads, slices: [none; 3], ticket });
        // The flight moves into its place before any pointer into it exists.
        let Flight { reading, into, pads, slices, .. } = &mut **self.flights[number].insert(flight);
        let parts = reading.span().slices(into.spare(), pads);
        *slices = parts.map(|mut part| Slice { at: part.as_mut_ptr(), len: part.len() });
        let file = types::Fd(reading.file.as_raw_fd());
        let entry = opcode::Readv::new(file, slices.as_ptr().cast(), slices.len() as u32)
            .offset(reading.span().at())
            .build()
            .user_data(number as u64);
        // SAFETY: the file, the slices and the memory that they name belong to the flight. It lies in a box of its own, which `land` frees
        // after the kernel has completed this entry, and which `drop` leaks if it has not.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            // This never happens: the queue has twice as many entries as reads can be in flight. The kernel has not seen the entry.
            self.free.push(number);
            self.flights[number] = None;
        }
    }

    /// Adds a poll of the bell. False if the submission queue is full.
    fn poll(&mut self, bell: &Bell) -> bool {
        let entry = opcode::PollAdd::new(types::Fd(bell.as_fd().as_raw_fd()), POLLIN).build().user_data(BELL);
        // SAFETY: it names no memory.
        unsafe { self.ring.submission().push(&entry).is_ok() }
    }

    /// Waits for at least one completion, of a read or the bell, and adds the completions to the list.
    fn wait(&mut self, landed: &mut Vec<(u64, i32)>) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            // The completion queue is full, or a signal came.
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::INTR | Errno::BUSY | Errno::AGAIN)) => {}
            Err(e) => return Err(e),
        }
        landed.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        Ok(())
    }

    /// Completes a read: compares its bytes with their checksums and passes them to the reader. A failed read, or one with wrong bytes,
    /// goes to a thread of the crew, which may wait and drops damaged files.
    fn land(&mut self, store: &Store, crew: &Crew, number: usize, result: i32) {
        let Some(flight) = self.flights.get_mut(number).and_then(Option::take) else { return };
        self.free.push(number);
        let Flight { reading, mut into, pads, ticket, .. } = *flight;
        let is_whole = outcome(result, reading.span().len()) == Outcome::Whole;
        if is_whole && store.is_sound(&reading, into.spare(), &pads) {
            store.count_get(ticket.since(), true);
            return ticket.read(into, true);
        }
        if let Err(Work::Again(job, into)) = crew.put(Work::Again(Job { reading, ticket }, into)) {
            store.count_get(job.ticket.since(), false);
            job.ticket.read(into, false);
        }
    }
}

impl Drop for Air {
    fn drop(&mut self) {
        // The kernel may still write to the memory of reads in flight: that memory is never used again.
        for flight in self.flights.iter_mut().filter_map(Option::take) {
            Box::leak(flight).ticket.give_up();
        }
    }
}

/// A ring whose descriptor is another file's: each call on it fails.
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

    /// An intruder in the engine would try to open a socket by the ring, which the filter of system calls does not see.
    #[test]
    fn a_ring_opens_neither_sockets_nor_files() {
        let Ok(mut ring) = set_up() else { return };
        let path = c"/etc/passwd";
        let socket = opcode::Socket::new(rustix::net::AddressFamily::UNIX.as_raw().into(), 1, 0).build();
        let open = opcode::OpenAt::new(types::Fd(rustix::fs::CWD.as_raw_fd()), path.as_ptr()).build();
        for entry in [socket, open] {
            // SAFETY: the path outlives the call, which is done when `submit_and_wait` returns.
            unsafe { ring.submission().push(&entry) }.unwrap();
            ring.submit_and_wait(1).unwrap();
            let done = ring.completion().next().unwrap();
            assert_eq!(done.result(), -Errno::ACCESS.raw_os_error());
        }
    }

    #[test]
    fn a_short_read_is_not_the_blocks_fault_before_a_plain_read_says_so() {
        assert_eq!(outcome(8192, 8192), Outcome::Whole);
        for short in [0, 1, 8191] {
            assert_eq!(outcome(short, 8192), Outcome::Unclear, "{short}");
        }
        for odd in [
            Errno::IO,
            Errno::AGAIN,
            Errno::INTR,
            Errno::CANCELED,
            Errno::OPNOTSUPP,
            Errno::INVAL,
            Errno::NOMEM,
        ] {
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
