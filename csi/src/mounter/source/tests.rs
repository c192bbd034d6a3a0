//! Hand-overs of real FUSE devices to mounters that answer, close or die.

use std::fs::File;
use std::thread;

use super::*;
use crate::mounter::mountinfo::Mounts;
use crate::mounter::testing::{dirs, fuse, isolated, processes, runtime};

const LONG: Duration = Duration::from_secs(60);

fn message() -> MountMessage {
    MountMessage {
        bucket_name: "bucket".into(),
        args: vec!["--read-only".into()],
        env: vec!["A=b".into()],
        adopt: None,
        stage: false,
    }
}

fn soon() -> Instant {
    Instant::now() + LONG
}

/// A mounter: takes one device, and does with it and the connection what it likes.
fn mounter(comm: &Comm, then: impl FnOnce(UnixStream, OwnedFd) + Send + 'static) -> thread::JoinHandle<()> {
    let listener = message::listen(&comm.socket()).unwrap();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let (got, mount) = message::receive(&stream, LONG).unwrap();
        assert_eq!(got, message());
        then(stream, mount.device);
    })
}

/// Makes a source through this mounter, and says what came of it. While the mounter has not answered, nothing is seen of it.
fn handed_over(
    then: impl FnOnce(UnixStream, OwnedFd, PathBuf) + Send + 'static,
) -> Option<(Result<()>, PathBuf)> {
    let ([directory, comm], _folder) = dirs();
    fuse()?;
    let source = directory.join("mnt/mp-1");
    let outcome = runtime().block_on(async {
        let comm = Comm::at(comm);
        let (err, unseen) = (comm.error(), source.clone());
        let mounter = mounter(&comm, move |stream, device| {
            assert!(!is_mounted(&unseen), "nobody serves it yet");
            then(stream, device, err);
        });
        let processes = processes(&directory.join("proc"), &["pod-uid"]);
        let peer = Peer { uid: "pod-uid", processes: &processes, stage: None };
        let made = SourceMount::make(&source, false, &comm, &peer, message(), soon()).await;
        mounter.join().unwrap();
        assert_eq!(is_mounted(&source), made.is_ok());
        assert_eq!(devices_of_this_process(), 0);
        made.map(|mount| {
            let mounts = Mounts::read().unwrap();
            assert!(mounts.at(&source).is_some_and(|it| it.is_bucket() && !it.read_only));
            drop(mount);
        })
    });
    assert!(!is_mounted(&source), "what is not kept is unmounted");
    assert!(!source.exists(), "and its directory removed");
    Some((outcome, source))
}

fn is_mounted(source: &Path) -> bool {
    Mounts::read().unwrap().at(source).is_some()
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
fn the_error_file_explains_a_mounter_that_closes_without_a_line() {
    isolated(|| {
        let served = handed_over(|stream, device, err| {
            // Release 2.2 does it so: the connection goes first, then the engine, then the file is written.
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

type Way = fn(&Path, &OwnedFd, bool) -> Result<Unserved>;

/// Goal: the way of older kernels does the same, but that the mount is seen early.
#[test]
fn placed_and_detached_mounts_have_equal_flags_and_end_with_their_holder() {
    isolated(|| {
        let ([directory], _folder) = dirs();
        if fuse().is_none() {
            return;
        }
        let ways: [Way; 2] = [Unserved::mount, Unserved::place];
        for (way, mount) in ways.into_iter().enumerate() {
            for read_only in [true, false] {
                let source = directory.join(format!("mnt/mp-{way}-{read_only}"));
                let device = sys::open_device().unwrap();
                let unserved = mount(&source, &device, read_only).unwrap();
                assert_eq!(matches!(unserved, Unserved::Placed(_)), way == 1);
                assert_eq!(is_mounted(&source), way == 1, "out of sight or not");
                let shown = unserved.show(&source).unwrap();
                let line = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
                let line =
                    line.lines().find(|line| line.contains(source.to_str().unwrap())).unwrap().to_owned();
                for word in
                    ["nosuid", "nodev", "noatime", "fuse mountpoint-s3", "default_permissions", "allow_other"]
                {
                    assert!(line.contains(word), "{word}: {line}");
                }
                let (mount, file_system) = line.split_once(" - ").unwrap();
                let is = |text: &str| text.split([' ', ',']).any(|it| it == "ro");
                assert_eq!((is(mount), is(file_system)), (read_only, read_only), "{line}");
                drop(shown);
                assert!(!source.exists());
            }
        }
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
        let device = sys::open_device().unwrap();
        Unserved::mount(&source, &device, true).unwrap().show(&source).unwrap().keep();
        assert!(Mounts::read().unwrap().at(&source).unwrap().read_only);
        drop(device);
        let comm = Comm::at(directory.join("comm"));
        let served = runtime().block_on(is_served(&source, &comm, &Probes::default()));
        assert!(!served.unwrap());
        assert!(!is_mounted(&source));
        assert!(source.is_dir(), "the directory was there, and is used again");
        assert!(!runtime().block_on(is_served(&source, &comm, &Probes::default())).unwrap());
    });
}

#[test]
fn a_source_without_an_answer_hangs_or_its_engine_is_started_again() {
    isolated(|| {
        let ([directory, comm], _folder) = dirs();
        let Some(device) = fuse() else { return };
        let (source, comm) = (directory.join("mp-1"), Comm::at(comm));
        Unserved::mount(&source, &device, false).unwrap().show(&source).unwrap().keep();
        let says = || {
            let served = runtime().block_on(is_served(&source, &comm, &Probes::default()));
            let error = served.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable);
            error.to_string()
        };
        let since = k8s_openapi::jiff::Timestamp::now();
        std::fs::write(comm.state(), Restarting { since }.to_string()).unwrap();
        let said = says();
        assert!(said.contains("started again (restarting since 20"), "{said}");
        std::fs::remove_file(comm.state()).unwrap();
        let said = says();
        assert!(said.contains("waiting for the store"), "{said}");
        drop(device);
        assert!(!runtime().block_on(is_served(&source, &comm, &Probes::default())).unwrap());
    });
}

#[test]
fn a_process_of_another_pod_in_the_mounters_place_gets_nothing() {
    isolated(|| {
        let ([directory, comm], _folder) = dirs();
        if fuse().is_none() {
            return;
        }
        let comm = Comm::at(comm);
        let listener = message::listen(&comm.socket()).unwrap();
        let thief = thread::spawn(move || message::receive(&listener.accept().unwrap().0, LONG));
        let source = directory.join("mnt/mp-1");
        runtime().block_on(async {
            let processes = processes(&directory.join("proc"), &["another-pod"]);
            let peer = Peer { uid: "pod-uid", processes: &processes, stage: None };
            let error = SourceMount::make(&source, false, &comm, &peer, message(), soon()).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::FailedPrecondition);
            assert!(error.to_string().contains("another process took the socket's place"), "{error}");
        });
        let error = thief.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("0 descriptors"), "neither a device nor a word: {error}");
    });
}

#[tokio::test]
async fn a_mounter_that_never_listens_ends_the_wait_at_the_deadline() {
    let ([comm], _folder) = dirs();
    let comm = Comm::at(comm);
    let files = CommFiles::open(&comm).unwrap();
    let error = dial(&files, Comm::SOCKET, Instant::now() + Duration::from_millis(30)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    assert!(error.to_string().contains("does not listen"), "{error}");
    // A socket that a container left behind when it was restarted.
    let ended = message::listen(&comm.socket()).unwrap();
    // Said, not left to the last close: the child of another test has it open, too, until it executes.
    rustix::net::shutdown(&ended, rustix::net::Shutdown::Both).unwrap();
    drop(ended);
    let error = dial(&files, Comm::SOCKET, Instant::now() + Duration::from_millis(30)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    std::fs::remove_file(comm.socket()).unwrap();
    File::create(comm.directory().join("later")).unwrap();
    let socket = comm.socket();
    let later = thread::spawn(move || message::listen(&socket).unwrap());
    dial(&files, Comm::SOCKET, soon()).await.unwrap();
    drop(later.join().unwrap());
}
