//! One connection through the proxy: two directions, each with a stage that reads and one that delivers, and a short queue between them.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::link::{self, PIECE_MAX};
use super::requests::{Out, Requests};
use super::weather::{Answers, Passage, Step, Then, flipped, place};
use super::{Shared, State};

/// Longest queue between the two stages of a direction, in pieces: 4 MiB in flight on a link with latency.
const LINE: usize = 256;

/// Longest queue without latency, in pieces: 64 KiB.
const LINE_WITHOUT_LATENCY: usize = (64 << 10) / PIECE_MAX;

const SLOW_DOWN: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>SlowDown</Code>\
                         <Message>Please reduce your request rate.</Message></Error>";

/// A piece of bytes between reading and delivering.
struct Piece {
    due: Instant,
    bytes: Vec<u8>,
    /// Whether the proxy made these bytes, not the store.
    is_ours: bool,
    /// Whether the sender closed its side after these bytes.
    is_last: bool,
    _place: OwnedSemaphorePermit,
}

/// The queue of a direction, on the reading side. A clone queues the answers that the proxy makes.
#[derive(Clone)]
struct Line {
    pieces: Sender<Piece>,
    places: Arc<Semaphore>,
}

impl Line {
    fn new() -> (Self, Receiver<Piece>) {
        let (pieces, receiver) = channel(LINE);
        (Self { pieces, places: Arc::new(Semaphore::new(LINE)) }, receiver)
    }

    async fn put(&self, bytes: Vec<u8>, is_ours: bool, is_last: bool, state: &watch::Receiver<State>) {
        let latency = state.borrow().weather.latency;
        let weight = if latency.is_zero() { LINE / LINE_WITHOUT_LATENCY } else { 1 };
        let places = Arc::clone(&self.places).acquire_many_owned(weight as u32).await;
        let place = places.expect("the places are never closed");
        let piece = Piece { due: Instant::now() + latency / 2, bytes, is_ours, is_last, _place: place };
        // If the receiver has ended, the piece is not needed.
        let _ = self.pieces.send(piece).await;
    }
}

/// Carries one connection until both sides have closed it, one side breaks it, or the weather resets it.
pub(super) async fn carry(
    number: u64,
    mut client: TcpStream,
    shared: Arc<Shared>,
    state: watch::Receiver<State>,
) {
    let flow = Flow { number, shared: Arc::clone(&shared), state };
    let refused = flow.clone().refused();
    let carried = async {
        flow.clone().open().await;
        let mut server = super::connect(shared.to).await?;
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let ((up, up_pieces), (down, down_pieces)) = (Line::new(), Line::new());
        let ended = tokio::try_join!(
            flow.clone().read_requests(from_client, up, down.clone()),
            flow.clone().read_answers(from_server, down),
            flow.clone().deliver(up_pieces, to_server, false),
            flow.clone().deliver(down_pieces, to_client, true),
        );
        if ended.is_err() {
            server.set_zero_linger()?;
        }
        ended.map(drop)
    };
    let ended = tokio::select! {
        ended = carried => ended,
        () = refused => Err(reset()),
    };
    if ended.is_err() {
        // close(2) then sends RST instead of FIN. The call fails if the client has gone already.
        let _ = client.set_zero_linger();
    }
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

/// The state that the stages of a connection share.
#[derive(Clone)]
struct Flow {
    number: u64,
    shared: Arc<Shared>,
    state: watch::Receiver<State>,
}

impl Flow {
    /// Waits until the weather lets bytes pass on this connection.
    async fn open(&mut self) -> State {
        loop {
            let now = self.state.borrow_and_update().clone();
            if now.weather.passage == Passage::Open && self.number >= now.dead_below {
                return now;
            }
            self.changed().await;
        }
    }

    async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            // The proxy has ended: the runtime drops this future.
            pending::<()>().await;
        }
    }

    /// Waits until the weather refuses connections.
    async fn refused(mut self) {
        while self.state.borrow_and_update().weather.passage != Passage::Refused {
            self.changed().await;
        }
    }

    /// Reads the next bytes at the link's rate; 0 at the end.
    async fn read(
        &mut self,
        from: &mut ReadHalf<'_>,
        link: &link::Link,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        let now = self.open().await;
        let n = from.read(&mut buffer[..link::piece(now.weather.rate)]).await?;
        link.pass(n, &mut self.state).await;
        // The weather is checked again: a black hole also holds bytes whose read began before it.
        self.open().await;
        Ok(n)
    }

    async fn read_requests(mut self, mut from: ReadHalf<'_>, up: Line, down: Line) -> io::Result<()> {
        let mut buffer = vec![0; PIECE_MAX];
        let mut requests = Requests::default();
        loop {
            let shared = Arc::clone(&self.shared);
            let n = self.read(&mut from, &shared.up, &mut buffer).await?;
            if n == 0 {
                up.put(Vec::new(), false, true, &self.state).await;
                return Ok(());
            }
            let unavailable = self.state.borrow().weather.unavailable.clone();
            let refuses = || {
                let number = shared.counts.requests.fetch_add(1, Ordering::Relaxed);
                unavailable.as_ref().is_some_and(|unavailable| unavailable.strikes(number))
            };
            for out in requests.take(&buffer[..n], refuses) {
                match out {
                    Out::Pass(bytes) => up.put(bytes, false, false, &self.state).await,
                    Out::Refuse { is_head, close } => {
                        shared.counts.requests_refused.fetch_add(1, Ordering::Relaxed);
                        let retry_after = unavailable.as_ref().and_then(|u| u.retry_after.as_deref());
                        down.put(slow_down(is_head, close, retry_after), true, close, &self.state).await;
                    }
                }
            }
        }
    }

    async fn read_answers(mut self, mut from: ReadHalf<'_>, down: Line) -> io::Result<()> {
        let mut buffer = vec![0; PIECE_MAX];
        loop {
            let shared = Arc::clone(&self.shared);
            let n = self.read(&mut from, &shared.down, &mut buffer).await?;
            down.put(buffer[..n].to_vec(), false, n == 0, &self.state).await;
            if n == 0 {
                return Ok(());
            }
        }
    }

    async fn deliver(
        mut self,
        mut pieces: Receiver<Piece>,
        mut to: WriteHalf<'_>,
        is_down: bool,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut passed = Passed::default();
        while let Some(piece) = pieces.recv().await {
            sleep_until(piece.due).await;
            let (way, count) = match (is_down, piece.is_ours) {
                (true, true) => (None, None),
                (true, false) => (Some(Way::Down), Some(&shared.counts.bytes_down)),
                (false, _) => (Some(Way::Up), Some(&shared.counts.bytes_up)),
            };
            self.write(&mut to, &piece.bytes, way, &mut passed, count).await?;
            if piece.is_last {
                self.open().await;
                to.shutdown().await?;
                return Ok(());
            }
        }
        Ok(())
    }

    async fn write(
        &mut self,
        to: &mut WriteHalf<'_>,
        mut bytes: &[u8],
        way: Option<Way>,
        passed: &mut Passed,
        count: Option<&AtomicU64>,
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            let now = self.open().await;
            let (answers, flip) = match way {
                None => (Answers::Pass, None),
                Some(Way::Up) => (Answers::Pass, now.weather.flips.request),
                Some(Way::Down) => (now.weather.answers, now.weather.flips.answer),
            };
            let before = passed.since(now.generation);
            let Step { bytes: n, then } = answers.step(before, bytes.len());
            let flips = way.and_then(|way| {
                let first = |_: &usize| self.shared.flips_first(way, now.generation);
                place(n, before, flip).filter(first)
            });
            to.write_all(&flipped(&bytes[..n], flips)).await?;
            bytes = &bytes[n..];
            if way.is_some() {
                passed.bytes += n as u64;
            }
            if let Some(count) = count {
                count.fetch_add(n as u64, Ordering::Relaxed);
            }
            match then {
                Then::GoOn => {}
                Then::Reset => return Err(reset()),
                Then::Stall => self.changed().await,
                Then::Pause(every) => drop(timeout(every, self.changed()).await),
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Whether this is the first bit that flips in this direction and weather. Later calls return false.
    fn flips_first(&self, way: Way, generation: u64) -> bool {
        let first = self.flipped_in[way as usize].fetch_max(generation, Ordering::Relaxed) < generation;
        self.counts.bits_flipped.fetch_add(u64::from(first), Ordering::Relaxed);
        first
    }
}

/// The direction of bytes of client or store. Bytes made by the proxy have none.
#[derive(Clone, Copy)]
enum Way {
    Up,
    Down,
}

/// Number of bytes that passed on this connection in one direction, in the present weather.
#[derive(Default)]
struct Passed {
    generation: u64,
    bytes: u64,
}

impl Passed {
    fn since(&mut self, generation: u64) -> u64 {
        if self.generation != generation {
            *self = Self { generation, bytes: 0 };
        }
        self.bytes
    }
}

fn slow_down(is_head: bool, close: bool, retry_after: Option<&str>) -> Vec<u8> {
    let body = if is_head { "" } else { SLOW_DOWN };
    let retry_after = retry_after.map(|value| format!("retry-after: {value}\r\n")).unwrap_or_default();
    let close = if close { "connection: close\r\n" } else { "" };
    let len = body.len();
    let head = "HTTP/1.1 503 Slow Down\r\ncontent-type: application/xml\r\n";
    format!("{head}content-length: {len}\r\n{retry_after}{close}\r\n{body}").into_bytes()
}
