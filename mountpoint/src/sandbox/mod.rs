//! The sandbox of a mounted engine (`--sandbox`): limits the harm if a store or a program takes the engine over.
//!
//! Enters: the folders that the mount needs, and whether a ring is open. Leaves: a process, with all its threads, that starts no program,
//! has no capability, opens only the files of its mount, and makes only an engine's system calls. The helper (`broker/`) does the rest
//! for the engine; this room does not start it. A refused call fails and ends no process: an engine that needs it serves on, and its log
//! names the refusal.

mod calls;
mod files;
mod threads;

use std::path::PathBuf;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// The folders that a mount needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folders {
    /// Folders in which the engine makes, changes and removes files.
    pub written: Vec<PathBuf>,
    /// Folders and files that the engine reads later.
    pub read: Vec<PathBuf>,
}

/// The rings of io_uring that an engine may have. Their operations bypass the filter of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rings {
    /// The open rings stay; no more are made.
    Open,
    /// The engine may still make rings: another process handed the device over, and the first request decides whether requests come by
    /// rings.
    Made,
}

/// A part of the sandbox that this system lacks, with the reason.
#[derive(Debug, thiserror::Error)]
pub enum Lacking {
    /// Other processes of the user can read the engine's memory, or a core file may contain it.
    #[error("dumps of memory: {0}")]
    Dumps(std::io::Error),
    /// The system does not confine files.
    #[error("landlock, which confines files (Linux 5.19): {0}")]
    Files(String),
    /// The system does not take privileges away.
    #[error("privileges: {0}")]
    Privileges(std::io::Error),
    /// The system does not confine system calls.
    #[error("seccomp, which confines system calls: {0}")]
    Calls(String),
}

/// Confines all threads of this process. Returns the parts that failed; the others are in force.
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
    // The filters come last: they refuse the calls of the steps before.
    if let Err(why) = calls::confine(rings) {
        lacking.push(Lacking::Calls(why));
    }
    lacking
}

/// Keeps the memory of this process out of core files, and away from other processes of its user.
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
