//! The pods that are due, and the time until one is mounted again.

use super::*;

fn request(target: &Path) -> MountRequest {
    MountRequest {
        volume: "pv-1".into(),
        handle: "handle-1".into(),
        workload_uid: "w1".into(),
        workload: None,
        target: target.to_owned(),
        read_only: false,
        source_read_only: false,
        bucket: "bucket".into(),
        place: "place".into(),
        args: Vec::new(),
        env: Vec::new(),
        unusable: None,
        credentials: None,
        of_secret: false,
        token: None,
        agent: None,
    }
}

fn comm(folder: &Path, name: &str) -> Comm {
    let comm = Comm::at(folder.join(name));
    std::fs::create_dir_all(comm.directory()).unwrap();
    comm
}

#[tokio::test]
async fn a_new_socket_or_state_makes_a_remembered_pod_due_and_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let (revivals, target) = (Revivals::new(), Path::new("/t"));
    let (first, second) = (comm(folder.path(), "1"), comm(folder.path(), "2"));
    revivals.remember("mp-1", "uid-1", &first, &request(target), target);
    revivals.remember("mp-2", "uid-2", &second, &request(Path::new("/u")), Path::new("/u"));
    std::fs::write(first.error(), "").unwrap();
    std::fs::write(second.socket(), "").unwrap();
    assert_eq!(revivals.next(&BTreeSet::new()).await, "mp-2");
    std::fs::write(first.socket(), "").unwrap();
    assert_eq!(revivals.next(&BTreeSet::new()).await, "mp-1");
    assert!(!revivals.take_restarted("mp-1"));
    // A mounter writes its state whole or not at all.
    std::fs::write(first.directory().join("new"), "").unwrap();
    std::fs::rename(first.directory().join("new"), first.state()).unwrap();
    assert_eq!(revivals.next(&BTreeSet::new()).await, "mp-1");
    assert!(revivals.take_restarted("mp-1") && !revivals.take_restarted("mp-1"), "one word for each death");
    // The last target of a pod takes its watch along.
    revivals.forget(target);
    std::fs::write(first.directory().join("again"), "").unwrap();
    std::fs::remove_file(first.socket()).unwrap();
    std::fs::write(first.socket(), "").unwrap();
    std::fs::remove_file(second.socket()).unwrap();
    std::fs::write(second.socket(), "").unwrap();
    assert_eq!(revivals.next(&BTreeSet::new()).await, "mp-2");
    assert!(revivals.of("mp-1").is_none() && revivals.of("mp-2").is_some());
}

#[tokio::test]
async fn a_target_belongs_to_one_pod_and_bad_options_leave_the_good_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (revivals, target) = (Revivals::new(), Path::new("/t"));
    let comm = comm(folder.path(), "1");
    let good = MountRequest { args: vec!["--good".into()], ..request(target) };
    revivals.remember("mp-1", "uid-1", &comm, &good, target);
    let keys = crate::mounter::Credentials {
        access_key_id: "new".into(),
        secret_access_key: "s".into(),
        session_token: None,
    };
    let bad = MountRequest { unusable: Some("why".into()), credentials: Some(keys), ..request(target) };
    revivals.remember("mp-1", "uid-1", &comm, &bad, target);
    let served = revivals.of("mp-1").unwrap();
    assert_eq!(served.request.args, ["--good"]);
    assert_eq!(served.request.credentials.unwrap().access_key_id, "new");
    revivals.remember("mp-2", "uid-2", &comm, &good, target);
    assert!(revivals.of("mp-1").is_none());
    // A pod of the same name is another pod.
    revivals.remember("mp-2", "uid-3", &comm, &good, Path::new("/u"));
    let served = revivals.of("mp-2").unwrap();
    assert_eq!((served.uid.as_str(), served.targets.len()), ("uid-3", 1));
}

#[test]
fn deaths_in_a_row_are_remounted_in_a_second_and_failures_slow_down() {
    let mut now = Instant::now();
    let mut pace = Pace::default();
    assert_eq!(pace.wait(now), Duration::ZERO);
    let mut waits = Vec::new();
    for _ in 0..6 {
        pace = pace.after(now, false);
        waits.push(pace.wait(now).as_millis());
        now += Duration::from_millis(1);
    }
    assert_eq!(waits, [100, 200, 400, 800, 1000, 1000]);
    assert_eq!(pace.wait(now + WELL_AFTER), Duration::ZERO, "it served for a while");
    for _ in 0..20 {
        pace = pace.after(now, true);
    }
    assert_eq!(pace.wait(now), PAUSE_OF_FAILURES_MAX);
    assert_eq!(pace.wait(now + WELL_AFTER), PAUSE_OF_FAILURES_MAX - WELL_AFTER);
    pace = pace.after(now + PAUSE_OF_FAILURES_MAX, false);
    assert_eq!(pace.wait(now + PAUSE_OF_FAILURES_MAX), FIRST_PAUSE, "the row has ended");
}
