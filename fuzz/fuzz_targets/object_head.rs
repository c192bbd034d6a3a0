//! The headers of a store about one object, and dates in any spelling: no panic, dates in whole seconds, and no ETag beyond all measure.
#![no_main]

use std::time::SystemTime;

use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use mountpoint::s3::fuzzing::{dates, head};

const NAMES: [&str; 6] =
    ["content-length", "content-range", "etag", "last-modified", "x-amz-restore", "x-amz-storage-class"];

fuzz_target!(|input: (Vec<(u8, Vec<u8>)>, String)| {
    let (lines, date) = input;
    let mut headers = HeaderMap::new();
    for (name, value) in &lines {
        let name = HeaderName::from_static(NAMES[usize::from(*name) % NAMES.len()]);
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name, value);
        }
    }
    let is_whole = |time: SystemTime| match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => after.subsec_nanos() == 0,
        Err(before) => before.duration().subsec_nanos() == 0,
    };
    if let Some(meta) = head(&headers) {
        assert!(meta.etag.as_str().len() <= 1024 && is_whole(meta.last_modified));
        assert!(meta.etag.if_match().is_none_or(|value| HeaderValue::try_from(value).is_ok()));
    }
    assert!(dates(&date).into_iter().flatten().all(is_whole));
});
