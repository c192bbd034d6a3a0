//! A service manager for one mount: it keeps the descriptors that `mount-s3 --supervised` gives it, and passes them to the next engine when
//! one was killed. systemd does this for a packaged unit.
//!
//! Enters: a command. Leaves: a line `engine PID` for each start, and `dead PID` for each death, on standard output. The supervisor never
//! calls the mount: a process that waits for a mount can't end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The first word of the line about a start.
pub(crate) const ENGINE: &str = "engine";
/// The first word of the line about a death.
pub(crate) const DEAD: &str = "dead";

/// The kept descriptors by name.
type Kept = Arc<Mutex<BTreeMap<String, OwnedFd>>>;

/// Runs the engine `command`, and again after each death by a signal, with this pause. Returns when it ends by itself.
///
/// # Errors
/// The engine does not start, or its exit status is not 0.
pub(crate) fn run(command: &[OsString], restart_after: Duration) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix("s3-supervisor-").tempdir()?;
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).context("listen for messages of the engine")?;
    let kept = Kept::default();
    let keeps = Arc::clone(&kept);
    std::thread::spawn(move || while keep_next(&socket, &keeps).is_ok() {});
    loop {
        let ended = once(command, &path, &kept)?;
        if ended.signal().is_none() {
            anyhow::ensure!(ended.success(), "the engine ended with {ended}");
            return Ok(());
        }
        std::thread::sleep(restart_after);
    }
}

/// Runs one engine to its end.
fn once(command: &[OsString], notify: &Path, kept: &Kept) -> anyhow::Result<ExitStatus> {
    // The shell gets device and journal as standard input and output, and moves them to the numbers of LISTEN_FDS.
    let script = r#"if [ -n "$LISTEN_FDS" ]; then exec 3<&0 4<&1 0</dev/null; export LISTEN_PID=$$; fi
        exec 1>&2 setpriv --pdeathsig KILL "$@""#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).args(command).env("NOTIFY_SOCKET", notify).stdin(Stdio::null());
    {
        let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(device), Some(journal)) = (kept.get("fuse"), kept.get("journal")) {
            shell.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", "fuse:journal");
            shell.stdin(device.try_clone()?).stdout(journal.try_clone()?);
        }
    }
    let mut engine = shell.spawn().with_context(|| format!("start {command:?}"))?;
    // The command has open copies of its descriptors, which must be closed.
    drop(shell);
    say(ENGINE, engine.id())?;
    let ended = engine.wait()?;
    say(DEAD, engine.id())?;
    Ok(ended)
}

fn say(word: &str, pid: u32) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{word} {pid}")?;
    Ok(stdout.flush()?)
}

/// Receives one message of sd_notify(3) and carries it out. `BARRIER=1` is answered by closing its descriptor.
fn keep_next(socket: &UnixDatagram, kept: &Kept) -> anyhow::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut words = [0; 4096];
    let received =
        recvmsg(socket, &mut [IoSliceMut::new(&mut words)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let mut descriptors = rights.flatten();
    let words = String::from_utf8_lossy(&words[..received.bytes]);
    let word = |name: &str| words.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let name = word("FDNAME=").unwrap_or_default();
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if word("FDSTORE=").is_some() {
        kept.insert(name, descriptors.next().context("FDSTORE=1 without a descriptor")?);
    } else if word("FDSTOREREMOVE=").is_some() {
        kept.remove(&name);
    }
    Ok(())
}
