//! The first process of an engines pod (`--many`). Enters: the name of a source, from the node. Leaves: a mounter for it, a separate
//! process with its own directory, which ends alone. The directory is removed when the source is unmounted.
//!
//! A restarted container begins the mounters of all directories that it finds: each then waits for its mount.
//!
//! Never here: a device, a credential, an engine.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use mountpoint::sync::Mutex;
use rustix::process::{Pid, WaitOptions};

use super::{Among, answer, exit_announced};
use crate::contract::comm::Comm;
use crate::contract::engines_pod::{self, is_source};
use crate::contract::message::{self, Answer};
use crate::error::{Error, Result};

/// Longest time for a node's request; after it the request fails. Doubled, a node that hangs delays the next one twice as long.
const ASKED_WITHIN: Duration = Duration::from_secs(5);

/// The configuration of the process.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory that is shared with the node. Each source has a subdirectory.
    pub comm: Comm,
    /// The directory that outlives the container, if the pod has one. Each source has a subdirectory.
    pub state_directory: PathBuf,
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
    running: Mutex<BTreeMap<String, Pid>>,
}

impl Many {
    /// A process without mounters.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, running: Mutex::default() }
    }

    /// Whether any mounter runs.
    pub fn serves(&self) -> bool {
        !self.running.lock().is_empty()
    }

    /// Begins a mounter for each source of an earlier container, then for each source that the node names.
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

    /// Reaps all ended children: mounters, and processes that this one inherited, such as the helper of a dead engine.
    pub fn reap(&self) {
        let mut running = self.running.lock();
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let Some(source) = running.iter().find(|(_, of)| **of == pid).map(|(source, _)| source.clone())
            else {
                continue;
            };
            running.remove(&source);
            if exit_announced(&self.config.comm.of_source(&source)) {
                tracing::info!(source, "the source is unmounted");
                self.clean_up(&source);
            } else {
                tracing::warn!(source, ?status, "a mounter has ended; the node begins another one");
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

    /// Begins a mounter, unless the source has one already.
    fn begin(&self, source: &str) -> std::result::Result<(), String> {
        let failed = |what: &str, error: io::Error| format!("{what} of {source}: {error}");
        let mut running = self.running.lock();
        let ends = exit_announced(&self.config.comm.of_source(source));
        match running.contains_key(source) {
            true if ends => return Err(format!("the engine of {source} still ends")),
            true => return Ok(()),
            false if ends => self.clean_up(source),
            false => {}
        }
        let max = self.config.sources_max;
        if running.len() >= max {
            return Err(format!(
                "the engines pod serves {max} sources, and no more have room: shared.maxVolumes of the chart"
            ));
        }
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
        running.insert(source.to_owned(), Pid::from_child(&child));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod whose mounters are this program, and who takes requests of this user alone.
    fn many(folder: &tempfile::TempDir, user: u32, max: usize) -> Many {
        Many::new(Config {
            comm: Comm::at(folder.path()),
            state_directory: folder.path().join("no such directory"),
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
        assert_eq!(many.running.lock().len(), 2);
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
        many.running.lock().clear();
        std::fs::write(comm.error(), "of the mount before").unwrap();
        assert_eq!(many.begin("sh-1"), Ok(()));
        assert!(!comm.exit().exists() && !comm.error().exists(), "nothing is left of the earlier one");
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
        assert_eq!(many.running.lock().keys().collect::<Vec<_>>(), ["sh-1"]);
        assert!(!folder.path().join("sh-2").exists() && folder.path().join("not-ours").exists());
    }
}
