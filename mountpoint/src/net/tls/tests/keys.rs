//! Keys that change while bytes of ours wait for the kernel.

use super::*;

pub(super) const CONTENT: u8 = 23;
pub(super) const HANDSHAKE: u8 = 22;
pub(super) const ALERT: u8 = 21;
/// A key update, and one that asks for the same.
pub(super) const UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
pub(super) const ASKS: [u8; 5] = [24, 0, 0, 1, 1];

#[test]
fn what_waits_is_sent_under_the_old_key_and_then_the_answer_and_then_the_new_key_is_used() {
    let parties = parties(TLS13);
    let first = bytes(1000);
    let record = 5 + first.len() + 1 + 16;
    for sent in [0, 1, 5, 6, 700, record - 1, record] {
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
            expected.extend(std::iter::repeat_n((HANDSHAKE, UPDATE.to_vec()), asked));
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
fn a_key_that_is_used_up_and_one_that_is_asked_for_while_bytes_wait_change_in_turn() {
    let mut talk = Conversation::begin(&parties(TLS13));
    let sent = bytes(40_000);
    talk.client().use_up_the_key_after(2);
    talk.takes(20_000);
    assert_eq!(talk.write(&sent).unwrap().unwrap(), sent.len(), "in three records");
    talk.tell(HANDSHAKE, &ASKS);
    talk.renew();
    assert!(talk.read(1).is_none());
    talk.takes(usize::MAX);
    assert_eq!(talk.write(b"later").unwrap().unwrap(), 5);
    assert!(talk.flush());
    let update = (HANDSHAKE, UPDATE.to_vec());
    let expected = [
        (CONTENT, sent[..CONTENT_MAX].to_vec()),
        (CONTENT, sent[CONTENT_MAX..2 * CONTENT_MAX].to_vec()),
        update.clone(),
        (CONTENT, sent[2 * CONTENT_MAX..].to_vec()),
        update,
        (CONTENT, b"later".to_vec()),
    ];
    assert_eq!(talk.heard(), expected);
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
fn a_record_that_is_sealed_with_the_old_key_behind_a_key_update_is_refused() {
    let mut talk = Conversation::begin(&parties(TLS13));
    talk.tell(HANDSHAKE, &UPDATE);
    talk.tell(CONTENT, b"old");
    let error = talk.read(100).unwrap().unwrap_err();
    assert!(error.to_string().contains("altered"), "{error}");
}
