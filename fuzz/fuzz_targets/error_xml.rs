//! An error document of a hostile or broken store becomes one line of the log: no panic, no second line, no terminal's commands in it,
//! and not much longer than the limit on a store's words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mountpoint::s3::fuzzing::error_line;

fuzz_target!(|input: (String, String, String, Vec<u8>)| {
    let (code, message, id, junk) = input;
    let junk = String::from_utf8_lossy(&junk).into_owned();
    let built = format!(
        "<Error><Code>{code}</Code><Message>{message}</Message>{junk}<RequestId>{id}</RequestId></Error>"
    );
    for document in [junk.as_bytes(), built.as_bytes()] {
        let line = error_line(document);
        assert!(!line.chars().any(char::is_control), "{line:?}");
        // Three texts of 1024 characters, each of which may be escaped.
        assert!(line.chars().count() < 4 * 1024 * "\\u{10ffff}".len(), "{} characters", line.len());
    }
});
