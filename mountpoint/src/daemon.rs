//! Mounts in the background: a second process mounts and keeps running, while the first one waits for the result and exits. Also writes the
//! result line, `ready` or the error, for other supervisors, and reports it to a service manager.
//!
//! The second process is a new start of the program, not a fork: a fork would copy threads and locks of the first one in the middle of
//! their work. The standard output of the second process is the ready pipe.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::LinkNameSpaceType;

use crate::cli;
use crate::supervise::no_thread;
use crate::sync::Arc;

/// The variable that marks a process as the second one.
pub const BACKGROUND_ENV: &str = "MOUNT_S3_IN_BACKGROUND";

/// The variable with the socket of a service manager, such as systemd for a unit with `Type=notify`.
pub const NOTIFY_ENV: &str = "NOTIFY_SOCKET";

/// Longest wait of the first process for the result. Beyond it the second process is ended, and the mount fails.
const READY_WITHIN: Duration = Duration::from_secs(30);
pub(crate) const READY: &str = "ready";

/// Moves this process into another mount namespace, which mount(8) names with `-N`. Must be called before a second thread starts.
///
/// # Errors
/// The namespace can't be opened, or the kernel refuses.
pub fn enter_mount_namespace(path: &Path) -> anyhow::Result<()> {
    let context = || format!("entering the mount namespace {}", path.display());
    let namespace = File::open(path).with_context(context)?;
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
        .with_context(context)
}

/// Starts this command again in the background, waits until it has mounted, and writes the result to the ready file. `elsewhere`: the mount
/// namespace may not have this program's file.
///
/// # Errors
/// The second process reported an error, or no result in time (it is then ended); or the ready file can't be written.
pub fn start(ready: Option<&Path>, elsewhere: bool) -> anyhow::Result<()> {
    let ready = ready.map(ReadyFile::open).transpose()?;
    let started = start_second(elsewhere);
    let said = ready.map_or(Ok(()), |ready| ready.say(started.as_ref().map(|_| ())));
    let child = started?;
    if said.is_err() {
        // The reader of the ready file is gone.
        end(&child);
    }
    said
}

/// Starts the second process, and returns once it has mounted.
fn start_second(elsewhere: bool) -> anyhow::Result<Child> {
    let mut args = std::env::args_os();
    let program = match elsewhere {
        true => PathBuf::from("/proc/self/exe"),
        false => std::env::current_exe().context("finding this program's file")?,
    };
    let mut command = Command::new(program);
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    let mut child = command
        .args(args)
        .env(BACKGROUND_ENV, "1")
        // The second process changes its directory once it has mounted, so paths must be absolute.
        .envs(cli::absolute_files())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the background process")?;
    let word = wait_for_word(&mut child)?;
    match word.as_deref() {
        Some(READY) => Ok(child),
        Some(error) => bail!("{error}"),
        None => {
            end(&child);
            bail!(
                "not mounted within {} s: the background process was ended; its log (syslog, or --log-directory) says what it waited for",
                READY_WITHIN.as_secs()
            )
        }
    }
}

/// Ends the second process with SIGTERM, which makes it unmount.
fn end(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
}

/// Waits for the first line of the child; `None` after [`READY_WITHIN`].
fn wait_for_word(child: &mut Child) -> anyhow::Result<Option<String>> {
    let stdout = child.stdout.take().context("the ready pipe")?;
    let (send, receive) = mpsc::channel();
    let reads = move || {
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line).map(|_| line);
        let _ = send.send(read);
    };
    if let Err(error) = std::thread::Builder::new().name("ready".to_owned()).spawn(reads) {
        end(child);
        return Err(no_thread(error)).context("waiting for the background process");
    }
    match receive.recv_timeout(READY_WITHIN) {
        Ok(line) => {
            let line = line.context("reading the ready pipe")?;
            if line.is_empty() {
                let status = child.wait().context("waiting for the background process")?;
                bail!("the background process ended before it had mounted ({status})");
            }
            Ok(Some(line.trim_end().to_owned()))
        }
        Err(_) => Ok(None),
    }
}

/// Starts a new session, as the first step of the second process, so signals of the terminal do not reach it.
///
/// # Errors
/// The kernel refuses.
pub fn detach() -> anyhow::Result<()> {
    rustix::process::setsid().context("leaving the terminal's session")?;
    Ok(())
}

/// Reports the result to the first process, and closes the terminal. Called by the second process.
///
/// # Errors
/// The first process has ended, or `/dev/null` can't be opened.
pub fn report(outcome: Result<(), &anyhow::Error>) -> anyhow::Result<()> {
    io::stdout()
        .write_all(word(outcome).as_bytes())
        .and_then(|()| io::stdout().flush())
        .context("writing to the ready pipe")?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").context("opening /dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // A daemon must not keep a directory in use.
    std::env::set_current_dir("/")?;
    Ok(())
}

/// The result line, with its line end.
fn word(outcome: Result<(), &anyhow::Error>) -> String {
    match outcome {
        Ok(()) => format!("{READY}\n"),
        Err(error) => format!("{}\n", one_line(error)),
    }
}

/// A file for a supervisor that waits for the result line: a file, a pipe, or a descriptor as `/dev/fd/N`.
#[derive(Debug)]
pub struct ReadyFile {
    path: PathBuf,
    file: File,
}

impl ReadyFile {
    /// Opens the ready file before anything else can fail. A regular file is created with mode 0600, or emptied, so a reader never takes an
    /// earlier mount's result for this one's. The file of a descriptor is never emptied.
    ///
    /// # Errors
    /// The file can't be written, or is a pipe without a reader: waiting for one could last forever.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let context = || format!("opening the ready file {}", path.display());
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
            .open(path)
            .with_context(context)?;
        if !path.starts_with("/dev/fd") && file.metadata().with_context(context)?.is_file() {
            file.set_len(0).with_context(context)?;
        }
        Ok(Self { path: path.to_owned(), file })
    }

    /// The ready file of a descriptor that was passed to this process.
    pub fn of(fd: OwnedFd) -> Self {
        Self { path: "of the guard".into(), file: fd.into() }
    }

    /// Writes the result line, in one write, and closes the file.
    ///
    /// # Errors
    /// The reader is gone, or there is no space for the line.
    pub fn say(mut self, outcome: Result<(), &anyhow::Error>) -> anyhow::Result<()> {
        self.file
            .write_all(word(outcome).as_bytes())
            .with_context(|| format!("writing to the ready file {}", self.path.display()))
    }
}

/// Longest wait until a service manager has handled a message; beyond it the call fails. Doubling it lets a busier machine start such a
/// mount.
const KEPT_WITHIN: Duration = Duration::from_secs(10);

/// A service manager that receives messages of sd_notify(3).
///
/// The socket is created once, because a sandboxed engine can't create another.
#[derive(Clone, Debug)]
pub struct ServiceManager {
    address: SocketAddr,
    socket: Arc<UnixDatagram>,
}

impl ServiceManager {
    /// The manager at a socket address of [`NOTIFY_ENV`]: a path, or `@` and an abstract name. `None` for any other address, or if no
    /// socket can be created.
    #[must_use]
    pub fn at(socket: &OsStr) -> Option<Self> {
        let address = match socket.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok()?,
            [b'/', ..] => SocketAddr::from_pathname(socket).ok()?,
            _ => return None,
        };
        Some(Self { address, socket: Arc::new(UnixDatagram::unbound().ok()?) })
    }

    /// Stores a descriptor in the manager, for the next process of the unit, under this name. Returns once the manager has it.
    ///
    /// # Errors
    /// The manager does not listen, or does not answer in time. The unit's `NotifyAccess` may exclude this process.
    pub fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.send(&format!("FDSTORE=1\nFDNAME={name}\n"), Some(descriptor))?;
        self.wait_until_handled()
    }

    /// Makes another process the unit's main process. Returns once the manager has done so.
    ///
    /// # Errors
    /// The manager does not listen, or does not answer in time.
    pub fn follow(&self, pid: u32) -> io::Result<()> {
        self.send(&format!("MAINPID={pid}\nREADY=1\nSTATUS=mounted\n"), None)?;
        self.wait_until_handled()
    }

    /// Returns once the manager has handled all earlier messages.
    fn wait_until_handled(&self) -> io::Result<()> {
        // The manager closes its end of the pipe after it has handled all earlier messages.
        let (ours, theirs) = io::pipe()?;
        self.send("BARRIER=1", Some(theirs.as_fd()))?;
        drop(theirs);
        let limit = Timespec { tv_sec: KEPT_WITHIN.as_secs().cast_signed(), tv_nsec: 0 };
        match poll(&mut [PollFd::new(&ours, PollFlags::empty())], Some(&limit))? {
            0 => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "it did not answer: the unit needs NotifyAccess=main and FileDescriptorStoreMax=2",
            )),
            _ => Ok(()),
        }
    }

    /// Removes the descriptor of this name from the manager.
    pub fn drop(&self, name: &str) {
        if let Err(error) = self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"), None) {
            tracing::warn!("telling the service manager: {error}");
        }
    }

    fn send(&self, words: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        self.socket.connect_addr(&self.address)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rights = descriptor.map(|descriptor| [descriptor]);
        if let Some(rights) = &rights {
            control.push(SendAncillaryMessage::ScmRights(rights));
        }
        sendmsg(&self.socket, &[io::IoSlice::new(words.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Reports that the mount is ready, or its error. A manager that does not listen is only logged.
    pub fn say(&self, outcome: Result<(), &anyhow::Error>) {
        let words = match outcome {
            Ok(()) => "READY=1\nSTATUS=mounted\n".to_owned(),
            Err(error) => format!("STATUS={}\n", one_line(error)),
        };
        if let Err(error) = self.send(&words, None) {
            tracing::warn!("telling the service manager: {error}");
        }
    }
}

/// An error and its causes on one line.
pub fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").replace(['\n', '\r'], " ")
}
