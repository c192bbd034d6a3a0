//! One engine process and its mount.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use testkit::proxy::Proxy;
use testkit::until_within;

use super::canary::{assert_none_below, assert_none_of, canary_in};
use super::{BUCKET, Store, need};

/// Longest wait for the engine's mount, and for its end after the unmount. More than the two minutes of a script in a mount namespace of
/// its own (`unprivileged.rs`): that namespace has a copy of each mount from its beginning, and the copy keeps the connection.
pub(crate) const START_AND_END: Duration = Duration::from_secs(200);

/// The setup of a mount.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Further options of the command line.
    pub(crate) options: Vec<String>,
    /// Further variables of its environment.
    pub(crate) env: Vec<(&'static str, String)>,
    /// Time limit of a test. Beyond it the mount is aborted and the engine killed, so that every waiter fails.
    pub(crate) limit: Duration,
    /// The bucket argument.
    pub(crate) bucket: String,
    /// Another endpoint than the store's.
    pub(crate) endpoint: Option<String>,
    /// Whether the engine stays in the foreground.
    pub(crate) foreground: bool,
    /// Whether its environment has the keys of the store.
    pub(crate) has_keys: bool,
    /// The `cgroup.procs` of the engine's control group.
    pub(crate) group: Option<PathBuf>,
    /// Whether the engine has a process namespace of its own, in which it sees no program of the test.
    pub(crate) sees_nobody: bool,
    /// The number of a system call that fails with EPERM: of io_uring's, as in most containers.
    pub(crate) refuses: Option<u32>,
    /// The engine's limit of open files: at its start, and the most to which it may raise the limit.
    pub(crate) open_files: Option<(u64, u64)>,
}

impl Setup {
    /// A setup with these options.
    pub(crate) fn new(options: &[&str]) -> Self {
        Self {
            options: options.iter().map(|&o| o.to_owned()).collect(),
            env: Vec::new(),
            limit: Duration::from_secs(300),
            bucket: BUCKET.to_owned(),
            endpoint: None,
            foreground: true,
            has_keys: true,
            group: None,
            sees_nobody: false,
            refuses: None,
            open_files: None,
        }
    }

    /// Adds a variable of the environment.
    pub(crate) fn env(mut self, name: &'static str, value: &str) -> Self {
        self.env.push((name, value.to_owned()));
        self
    }

    /// Sends requests through this proxy instead of straight to the store.
    pub(crate) fn through(mut self, proxy: &Proxy) -> Self {
        self.endpoint = Some(proxy.endpoint());
        self
    }

    /// Sets the time after which the test counts as hung.
    pub(crate) fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }
}

/// `mount-s3 BUCKET DIR` on this store, with an environment of its own: no proxies, no certificates, no home.
pub(crate) fn command(store: &Store, dir: &Path, setup: &Setup) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mount-s3"));
    let (way, environment) = store.way(setup.endpoint.as_deref());
    command.arg(&setup.bucket).arg(dir).args(way);
    command
        .args(["--region", "us-east-1"])
        .args(setup.foreground.then_some("--foreground"))
        .args(&setup.options);
    if !setup.options.iter().any(|option| option == "--fuse-transport") {
        command.args(["--fuse-transport", crate::TRANSPORT]);
    }
    if !setup.options.iter().any(|option| option == "--read-mode") {
        command.args(["--read-mode", crate::READ_MODE]);
    }
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    // A wish for the whole run: `MOUNT_S3_SANDBOX=1 cargo test -p mountpoint --test mount` confines every engine.
    command.envs(std::env::var_os("MOUNT_S3_SANDBOX").map(|value| ("MOUNT_S3_SANDBOX", value)));
    command.env("XDG_STATE_HOME", store.home().join("state"));
    command.env("HOME", store.home()).env("RUST_BACKTRACE", "1").env("AWS_EC2_METADATA_DISABLED", "true");
    if setup.has_keys {
        command.env("AWS_ACCESS_KEY_ID", Store::ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", Store::SECRET_KEY);
    }
    command.envs(environment);
    command.envs(setup.env.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
    command
}

/// A command with this as its descriptor 3. It travels as standard input, which no other child of this process gets.
pub(crate) fn with_descriptor_3(plain: &Command, descriptor: OwnedFd) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 3<&0 0</dev/null && exec \"$0\" \"$@\""]).arg(plain.get_program());
    shell.args(plain.get_args()).env_clear().stdin(Stdio::from(descriptor));
    shell.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

/// A command in a control group: its shell enters the group before it becomes the engine.
fn within(plain: &Command, group: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ >\"$GROUP\" && unset GROUP && exec \"$0\" \"$@\""]).arg(plain.get_program());
    shell.args(plain.get_args()).env_clear().stdin(Stdio::null()).env("GROUP", group);
    shell.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

/// A command in a process namespace of its own. Its end is that of the command returned.
fn apart(plain: &Command) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--kill-child", "--"]).arg(plain.get_program()).args(plain.get_args());
    unshare.env_clear().stdin(Stdio::null());
    unshare.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    unshare
}

/// A command for which a seccomp filter refuses this system call.
pub(crate) fn refused(call: u32, plain: &Command) -> Command {
    // Four instructions: load the number of the call, compare, refuse with EPERM, allow.
    const FILTER: &str = "
import ctypes, os, struct, sys
code = b''.join(struct.pack('HBBI', *step) for step in [(32, 0, 0, 0), (21, 0, 1, int(sys.argv[1])), (6, 0, 0, 0x50001), (6, 0, 0, 0x7fff0000)])
code = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack('HP', 4, ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execvp(sys.argv[2], sys.argv[2:])";
    let mut python = Command::new("python3");
    python
        .args(["-c", FILTER, &call.to_string()])
        .arg(plain.get_program())
        .args(plain.get_args())
        .env_clear()
        .stdin(Stdio::null());
    python.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    python
}

/// A command with these limits of open files.
fn limited((soft, hard): (u64, u64), plain: &Command) -> Command {
    let mut prlimit = Command::new("prlimit");
    prlimit.arg(format!("--nofile={soft}:{hard}")).arg("--").arg(plain.get_program()).args(plain.get_args());
    prlimit.env_clear().stdin(Stdio::null());
    prlimit.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    prlimit
}

/// Whether this machine has the transport for requests.
fn has_transport() -> bool {
    crate::TRANSPORT != "io-uring" || testkit::need_fuse_over_io_uring()
}

/// A mounted bucket. A drop unmounts it, and fails the test if the engine did not end properly.
#[derive(Debug)]
pub(crate) struct TestMount {
    store: Arc<Store>,
    folder: tempfile::TempDir,
    dir: PathBuf,
    child: Child,
    ended: Option<ExitStatus>,
    killed: bool,
    is_refused: bool,
    sees_nobody: bool,
    // Dropped with the mount, which ends the watchdog.
    _watchdog: mpsc::Sender<()>,
}

impl TestMount {
    /// A new bucket, mounted with these options; `None` where there is no FUSE.
    pub(crate) fn new(options: &[&str]) -> Option<Self> {
        Self::with(&Setup::new(options))
    }

    /// A new bucket, mounted with this setup; `None` without FUSE.
    pub(crate) fn with(setup: &Setup) -> Option<Self> {
        Self::of(&Store::new(), setup)
    }

    /// A mount of this bucket; `None` where there is no FUSE, or not that store.
    pub(crate) fn of(store: &Arc<Store>, setup: &Setup) -> Option<Self> {
        let fuse = File::options().read(true).write(true).open("/dev/fuse");
        if store.stands_in() || !need("/dev/fuse", fuse.is_ok()) || !has_transport() {
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dir = folder.path().join("mnt");
        std::fs::create_dir(&dir).expect("a directory to mount on");
        Some(Self::start(Arc::clone(store), folder, dir, setup))
    }

    /// Another mount of the same bucket.
    pub(crate) fn second_mount(&self, options: &[&str]) -> Self {
        Self::of(&self.store, &Setup::new(options)).expect("FUSE was there a moment ago")
    }

    fn start(store: Arc<Store>, folder: tempfile::TempDir, dir: PathBuf, setup: &Setup) -> Self {
        let log =
            File::options().create(true).append(true).open(folder.path().join("log")).expect("a log file");
        let mut command = command(&store, &dir, setup);
        if let Some(group) = &setup.group {
            command = within(&command, group);
        }
        if setup.sees_nobody {
            command = apart(&command);
        }
        if let Some(call) = setup.refuses {
            command = refused(call, &command);
        }
        if let Some(limits) = setup.open_files {
            command = limited(limits, &command);
        }
        command.stdout(log.try_clone().expect("a second handle of the log")).stderr(log);
        let child = command.spawn().expect("start mount-s3");
        let pid = rustix::process::Pid::from_child(&child);
        let (alive, ended) = mpsc::channel();
        let (limit, mounted) = (setup.limit, dir.clone());
        std::thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("the test takes longer than {limit:?}: aborting the mount and killing the engine");
                // Programs and the engine's own threads may wait for each other where no signal reaches them.
                let _ = rustix::mount::unmount(&mounted, rustix::mount::UnmountFlags::FORCE);
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        });
        let (ended, killed, is_refused) = (None, false, setup.refuses.is_some());
        let sees_nobody = setup.sees_nobody;
        let mut mount =
            Self { store, folder, dir, child, ended, killed, is_refused, sees_nobody, _watchdog: alive };
        until_within(START_AND_END, "it is mounted", || {
            let ended = mount.child.try_wait().expect("the state of mount-s3");
            assert!(ended.is_none(), "mount-s3 ended before it mounted: {ended:?}");
            is_mounted(&mount.dir)
        });
        mount
    }

    /// The mount point.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path below the mount point.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The bucket.
    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// A folder beside the mount, on the local disk, which disappears with the mount.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join("scratch").join(name);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("a scratch folder");
        path
    }

    /// Lets the kernel have at most this many background requests of this mount open. False where that can't be set.
    pub(crate) fn limit_background(&self, max: usize) -> bool {
        need(
            "root and fusectl, to limit background requests",
            self.control("max_background", &max.to_string()),
        )
    }

    /// Ends the connection as an administrator does. False where that can't be done.
    pub(crate) fn abort(&self) -> bool {
        need("root and fusectl, to abort a connection", self.control("abort", "1"))
    }

    /// Number of requests that the kernel has for this mount, queued or without an answer yet. `None` if the kernel does not show it.
    pub(crate) fn waiting(&self) -> Option<usize> {
        std::fs::read_to_string(self.connection().join("waiting")).ok()?.trim().parse().ok()
    }

    /// Writes to a file of the kernel's about this mount.
    fn control(&self, file: &str, value: &str) -> bool {
        std::fs::write(self.connection().join(file), value).is_ok()
    }

    /// The folder of the kernel's about this mount, where fusectl can be mounted.
    fn connection(&self) -> PathBuf {
        const CONTROL: &str = "/sys/fs/fuse/connections";
        // fusectl is not mounted everywhere. Where it is, this call fails with EBUSY.
        let none: Option<&std::ffi::CStr> = None;
        let _ = rustix::mount::mount("fusectl", CONTROL, "fusectl", rustix::mount::MountFlags::empty(), none);
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the list of mounts");
        let dir = self.dir.to_str().expect("a plain path");
        let device = table.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|f| f[4] == dir);
        let (_, minor) = device.expect("it is mounted")[2].split_once(':').expect("a device");
        Path::new(CONTROL).join(minor)
    }

    /// The process id of the engine, or of the command around it.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The engine's output so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.path().join("log")).unwrap_or_default())
            .into_owned()
    }

    /// The warnings and errors of its log.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.log();
        log.lines()
            .filter(|line| line.contains(" WARN ") || line.contains(" ERROR "))
            .filter(|line| !line.contains("enable_uring is on")) // the machine's risk, whatever a test does
            .map(str::to_owned)
            .collect()
    }

    /// The most memory that the engine ever held, in bytes.
    pub(crate) fn peak_rss(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// The pages of programs and libraries in the engine's memory, in bytes.
    pub(crate) fn file_rss(&self) -> u64 {
        self.status("RssFile:")
    }

    /// The memory that the engine holds now, in bytes.
    pub(crate) fn rss(&self) -> u64 {
        self.status("VmRSS:")
    }

    fn status(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a figure");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        kib << 10
    }

    /// Ends the engine without a word of warning.
    pub(crate) fn kill_9(&mut self) {
        self.killed = true;
        self.child.kill().expect("kill the engine");
        self.ended = Some(self.child.wait().expect("wait for the engine"));
    }

    /// Mounts anew after [`TestMount::kill_9`]: clears the dead mount away and mounts on the same directory again.
    pub(crate) fn remount(mut self, setup: &Setup) -> Self {
        assert!(self.killed, "only the dead are raised");
        super::run(Command::new("umount").arg("-l").arg(&self.dir));
        // Folder and directory go to the successor; what is dropped here owns neither.
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a temporary folder"));
        let dir = std::mem::take(&mut self.dir);
        Self::start(Arc::clone(&self.store), folder, dir, setup)
    }

    /// Sends the engine a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("send a signal");
    }

    /// Sends the engine a signal and waits for its end. Returns the exit status.
    pub(crate) fn end_by(&mut self, signal: rustix::process::Signal) -> ExitStatus {
        self.signal(signal);
        self.end()
    }

    /// Unmounts and waits for the engine's end. Returns the exit status.
    fn unmount(&mut self) -> ExitStatus {
        let ways: [(&str, &[&str]); 4] =
            [("umount", &[]), ("fusermount3", &["-u"]), ("umount", &["-l"]), ("fusermount3", &["-uz"])];
        for (tool, options) in ways {
            if !is_mounted(&self.dir) {
                break;
            }
            let _ = Command::new(tool).args(options).arg(&self.dir).stderr(Stdio::null()).status();
        }
        self.end()
    }

    /// Waits for the engine's requested end. Returns the exit status.
    pub(crate) fn end(&mut self) -> ExitStatus {
        if let Some(ended) = self.ended {
            return ended;
        }
        let until = Instant::now() + START_AND_END;
        let ended = loop {
            match self.child.try_wait().expect("the state of mount-s3") {
                Some(ended) => break ended,
                None if Instant::now() > until => {
                    eprintln!("mount-s3 did not end after its mount was gone: killing it");
                    let _ = self.child.kill();
                    break self.child.wait().expect("wait for mount-s3");
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        self.ended = Some(ended);
        ended
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        // Below a command that begins a process namespace the engine is the child, and has its keys.
        let (pid, state) = (self.pid(), self.store.home().join("state"));
        let is_seen = self.ended.is_none() && !self.sees_nobody;
        let kept = std::panic::catch_unwind(|| {
            if is_seen {
                assert_none_of(pid);
            }
            assert_none_below(&state)
        });
        let ended = self.unmount();
        let log = self.log();
        if std::thread::panicking() {
            eprintln!("--- mount-s3, {ended}:\n{log}---");
            return;
        }
        let by_ring = crate::TRANSPORT == "io-uring" && !self.is_refused;
        assert!(
            !by_ring || !log.contains("no FUSE over io_uring"),
            "the test is about another transport:\n{log}"
        );
        assert!(self.killed || ended.success(), "mount-s3 ended with {ended}:\n{log}");
        if let Err(leak) = kept {
            std::panic::resume_unwind(leak);
        }
        assert!(!log.contains("panicked at"), "mount-s3 panicked:\n{log}");
        assert_eq!(canary_in(log.as_bytes()), None, "a secret is in the log");
    }
}

/// Whether something is mounted there.
pub(crate) fn is_mounted(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the list of mounts");
    let dir = dir.to_str().expect("a plain path");
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(dir))
}
