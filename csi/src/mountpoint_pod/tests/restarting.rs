//! Engines that die and are followed by others on the same device.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixDatagram;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::*;
use crate::contract::upgrade::HandingOver;

/// An engine that notes its environment and arguments, has its journal given by the test, serves, and ends as `ends` says at a word of the test.
fn pod(ends: &str) -> Pod {
    let mut pod = Pod::new(&format!(
        "dir=${{0%/*}}; echo >>$dir/starts; n=$(wc -l <$dir/starts); echo \"$@\" >$dir/args$n; env >$dir/env$n\n\
         while ! test -e $dir/given; do sleep 0.01; done; echo ready >$ready; read go <$dir/go; {ends}"
    ));
    pod.config.restarts = true;
    pod.pipe("go");
    pod
}

impl Pod {
    /// Gives the mounter a journal, as the first engine does.
    fn give_journal(&self) {
        let (socket, at) = (UnixDatagram::unbound().unwrap(), self.config.comm.notify_socket());
        while socket.connect(&at).is_err() {
            thread::sleep(Duration::from_millis(1));
        }
        let journal = fs::File::open("/dev/zero").unwrap();
        let rights = [journal.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
        let words = IoSlice::new(b"FDSTORE=1\nFDNAME=journal\n");
        sendmsg(&socket, &[words], &mut control, SendFlags::empty()).unwrap();
        fs::write(self.folder.path().join("given"), "").unwrap();
    }

    /// Lets the engine that serves end; one that does not serve yet is waited for.
    fn end_engine(&self) {
        fs::write(self.folder.path().join("go"), "go\n").unwrap();
    }

    fn starts(&self) -> usize {
        fs::read_to_string(self.folder.path().join("starts")).unwrap_or_default().lines().count()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }
}

fn wait(what: &str, done: impl FnMut() -> bool) {
    testkit::until(what, done);
}

/// Goal: readers see no error when an engine dies.
#[test]
fn an_engine_that_dies_is_followed_by_another_on_the_same_device() {
    let pod = pod("test $n -ge 3 && touch $dir/comm/mount.exit || kill -9 $$");
    let device = pod.folder.path().join("device");
    fs::write(&device, "").unwrap();
    let (outcome, ()) = pod.run(|stream| {
        let file = fs::File::open(&device).unwrap();
        message::send(&stream, &pod.message(&["--region=r"]), alone(&file), LONG).unwrap();
        drop(file);
        pod.give_journal();
        assert_eq!(answered(&stream), Some(Answer::Ready));
        for engine in 2..=3 {
            pod.end_engine();
            wait("the next engine", || pod.starts() == engine);
            wait("no state, once it serves", || !pod.config.comm.state().exists());
            assert!(pod.error().unwrap().contains("signal: 9"), "why it died stands there");
            assert!(!pod.config.comm.socket().exists(), "no device is asked for");
            assert_eq!(held(&device), 2, "one is offered to the node's holder");
        }
        pod.end_engine();
    });
    outcome.unwrap();
    assert_eq!(held(&device), 0);
    assert!(!pod.config.comm.notify_socket().exists());
    let (first, second) = (pod.read("args1"), pod.read("args2"));
    for args in [&first, &second] {
        assert!(args.contains("--region=r --foreground --supervised --ready-file"), "{args}");
    }
    assert_eq!(first.split(' ').next(), second.split(' ').next(), "the device");
    assert!(!pod.read("env1").contains("LISTEN_FDS"));
    let env = pod.read("env2");
    assert!(env.contains("FIRST=a=b") && env.contains("NOTIFY_SOCKET="), "{env}");
    let names = env.lines().find_map(|line| line.strip_prefix("LISTEN_FDNAMES=")).unwrap();
    assert!(names.ends_with("journal"), "{names}");
}

#[test]
fn five_deaths_in_a_row_close_the_device_and_the_next_one_is_waited_for() {
    let pod = pod("kill -9 $$");
    let device = pod.folder.path().join("device");
    fs::write(&device, "").unwrap();
    let (outcome, ()) = pod.run(|stream| {
        let file = fs::File::open(&device).unwrap();
        message::send(&stream, &pod.message(&[]), alone(&file), LONG).unwrap();
        drop(file);
        pod.give_journal();
        assert_eq!(answered(&stream), Some(Answer::Ready));
        for death in 1..=4 {
            pod.end_engine();
            wait("the next engine", || pod.starts() == death + 1);
            wait("no state, once it serves", || !pod.config.comm.state().exists());
        }
        pod.end_engine();
        drop(pod.connect());
        assert_eq!((held(&device), pod.starts()), (0, 5));
        assert!(!pod.config.comm.state().exists() && !pod.config.comm.notify_socket().exists());
        pod.needs_nothing_more();
    });
    outcome.unwrap();
}

#[test]
fn an_engine_that_ends_by_itself_or_refuses_its_journal_stays_ended() {
    for ends in ["exit 0", "exit 3"] {
        let pod = pod(ends);
        let (outcome, ()) = pod.run(|stream| {
            pod.hand_over(&stream, &[]);
            pod.give_journal();
            assert_eq!(answered(&stream), Some(Answer::Ready));
            pod.end_engine();
            drop(pod.connect());
            assert_eq!(pod.starts(), 1, "{ends}");
            pod.needs_nothing_more();
        });
        outcome.unwrap();
    }
}

#[test]
fn an_engine_without_a_journal_is_not_started_again() {
    let pod = pod("kill -9 $$");
    fs::write(pod.folder.path().join("given"), "").unwrap();
    let (outcome, ()) = pod.run(|stream| {
        pod.hand_over(&stream, &[]);
        assert_eq!(answered(&stream), Some(Answer::Ready));
        pod.end_engine();
        drop(pod.connect());
        assert_eq!(pod.starts(), 1);
        pod.needs_nothing_more();
    });
    outcome.unwrap();
}

#[test]
fn a_mounter_that_is_told_to_end_still_starts_engines_that_die() {
    let pod = pod("test $n -ge 2 && exit 0 || kill -9 $$");
    let serving = Serving::default();
    let outcome = thread::scope(|scope| {
        let running = scope.spawn(|| run(&pod.config, &serving));
        let stream = pod.connect();
        pod.hand_over(&stream, &[]);
        pod.give_journal();
        assert_eq!(answered(&stream), Some(Answer::Ready));
        assert!(serving.told_to_end(), "workloads that drain still read");
        pod.end_engine();
        wait("the next engine", || pod.starts() == 2);
        pod.end_engine();
        running.join().unwrap()
    });
    outcome.unwrap_err();
}

/// Goal: a container that is killed as a whole costs no mount.
#[test]
fn a_mount_that_a_holder_brings_goes_on_with_its_journal() {
    let pod = pod("test $n -ge 2 && touch $dir/comm/mount.exit || kill -9 $$");
    let (device, journal) = (pod.folder.path().join("device"), pod.folder.path().join("journal"));
    for file in [&device, &journal] {
        fs::write(file, "").unwrap();
    }
    fs::write(pod.folder.path().join("given"), "").unwrap();
    let state = Restarting { since: Timestamp::now() };
    fs::write(pod.config.comm.state(), state.held()).unwrap();
    let (outcome, ()) = pod.run(|stream| {
        assert!(pod.config.comm.state().exists(), "the holder's word stays until it has come");
        let files = [&device, &journal].map(|it| fs::File::open(it).unwrap());
        let adopts = MountMessage { adopt: Some(state.since), ..pod.message(&["--region=r"]) };
        let both = Mount { device: files[0].as_fd(), journal: Some(files[1].as_fd()), stage: None };
        message::send(&stream, &adopts, both, LONG).unwrap();
        drop(files);
        assert_eq!(answered(&stream), Some(Answer::Ready));
        assert!(!pod.config.comm.state().exists());
        let holder = message::connect(&pod.config.comm.hold_socket()).unwrap();
        let (said, _mount) = crate::contract::hold::receive(&holder).unwrap();
        assert_eq!(said, pod.message(&["--region=r"]), "the next container is to hear the same");
        pod.end_engine();
        wait("the next engine", || pod.starts() == 2);
        pod.end_engine();
    });
    outcome.unwrap();
    assert!(pod.read("env1").contains("LISTEN_FDNAMES=") && pod.read("args1").contains("--supervised"));
    assert_eq!(held(&device), 0);
}

#[test]
fn a_pod_that_starts_no_engine_again_refuses_a_mount_that_a_holder_brings() {
    let mut pod = pod("exit 0");
    pod.config.restarts = false;
    let (outcome, said) = pod.run(|stream| {
        let files = [(); 2].map(|()| fs::File::open("/dev/null").unwrap());
        let adopts = MountMessage { adopt: Some(Timestamp::now()), ..pod.message(&[]) };
        let both = Mount { device: files[0].as_fd(), journal: Some(files[1].as_fd()), stage: None };
        message::send(&stream, &adopts, both, LONG).unwrap();
        answered(&stream)
    });
    outcome.unwrap_err();
    assert!(matches!(said, Some(Answer::Failed { .. })), "{said:?}");
    assert_eq!(pod.starts(), 0);
}

impl Pod {
    /// Whether the state file says so, as the node's driver reads it.
    fn is_restarting(&self) -> bool {
        let state = fs::read_to_string(self.config.comm.state()).unwrap_or_default();
        Restarting::read(&state, Timestamp::now()).is_some()
    }

    /// Asks for the mount to be left, as the node's driver does.
    fn ask_hand_over(&self) {
        let word = HandingOver { since: Timestamp::now() };
        fs::write(self.config.comm.handover(), word.to_string()).unwrap();
    }
}

/// Goal: an upgrade in place costs no mount, and no writer that begins on the way.
#[test]
fn a_container_whose_engine_leaves_ends_and_the_next_waits_for_its_image() {
    let mut pod = pod("exit 75");
    let device = pod.folder.path().join("device");
    fs::write(&device, "").unwrap();
    let (outcome, holder) = pod.run(|stream| {
        let file = fs::File::open(&device).unwrap();
        message::send(&stream, &pod.message(&[]), alone(&file), LONG).unwrap();
        drop(file);
        pod.give_journal();
        assert_eq!(answered(&stream), Some(Answer::Ready));
        let holder = message::connect(&pod.config.comm.hold_socket()).unwrap();
        crate::contract::hold::receive(&holder).unwrap();
        pod.ask_hand_over();
        pod.end_engine();
        holder
    });
    assert_eq!(outcome.unwrap(), Outcome::HandedOver);
    assert_eq!(pod.starts(), 1);
    holder.set_nonblocking(true).unwrap();
    let word = io::Read::read(&mut &holder, &mut [0]).unwrap_err();
    assert_eq!(word.kind(), io::ErrorKind::WouldBlock, "the holder is not told to let go");

    // This image again: the kubelet starts it before the reconciler has patched the pod.
    pod.config.image_within = Duration::ZERO;
    let error = run(&pod.config, &Serving::default()).unwrap_err().to_string();
    assert!(error.contains("no other image came"), "{error}");
    assert!(pod.config.comm.waits().exists() && !pod.config.comm.socket().exists());
    // The container behind it.
    let (outcome, ()) = pod.run(|stream| {
        assert!(!pod.config.comm.waits().exists());
        drop(stream);
        pod.needs_nothing_more();
    });
    assert_eq!(outcome.unwrap(), Outcome::Unmounted);
}

#[test]
fn an_engine_that_leaves_is_followed_here_unless_a_holder_has_the_mount() {
    for (asked, is_held) in [(true, false), (false, true)] {
        let pod = pod("test $n -ge 2 && touch $dir/comm/mount.exit || exit 75");
        let (outcome, _holder) = pod.run(|stream| {
            pod.hand_over(&stream, &[]);
            pod.give_journal();
            assert_eq!(answered(&stream), Some(Answer::Ready));
            let holder = is_held.then(|| message::connect(&pod.config.comm.hold_socket()).unwrap());
            holder.iter().for_each(|it| drop(crate::contract::hold::receive(it).unwrap()));
            if asked {
                pod.ask_hand_over();
            }
            pod.end_engine();
            wait("the next engine", || pod.starts() == 2);
            pod.end_engine();
            holder
        });
        assert_eq!(outcome.unwrap(), Outcome::Unmounted, "{asked} {is_held}");
    }
}

/// Goal: an image whose engine refuses the mount costs no mount, and does not count as upgraded.
#[test]
fn an_engine_of_another_image_that_refuses_leaves_the_mount_and_ends() {
    let ends = ["exit 3", "exit 2", "no engine"];
    for (ends, restarts) in ends.map(|ends| (ends, true)).into_iter().chain([("no kernel for it", false)]) {
        let mut pod = Pod::new(&format!("echo >>${{0%/*}}/starts; {ends}"));
        pod.config.restarts = restarts;
        if ends == "no engine" {
            fs::remove_file(pod.folder.path().join("mount-s3")).unwrap();
        }
        pod.ask_hand_over();
        let state = Restarting { since: Timestamp::now() };
        fs::write(pod.config.comm.state(), state.held()).unwrap();
        let (outcome, said) = pod.run(|stream| {
            let files = [(); 2].map(|()| fs::File::open("/dev/null").unwrap());
            let adopts = MountMessage { adopt: Some(state.since), ..pod.message(&[]) };
            let both = Mount { device: files[0].as_fd(), journal: Some(files[1].as_fd()), stage: None };
            message::send(&stream, &adopts, both, LONG).unwrap();
            answered(&stream)
        });
        let error = outcome.unwrap_err().to_string();
        assert_eq!(said, None, "the holder would give the mount up: {ends}");
        assert_eq!(pod.starts(), usize::from(ends.starts_with("exit")), "{ends}: {error}");
        assert!(pod.config.comm.state().exists(), "the holder's word stays: {ends}");
    }
}

/// Goal: an image whose engine serves and dies again and again costs no mount that the image of before can serve.
#[test]
fn an_engine_of_another_image_that_dies_five_times_leaves_the_mount() {
    for is_withdrawn in [false, true] {
        let pod = pod("kill -9 $$");
        fs::write(pod.folder.path().join("given"), "").unwrap();
        pod.ask_hand_over();
        let (outcome, holder) = pod.run(|stream| {
            let files = [(); 2].map(|()| fs::File::open("/dev/zero").unwrap());
            let adopts = MountMessage { adopt: Some(Timestamp::now()), ..pod.message(&[]) };
            let both = Mount { device: files[0].as_fd(), journal: Some(files[1].as_fd()), stage: None };
            message::send(&stream, &adopts, both, LONG).unwrap();
            assert_eq!(answered(&stream), Some(Answer::Ready));
            let holder = message::connect(&pod.config.comm.hold_socket()).unwrap();
            crate::contract::hold::receive(&holder).unwrap();
            if is_withdrawn {
                // The reconciler has told the workloads that the pod is upgraded.
                fs::remove_file(pod.config.comm.handover()).unwrap();
            }
            for death in 1..=5 {
                wait("the next engine", || pod.starts() == death);
                pod.end_engine();
            }
            if is_withdrawn {
                drop(pod.connect());
                pod.needs_nothing_more();
            }
            holder
        });
        assert_eq!(pod.starts(), 5);
        holder.set_nonblocking(true).unwrap();
        let said = io::Read::read(&mut &holder, &mut [0; 8]);
        if is_withdrawn {
            assert_eq!(outcome.unwrap(), Outcome::Unmounted);
            assert_eq!(said.unwrap(), crate::contract::hold::END.len(), "the holder lets go");
            assert!(!pod.config.comm.state().exists());
        } else {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("stays with the node's holder"), "{error}");
            // The node looks before the holder has written its own state.
            assert!(pod.error().unwrap().contains("signal: 9"), "{:?}", pod.error());
            assert!(pod.is_restarting(), "it does not hang");
            assert_eq!(
                said.unwrap_err().kind(),
                io::ErrorKind::WouldBlock,
                "the holder is not told to let go"
            );
        }
    }
}

/// The kubelet ends this container with its pod: no other one follows.
#[test]
fn a_mounter_that_is_told_to_end_leaves_its_mount_to_no_other_container() {
    let pod = pod("test $n -ge 2 && touch $dir/comm/mount.exit || exit 75");
    let serving = Serving::default();
    let outcome = thread::scope(|scope| {
        let running = scope.spawn(|| run(&pod.config, &serving));
        let stream = pod.connect();
        pod.hand_over(&stream, &[]);
        pod.give_journal();
        assert_eq!(answered(&stream), Some(Answer::Ready));
        let holder = message::connect(&pod.config.comm.hold_socket()).unwrap();
        crate::contract::hold::receive(&holder).unwrap();
        pod.ask_hand_over();
        assert!(serving.told_to_end(), "workloads that drain still read");
        pod.end_engine();
        wait("the next engine, or the end", || pod.starts() == 2 || running.is_finished());
        if !running.is_finished() {
            pod.end_engine();
        }
        running.join().unwrap()
    });
    assert_eq!((outcome.unwrap(), pod.starts()), (Outcome::Unmounted, 2));
}
