//! The node's CSI driver as a helper: it registers files of the cache for the kernel to read (passthrough), which an engine in a pod may
//! not.
//!
//! Enters: names of files below the cache, and numbers to unregister. Leaves: the kernel's numbers. The connections to the driver take the
//! requests from here. While there is none, a file is refused at once, and numbers to unregister wait for the next.
//!
//! Never here: a connection; a wait of a FUSE thread.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use tokio::sync::{Notify, oneshot};

use crate::sync::{Arc, Mutex};

/// A file of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileName {
    /// The path relative to the cache's directory.
    pub name: String,
    /// The device number of the file system.
    pub dev: u64,
    /// The inode number of the file.
    pub ino: u64,
}

/// A request to the driver.
pub enum Ask {
    /// Registers a file. If no caller waits for the number any more, the file is unregistered.
    Open(FileName, oneshot::Sender<io::Result<u32>>),
    /// Unregisters a number. The value is dropped once that is done.
    Close(u32, Kept),
}

/// A value that lives until a number is unregistered, such as the hold of a file.
pub type Kept = Box<dyn Send>;
type Device = Box<dyn Fn() -> Option<OwnedFd> + Send + Sync>;

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(file, _) => f.debug_tuple("Open").field(file).finish(),
            Self::Close(id, _) => f.debug_tuple("Close").field(id).finish(),
        }
    }
}

/// The requests of one engine to its driver.
#[derive(Default)]
pub struct Registrar {
    queue: Mutex<Queue>,
    ring: Notify,
}

#[derive(Default)]
struct Queue {
    /// Number of connections that take requests.
    serving: usize,
    opens: VecDeque<Ask>,
    closes: VecDeque<Ask>,
    /// Number of files that are registered for this engine.
    ids: u32,
    /// Number of connections whose driver owes an answer to an open that gave up, or is busy.
    late: usize,
    device: Option<Device>,
    told: bool,
}

impl Queue {
    fn next(&mut self) -> Option<Ask> {
        let given_up = |ask: &mut Ask| matches!(ask, Ask::Open(_, answer) if answer.is_closed());
        while self.opens.front_mut().is_some_and(given_up) {
            self.opens.pop_front();
        }
        self.closes.pop_front().or_else(|| self.opens.pop_front())
    }
}

impl fmt::Debug for Registrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.queue.lock();
        f.debug_struct("Registrar").field("serving", &queue.serving).field("ids", &queue.ids).finish()
    }
}

impl Registrar {
    /// Sets the function that copies the mount's device.
    pub fn begin(&self, device: impl Fn() -> Option<OwnedFd> + Send + Sync + 'static) {
        self.queue.lock().device = Some(Box::new(device));
    }

    /// Counts files that an earlier engine left registered.
    pub fn inherit(&self, ids: u32) {
        self.queue.lock().ids += ids;
    }

    /// Number of files that are registered for this engine.
    pub fn ids(&self) -> u32 {
        self.queue.lock().ids
    }

    /// A copy of the mount's device; `None` before the mount and after it.
    pub fn device(&self) -> Option<OwnedFd> {
        self.queue.lock().device.as_ref().and_then(|device| device())
    }

    /// Registers a file through the driver, and returns its number. If the caller gives up, the file is unregistered.
    ///
    /// # Errors
    /// `NotConnected`: no driver is connected. `TimedOut`: the driver owes an answer to a question whose caller gave up, or is busy. Or the
    /// driver's refusal.
    pub async fn open(&self, file: FileName) -> io::Result<u32> {
        let (answer, answered) = oneshot::channel();
        {
            let mut queue = self.queue.lock();
            if queue.serving == 0 {
                return Err(io::ErrorKind::NotConnected.into());
            }
            if queue.late > 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            queue.opens.push_back(Ask::Open(file, answer));
        }
        self.ring.notify_one();
        answered.await.unwrap_or_else(|_| Err(io::ErrorKind::ConnectionAborted.into()))
    }

    /// Unregisters a number, now or once a driver is connected. `kept` lives until then.
    pub fn close(&self, id: u32, kept: Kept) {
        self.queue.lock().closes.push_back(Ask::Close(id, kept));
        self.ring.notify_one();
    }

    /// Whether this is the first call: only the first failure is worth a line in the log.
    pub fn tells(&self) -> bool {
        !std::mem::replace(&mut self.queue.lock().told, true)
    }

    /// Begins to take requests, until the returned value is dropped.
    pub fn serve(self: &Arc<Self>) -> Serving {
        self.queue.lock().serving += 1;
        Serving { registrar: Arc::clone(self), under_way: None, is_late: false, rests: false }
    }
}

/// A connection that takes requests, one at a time.
#[derive(Debug)]
pub struct Serving {
    registrar: Arc<Registrar>,
    under_way: Option<Ask>,
    is_late: bool,
    rests: bool,
}

impl Serving {
    /// The next request, numbers to unregister first. Cancelling the call loses none. It never returns while a request is in progress,
    /// except for one whose caller gives up: then opens are refused from now on, until the driver answers.
    pub async fn next(&mut self) -> &Ask {
        loop {
            match &mut self.under_way {
                None => {}
                Some(Ask::Open(_, answer)) if !self.is_late => {
                    answer.closed().await;
                    self.is_late = true;
                    let mut queue = self.registrar.queue.lock();
                    queue.late += 1;
                    drop(queue.opens.drain(..).collect::<Vec<_>>());
                    continue;
                }
                Some(_) => std::future::pending().await,
            }
            self.under_way = self.registrar.queue.lock().next();
            if self.under_way.is_some() {
                break;
            }
            self.registrar.ring.notified().await;
        }
        // Another connection may take what else waits.
        self.registrar.ring.notify_one();
        self.under_way.as_ref().unwrap_or_else(|| unreachable!("a question was just taken"))
    }

    /// Whether the driver was too busy to unregister a number. The request waits, and opens are refused, until [`Self::go_on`].
    pub fn rests(&self) -> bool {
        self.rests
    }

    /// Takes requests again.
    pub fn go_on(&mut self) {
        if std::mem::take(&mut self.rests) {
            self.registrar.queue.lock().late -= 1;
        }
    }

    /// Takes the driver's answer to the request in progress. `ResourceBusy` means that nothing was done.
    pub fn answered(&mut self, answer: io::Result<u32>) {
        let late = std::mem::take(&mut self.is_late);
        let Some(ask) = self.under_way.take() else { return };
        let mut queue = self.registrar.queue.lock();
        queue.late -= usize::from(late);
        match ask {
            Ask::Open(_, waits) => {
                queue.ids += u32::from(answer.is_ok());
                if let Err(Ok(id)) = waits.send(answer) {
                    queue.closes.push_back(Ask::Close(id, Box::new(())));
                    drop(queue);
                    self.registrar.ring.notify_one();
                }
            }
            Ask::Close(id, kept)
                if answer.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy) =>
            {
                queue.closes.push_back(Ask::Close(id, kept));
                queue.late += 1;
                self.rests = true;
            }
            Ask::Close(_, kept) => {
                // A number that the kernel does not know is unregistered already.
                queue.ids = queue.ids.saturating_sub(1);
                drop(queue);
                drop(kept);
            }
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let under_way = self.under_way.take();
        let mut queue = self.registrar.queue.lock();
        queue.serving -= 1;
        queue.late -= usize::from(self.is_late) + usize::from(self.rests);
        let opens = if queue.serving == 0 { std::mem::take(&mut queue.opens) } else { VecDeque::new() };
        let open = match under_way {
            Some(close @ Ask::Close(..)) => {
                queue.closes.push_front(close);
                None
            }
            open => open,
        };
        drop(queue);
        // Dropping these tells their callers that the connection is gone.
        drop((opens, open));
        self.registrar.ring.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> FileName {
        FileName { name: name.to_owned(), dev: 1, ino: 2 }
    }

    fn kind(answer: io::Result<u32>) -> io::ErrorKind {
        answer.unwrap_err().kind()
    }

    #[tokio::test]
    async fn without_a_driver_files_are_refused_and_numbers_wait_to_be_taken_back() {
        let registrar = Arc::new(Registrar::default());
        assert_eq!(kind(registrar.open(file("a")).await), io::ErrorKind::NotConnected);
        registrar.inherit(1);
        let (kept, lives) = oneshot::channel::<()>();
        registrar.close(7, Box::new(kept));
        let mut gone = registrar.serve();
        assert!(matches!(gone.next().await, Ask::Close(7, _)));
        drop(gone);
        assert_eq!(registrar.ids(), 1);
        let mut serving = registrar.serve();
        assert!(
            matches!(serving.next().await, Ask::Close(7, _)),
            "the first driver was gone before it answered"
        );
        serving.answered(Err(io::ErrorKind::NotFound.into()));
        assert!(lives.await.is_err());
        assert_eq!(registrar.ids(), 0);
    }

    #[tokio::test]
    async fn a_file_gets_its_number_and_the_end_of_a_connection_is_heard() {
        let registrar = Arc::new(Registrar::default());
        let mut serving = registrar.serve();
        let (opened, ()) = tokio::join!(registrar.open(file("a")), async {
            assert!(matches!(serving.next().await, Ask::Open(it, _) if *it == file("a")));
            serving.answered(Ok(9));
        });
        assert_eq!((opened.unwrap(), registrar.ids()), (9, 1));
        let (opened, ()) = tokio::join!(registrar.open(file("b")), async {
            serving.next().await;
            drop(serving);
        });
        assert_eq!(kind(opened), io::ErrorKind::ConnectionAborted);
        assert_eq!(registrar.ids(), 1);
    }

    #[tokio::test]
    async fn a_late_number_is_taken_back_and_no_open_waits_meanwhile() {
        let registrar = Arc::new(Registrar::default());
        let mut serving = registrar.serve();
        let mut open = Box::pin(registrar.open(file("a")));
        tokio::select! {
            biased;
            _ = &mut open => unreachable!("nobody has answered"),
            _ = serving.next() => {}
        }
        let mut waits = Box::pin(registrar.open(file("b")));
        assert!(futures_util::poll!(&mut waits).is_pending());
        drop(open);
        assert!(futures_util::poll!(Box::pin(serving.next())).is_pending());
        assert_eq!(kind(waits.await), io::ErrorKind::ConnectionAborted);
        assert_eq!(kind(registrar.open(file("c")).await), io::ErrorKind::TimedOut);
        serving.answered(Ok(5));
        assert!(matches!(serving.next().await, Ask::Close(5, _)));
        serving.answered(Ok(5));
        assert_eq!(registrar.ids(), 0);
        let (opened, ()) = tokio::join!(registrar.open(file("d")), async {
            serving.next().await;
            serving.answered(Ok(6));
        });
        assert_eq!(opened.unwrap(), 6);
    }

    #[tokio::test]
    async fn a_number_that_a_busy_driver_did_not_take_back_is_asked_again() {
        let registrar = Arc::new(Registrar::default());
        registrar.inherit(2);
        let (kept, mut lives) = oneshot::channel::<()>();
        registrar.close(7, Box::new(kept));
        registrar.close(8, Box::new(()));
        let mut serving = registrar.serve();
        assert!(matches!(serving.next().await, Ask::Close(7, _)));
        let busy = || Err(io::ErrorKind::ResourceBusy.into());
        serving.answered(busy());
        assert!(serving.rests());
        assert_eq!(registrar.ids(), 2);
        assert_eq!(lives.try_recv(), Err(oneshot::error::TryRecvError::Empty), "its file is kept");
        assert_eq!(kind(registrar.open(file("a")).await), io::ErrorKind::TimedOut, "no open waits meanwhile");
        serving.go_on();
        assert!(matches!(serving.next().await, Ask::Close(8, _)), "a number that hangs holds up no other");
        serving.answered(Ok(8));
        assert!(matches!(serving.next().await, Ask::Close(7, _)));
        serving.answered(busy());
        drop(serving);
        let mut next = registrar.serve();
        assert!(matches!(next.next().await, Ask::Close(7, _)));
        next.answered(Ok(7));
        assert!(lives.await.is_err());
        let (opened, ()) = tokio::join!(registrar.open(file("b")), async {
            next.next().await;
            next.answered(Ok(9));
        });
        assert_eq!((opened.unwrap(), registrar.ids()), (9, 1));
    }
}
