//! The first process of an engines pod (`--many`). Enters: the name of a source, from the node. Leaves: a mounter for it, a separate
//! process with its own directory, which ends alone. The directory is removed when the source is unmounted.
//!
//! A restarted container starts mounters for all directories that it finds: each then waits for its mount. When a mounter dies, this
//! process inherits its engine and kills it, because nobody would notice that engine's death later. Then a new mounter starts, and waits
//! for its mount. The source of an engine that does not end, in uninterruptible sleep, waits for it; other sources do not.
//!
//! Never here: a device, a credential, an engine.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mountpoint::sync::Mutex;
use rustix::process::{Pid, Signal, WaitOptions, kill_process};

use super::left::{Left, Update};
use super::{Among, answer, exit_announced};
use crate::contract::comm::Comm;
use crate::contract::engines_pod::{self, is_source};
use crate::contract::message::{self, Answer};
use crate::error::{Error, Result};

/// Longest time for a node's request; after it the request fails. Doubled, a node that hangs delays the next one twice as long.
const ASKED_WITHIN: Duration = Duration::from_secs(5);
/// Shortest life of a mounter that counts as well: its death begins a new series. Doubled, a slower series of deaths ends, too.
const WELL_AFTER: Duration = Duration::from_secs(10);
/// Number of deaths in a row after which a source gets no new mounter until the node asks for one. Doubled, a mounter that can't run is
/// tried twice as often.
const DEATHS_MAX: u32 = 5;

/// The configuration of the process.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory that is shared with the node. Each source has a subdirectory.
    pub comm: Comm,
    /// The directory that outlives the container, if the pod has one. Each source has a subdirectory.
    pub state_directory: PathBuf,
    /// The directory of the disk for caches, if there is one. The node makes and names a subdirectory for each cache.
    pub cache_directory: PathBuf,
    /// The program of a mounter.
    pub program: PathBuf,
    /// The mounter's arguments, besides the source's name.
    pub args: Vec<OsString>,
    /// Most mounters at a time; one more is refused. Doubled, each engine's share of the container's memory is half as large.
    pub sources_max: usize,
    /// The user of the node, whose requests alone are accepted.
    pub among: Among,
}

/// The mounters of an engines pod.
#[derive(Debug)]
pub struct Many {
    config: Config,
    mounters: Mutex<Mounters>,
}

#[derive(Debug, Default)]
struct Mounters {
    running: BTreeMap<String, Running>,
    /// Sources that get a mounter once the engine of their dead mounter is gone.
    waiting: BTreeSet<String>,
    /// Number of early deaths of mounters in a row, by source.
    deaths: BTreeMap<String, u32>,
    /// Engines that outlived their mounters.
    left: Left,
}

/// A mounter.
#[derive(Debug)]
struct Running {
    pid: Pid,
    since: Instant,
}

impl Many {
    /// A process without mounters.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, mounters: Mutex::default() }
    }

    /// Whether any mounter runs.
    pub fn serves(&self) -> bool {
        !self.mounters.lock().running.is_empty()
    }

    /// Starts a mounter for each source of an earlier container, then for each source that the node names.
    ///
    /// # Errors
    /// The socket can't be created, or accepts no connection.
    pub fn run(&self) -> Result<()> {
        let socket = self.config.comm.engines_socket();
        let failed =
            |error: io::Error| Error::internal(format!("listening at {}: {error}", socket.display()));
        match std::fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        self.tell_of_cache().map_err(failed)?;
        self.begin_again();
        let listener = message::listen(&socket).map_err(failed)?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => self.serve(&stream),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Tells the node whether this pod has a disk for caches, by the file [`Comm::engines_cache`].
    fn tell_of_cache(&self) -> io::Result<()> {
        let file = self.config.comm.engines_cache();
        if self.config.cache_directory.is_dir() {
            return std::fs::write(file, "");
        }
        match std::fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Reaps all ended children: mounters, and processes that this one inherited, such as the helper of a dead engine. A mounter that died gets a
    /// successor.
    pub fn reap(&self) {
        let mut mounters = self.mounters.lock();
        let mut ended = BTreeSet::new();
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let its = mounters.running.iter().find(|(_, of)| of.pid == pid);
            let Some((source, since)) = its.map(|(source, of)| (source.clone(), of.since)) else { continue };
            mounters.running.remove(&source);
            ended.insert(source.clone());
            if exit_announced(&self.config.comm.of_source(&source)) {
                tracing::info!(source, "the source is unmounted");
                mounters.deaths.remove(&source);
                continue;
            }
            tracing::warn!(source, ?status, "a mounter has ended");
            if mounters.may_follow(&source, since.elapsed()) {
                mounters.waiting.insert(source);
            }
        }
        if ended.is_empty() && mounters.left.is_empty() {
            return;
        }
        let orphans = mounters.orphans();
        let Update { fresh, settled } = mounters.left.update(&ended, &orphans, Instant::now());
        kill_all(&fresh);
        for source in settled {
            // The directory stays until now: meanwhile the node gives a new source of the volume another name.
            if exit_announced(&self.config.comm.of_source(&source)) {
                mounters.waiting.remove(&source);
                self.clean_up(&source);
            } else if mounters.waiting.remove(&source)
                && let Err(error) = self.start(&mut mounters, &source)
            {
                tracing::error!(source, "after the death of a mounter: {error}");
            }
        }
    }

    fn serve(&self, stream: &UnixStream) {
        if !self.config.among.is_of_node(stream) {
            return;
        }
        let begun = engines_pod::receive(stream, ASKED_WITHIN)
            .map_err(|error| error.to_string())
            .and_then(|begin| self.begin(&begin.source));
        let said = match begun {
            Ok(()) => Answer::Ready,
            Err(error) => {
                tracing::warn!("a request of the node: {error}");
                Answer::Failed { error }
            }
        };
        answer(stream, &said);
    }

    /// Starts a mounter, unless the source has one already.
    fn begin(&self, source: &str) -> std::result::Result<(), String> {
        let mut mounters = self.mounters.lock();
        let ends = exit_announced(&self.config.comm.of_source(source));
        let (runs, is_left) = (mounters.running.contains_key(source), mounters.left.has(source));
        match (runs || is_left, ends) {
            (true, true) => return Err(format!("the engine of {source} still ends")),
            (false, true) => {
                mounters.waiting.remove(source);
                self.clean_up(source);
            }
            _ if runs => return Ok(()),
            _ => {}
        }
        let max = self.config.sources_max;
        if !mounters.waiting.contains(source) && mounters.running.len() + mounters.waiting.len() >= max {
            return Err(format!(
                "the engines pod serves {max} sources, and no more have room: shared.maxVolumes of the chart"
            ));
        }
        if is_left {
            // The node waits until the mounter listens.
            mounters.waiting.insert(source.to_owned());
            return Ok(());
        }
        self.start(&mut mounters, source)
    }

    fn start(&self, mounters: &mut Mounters, source: &str) -> std::result::Result<(), String> {
        let failed = |what: &str, error: io::Error| format!("{what} of {source}: {error}");
        let of_state = self.config.state_directory.is_dir().then(|| self.config.state_directory.join(source));
        let comm = self.config.comm.of_source(source);
        for directory in [Some(comm.directory().to_owned()), of_state].into_iter().flatten() {
            match DirBuilder::new().mode(0o770).create(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed("making the directory", error));
                }
                _ => {}
            }
        }
        let mut command = Command::new(&self.config.program);
        command.args(&self.config.args).arg("--source").arg(source).stdin(Stdio::null());
        let child = command.spawn().map_err(|error| failed("starting the mounter", error))?;
        // `reap` collects its exit status.
        let running = Running { pid: Pid::from_child(&child), since: Instant::now() };
        mounters.running.insert(source.to_owned(), running);
        tracing::info!(source, pid = child.id(), "a mounter begins");
        Ok(())
    }

    fn begin_again(&self) {
        let entries = std::fs::read_dir(self.config.comm.directory()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        for source in names.filter(|name| is_source(name)) {
            if exit_announced(&self.config.comm.of_source(&source)) {
                self.clean_up(&source);
            } else if let Err(error) = self.begin(&source) {
                tracing::warn!("after a restart of the container: {error}");
            }
        }
    }

    /// Removes the directories of a source. The node has removed its credentials already.
    fn clean_up(&self, source: &str) {
        let of_state = self.config.state_directory.join(source);
        for directory in [self.config.comm.of_source(source).directory(), &of_state] {
            match std::fs::remove_dir_all(directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!("removing {}: {error}", directory.display());
                }
                _ => {}
            }
        }
    }
}

impl Mounters {
    /// Whether a source gets another mounter after one that lived for `lived`.
    fn may_follow(&mut self, source: &str, lived: Duration) -> bool {
        let deaths = self.deaths.entry(source.to_owned()).or_default();
        *deaths = if lived < WELL_AFTER { *deaths + 1 } else { 1 };
        *deaths < DEATHS_MAX
    }

    /// The children of this process except mounters: engines of dead mounters, and their helpers.
    fn orphans(&self) -> BTreeSet<i32> {
        let own = std::process::id();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let of_own = pids.filter(|pid: &i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            parent(&stat) == Some(own)
        });
        let is_mounter = |pid: &i32| self.running.values().any(|of| of.pid.as_raw_nonzero().get() == *pid);
        of_own.filter(|pid| !is_mounter(pid)).collect()
    }
}

/// The parent's pid in `/proc/PID/stat`. It is the second field after the program's name, which may contain any characters.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Kills processes. SIGCHLD tells when their exit statuses can be collected.
fn kill_all(processes: &BTreeSet<i32>) {
    for pid in processes.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        tracing::warn!(pid = pid.as_raw_nonzero(), "its mounter is gone: it ends");
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    use testkit::isolated;

    use super::super::left::tests::stuck;
    use super::*;

    /// A pod whose mounters are this program, and who takes requests of this user alone.
    fn many(folder: &tempfile::TempDir, user: u32, max: usize) -> Many {
        Many::new(Config {
            comm: Comm::at(folder.path()),
            state_directory: folder.path().join("no such directory"),
            cache_directory: folder.path().join("cache"),
            program: "/bin/true".into(),
            args: Vec::new(),
            sources_max: max,
            among: Among { node: user, share: None },
        })
    }

    fn asked(many: &Many, text: &str) -> Option<Answer> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        io::Write::write_all(&mut &ours, text.as_bytes()).unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        many.serve(&theirs);
        drop(theirs);
        message::read_answer(&ours, ASKED_WITHIN).unwrap()
    }

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn a_source_has_one_mounter_and_one_too_many_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let many = many(&folder, own(), 2);
        for name in ["sh-1", "sh-2", "sh-1"] {
            assert_eq!(asked(&many, &format!(r#"{{"source":"{name}"}}"#)), Some(Answer::Ready), "{name}");
        }
        assert_eq!(many.mounters.lock().running.len(), 2);
        let Some(Answer::Failed { error }) = asked(&many, r#"{"source":"sh-3"}"#) else { panic!() };
        assert!(error.contains("shared.maxVolumes"), "{error}");
        assert!(!folder.path().join("sh-3").exists());
    }

    #[test]
    fn a_request_of_another_user_begins_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let many = many(&folder, own() + 1, 2);
        assert_eq!(asked(&many, r#"{"source":"sh-1"}"#), None);
        assert!(!many.serves() && !folder.path().join("sh-1").exists());
        let Some(Answer::Failed { error }) = asked(&self::many(&folder, own(), 2), r#"{"source":"../x"}"#)
        else {
            panic!()
        };
        assert!(error.contains("is not the name of a source"), "{error}");
    }

    #[test]
    fn a_source_that_ends_has_no_second_mounter_before_it_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let many = many(&folder, own(), 2);
        assert_eq!(many.begin("sh-1"), Ok(()));
        let comm = Comm::at(folder.path()).of_source("sh-1");
        std::fs::write(comm.exit(), "").unwrap();
        assert!(many.begin("sh-1").unwrap_err().contains("still ends"));
        many.mounters.lock().running.clear();
        std::fs::write(comm.error(), "of the mount before").unwrap();
        assert_eq!(many.begin("sh-1"), Ok(()));
        assert!(!comm.exit().exists() && !comm.error().exists(), "nothing is left of the earlier one");
    }

    #[test]
    fn an_engine_that_does_not_end_stops_no_mount_of_another_source() {
        let folder = tempfile::tempdir().unwrap();
        let many = many(&folder, own(), 2);
        many.mounters.lock().left = stuck("sh-1");
        assert_eq!((many.begin("sh-2"), many.begin("sh-1")), (Ok(()), Ok(())));
        let mut mounters = many.mounters.lock();
        assert_eq!(mounters.running.keys().collect::<Vec<_>>(), ["sh-2"]);
        assert_eq!(
            mounters.waiting.iter().collect::<Vec<_>>(),
            ["sh-1"],
            "two engines would have one directory"
        );
        drop(std::mem::take(&mut mounters.waiting));
        drop(mounters);
        // The node gave it up: it takes another name meanwhile.
        let comm = Comm::at(folder.path()).of_source("sh-1");
        std::fs::create_dir(comm.directory()).unwrap();
        std::fs::write(comm.exit(), "").unwrap();
        assert!(many.begin("sh-1").unwrap_err().contains("still ends"));
        assert!(comm.exit().exists(), "its directory stays as long");
    }

    /// A pod whose mounters run this shell script.
    fn many_of_shells(folder: &tempfile::TempDir, script: &str) -> Many {
        let mut many = many(folder, own(), 2);
        many.config.program = "/bin/sh".into();
        many.config.args = vec!["-c".into(), script.into()];
        many
    }

    fn mounter_of(many: &Many, source: &str) -> Option<Pid> {
        many.mounters.lock().running.get(source).map(|of| of.pid)
    }

    /// Waits for the end of a child, and leaves its exit status. `false`: this process has no such child, or has it no more.
    fn ends(child: Pid) -> bool {
        waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_ok()
    }

    fn killed(child: Pid) {
        kill_process(child, Signal::KILL).unwrap();
        assert!(ends(child));
    }

    // Each of these two tests takes all exit statuses of its process, so it needs one of its own.

    #[test]
    #[expect(clippy::zombie_processes, reason = "`reap` waits for them")]
    fn ended_children_are_reaped_and_only_a_mounters_end_counts() {
        isolated(|| {
            let folder = tempfile::tempdir().unwrap();
            let many = many_of_shells(&folder, "exec sleep 600");
            many.begin("sh-1").unwrap();
            let mounter = mounter_of(&many, "sh-1").unwrap();
            let others = [0, 7].map(|code| {
                let child = Command::new("/bin/sh").args(["-c", &format!("exit {code}")]).spawn().unwrap();
                Pid::from_child(&child)
            });
            assert_eq!(others.map(ends), [true, true]);
            many.reap();
            assert_eq!(others.map(ends), [false, false], "one signal may stand for several ends");
            assert_eq!(mounter_of(&many, "sh-1"), Some(mounter));
            assert!(many.mounters.lock().deaths.is_empty());

            killed(mounter);
            many.reap();
            let next = mounter_of(&many, "sh-1").unwrap();
            assert!(next != mounter && !ends(mounter));
            let comm = Comm::at(folder.path()).of_source("sh-1");
            std::fs::write(comm.exit(), "").unwrap();
            killed(next);
            many.reap();
            assert!(!many.serves() && !comm.directory().exists() && !ends(next));
        });
    }

    #[test]
    fn a_dead_mounters_engine_is_reaped_before_the_next_mounter_begins() {
        isolated(|| {
            // Like the first process of a container, this one inherits what others leave.
            rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let noted = folder.path().join("engine");
            let note = noted.display();
            let script = format!("sleep 600 & echo $! >{note}.new; mv {note}.new {note}; wait");
            let many = many_of_shells(&folder, &script);
            many.begin("sh-1").unwrap();
            testkit::until("its engine runs", || noted.exists());
            let engine = std::fs::read_to_string(&noted).unwrap().trim().parse().unwrap();
            let engine = Pid::from_raw(engine).unwrap();
            killed(mounter_of(&many, "sh-1").unwrap());
            many.reap();
            assert_eq!(mounter_of(&many, "sh-1"), None, "two engines would have one directory");
            assert!(ends(engine), "it is killed");
            std::fs::remove_file(&noted).unwrap();
            many.reap();
            assert!(!ends(engine));
            let next = mounter_of(&many, "sh-1").expect("a mounter");
            // Nothing stays behind.
            testkit::until("its engine runs", || noted.exists());
            let engine = std::fs::read_to_string(&noted).unwrap().trim().parse().unwrap();
            killed(next);
            killed(Pid::from_raw(engine).unwrap());
        });
    }

    #[test]
    fn after_a_restart_sources_in_use_have_mounters_and_others_are_gone() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["sh-1", "sh-2", "not-ours"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(Comm::at(folder.path()).of_source("sh-2").exit(), "").unwrap();
        let many = many(&folder, own(), 2);
        many.begin_again();
        assert_eq!(many.mounters.lock().running.keys().collect::<Vec<_>>(), ["sh-1"]);
        assert!(!folder.path().join("sh-2").exists() && folder.path().join("not-ours").exists());
    }

    #[test]
    fn mounters_that_die_at_once_are_followed_four_times_in_a_row() {
        let mut mounters = Mounters::default();
        let mut follows = |lived| mounters.may_follow("sh-1", lived);
        let soon = [Duration::ZERO; 5].map(&mut follows);
        assert_eq!(soon, [true, true, true, true, false]);
        assert!(follows(WELL_AFTER) && follows(Duration::ZERO), "one that was well begins a new series");
    }

    #[test]
    fn the_node_hears_whether_the_pod_has_a_disk_for_caches() {
        let folder = tempfile::tempdir().unwrap();
        let (many, file) = (many(&folder, own(), 2), Comm::at(folder.path()).engines_cache());
        many.tell_of_cache().unwrap();
        assert!(!file.exists());
        std::fs::create_dir(folder.path().join("cache")).unwrap();
        many.tell_of_cache().unwrap();
        assert!(file.exists());
        // The chart took it away, and the container starts anew.
        std::fs::remove_dir(folder.path().join("cache")).unwrap();
        many.tell_of_cache().unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn a_parent_is_read_behind_any_name() {
        assert_eq!(parent("7 (mount-s3) S 12 7 7 0"), Some(12));
        assert_eq!(parent("7 (a) R 1 (b) Z 34 7"), Some(34));
        assert_eq!(parent("7 (half"), None);
    }
}
