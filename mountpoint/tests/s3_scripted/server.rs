//! A TCP server that answers the n-th request with the n-th step of its script, whatever connection it comes on.
//!
//! The time is a test clock, which the client of the test shares. While the server rests or stalls it turns the clock itself, and looks
//! between two turns whether the client has left. Otherwise the clock creeps, so that pauses between tries end: so slowly that a machine
//! that is busy with other things for half a minute costs no try.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use mountpoint::clock::Clock;

/// One turn of the clock while the server waits ...
const TURN: Duration = Duration::from_secs(50);
/// ... and while no party waits, as far as the server can tell.
const CREEP: Duration = Duration::from_millis(50);
/// The machine's time between two turns.
const PAUSE: Duration = Duration::from_millis(1);

pub(crate) const EMPTY_LISTING: &[u8] =
    b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";

/// The server's act on one request.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The bytes of the answer, written as they are.
    pub(crate) say: Vec<u8>,
    /// A number of last bytes, and the time that the server rests before it sends them.
    rest: (usize, Duration),
    /// The number of these bytes that the server sends at a time, with the rest before each piece.
    piece: usize,
    /// Whether the step begins only once a later request was answered.
    is_overtaken: bool,
    pub(crate) then: Then,
}

/// The state of the connection after the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    KeepAlive,
    Close,
    Reset,
    /// Say nothing more until the client has left.
    Stall,
    /// Stall while the clock creeps: a client that must ask once more does so long before it gives up, however busy the machine is.
    Hang,
}

/// One received request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Number of its connection, in order of acceptance.
    pub(crate) connection: usize,
    /// The address of the server that the request reached.
    pub(crate) address: IpAddr,
    pub(crate) line: String,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

impl Step {
    /// A sound answer.
    pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Self {
        let mut say = format!("HTTP/1.1 {status} X\r\n");
        if !headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("content-length")) {
            say += &format!("content-length: {}\r\n", body.len());
        }
        for (name, value) in headers {
            say += &format!("{name}: {value}\r\n");
        }
        Self { say: [say.as_bytes(), b"\r\n", body].concat(), ..Self::silence(Then::KeepAlive) }
    }

    /// An error document.
    pub(crate) fn error(status: u16, code: &str) -> Self {
        let body = format!("<Error><Code>{code}</Code><Message>m</Message></Error>");
        Self::answer(status, &[], body.as_bytes())
    }

    /// Sends these bytes, and keeps the connection open.
    pub(crate) fn raw(say: Vec<u8>) -> Self {
        Self { say, ..Self::silence(Then::KeepAlive) }
    }

    /// A step that says nothing at all.
    pub(crate) fn silence(then: Then) -> Self {
        Self { say: Vec::new(), rest: (0, Duration::ZERO), piece: usize::MAX, is_overtaken: false, then }
    }

    pub(crate) fn then(self, then: Then) -> Self {
        Self { then, ..self }
    }

    /// Says nothing for so long first.
    pub(crate) fn after(self, rest: Duration) -> Self {
        Self { rest: (self.say.len(), rest), ..self }
    }

    /// Says nothing before a later request was answered, while the clock creeps as in [`Then::Hang`]. A rest begins then.
    pub(crate) fn overtaken(self) -> Self {
        Self { is_overtaken: true, ..self }
    }

    /// Stops before the last bytes, for a time.
    pub(crate) fn pause(self, before: usize, rest: Duration) -> Self {
        Self { rest: (before, rest), ..self }
    }

    /// Sends the last bytes a piece at a time, and rests for a time before each piece.
    pub(crate) fn drip(self, last: usize, piece: usize, rest: Duration) -> Self {
        Self { rest: (last, rest), piece, ..self }
    }

    /// Cuts the answer's last bytes off.
    pub(crate) fn cut(mut self, bytes: usize) -> Self {
        self.say.truncate(self.say.len() - bytes);
        self
    }
}

#[derive(Default)]
struct State {
    script: std::collections::VecDeque<Step>,
    requests: Vec<Request>,
    /// Number of answered requests.
    answered: usize,
}

/// A scripted server, which runs until the test ends.
pub(crate) struct Scripted {
    port: u16,
    state: Arc<Mutex<State>>,
    /// The only holder of the clock, which stands still without one.
    clock: Arc<Clock>,
}

impl Scripted {
    pub(crate) fn start(script: Vec<Step>) -> Self {
        Self::start_at(&[Ipv4Addr::LOCALHOST], script)
    }

    /// A server whose clock does not creep: an answer takes no time, unless the server rests.
    pub(crate) fn still(script: Vec<Step>) -> Self {
        Self::serving(&[Ipv4Addr::LOCALHOST], script)
    }

    /// One server, one script, on one port of all these addresses.
    pub(crate) fn start_at(addresses: &[Ipv4Addr], script: Vec<Step>) -> Self {
        let server = Self::serving(addresses, script);
        let creeping = Arc::downgrade(&server.clock);
        thread::spawn(move || {
            while let Some(clock) = creeping.upgrade() {
                clock.advance(CREEP);
                drop(clock);
                thread::sleep(PAUSE);
            }
        });
        server
    }

    fn serving(addresses: &[Ipv4Addr], script: Vec<Step>) -> Self {
        // A port that is free on the first one may be taken on another.
        let listeners = std::iter::repeat_with(|| listen(addresses)).find_map(Result::ok).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State { script: script.into(), ..State::default() }));
        let clock = Arc::new(Clock::manual());
        let accepted = Arc::new(AtomicUsize::new(0));
        for listener in listeners {
            let (shared, accepted, clock) = (Arc::clone(&state), Arc::clone(&accepted), (*clock).clone());
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let (shared, clock) = (Arc::clone(&shared), clock.clone());
                    let number = accepted.fetch_add(1, Ordering::SeqCst);
                    thread::spawn(move || serve(number, stream.unwrap(), &shared, &clock));
                }
            });
        }
        Self { port, state, clock }
    }

    /// A clock for the client.
    pub(crate) fn clock(&self) -> Clock {
        (*self.clock).clone()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    /// Adds steps behind the remaining ones.
    pub(crate) fn append(&self, steps: impl IntoIterator<Item = Step>) {
        self.state.lock().unwrap().script.extend(steps);
    }

    /// Number of steps without a request so far.
    pub(crate) fn left(&self) -> usize {
        self.state.lock().unwrap().script.len()
    }
}

fn listen(addresses: &[Ipv4Addr]) -> std::io::Result<Vec<TcpListener>> {
    let first = TcpListener::bind((addresses[0], 0))?;
    let port = first.local_addr()?.port();
    let others = addresses[1..].iter().map(|&address| TcpListener::bind((address, port)));
    std::iter::once(Ok(first)).chain(others).collect()
}

fn serve(connection: usize, mut stream: TcpStream, state: &Mutex<State>, clock: &Clock) {
    while let Some(request) = read_request(connection, &mut stream) {
        let (step, answered) = {
            let mut state = state.lock().unwrap();
            state.requests.push(request);
            (state.script.pop_front(), state.answered)
        };
        // An exhausted script is the test's mistake: say so in the client's error.
        let step = step.unwrap_or_else(|| Step::error(400, "ScriptExhausted"));
        let (first, last) = step.say.split_at(step.say.len() - step.rest.0);
        let is_due = || !step.is_overtaken || state.lock().unwrap().answered > answered;
        let mut said = turn(&stream, clock, || (!is_due()).then_some(CREEP));
        said = said.and_then(|()| stream.write_all(first));
        for piece in last.chunks(step.piece) {
            said =
                said.and_then(|()| rest(&stream, clock, step.rest.1)).and_then(|()| stream.write_all(piece));
        }
        if said.is_err() {
            return;
        }
        state.lock().unwrap().answered += 1;
        match step.then {
            Then::KeepAlive => {}
            Then::Close => return,
            Then::Reset => {
                // With zero linger, close sends RST; give what was said time to arrive.
                thread::sleep(Duration::from_millis(50));
                let linger = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
                linger.unwrap();
                return;
            }
            Then::Stall => {
                let _ = rest(&stream, clock, Duration::MAX);
                return;
            }
            Then::Hang => {
                let _ = turn(&stream, clock, || Some(CREEP));
                return;
            }
        }
    }
}

/// Turns the clock until so long has passed.
///
/// # Errors
/// The client has left meanwhile.
fn rest(stream: &TcpStream, clock: &Clock, long: Duration) -> std::io::Result<()> {
    let since = clock.now();
    turn(stream, clock, || {
        let left = long.saturating_sub(clock.now() - since);
        (!left.is_zero()).then_some(TURN.min(left))
    })
}

/// Turns the clock in steps of this length, until no time is left.
///
/// # Errors
/// The client has left meanwhile.
fn turn(stream: &TcpStream, clock: &Clock, by: impl Fn() -> Option<Duration>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PAUSE))?;
    while let Some(by) = by() {
        match stream.peek(&mut [0]) {
            Ok(0) => return Err(std::io::ErrorKind::ConnectionAborted.into()),
            Ok(_) => thread::sleep(PAUSE),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        clock.advance(by);
    }
    stream.set_read_timeout(None)
}

fn read_request(connection: usize, stream: &mut TcpStream) -> Option<Request> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.trim_end().split("\r\n");
    let line = lines.next()?.to_owned();
    let headers: Vec<(String, String)> =
        lines.map(|l| l.split_once(": ").unwrap()).map(|(n, v)| (n.to_lowercase(), v.to_owned())).collect();
    let length = headers.iter().find(|(n, _)| n == "content-length").map_or(0, |(_, v)| v.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    let address = stream.local_addr().unwrap().ip();
    Some(Request { connection, address, line, headers, body })
}
