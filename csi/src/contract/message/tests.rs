//! Both ends of the hand-over in this process, and ends of release 2.2.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::thread;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::*;

/// A limit that nothing reaches.
const SOON: Duration = Duration::from_secs(60);

fn message() -> MountMessage {
    MountMessage {
        bucket_name: "my-bucket".into(),
        args: vec!["--allow-root".into(), "--region=us-east-1".into()],
        env: vec!["AWS_ENDPOINT_URL=http://10.0.0.1:8000".into()],
        adopt: None,
        stage: false,
    }
}

fn device() -> File {
    File::open("/dev/null").unwrap()
}

fn alone(device: &File) -> Mount<BorrowedFd<'_>> {
    Mount { device: device.as_fd(), journal: None, stage: None }
}

#[test]
fn a_message_is_the_json_that_release_2_2_sends() {
    let text = r#"{"bucketName":"my-bucket","args":["--allow-root","--region=us-east-1"],"env":["AWS_ENDPOINT_URL=http://10.0.0.1:8000"]}"#;
    assert_eq!(serde_json::to_string(&message()).unwrap(), text);
    let newer = r#"{"bucketName":"b","args":[],"env":[],"volumeId":"v"}"#;
    assert_eq!(serde_json::from_str::<MountMessage>(newer).unwrap().bucket_name, "b");
}

#[test]
fn an_answer_is_one_line_of_json() {
    assert_eq!(serde_json::to_string(&Answer::Ready).unwrap(), r#"{"status":"ready"}"#);
    let failed = Answer::Failed { error: "no such bucket".into() };
    assert_eq!(serde_json::to_string(&failed).unwrap(), r#"{"status":"failed","error":"no such bucket"}"#);
}

#[test]
fn message_device_and_answer_arrive_over_a_path_too_long_for_a_socket() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("d".repeat(120));
    std::fs::create_dir(&directory).unwrap();
    let path = directory.join("mount.sock");
    let listener = listen(&path).unwrap();
    // Longer than one chunk and than one segment of the socket's buffer.
    let mut long = message();
    long.args.extend((0..20_000).map(|n| format!("--flag-{n}=value")));
    let sent = long.clone();
    let mounter = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let got = receive(&stream, SOON).unwrap();
        answer(&stream, &Answer::Ready).unwrap();
        got
    });
    let stream = connect(&path).unwrap();
    let ours = device();
    send(&stream, &long, alone(&ours), SOON).unwrap();
    assert_eq!(read_answer(&stream, SOON).unwrap(), Some(Answer::Ready));
    let (message, theirs) = mounter.join().unwrap();
    assert_eq!(message, sent);
    assert_eq!(File::from(theirs.device).metadata().unwrap().rdev(), ours.metadata().unwrap().rdev());
}

#[test]
fn a_mounter_of_release_2_2_that_closes_without_a_line_said_nothing() {
    let (node, mounter) = UnixStream::pair().unwrap();
    send(&node, &message(), alone(&device()), SOON).unwrap();
    receive(&mounter, SOON).unwrap();
    drop(mounter);
    assert_eq!(read_answer(&node, SOON).unwrap(), None);
}

#[test]
fn a_node_of_release_2_2_that_does_not_wait_for_an_answer_is_no_error() {
    let (node, mounter) = UnixStream::pair().unwrap();
    send(&node, &message(), alone(&device()), SOON).unwrap();
    drop(node);
    receive(&mounter, SOON).unwrap();
    answer(&mounter, &Answer::Ready).unwrap();
}

#[test]
fn a_message_without_a_device_or_with_two_is_refused_and_says_so() {
    let (node, mounter) = UnixStream::pair().unwrap();
    (&node).write_all(&serde_json::to_vec(&message()).unwrap()).unwrap();
    node.shutdown(Shutdown::Write).unwrap();
    let error = receive(&mounter, SOON).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("0 descriptors"), "{error}");

    let (node, mounter) = UnixStream::pair().unwrap();
    send_with(&node, &[device(), device()]);
    let error = receive(&mounter, SOON).unwrap_err();
    assert!(error.to_string().contains("2 descriptors"), "{error}");
}

#[test]
fn a_mount_to_be_adopted_brings_its_journal_and_none_else_does() {
    let since = "2025-11-26T16:03:20.25Z".parse().unwrap();
    let adopts = MountMessage { adopt: Some(since), ..message() };
    let (node, mounter) = UnixStream::pair().unwrap();
    let (device_, journal) = (device(), device());
    let both = Mount { device: device_.as_fd(), journal: Some(journal.as_fd()), stage: None };
    send(&node, &adopts, both, SOON).unwrap();
    let (said, mount) = receive(&mounter, SOON).unwrap();
    assert!(said == adopts && mount.journal.is_some());

    let (node, mounter) = UnixStream::pair().unwrap();
    send(&node, &adopts, alone(&device_), SOON).unwrap();
    assert!(receive(&mounter, SOON).unwrap_err().to_string().contains("must bring two"));
    let (node, mounter) = UnixStream::pair().unwrap();
    send(&node, &message(), both, SOON).unwrap();
    assert!(receive(&mounter, SOON).unwrap_err().to_string().contains("must bring one"));
}

#[test]
fn a_stage_comes_last_and_only_with_a_message_that_names_it() {
    let full = MountMessage { stage: true, ..message() };
    let (device_, stage) = (device(), File::open("/").unwrap());
    let both = Mount { device: device_.as_fd(), journal: None, stage: Some(stage.as_fd()) };
    let (node, mounter) = UnixStream::pair().unwrap();
    send(&node, &full, both, SOON).unwrap();
    let (said, mount) = receive(&mounter, SOON).unwrap();
    assert!(said == full && mount.journal.is_none());
    assert!(File::from(mount.stage.unwrap()).metadata().unwrap().is_dir());
    for (message, mount, words) in [
        (&full, alone(&device_), "must bring two: the FUSE device and the stage"),
        (&message(), both, "must bring one"),
    ] {
        let (node, mounter) = UnixStream::pair().unwrap();
        send(&node, message, mount, SOON).unwrap();
        let error = receive(&mounter, SOON).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

fn send_with(stream: &UnixStream, devices: &[File]) {
    let descriptors: Vec<BorrowedFd<'_>> = devices.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let bytes = serde_json::to_vec(&message()).unwrap();
    sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::empty()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
}

#[test]
fn a_sender_that_never_stops_or_never_starts_is_ended() {
    let (node, mounter) = UnixStream::pair().unwrap();
    let sender = thread::spawn(move || {
        let chunk = [b' '; 65536];
        while (&node).write_all(&chunk).is_ok() {}
    });
    let error = receive(&mounter, SOON).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    drop(mounter);
    sender.join().unwrap();

    let (_silent, mounter) = UnixStream::pair().unwrap();
    assert_eq!(receive(&mounter, Duration::from_millis(20)).unwrap_err().kind(), io::ErrorKind::TimedOut);
    let (node, _silent) = UnixStream::pair().unwrap();
    assert_eq!(read_answer(&node, Duration::from_millis(20)).unwrap_err().kind(), io::ErrorKind::TimedOut);
}

#[test]
fn an_error_of_the_message_does_not_repeat_its_text() {
    let (node, mounter) = UnixStream::pair().unwrap();
    let mut bad = message();
    bad.env = vec!["AWS_SECRET_ACCESS_KEY=hush".into()];
    let text = serde_json::to_string(&bad).unwrap().replace("\"args\":[", "\"args\":7,[");
    let descriptors = [device()];
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)));
    sendmsg(&node, &[IoSlice::new(text.as_bytes())], &mut ancillary, SendFlags::empty()).unwrap();
    node.shutdown(Shutdown::Write).unwrap();
    let error = receive(&mounter, SOON).unwrap_err().to_string();
    assert!(error.contains("not a mount message") && !error.contains("hush"), "{error}");
}
