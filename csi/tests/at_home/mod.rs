//! A node's side of tests with real mounters, real engines and a real S3 server: a store with a bucket, the kubelet's directory with the comm directory of a
//! pod, and processes that do not outlive their test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use csi::contract::comm::Comm;
use csi::mounter::Credentials;
use csi::mounter::comm_files::CommFiles;
use csi::mounter::credentials::Profile;
use csi::mounter::sys;
use csi::mountpoint_pod::kernel_resends;
use rustix::process::{Pid, Signal, kill_process};
use testkit::{need, until};

/// The limit of one step.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const SECRET: &str = "canary-of-the-secret-key";
/// The UID of the pod.
pub(crate) const UID: &str = "pod-uid";

/// A command of the workspace, beside the mounter's own.
fn sibling(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_scality-s3-csi-mounter")).with_file_name(name)
}

/// Runs the body in a process with mounts of its own, which end with the process.
pub(crate) fn isolated(body: impl Fn()) {
    let built = |name: &str, package: &str| {
        let stale = testkit::built::stale(&sibling(name), package);
        need(&format!("target/debug/{name} (cargo build -p {package}): {stale:?}"), stale.is_none())
    };
    if need("root", rustix::process::geteuid().is_root())
        && need("/dev/fuse", sys::open_device().is_ok())
        && need("Linux 6.9, which sends requests again", kernel_resends())
        && built("mount-s3", "mountpoint")
        && built("s3server", "s3server")
    {
        let said = testkit::isolated(body).unwrap_or_default();
        assert!(!said.contains(SECRET), "the secret is in a log:\n{said}");
    }
}

/// A child that does not outlive its test.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// A mounter with these arguments besides its directories.
    pub(crate) fn mounter(comm: &Comm, args: &[&str]) -> Self {
        let mut mounter = Command::new(env!("CARGO_BIN_EXE_scality-s3-csi-mounter"));
        mounter.args(args).args(["--mount-sock-recv-timeout", "60s", "--comm-dir"]).arg(comm.directory());
        mounter.arg("--mountpoint-bin-dir").arg(sibling("mount-s3").parent().unwrap());
        Self::start(mounter.env_clear())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// The exit code, if the process has ended.
    pub(crate) fn code(&mut self) -> Option<i32> {
        let mut status = None;
        until("the process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A store with a bucket that has an object, and the node's directories.
pub(crate) struct Node {
    pub(crate) root: PathBuf,
    pub(crate) kubelet: PathBuf,
    pub(crate) comm: Comm,
    endpoint: String,
    _folder: tempfile::TempDir,
}

impl Node {
    /// The node, and the store.
    pub(crate) fn new() -> (Self, Process) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let kubelet = root.join("kubelet");
        let comm = Comm::on_host(&kubelet, UID);
        fs::create_dir_all(root.join("store/bucket")).unwrap();
        fs::write(root.join("store/bucket/hello"), "from the bucket").unwrap();
        fs::create_dir_all(comm.directory()).unwrap();
        fs::write(root.join("secret"), SECRET).unwrap();
        let store = serve(&root, "127.0.0.1:0");
        let number = || fs::read_to_string(root.join("port")).ok()?.trim().parse::<u16>().ok();
        until("the store listens", || number().is_some());
        let endpoint = format!("http://127.0.0.1:{}", number().unwrap());
        (Self { root, kubelet, comm, endpoint, _folder: folder }, store)
    }

    /// The address of the store.
    pub(crate) fn address(&self) -> &str {
        self.endpoint.strip_prefix("http://").unwrap()
    }

    /// Writes keys into this directory; the engine's environment that leads to them and to the store.
    pub(crate) fn env(&self, comm: &Comm) -> Vec<String> {
        let keys = Credentials {
            access_key_id: "test".into(),
            secret_access_key: SECRET.into(),
            session_token: None,
        };
        let profile = Profile::new(UID, "handle").unwrap();
        profile.write(&CommFiles::open(comm).unwrap().credentials().unwrap(), &keys).unwrap();
        let env = profile.env(&comm.credentials()).into_iter();
        let of_store =
            [format!("AWS_ENDPOINT_URL=http://{}", self.address()), "AWS_REGION=us-east-1".to_owned()];
        env.map(|(name, value)| format!("{name}={value}")).chain(of_store).collect()
    }

    /// A `/proc` in which these processes run in the pod's cgroup; its directory.
    pub(crate) fn proc(&self, pids: &[u32]) -> PathBuf {
        let proc = self.root.join("proc");
        for pid in pids {
            let directory = proc.join(pid.to_string());
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup"), format!("0::/kubepods/pod{UID}/x\n")).unwrap();
        }
        proc
    }
}

/// Starts a store at this address.
pub(crate) fn serve(root: &Path, listen: &str) -> Process {
    let mut server = Command::new(sibling("s3server"));
    server.arg(root.join("store")).args(["--listen", listen, "--access-key", "test"]);
    server.arg("--secret-key-file").arg(root.join("secret")).arg("--port-file").arg(root.join("port"));
    Process::start(&mut server)
}
