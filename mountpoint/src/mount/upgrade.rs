//! The upgrade of a mount in place, put together: the new program checks the journal, writers finish, the gate holds requests, and this
//! process ends.
//!
//! A confined engine executes nothing. Its helper has the journal checked, and the engine ends with a status at which the service
//! manager starts the installed program. In a Mountpoint Pod the mounter is the manager, and ends with the engine.

use std::convert::Infallible;
use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::broker;
use crate::clock::Clock;
use crate::fs::FileSystem;
use crate::fuse::Requests;
use crate::handover::Handover;
use crate::outlive::Journal;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The answer to an upgrade of a mount that ends with its process.
pub(super) const UNSUPERVISED: &str = "this mount ends with its process: only one with --supervised, whose device systemd keeps, can be handed to another program";

/// The answer to an upgrade of an engine in a sandbox.
pub(super) const CONFINED: &str = "this engine is in a sandbox (--sandbox), which starts no program, and its unit names no status for a restart \
     (MOUNT_S3_RESTART_STATUS, RestartForceExitStatus=): unmount, and mount with the new program";

/// Longest wait for the answers to requests from before the gate closed; the kernel sends unanswered ones to the next engine. Doubling it
/// lets slower stores answer them, and doubles the longest pause.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// Interval between counts of requests while the gate is closed.
const COUNT_AGAIN: Duration = Duration::from_millis(2);
/// Interval between checks for writers.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The most keys that a refusal names.
const NAMES_MAX: usize = 5;

/// The way to the next engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// This process executes the guard, which takes the mount back if the new program does not serve.
    Guard,
    /// This process ends with this status, and the service manager starts the installed program.
    Restart(u8),
    /// This process ends with this status, and its mounter leaves the mount to the next container, whose program is not here yet.
    Leave(u8),
}

/// The parts of a mount that an upgrade needs.
#[derive(Debug)]
pub(super) struct Upgrade {
    way: Way,
    fs: Arc<FileSystem>,
    requests: Requests,
    journal: Arc<Journal>,
    clock: Clock,
    /// Writes the queued lines of the log.
    flush_log: fn(),
    is_under_way: AtomicBool,
}

impl Upgrade {
    pub(super) fn new(
        way: Way,
        fs: Arc<FileSystem>,
        requests: Requests,
        journal: Arc<Journal>,
        clock: Clock,
        flush_log: fn(),
    ) -> Self {
        Self { way, fs, requests, journal, clock, flush_log, is_under_way: AtomicBool::new(false) }
    }

    /// Replaces the program of this process. Returns only if that failed, with the reason.
    pub(super) async fn run(&self, within: Duration) -> anyhow::Error {
        if self.is_under_way.swap(true, SeqCst) {
            return anyhow::anyhow!("an upgrade of this mount is under way");
        }
        let Err(error) = self.hand_over(within).await;
        self.is_under_way.store(false, SeqCst);
        tracing::warn!("upgrade: {error:#}");
        error
    }

    async fn hand_over(&self, within: Duration) -> anyhow::Result<Infallible> {
        let until = self.clock.now() + within;
        let handover = Handover::to_installed()?;
        let (way, asked, journal) = (self.way, handover.clone(), self.journal.shared().try_clone_to_owned()?);
        let check = move || match way {
            Way::Guard => asked.check(journal.as_fd()),
            Way::Restart(_) => {
                let broker = broker::of_this_process().context("the helper of the sandbox")?;
                Ok(broker.check(journal.as_fd())?)
            }
            Way::Leave(_) => Ok(()),
        };
        tokio::task::spawn_blocking(check).await.context("asking the new program")??;
        loop {
            let busy = self.busy();
            if busy.is_none() && self.falls_silent().await {
                tracing::info!("leaving the mount to the next engine");
                (self.flush_log)();
                if let Way::Restart(status) | Way::Leave(status) = self.way {
                    std::process::exit(status.into());
                }
                let begun = handover.begin(self.requests.device(), self.journal.shared());
                self.requests.go_on();
                return begun;
            }
            if self.clock.now() >= until {
                let busy = busy.unwrap_or_else(|| "a name is being changed".to_owned());
                bail!("not within {} s: {busy}; the mount goes on as before", within.as_secs());
            }
            self.clock.sleep(LOOK_AGAIN).await;
        }
    }

    /// The reason why the mount can't be handed over now.
    fn busy(&self) -> Option<String> {
        let writing = self.fs.open_files().writing;
        if writing.is_empty() {
            return (self.requests.under_way().changes > 0).then(|| "a name is being changed".to_owned());
        }
        let named: Vec<_> =
            writing.iter().take(NAMES_MAX).map(|file| format!("{:?}", file.key.as_str())).collect();
        let more = writing.len().checked_sub(NAMES_MAX).filter(|more| *more > 0);
        let more = more.map(|more| format!(" and {more} more")).unwrap_or_default();
        Some(format!("open for writing: {}{more}", named.join(", ")))
    }

    /// Holds new requests and waits for the answers to earlier ones. Returns false, and lets requests pass again, if one of them turned out
    /// to write.
    async fn falls_silent(&self) -> bool {
        self.requests.hold();
        let until = self.clock.now() + ANSWERED_WITHIN;
        while self.requests.under_way().all > 0 && self.clock.now() < until {
            self.clock.sleep(COUNT_AGAIN).await;
        }
        let is_silent = self.busy().is_none();
        if !is_silent {
            self.requests.go_on();
        }
        is_silent
    }
}
