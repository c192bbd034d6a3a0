//! Standard output behind a queue: the reader may be slow, or stop reading, and no request waits for it.
//!
//! Enters: lines of any thread. Leaves: the same lines in order. A line that standard output accepts at once is written at once, so it is
//! there when its request is answered. Other lines go through a queue to one thread, which sleeps while the queue is empty. Lines that do
//! not fit are counted, and one line reports their number. `tracing-appender` has a similar queue, which panics if its thread can't be
//! started, does not report lost lines, and limits only the number of lines.

use std::cell::Cell;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};
use mountpoint::clock::Clock;
use mountpoint::supervise::Supervisor;
use mountpoint::sync::atomic::{AtomicU64, Ordering::Relaxed};
use mountpoint::sync::{Arc, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::fmt::MakeWriter;

/// Most lines in the queue; further ones are lost. Doubling it lets the reader pause twice as long.
const LINES_MAX: usize = 16 << 10;
/// Most bytes of lines in the queue. Doubling it helps the same way for long lines, and takes up to twice the memory.
const BYTES_MAX: u64 = 4 << 20;
/// Longest line that is written without the thread: a pipe that is writable accepts this much without blocking (PIPE_BUF).
const AT_ONCE_MAX: usize = 4096;
/// Longest wait for the queue to be written at the end of the process; lines that are left are lost. Doubling it delays the end of an
/// engine with a stuck reader.
const LAST_WITHIN: Duration = Duration::from_secs(1);

thread_local!(static WRITES: Cell<bool> = const { Cell::new(false) });

/// The queue of an output. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    send: Sender<Message>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// A request to answer once all earlier lines are written.
    Flush(Sender<()>),
}

/// The output of the queue, as functions.
#[derive(Clone, Copy)]
pub(super) struct Output {
    /// Opens the output.
    pub(super) open: fn() -> Box<dyn Write>,
    /// Whether the output accepts a line of up to 4 KiB without blocking.
    pub(super) is_ready: fn() -> bool,
}

impl Output {
    pub(super) const STDOUT: Self =
        Self { open: || Box::new(io::stdout()), is_ready: || is_writable(rustix::stdio::stdout()) };
}

/// Whether a write would not block. A pipe is writable once a page of it is free; a file always is.
fn is_writable(file: impl AsFd) -> bool {
    let mut asked = [PollFd::new(&file, PollFlags::OUT)];
    poll(&mut asked, Some(&Timespec::default())).is_ok() && asked[0].revents().contains(PollFlags::OUT)
}

struct Shared {
    out: Output,
    /// Number of lines in the queue, or being written by the thread. While it is not zero, all lines go through the queue, which keeps
    /// their order.
    turn: Mutex<u64>,
    waiting_bytes: AtomicU64,
    lost: AtomicU64,
}

impl Queue {
    /// Starts the thread, which writes to `out` the lines that `out` does not accept at once.
    ///
    /// # Errors
    /// The system can't start a thread.
    pub(super) fn to(out: Output) -> io::Result<Self> {
        let (send, receive) = bounded(LINES_MAX);
        let shared = Arc::new(Shared::new(out));
        let of_thread = Arc::clone(&shared);
        let supervisor = Supervisor { metrics: Arc::default(), clock: Clock::machine() };
        supervisor.thread("log".to_owned(), move || of_thread.write_all(&receive))?;
        Ok(Self { send, shared })
    }

    /// Returns when all earlier lines are written, or after [`LAST_WITHIN`] twice.
    pub(super) fn flush(&self) {
        let (done, wait) = bounded(1);
        if self.send.send_timeout(Message::Flush(done), LAST_WITHIN).is_ok() {
            let _ = wait.recv_timeout(LAST_WITHIN);
        }
    }

    fn put(&self, line: &[u8]) {
        let mut turn = self.shared.turn.lock();
        if *turn == 0 && line.len() <= AT_ONCE_MAX && (self.shared.out.is_ready)() {
            let _ = (self.shared.out.open)().write_all(line);
        } else if self.enqueue(line) {
            *turn += 1;
        }
    }

    /// Queues a line. False if the queue is full: the line is lost.
    fn enqueue(&self, line: &[u8]) -> bool {
        let (len, waiting) = (line.len() as u64, &self.shared.waiting_bytes);
        let fits =
            waiting.fetch_update(Relaxed, Relaxed, |now| (now < BYTES_MAX).then_some(now + len)).is_ok();
        // copy: the line outlives its event.
        let sent = fits.then(|| self.send.try_send(Message::Line(line.to_vec())));
        match sent {
            Some(Ok(())) => return true,
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) => {
                waiting.fetch_sub(len, Relaxed);
            }
            None => {}
        }
        self.shared.lost.fetch_add(1, Relaxed);
        false
    }
}

impl Shared {
    fn new(out: Output) -> Self {
        Self { out, turn: Mutex::new(0), waiting_bytes: AtomicU64::new(0), lost: AtomicU64::new(0) }
    }

    fn write_all(&self, queue: &Receiver<Message>) {
        WRITES.set(true);
        for message in queue {
            // The reader may be gone: that is not an error of the mount.
            match message {
                Message::Line(line) => {
                    let _ = (self.out.open)().write_all(&line);
                    self.waiting_bytes.fetch_sub(line.len() as u64, Relaxed);
                    self.say_lost();
                    *self.turn.lock() -= 1;
                }
                Message::Flush(done) => {
                    self.say_lost();
                    let _ = (self.out.open)().flush();
                    let _ = done.try_send(());
                }
            }
        }
    }

    /// Logs the number of lost lines, if there are any. A line of this thread bypasses the queue.
    fn say_lost(&self) {
        let lost = self.lost.swap(0, Relaxed);
        if lost > 0 {
            tracing::warn!(
                lost,
                "lines of the log were lost: the reader of standard output was slower than the mount"
            );
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

/// A writer of one line, which tracing-subscriber passes in one piece.
#[derive(Debug)]
pub(super) struct Line<'a>(&'a Queue);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if WRITES.get() {
            (self.0.shared.out.open)().write_all(bytes)?;
        } else {
            self.0.put(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that the reader took. A test locks it while the reader must take nothing.
    static READER: std::sync::Mutex<Vec<u8>> = std::sync::Mutex::new(Vec::new());

    struct Reader;

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            READER.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const TO_READER: Output = Output { open: || Box::new(Reader), is_ready: || READER.try_lock().is_ok() };

    #[test]
    fn a_reader_that_stops_costs_lines_and_no_time_and_nothing_is_lost_before() {
        let queue = Queue::to(TO_READER).unwrap();
        let say = |line: String| queue.make_writer().write_all(line.as_bytes()).unwrap();
        (0..LINES_MAX).for_each(|i| say(format!("early {i}\n")));
        // Each was taken at once.
        assert_eq!(READER.lock().unwrap().iter().filter(|byte| **byte == b'\n').count(), LINES_MAX);
        let mut stuck = READER.lock().unwrap();
        stuck.clear();
        (0..2 * LINES_MAX).for_each(|i| say(format!("late {i}\n")));
        // The thread may have taken a line: then one later line took its place in the queue.
        let lost = queue.shared.lost.load(Relaxed);
        assert!((LINES_MAX as u64 - 1..=LINES_MAX as u64).contains(&lost), "{lost}");
        (0..100).for_each(|_| say("x".repeat(1 << 20)));
        drop(stuck);
        // Sixteen thousand lines may take a busy machine longer than the second for which it waits.
        testkit::until("all is written", || {
            let begun = std::time::Instant::now();
            queue.flush();
            let is_written = queue.shared.waiting_bytes.load(Relaxed) == 0;
            assert!(is_written || begun.elapsed() >= LAST_WITHIN, "it did not wait");
            is_written
        });
        let lines = String::from_utf8(READER.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = lines.lines().collect();
        assert!((LINES_MAX..=LINES_MAX + 1).contains(&lines.len()), "{}", lines.len());
        let in_order = lines.iter().take(LINES_MAX).zip(0..).all(|(line, i)| **line == format!("late {i}"));
        assert!(in_order, "the first ones, in order");
        assert_eq!((queue.shared.lost.load(Relaxed), queue.shared.waiting_bytes.load(Relaxed)), (0, 0));
        // The thread counts the last line after it has written it.
        while *queue.shared.turn.lock() > 0 {
            std::thread::yield_now();
        }
        say("at once\n".to_owned());
        assert!(READER.lock().unwrap().ends_with(b"at once\n"));
    }

    #[test]
    fn a_pipe_is_written_at_once_until_it_is_full() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut written = 0;
        while is_writable(&writer) {
            writer.write_all(&[b'x'; AT_ONCE_MAX]).unwrap();
            written += AT_ONCE_MAX;
        }
        assert!(written >= AT_ONCE_MAX);
        drop(reader);
    }

    #[test]
    fn long_lines_that_wait_are_limited_by_their_bytes() {
        let queue = Queue {
            send: bounded(LINES_MAX).0,
            shared: Arc::new(Shared::new(Output { open: || Box::new(io::sink()), is_ready: || false })),
        };
        // No thread takes them: its end of the channel is gone, and so each is lost.
        queue.put(&[b'x'; 100]);
        assert_eq!((queue.shared.lost.load(Relaxed), queue.shared.waiting_bytes.load(Relaxed)), (1, 0));
        queue.shared.waiting_bytes.store(BYTES_MAX, Relaxed);
        queue.put(b"x");
        assert_eq!(
            (queue.shared.lost.load(Relaxed), queue.shared.waiting_bytes.load(Relaxed)),
            (2, BYTES_MAX)
        );
    }
}
