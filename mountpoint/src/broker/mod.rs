//! The helper of a sandboxed engine: a process from before the sandbox that does, on request, what the sandbox refuses to the engine.
//!
//! Enters: one of a few typed requests ([`Question`]), over a socket that both processes have from the start. Leaves: the answer. A request
//! contains neither paths nor memory addresses, and no program but the first one. So an intruder in the engine can only unmount the
//! engine's own mount, and learn what an engine learns. The helper ends with the engine.

mod messages;
mod registrar;
mod serve;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use messages::{Answer, Question};
pub use registrar::{Ask, FileName, Kept, Registrar, Serving};
pub use serve::serve;

/// Longest wait for an answer that depends only on the kernel: about a process, or of an ioctl; then the answer is unknown, or an error.
/// Doubling it doubles the time that a FUSE thread waits for a stopped helper.
const AT_ONCE: Duration = Duration::from_secs(5);
/// Longest wait for the answers on which a start depends. A start that loses them fails, so a busy machine gets more time.
const BEGUN_WITHIN: Duration = Duration::from_secs(60);
/// Longest wait for the system's resolver; then the call fails. The caller has a limit of its own.
const RESOLVED_WITHIN: Duration = Duration::from_secs(60);
/// Longest wait for an unmount; then the call fails.
const UNMOUNTED_WITHIN: Duration = Duration::from_secs(30);
/// Longest wait for a program that prints credentials: a little more than the time that the helper grants the program. Then the call fails.
const PRINTED_WITHIN: Duration = Duration::from_secs(12);
/// Longest wait for the installed program's check whether it could continue the mount: a little more than `handover` grants it. Then the
/// upgrade fails.
const CHECKED_WITHIN: Duration = Duration::from_secs(12);

/// The engine's connection to its helper.
#[derive(Debug)]
pub struct Broker {
    socket: OwnedFd,
    /// Whether the helper may register files for passthrough.
    registers: bool,
    /// Set after the helper got the mount's device.
    mounted: OnceLock<()>,
}

/// The one helper of this process: a sandbox confines a whole process.
static OF_THIS_PROCESS: OnceLock<Broker> = OnceLock::new();

/// The helper of this process. `None`: the process has no sandbox, and needs no helper.
pub fn of_this_process() -> Option<&'static Broker> {
    OF_THIS_PROCESS.get()
}

/// A pair of connected sockets; a new helper gets one of them.
///
/// # Errors
/// The system has no sockets left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    messages::pair()
}

impl Broker {
    /// Makes a started helper the helper of this process. `registers`: the helper has the privilege for passthrough.
    ///
    /// # Errors
    /// The process has a helper already.
    pub fn begin(socket: OwnedFd, registers: bool) -> io::Result<&'static Self> {
        let broker = Self { socket, registers, mounted: OnceLock::new() };
        OF_THIS_PROCESS.set(broker).map_err(|_| io::Error::other("this process has a helper already"))?;
        of_this_process().ok_or_else(|| io::Error::other("this process has no helper"))
    }

    /// Whether the helper may register files for passthrough.
    pub fn registers(&self) -> bool {
        self.registers
    }

    /// Names the mount that the helper may unmount. Only the first call counts.
    ///
    /// # Errors
    /// The helper does not answer.
    pub fn mounted(&self, device: Option<(u32, u32)>) -> io::Result<()> {
        self.done(&Question::Mounted { device }, &[], BEGUN_WITHIN)?;
        let _ = self.mounted.set(());
        Ok(())
    }

    /// Announces the confinement of the engine to the helper.
    ///
    /// # Errors
    /// The helper does not answer.
    pub fn confined(&self) -> io::Result<()> {
        self.done(&Question::Confined, &[], BEGUN_WITHIN)
    }

    /// Names the program that prints credentials, before the confinement: only the first one counts.
    ///
    /// # Errors
    /// The helper does not answer.
    pub fn program(&self, command: String) -> io::Result<()> {
        self.done(&Question::Program { command }, &[], BEGUN_WITHIN)
    }

    /// Whether the helper was given the mount, and unmounts it.
    pub fn knows_mount(&self) -> bool {
        self.mounted.get().is_some()
    }

    /// Makes the helper unmount the file system. `is_connected`: the kernel has the other end of the device.
    ///
    /// # Errors
    /// The unmount fails, or the helper does not answer in time.
    pub fn unmount(&self, is_connected: bool) -> io::Result<()> {
        self.done(&Question::Unmount { is_connected }, &[], UNMOUNTED_WITHIN)
    }

    /// Whether a thread holds a file; see `fs/process.rs`. `None`: unknown.
    pub fn holds(&self, question: &Question) -> Option<bool> {
        match self.ask(question, &[], AT_ONCE) {
            Ok(Answer::Holds(holds)) => holds,
            other => unknown(other),
        }
    }

    /// Whether a signal is ending a thread.
    pub fn has_ended_by_signal(&self, tid: u32) -> bool {
        match self.ask(&Question::HasEndedBySignal { tid }, &[], AT_ONCE) {
            Ok(Answer::Holds(holds)) => holds == Some(true),
            other => unknown(other).unwrap_or(false),
        }
    }

    /// Registers a file with a FUSE device. Returns the file's number.
    ///
    /// # Errors
    /// The kernel refuses the ioctl, or the helper does not answer in time.
    pub fn register(&self, device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<u32> {
        match self.ask(&Question::Register, &[device, file], AT_ONCE)? {
            Answer::Number(number) => Ok(number),
            other => Err(refused(other)),
        }
    }

    /// Unregisters a file.
    ///
    /// # Errors
    /// The kernel refuses the ioctl, or the helper does not answer in time.
    pub fn forget(&self, device: BorrowedFd<'_>, id: u32) -> io::Result<()> {
        self.done(&Question::Forget { id }, &[device], AT_ONCE)
    }

    /// The addresses of a host, by the system's resolver. Blocks.
    ///
    /// # Errors
    /// The resolver's error, or the helper does not answer in time.
    pub fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match self.ask(&Question::Resolve { host: host.to_owned(), port }, &[], RESOLVED_WITHIN)? {
            Answer::Addresses(addresses) => Ok(addresses),
            other => Err(refused(other)),
        }
    }

    /// The output of the program that prints credentials. Blocks.
    ///
    /// # Errors
    /// The program failed, or the command is not the one of the start.
    pub fn credentials(&self, command: String) -> io::Result<String> {
        match self.ask(&Question::Credentials { command }, &[], PRINTED_WITHIN)? {
            Answer::Text(text) => Ok(text),
            other => Err(refused(other)),
        }
    }

    /// Asks whether the program that is installed now could continue the mount of this journal. Blocks.
    ///
    /// # Errors
    /// The program refuses, or this mount has no such journal.
    pub fn check(&self, journal: BorrowedFd<'_>) -> io::Result<()> {
        self.done(&Question::Check, &[journal], CHECKED_WITHIN)
    }

    fn done(&self, question: &Question, files: &[BorrowedFd<'_>], within: Duration) -> io::Result<()> {
        match self.ask(question, files, within)? {
            Answer::Done => Ok(()),
            other => Err(refused(other)),
        }
    }

    /// Sends a request to the helper. Each has a socket of its own for the answer, so a slow answer delays no other.
    fn ask(&self, question: &Question, files: &[BorrowedFd<'_>], within: Duration) -> io::Result<Answer> {
        let (ours, theirs) = messages::pair()?;
        let all: Vec<_> = std::iter::once(theirs.as_fd()).chain(files.iter().copied()).collect();
        messages::send(self.socket.as_fd(), question, &all).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ended(),
            io::ErrorKind::WouldBlock => {
                io::Error::new(error.kind(), "the helper of the sandbox answers no more")
            }
            _ => error,
        })?;
        drop(theirs);
        let limit = Timespec { tv_sec: within.as_secs().cast_signed(), tv_nsec: 0 };
        let mut polled = [PollFd::new(&ours, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(&mut polled, Some(&limit)))? == 0 {
            let late = format!("the helper of the sandbox did not answer within {} s", within.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, late));
        }
        match messages::receive::<Answer>(ours.as_fd())? {
            Some((answer, _)) => Ok(answer),
            None => Err(ended()),
        }
    }
}

fn ended() -> io::Error {
    io::Error::other(
        "the helper of the sandbox has ended: unmount by umount or fusermount3 -u, and mount anew",
    )
}

fn refused(answer: Answer) -> io::Error {
    match answer {
        Answer::Refused { errno: Some(errno), .. } => io::Error::from_raw_os_error(errno),
        Answer::Refused { errno: None, why } => io::Error::other(why),
        // The error must not quote the answer, which may be credentials.
        _ => io::Error::other("the helper of the sandbox answered another question"),
    }
}

/// Turns a failed request about a process into "unknown", as for an invisible process.
fn unknown(answer: io::Result<Answer>) -> Option<bool> {
    let error = answer.map_or_else(|error| error, refused);
    tracing::debug!("asking about a process: {error}");
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Arc;
    use crate::sync::atomic::{AtomicU32, Ordering::SeqCst};

    /// An engine's end whose helper is a thread of this process.
    fn broker(desk: impl Fn(Question, Vec<OwnedFd>) -> Answer + Send + Sync + 'static) -> Broker {
        let (ours, theirs) = pair().unwrap();
        std::thread::spawn(move || serve(theirs, desk));
        Broker { socket: ours, registers: false, mounted: OnceLock::new() }
    }

    #[test]
    fn a_slow_question_delays_no_other_and_each_gets_its_own_answer() {
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let gate = crate::sync::Mutex::new(gate);
        let broker = Arc::new(broker(move |question, _| match question {
            Question::Resolve { port, .. } => {
                gate.lock().recv().unwrap();
                Answer::Addresses(vec![([10, 0, 0, 1], port).into()])
            }
            Question::HasEndedBySignal { tid } => Answer::Holds(Some(tid == 7)),
            _ => Answer::Done,
        }));
        let asks = Arc::clone(&broker);
        let waits = std::thread::spawn(move || asks.resolve("store", 443));
        for _ in 0..100 {
            assert!(broker.has_ended_by_signal(7));
            assert!(!broker.has_ended_by_signal(8));
        }
        go.send(()).unwrap();
        assert_eq!(waits.join().unwrap().unwrap(), [([10, 0, 0, 1], 443).into()]);
    }

    #[test]
    fn files_arrive_with_their_question_and_an_errno_comes_back() {
        let seen = Arc::new(AtomicU32::new(0));
        let of_desk = Arc::clone(&seen);
        let broker = broker(move |question, files| match question {
            Question::Register => {
                of_desk.store(u32::try_from(files.len()).unwrap(), SeqCst);
                let ino = rustix::fs::fstat(&files[1]).unwrap().st_ino;
                Answer::Number(u32::try_from(ino % 1_000_000).unwrap())
            }
            _ => Answer::Refused { errno: Some(libc::ELOOP), why: String::new() },
        });
        let (one, two) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let ino = rustix::fs::fstat(&two).unwrap().st_ino;
        let number = broker.register(one.as_fd(), two.as_fd()).unwrap();
        assert_eq!((u64::from(number), seen.load(SeqCst)), (ino % 1_000_000, 2));
        assert_eq!(broker.forget(one.as_fd(), 1).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn a_helper_that_is_gone_is_an_error_and_answers_about_processes_unknown() {
        let (ours, theirs) = pair().unwrap();
        drop(theirs);
        let broker = Broker { socket: ours, registers: false, mounted: OnceLock::new() };
        assert!(broker.resolve("store", 443).is_err());
        assert!(!broker.has_ended_by_signal(7));
        assert!(broker.unmount(true).is_err());
    }

    /// FUSE threads make these requests: a thread that waited for room would hang the mount.
    #[test]
    fn a_helper_that_reads_no_question_any_more_is_an_error_without_a_wait() {
        let (ours, _theirs) = pair().unwrap();
        let (_never, reply) = pair().unwrap();
        let full =
            std::iter::repeat_with(|| messages::send(ours.as_fd(), &Question::Confined, &[reply.as_fd()]))
                .take(100_000)
                .find_map(Result::err);
        assert_eq!(full.unwrap().kind(), io::ErrorKind::WouldBlock);
        let broker = Broker { socket: ours, registers: false, mounted: OnceLock::new() };
        assert_eq!(broker.unmount(true).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    /// An intruder sends a socket for the answer, and never reads it.
    #[test]
    fn a_helper_waits_for_no_engine_to_take_its_answer_and_ends_with_it() {
        let (ours, theirs) = pair().unwrap();
        let (reply, _never_read) = pair().unwrap();
        let answers = || messages::send(reply.as_fd(), &Answer::Done, &[]);
        assert!(std::iter::repeat_with(answers).take(100_000).any(|sent| sent.is_err()), "it is full");
        let serving = std::thread::spawn(move || serve(theirs, |_, _| Answer::Done));
        messages::send(ours.as_fd(), &Question::Confined, &[reply.as_fd()]).unwrap();
        drop(ours);
        serving.join().unwrap().unwrap();
    }

    #[test]
    fn a_helper_whose_work_panics_answers_that_question_alone_with_an_error() {
        let broker = broker(|question, _| match question {
            Question::Resolve { .. } => panic!("in the resolver"),
            _ => Answer::Done,
        });
        assert!(broker.resolve("store", 443).is_err());
        broker.unmount(true).unwrap();
    }
}
