//! The service manager of a mount that outlives its engine, played by the test: it keeps the descriptors that the engine gives it by
//! `FDSTORE=1`, and passes them on by `LISTEN_FDS`. Programs that use the mount are processes of their own, since a holder that touches
//! the mount could never end.

use std::collections::BTreeMap;
use std::fs;
use std::io::{IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};

use super::super::ready::has_fuse;
use crate::common::{Setup, Store, command, need, need_tool, until};

/// A step that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);
/// Descriptors by name.
type Kept = Arc<Mutex<BTreeMap<String, OwnedFd>>>;

/// The service manager, and its one mount. A drop releases everything.
pub(super) struct Holder {
    pub(super) store: Arc<Store>,
    pub(super) folder: tempfile::TempDir,
    pub(super) dir: PathBuf,
    pub(super) setup: Setup,
    pub(super) kept: Kept,
    ready: mpsc::Receiver<()>,
    /// While this is set, no answer says that a device is kept.
    pub(super) silent: Arc<Mutex<bool>>,
    pub(super) engine: Option<Child>,
    /// The process that the earlier main process named as the next one.
    named: Arc<Mutex<Option<Pid>>>,
    /// The program that is started; the engine of this build if there is none.
    pub(super) program: Option<PathBuf>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        if let Some(engine) = &mut self.engine {
            let _ = engine.kill();
            let _ = engine.wait();
        }
        if let Some(named) = self.named() {
            let _ = kill_process(named, Signal::KILL);
        }
        // The last descriptor of the device: programs that wait get an error.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

impl Holder {
    /// A bucket and its holder; no engine yet. `None` where there is no FUSE.
    pub(super) fn new(options: &[&str]) -> Option<Self> {
        if !has_fuse() || !need("root", rustix::process::geteuid().is_root()) || !need_tool("python3") {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("mnt");
        fs::create_dir(&dir).unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        let (kept, silent) = (Kept::default(), Arc::new(Mutex::new(false)));
        let (told, ready) = mpsc::channel();
        let named = Arc::new(Mutex::new(None));
        let names = Arc::clone(&named);
        let (keeps, is_silent) = (Arc::clone(&kept), Arc::clone(&silent));
        std::thread::spawn(move || {
            let mut pipes = Vec::new();
            while let Some((words, mut descriptors)) = receive(&socket) {
                let word =
                    |name: &str| words.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let name = word("FDNAME=").unwrap_or_default();
                if word("FDSTORE=").is_some() {
                    keeps.lock().unwrap().insert(name, descriptors.remove(0));
                } else if word("FDSTOREREMOVE=").is_some() {
                    keeps.lock().unwrap().remove(&name);
                } else if let Some(pid) = word("MAINPID=").and_then(|pid| Pid::from_raw(pid.parse().ok()?)) {
                    *names.lock().unwrap() = Some(pid);
                } else if word("READY=").is_some() && told.send(()).is_err() {
                    return;
                } else if word("BARRIER=").is_some()
                    && *is_silent.lock().unwrap()
                    && keeps.lock().unwrap().len() == 2
                {
                    pipes.append(&mut descriptors);
                }
            }
        });
        let setup = Setup::new(&[&["--supervised"], options].concat());
        let store = Store::new();
        Some(Self { store, folder, dir, setup, kept, ready, silent, engine: None, named, program: None })
    }

    /// The process that was named as the main one last. Also behind a panic: a second one in a destructor ends all tests of the program.
    pub(super) fn named(&self) -> Option<Pid> {
        *self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine's command with the kept descriptors, as systemd starts it.
    pub(super) fn command(&self) -> Command {
        let mut plain = command(&self.store, &self.dir, &self.setup);
        if let Some(program) = &self.program {
            let built = plain;
            plain = Command::new(program);
            plain.args(built.get_args());
            for (name, value) in built.get_envs() {
                match value {
                    Some(value) => plain.env(name, value),
                    None => plain.env_remove(name),
                };
            }
        }
        plain.env("XDG_RUNTIME_DIR", self.folder.path());
        plain.env("NOTIFY_SOCKET", self.folder.path().join("notify"));
        let log = fs::File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let kept = self.kept.lock().unwrap();
        let (Some(device), Some(journal)) = (kept.get("fuse"), kept.get("journal")) else {
            plain.stdout(log.try_clone().unwrap()).stderr(log);
            return plain;
        };
        let mut shell = Command::new("sh");
        let script =
            "exec 3<&0 4<>\"$JOURNAL\" 0</dev/null; unset JOURNAL; export LISTEN_PID=$$; exec \"$0\" \"$@\"";
        shell.args(["-c", script]).arg(plain.get_program()).args(plain.get_args()).env_clear();
        shell.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.env("JOURNAL", format!("/proc/{}/fd/{}", std::process::id(), journal.as_raw_fd()));
        shell.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", "fuse:journal");
        shell.stdin(Stdio::from(device.try_clone().unwrap()));
        shell.stdout(log.try_clone().unwrap()).stderr(log);
        shell
    }

    /// Starts an engine and waits until it is ready.
    pub(super) fn start(&mut self) {
        self.engine = Some(self.command().spawn().unwrap());
        let until = Instant::now() + LIMIT;
        while self.ready.recv_timeout(Duration::from_millis(5)).is_err() {
            let ended = self.engine.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the engine ended before it was ready: {ended:?}");
            assert!(Instant::now() < until, "the engine is not ready within {LIMIT:?}");
        }
    }

    pub(super) fn kill(&mut self) {
        let mut engine = self.engine.take().unwrap();
        engine.kill().unwrap();
        engine.wait().unwrap();
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.engine.as_ref().unwrap()), signal).unwrap();
    }

    pub(super) fn wait(&mut self) -> ExitStatus {
        let mut engine = self.engine.take().unwrap();
        until("the engine ends", || engine.try_wait().unwrap().is_some());
        engine.wait().unwrap()
    }

    pub(super) fn kept(&self) -> usize {
        self.kept.lock().unwrap().len()
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A program in Python, whose first argument is the mount and whose second is a folder on the local disk.
    pub(super) fn program(&self, script: &str, arguments: &[&str]) -> Program {
        let mut python = Command::new("python3");
        python.args(["-c", &format!("{PRELUDE}{script}")]).arg(&self.dir).arg(self.folder.path());
        let child = python.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        Program(child)
    }

    /// Runs a program of [`Holder::program`] to its end. Returns its output.
    pub(super) fn runs(&self, script: &str) -> String {
        self.program(script, &[]).output()
    }
}

/// Receives one message and its descriptors. `None` once nobody sends any more.
fn receive(socket: &UnixDatagram) -> Option<(String, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut words = [0; 4096];
    let received =
        recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut words)], &mut control, RecvFlags::CMSG_CLOEXEC)
            .ok()?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Some((String::from_utf8_lossy(&words[..received.bytes]).into_owned(), descriptors))
}

/// A program that uses the mount. Killed with the test.
pub(super) struct Program(Child);

impl Program {
    /// The output of a program that has ended already.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.0.try_wait().unwrap()?;
        let mut said = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        Some(said)
    }

    pub(super) fn output(mut self) -> String {
        let mut said = String::new();
        until("the program ends", || self.0.try_wait().unwrap().is_some());
        self.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.0.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

const PRELUDE: &str = r#"
import errno, hashlib, mmap, os, random, sys, time
mount, local, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
def says(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]
def waits_for(name):
    while not os.path.exists(f'{local}/{name}'):
        time.sleep(0.005)
def tells(name):
    open(f'{local}/{name}', 'w').close()
def drop(fd):
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
def expected(name):
    with open(f'{local}/expected/{name}', 'rb') as file:
        return file.read()
"#;
