//! Records that break a rule or were changed on their way: no content after them is returned, the error names the cause, and so does the
//! alert to the store, if rustls has one for it.

use std::io::ErrorKind;

use rustls::AlertDescription as Alert;

use super::*;
use crate::net::tls::tests::keys::{ALERT, CONTENT, HANDSHAKE, UPDATE};

const CHANGE_CIPHER_SPEC: u8 = 20;

/// A way to change a record, and its name.
type Spoil = (&'static str, fn(&mut Conversation));

/// Reads until the connection ends: the error, and the alerts of the client.
fn refused(talk: &mut Conversation, what: &str) -> (io::Error, Vec<Vec<u8>>) {
    let (got, end) = talk.read_all(100);
    assert_eq!(got, b"", "{what}");
    let error = end.unwrap_or_else(|| panic!("{what}: it waits for more")).expect_err(what);
    let (_, again) = talk.read_all(100);
    assert_eq!(again.unwrap().unwrap_err().to_string(), error.to_string(), "{what}");
    assert!(talk.write(b"x").unwrap().is_err(), "{what}");
    let alerts = talk.heard().into_iter().filter(|(kind, _)| *kind == ALERT).map(|heard| heard.1);
    (error, alerts.collect())
}

#[test]
fn a_record_that_was_altered_opens_nothing() {
    for suite in suites() {
        let parties = parties(suite);
        let len = Conversation::begin(&parties).sealed(CONTENT, b"content").len();
        // TLS 1.3 authenticates type and version as the constants that they are, and rustls ignores what came in their place.
        let first = if suite.version() == TLS13.version() { 3 } else { 0 };
        for at in first..len {
            let mut talk = Conversation::begin(&parties);
            let mut record = talk.sealed(CONTENT, b"content");
            record[at] ^= 1 << (at % 8);
            talk.say(&record);
            talk.tell(CONTENT, b"behind");
            talk.hang_up();
            let (error, alerts) = refused(&mut talk, &format!("{suite:?}, byte {at}"));
            // A length may make it wait for a record that does not come.
            let waits = error.kind() == ErrorKind::UnexpectedEof && (3..5).contains(&at);
            assert!(waits || error.kind() == ErrorKind::InvalidData, "{suite:?}, byte {at}: {error}");
            assert_eq!(alerts.len(), usize::from(!waits), "{suite:?}, byte {at}: {error}");
            if at >= 5 {
                assert_eq!(alerts, [[2, Alert::BadRecordMac.into()]], "{error}");
                assert!(error.to_string().contains("altered on its way"), "{error}");
            }
        }
    }
}

#[test]
fn a_record_that_was_shortened_repeated_or_left_out_opens_nothing() {
    for suite in suites() {
        let parties = parties(suite);
        let spoils: [Spoil; 4] = [
            ("left out", |talk| drop(talk.sealed(CONTENT, b"content"))),
            ("cut", |talk| {
                let record = talk.sealed(CONTENT, b"content");
                // Four bytes: one might happen to be the next record's first.
                talk.say(&record[..record.len() - 4]);
            }),
            ("no tag", |talk| talk.say(&[23, 3, 3, 0, 3, 1, 2, 3])),
            ("nothing but a tag", |talk| talk.say(&[&[23, 3, 3, 0, 17][..], &[7; 17]].concat())),
        ];
        for (what, spoil) in spoils {
            let mut talk = Conversation::begin(&parties);
            spoil(&mut talk);
            talk.tell(CONTENT, b"behind");
            let (error, alerts) = refused(&mut talk, what);
            assert!(error.to_string().contains("altered on its way"), "{what}: {error}");
            assert_eq!(alerts, [[2, Alert::BadRecordMac.into()]], "{what}");
        }
        let mut talk = Conversation::begin(&parties);
        let record = talk.sealed(CONTENT, b"content");
        talk.say(&record);
        assert_eq!(talk.read(100).unwrap().unwrap(), b"content");
        talk.say(&record);
        assert_eq!(refused(&mut talk, "repeated").1, [[2, Alert::BadRecordMac.into()]]);
    }
}

#[test]
fn what_a_store_may_send_beside_content_ends_nothing() {
    let mut talk = Conversation::begin(&parties(TLS13));
    let canceled = [1, Alert::UserCanceled.into()];
    // A session ticket, in two records.
    let ticket = [4, 0, 0, 14, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1, 7, 0, 0];
    for _ in 0..4 {
        talk.tell(ALERT, &canceled);
        talk.tell(CONTENT, b"");
        talk.tell(HANDSHAKE, &ticket[..5]);
        talk.tell(HANDSHAKE, &ticket[5..]);
        // A type behind the content, then zeros; the type 0 is the last of them.
        talk.tell(0, b"padded\x17\0\0");
        talk.tell(CONTENT, &bytes(CONTENT_MAX));
    }
    let (got, end) = talk.read_all(50_000);
    assert!(end.is_none(), "{end:?}");
    assert!(got == [b"padded".to_vec(), bytes(CONTENT_MAX)].concat().repeat(4));

    let mut talk = Conversation::begin(&parties(TLS12));
    talk.tell(HANDSHAKE, &[0, 0, 0, 0]);
    talk.tell(ALERT, &[1, 90]);
    talk.tell(CONTENT, b"x");
    assert_eq!(talk.read_all(100).0, b"x");
    assert_eq!(talk.heard(), [(ALERT, vec![1, Alert::NoRenegotiation.into()])]);
}

#[test]
fn what_a_store_may_not_send_ends_the_connection_with_words_and_alert() {
    type Records = Vec<(u8, Vec<u8>)>;
    let padded = [vec![23], vec![0; CONTENT_MAX]].concat();
    let canceled = (ALERT, vec![1, Alert::UserCanceled.into()]);
    let refusals: [(SupportedCipherSuite, Records, &str, Option<Alert>); 18] = [
        (TLS13, vec![(CONTENT, vec![]); 33], "TooManyEmptyFragments", None),
        (TLS13, vec![canceled; 5], "TooManyWarningAlertsReceived", None),
        (TLS13, vec![(ALERT, vec![1])], "corrupt message", Some(Alert::DecodeError)),
        (TLS13, vec![(CHANGE_CIPHER_SPEC, vec![1])], "ChangeCipherSpec", Some(Alert::UnexpectedMessage)),
        (TLS13, vec![(0, vec![0; 9])], "IllegalTlsInnerPlaintext", None),
        (TLS13, vec![(HANDSHAKE, vec![1, 0, 0, 0])], "corrupt message", Some(Alert::DecodeError)),
        (TLS13, vec![(HANDSHAKE, vec![0, 0, 0, 0])], "got HelloRequest", Some(Alert::UnexpectedMessage)),
        (TLS13, vec![(HANDSHAKE, vec![24, 0, 0, 1, 2])], "InvalidKeyUpdate", Some(Alert::IllegalParameter)),
        (
            TLS13,
            vec![(HANDSHAKE, [&UPDATE[..], &[4]].concat())],
            "KeyEpochWithPendingFragment",
            Some(Alert::UnexpectedMessage),
        ),
        (TLS13, vec![(HANDSHAKE, vec![4, 0, 0, 1, 0])], "corrupt message", Some(Alert::DecodeError)),
        (TLS13, vec![(HANDSHAKE, vec![4, 2]), (HANDSHAKE, vec![0, 0])], "HandshakePayloadTooLarge", None),
        (TLS13, vec![(CONTENT, vec![0; CONTENT_MAX + 1])], "excess record size", Some(Alert::RecordOverflow)),
        (TLS13, vec![(0, padded)], "excess record size", Some(Alert::RecordOverflow)),
        (
            TLS13,
            vec![(HANDSHAKE, vec![4, 0]), (CONTENT, vec![1])],
            "MessageInterleavedWithHandshakeMessage",
            None,
        ),
        (TLS12, vec![(HANDSHAKE, vec![0; 4]); 2], "TooManyRenegotiationRequests", None),
        (TLS12, vec![(HANDSHAKE, UPDATE.to_vec())], "unexpected", Some(Alert::UnexpectedMessage)),
        (TLS12, vec![(HANDSHAKE, vec![4, 0, 0, 1, 0])], "corrupt message", Some(Alert::DecodeError)),
        (TLS12, vec![(CONTENT, vec![0; CONTENT_MAX + 1])], "excess record size", Some(Alert::RecordOverflow)),
    ];
    for (suite, records, why, alert) in refusals {
        let mut talk = Conversation::begin(&parties(suite));
        talk.tell(CONTENT, b"before");
        assert_eq!(talk.read(100).unwrap().unwrap(), b"before");
        for (kind, content) in records {
            talk.tell(kind, &content);
        }
        talk.tell(CONTENT, b"behind");
        let (error, alerts) = refused(&mut talk, why);
        assert!(error.to_string().contains(why), "{error}, and not {why}");
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{why}");
        let fatal: Vec<_> = alerts.into_iter().filter(|alert| alert[0] == 2).collect();
        assert_eq!(fatal, Vec::from_iter(alert.map(|alert| vec![2, alert.into()])), "{why}");
    }
}

#[test]
fn bytes_that_are_no_record_and_an_alert_of_the_store_end_the_connection() {
    for (raw, why) in [
        (&b"HTTP/1.1 200 OK\r\n"[..], "InvalidContentType"),
        (b"220 smtp.test\r\n", "InvalidContentType"),
        (&[23, 9, 9, 0, 1], "UnknownProtocolVersion"),
        (&[23, 3, 3, 0x50, 0], "MessageTooLarge"),
        (&[22, 3, 3, 0, 0], "InvalidEmptyPayload"),
    ] {
        let mut talk = Conversation::begin(&parties(TLS13));
        talk.say(raw);
        let (error, alerts) = refused(&mut talk, why);
        assert!(error.to_string().contains(why), "{error}, and not {why}");
        assert_eq!(alerts, [[2, Alert::DecodeError.into()]], "{why}");
    }
    for suite in [TLS13, TLS12] {
        let mut talk = Conversation::begin(&parties(suite));
        talk.tell(ALERT, &[2, Alert::InternalError.into()]);
        let (error, alerts) = refused(&mut talk, "an alert");
        assert!(error.to_string().contains("the alert InternalError"), "{error}");
        assert_eq!((error.kind(), alerts.len()), (ErrorKind::ConnectionAborted, 0));
    }
}
