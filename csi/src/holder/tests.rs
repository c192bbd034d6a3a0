//! The holder beside a mounter and a mount of the test, in one process. The descriptors of a journal's name say what is held.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use k8s_openapi::jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use testkit::until;
use tokio::runtime::Runtime;

use super::*;
use crate::contract::hold;
use crate::contract::message::{self, Answer, MountMessage};
use crate::contract::restart::Restarting;
use crate::contract::rights;
use crate::mounter::comm_files::CommFiles;
use crate::mounter::sys::{self, Busy};
use crate::mounter::testing::{self, fuse, isolated, processes};

const UID: &str = "uid-1";
const LONG: Duration = Duration::from_secs(60);

/// A node with a Mountpoint Pod whose source is mounted, and a holder.
struct Node {
    kubelet: PathBuf,
    comm: Comm,
    source: PathBuf,
    holds: Holds,
    config: Config,
    holder: Option<Runtime>,
    folder: tempfile::TempDir,
}

impl Node {
    /// A node, and the device of the mount at the pod's source. `runs_in`: the pod of this process, by its cgroup.
    fn new(runs_in: &str) -> Option<(Self, OwnedFd)> {
        let device = fuse()?;
        let folder = tempfile::tempdir().unwrap();
        let kubelet = folder.path().canonicalize().unwrap().join("kubelet");
        let (comm, source) = (Comm::on_host(&kubelet, UID), comm::source(&kubelet, "mp-1"));
        fs::create_dir_all(comm.directory()).unwrap();
        fs::create_dir_all(&source).unwrap();
        sys::mount_fuse(device.as_fd(), &source, false).unwrap();
        Notes::of(&kubelet).remember("mp-1", UID).unwrap();
        let config = Config {
            kubelet: kubelet.clone(),
            processes: processes(&folder.path().join("proc"), &[runs_in, "uid-2"]),
        };
        let mut node = Self { kubelet, comm, source, holds: Holds::default(), config, holder: None, folder };
        node.start();
        Some((node, device))
    }

    fn start(&mut self) {
        // The holder has one thread for all pods.
        let one = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let holder = one.unwrap();
        holder.spawn(run(self.config.clone(), Arc::clone(&self.holds)));
        self.holder = Some(holder);
    }

    fn state(&self) -> Option<&'static str> {
        self.holds.lock().get("mp-1").copied()
    }

    fn listen(&self, socket: &Path) -> UnixListener {
        let _ = fs::remove_file(socket);
        message::listen(socket).unwrap()
    }

    /// Registers a mount as its mounter does, and waits until it is held.
    fn registered(&self, device: &OwnedFd, journal: &OwnedFd) -> UnixStream {
        let listener = self.listen(&self.comm.hold_socket());
        let (stream, _) = listener.accept().unwrap();
        hold::register(&stream, &message(), device.as_fd(), journal.as_fd()).unwrap();
        until("it is held", || self.state() == Some("held"));
        let _ = fs::remove_file(self.comm.hold_socket());
        stream
    }

    fn is_let_go(&self, journal: &str) {
        until("nothing is held", || self.state().is_none() && copies(journal) == 0);
    }
}

fn message() -> MountMessage {
    MountMessage {
        bucket_name: "bucket".into(),
        args: vec!["--a".into()],
        env: Vec::new(),
        adopt: None,
        stage: false,
    }
}

fn journal(name: &str) -> OwnedFd {
    let journal = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&journal, b"records").unwrap();
    journal
}

/// The descriptors of this process that lead to a journal of this name.
fn copies(name: &str) -> usize {
    let ours = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = ours.filter_map(|fd| fs::read_link(fd.path()).ok());
    links.filter(|to| to.to_string_lossy().starts_with(&format!("/memfd:{name}"))).count()
}

/// Goal: programs read on when mounter and engine are killed together.
#[test]
fn a_mount_goes_from_a_container_that_ended_to_the_next_one() {
    isolated(|| {
        let Some((node, device)) = Node::new(UID) else { return };
        let ours = journal("first");
        let stream = node.registered(&device, &ours);
        drop((stream, device, ours));
        until("the container is missed", || node.state() == Some("without an engine"));
        let files = CommFiles::open(&node.comm).unwrap();
        until("the driver sees a state", || files.is_held());
        assert!(files.error().unwrap().contains("out of memory"));
        assert_eq!(copies("first"), 1);

        let waits = node.listen(&node.comm.socket());
        let registers = node.listen(&node.comm.hold_socket());
        let (stream, _) = waits.accept().unwrap();
        let (said, mount) = message::receive(&stream, Duration::from_secs(60)).unwrap();
        assert_eq!(MountMessage { adopt: None, stage: false, ..said.clone() }, message());
        let age = Timestamp::now().duration_since(said.adopt.unwrap());
        assert!(!age.is_negative(), "{age:?}");
        let (device, journal) = (mount.device, mount.journal.unwrap());
        let mut records = [0; 7];
        rustix::io::pread(&journal, &mut records, 0).unwrap();
        assert_eq!(&records, b"records");
        message::answer(&stream, &Answer::Ready).unwrap();
        let (stream, _) = registers.accept().unwrap();
        hold::register(&stream, &message(), device.as_fd(), journal.as_fd()).unwrap();
        until("it is held again", || node.state() == Some("held"));
        hold::end(&stream);
        drop(journal);
        node.is_let_go("first");
        assert!(sys::unmount(&node.source, Busy::Detach).unwrap());
    });
}

#[test]
fn a_mount_that_ends_or_whose_pod_goes_is_let_go_at_once() {
    type Ends = fn(&Node, &UnixStream);
    let said: Ends = |_, stream| hold::end(stream);
    let flood: Ends = |_, stream| {
        let mut stream = stream;
        let _ = stream.write_all(&[b'x'; 9000]);
    };
    let announced: Ends = |node, _| CommFiles::open(&node.comm).unwrap().announce_exit().unwrap();
    let unmounted: Ends = |node, _| assert!(sys::unmount(&node.source, Busy::Detach).unwrap());
    let deleted: Ends = |node, _| fs::remove_dir_all(node.comm.directory()).unwrap();
    let forgotten: Ends = |node, _| Notes::of(&node.kubelet).forget("mp-1").unwrap();
    isolated(|| {
        for ends in [said, flood, announced, unmounted, deleted, forgotten] {
            let Some((node, device)) = Node::new(UID) else { return };
            let ours = journal("held");
            let stream = node.registered(&device, &ours);
            assert_eq!(copies("held"), 2);
            drop((device, ours));
            ends(&node, &stream);
            drop(stream);
            node.is_let_go("held");
            let told = || CommFiles::open(&node.comm).is_ok_and(|files| files.restarting().is_some());
            until("the driver may look after the mount", || !told());
        }
    });
}

#[test]
fn a_workload_in_the_mounters_place_is_asked_for_nothing_and_gets_nothing() {
    isolated(|| {
        let Some((node, device)) = Node::new("uid-of-a-workload") else { return };
        let listener = node.listen(&node.comm.hold_socket());
        for _ in 0..3 {
            let (stream, _) = listener.accept().unwrap();
            let _ = hold::register(&stream, &message(), device.as_fd(), journal("false").as_fd());
            let mut said = Vec::new();
            let _ = (&stream).read_to_end(&mut said);
            assert_eq!((said.len(), node.state()), (0, None));
        }
        assert_eq!(copies("false"), 0);
    });
}

#[test]
fn a_pod_holds_no_mount_but_that_of_its_own_source() {
    isolated(|| {
        let Some((node, own)) = Node::new(UID) else { return };
        let other = fuse().unwrap();
        let at = node.folder.path().join("other");
        fs::create_dir(&at).unwrap();
        sys::mount_fuse(other.as_fd(), &at, false).unwrap();
        let file = || OwnedFd::from(File::open("/dev/null").unwrap());
        let mut given = vec![("null", file(), journal("null")), ("file", own, file())];
        if testkit::need("Linux 6.17, which tells a device's connection", says_connection(&other)) {
            given.push(("other", other, journal("other")));
        }
        let listener = node.listen(&node.comm.hold_socket());
        for (name, device, journal) in given {
            let (stream, _) = listener.accept().unwrap();
            hold::register(&stream, &message(), device.as_fd(), journal.as_fd()).unwrap();
            drop((device, journal));
            let mut said = Vec::new();
            (&stream).read_to_end(&mut said).unwrap();
            node.is_let_go(name);
        }
    });
}

/// Goal: a passing error of the node loses no mount.
#[test]
fn a_mount_stays_held_while_the_drivers_notes_cannot_be_read() {
    isolated(|| {
        let Some((node, device)) = Node::new(UID) else { return };
        let ours = journal("stays");
        let _stream = node.registered(&device, &ours);
        let notes = comm::plugin_directory(&node.kubelet).join("pods");
        let aside = notes.with_file_name("aside");
        fs::rename(&notes, &aside).unwrap();
        fs::write(&notes, "no directory").unwrap();
        std::thread::sleep(3 * LOOK_EVERY);
        assert_eq!((node.state(), copies("stays")), (Some("held"), 2));
        fs::remove_file(&notes).unwrap();
        fs::rename(&aside, &notes).unwrap();
        drop(ours);
        Notes::of(&node.kubelet).forget("mp-1").unwrap();
        node.is_let_go("stays");
    });
}

/// Goal: a pod that registers and hangs up again and again costs no more than one that waits.
#[test]
fn a_mounter_that_registers_and_hangs_up_is_looked_at_twice_a_second() {
    isolated(|| {
        let Some((node, device)) = Node::new(UID) else { return };
        let listener = node.listen(&node.comm.hold_socket());
        let (first, _) = listener.accept().unwrap();
        let began = std::time::Instant::now();
        let ours = journal("again");
        let mut stream = first;
        for _ in 0..4 {
            hold::register(&stream, &message(), device.as_fd(), ours.as_fd()).unwrap();
            drop(stream);
            (stream, _) = listener.accept().unwrap();
        }
        assert!(began.elapsed() >= 3 * LOOK_EVERY, "{:?}", began.elapsed());
    });
}

/// Goal: a pod that sends what it should not keeps the holder from no other mount.
#[test]
fn a_close_that_waits_holds_up_no_other_pod() {
    isolated(|| {
        let (Some((node, device)), Some(unmounted)) = (Node::new(UID), fuse()) else { return };
        // Another pod of the same process and node, whose mount is this test's, too.
        let (other, source) = (Comm::on_host(&node.kubelet, "uid-2"), comm::source(&node.kubelet, "mp-2"));
        fs::create_dir_all(other.directory()).unwrap();
        fs::create_dir_all(&source).unwrap();
        sys::mount_fuse(unmounted.as_fd(), &source, false).unwrap();
        let began = std::time::Instant::now();
        let (first_peer, word) = testing::lingering();
        let stream = node.registered(&device, &journal("first"));
        // The holder's own thread reads nothing until it has the only copy.
        let (enter, entered) = std::sync::mpsc::sync_channel(1);
        let (release, gate) = std::sync::mpsc::sync_channel::<()>(1);
        node.holder.as_ref().unwrap().spawn(async move {
            enter.send(()).unwrap();
            let _ = gate.recv();
        });
        entered.recv().unwrap();
        rights::send(&stream, b"x", &[word.as_fd()], LONG).unwrap();
        testing::let_go(vec![word]);
        std::thread::sleep(LOOK_EVERY);
        release.send(()).unwrap();
        Notes::of(&node.kubelet).remember("mp-2", "uid-2").unwrap();
        let second = node.listen(&other.hold_socket());
        let (second, _) = second.accept().unwrap();
        hold::register(&second, &message(), unmounted.as_fd(), journal("other").as_fd()).unwrap();
        let is_held = || node.holds.lock().contains_key("mp-2");
        until("the other pod is held", is_held);
        assert!(began.elapsed() < testing::LINGERS, "the holder waited for a word");
        drop((first_peer, stream));

        // A registration that is refused.
        let (peers, slow): (Vec<_>, Vec<_>) = (0..2).map(|_| testing::lingering()).unzip();
        let began = std::time::Instant::now();
        let listener = node.listen(&node.comm.hold_socket());
        let (stream, _) = listener.accept().unwrap();
        let line = serde_json::to_vec(&message()).unwrap();
        rights::send(&stream, &line, &[slow[0].as_fd(), slow[1].as_fd()], LONG).unwrap();
        // The holder has the only copies when it closes them.
        drop(slow);
        rights::send(&stream, b"\n", &[], LONG).unwrap();
        hold::end(&second);
        until("the other pod is let go", || !is_held());
        assert!(began.elapsed() < testing::LINGERS, "the holder waited for a refused registration");
        assert_eq!(node.state(), None);
        drop(peers);
        // It is free for a sound registration of the first pod.
        let (stream, _) = listener.accept().unwrap();
        hold::register(&stream, &message(), device.as_fd(), journal("sound").as_fd()).unwrap();
        until("the first pod is held", || node.state() == Some("held"));
    });
}

fn says_connection(device: &OwnedFd) -> bool {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd())).unwrap();
    info.contains("fuse_connection:")
}

/// Goal: the holder may be killed and updated at any time.
#[test]
fn a_holder_that_starts_anew_holds_what_mounters_register_again() {
    isolated(|| {
        let Some((mut node, device)) = Node::new(UID) else { return };
        let ours = journal("again");
        let stream = node.registered(&device, &ours);
        node.holder.take().unwrap().shutdown_background();
        let mut said = Vec::new();
        (&stream).read_to_end(&mut said).unwrap();
        until("its copies are closed", || copies("again") == 1);
        node.start();
        let _stream = node.registered(&device, &ours);
        assert_eq!(copies("again"), 2);

        // One that ends while a container is missed leaves a state, which the next one takes away.
        let state = Restarting { since: Timestamp::now() };
        let files = CommFiles::open(&node.comm).unwrap();
        node.holder.take().unwrap().shutdown_background();
        files.note_ended("ended", state, rustix::process::geteuid()).unwrap();
        node.start();
        until("the driver may look", || files.restarting().is_none());
    });
}

/// Reads a request of the kernel about the mount, if there is one: its operation and its number.
fn request(device: &OwnedFd) -> Option<(u32, u64)> {
    let mut ready = [PollFd::new(device, PollFlags::IN)];
    if poll(&mut ready, Some(&Timespec::default())).unwrap() == 0 {
        return None;
    }
    let mut bytes = vec![0; 1 << 18];
    rustix::io::read(device, &mut bytes).unwrap();
    let (operation, number) = (bytes[4..8].try_into().unwrap(), bytes[8..16].try_into().unwrap());
    Some((u32::from_ne_bytes(operation), u64::from_ne_bytes(number)))
}

fn reply(device: &OwnedFd, number: u64, error: i32, body: &[u8]) {
    let length = u32::try_from(16 + body.len()).unwrap();
    let head = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &number.to_ne_bytes()].concat();
    rustix::io::write(device, &[&head, body].concat()).unwrap();
}

/// Goal: a holder never waits for a mount, so that it can be killed, and the mount ends.
#[test]
fn a_holder_asks_a_mount_nothing_in_all_its_life() {
    isolated(|| {
        let Some((mut node, device)) = Node::new(UID) else { return };
        let (init, number) = request(&device).unwrap();
        assert_eq!(init, 26, "FUSE_INIT, which the kernel sends for the mount");
        // Version 7.31 of the protocol, writes of 128 KiB, and nothing else.
        let mut agreed = [0_u8; 64];
        for (at, value) in [(0, 7_u32), (4, 31), (20, 1 << 17)] {
            agreed[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        reply(&device, number, 0, &agreed);

        let ours = journal("quiet");
        let stream = node.registered(&device, &ours);
        drop(stream);
        until("the container is missed", || node.state() == Some("without an engine"));
        let waits = node.listen(&node.comm.socket());
        let registers = node.listen(&node.comm.hold_socket());
        let (stream, _) = waits.accept().unwrap();
        let (_, mount) = message::receive(&stream, LONG).unwrap();
        message::answer(&stream, &Answer::Ready).unwrap();
        let (stream, _) = registers.accept().unwrap();
        hold::register(&stream, &message(), mount.device.as_fd(), ours.as_fd()).unwrap();
        until("it is held again", || node.state() == Some("held"));
        node.holder.take().unwrap().shutdown_background();
        node.start();
        let stream = node.registered(&device, &ours);
        hold::end(&stream);
        drop((stream, mount));
        node.is_let_go("none");
        assert_eq!(request(&device), None, "the holder asked the mount");

        // A look at it is heard.
        let source = node.source.clone();
        let looks = std::thread::spawn(move || fs::metadata(source).map(|_| ()));
        let mut heard = None;
        until("a look is heard", || {
            heard = request(&device);
            heard.is_some()
        });
        reply(&device, heard.unwrap().1, -5, &[]);
        looks.join().unwrap().unwrap_err();
    });
}
