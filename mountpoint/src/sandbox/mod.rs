//! The sandbox of an engine that has mounted (`--sandbox`): what it may still do, if a store or a program makes it do what it should not.
//!
//! Enters: the folders that the mount needs, and whether a ring is open. Leaves: a process, with all its threads, that starts no program, has no
//! capability, opens no file but those of its mount, and calls what an engine calls. Nothing here starts the helper that does the rest for it
//! (`broker/`). What is refused answers an error and ends nobody: an engine that misses a call serves on, and its log says so.

mod calls;
mod files;
mod threads;

use std::path::PathBuf;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// The folders that a mount needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folders {
    /// Folders in which files are made, changed and removed.
    pub written: Vec<PathBuf>,
    /// Folders and files that are read later on.
    pub read: Vec<PathBuf>,
}

/// Rings of io_uring, whose operations no filter of system calls sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rings {
    /// Open rings go on, and none is made.
    Open,
    /// One may still be made: the device was handed over, and its requests come by rings that the first request asks for.
    Made,
}

/// A part of the sandbox that this system lacks, and why.
#[derive(Debug, thiserror::Error)]
pub enum Lacking {
    /// Memory of the process can be read by others of its user, or lands in a core file.
    #[error("dumps of memory: {0}")]
    Dumps(std::io::Error),
    /// Files.
    #[error("landlock, which confines files (Linux 5.19): {0}")]
    Files(String),
    /// Privileges.
    #[error("privileges: {0}")]
    Privileges(std::io::Error),
    /// System calls.
    #[error("seccomp, which confines system calls: {0}")]
    Calls(String),
}

/// Confines this process, all its threads. Returns what it could not do; the rest holds.
#[must_use]
pub fn enter(folders: &Folders, rings: Rings) -> Vec<Lacking> {
    let mut lacking = Vec::new();
    if let Err(error) = no_dumps() {
        lacking.push(Lacking::Dumps(error));
    }
    let ruleset = match files::ruleset(folders) {
        Ok(ruleset) => Some(ruleset),
        Err(why) => {
            lacking.push(Lacking::Files(why));
            None
        }
    };
    if let Err(error) = threads::confine_all(ruleset.as_ref()) {
        lacking.push(Lacking::Privileges(error));
    }
    // Last: it refuses the calls that the steps before are made of.
    if let Err(why) = calls::confine(rings) {
        lacking.push(Lacking::Calls(why));
    }
    lacking
}

/// Keeps the memory of this process from core files, and from other processes of its user.
///
/// # Errors
/// The kernel refuses.
pub fn no_dumps() -> std::io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

#[cfg(test)]
mod tests;
