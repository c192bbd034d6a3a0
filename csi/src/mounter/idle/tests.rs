//! Due sources from hand-written pictures; then real mounts of a tmpfs in a separate namespace.

use std::path::Path;

use super::*;
use crate::mounter::testing::{dirs, isolated, runtime};

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
    let sources = ["mp-marked", "mp-serving", "mp-gone"].map(str::to_owned);
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
                kubelet: home.kubelet.clone(),
                notes: Notes::of(&home.kubelet),
                unused_within: Duration::from_secs(60),
                sweep_every: Duration::from_secs(3600),
                pods: pods_seen,
                locks: Arc::new(Locks::default()),
                files: HostFiles::of(&home.kubelet),
                probes: Probes::default(),
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
