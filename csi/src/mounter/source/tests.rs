//! Hand-overs of real FUSE devices to mounters that answer, close or die.

use std::fs::File;

use super::*;
use crate::mounter::testing::{dirs, fuse, isolated, runtime};

const LONG: Duration = Duration::from_secs(60);

fn message() -> MountMessage {
    MountMessage { bucket_name: "bucket".into(), args: vec!["--read-only".into()], env: vec!["A=b".into()] }
}

fn soon() -> Instant {
    Instant::now() + LONG
}

/// A mounter: takes one device, and does with it and the connection what it likes.
fn mounter(comm: &Comm, then: impl FnOnce(UnixStream, OwnedFd) + Send + 'static) -> thread::JoinHandle<()> {
    let listener = message::listen(&comm.socket()).unwrap();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let (got, device) = message::receive(&stream, LONG).unwrap();
        assert_eq!(got, message());
        then(stream, device);
    })
}

/// Opens a source, hands it over to this mounter, and says what came of it with the source still held.
fn handed_over(
    then: impl FnOnce(UnixStream, OwnedFd, PathBuf) + Send + 'static,
) -> Option<(Result<()>, PathBuf)> {
    let ([directory, comm], _folder) = dirs();
    fuse()?;
    let source = directory.join("mnt/mp-1");
    let outcome = runtime().block_on(async {
        let comm = Comm::at(comm);
        let err = comm.error();
        let mounter = mounter(&comm, move |stream, device| then(stream, device, err));
        let (mount, device) = SourceMount::open(&source, false).unwrap();
        let outcome = mount.hand_over(&comm, message(), device, &Probes::default(), soon()).await;
        mounter.join().unwrap();
        assert!(Mounts::read().unwrap().at(&source).is_some_and(|it| it.is_bucket() && !it.read_only));
        assert_eq!(devices_of_this_process(), 0);
        drop(mount);
        outcome
    });
    assert!(Mounts::read().unwrap().at(&source).is_none(), "what is not kept is unmounted");
    assert!(!source.exists(), "and its directory removed");
    Some((outcome, source))
}

fn devices_of_this_process() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    fds.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == Path::new("/dev/fuse"))).count()
}

#[test]
fn a_ready_line_is_success() {
    isolated(|| {
        let served = handed_over(|stream, _device, _| message::answer(&stream, &Answer::Ready).unwrap());
        if let Some((outcome, _)) = served {
            outcome.unwrap();
        }
    });
}

#[test]
fn the_engines_words_are_the_error_on_one_line() {
    isolated(|| {
        let served = handed_over(|stream, _device, _| {
            message::answer(&stream, &Answer::Failed { error: "no such bucket\n\u{1b}[2Jx".into() }).unwrap();
        });
        let Some((outcome, _)) = served else { return };
        let error = outcome.unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
        assert_eq!(error.to_string(), "the engine could not mount: no such bucket [2Jx");
    });
}

#[test]
fn a_mounter_that_closes_without_a_line_and_fails_is_understood_by_its_file() {
    isolated(|| {
        let served = handed_over(|stream, device, err| {
            // As release 2.2 does: the connection goes first, then the engine, then the file is written.
            drop((stream, device));
            std::fs::write(err, "Error: bucket does not exist\n").unwrap();
        });
        let Some((outcome, _)) = served else { return };
        let error = outcome.unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
        assert!(error.to_string().contains("bucket does not exist"), "{error}");
    });
}

#[test]
fn a_mounter_that_dies_without_a_word_is_an_error_of_the_moment() {
    isolated(|| {
        let Some((outcome, source)) = handed_over(|stream, device, _| drop((stream, device))) else { return };
        let error = outcome.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.to_string().contains(source.to_str().unwrap()), "{error}");
    });
}

#[test]
fn a_kept_mount_stays_and_a_dead_one_is_taken_away_when_it_is_looked_at() {
    isolated(|| {
        let ([directory], _folder) = dirs();
        if fuse().is_none() {
            return;
        }
        let source = directory.join("mp-1");
        let (mount, device) = SourceMount::open(&source, true).unwrap();
        mount.keep();
        assert!(Mounts::read().unwrap().at(&source).unwrap().read_only);
        drop(device);
        let served = runtime().block_on(is_served(&source, &Probes::default()));
        assert!(!served.unwrap());
        assert!(Mounts::read().unwrap().at(&source).is_none());
        assert!(source.is_dir(), "the directory was there, and is used again");
        assert!(!runtime().block_on(is_served(&source, &Probes::default())).unwrap());
    });
}

#[test]
fn a_mounter_that_never_listens_ends_the_wait_at_the_deadline() {
    let ([comm], _folder) = dirs();
    let comm = Comm::at(comm);
    let error = dial(&comm.socket(), Instant::now() + Duration::from_millis(30)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    assert!(error.to_string().contains("does not listen"), "{error}");
    // A socket that a container left behind when it was restarted.
    drop(message::listen(&comm.socket()).unwrap());
    let error = dial(&comm.socket(), Instant::now() + Duration::from_millis(30)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    std::fs::remove_file(comm.socket()).unwrap();
    File::create(comm.directory().join("later")).unwrap();
    let socket = comm.socket();
    let later = thread::spawn(move || message::listen(&socket).unwrap());
    dial(&comm.socket(), soon()).unwrap();
    drop(later.join().unwrap());
}
