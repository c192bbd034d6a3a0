//! A TCP server that answers the n-th request with the n-th step of its script, whatever connection it comes on.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

pub(crate) const EMPTY_LISTING: &[u8] =
    b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";

/// What to do with one request.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Written as it is.
    pub(crate) say: Vec<u8>,
    /// The server rests before it says the last so many bytes, for so many milliseconds.
    rest: (usize, u64),
    pub(crate) then: Then,
}

/// What follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    KeepAlive,
    Close,
    Reset,
    /// Say nothing more for so many milliseconds, then close.
    Stall(u64),
}

/// One request as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Number of its connection, in order of acceptance.
    pub(crate) connection: usize,
    /// Which of the server's addresses it came to.
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
        Self { say: [say.as_bytes(), b"\r\n", body].concat(), rest: (0, 0), then: Then::KeepAlive }
    }

    /// An error document.
    pub(crate) fn error(status: u16, code: &str) -> Self {
        let body = format!("<Error><Code>{code}</Code><Message>m</Message></Error>");
        Self::answer(status, &[], body.as_bytes())
    }

    /// These bytes, and the connection stays open.
    pub(crate) fn raw(say: Vec<u8>) -> Self {
        Self { say, rest: (0, 0), then: Then::KeepAlive }
    }

    /// Nothing at all.
    pub(crate) fn silence(then: Then) -> Self {
        Self { say: Vec::new(), rest: (0, 0), then }
    }

    pub(crate) fn then(self, then: Then) -> Self {
        Self { then, ..self }
    }

    /// Says nothing for so many milliseconds first.
    pub(crate) fn after(self, ms: u64) -> Self {
        Self { rest: (self.say.len(), ms), ..self }
    }

    /// Stops before the last so many bytes, for so many milliseconds.
    pub(crate) fn pause(self, before: usize, ms: u64) -> Self {
        Self { rest: (before, ms), ..self }
    }

    /// Without its last bytes.
    pub(crate) fn cut(mut self, bytes: usize) -> Self {
        self.say.truncate(self.say.len() - bytes);
        self
    }
}

#[derive(Default)]
struct State {
    script: std::collections::VecDeque<Step>,
    requests: Vec<Request>,
}

/// Runs until the test ends.
pub(crate) struct Scripted {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Scripted {
    pub(crate) fn start(script: Vec<Step>) -> Self {
        Self::start_at(&[Ipv4Addr::LOCALHOST], script)
    }

    /// One server, one script, on one port of all these addresses.
    pub(crate) fn start_at(addresses: &[Ipv4Addr], script: Vec<Step>) -> Self {
        // A port that is free on the first one may be taken on another.
        let listeners = std::iter::repeat_with(|| listen(addresses)).find_map(Result::ok).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State { script: script.into(), requests: Vec::new() }));
        let accepted = Arc::new(AtomicUsize::new(0));
        for listener in listeners {
            let (shared, accepted) = (Arc::clone(&state), Arc::clone(&accepted));
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let (shared, number) = (Arc::clone(&shared), accepted.fetch_add(1, Ordering::SeqCst));
                    thread::spawn(move || serve(number, stream.unwrap(), &shared));
                }
            });
        }
        Self { port, state }
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

    /// Steps that nobody asked for.
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

fn serve(connection: usize, mut stream: TcpStream, state: &Mutex<State>) {
    while let Some(request) = read_request(connection, &mut stream) {
        let step = {
            let mut state = state.lock().unwrap();
            state.requests.push(request);
            state.script.pop_front()
        };
        // An exhausted script is the test's mistake: say so in the client's error.
        let step = step.unwrap_or_else(|| Step::error(400, "ScriptExhausted"));
        let (first, last) = step.say.split_at(step.say.len() - step.rest.0);
        let mut said = stream.write_all(first);
        thread::sleep(Duration::from_millis(step.rest.1));
        said = said.and_then(|()| stream.write_all(last));
        if said.is_err() {
            return;
        }
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
            Then::Stall(ms) => {
                thread::sleep(Duration::from_millis(ms));
                return;
            }
        }
    }
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
