//! An engines pod without Kubernetes: the real first process with its mounters, real engines and a real S3 server, as root of a separate mount
//! namespace. The test is the node.

mod at_home;

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use csi::contract::comm::{self, Comm};
use csi::contract::engines_pod::{self, Begin};
use csi::contract::message::{self, Answer, MountMessage};
use csi::mounter::comm_files::CommFiles;
use csi::mounter::peer::Processes;
use csi::mounter::source::{Peer, SourceMount};
use csi::mounter::sys;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use testkit::until;

use self::at_home::{LIMIT, Node, Process, UID, isolated};

/// The share of one engine, in MiB.
const SHARE: u64 = 256;

/// The children of a process.
fn children(pid: u32) -> Vec<u32> {
    let of_threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = of_threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(|it| it.parse().unwrap()).collect::<Vec<_>>()).collect()
}

/// A node with an engines pod.
struct Home {
    node: Node,
    pod: Process,
    _store: Process,
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
        Self { node, pod, _store: store }
    }

    fn pod(comm: &Comm) -> Process {
        let (share, state) = (SHARE.to_string(), comm.directory().join("no such directory"));
        let of_many = ["--many", "--sources-max", "2", "--memory-target", "128", "--share", &share];
        Process::mounter(comm, &[&of_many[..], &["--state-dir", state.to_str().unwrap()]].concat())
    }

    /// Asks for a mounter.
    fn begin(&self, source: &str) -> Answer {
        let socket = self.comm.engines_socket();
        until("the first process listens", || message::connect(&socket).is_ok());
        let stream = message::connect(&socket).unwrap();
        engines_pod::ask(&stream, &Begin { source: source.into() }, LIMIT).unwrap();
        message::read_answer(&stream, LIMIT).unwrap().unwrap()
    }

    /// Mounts the bucket at a source; the directory where it is.
    fn mount(&self, source: &str) -> PathBuf {
        let comm = self.comm.of_source(source);
        let env = self.env(&comm);
        let args = vec!["--force-path-style".to_owned()];
        let message = MountMessage { bucket_name: "bucket".into(), args, env, adopt: None, stage: false };
        let at = comm::source(&self.kubelet, source);
        let processes = self.processes();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let mounted = runtime.block_on(async {
            let deadline = tokio::time::Instant::now() + LIMIT;
            let peer = Peer { uid: UID, processes: &processes, stage: None };
            SourceMount::make(&at, false, &comm, &peer, message, deadline).await
        });
        mounted.unwrap().keep();
        at
    }

    /// A `/proc` in which all mounters run in the pod's cgroup.
    fn processes(&self) -> Processes {
        Processes::at(self.proc(&children(self.pod.pid())))
    }

    fn mounter(&self, source: &str) -> u32 {
        let is_its = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == source.as_bytes())
        };
        children(self.pod.pid()).into_iter().find(is_its).expect("a mounter")
    }

    fn engine(&self, source: &str) -> Option<u32> {
        let is_engine =
            |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("mount-s3"));
        children(self.mounter(source)).into_iter().find(is_engine)
    }

    fn serves_again(&self, source: &str, dead: u32) {
        let state = self.comm.of_source(source).state();
        until("the next engine serves", || {
            self.engine(source).is_some_and(|engine| engine != dead) && !state.exists()
        });
    }
}

/// The end of a pod: the kernel ends all processes with the first.
impl Drop for Home {
    fn drop(&mut self) {
        let mounters = children(self.pod.pid());
        let engines = mounters.iter().flat_map(|mounter| children(*mounter));
        for pid in engines.chain(mounters.clone()) {
            let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
        }
    }
}

/// The data of a process that lives, in KiB, as RLIMIT_DATA counts it.
fn data_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

fn read(source: &Path) -> std::io::Result<String> {
    fs::read_to_string(source.join("hello"))
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn engines_of_one_pod_die_alone_and_a_source_too_many_is_refused() {
    isolated(|| {
        let home = Home::new();
        let (one, two) = ("sh-1", "sh-2");
        assert_eq!((home.begin(one), home.begin(two)), (Answer::Ready, Answer::Ready));
        let [at_one, at_two] = [one, two].map(|source| home.mount(source));
        let Answer::Failed { error } = home.begin("sh-3") else { panic!("one too many") };
        assert!(error.contains("shared.maxVolumes"), "{error}");
        let engines = [one, two].map(|source| home.engine(source).unwrap());
        kill(engines[0]);
        home.serves_again(one, engines[0]);
        assert_eq!(read(&at_one).unwrap(), "from the bucket");
        assert_eq!(read(&at_two).unwrap(), "from the bucket");
        assert_eq!(home.engine(two), Some(engines[1]), "it never died");

        // Nobody would notice the later death of an engine without a mounter: it ends, and the next mounter waits for the node.
        let (mounter, engine) = (home.mounter(one), home.engine(one).unwrap());
        kill(mounter);
        until("the mount of the first has ended", || {
            read(&at_one).is_err_and(|error| error.raw_os_error() == Some(107))
        });
        until("the next mounter waits for the device", || {
            message::connect(&home.comm.of_source(one).socket()).is_ok()
        });
        assert!(!Path::new(&format!("/proc/{engine}")).exists() && home.mounter(one) != mounter);
        assert_eq!(read(&at_two).unwrap(), "from the bucket");
        sys::unmount(&at_one, sys::Busy::Detach).unwrap();
        assert_eq!(read(&home.mount(one)).unwrap(), "from the bucket");
        assert_eq!(home.engine(two), Some(engines[1]), "the other never died");

        // An unmount on purpose leaves nothing of the source in the pod.
        let files = CommFiles::open(&home.comm.of_source(two)).unwrap();
        files.announce_exit().unwrap();
        sys::unmount(&at_two, sys::Busy::Refuse).unwrap();
        files.remove_credentials().unwrap();
        until("its directory is gone", || !home.comm.of_source(two).directory().exists());
        assert_eq!(home.begin("sh-3"), Answer::Ready, "there is room again");
    });
}

#[test]
fn an_engine_that_gets_no_more_memory_fails_alone() {
    isolated(|| {
        let home = Home::new();
        let (one, two) = ("sh-1", "sh-2");
        let [at_one, at_two] = [one, two].map(|source| {
            assert_eq!(home.begin(source), Answer::Ready);
            home.mount(source)
        });
        let engines = [one, two].map(|source| home.engine(source).unwrap());
        let limits = fs::read_to_string(format!("/proc/{}/limits", engines[0])).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max data size")).unwrap();
        let limit: u64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
        assert!(limit > SHARE << 20 && limit < (SHARE << 20) + (512 << 20), "{line}");

        // The limit of an engine that had its share already: it goes on with what it has, slowly and with errors, or ends.
        let limit = Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
        prlimit(Pid::from_raw(engines[0].cast_signed()), Resource::Data, limit).unwrap();
        let before = data_kib(engines[0]).unwrap();
        fs::write(home.root.join("store/bucket/large"), vec![7; 16 << 20]).unwrap();
        let wrong = fs::read(at_one.join("large")).is_ok_and(|bytes| bytes.iter().any(|byte| *byte != 7));
        assert!(!wrong, "an error or the right bytes");
        assert!(data_kib(engines[0]).is_none_or(|after| after <= before), "it got more memory");
        assert_eq!(read(&at_two).unwrap(), "from the bucket");
        assert_eq!(home.engine(two), Some(engines[1]), "the other engine notices nothing");
    });
}

#[test]
fn a_container_that_starts_anew_has_mounters_for_the_sources_in_use() {
    isolated(|| {
        let mut home = Home::new();
        let source = "sh-1";
        assert_eq!(home.begin(source), Answer::Ready);
        let at = home.mount(source);
        let (mounter, engine) = (home.mounter(source), home.engine(source).unwrap());
        home.pod.signal(Signal::KILL);
        kill(mounter);
        kill(engine);
        home.pod.code();
        until("the mount has ended", || read(&at).is_err_and(|error| error.raw_os_error() == Some(107)));
        sys::unmount(&at, sys::Busy::Detach).unwrap();
        home.pod = Home::pod(&home.comm);
        until("a mounter waits for the device", || {
            message::connect(&home.comm.of_source(source).socket()).is_ok()
        });
        assert_eq!(read(&home.mount(source)).unwrap(), "from the bucket");
    });
}
