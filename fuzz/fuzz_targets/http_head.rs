//! Bytes of a store, or of any server in its place, on a connection: an answer with a body, or an error. No panic, no wait for bytes that
//! can't come, and no more bytes than were sent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mountpoint::net::fuzzing::answer;

/// Beginnings that lead past the first line.
const BEGINNINGS: [&[u8]; 4] = [
    b"",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 206 Partial\r\nContent-Length: ",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
];

fuzz_target!(|input: (bool, u8, Vec<u8>)| {
    let (is_head, beginning, rest) = input;
    let said = [BEGINNINGS[usize::from(beginning) % BEGINNINGS.len()], &rest].concat();
    match answer(is_head, &said) {
        Ok((status, body)) => {
            assert!((200..1000).contains(&status), "status {status} is not an answer yet");
            assert!(body.len() < said.len() && (!is_head || body.is_empty()), "a body that was not sent");
        }
        Err(why) => assert!(!why.contains("it waits"), "{why}"),
    }
});
