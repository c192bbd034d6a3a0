//! A TCP proxy between a mount and its store that simulates a bad network.
//!
//! Enters: the store's address and, at any time, a [`Weather`]. Leaves: bytes, late or never; counts. The proxy runs on a thread with its
//! own runtime, for tests without one, and listens on loopback only. It never changes the bytes that pass, unless the weather flips a
//! bit.

mod connection;
mod link;
mod requests;
#[cfg(test)]
mod tests;
mod weather;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use link::Link;
use weather::Passage;
pub use weather::Weather;

/// Size of each socket's buffers, in bytes: the kernel must not queue megabytes behind a slow link.
const SOCKET_BUFFER: u32 = 64 << 10;

/// Most connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Longest wait for a connect to our own full listener; after it the connect counts as unanswered.
const NO_ANSWER: Duration = Duration::from_millis(100);

/// A listener on loopback that forwards connections to a store. Dropping it closes all connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// The weather; dropping it ends the thread.
    state: Option<watch::Sender<State>>,
    thread: Option<JoinHandle<()>>,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted connections.
    pub connections: u64,
    /// Bytes of clients that were delivered to the store.
    pub bytes_up: u64,
    /// Bytes of the store that were delivered to clients.
    pub bytes_down: u64,
    /// Requests over plain HTTP whose head was read, including refused ones.
    pub requests: u64,
    /// Requests that the proxy answered with 503.
    pub requests_refused: u64,
    /// Flipped bits.
    pub bits_flipped: u64,
}

/// The state that all connections share.
#[derive(Debug)]
struct Shared {
    to: SocketAddr,
    up: Link,
    down: Link,
    counts: AtomicCounts,
    /// The weather in which a bit flipped last, up and down, by generation.
    flipped_in: [AtomicU64; 2],
    /// The generation of the weather that the listener has applied.
    followed: Mutex<u64>,
    follows: Condvar,
}

#[derive(Debug, Default)]
struct AtomicCounts {
    connections: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    requests: AtomicU64,
    requests_refused: AtomicU64,
    bits_flipped: AtomicU64,
}

/// The weather, and the effects that outlast it.
#[derive(Clone, Debug, Default)]
struct State {
    weather: Arc<Weather>,
    /// The number of the weather; it grows with each change.
    generation: u64,
    /// Connections with a lower number never pass bytes again.
    dead_below: u64,
}

impl Proxy {
    /// Starts a proxy in front of this server, on a new port of 127.0.0.1, in clear weather.
    ///
    /// # Panics
    /// There is no free port, or no thread.
    pub fn start(to: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let reserved = socket().expect("a socket");
        reserved.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port of loopback");
        let address = reserved.local_addr().expect("its number");
        let listener = {
            let _in_runtime = runtime.enter();
            listen(address).expect("listen on loopback")
        };
        let (state, receiver) = watch::channel(State::default());
        let shared = Arc::new(Shared {
            to,
            up: Link::new(),
            down: Link::new(),
            counts: AtomicCounts::default(),
            flipped_in: Default::default(),
            followed: Mutex::new(0),
            follows: Condvar::new(),
        });
        let thread = std::thread::Builder::new().name("fault-proxy".to_owned());
        let of_thread = Arc::clone(&shared);
        let thread = thread.spawn(move || {
            // This socket reserves the port while no socket listens on it.
            let _reserved = reserved;
            runtime.block_on(serve(address, listener, of_thread, receiver));
        });
        Self { address, shared, state: Some(state), thread: Some(thread.expect("a thread")) }
    }

    /// The URL of the proxy: `http://127.0.0.1:PORT`
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The address of the proxy.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the weather, also for open connections. When it returns, new connections meet the new weather, and at most the piece
    /// that is being written (16 KiB) passes by the old one.
    ///
    /// # Panics
    /// The proxy's thread has ended.
    pub fn set(&self, weather: Weather) {
        let Some(state) = &self.state else { return };
        let mut generation = 0;
        state.send_modify(|state| {
            state.generation += 1;
            if weather.half_open {
                state.dead_below = self.shared.counts.connections.load(Ordering::Relaxed);
            }
            state.weather = Arc::new(weather);
            generation = state.generation;
        });
        let followed = self.shared.followed.lock().expect("the lock of a thread that lives");
        let wait =
            self.shared.follows.wait_timeout_while(followed, crate::until::LIMIT, |at| *at < generation);
        let (_followed, waited) = wait.expect("the lock of a thread that lives");
        assert!(!waited.timed_out(), "the fault proxy does not follow the weather");
    }

    /// The counts since the start.
    pub fn counts(&self) -> Counts {
        let counts = &self.shared.counts;
        let AtomicCounts { connections, bytes_up, bytes_down, requests, requests_refused, bits_flipped } =
            counts;
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            connections: value(connections),
            bytes_up: value(bytes_up),
            bytes_down: value(bytes_down),
            requests: value(requests),
            requests_refused: value(requests_refused),
            bits_flipped: value(bits_flipped),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state = None;
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Err(_)) = ended
            && !std::thread::panicking()
        {
            panic!("the fault proxy panicked");
        }
    }
}

/// A socket with small buffers, whose port another socket of this process may also bind.
fn socket() -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    Ok(socket)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket()?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Listens as the weather says, until the proxy is dropped.
async fn serve(
    address: SocketAddr,
    listener: TcpListener,
    shared: Arc<Shared>,
    mut state: watch::Receiver<State>,
) {
    let mut connections = JoinSet::new();
    let mut open = Some(listener);
    let mut is_silent = false;
    // This connection fills the listener's queue while SYNs must stay unanswered.
    let mut _filler: Option<TcpStream> = None;
    let mut filled_from = None;
    loop {
        let State { weather, generation, .. } = state.borrow_and_update().clone();
        if weather.passage == Passage::Refused {
            if let Some(listener) = open.take() {
                // The listener is shut down by a call, not by closing it: a child process of the test has the socket open, too, until
                // it executes.
                rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).expect("end a listener");
            }
        } else if open.is_none() {
            open = Some(listen(address).expect("listen again on the reserved port"));
        }
        let silent = weather.passage == Passage::SilentSyns;
        if let Some(listener) = open.as_ref().filter(|_| silent != is_silent) {
            // Linux drops the SYNs of a listener whose queue is full, and one connection fills a queue of length 0.
            rustix::net::listen(listener, if silent { 0 } else { BACKLOG as i32 }).expect("change the queue");
            if silent {
                let filler = timeout(NO_ANSWER, TcpStream::connect(address)).await.ok().and_then(Result::ok);
                filled_from = filler.as_ref().and_then(|filler| filler.local_addr().ok());
                _filler = filler;
            } else {
                _filler = None;
            }
        }
        is_silent = silent && open.is_some();
        *shared.followed.lock().expect("the lock of a test that lives") = generation;
        shared.follows.notify_all();
        loop {
            let accepted = async {
                match &open {
                    Some(listener) if !silent => listener.accept().await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = state.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                accepted = accepted => match accepted {
                    Ok((_, from)) if Some(from) == filled_from => filled_from = None,
                    Ok((client, _)) => {
                        let number = shared.counts.connections.fetch_add(1, Ordering::Relaxed);
                        let _ = client.set_nodelay(true);
                        connections.spawn(connection::carry(number, client, Arc::clone(&shared), state.clone()));
                    }
                    // An error here is mostly a lack of descriptors: a connection may end meanwhile.
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                },
                Some(ended) = connections.join_next() => ended.expect("a connection of the fault proxy panicked"),
            }
        }
    }
}
