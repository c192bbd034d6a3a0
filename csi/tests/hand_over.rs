//! A mount without Kubernetes: the node's side of this library, the real mounter, the real engine and a real S3 server, as root of a
//! separate mount namespace.

mod at_home;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use csi::contract::comm::{self, Comm};
use csi::contract::message::MountMessage;
use csi::contract::upgrade::HANDED_OVER;
use csi::holder::{self, Holds};
use csi::mounter::comm_files::CommFiles;
use csi::mounter::mountinfo::Mounts;
use csi::mounter::notes::Notes;
use csi::mounter::peer::Processes;
use csi::mounter::source::{Peer, SourceMount};
use csi::mounter::sys::{self, Busy};
use csi::mounter::upgrades;
use rustix::process::{Pid, Signal, kill_process};
use testkit::until;

use self::at_home::{LIMIT, Node, Process, SECRET, UID, isolated, serve};

/// The deaths in a row that end a mount.
const DEATHS_MAX: usize = 5;

/// A node with a Mountpoint Pod.
struct Home {
    node: Node,
    pod: Process,
    store: Process,
}

impl Deref for Home {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl Home {
    fn new() -> Self {
        let (node, store) = Node::new();
        let pod = Self::pod(&node.comm);
        Self { node, pod, store }
    }

    /// Starts the store anew at its address, so that it looks for buckets.
    fn restart_store(&mut self) {
        self.store.signal(Signal::KILL);
        self.store.code();
        self.store = serve(&self.root, self.address());
    }

    fn pod(comm: &Comm) -> Process {
        Process::mounter(comm, &[])
    }

    fn message(&self, bucket: &str) -> MountMessage {
        let args = ["--allow-delete", "--force-path-style"].map(str::to_owned).to_vec();
        MountMessage {
            bucket_name: bucket.into(),
            args,
            env: self.env(&self.comm),
            adopt: None,
            stage: false,
        }
    }

    fn hand_over(&self, bucket: &str) -> csi::error::Result<(SourceMount, PathBuf)> {
        let source = comm::source(&self.kubelet, "mp-1");
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let mount = runtime.block_on(async {
            let deadline = tokio::time::Instant::now() + LIMIT;
            let processes = self.processes();
            let peer = Peer { uid: UID, processes: &processes, stage: None };
            SourceMount::make(&source, false, &self.comm, &peer, self.message(bucket), deadline).await
        })?;
        Ok((mount, source))
    }

    /// A `/proc` in which the mounter runs in the pod's cgroup.
    fn processes(&self) -> Processes {
        Processes::at(self.proc(&[self.pod.pid()]))
    }

    /// The engine, which is the mounter's only child, unless it is this one.
    fn engine_but(&self, other: u32) -> Option<u32> {
        let children = format!("/proc/{0}/task/{0}/children", self.pod.pid());
        let engine = fs::read_to_string(children).ok()?.trim().parse().ok()?;
        (engine != other).then_some(engine)
    }

    fn engine(&self) -> u32 {
        self.engine_but(0).expect("one child")
    }

    /// Kills the engine; the next one, which goes on with its mount.
    fn kill_engine(&self) -> u32 {
        let killed = self.engine();
        kill_process(Pid::from_raw(killed.cast_signed()).unwrap(), Signal::KILL).unwrap();
        until("the next engine serves", || self.engine_but(killed).is_some() && !self.comm.state().exists());
        self.engine()
    }

    /// Kills engines until the mounter gives the mount up.
    fn kill_engines(&self) {
        for _ in 1..DEATHS_MAX {
            self.kill_engine();
        }
        kill_process(Pid::from_raw(self.engine().cast_signed()).unwrap(), Signal::KILL).unwrap();
    }
}

/// Asserts that each thread of an engine is confined, by the kernel's own report.
fn is_confined(engine: u32) {
    for thread in fs::read_dir(format!("/proc/{engine}/task")).unwrap().flatten() {
        // Threads come and go.
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
        for line in ["NoNewPrivs:\t1\n", "Seccomp:\t2\n", "CapEff:\t0000000000000000\n"] {
            assert!(status.contains(line), "{line}{status}");
        }
    }
}

/// The processes among these that hold a FUSE device.
fn device_holders(pids: [u32; 3]) -> Vec<u32> {
    let holds = |pid: &u32| {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        fds.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|to| to == Path::new("/dev/fuse"))
    };
    pids.into_iter().filter(holds).collect()
}

fn is_mounted(point: &Path) -> bool {
    Mounts::read().unwrap().at(point).is_some()
}

#[test]
fn a_bucket_is_read_through_a_target_and_errors_once_its_engine_dies() {
    isolated(|| {
        let mut home = Home::new();
        let (mount, source) = home.hand_over("bucket").unwrap();
        let target = home.root.join("target");
        fs::create_dir(&target).unwrap();
        sys::bind(&source, &target, false).unwrap();
        mount.keep();
        assert_eq!(fs::read_to_string(target.join("hello")).unwrap(), "from the bucket");
        fs::write(target.join("new"), "to the bucket").unwrap();
        assert_eq!(fs::read_to_string(home.root.join("store/bucket/new")).unwrap(), "to the bucket");

        let engine = home.engine();
        let holders = device_holders([std::process::id(), home.pod.pid(), engine]);
        assert_eq!(holders, [home.pod.pid(), engine], "the engine, and the mounter for the next one");
        // A drain asks the pod to end while its workload still reads.
        home.pod.signal(Signal::TERM);
        assert_eq!(fs::read_to_string(source.join("hello")).unwrap(), "from the bucket");

        home.kill_engines();
        assert_ne!(home.pod.code(), Some(0), "the container starts anew");
        let error = fs::read_to_string(target.join("hello")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()), "{error}");
        assert!(fs::read_to_string(home.comm.error()).unwrap().contains("signal: 9"));

        assert!(sys::unmount(&target, Busy::Detach).unwrap() && sys::unmount(&source, Busy::Detach).unwrap());
        assert!(!is_mounted(&target) && !is_mounted(&source));

        // The container starts anew, and the same source is mounted again.
        home.pod = Home::pod(&home.comm);
        let (mount, source) = home.hand_over("bucket").unwrap();
        assert_eq!(fs::read_to_string(source.join("hello")).unwrap(), "from the bucket");

        // This container was not asked to end, so it stays when its engines die, and takes the next device.
        let engine = home.engine();
        home.kill_engines();
        drop(mount);
        let (mount, source) = home.hand_over("bucket").unwrap();
        assert_eq!(fs::read_to_string(source.join("hello")).unwrap(), "from the bucket");
        assert_ne!(home.engine(), engine);
        CommFiles::open(&home.comm).unwrap().announce_exit().unwrap();
        drop(mount);
        assert_eq!(home.pod.code(), Some(0), "an unmount that was announced ends the pod");
        assert!(!is_mounted(&source));
    });
}

/// Goal: programs in containers without HostToContainer read on when an engine dies, and a writer gets an error.
#[test]
fn programs_read_on_while_the_mounter_starts_dead_engines_again() {
    isolated(|| {
        let mut home = Home::new();
        let big = vec![7; 3 << 20];
        fs::write(home.root.join("store/bucket/big"), &big).unwrap();
        let (mount, source) = home.hand_over("bucket").unwrap();
        let target = home.root.join("target");
        fs::create_dir(&target).unwrap();
        sys::bind(&source, &target, false).unwrap();
        mount.keep();
        let before = Mounts::read().unwrap().at(&target).unwrap().device.clone();
        is_confined(home.engine());
        let mut open = fs::File::open(target.join("big")).unwrap();
        let mut written = fs::File::create(target.join("written")).unwrap();
        written.write_all(b"half").unwrap();
        for death in 1..DEATHS_MAX {
            is_confined(home.kill_engine());
            let mut part = vec![0; 500_000];
            open.read_exact(&mut part).unwrap();
            assert!(part.iter().all(|byte| *byte == 7), "after death {death}");
            assert_eq!(fs::read_to_string(target.join("hello")).unwrap(), "from the bucket");
            assert!(!home.comm.socket().exists(), "no device is asked for");
        }
        let error = written.sync_all().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
        drop(written);
        assert!(!home.root.join("store/bucket/written").exists());
        assert_eq!(Mounts::read().unwrap().at(&target).unwrap().device, before, "it is the same mount");
        // The node unmounts as ever, and neither holder keeps the mount.
        CommFiles::open(&home.comm).unwrap().announce_exit().unwrap();
        drop(open);
        assert!(sys::unmount(&target, Busy::Refuse).unwrap() && sys::unmount(&source, Busy::Refuse).unwrap());
        assert_eq!(home.pod.code(), Some(0));
    });
}

impl Home {
    /// Starts the node's holder.
    fn holder(&self) -> (tokio::runtime::Runtime, Holds) {
        Notes::of(&self.kubelet).remember("mp-1", UID).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let holds = Holds::default();
        let config = holder::Config { kubelet: self.kubelet.clone(), processes: self.processes() };
        runtime.spawn(holder::run(config, Holds::clone(&holds)));
        (runtime, holds)
    }

    /// Kills mounter and engine, as the kernel does with a container that is out of memory, and starts the next container.
    fn restart_container(&mut self) {
        let engine = self.engine();
        self.pod.signal(Signal::KILL);
        kill_process(Pid::from_raw(engine.cast_signed()).unwrap(), Signal::KILL).unwrap();
        self.pod.code();
        self.pod = Self::pod(&self.comm);
        self.processes();
    }
}

/// Reads a part of an open file at each word; the file that it writes must fail at the end. It is a process of its own: a process that is forked from
/// one with files on a mount closes its copies when it executes a program, and that waits for the engine.
const READER: &str = r#"
cd "$0" && exec 3<big 4>written && printf half >&4 && echo begun
while read -r go; do dd bs=500000 count=1 iflag=fullblock status=none <&3 | tr -dc '\007' | wc -c; cat hello; echo; done
printf more 2>/dev/null >&4 && echo stored || echo failed"#;

/// Goal: programs read on when their Mountpoint Pod's container is killed as a whole, also after the holder was killed.
#[test]
fn programs_read_on_while_the_holder_brings_the_mount_along() {
    isolated(|| {
        let mut home = Home::new();
        fs::write(home.root.join("store/bucket/big"), vec![7; 3 << 20]).unwrap();
        let (mount, source) = home.hand_over("bucket").unwrap();
        let target = home.root.join("target");
        fs::create_dir(&target).unwrap();
        sys::bind(&source, &target, false).unwrap();
        mount.keep();
        let before = Mounts::read().unwrap().at(&target).unwrap().device.clone();
        let mut reader = Command::new("sh");
        reader.args(["-c", READER]).arg(&target).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut reader = reader.spawn().unwrap();
        let mut words = BufReader::new(reader.stdout.take().unwrap()).lines();
        let mut says = move || words.next().unwrap().unwrap();
        assert_eq!(says(), "begun");
        let mut holder = home.holder();
        let held = |holds: &Holds| holds.lock().get("mp-1") == Some(&"held");
        for container in 2..=4 {
            until("the mount is held", || held(&holder.1));
            home.restart_container();
            let started = Instant::now();
            reader.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
            assert_eq!(says(), "500000", "bytes of the file, in container {container}");
            eprintln!("container {container} answers a read {:?} after it was started", started.elapsed());
            assert_eq!(says(), "from the bucket");
            until("no state is left", || !home.comm.state().exists());
            is_confined(home.engine());
            if container == 3 {
                let (killed, _) = std::mem::replace(&mut holder, home.holder());
                killed.shutdown_background();
            }
        }
        drop(reader.stdin.take());
        assert_eq!(says(), "failed");
        reader.wait().unwrap();
        assert!(!home.root.join("store/bucket/written").exists());
        assert_eq!(Mounts::read().unwrap().at(&target).unwrap().device, before, "it is the same mount");
        until("the mount is held", || held(&holder.1));
        CommFiles::open(&home.comm).unwrap().announce_exit().unwrap();
        assert!(sys::unmount(&target, Busy::Refuse).unwrap() && sys::unmount(&source, Busy::Refuse).unwrap());
        assert_eq!(home.pod.code(), Some(0));
        until("the holder lets it go", || holder.1.lock().is_empty());
        assert!(device_holders([std::process::id(); 3]).is_empty(), "this process is the holder");
    });
}

/// Reads at the word `read`; begins a file at `write` and ends it at `close`.
const PROGRAM: &str = r#"
cd "$0" && exec 3<big && echo begun
while read -r go; do case $go in
write) n=$((n + 1)) && exec 4>written$n && printf half >&4 && echo writing;;
close) printf more >&4 && exec 4>&- && echo closed;;
*) dd bs=500000 count=1 iflag=fullblock status=none <&3 | tr -dc '\007' | wc -c; cat hello; echo;;
esac; done"#;

impl Home {
    /// Asks the engine to leave its mount, as the node's driver does.
    fn ask_hand_over(&self, runtime: &tokio::runtime::Runtime) -> csi::error::Result<()> {
        let processes = Processes::at(self.proc(&[self.pod.pid(), self.engine()]));
        runtime.block_on(upgrades::ask(&self.comm, UID, &processes, Duration::from_secs(1)))
    }

    /// Starts the next container.
    fn next_container(&mut self) {
        self.pod = Self::pod(&self.comm);
        self.processes();
    }
}

/// Goal: an administrator brings another image to nodes whose programs read all day.
#[test]
fn a_pod_gets_another_image_under_a_reader_and_not_under_a_writer() {
    isolated(|| {
        let mut home = Home::new();
        fs::write(home.root.join("store/bucket/big"), vec![7; 3 << 20]).unwrap();
        let (mount, source) = home.hand_over("bucket").unwrap();
        mount.keep();
        let before = Mounts::read().unwrap().at(&source).unwrap().device.clone();
        let mut program = Command::new("sh");
        program.args(["-c", PROGRAM]).arg(&source).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = program.spawn().unwrap();
        let mut words = BufReader::new(program.stdout.take().unwrap()).lines();
        let mut says = move || words.next().unwrap().unwrap();
        let mut input = program.stdin.take().unwrap();
        assert_eq!(says(), "begun");
        let (runtime, holds) = home.holder();
        let is_held = || holds.lock().get("mp-1") == Some(&"held");
        until("the mount is held", is_held);

        input.write_all(b"write\n").unwrap();
        assert_eq!(says(), "writing");
        let engine = home.engine();
        let held_back = home.ask_hand_over(&runtime).unwrap_err().to_string();
        assert!(held_back.contains("its engine goes on") && !held_back.contains("written"), "{held_back}");
        assert!(!home.comm.handover().exists() && home.engine() == engine);
        input.write_all(b"close\n").unwrap();
        assert_eq!(says(), "closed");
        until("the file is stored", || {
            fs::read_to_string(home.root.join("store/bucket/written1")).is_ok_and(|it| it == "halfmore")
        });

        home.ask_hand_over(&runtime).unwrap();
        assert_eq!(home.pod.code(), Some(HANDED_OVER.into()));
        // A program reads and begins to write while no engine runs.
        input.write_all(b"read\nwrite\n").unwrap();
        home.next_container();
        until("it waits for another image", || home.comm.waits().exists());
        assert!(!home.comm.socket().exists(), "it takes no mount");
        // The kubelet ends it, since the pod has another image.
        home.pod.signal(Signal::TERM);
        assert_eq!(home.pod.code(), Some(128 + 15));
        home.next_container();
        assert_eq!((says().as_str(), says().as_str()), ("500000", "from the bucket"));
        assert_eq!(says(), "writing");
        input.write_all(b"close\n").unwrap();
        assert_eq!(says(), "closed");
        until("no state is left", || !home.comm.state().exists() && !home.comm.waits().exists());
        assert_eq!(Mounts::read().unwrap().at(&source).unwrap().device, before, "it is the same mount");
        drop(input);
        program.wait().unwrap();
        until("the mount is held", is_held);
        CommFiles::open(&home.comm).unwrap().announce_exit().unwrap();
        assert!(sys::unmount(&source, Busy::Refuse).unwrap());
        assert_eq!(home.pod.code(), Some(0));
    });
}

/// Goal: once a refused setting is corrected, the next publish is served. No container starts anew for it.
#[test]
fn a_missing_bucket_is_named_and_mounted_by_the_same_container_later() {
    isolated(|| {
        let mut home = Home::new();
        let error = home.hand_over("no-such-bucket").unwrap_err().to_string();
        assert!(error.contains("no-such-bucket") && !error.contains(SECRET), "{error}");
        let source = comm::source(&home.kubelet, "mp-1");
        assert!(!is_mounted(&source) && !source.exists());
        fs::create_dir(home.root.join("store/no-such-bucket")).unwrap();
        fs::write(home.root.join("store/no-such-bucket/hello"), "it is there now").unwrap();
        let (mount, source) = home.hand_over("no-such-bucket").unwrap();
        assert_eq!(fs::read_to_string(source.join("hello")).unwrap(), "it is there now");
        CommFiles::open(&home.comm).unwrap().announce_exit().unwrap();
        drop(mount);
        assert_eq!(home.pod.code(), Some(0));
    });
}

/// Goal: a workload learns why its files fail after somebody deleted the bucket. The mounter learns it from the engine's log.
#[test]
fn a_bucket_that_goes_while_it_is_mounted_is_told_to_the_node() {
    isolated(|| {
        let mut home = Home::new();
        let (mount, source) = home.hand_over("bucket").unwrap();
        assert_eq!(fs::read_to_string(source.join("hello")).unwrap(), "from the bucket");
        assert!(
            fs::metadata(source.join("missing")).is_err() && !home.comm.gone().exists(),
            "a key may be missing"
        );
        fs::remove_dir_all(home.root.join("store/bucket")).unwrap();
        home.restart_store();
        until("the mounter says so", || {
            assert!(fs::metadata(source.join("missing")).is_err());
            home.comm.gone().exists()
        });
        // The mount goes on once the bucket is back.
        fs::create_dir(home.root.join("store/bucket")).unwrap();
        fs::write(home.root.join("store/bucket/again"), "it is back").unwrap();
        home.restart_store();
        until("the bucket is read", || fs::read_to_string(source.join("again")).is_ok());
        CommFiles::open(&home.comm).unwrap().announce_exit().unwrap();
        drop(mount);
        assert_eq!(home.pod.code(), Some(0));
    });
}

#[test]
fn before_there_is_anything_to_mount_the_pod_ends_when_it_is_asked() {
    isolated(|| {
        let mut home = Home::new();
        until("the mounter listens", || home.comm.socket().exists());
        home.pod.signal(Signal::TERM);
        assert_eq!(home.pod.code(), Some(143));
    });
}
