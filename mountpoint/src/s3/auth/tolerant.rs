//! Makes answers of credential services readable for the SDK, which rejects some services' values beside the keys. Pure.
//!
//! Enters: the body of an answer. Leaves: the same body, changed where the SDK could not parse it.

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use bytes::Bytes;
use serde_json::{Map, Value};

/// The element with the role of the keys, in which the SDK requires an ARN of six parts. MinIO leaves it empty, and the engine does not
/// need it.
const ROLE: [&str; 2] = ["<AssumedRoleUser>", "</AssumedRoleUser>"];

/// The body that the SDK can read: with the expiry of the keys in UTC, and without the name of their role. `None`: the body needs no
/// change.
pub(crate) fn readable(body: &[u8]) -> Option<Bytes> {
    match body.trim_ascii_start().first()? {
        b'{' => in_utc(body),
        b'<' => without_role(body),
        _ => None,
    }
}

fn without_role(body: &[u8]) -> Option<Bytes> {
    let text = std::str::from_utf8(body).ok()?;
    let (before, rest) = text.split_once(ROLE[0])?;
    let (_, after) = rest.split_once(ROLE[1])?;
    Some(Bytes::from([before, after].concat()))
}

/// The JSON document with the keys' expiry in UTC; `None` if it needs no change.
fn in_utc(body: &[u8]) -> Option<Bytes> {
    let mut document: Map<String, Value> = serde_json::from_slice(body).ok()?;
    let ends = document
        .iter_mut()
        .filter(|(name, _)| ["expiration", "expiresat"].iter().any(|end| name.eq_ignore_ascii_case(end)));
    let mut is_changed = false;
    for (_, end) in ends {
        if let Some(time) = end.as_str().and_then(utc) {
            *end = Value::String(time);
            is_changed = true;
        }
    }
    is_changed.then(|| serde_json::to_vec(&document).ok().map(Bytes::from)).flatten()
}

/// Converts a time with an offset, or without a zone, to UTC. `None` for a time in UTC, and for other text.
fn utc(text: &str) -> Option<String> {
    let text = text.trim();
    if DateTime::from_str(text, Format::DateTime).is_ok() {
        return None;
    }
    // The day and the time may be separated by a blank.
    let text = text.replacen(' ', "T", 1);
    let with_offset = |text: &str| DateTime::from_str(text, Format::DateTimeWithOffset);
    let time = with_offset(&text).or_else(|_| with_offset(&format!("{text}Z"))).ok()?;
    time.fmt(Format::DateTime).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_keys_is_read_with_any_offset_and_without_a_zone() {
        for (said, end) in [
            ("2026-11-26T08:00:00+00:00", Some("2026-11-26T08:00:00Z")),
            ("2026-11-26T10:00:00+02:00", Some("2026-11-26T08:00:00Z")),
            ("2026-11-26T08:00:00.5+00:00", Some("2026-11-26T08:00:00.5Z")),
            ("2026-11-26 08:00:00", Some("2026-11-26T08:00:00Z")),
            ("2026-11-26T08:00:00Z", None),
            ("9999-99-99T08:00:00+00:00", None),
            ("soon", None),
            ("", None),
        ] {
            let body = format!(r#"{{"AccessKeyId":"k","Expiration":"{said}","Other":[1]}}"#);
            let read = readable(body.as_bytes());
            let found = read.map(|body| serde_json::from_slice::<Value>(&body).unwrap());
            assert_eq!(found.as_ref().map(|it| it["Expiration"].as_str().unwrap()), end, "{said}");
            assert!(found.is_none_or(|it| it["AccessKeyId"] == "k" && it["Other"][0] == 1));
        }
        for other in [&b"[]"[..], b"{", b"", b"\xff", br#"{"expiration":1700000000}"#] {
            assert_eq!(readable(other), None);
        }
    }

    #[test]
    fn the_name_of_a_role_is_left_out_whatever_it_is() {
        let answer = |role: &str| format!("<A><Credentials>k</Credentials>{role}</A>");
        for role in ["<AssumedRoleUser><Arn></Arn></AssumedRoleUser>", "<AssumedRoleUser></AssumedRoleUser>"]
        {
            let read = readable(answer(role).as_bytes()).unwrap();
            assert_eq!(read, answer("").as_bytes());
        }
        for whole in [answer(""), answer("<AssumedRoleUser><Arn>")] {
            assert_eq!(readable(whole.as_bytes()), None, "{whole}");
        }
    }
}
