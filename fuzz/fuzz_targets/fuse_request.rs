//! Bytes of a read from /dev/fuse: a request of a known kernel, of an unknown kernel, or garbage. The decoder returns a request or an
//! error. It invents nothing, and allocates no more than the bytes justify.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mountpoint::fuse::fuzzing::{Facts, decode};

fn check(bytes: &[u8]) -> Option<Facts<'_>> {
    let facts = decode(bytes)?;
    assert!(bytes.len() >= 40, "a request without a header");
    for name in facts.name.into_iter().chain(facts.other) {
        let name = name.as_encoded_bytes();
        assert!(!name.contains(&0) && name.len() < bytes.len() - 40, "a name that was not sent");
    }
    // Before the value of an attribute stand its size, flags and name.
    let before = if facts.name.is_some() { 40 + 8 + 1 } else { 80 };
    assert!(facts.data.is_none_or(|data| data.len() <= bytes.len() - before), "data that was not sent");
    assert!(facts.other.is_none() || facts.name.is_some(), "a second name without a first");
    assert!(facts.nodes <= (bytes.len() - 40) / 16, "inodes that were not sent");
    Some(facts)
}

fuzz_target!(|bytes: &[u8]| {
    let raw = check(bytes);
    // The length in the header is checked first: with the right one, the rest is looked at.
    if bytes.len() >= 40 {
        let mut framed = bytes.to_vec();
        framed[..4].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
        let facts = check(&framed);
        assert!(raw.is_none() || raw == facts, "a right length changes nothing");
    } else {
        assert_eq!(raw, None);
    }
});
