//! What the mounter in a Mountpoint Pod is sent over its socket: a message that says the same when it is sent again, or an error.
#![no_main]

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rustix::fd::AsFd as _;
use serde::de::DeserializeOwned;

// The file alone: the rest of its crate speaks to Kubernetes, and would be built with the sanitizer.
#[expect(dead_code, reason = "the other side of the conversation")]
#[path = "../../csi/src/contract"]
mod contract {
    pub mod message;
}

use contract::message::{MountMessage, receive, send};

const LIMIT: Duration = Duration::from_secs(10);

fn received(sent: impl FnOnce(&UnixStream)) -> std::io::Result<MountMessage> {
    let (node, mounter) = UnixStream::pair().expect("a pair of sockets");
    sent(&node);
    drop(node);
    receive(&mounter, LIMIT).map(|(message, _)| message)
}

fuzz_target!(|input: (String, Vec<String>, Vec<String>, Vec<u8>)| {
    let (bucket_name, args, env, junk) = input;
    let device = File::open("/dev/null").expect("open /dev/null");
    // Small enough for the buffers of the socket: nobody reads meanwhile.
    let message = MountMessage { bucket_name, args, env };
    let small = junk.len() + serde_json::to_vec(&message).map_or(0, |text| text.len()) < 32 << 10;
    if !small {
        return;
    }
    let whole = received(|node| send(node, &message, device.as_fd(), LIMIT).expect("send"));
    assert_eq!(whole.expect("what was sent"), message);
    // Without a device nothing is accepted, and nothing but an error comes of it.
    let error = received(|mut node| node.write_all(&junk).expect("write")).expect_err("no device came");
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    // With one: the bytes behind it are a message or an error.
    let text = String::from_utf8_lossy(&junk).into_owned();
    if let Some(message) = parsed::<MountMessage>(&text) {
        let again = serde_json::to_string(&message).expect("JSON");
        assert_eq!(parsed(&again), Some(message), "its own words");
    }
});

fn parsed<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}
