//! Tests of the proxy between plain sockets, for each kind of weather.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use super::*;
use crate::{DeadPort, until};

/// The time for which tests look whether nothing comes. If it is too short, a test may miss an error, but never fails wrongly.
const A_MOMENT: Duration = Duration::from_millis(100);

/// The limit of one read; a read that takes longer fails its test.
const LIMIT: Duration = Duration::from_secs(60);

/// A server that does this with each connection.
fn server(each: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let each = Arc::new(each);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let each = Arc::clone(&each);
            thread::spawn(move || each(stream.unwrap()));
        }
    });
    address
}

/// A server that sends back what it gets.
fn echo() -> SocketAddr {
    server(|mut stream| {
        let mut back = stream.try_clone().unwrap();
        let _ = std::io::copy(&mut stream, &mut back);
        let _ = back.shutdown(Shutdown::Write);
    })
}

/// A server that sends zeros until its client is gone.
fn source() -> SocketAddr {
    server(|mut stream| while stream.write_all(&[0; 4096]).is_ok() {})
}

fn client(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn says(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    stream.write_all(bytes).unwrap();
    hears(stream, bytes)
}

fn hears(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).is_ok() && back == bytes
}

/// Whether nothing comes and nothing is closed.
fn is_silent(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(A_MOMENT)).unwrap();
    let read = stream.read(&mut [0]);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    matches!(read, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

fn is_reset(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    matches!(stream.read_to_end(&mut rest), Err(error) if error.kind() == ErrorKind::ConnectionReset)
}

#[test]
fn bytes_pass_both_ways_unchanged_and_are_counted() {
    let proxy = Proxy::start(echo());
    let bytes: Vec<u8> = (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let stream = client(&proxy);
    let (mut send, sent) = (stream.try_clone().unwrap(), bytes.clone());
    let sender = thread::spawn(move || {
        send.write_all(&sent).unwrap();
        send.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    (&stream).read_to_end(&mut back).unwrap();
    sender.join().unwrap();
    assert!(back == bytes, "{} bytes came back", back.len());
    let counts = proxy.counts();
    assert_eq!((counts.connections, counts.bytes_up, counts.bytes_down), (1, 1 << 20, 1 << 20));
}

#[test]
fn a_port_that_refuses_answers_again_later_and_its_connections_are_reset() {
    let proxy = Proxy::start(echo());
    for _ in 0..3 {
        let mut stream = client(&proxy);
        assert!(says(&mut stream, b"hello"));
        proxy.set(Weather::clear().refused());
        let refused = TcpStream::connect(proxy.address()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert!(is_reset(&mut stream));
        proxy.set(Weather::clear());
    }
    assert!(says(&mut client(&proxy), b"hello again"));
}

#[test]
fn a_black_hole_swallows_and_gives_back() {
    let proxy = Proxy::start(echo());
    let mut old = client(&proxy);
    assert!(says(&mut old, b"before"));
    proxy.set(Weather::clear().black_hole());
    let mut new = client(&proxy);
    old.write_all(b"old").unwrap();
    new.write_all(b"new").unwrap();
    assert!(is_silent(&mut old) && is_silent(&mut new));
    proxy.set(Weather::clear());
    assert!(hears(&mut old, b"old") && hears(&mut new, b"new"));
}

#[test]
fn connects_go_unanswered_until_the_weather_clears() {
    let proxy = Proxy::start(echo());
    let mut old = client(&proxy);
    assert!(says(&mut old, b"before"));
    proxy.set(Weather::clear().silent_syns());
    for _ in 0..3 {
        let connected = TcpStream::connect_timeout(&proxy.address(), A_MOMENT);
        assert_eq!(connected.unwrap_err().kind(), ErrorKind::TimedOut);
    }
    old.write_all(b"old").unwrap();
    assert!(is_silent(&mut old));
    // A connect that waits goes on by itself, as the kernel repeats its SYN.
    let address = proxy.address();
    let waiting = thread::spawn(move || TcpStream::connect(address).unwrap());
    thread::sleep(A_MOMENT);
    proxy.set(Weather::clear());
    let mut new = waiting.join().unwrap();
    new.set_read_timeout(Some(LIMIT)).unwrap();
    assert!(hears(&mut old, b"old") && says(&mut new, b"new") && says(&mut client(&proxy), b"another"));
    assert_eq!(proxy.counts().connections, 3, "ours does not count");
}

#[test]
fn half_open_connections_stay_dead_and_new_ones_work() {
    let proxy = Proxy::start(echo());
    let mut old = client(&proxy);
    assert!(says(&mut old, b"before"));
    proxy.set(Weather::clear().half_open());
    old.write_all(b"lost").unwrap();
    assert!(says(&mut client(&proxy), b"new"));
    proxy.set(Weather::clear());
    assert!(says(&mut client(&proxy), b"new"));
    assert!(is_silent(&mut old));
}

/// A server that answers each request with its number on the connection.
fn counting() -> SocketAddr {
    server(|mut stream| {
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        let mut number = 0;
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            seen.extend_from_slice(&buffer[..n]);
            while let Some(end) = seen.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                seen.drain(..end + 4);
                number += 1;
                let _ = stream
                    .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{number}").as_bytes());
            }
        }
    })
}

/// Sends one request. Returns the head and the body of its answer.
fn ask(stream: &mut TcpStream, method: &str, body: &[u8]) -> (String, String) {
    let head = format!("{method} /b/k HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    let head = String::from_utf8(answer).unwrap();
    let len = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; len.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

#[test]
fn requests_are_refused_and_their_connection_goes_on() {
    let proxy = Proxy::start(counting());
    let mut stream = client(&proxy);
    assert_eq!(ask(&mut stream, "GET", b"").1, "1");
    proxy.set(Weather::clear().unavailable(Some("7".to_owned())));
    let (head, body) = ask(&mut stream, "PUT", &[b'x'; 100_000]);
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("\r\nretry-after: 7\r\n"), "{head}");
    assert!(body.contains("<Code>SlowDown</Code>"), "{body}");
    assert!(ask(&mut stream, "HEAD", b"").0.starts_with("HTTP/1.1 503 "));
    proxy.set(Weather::clear().unavailable(None));
    assert!(!ask(&mut stream, "GET", b"").0.contains("retry-after"));
    proxy.set(Weather::clear());
    assert_eq!(ask(&mut stream, "GET", b"").1, "2", "the server saw none of them");
    let counts = proxy.counts();
    assert_eq!((counts.connections, counts.requests, counts.requests_refused), (1, 5, 3));
}

#[test]
fn a_share_of_the_requests_is_refused_the_same_ones_each_time() {
    let run = |seed| {
        let proxy = Proxy::start(counting());
        proxy.set(Weather::clear().unavailable_share(0.5, seed));
        let mut stream = client(&proxy);
        (0..64).map(|_| ask(&mut stream, "GET", b"").0.contains("503")).collect::<Vec<_>>()
    };
    let first = run(1);
    assert!(first.contains(&true) && first.contains(&false));
    assert_eq!(first, run(1));
    assert_ne!(first, run(2));
}

#[test]
fn latency_is_added_once_to_each_round_trip() {
    let proxy = Proxy::start(echo());
    proxy.set(Weather::clear().latency(A_MOMENT));
    let mut stream = client(&proxy);
    let start = Instant::now();
    for _ in 0..3 {
        assert!(says(&mut stream, b"ping"));
    }
    assert!(start.elapsed() >= 3 * A_MOMENT, "{:?}", start.elapsed());
}

/// A reader until its connection ends, and the number of bytes so far.
fn reader(proxy: &Proxy) -> Arc<AtomicU64> {
    let (mut stream, got) = (client(proxy), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&got);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            counted.fetch_add(n as u64, Ordering::Relaxed);
        }
    });
    got
}

#[test]
fn a_link_is_as_slow_as_it_was_set_and_shared_fairly() {
    const RATE: u64 = 1 << 20;
    let proxy = Proxy::start(source());
    proxy.set(Weather::clear().rate(RATE / 16));
    let readers: Vec<_> = (0..4).map(|_| reader(&proxy)).collect();
    let read = || readers.iter().map(|got| got.load(Ordering::Relaxed)).collect::<Vec<_>>();
    // A busy machine may keep a reader from bytes that the link gave it: they count, too.
    let delivered = || {
        proxy.set(Weather::clear().black_hole());
        until("all that passed is read", || read().iter().sum::<u64>() == proxy.counts().bytes_down);
        read()
    };
    // Until the last of them was connected, the first ones had the link to themselves.
    until("each of them gets bytes", || read().iter().all(|got| *got > 0));
    let before = delivered();
    let (start, end) = (Instant::now(), proxy.counts().bytes_down + RATE / 2);
    proxy.set(Weather::clear().rate(RATE));
    until("half a second's bytes have passed", || proxy.counts().bytes_down >= end);
    let took = start.elapsed();
    let got: Vec<_> = delivered().iter().zip(before).map(|(after, before)| after - before).collect();
    assert!(took >= Duration::from_millis(450), "half a second's bytes in {took:?}");
    let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
    assert!(most - least <= 64 << 10, "unfair: {got:?}");
}

#[test]
fn an_answer_is_reset_at_its_byte() {
    // More than a piece. Less than the window of a new connection (64 KiB): a reset throws away what waits for room in it.
    const AT: usize = 40_000;
    let proxy = Proxy::start(source());
    proxy.set(Weather::clear().reset_answers_after(AT as u64));
    for _ in 0..2 {
        let mut stream = client(&proxy);
        let mut got = Vec::new();
        let error = stream.read_to_end(&mut got).unwrap_err();
        assert_eq!((got.len(), error.kind()), (AT, ErrorKind::ConnectionReset));
    }
}

#[test]
fn an_answer_stalls_at_its_byte_and_goes_on_when_the_weather_clears() {
    let proxy = Proxy::start(echo());
    proxy.set(Weather::clear().stall_answers_after(3));
    let mut stream = client(&proxy);
    stream.write_all(b"hello").unwrap();
    assert!(hears(&mut stream, b"hel") && is_silent(&mut stream));
    proxy.set(Weather::clear());
    assert!(hears(&mut stream, b"lo"));
}

#[test]
fn a_request_that_is_never_answered_has_reached_the_server() {
    let (asked, seen) = mpsc::channel();
    let to = server(move |mut stream| {
        let mut request = [0; 4];
        stream.read_exact(&mut request).unwrap();
        stream.write_all(b"pong").unwrap();
        asked.send(request).unwrap();
        let _ = stream.read(&mut request);
    });
    let proxy = Proxy::start(to);
    proxy.set(Weather::clear().never_answered());
    let mut stream = client(&proxy);
    stream.write_all(b"ping").unwrap();
    assert_eq!(&seen.recv_timeout(LIMIT).unwrap(), b"ping");
    assert!(is_silent(&mut stream));
    assert_eq!(proxy.counts().bytes_down, 0);
}

#[test]
fn an_answer_drips() {
    let proxy = Proxy::start(echo());
    proxy.set(Weather::clear().drip(2, Duration::from_millis(30)));
    let mut stream = client(&proxy);
    let start = Instant::now();
    assert!(says(&mut stream, b"12345678"));
    assert!(start.elapsed() >= Duration::from_millis(90), "{:?}", start.elapsed());
    // A drip of an hour ends with its weather.
    proxy.set(Weather::clear().drip(1, Duration::from_secs(3600)));
    stream.write_all(b"ab").unwrap();
    assert!(hears(&mut stream, b"a") && is_silent(&mut stream));
    proxy.set(Weather::clear());
    assert!(hears(&mut stream, b"b"));
}

#[test]
fn what_the_server_closes_is_closed_and_a_server_that_is_away_resets() {
    let proxy = Proxy::start(server(|mut stream| {
        let _ = stream.write_all(b"bye");
    }));
    let mut got = Vec::new();
    client(&proxy).read_to_end(&mut got).unwrap();
    assert_eq!(got, b"bye");
    let away = DeadPort::reserve();
    assert!(is_reset(&mut client(&Proxy::start(away.address()))));
}

#[test]
fn one_bit_flips_on_the_first_connection_that_gets_so_far() {
    let proxy = Proxy::start(echo());
    proxy.set(Weather::clear().flip_request_byte(5));
    let (mut one, mut two) = (client(&proxy), client(&proxy));
    assert!(says(&mut one, b"abc") && says(&mut two, b"abc"));
    two.write_all(b"abcd").unwrap();
    assert!(hears(&mut two, b"abbd"), "the sixth byte of it");
    assert!(says(&mut one, b"abcdefg"), "and no other one");
    proxy.set(Weather::clear().flip_answer_byte(0));
    one.write_all(b"abc").unwrap();
    assert!(hears(&mut one, b"`bc"), "counted from now");
    assert_eq!(proxy.counts().bits_flipped, 2);
}
