//! Bytes behind an answer: whether the connection serves another request, and which bytes belong to a request.

use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpSocket;

use super::*;
use crate::clock::Clock;
use crate::net::authority::Authority;
use crate::net::body::Body;
use crate::net::connection::Connection;
use crate::net::flow::watch::Watch;
use crate::net::tls::Tls;
use crate::net::tls::tests::keys::{ALERT, ASKS, HANDSHAKE, UPDATE};

/// Bytes that the store sends in one piece with its answer.
type Behind = fn(&mut ServerConnection) -> Vec<u8>;

/// Takes the sealed bytes that a store did not send.
fn sealed_by(store: &mut ServerConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while store.wants_write() {
        store.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// A record of content, of 100 bytes.
fn content(store: &mut ServerConnection) -> Vec<u8> {
    store.writer().write_all(&[b'x'; 100]).unwrap();
    sealed_by(store)
}

/// New keys.
fn update(store: &mut ServerConnection) -> Vec<u8> {
    store.refresh_traffic_keys().unwrap();
    sealed_by(store)
}

/// Whether a connection by `suite` serves another request after the answer to this one. `body`: of the request, and of each one before.
async fn serves_on(suite: SupportedCipherSuite, body: &'static [u8], behind: Behind) -> bool {
    let (mut store, client) = store_of(suite);
    store.send_tls13_tickets = 0;
    let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let served = thread::spawn(move || {
        let mut store = handshake(store.into(), listener.accept().unwrap().0).unwrap();
        for is_last in [false, true] {
            let mut request = Vec::new();
            while !request.ends_with(&[&b"\r\n\r\n"[..], body].concat()) {
                let mut byte = [0];
                store.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            store.conn.writer().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
            let mut says = sealed_by(&mut store.conn);
            if is_last {
                says.extend(behind(&mut store.conn));
            }
            store.sock.write_all(&says).unwrap();
        }
        store // open, until the test has looked
    });
    let tls = Tls(Arc::new(client.into()));
    let authority = Authority { tls: true, host: NAME.into(), port: address.port() };
    let tcp = TcpStream::connect(address).await.unwrap();
    let clock = Clock::manual();
    let mut connection = Connection::open(&authority, None, tcp, address, &tls, clock.now()).await.unwrap();
    for _ in 0..2 {
        assert!(connection.is_reusable(), "nothing came yet, or nothing but the answer");
        let long = Duration::from_secs(60);
        let mut watch = Watch::new(&clock, &connection.moved, long, clock.now() + long);
        let request = http::Request::builder().method("PUT").uri("/k").header("content-length", body.len());
        let request = request.body(Body::new(&[Bytes::from_static(body)])).unwrap();
        connection.send(request, &mut watch).await.unwrap();
        let mut got = Vec::new();
        while let Some(piece) = connection.receive(&mut watch).await.unwrap() {
            got.extend(piece);
        }
        assert_eq!(got, b"ok");
    }
    let serves_on = connection.is_reusable();
    drop(served.join().unwrap());
    serves_on
}

#[tokio::test]
async fn a_connection_with_bytes_behind_its_answer_serves_no_other_request() {
    for body in [&b""[..], b"body"] {
        for suite in [TLS13, TLS12] {
            assert!(serves_on(suite, body, |_| Vec::new()).await, "nothing came");
            let refused: [(Behind, &str); 7] = [
                (content, "a record of content"),
                (|store| content(store)[..1].to_vec(), "a byte"),
                (|store| content(store)[..4].to_vec(), "a part of a header"),
                (|store| content(store)[..5].to_vec(), "a header"),
                (|store| content(store)[..60].to_vec(), "half a record"),
                (|store| [content(store), content(store)[..60].to_vec()].concat(), "one and a half"),
                (
                    |store| {
                        store.send_close_notify();
                        sealed_by(store)
                    },
                    "the end",
                ),
            ];
            for (behind, what) in refused {
                assert!(!serves_on(suite, body, behind).await, "{suite:?}, {body:?}: {what}");
            }
        }
        // New keys are not part of an answer.
        assert!(serves_on(TLS13, body, update).await);
        assert!(!serves_on(TLS13, body, |store| [update(store), content(store)].concat()).await);
    }
}

#[tokio::test]
async fn a_connection_whose_last_body_waits_sealed_serves_no_other_request() {
    let (store, client) = store_of(TLS13);
    let (listens, dials) = (TcpSocket::new_v4().unwrap(), TcpSocket::new_v4().unwrap());
    listens.set_recv_buffer_size(4096).unwrap();
    dials.set_send_buffer_size(4096).unwrap();
    listens.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listens.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let served = thread::spawn(move || {
        let listener = listener.into_std().unwrap();
        listener.set_nonblocking(false).unwrap();
        let mut store = handshake(store.into(), listener.accept().unwrap().0).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            store.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        store.write_all(b"HTTP/1.1 403 X\r\ncontent-length: 0\r\n\r\n").unwrap();
        store
    });
    let tls = Tls(Arc::new(client.into()));
    let authority = Authority { tls: true, host: NAME.into(), port: address.port() };
    let tcp = dials.connect(address).await.unwrap();
    let (clock, long) = (Clock::manual(), Duration::from_secs(60));
    let opened = Connection::open(&authority, None, tcp, address, &tls, clock.now()).await;
    let mut connection = opened.unwrap();
    let mut watch = Watch::new(&clock, &connection.moved, long, clock.now() + long);
    // More than the kernel takes, and no more than is sealed at once.
    let body = Bytes::from(vec![7; 60_000]);
    let request = http::Request::put("/k").header("content-length", body.len());
    let request = request.body(Body::new(std::slice::from_ref(&body))).unwrap();
    let answer = connection.send(request, &mut watch).await.unwrap();
    assert_eq!(answer.status(), 403);
    assert!(!connection.has_sent_all(), "the kernel holds {} bytes of it", connection.moved.sent());
    assert!(!connection.is_reusable());
    drop(served.join().unwrap());
}

#[test]
fn a_part_of_a_message_of_the_handshake_is_no_rest() {
    let mut talk = Conversation::begin(&parties(TLS13));
    assert!(talk.client().is_at_rest());
    talk.tell(HANDSHAKE, &UPDATE[..3]);
    assert!(talk.read(100).is_none());
    assert!(!talk.client().is_at_rest());
    talk.tell(HANDSHAKE, &UPDATE[3..]);
    talk.renew();
    assert!(talk.read(100).is_none());
    assert!(talk.client().is_at_rest());
}

#[test]
fn a_connection_without_new_keys_is_closed_while_the_old_ones_still_last() {
    for (suite, ends) in [(TLS12, true), (TLS13, false)] {
        let mut talk = Conversation::begin(&parties(suite).limited(20));
        let mut written = 0;
        while talk.client().is_at_rest() && written < 100 {
            talk.write(b"x").unwrap().unwrap();
            written += 1;
        }
        assert_eq!(written < 15, ends, "{written} records of 19");
        talk.write(b"the last request").unwrap().unwrap();
    }
}

#[test]
fn what_tls_says_beside_content_is_no_part_of_a_request() {
    for (suite, record) in [(TLS13, 5 + 1000 + 1 + 16), (TLS12, 5 + 8 + 1000 + 16)] {
        for sent in [0, 1, 999, 1000, 1001, record - 1, record] {
            let mut talk = Conversation::begin(&parties(suite));
            let before = talk.moved().content_sent();
            talk.takes(sent);
            assert_eq!(talk.write(&bytes(1000)).unwrap().unwrap(), 1000);
            let is_sent = talk.moved().content_sent() >= before + 1000;
            assert_eq!(is_sent, sent == record, "{sent} bytes of {record} are sent");
        }
    }
    // Neither is the answer to a key update.
    let mut talk = Conversation::begin(&parties(TLS13));
    let before = talk.moved().content_sent();
    talk.tell(HANDSHAKE, &ASKS);
    assert!(talk.read(100).is_none());
    assert_eq!(talk.heard().len(), 1);
    assert_eq!(talk.moved().content_sent(), before);
}

#[test]
fn what_tls_says_beside_content_is_no_part_of_an_answer() {
    let mut talk = Conversation::begin(&parties(TLS13));
    let before = talk.moved().content_received();
    talk.tell(HANDSHAKE, &UPDATE);
    talk.renew();
    talk.tell(0, b"padded\x17\0\0\0");
    assert_eq!(talk.read(100).unwrap().unwrap(), b"padded");
    assert_eq!(talk.moved().content_received() - before, 6);
    talk.tell(ALERT, &[1, 0]);
    assert_eq!(talk.read(100).unwrap().unwrap(), b"", "the end");
    assert_eq!(talk.moved().content_received() - before, 6);
}
