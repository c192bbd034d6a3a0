//! Endless messages of a store cost bounded memory, and the client ends a run of records without data.

use super::*;
use crate::net::tls::session::SILENT_MAX;
use crate::net::tls::tests::keys::{ASKS, CONTENT, HANDSHAKE, UPDATE};

/// Most memory of a connection: received bytes, waiting records, a message of the handshake.
const MEMORY_MAX: usize = 400 << 10;

/// A session ticket.
const TICKET: [u8; 18] = [4, 0, 0, 14, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1, 7, 0, 0];

#[test]
fn a_flood_of_records_that_bring_nothing_ends_the_connection() {
    let tickets = TICKET.repeat(900);
    let most_tickets = SILENT_MAX / (tickets.len() + 22);
    for (kind, content, most, why) in [
        (CONTENT, &b""[..], 32, "TooManyEmptyFragments"),
        (HANDSHAKE, b"", 32, "TooManyEmptyFragments"),
        (HANDSHAKE, &UPDATE, 32, "TooManyKeyUpdateRequests"),
        (HANDSHAKE, &ASKS, 32, "TooManyKeyUpdateRequests"),
        (HANDSHAKE, &tickets, most_tickets, "TLS records without content in a row"),
    ] {
        let mut talk = Conversation::begin(&parties(TLS13));
        for round in 0..2 {
            for _ in 0..most {
                talk.tell(kind, content);
                if content == UPDATE || content == ASKS {
                    talk.renew();
                }
            }
            assert_eq!(talk.read_all(100).1.map(drop), None, "{round}: {kind} waits for more");
            talk.tell(CONTENT, b"x");
            assert_eq!(talk.read_all(100).0, b"x", "{round}: {kind}");
        }
        for _ in 0..=most {
            talk.tell(kind, content);
            if content == UPDATE || content == ASKS {
                talk.renew();
            }
        }
        let (got, end) = talk.read_all(100);
        let error = end.expect(why).unwrap_err().to_string();
        assert!(got.is_empty() && error.contains(why), "{kind}: {error}");
        talk.tell(CONTENT, b"y");
        assert_eq!(talk.read_all(100).0, b"", "nothing behind the end");
        assert!(talk.memory() < MEMORY_MAX, "{} bytes", talk.memory());
        assert!(talk.tickets() <= 8);
    }
}

#[test]
fn a_message_of_the_handshake_in_tiny_records_costs_bounded_memory() {
    let mut talk = Conversation::begin(&parties(TLS13));
    let before = talk.memory();
    let mut message = vec![4, 0, 0xff, 0xf0];
    message.resize(60_000, 7);
    let mut end = None;
    for byte in message {
        talk.tell(HANDSHAKE, &[byte]);
        end = talk.read_all(100).1;
        if end.is_some() {
            break;
        }
    }
    let error = end.expect("an end").unwrap_err().to_string();
    assert!(error.contains("handshake that is too long"), "{error}");
    assert_eq!(talk.memory(), before);
}

#[test]
fn a_write_beside_content_that_was_not_read_keeps_that_content() {
    let mut talk = Conversation::begin(&parties(TLS13));
    let content = bytes(70_000);
    for record in content.chunks(7000) {
        talk.tell(CONTENT, record);
    }
    let mut got = talk.read(10).unwrap().unwrap();
    for sent in [&b"one"[..], b"two"] {
        assert_eq!(talk.write(sent).unwrap().unwrap(), 3);
        assert_eq!(talk.heard(), [(CONTENT, sent.to_vec())]);
        assert!(talk.memory() < MEMORY_MAX, "{} bytes", talk.memory());
        assert!(!talk.client().is_at_rest());
        got.extend(talk.read(5000).unwrap().unwrap());
    }
    got.extend(talk.read_all(9000).0);
    assert!(got == content);
    assert!(talk.client().is_at_rest());
}

#[test]
fn a_store_that_asks_for_keys_and_takes_no_answer_costs_no_memory() {
    let mut talk = Conversation::begin(&parties(TLS13));
    talk.takes(0);
    for round in 0..5_000 {
        talk.tell(HANDSHAKE, &ASKS);
        talk.renew();
        talk.tell(CONTENT, b"x");
        assert_eq!(talk.read_all(100).0, b"x");
        assert!(talk.memory() < MEMORY_MAX, "{} bytes after {round} rounds", talk.memory());
    }
    talk.takes(usize::MAX);
    assert_eq!(talk.write(b"later").unwrap().unwrap(), 5);
    let update = (HANDSHAKE, UPDATE.to_vec());
    assert_eq!(talk.heard(), [update.clone(), update, (CONTENT, b"later".to_vec())]);
}

#[test]
fn a_store_that_always_leaves_something_to_send_makes_no_memory_grow() {
    let mut talk = Conversation::begin(&parties(TLS13));
    talk.takes(0);
    assert_eq!(talk.write(&bytes(4 * CONTENT_MAX)).unwrap().unwrap(), 4 * CONTENT_MAX);
    let mut heard = Vec::new();
    let answer = 5 + UPDATE.len() + 1 + 16;
    for round in 0..5_000 {
        talk.tell(HANDSHAKE, &ASKS);
        talk.renew();
        talk.tell(CONTENT, b"x");
        talk.takes(answer); // one for each
        assert_eq!(talk.read_all(100).0, b"x");
        assert!(talk.memory() < MEMORY_MAX, "{} bytes after {round} rounds", talk.memory());
        heard.extend(talk.heard());
    }
    talk.takes(usize::MAX);
    assert!(talk.flush());
    heard.extend(talk.heard());
    let content: Vec<u8> =
        heard.iter().filter(|(kind, _)| *kind == CONTENT).flat_map(|h| h.1.clone()).collect();
    assert!(content == bytes(4 * CONTENT_MAX));
    let answers = heard.iter().filter(|h| h.1 == UPDATE).count();
    assert!((1..=5_000).contains(&answers), "{answers} answers");
}

#[test]
fn the_longest_message_of_the_handshake_is_kept_no_longer_than_it_takes() {
    let mut talk = Conversation::begin(&parties(TLS13));
    // A ticket of nearly 64 KiB.
    let len: usize = (64 << 10) - 4 - 13;
    let mut message = vec![4, 0, 0xff, 0xfc, 0, 0, 0, 9, 0, 0, 0, 0, 0];
    message.extend(u16::try_from(len).unwrap().to_be_bytes());
    message.resize(message.len() + len, 7);
    message.extend([0, 0]);
    assert_eq!(message.len(), 64 << 10);
    let before = talk.memory();
    for part in message.chunks(CONTENT_MAX) {
        talk.tell(HANDSHAKE, part);
        assert_eq!(talk.read_all(100).1.map(drop), None);
        assert!(talk.memory() < MEMORY_MAX, "{} bytes", talk.memory());
    }
    talk.tell(CONTENT, b"x");
    assert_eq!(talk.read_all(100).0, b"x");
    assert_eq!((talk.memory(), talk.tickets()), (before, 1));
}
