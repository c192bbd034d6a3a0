//! The pod with a shell in place of the engine, and the node beside it in this process.

mod restarting;

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt as _;

use super::engine::{TAIL_BYTES, relay, with_cache, with_stage_at, with_stage_size};
use super::*;

const LONG: Duration = Duration::from_secs(60);

/// A pod whose engine is a shell that runs this script: its name is the bucket's, the first argument. `$1` is the device, and
/// `$ready` the ready file. (A script of its own in place of the engine could be busy: another test may be starting a child.)
struct Pod {
    folder: tempfile::TempDir,
    config: Config,
}

impl Pod {
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let comm = folder.path().join("comm");
        fs::create_dir(&comm).unwrap();
        std::os::unix::fs::symlink("/bin/sh", folder.path().join("mount-s3")).unwrap();
        let find = "for arg; do case $last in --ready-file) ready=$arg;; esac; last=$arg; done";
        fs::write(folder.path().join("bucket"), format!("{find}\n{script}\n")).unwrap();
        let config = Config {
            comm: Comm::at(comm),
            engine_directory: folder.path().to_owned(),
            receive_within: LONG,
            ca_directory: folder.path().join("ca"),
            state_directory: folder.path().join("state"),
            local_cache: folder.path().join("local-cache"),
            memory_target: None,
            stage_size: None,
            log_format: LogFormat::Text,
            metrics: None,
            restarts: false,
            image_within: LONG,
            memory_events: vec![folder.path().join("no such file"), folder.path().join("memory.events")],
            engine_env: Vec::new(),
            among: None,
        };
        Self { folder, config }
    }

    /// Runs the pod, and the node's side beside it.
    fn run<T>(&self, node: impl FnOnce(UnixStream) -> T) -> (Result<Outcome>, T) {
        let serving = Serving::default();
        thread::scope(|scope| {
            let pod = scope.spawn(|| run(&self.config, &serving));
            let said = node(self.connect());
            let outcome = pod.join().unwrap();
            assert!(!self.config.comm.socket().exists(), "nobody else can connect");
            (outcome, said)
        })
    }

    fn connect(&self) -> UnixStream {
        loop {
            match message::connect(&self.config.comm.socket()) {
                Ok(stream) => return stream,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn needs_nothing_more(&self) {
        fs::write(self.config.comm.exit(), "").unwrap();
    }

    fn message(&self, args: &[&str]) -> MountMessage {
        MountMessage {
            bucket_name: self.folder.path().join("bucket").to_str().unwrap().to_owned(),
            args: args.iter().map(|&it| it.to_owned()).collect(),
            env: vec!["FIRST=a=b".into(), "SECOND=".into()],
            adopt: None,
            stage: false,
        }
    }

    fn hand_over(&self, stream: &UnixStream, args: &[&str]) {
        let device = fs::File::open("/dev/null").unwrap();
        message::send(stream, &self.message(args), alone(&device), LONG).unwrap();
    }

    /// A pipe beside the script on which an engine waits.
    fn pipe(&self, name: &str) -> PathBuf {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let pipe = self.folder.path().join(name);
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        pipe
    }

    fn error(&self) -> Option<String> {
        let path = self.config.comm.error();
        let text = fs::read_to_string(&path).ok()?;
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        Some(text)
    }
}

/// The device of a new mount.
fn alone(device: &fs::File) -> message::Mount<BorrowedFd<'_>> {
    message::Mount { device: device.as_fd(), journal: None, stage: None }
}

fn answered(stream: &UnixStream) -> Option<Answer> {
    message::read_answer(stream, LONG).unwrap()
}

#[test]
fn the_engine_gets_bucket_device_options_and_only_the_sent_environment() {
    let pod = Pod::new(
        "dir=${0%/*}; echo \"$@\" >$dir/args; readlink $1 >$dir/device; env >$dir/env; touch $dir/comm/mount.exit\n\
         echo ready >$ready",
    );
    let (outcome, said) = pod.run(|stream| {
        pod.hand_over(&stream, &["--allow-delete", "--region=r"]);
        answered(&stream)
    });
    outcome.unwrap();
    assert_eq!(said, Some(Answer::Ready));
    let read = |name: &str| fs::read_to_string(pod.folder.path().join(name)).unwrap();
    let args = read("args");
    let words: Vec<&str> = args.split_whitespace().collect();
    assert!(words[0].starts_with("/dev/fd/"), "{args}");
    assert_eq!(words[1..5], ["--allow-delete", "--region=r", "--foreground", "--ready-file"]);
    let socket = format!("--control-socket {}", pod.config.comm.engine_socket().display());
    assert!(args.contains(&socket), "{args}");
    assert_eq!(read("device").trim(), "/dev/null");
    let env = read("env");
    // The shell adds variables of its own.
    let mut sent: Vec<&str> = env
        .lines()
        .filter(|it| !["PWD", "_", "SHLVL", "OLDPWD"].contains(&it.split('=').next().unwrap()))
        .collect();
    sent.sort_unstable();
    assert_eq!(sent, ["FIRST=a=b", "MOUNT_S3_SANDBOX=1", "SECOND="]);
    assert_eq!(pod.error(), None);
}

#[test]
fn a_proxy_of_the_pod_is_the_engines_unless_the_volume_names_another() {
    let mut pod = Pod::new("dir=${0%/*}; env >$dir/env; touch $dir/comm/mount.exit; echo ready >$ready");
    let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    pod.config.engine_env = vec![of("HTTPS_PROXY", "http://chart:1"), of("FIRST", "of the chart")];
    let (outcome, _) = pod.run(|stream| {
        pod.hand_over(&stream, &[]);
        answered(&stream)
    });
    outcome.unwrap();
    let env = fs::read_to_string(pod.folder.path().join("env")).unwrap();
    assert!(env.lines().any(|line| line == "HTTPS_PROXY=http://chart:1"), "{env}");
    assert!(env.lines().any(|line| line == "FIRST=a=b"), "the message goes first: {env}");
}

#[test]
fn memory_of_the_pod_is_the_engines_target_unless_the_volume_says_another() {
    for (given, wanted) in
        [(&["--region=r"][..], "--memory-target 192"), (&["--memory-target=300"], "--memory-target=300")]
    {
        let mut pod =
            Pod::new("dir=${0%/*}; echo \"$@\" >$dir/args; touch $dir/comm/mount.exit; echo ready >$ready");
        pod.config.memory_target = Some(192);
        let (outcome, _) = pod.run(|stream| {
            pod.hand_over(&stream, given);
            answered(&stream)
        });
        outcome.unwrap();
        let args = fs::read_to_string(pod.folder.path().join("args")).unwrap();
        assert!(args.contains(wanted) && args.matches("--memory-target").count() == 1, "{args}");
    }
}

#[test]
fn the_engine_logs_as_its_pod_does_unless_the_volume_says_otherwise() {
    for (given, wanted) in [(&[][..], "--log-format json"), (&["--log-format=text"], "--log-format=text")] {
        let mut pod =
            Pod::new("dir=${0%/*}; echo \"$@\" >$dir/args; touch $dir/comm/mount.exit; echo ready >$ready");
        pod.config.log_format = LogFormat::Json;
        let (outcome, _) = pod.run(|stream| {
            pod.hand_over(&stream, given);
            answered(&stream)
        });
        outcome.unwrap();
        let args = fs::read_to_string(pod.folder.path().join("args")).unwrap();
        assert!(args.contains(wanted) && args.matches("--log-format").count() == 1, "{args}");
    }
}

#[test]
fn the_engine_serves_its_metrics_where_the_pod_has_a_port_for_them() {
    let mut pod =
        Pod::new("dir=${0%/*}; echo \"$@\" >$dir/args; touch $dir/comm/mount.exit; echo ready >$ready");
    pod.config.metrics = Some("[fd00::1]:9464".parse().unwrap());
    let (outcome, _) = pod.run(|stream| {
        pod.hand_over(&stream, &[]);
        answered(&stream)
    });
    outcome.unwrap();
    let args = fs::read_to_string(pod.folder.path().join("args")).unwrap();
    assert!(args.contains("--metrics-listen [fd00::1]:9464"), "{args}");
}

#[test]
fn each_certificate_of_the_pod_is_trusted_by_the_engine() {
    let pod = Pod::new("dir=${0%/*}; echo \"$@\" >$dir/args; touch $dir/comm/mount.exit; echo ready >$ready");
    // The kubelet writes a volume in this way.
    let ca = &pod.config.ca_directory;
    fs::create_dir_all(ca.join("..1")).unwrap();
    for name in ["volume.crt", "chart.crt"] {
        fs::write(ca.join("..1").join(name), "PEM").unwrap();
        std::os::unix::fs::symlink(format!("..1/{name}"), ca.join(name)).unwrap();
    }
    let (outcome, said) = pod.run(|stream| {
        pod.hand_over(&stream, &["--region=r"]);
        answered(&stream)
    });
    outcome.unwrap();
    assert_eq!(said, Some(Answer::Ready));
    let args = fs::read_to_string(pod.folder.path().join("args")).unwrap();
    let at = ca.display();
    let wanted = format!("--extra-ca-bundle {at}/chart.crt --extra-ca-bundle {at}/volume.crt --ready-file");
    assert!(args.contains(&wanted), "{args}");
}

#[test]
fn what_outlives_the_container_is_the_engines_state_directory() {
    let pod = Pod::new("dir=${0%/*}; echo \"$@\" >$dir/args; touch $dir/comm/mount.exit; echo ready >$ready");
    fs::create_dir(&pod.config.state_directory).unwrap();
    let (outcome, said) = pod.run(|stream| {
        pod.hand_over(&stream, &["--region=r"]);
        answered(&stream)
    });
    outcome.unwrap();
    assert_eq!(said, Some(Answer::Ready));
    let args = fs::read_to_string(pod.folder.path().join("args")).unwrap();
    let wanted =
        format!("--region=r --foreground --state-dir {} --ready-file", pod.config.state_directory.display());
    assert!(args.contains(&wanted), "{args}");
}

#[test]
fn an_engine_that_says_why_it_can_not_mount_is_quoted() {
    let pod = Pod::new("echo 'no such bucket' >$ready; echo 'mount-s3: no such bucket' >&2; exit 1");
    let (outcome, said) = pod.run(|stream| {
        pod.hand_over(&stream, &[]);
        let said = answered(&stream);
        assert_eq!(pod.error().unwrap(), "no such bucket\n", "also for a node of release 2.2");
        pod.needs_nothing_more();
        said
    });
    assert_eq!(said, Some(Answer::Failed { error: "no such bucket".into() }));
    outcome.unwrap();
}

#[test]
fn an_engine_that_ends_without_its_word_is_known_by_its_standard_error() {
    let pod = Pod::new("echo 'unknown option' >&2; exit 2");
    let (outcome, said) = pod.run(|stream| {
        pod.hand_over(&stream, &[]);
        let said = answered(&stream);
        pod.needs_nothing_more();
        said
    });
    let Some(Answer::Failed { error }) = said else { panic!("{said:?}") };
    assert!(error.contains("unknown option") && error.contains("exit status: 2"), "{error}");
    assert_eq!(pod.error().unwrap().trim(), error);
    outcome.unwrap();
}

#[test]
fn after_a_refused_mount_the_same_container_waits_for_the_next_attempt() {
    let pod = Pod::new(
        "test -e ${0%/*}/mended || { echo 'no such bucket' >$ready; exit 1; }; touch ${0%/*}/comm/mount.exit; echo ready >$ready",
    );
    let (outcome, ()) = pod.run(|stream| {
        let refused = Some(Answer::Failed { error: "no such bucket".into() });
        pod.hand_over(&stream, &[]);
        assert_eq!(answered(&stream), refused);
        for _ in 0..3 {
            let stream = pod.connect();
            pod.hand_over(&stream, &[]);
            assert_eq!(answered(&stream), refused);
        }
        fs::write(pod.folder.path().join("mended"), "").unwrap();
        let stream = pod.connect();
        pod.hand_over(&stream, &[]);
        assert_eq!(answered(&stream), Some(Answer::Ready));
    });
    outcome.unwrap();
}

/// Goal: engines that die again and again cost a moment each. The kubelet holds back a container that ends again and again.
#[test]
fn an_engine_that_dies_leaves_a_mounter_that_waits_for_the_next_device() {
    let pod = Pod::new("echo ready >$ready; read go <${0%/*}/go; kill -9 $$");
    let go = pod.pipe("go");
    let (outcome, ()) = pod.run(|mut stream| {
        for death in 1..=5 {
            pod.hand_over(&stream, &[]);
            assert_eq!(answered(&stream), Some(Answer::Ready), "engine {death}");
            assert!(!pod.config.comm.socket().exists(), "one device at a time");
            fs::write(&go, "go\n").unwrap();
            stream = pod.connect();
            assert!(pod.error().unwrap().contains("signal: 9"), "why it died stands there");
        }
        pod.needs_nothing_more();
    });
    outcome.unwrap();
}

#[test]
fn an_engine_that_the_kernel_killed_for_memory_names_the_limit_to_raise() {
    let pod = Pod::new("echo ready >$ready; echo 'oom_kill 4' >${0%/*}/memory.events; kill -9 $$");
    fs::write(pod.folder.path().join("memory.events"), "low 0\noom 3\noom_kill 3\n").unwrap();
    let (outcome, ()) = pod.run(|stream| {
        pod.hand_over(&stream, &[]);
        // The mounter listens on a new socket from then on.
        assert_eq!(answered(&stream), Some(Answer::Ready));
        drop(pod.connect());
        let said = pod.error().unwrap();
        assert!(said.contains("signal: 9") && said.contains("out of memory"), "{said}");
        assert!(said.contains("mountpointPod.resources"), "{said}");
        pod.needs_nothing_more();
    });
    outcome.unwrap();
}

#[test]
fn a_mounter_that_is_told_to_end_does_so_when_its_engine_ends() {
    let pod = Pod::new("echo ready >$ready; read go <${0%/*}/go");
    let go = pod.pipe("go");
    let serving = Serving::default();
    assert!(!serving.told_to_end(), "no engine runs");
    let serving = Serving::default();
    let outcome = thread::scope(|scope| {
        let running = scope.spawn(|| run(&pod.config, &serving));
        let stream = pod.connect();
        pod.hand_over(&stream, &[]);
        assert_eq!(answered(&stream), Some(Answer::Ready));
        assert!(serving.told_to_end(), "workloads that drain still read");
        fs::write(&go, "go\n").unwrap();
        running.join().unwrap()
    });
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("before the node unmounted"), "{error}");
}

#[test]
fn an_announced_end_ends_the_pod_and_a_crash_on_the_way_is_told() {
    let pod = Pod::new("echo ready >$ready");
    fs::write(pod.config.comm.exit(), "").unwrap();
    run(&pod.config, &Serving::default()).unwrap();

    let killed = Pod::new("echo ready >$ready; touch ${0%/*}/comm/mount.exit; kill -9 $$");
    let (outcome, _) = killed.run(|stream| killed.hand_over(&stream, &[]));
    outcome.unwrap();
    assert!(killed.error().unwrap().contains("signal: 9"), "a crash during an unmount is still told");
}

/// The descriptors of this process that lead to a file.
fn held(file: &Path) -> usize {
    let ours = fs::read_dir("/proc/self/fd").unwrap().flatten();
    ours.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == file)).count()
}

#[test]
fn a_device_whose_engine_is_not_started_again_is_held_by_it_alone() {
    for (restarts, ours) in [(false, 0), (true, 1)] {
        let mut pod = Pod::new("echo ready >$ready; read go <${0%/*}/go; touch ${0%/*}/comm/mount.exit");
        pod.config.restarts = restarts;
        let (go, marker) = (pod.pipe("go"), pod.folder.path().join("device"));
        fs::write(&marker, "").unwrap();
        let (outcome, ()) = pod.run(|stream| {
            let device = fs::File::open(&marker).unwrap();
            message::send(&stream, &pod.message(&[]), alone(&device), LONG).unwrap();
            drop(device);
            assert_eq!(answered(&stream), Some(Answer::Ready));
            let held = held(&marker);
            fs::write(&go, "go\n").unwrap();
            assert_eq!(held, ours, "restarts: {restarts}");
        });
        outcome.unwrap();
        assert_eq!(held(&marker), 0);
    }
}

/// Goal: an engine of the same pod and user can't have another's engine serve a device of its own.
#[test]
fn among_others_a_mounter_takes_a_device_of_the_node_alone() {
    let own = rustix::process::geteuid().as_raw();
    let script = "echo ready >$ready; read go <${0%/*}/go; touch ${0%/*}/comm/mount.exit";
    let mut pod = Pod::new(script);
    pod.config.among = Some(Among { node: own, share: None });
    pod.config.restarts = true;
    let go = pod.pipe("go");
    let (outcome, said) = pod.run(|stream| {
        pod.hand_over(&stream, &[]);
        let said = answered(&stream);
        assert!(!pod.config.comm.hold_socket().exists(), "no other process gets the device");
        fs::write(&go, "go\n").unwrap();
        said
    });
    outcome.unwrap();
    assert_eq!(said, Some(Answer::Ready));

    let mut pod = Pod::new(script);
    pod.config.among = Some(Among { node: own + 1, share: None });
    let (outcome, said) = pod.run(|stream| {
        let device = fs::File::open("/dev/null").unwrap();
        // The mounter may have closed the stream by now.
        let _ = message::send(&stream, &pod.message(&[]), alone(&device), LONG);
        let said = answered(&stream);
        pod.needs_nothing_more();
        said
    });
    outcome.unwrap();
    assert_eq!(said, None);
}

#[test]
fn a_node_that_breaks_off_may_come_again() {
    let pod = Pod::new("touch ${0%/*}/comm/mount.exit; echo ready >$ready");
    let socket = pod.config.comm.socket();
    let (outcome, said) = pod.run(|stream| {
        // The node sends half a message and hangs up.
        (&stream).write_all(b"{\"bucket").unwrap();
        drop(stream);
        let stream = message::connect(&socket).unwrap();
        pod.hand_over(&stream, &[]);
        answered(&stream)
    });
    outcome.unwrap();
    assert_eq!(said, Some(Answer::Ready));
}

#[test]
fn without_a_node_the_pod_starts_anew_unless_it_is_to_end() {
    let mut pod = Pod::new("");
    pod.config.receive_within = Duration::from_millis(30);
    drop(message::listen(&pod.config.comm.socket()).unwrap());
    let error = run(&pod.config, &Serving::default()).unwrap_err().to_string();
    assert!(error.contains("no message came"), "an old socket is replaced: {error}");
}

#[test]
fn a_missing_engine_is_told_to_the_node() {
    let pod = Pod::new("");
    fs::remove_file(pod.folder.path().join("mount-s3")).unwrap();
    let (outcome, said) = pod.run(|stream| {
        pod.hand_over(&stream, &[]);
        answered(&stream)
    });
    outcome.unwrap_err();
    let Some(Answer::Failed { error }) = said else { panic!("{said:?}") };
    assert!(error.contains("mount-s3") && error.contains("No such file"), "{error}");
}

#[test]
fn a_cache_goes_where_this_container_has_room() {
    let place = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|&it| it.to_owned()).collect();
        let with = with_cache(&args, || Ok(PathBuf::from("/here"))).unwrap();
        with.into_iter().map(|it| it.into_string().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(place(&["--a", "--cache=/x", "--b"]), ["--a", "--cache", "/here", "--b"]);
    assert_eq!(place(&["--cache", "/x", "--b"]), ["--cache", "/here", "--b"]);
    assert_eq!(place(&["--cache-xz=b", "--b"]), ["--cache-xz=b", "--b"]);
    assert_eq!(place(&["--cache"]), ["--cache", "/here"]);

    let folder = tempfile::tempdir().unwrap();
    assert_eq!(OwnCache::default().directory(folder.path()).unwrap(), folder.path());
    let (one, another) = (OwnCache::default(), OwnCache::default());
    let place = |own: &OwnCache| own.directory(Path::new("/not there")).unwrap();
    let (first, second) = (place(&one), place(&another));
    assert_eq!(place(&one), first, "the next engine finds the cache of the dead one");
    assert!(first != second && first.is_dir() && second.is_dir());
    assert_eq!(first.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    fs::remove_dir(first).unwrap();
    fs::remove_dir(second).unwrap();
}

#[test]
fn an_engine_finds_the_stage_that_came_with_its_device() {
    let pod = Pod::new(
        r#"for arg; do case $arg in --stage=*) echo here >"${arg#--stage=}/found";; esac; done; exit 1"#,
    );
    let stage = tempfile::tempdir().unwrap();
    let (_, said) = pod.run(|stream| {
        let message = MountMessage { stage: true, ..pod.message(&["--mode=full", "--stage=/stage/data"]) };
        let (device, directory) =
            (fs::File::open("/dev/null").unwrap(), fs::File::open(stage.path()).unwrap());
        let mount = message::Mount { stage: Some(directory.as_fd()), ..alone(&device) };
        message::send(&stream, &message, mount, LONG).unwrap();
        let said = answered(&stream);
        pod.needs_nothing_more();
        said
    });
    assert!(matches!(said, Some(Answer::Failed { .. })), "{said:?}");
    assert_eq!(fs::read_to_string(stage.path().join("found")).unwrap(), "here\n");
}

#[test]
fn a_stage_has_the_size_of_the_pods_volume_or_is_the_nodes_directory() {
    let args = |args: &[&str]| args.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
    let full = args(&["--mode=full", "--stage=/stage/data", "--stage-size=900", "--uid=1"]);
    let wanted = ["--mode=full", "--stage=/stage/data", "--uid=1", "--stage-size=100"];
    assert_eq!(with_stage_size(&full, Some(100)), wanted);
    assert_eq!(with_stage_size(&full, None), full);
    let wanted = ["--mode=full", "--stage-size=900", "--uid=1", "--stage=/dev/fd/9"];
    assert_eq!(with_stage_at(&full, "/dev/fd/9"), wanted);
    assert_eq!(with_stage_size(&args(&["--debug"]), Some(100)), ["--debug"]);
}

#[test]
fn only_the_end_of_a_long_standard_error_is_kept() {
    let text = [vec![b' '; 3 * TAIL_BYTES], b"the end".to_vec()].concat();
    let mut relayed = Vec::new();
    let tail = relay(&text[..], &mut relayed);
    assert!(relayed == text);
    assert!(tail.len() == TAIL_BYTES && tail.ends_with(b"the end"));
}

#[test]
fn a_pod_that_nobody_needs_any_more_ends_well_while_it_waits() {
    let pod = Pod::new("exit 1");
    let serving = Serving::default();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| run(&pod.config, &serving));
        while !pod.config.comm.socket().exists() {
            thread::sleep(Duration::from_millis(1));
        }
        fs::write(pod.config.comm.exit(), "").unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(pod.error(), None);
}

/// Goal: no zombies fill the table of processes of an engines pod.
#[test]
fn a_mounter_among_others_reaps_what_a_dead_engine_left() {
    testkit::isolated(|| {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let mut pod = Pod::new("");
        let left = [1, 2].map(|_| Pid::from_child(&std::process::Command::new("/bin/true").spawn().unwrap()));
        // Waits for the end of a child, and leaves its exit status.
        let ends = |child| waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_ok();
        reap(&pod.config);
        assert_eq!(left.map(ends), [true, true], "it is not the first process of a container");
        pod.config.among = Some(Among { node: 0, share: None });
        reap(&pod.config);
        assert_eq!(left.map(ends), [false, false]);
    });
}
