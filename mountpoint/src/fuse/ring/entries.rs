//! The entries of one queue: memory through which the kernel hands over requests and takes answers, and the io_uring that moves them.
//!
//! Enters: an answer. Leaves: a request. An entry belongs either to the kernel or to the engine; only the thread that made the ring uses
//! it, and the kernel touches the memory of entries only while that thread is inside io_uring_enter(2).
#![expect(
    unsafe_code,
    reason = "memory that the kernel fills, and its commands: fence 6 of ci/tidy/fences.md"
)]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;

use super::super::request::HEADER_LEN;
use crate::buffer::Scratch;

/// `FUSE_IO_URING_CMD_REGISTER` and `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// `IORING_REGISTER_FILES`.
const REGISTER_FILES: u8 = 2;

/// `struct fuse_uring_req_header`: the header of request or reply, the first argument, and facts about the entry.
mod layout {
    pub(super) const ARGUMENT: usize = 128;
    pub(super) const COMMIT_ID: usize = 264;
    pub(super) const PAYLOAD_LEN: usize = 272;
    pub(super) const LEN: usize = 288;
    /// The offset of two slices in our memory, after the header: the kernel finds header and payload there when the entry is registered.
    pub(super) const SLICES: usize = LEN;
    /// The size of header and slices, in whole lines of the processor's cache.
    pub(super) const STRIDE: usize = 320;
}

/// Most commands that wait for the next call of the kernel; a further command sends them at once.
const COMMANDS: u32 = 64;
/// Longest wait for the kernel's answer whether it would take an entry; after it the mount uses `/dev/fuse`. A working kernel answers at
/// once.
const PROBE_WITHIN: Duration = Duration::from_secs(5);
/// The number of the bell, beside the numbers of entries.
const BELL: u64 = u64::MAX;
/// `FUTEX2_SIZE_U32 | FUTEX2_PRIVATE`.
const FUTEX: u32 = 2 | 128;
/// `IORING_ENTER_GETEVENTS`, `_EXT_ARG`, `_NO_IOWAIT`.
const GET_EVENTS: u32 = 1;
const EXT_ARG: u32 = 1 << 3;
const NO_IOWAIT: u32 = 1 << 7;

/// The number of entries of a queue, and the length of a payload.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Shape {
    pub(super) entries: usize,
    /// Bytes of a payload's address range: whole pages, so the memory of one payload can be returned without its neighbour's.
    pub(super) payload: usize,
}

impl Shape {
    /// Bytes of the headers and slices, rounded up to a page, where the first payload begins.
    fn headers(self) -> usize {
        (self.entries * layout::STRIDE).next_multiple_of(rustix::param::page_size())
    }

    /// Bytes of all entries.
    fn len(self) -> usize {
        self.headers() + self.entries * self.payload
    }
}

/// A request in the kernel's layout.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    pub(super) header: &'a [u8],
    /// The first argument; the header says its length.
    pub(super) argument: &'a [u8],
    pub(super) payload: &'a [u8],
}

/// The outcome of an entry's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landed {
    /// The entry has a request.
    Request(usize),
    /// The entry's command failed.
    Failed(usize, Errno),
}

/// All entries of a queue.
pub(super) struct Entries {
    ring: IoUring<squeue::Entry128>,
    queue: u16,
    shape: Shape,
    /// Headers and slices, then payloads. The memory is never unmapped, because the kernel keeps the addresses. No slice covers all of
    /// the memory, only entries that the engine owns.
    memory: ManuallyDrop<Scratch>,
    /// The owner of each entry: true for the engine.
    ours: Vec<bool>,
    hears_bell: bool,
    /// The flags of io_uring_enter(2). Since 6.15 one of them says that a wait is not a wait for a disk.
    flags: u32,
}

/// `struct io_uring_getevents_arg`.
#[repr(C)]
struct EventsArg {
    mask: u64,
    mask_len: u32,
    padding: u32,
    timeout: u64,
}

/// `struct iovec`.
#[repr(C)]
struct Slice {
    at: *mut u8,
    len: usize,
}

/// Limits a ring to the operations that this file requests. No filter of system calls sees the operations of a ring, such as opening a
/// socket, so an intruder in a sandboxed engine could otherwise use them.
fn limit(ring: &IoUring<squeue::Entry128>) -> io::Result<()> {
    let mut allowed = [
        Restriction::sqe_op(opcode::UringCmd80::CODE),
        Restriction::sqe_op(opcode::FutexWait::CODE),
        Restriction::sqe_flags_allowed(squeue::Flags::FIXED_FILE.bits()),
        Restriction::register_op(REGISTER_FILES),
    ];
    ring.submitter().register_restrictions(&mut allowed)?;
    ring.submitter().register_enable_rings()
}

impl Entries {
    /// Creates a ring for this thread, and maps memory without touching it.
    ///
    /// # Errors
    /// The errors of io_uring_setup(2) and mmap(2).
    pub(super) fn new(queue: u16, shape: Shape) -> io::Result<Self> {
        let ring = IoUring::<squeue::Entry128>::builder()
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize((2 * shape.entries as u32).max(2 * COMMANDS))
            .setup_r_disabled()
            .build(COMMANDS)?;
        limit(&ring)?;
        let mut this = Self {
            ring,
            queue,
            shape,
            // Small requests touch one page of each payload; a huge page would take two whole payloads, so the mapping has none.
            memory: ManuallyDrop::new(Scratch::new(shape.len())?),
            ours: vec![true; shape.entries],
            hears_bell: false,
            flags: GET_EVENTS | EXT_ARG | NO_IOWAIT,
        };
        if this.enter(false, Some(Duration::ZERO)).is_err_and(|error| error == Errno::INVAL) {
            this.flags &= !NO_IOWAIT;
        }
        Ok(this)
    }

    fn payload_at(&self, entry: usize) -> *mut u8 {
        let at = self.shape.headers() + entry * self.shape.payload;
        // SAFETY: within the mapping for each entry that `ours` has, and the callers have looked there.
        unsafe { self.memory.at().as_ptr().add(at) }
    }

    fn header_at(&self, entry: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.memory.at().as_ptr().add(entry * layout::STRIDE) }
    }

    fn is_ours(&self, entry: usize) -> bool {
        self.ours.get(entry).is_some_and(|ours| *ours)
    }

    /// The header of an entry, if the engine owns the entry.
    fn header(&self, entry: usize) -> Option<&[u8]> {
        self.is_ours(entry).then(|| {
            // SAFETY: mapped for as long as the process lives; the entry is ours, and every change borrows all entries mutably.
            unsafe { std::slice::from_raw_parts(self.header_at(entry), layout::LEN) }
        })
    }

    /// The request in an entry, if the engine owns the entry.
    pub(super) fn request(&self, entry: usize) -> Option<Taken<'_>> {
        let header = self.header(entry)?;
        let len = u32_at(header, layout::PAYLOAD_LEN) as usize;
        // SAFETY: as for the header; the kernel said how much of the payload it wrote, and it is no more than there is.
        let payload =
            unsafe { std::slice::from_raw_parts(self.payload_at(entry), len.min(self.shape.payload)) };
        let argument = &header[layout::ARGUMENT..layout::COMMIT_ID - 8];
        Some(Taken { header: &header[..HEADER_LEN], argument, payload })
    }

    /// The number of entries.
    pub(super) fn count(&self) -> usize {
        self.shape.entries
    }

    /// Whether the kernel has an entry.
    pub(super) fn any_taken(&self) -> bool {
        self.ours.contains(&false)
    }

    /// Checks whether this kernel would take entries of this mount. The check uses a separate ring, before INIT is answered: later, FUSE
    /// would not notice a refusal by another part of the kernel (a security module, a seccomp profile), and would wait for rings for ever.
    /// Call this on a thread that ends soon, because the kernel gives that thread one more.
    ///
    /// # Errors
    /// The errors of io_uring, or the kernel's reason to refuse.
    pub(super) fn probe(device: BorrowedFd<'_>) -> io::Result<()> {
        let mut entries = Self::new(0, Shape { entries: 1, payload: 0 })?;
        entries.use_device(device)?;
        entries.offer(0, entries.memory_of(0))?;
        let mut landed = Vec::new();
        entries.enter(true, Some(PROBE_WITHIN))?;
        entries.collect(&mut landed);
        match landed[..] {
            // The kernel took the entry; only the time is over.
            [Landed::Failed(_, Errno::AGAIN)] => Ok(()),
            [Landed::Failed(_, error)] => Err(error.into()),
            _ => Err(io::Error::other("it does not answer")),
        }
    }

    /// Registers the device with the ring.
    ///
    /// # Errors
    /// The errors of io_uring.
    pub(super) fn use_device(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        self.ring.submitter().register_files(&[device.as_raw_fd()])
    }

    /// Gives all entries to the kernel. Refused entries land in `landed`; if the kernel takes no entry, the caller has to call `refuse`.
    ///
    /// # Errors
    /// The errors of io_uring.
    pub(super) fn register(&mut self, landed: &mut Vec<Landed>) -> io::Result<()> {
        for entry in 0..self.shape.entries {
            self.offer(entry, self.memory_of(entry))?;
            self.collect(landed);
        }
        Ok(())
    }

    /// Offers an entry that the kernel has to refuse: the kernel then continues with `/dev/fuse`. False if the refusal is not certain.
    pub(super) fn refuse(&mut self) -> bool {
        let memory = [const { Slice { at: std::ptr::null_mut(), len: 0 } }; 2];
        let offered = self.offer(0, memory);
        let mut landed = Vec::new();
        self.collect(&mut landed);
        offered.is_ok() && landed.contains(&Landed::Failed(0, Errno::INVAL))
    }

    fn memory_of(&self, entry: usize) -> [Slice; 2] {
        [
            Slice { at: self.header_at(entry), len: layout::LEN },
            Slice { at: self.payload_at(entry), len: self.shape.payload },
        ]
    }

    /// Offers an entry with this memory to the kernel.
    fn offer(&mut self, entry: usize, memory: [Slice; 2]) -> io::Result<()> {
        // SAFETY: the place of the slices, within the mapping and aligned; the kernel reads it only while this thread is in io_uring_enter(2).
        let slices = unsafe { self.header_at(entry).add(layout::SLICES).cast::<[Slice; 2]>() };
        // SAFETY: as above.
        unsafe { slices.write(memory) };
        let mut command = self.command(REGISTER, entry, 0, Some(slices as u64));
        // SAFETY: `len` of `struct io_uring_sqe`, 24 bytes from its start, which the crate has no name for; two slices stand there.
        unsafe { (&raw mut command).cast::<u32>().add(6).write(2) };
        self.ours[entry] = false;
        let sent = self.push(command).and_then(|()| self.send_all());
        if sent.is_err() {
            self.ours[entry] = true;
        }
        sent
    }

    fn command(&self, operation: u32, entry: usize, commit_id: u64, slices: Option<u64>) -> squeue::Entry128 {
        // struct fuse_uring_cmd_req: flags, commit_id, qid.
        let mut body = [0; 80];
        body[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        body[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let command = opcode::UringCmd80::new(types::Fixed(0), operation).cmd(body).addr(slices);
        command.build().user_data(entry as u64)
    }

    fn push(&mut self, command: impl Into<squeue::Entry128>) -> io::Result<()> {
        let command = command.into();
        // SAFETY: the memory that it names is never unmapped, and an entry that the kernel has is touched by nobody else.
        if unsafe { self.ring.submission().push(&command) }.is_ok() {
            return Ok(());
        }
        self.send_all()?;
        // SAFETY: as above.
        unsafe { self.ring.submission().push(&command) }.map_err(|_| io::Error::from(Errno::BUSY))
    }

    /// Sends all waiting commands. Tries again while the kernel has no memory for them.
    fn send_all(&mut self) -> io::Result<()> {
        self.enter(false, None)?;
        while self.has_commands() {
            std::thread::yield_now();
            self.enter(false, None)?;
        }
        Ok(())
    }

    /// Answers the request in this entry. The answer goes to the kernel with the next wait, which brings the next request. Returns the
    /// number of bytes in the payload; an answer that is too long becomes EIO.
    ///
    /// # Errors
    /// The errors of io_uring.
    pub(super) fn answer<'a>(
        &mut self,
        entry: usize,
        unique: u64,
        errno: i32,
        slices: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<usize> {
        let Some(header) = self.header(entry) else { return Ok(0) };
        let commit_id = u64::from_ne_bytes(std::array::from_fn(|i| header[layout::COMMIT_ID + i]));
        // SAFETY: the entry is ours, and nobody has borrowed its memory: `self` is borrowed mutably.
        let (header, payload) = unsafe {
            (
                std::slice::from_raw_parts_mut(self.header_at(entry), layout::LEN),
                std::slice::from_raw_parts_mut(self.payload_at(entry), self.shape.payload),
            )
        };
        let (mut errno, mut len) = (errno, 0);
        for slice in slices {
            let Some(room) = payload.get_mut(len..len + slice.len()) else {
                (errno, len) = (Errno::IO.raw_os_error(), 0);
                break;
            };
            // copy: the kernel takes the bytes of an answer from this place alone.
            room.copy_from_slice(slice);
            len += slice.len();
        }
        header[..4].copy_from_slice(&((16 + len) as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&(-errno).to_ne_bytes());
        header[8..16].copy_from_slice(&unique.to_ne_bytes());
        header[layout::PAYLOAD_LEN..][..4].copy_from_slice(&(len as u32).to_ne_bytes());
        self.commit(entry, commit_id)?;
        Ok(len)
    }

    /// Sends the same answer once more, because the kernel did not accept it.
    ///
    /// # Errors
    /// The errors of io_uring.
    pub(super) fn again(&mut self, entry: usize) -> io::Result<()> {
        let Some(header) = self.header(entry) else { return Ok(()) };
        let commit_id = u64::from_ne_bytes(std::array::from_fn(|i| header[layout::COMMIT_ID + i]));
        self.commit(entry, commit_id)
    }

    fn commit(&mut self, entry: usize, commit_id: u64) -> io::Result<()> {
        self.ours[entry] = false;
        let command = self.command(COMMIT_AND_FETCH, entry, commit_id, None);
        self.push(command)
    }

    /// Sends the waiting commands.
    ///
    /// # Errors
    /// The errors of io_uring.
    pub(super) fn submit(&mut self, landed: &mut Vec<Landed>) -> io::Result<()> {
        self.enter(false, None)?;
        self.collect(landed);
        Ok(())
    }

    /// Sends the waiting commands, and waits for a request, for a change of the bell, or for the end of this time.
    ///
    /// # Errors
    /// The errors of io_uring.
    pub(super) fn wait(
        &mut self,
        bell: (&AtomicU32, u32),
        timeout: Option<Duration>,
        landed: &mut Vec<Landed>,
    ) -> io::Result<()> {
        if !self.hears_bell {
            let word = bell.0.as_ptr().cast_const();
            let listen = opcode::FutexWait::new(word, bell.1.into(), u32::MAX.into(), FUTEX).build();
            self.push(listen.user_data(BELL))?;
            self.hears_bell = true;
        }
        self.enter(true, timeout)?;
        self.collect(landed);
        Ok(())
    }

    fn enter(&mut self, waits: bool, timeout: Option<Duration>) -> Result<(), Errno> {
        let timeout = timeout.map(types::Timespec::from);
        let at = timeout.as_ref().map_or(0, |timeout| std::ptr::from_ref(timeout) as u64);
        let arg = EventsArg { mask: 0, mask_len: 8, padding: 0, timeout: at };
        let count = self.ring.submission().len() as u32;
        // SAFETY: the flags say that `arg` is of this type; it and the time live as long as the call. For the commands see `push`.
        match unsafe { self.ring.submitter().enter(count, u32::from(waits), self.flags, Some(&arg)) } {
            Ok(_) => Ok(()),
            // The time is over, landed results must be taken first, or a signal came.
            Err(error) => match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
                Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN => Ok(()),
                errno => Err(errno),
            },
        }
    }

    fn collect(&mut self, landed: &mut Vec<Landed>) {
        for entry in self.ring.completion() {
            if entry.user_data() == BELL {
                self.hears_bell = false;
                continue;
            }
            let number = entry.user_data() as usize;
            if let Some(ours) = self.ours.get_mut(number) {
                *ours = true;
                landed.push(match entry.result() {
                    0.. => Landed::Request(number),
                    error => Landed::Failed(number, Errno::from_raw_os_error(-error)),
                });
            }
        }
    }

    /// Whether commands wait to be sent.
    pub(super) fn has_commands(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Returns the memory of a payload to the kernel; the payload reads as zeros then. Do not call this for a payload with a request or
    /// answer in use.
    pub(super) fn give_back(&mut self, entry: usize) {
        if entry < self.shape.entries {
            // The kernel writes there only while this thread is in io_uring_enter(2).
            let start = self.shape.headers() + entry * self.shape.payload;
            self.memory.let_go_of(start..start + self.shape.payload);
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::super::{QUEUES_MAX, shape};
    use super::*;

    #[test]
    fn a_payload_begins_at_a_page_on_machines_of_any_number_of_processors() {
        let page = rustix::param::page_size();
        for queues in 1..=QUEUES_MAX {
            let shape = shape(queues, page).unwrap();
            assert!(shape.headers() >= shape.entries * layout::STRIDE, "{queues}");
            assert_eq!((shape.headers() % page, shape.payload % page), (0, 0), "{queues}");
        }
    }

    #[test]
    fn a_payload_that_is_given_back_frees_its_memory_and_no_other() {
        // A machine may have 64 processors and more.
        let shape = shape(QUEUES_MAX, rustix::param::page_size()).unwrap();
        let mut entries = match Entries::new(0, shape) {
            Ok(entries) => entries,
            Err(error) => {
                testkit::need(&format!("io_uring ({error})"), false);
                return;
            }
        };
        let ends = [0, shape.payload - 1];
        for entry in 0..3 {
            for at in ends {
                // SAFETY: within the payload, and no entry was offered to the kernel.
                unsafe { entries.payload_at(entry).add(at).write(7) };
            }
        }
        entries.give_back(1);
        for (entry, expected) in [(0, 7), (1, 0), (2, 7)] {
            for at in ends {
                // SAFETY: as above.
                let byte = unsafe { entries.payload_at(entry).add(at).read() };
                assert_eq!(byte, expected, "entry {entry} at {at}");
            }
        }
    }
}
