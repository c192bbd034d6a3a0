//! Messages to the mounter in a Mountpoint Pod over its socket: a message that stays the same after another sending, or an error.
#![no_main]

use std::fs::File;
use std::io::{ErrorKind, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
// The file of csi/ derives with it.
use serde as _;

// The file alone: the rest of its crate speaks to Kubernetes, and would be built with the sanitizer.
#[expect(dead_code, reason = "the other side of the conversation")]
#[path = "../../csi/src/contract"]
mod contract {
    pub mod message;
    pub mod rights;
}

// The file takes its time from there: the standard library's has the same place in a message, and no types of Kubernetes are built.
extern crate self as k8s_openapi;
pub mod jiff {
    pub type Timestamp = std::time::SystemTime;
}

use contract::message::{MESSAGE_LIMIT, Mount, MountMessage, receive, send};

const LIMIT: Duration = Duration::from_secs(10);

fn received(sent: impl FnOnce(&UnixStream)) -> std::io::Result<MountMessage> {
    let (node, mounter) = UnixStream::pair().expect("a pair of sockets");
    sent(&node);
    drop(node);
    receive(&mounter, LIMIT).map(|(message, _)| message)
}

/// A mount without a journal and a stage.
fn mount(device: &File) -> Mount<BorrowedFd<'_>> {
    Mount { device: device.as_fd(), journal: None, stage: None }
}

/// Sends these bytes with a device, as another program could that reaches the socket.
fn send_raw(stream: &UnixStream, bytes: &[u8], device: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let devices = [device];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&devices)), "room for one descriptor");
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).expect("send");
    assert_eq!(sent, bytes.len(), "a socket that waits takes them whole");
}

/// A message that may exceed the buffers of the socket: it is sent while it is received.
fn received_meanwhile(bytes: &[u8], device: BorrowedFd<'_>) -> std::io::Result<MountMessage> {
    let (node, mounter) = UnixStream::pair().expect("a pair of sockets");
    thread::scope(|scope| {
        scope.spawn(move || send_raw(&node, bytes, device));
        receive(&mounter, LIMIT).map(|(message, _)| message)
    })
}

fuzz_target!(|input: (String, Vec<String>, Vec<String>, Vec<u8>, u16)| {
    let (bucket_name, args, env, junk, at) = input;
    let device = File::open("/dev/null").expect("open /dev/null");
    // Small enough for the buffers of the socket: nobody reads meanwhile.
    let message = MountMessage { bucket_name, args, env, adopt: None, stage: false };
    let text = serde_json::to_vec(&message).expect("JSON");
    if junk.len() + text.len() >= 32 << 10 {
        return;
    }
    let whole = received(|node| send(node, &message, mount(&device), LIMIT).expect("send"));
    assert_eq!(whole.expect("what was sent"), message);
    // Without a device nothing is accepted, and nothing but an error comes of it.
    let error = received(|mut node| node.write_all(&junk).expect("write")).expect_err("no device came");
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    // With one, bytes are a message or an error: the junk alone, and the junk within a message.
    let (before, behind) = text.split_at(usize::from(at) % (text.len() + 1));
    for bytes in [junk.clone(), [before, &junk, behind].concat()] {
        match received(|node| send_raw(node, &bytes, device.as_fd())) {
            Ok(message) => {
                let again = received(|node| send(node, &message, mount(&device), LIMIT).expect("send"));
                assert_eq!(again.expect("its own words"), message);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}"),
        }
    }
    // White space behind a message makes it just as long as one may be, or longer. Now and then, since a megabyte takes milliseconds; not
    // for 0, which an input has that ends early.
    if at % 64 == 33 {
        let len = MESSAGE_LIMIT - 128 + usize::from(at / 64 % 256);
        let mut long = text;
        long.resize(len, b' ');
        match received_meanwhile(&long, device.as_fd()) {
            Ok(received) => assert!(len <= MESSAGE_LIMIT && received == message, "{len} bytes"),
            Err(error) => {
                assert!(
                    len > MESSAGE_LIMIT && error.kind() == ErrorKind::InvalidData,
                    "{len} bytes: {error}"
                );
            }
        }
    }
});
