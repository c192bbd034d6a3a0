//! The registration of a mount with the node's holder. The mounter listens at `hold.sock`. A process that connects gets one line, the
//! message of the mount as JSON, and with it the FUSE device and the journal. The connection then stays open. The mounter ends it with
//! [`END`] when it has given the mount up, or the mount is gone. A connection that ends without [`END`] means that the container ended.
//!
//! Never here: which processes may connect, and which mounts may be held.

use std::io::{self, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::message::{MESSAGE_LIMIT, Mount, MountMessage};
use super::rights::{self, invalid};

/// The mounter's last line: the mount needs no holder.
pub const END: &[u8] = b"end\n";

/// Longest time for a registration; after it the registration fails. Both ends are processes of one node. Doubled, a silent mounter
/// occupies a thread twice as long.
pub const REGISTER_WITHIN: Duration = Duration::from_secs(5);

/// Registers a mount over a connection.
///
/// # Errors
/// Errors of the socket.
pub fn register(
    stream: &UnixStream,
    message: &MountMessage,
    device: BorrowedFd<'_>,
    journal: BorrowedFd<'_>,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
    line.push(b'\n');
    rights::send(stream, &line, &[device, journal], REGISTER_WITHIN)
}

/// Tells the holder that the mount does not need it any more. Errors are ignored: a holder that is gone needs no message.
pub fn end(stream: &UnixStream) {
    let _ = stream.set_write_timeout(Some(REGISTER_WITHIN));
    let mut writer = stream;
    let _ = writer.write_all(END);
}

/// Receives a registration. It does not check the kind of the two descriptors.
///
/// # Errors
/// `TimedOut` after [`REGISTER_WITHIN`]; `UnexpectedEof` for half a line; `InvalidData` for another number of descriptors, or other JSON.
pub fn receive(stream: &UnixStream) -> io::Result<(MountMessage, Mount<OwnedFd>)> {
    let (line, descriptors) = rights::receive(stream, MESSAGE_LIMIT, Some(b'\n'), REGISTER_WITHIN)?;
    let count = descriptors.len();
    let Ok([device, journal]) = <[OwnedFd; 2]>::try_from(descriptors) else {
        return Err(invalid(format!(
            "the registration brings {count} descriptors, and must bring two: the FUSE device and the journal"
        )));
    };
    let message = serde_json::from_slice(&line)
        .map_err(|error| invalid(format!("the registration is not a mount message: {error}")))?;
    Ok((message, Mount { device, journal: Some(journal), stage: None }))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::AsFd as _;
    use std::thread;

    use super::*;

    fn message() -> MountMessage {
        MountMessage {
            bucket_name: "b".into(),
            args: vec!["--a".into()],
            env: Vec::new(),
            adopt: None,
            stage: false,
        }
    }

    fn file() -> File {
        File::open("/dev/null").unwrap()
    }

    #[test]
    fn a_mount_is_registered_and_its_end_is_the_last_word() {
        let (holder, mounter) = UnixStream::pair().unwrap();
        register(&mounter, &message(), file().as_fd(), file().as_fd()).unwrap();
        let (said, mount) = receive(&holder).unwrap();
        assert!(said == message() && mount.journal.is_some());
        end(&mounter);
        drop(mounter);
        let mut last = Vec::new();
        (&holder).read_to_end(&mut last).unwrap();
        assert_eq!(last, END);
    }

    #[test]
    fn half_a_line_other_text_and_other_descriptors_are_refused() {
        let said = |text: &[u8], count: usize| {
            let (holder, mounter) = UnixStream::pair().unwrap();
            let files: Vec<File> = (0..count).map(|_| file()).collect();
            let descriptors: Vec<_> = files.iter().map(File::as_fd).collect();
            rights::send(&mounter, text, &descriptors, REGISTER_WITHIN).unwrap();
            drop(mounter);
            receive(&holder).unwrap_err().kind()
        };
        let mut line = serde_json::to_vec(&message()).unwrap();
        assert_eq!(said(&line, 2), io::ErrorKind::UnexpectedEof, "half a line");
        line.push(b'\n');
        for count in [0, 1, 3, 8] {
            assert_eq!(said(&line, count), io::ErrorKind::InvalidData, "{count} descriptors");
        }
        assert_eq!(said(b"{}\n", 2), io::ErrorKind::InvalidData, "no message");
        line.extend(b"more\n");
        assert_eq!(said(&line, 2), io::ErrorKind::InvalidData, "two lines");
    }

    #[test]
    fn a_flood_ends_at_the_limit_of_a_message() {
        let (holder, mounter) = UnixStream::pair().unwrap();
        let flood = thread::spawn(move || while (&mounter).write_all(&[b' '; 65536]).is_ok() {});
        assert_eq!(receive(&holder).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(holder);
        flood.join().unwrap();
    }
}
