//! Keys that change while encrypted bytes of the client wait for the kernel.

use rustls::AlertDescription;

use super::*;
use crate::net::tls::stream::SKEW;

pub(super) const CONTENT: u8 = 23;
pub(super) const HANDSHAKE: u8 = 22;
pub(super) const ALERT: u8 = 21;
/// A key update, and a key update that requests another one.
pub(super) const UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
pub(super) const ASKS: [u8; 5] = [24, 0, 0, 1, 1];

#[test]
fn waiting_records_use_the_old_key_then_the_answer_then_the_new_key() {
    let parties = parties(TLS13);
    let first = bytes(1000);
    let record = 5 + first.len() + 1 + 16;
    for sent in [0, 1, 5, 6, 700, record - 1] {
        for asked in 1..4 {
            let mut talk = Conversation::begin(&parties);
            talk.takes(sent);
            assert_eq!(talk.write(&first).unwrap().unwrap(), first.len());
            for _ in 0..asked {
                talk.tell(HANDSHAKE, &ASKS);
                talk.renew();
            }
            talk.tell(CONTENT, b"new");
            assert_eq!(talk.read(100).unwrap().unwrap(), b"new");
            assert!(!talk.flush() && talk.write(b"too early").is_none(), "{sent} bytes sent, and no more");
            talk.takes(usize::MAX);
            assert_eq!(talk.write(b"later").unwrap().unwrap(), 5);
            assert!(talk.flush());
            let mut expected = vec![(CONTENT, first.clone())];
            expected.push((HANDSHAKE, UPDATE.to_vec())); // one for all
            expected.push((CONTENT, b"later".to_vec()));
            assert_eq!(talk.heard(), expected, "{sent} bytes sent, {asked} times asked");
        }
    }
}

#[test]
fn an_answer_that_waits_goes_by_itself_while_the_client_reads_on() {
    let mut talk = Conversation::begin(&parties(TLS13));
    talk.takes(0);
    talk.tell(HANDSHAKE, &ASKS);
    talk.renew();
    assert!(talk.read(100).is_none());
    assert!(talk.heard().is_empty());
    talk.takes(usize::MAX);
    assert!(talk.read(100).is_none());
    assert_eq!(talk.heard(), [(HANDSHAKE, UPDATE.to_vec())]);
}

#[test]
fn a_store_that_asks_for_new_keys_is_written_to_with_new_keys() {
    let mut talk = Conversation::begin(&parties(TLS13));
    talk.tell(HANDSHAKE, &ASKS);
    talk.renew();
    assert!(talk.read(100).is_none());
    assert_eq!(talk.heard(), [(HANDSHAKE, UPDATE.to_vec())]);
    assert_eq!(talk.write(b"new").unwrap().unwrap(), 3);
    assert_eq!(talk.heard(), [(CONTENT, b"new".to_vec())]);
    // Before the reader waits again, the answer goes in front of what is written.
    talk.tell(HANDSHAKE, &ASKS);
    talk.renew();
    talk.tell(CONTENT, b"x");
    assert_eq!(talk.read(1).unwrap().unwrap(), b"x");
    assert!(talk.heard().is_empty());
    assert_eq!(talk.write(b"newer").unwrap().unwrap(), 5);
    assert_eq!(talk.heard(), [(HANDSHAKE, UPDATE.to_vec()), (CONTENT, b"newer".to_vec())]);
}

#[test]
fn a_used_up_key_and_an_asked_for_one_change_in_turn_while_bytes_wait() {
    let mut talk = Conversation::begin(&parties(TLS13).limited(3));
    let sent = bytes(40_000);
    talk.takes(20_000);
    assert_eq!(talk.write(&sent).unwrap().unwrap(), sent.len(), "in three records");
    talk.tell(HANDSHAKE, &ASKS);
    talk.renew();
    assert!(talk.read(1).is_none());
    talk.takes(usize::MAX);
    assert_eq!(talk.write(b"later").unwrap().unwrap(), 5);
    assert!(talk.flush());
    let first = CONTENT_MAX - SKEW;
    let expected = [
        (CONTENT, sent[..first].to_vec()),
        (CONTENT, sent[first..first + CONTENT_MAX].to_vec()),
        (HANDSHAKE, ASKS.to_vec()),
        (CONTENT, sent[first + CONTENT_MAX..].to_vec()),
        (HANDSHAKE, UPDATE.to_vec()),
        (CONTENT, b"later".to_vec()),
    ];
    assert_eq!(talk.heard(), expected);
}

#[tokio::test]
async fn a_used_up_key_is_replaced_and_the_store_reads_on() {
    let sent = bytes(300_000);
    let expected = sent.clone();
    let (store, roots) = store_and_roots(TLS13);
    let client = client(limited(3), roots);
    let (mut client, served) = connected_over(
        |tcp| tcp,
        (store, client),
        2,
        move |mut server| {
            let mut got = vec![0; expected.len()];
            server.read_exact(&mut got).unwrap();
            assert!(got == expected);
        },
    )
    .await;
    client.write_all(&sent).await.unwrap();
    client.flush().await.unwrap();
    served.join().unwrap();
}

#[test]
fn tls_1_2_ends_with_its_keys() {
    // The end of the handshake is one record.
    let mut talk = Conversation::begin(&parties(TLS12).limited(3));
    for _ in 0..2 {
        assert_eq!(talk.write(b"x").unwrap().unwrap(), 1);
    }
    let error = talk.write(b"y").unwrap().unwrap_err();
    assert!(error.to_string().contains("as much as its keys may protect"), "{error}");
    let close = (ALERT, vec![1, AlertDescription::CloseNotify.into()]);
    assert!(talk.flush());
    assert_eq!(talk.heard(), [(CONTENT, b"x".to_vec()), (CONTENT, b"x".to_vec()), close]);
    // The store's later records are read.
    talk.tell(CONTENT, b"z");
    assert_eq!(talk.read(9).unwrap().unwrap(), b"z");
}

#[test]
fn a_key_update_that_does_not_ask_is_not_answered() {
    let mut talk = Conversation::begin(&parties(TLS13));
    talk.tell(HANDSHAKE, &UPDATE);
    talk.renew();
    talk.tell(CONTENT, b"new");
    assert_eq!(talk.read(100).unwrap().unwrap(), b"new");
    assert!(talk.heard().is_empty());
}

#[test]
fn a_record_under_the_old_key_behind_a_key_update_is_refused() {
    let mut talk = Conversation::begin(&parties(TLS13));
    talk.tell(HANDSHAKE, &UPDATE);
    talk.tell(CONTENT, b"old");
    let error = talk.read(100).unwrap().unwrap_err();
    assert!(error.to_string().contains("altered"), "{error}");
}
