//! Due sources from hand-written pictures; then real mounts of a tmpfs, and of FUSE devices that nobody serves, in a separate namespace.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use super::*;
use crate::mounter::testing::{dirs, fuse, isolated, runtime};

fn pods(list: &[(&str, bool)], synced: bool) -> View<MountpointPod> {
    let mut view = View::default();
    view.synced = synced;
    for (name, needs_unmount) in list {
        let pod =
            MountpointPod { uid: format!("{name}-uid"), needs_unmount: *needs_unmount, ..Default::default() };
        view.items.insert((*name).to_owned(), pod);
    }
    view
}

#[test]
fn marked_pods_are_due_and_unknown_ones_only_once_all_are_known() {
    let sources = ["mp-marked", "mp-serving", "mp-gone", "sh-1"].map(str::to_owned);
    let list = [("mp-marked", true), ("mp-serving", false), ("mp-without-source", true)];
    let marked = ("mp-marked".to_owned(), Some("mp-marked-uid".to_owned()));
    assert_eq!(due(&sources, &pods(&list, true)), [marked.clone(), ("mp-gone".to_owned(), None)]);
    assert_eq!(due(&sources, &pods(&list, false)), [marked]);
    assert_eq!(due(&sources, &View::default()), []);
    let without_source = ("mp-without-source".to_owned(), "mp-without-source-uid".to_owned());
    assert_eq!(waiting(&sources, &pods(&list, false)), [without_source]);
}

struct Home {
    kubelet: PathBuf,
    source: PathBuf,
    target: PathBuf,
    comm: Comm,
    _folder: tempfile::TempDir,
}

/// A source and a target as the mounter leaves them; a tmpfs stands for the bucket.
fn home() -> Home {
    let ([kubelet], folder) = dirs();
    let (source, target) = (comm::source(&kubelet, "mp-1"), kubelet.join("pods/w/volumes/v/mount"));
    let comm = Comm::on_host(&kubelet, "uid-1");
    for dir in [&source, &target, comm.directory()] {
        std::fs::create_dir_all(dir).unwrap();
    }
    CommFiles::open(&comm).unwrap().credentials().unwrap();
    Notes::of(&kubelet).remember("mp-1", "uid-1").unwrap();
    rustix::mount::mount("tmpfs", &source, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    sys::bind(&source, &target, false).unwrap();
    Home { kubelet, source, target, comm, _folder: folder }
}

fn unmounting(home: &Home, within: Duration) -> Unmounting {
    let (source, kubelet) = (home.source.clone(), home.kubelet.clone());
    let notes = Notes::of(&kubelet);
    Unmounting { source, kubelet, notes, within, probes: Probes::default() }
}

fn is_mounted(point: &Path) -> bool {
    Mounts::read().unwrap().at(point).is_some()
}

#[test]
fn a_source_is_unmounted_when_its_last_target_is_gone_and_nothing_is_left() {
    isolated(|| {
        let home = home();
        runtime().block_on(async {
            let unmounting = unmounting(&home, Duration::from_secs(60));
            // The pod's UID is found by the driver's note.
            let unmount = unmounting.run("mp-1", None);
            let workload = async {
                tokio::task::yield_now().await;
                assert!(home.comm.exit().exists(), "the exit is announced first");
                assert!(is_mounted(&home.source), "nobody unmounts what is used");
                sys::unmount(&home.target, Busy::Refuse).unwrap();
            };
            let (unmounted, ()) = tokio::join!(unmount, workload);
            unmounted.unwrap();
        });
        assert!(!is_mounted(&home.source) && !home.source.exists() && !home.comm.credentials().exists());
        assert_eq!(Notes::of(&home.kubelet).uid("mp-1"), None);
    });
}

#[test]
fn a_source_that_is_still_used_stays_as_it_is() {
    isolated(|| {
        let home = home();
        let within = Duration::from_millis(20);
        let error =
            runtime().block_on(unmounting(&home, within).run("mp-1", Some("uid-1".into()))).unwrap_err();
        assert!(error.contains("pods/w/volumes/v/mount"), "{error}");
        assert!(is_mounted(&home.source) && home.comm.credentials().exists());

        sys::unmount(&home.target, Busy::Refuse).unwrap();
        let shell = std::fs::File::create(home.source.join("open")).unwrap();
        let error = runtime().block_on(unmounting(&home, within).run("mp-1", None)).unwrap_err();
        assert!(error.contains("open"), "{error}");
        assert!(is_mounted(&home.source));
        drop(shell);
    });
}

/// Goal: a look at a source costs a fraction of a second, and not the time until the next sweep.
#[test]
fn a_source_that_a_process_only_looks_at_is_unmounted_once_it_has_looked() {
    isolated(|| {
        let home = home();
        sys::unmount(&home.target, Busy::Refuse).unwrap();
        let look = std::fs::File::create(home.source.join("open")).unwrap();
        runtime().block_on(async {
            let unmounting = unmounting(&home, Duration::from_secs(60));
            let mut unmount = std::pin::pin!(unmounting.run("mp-1", None));
            assert!(
                tokio::time::timeout(Duration::from_millis(20), unmount.as_mut()).await.is_err(),
                "it is in use"
            );
            drop(look);
            unmount.await.unwrap();
        });
        assert!(!is_mounted(&home.source) && !home.source.exists());
    });
}

#[test]
fn a_mark_and_a_pod_that_is_gone_each_end_their_source() {
    isolated(|| {
        let home = home();
        sys::unmount(&home.target, Busy::Refuse).unwrap();
        let dangling = comm::source(&home.kubelet, "mp-gone");
        let serving = comm::source(&home.kubelet, "mp-serving");
        std::fs::create_dir_all(&dangling).unwrap();
        std::fs::create_dir_all(&serving).unwrap();
        rustix::mount::mount("tmpfs", &dangling, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
        runtime().block_on(async {
            let (tell, pods_seen) = watch::channel(pods(&[("mp-1", false), ("mp-serving", false)], false));
            let idle = Idle {
                unused_within: Duration::from_secs(60),
                ..idle(&home.kubelet, pods_seen, Duration::from_secs(3600))
            };
            let task = tokio::spawn(idle.run());
            let changes = Changes::watch().unwrap();
            let until = Instant::now() + Duration::from_secs(60);
            tell.send_replace(pods(&[("mp-1", true), ("mp-serving", false)], false));
            assert!(changes.until(until, |mounts| mounts.at(&home.source).is_none()).await.unwrap());
            assert!(is_mounted(&dangling), "not all pods are known yet");
            tell.send_replace(pods(&[("mp-serving", false)], true));
            assert!(changes.until(until, |mounts| mounts.at(&dangling).is_none()).await.unwrap());
            assert!(serving.is_dir());
            task.abort();
        });
    });
}

/// Goal: a comm directory without room for a file delays the end of its own pod alone.
#[test]
fn a_source_whose_end_can_not_be_announced_is_tried_again() {
    isolated(|| {
        let home = home();
        sys::unmount(&home.target, Busy::Refuse).unwrap();
        let (comm, flags) = (home.comm.directory(), rustix::mount::MountFlags::empty());
        rustix::mount::mount("tmpfs", comm, "tmpfs", flags, c"nr_inodes=2").unwrap();
        std::fs::write(comm.join("full"), "").unwrap();
        let other = comm::source(&home.kubelet, "mp-other");
        std::fs::create_dir_all(&other).unwrap();
        rustix::mount::mount("tmpfs", &other, "tmpfs", flags, None).unwrap();
        runtime().block_on(async {
            let (_tell, picture) = watch::channel(pods(&[], true));
            let task = tokio::spawn(idle(&home.kubelet, picture, Duration::from_millis(20)).run());
            let changes = Changes::watch().unwrap();
            let until = Instant::now() + Duration::from_secs(60);
            assert!(changes.until(until, |mounts| mounts.at(&other).is_none()).await.unwrap());
            assert!(is_mounted(&home.source), "its mounter would take its end for a death");
            std::fs::remove_file(comm.join("full")).unwrap();
            assert!(changes.until(until, |mounts| mounts.at(&home.source).is_none()).await.unwrap());
            task.abort();
        });
        assert!(home.comm.exit().exists());
    });
}

/// The source and the note of a Mountpoint Pod that is gone. Its engine hangs for as long as the device is open; then it is dead.
fn source_of_a_pod_that_is_gone(kubelet: &Path) -> Option<OwnedFd> {
    let device = fuse()?;
    let source = comm::source(kubelet, "mp-gone");
    std::fs::create_dir_all(&source).unwrap();
    sys::mount_fuse(device.as_fd(), &source, false).unwrap();
    Notes::of(kubelet).remember("mp-gone", "uid-gone").unwrap();
    Some(device)
}

fn idle(kubelet: &Path, pods: watch::Receiver<View<MountpointPod>>, sweep_every: Duration) -> Idle {
    Idle {
        stages: Stages::new(None),
        kubelet: kubelet.to_owned(),
        notes: Notes::of(kubelet),
        unused_within: Duration::from_millis(20),
        sweep_every,
        pods,
        locks: Arc::new(Locks::default()),
        files: HostFiles::of(kubelet),
        probes: Probes::default(),
    }
}

/// Goal: a sweep asks no source, so that the driver of a node goes on beside an engine that hangs.
#[test]
fn a_hung_source_of_a_gone_pod_delays_neither_sweeps_nor_the_pod_list() {
    isolated(|| {
        let limit = Duration::from_secs(60);
        let ([kubelet], _folder) = dirs();
        let runtime = runtime();
        // Closed before the runtime ends, which would wait for a thread that waits for the source. No limit is the runtime's: one such thread
        // can stop its clock.
        let Some(device) = source_of_a_pod_that_is_gone(&kubelet) else { return };
        let (source, target) = (comm::source(&kubelet, "mp-gone"), kubelet.join("target"));
        std::fs::create_dir(&target).unwrap();
        sys::bind(&source, &target, false).unwrap();
        let comm = Comm::on_host(&kubelet, "uid-gone");
        std::fs::create_dir_all(comm.directory()).unwrap();
        let notes = Notes::of(&kubelet);
        notes.remember("mp-old", "uid-old").unwrap();
        let forgotten = |pod| {
            let until = std::time::Instant::now() + limit;
            while notes.uid(pod).is_some() && std::time::Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            notes.uid(pod).is_none()
        };
        let (tell, picture) = watch::channel(pods(&[("mp-serving", false)], true));
        runtime.spawn(idle(&kubelet, picture, Duration::from_millis(20)).run());
        assert!(forgotten("mp-old"), "a sweep ends");
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            tell.send_replace(pods(&[("mp-serving", false), ("mp-new", false)], true));
            // The task ends with its sender.
            done.send(tell).unwrap();
        });
        let _tell = is_done.recv_timeout(limit).expect("a change of a pod is taken in");
        assert!(is_mounted(&source), "others may wait for it");
        assert_eq!(notes.uid("mp-gone").as_deref(), Some("uid-gone"));
        // Once its engine is dead, it is unmounted like any other.
        drop(device);
        assert!(forgotten("mp-gone") && !source.exists());
        assert!(comm.exit().exists(), "its pod's directory was found by the note");
        sys::unmount(&target, Busy::Refuse).unwrap();
    });
}

#[test]
fn a_note_stays_while_its_source_is_mounted_though_the_engine_is_dead() {
    isolated(|| {
        let ([kubelet], _folder) = dirs();
        let Some(device) = source_of_a_pod_that_is_gone(&kubelet) else { return };
        drop(device);
        let (_tell, picture) = watch::channel(pods(&[], true));
        let idle = idle(&kubelet, picture, Duration::from_secs(3600));
        idle.forget_the_gone();
        assert_eq!(idle.notes.uid("mp-gone").as_deref(), Some("uid-gone"));
        let source = comm::source(&kubelet, "mp-gone");
        sys::unmount(&source, Busy::Refuse).unwrap();
        std::fs::remove_dir(&source).unwrap();
        idle.forget_the_gone();
        assert_eq!(idle.notes.uid("mp-gone"), None);
    });
}
