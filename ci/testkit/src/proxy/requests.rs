//! Finds the beginning and end of HTTP requests in a client's bytes.
//!
//! Enters: bytes, in pieces cut anywhere. Leaves: the bytes to pass on, and the requests that the proxy must answer. A head passes only
//! as a whole, so a request is judged before its first byte passes. Bytes that are not HTTP/1.1 (such as TLS), and bytes after
//! a request with a chunked body, pass unchanged.

/// The longest head that is parsed, in bytes; a connection with a longer one passes unchanged from there on.
const HEAD_MAX: usize = 64 << 10;

const HEADERS_MAX: usize = 128;

/// Output: bytes to pass, or a request to answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Out {
    /// Bytes for the store.
    Pass(Vec<u8>),
    /// A refused request is complete: the proxy answers it.
    Refuse {
        /// Whether the request is a HEAD, whose answer has no body.
        is_head: bool,
        /// Whether the connection ends with the answer: the client waits for `100 Continue`, so its body may follow or not.
        close: bool,
    },
}

/// The parser of one connection's requests.
#[derive(Debug, Default)]
pub(super) struct Requests(State);

#[derive(Debug)]
enum State {
    Head(Vec<u8>),
    Body { left: u64, refused: Option<bool> },
    Passing,
    Closing,
}

impl Default for State {
    fn default() -> Self {
        Self::Head(Vec::new())
    }
}

impl Requests {
    /// Parses the next bytes. Calls `refuses` once for each request, at the end of its head.
    pub(super) fn take(&mut self, mut bytes: &[u8], mut refuses: impl FnMut() -> bool) -> Vec<Out> {
        let mut out = Vec::new();
        while !bytes.is_empty() {
            self.0 = match std::mem::take(&mut self.0) {
                State::Head(mut head) => {
                    let held = head.len();
                    head.extend_from_slice(bytes);
                    let read = Head::read(&head);
                    // The earlier bytes were not a whole head, so the head ends in the new bytes.
                    bytes = if let Read::Whole(parsed) = &read { &bytes[parsed.len - held..] } else { &[] };
                    match read {
                        Read::More => State::Head(head),
                        Read::Foreign => {
                            out.push(Out::Pass(head));
                            State::Passing
                        }
                        Read::Whole(parsed) => {
                            head.truncate(parsed.len);
                            parsed.next(head, refuses(), &mut out)
                        }
                    }
                }
                State::Body { left, refused } => {
                    let n = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    let (body, rest) = bytes.split_at(n);
                    bytes = rest;
                    let left = left - n as u64;
                    match refused {
                        None => out.push(Out::Pass(body.to_vec())),
                        Some(is_head) if left == 0 => out.push(Out::Refuse { is_head, close: false }),
                        Some(_) => {}
                    }
                    if left == 0 { State::default() } else { State::Body { left, refused } }
                }
                State::Passing => {
                    out.push(Out::Pass(bytes.to_vec()));
                    bytes = &[];
                    State::Passing
                }
                State::Closing => {
                    bytes = &[];
                    State::Closing
                }
            };
        }
        out
    }
}

enum Read {
    More,
    Foreign,
    Whole(Head),
}

/// The facts of a head that the proxy needs.
struct Head {
    len: usize,
    body: u64,
    is_head: bool,
    chunked: bool,
    expects: bool,
}

impl Head {
    fn read(bytes: &[u8]) -> Read {
        if !bytes[0].is_ascii_uppercase() && !bytes[0].is_ascii_whitespace() {
            return Read::Foreign;
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(len)) => {
                let value = |name: &str| {
                    let header = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
                    header.map(|header| String::from_utf8_lossy(header.value).trim().to_ascii_lowercase())
                };
                Read::Whole(Self {
                    len,
                    body: value("content-length").and_then(|value| value.parse().ok()).unwrap_or(0),
                    is_head: request.method == Some("HEAD"),
                    chunked: value("transfer-encoding").is_some(),
                    expects: value("expect").is_some(),
                })
            }
            Ok(httparse::Status::Partial) if bytes.len() <= HEAD_MAX => Read::More,
            Ok(httparse::Status::Partial) | Err(_) => Read::Foreign,
        }
    }

    fn next(&self, head: Vec<u8>, refuse: bool, out: &mut Vec<Out>) -> State {
        if self.chunked || !refuse {
            out.push(Out::Pass(head));
        }
        match (self.chunked, refuse, self.body) {
            (true, ..) => State::Passing,
            (false, false, 0) => State::default(),
            (false, false, left) => State::Body { left, refused: None },
            (false, true, 0) => {
                out.push(Out::Refuse { is_head: self.is_head, close: false });
                State::default()
            }
            (false, true, _) if self.expects => {
                out.push(Out::Refuse { is_head: self.is_head, close: true });
                State::Closing
            }
            (false, true, left) => State::Body { left, refused: Some(self.is_head) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUT: &[u8] = b"PUT /b/k HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello";
    const GET: &[u8] = b"GET /b/k HTTP/1.1\r\nHost: x\r\n\r\n";
    const HEAD: &[u8] = b"HEAD /b/k HTTP/1.1\r\nHost: x\r\n\r\n";

    /// The bytes that pass, and the number of refused requests, however the bytes are cut.
    fn run(bytes: &[u8], piece: usize, mut refuses: impl FnMut() -> bool) -> (Vec<u8>, Vec<Out>) {
        let mut requests = Requests::default();
        let (mut passed, mut refused) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            for out in requests.take(piece, &mut refuses) {
                match out {
                    Out::Pass(bytes) => passed.extend(bytes),
                    refusal => refused.push(refusal),
                }
            }
        }
        (passed, refused)
    }

    #[test]
    fn requests_are_told_apart_wherever_the_pieces_end() {
        let all = [PUT, GET, PUT, HEAD].concat();
        let refusal = |is_head| Out::Refuse { is_head, close: false };
        for piece in 1..=all.len() {
            let mut number = 0;
            let second_and_fourth = || {
                number += 1;
                number % 2 == 0
            };
            let (passed, refused) = run(&all, piece, second_and_fourth);
            assert_eq!(passed, [PUT, PUT].concat(), "cut every {piece} bytes");
            assert_eq!(refused, [refusal(false), refusal(true)]);
            assert_eq!(
                run(&all, piece, || true),
                (vec![], vec![refusal(false), refusal(false), refusal(false), refusal(true)])
            );
            assert_eq!(run(&all, piece, || false), (all.clone(), vec![]));
        }
    }

    #[test]
    fn a_refused_request_that_expects_to_be_told_to_go_on_ends_its_connection() {
        let expecting = b"PUT /b/k HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        let (passed, refused) = run(&[expecting.as_slice(), GET].concat(), 7, || true);
        assert_eq!((passed, refused), (vec![], vec![Out::Refuse { is_head: false, close: true }]));
    }

    #[test]
    fn what_is_no_request_passes() {
        for foreign in [b"\x16\x03\x01\x02\x00".as_slice(), b"NO SUCH\x00THING\r\n\r\n"] {
            assert_eq!(run(foreign, 1, || true), (foreign.to_vec(), vec![]));
        }
        let chunked = b"PUT /k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        assert_eq!(run(chunked, 3, || true), (chunked.to_vec(), vec![]));
    }
}
