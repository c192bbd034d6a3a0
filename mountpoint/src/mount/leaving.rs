//! The end of an engine after a signal, where another mount namespace has a copy of the mount: a container or `unshare --mount` that
//! began during the mount. The copy keeps the connection, and with it the engine.
//!
//! Enters: the open files, checked at intervals. Leaves: the moment from which no program needs the engine. The end waits for files that
//! are open, or are being stored, as long as it takes.

use std::time::{Duration, Instant};

use super::outliving::Ending;
use super::{GOODBYE_WITHIN, Mounted};
use crate::clock::Clock;
use crate::fs::{FileSystem, MountEnd};
use crate::fuse::Unmounter;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};
use crate::telemetry::Told;

/// Time without an open file after which the engine ends. Doubling it spares a program in the other namespace that pauses between two
/// files, and lengthens the end.
const UNUSED_FOR: Duration = Duration::from_secs(10);
/// Interval between checks of the open files. Doubling it halves the checks, and delays the end by as much.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The state of a mount that a signal has unmounted, at one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Whether this process's own table of mounts is known to lack the mount.
    pub(super) is_gone_here: bool,
    /// Number of files and directories that are open or being stored.
    pub(super) open: usize,
    /// Number of handles given out so far: a handle that opened and closed between two checks counts as use, too.
    pub(super) given: u64,
}

/// The time since which nothing is open.
#[derive(Debug, Default)]
struct Unused {
    since: Option<(Instant, u64)>,
}

impl Unused {
    /// Takes the state at a check. Returns whether no program needs the engine any more.
    fn look(&mut self, now: Instant, look: Look) -> bool {
        if !look.is_gone_here || look.open > 0 {
            self.since = None;
            return false;
        }
        match self.since {
            Some((since, given)) if given == look.given => now.duration_since(since) >= UNUSED_FOR,
            _ => {
                self.since = Some((now, look.given));
                false
            }
        }
    }
}

/// The reports of a mount, until its end takes them.
pub(super) type Words = Arc<Mutex<Option<Told>>>;

/// Ends the engine after a signal once no program needs it; from [`Mounted::leaver`].
#[derive(Clone, Debug)]
pub struct Leaver {
    fs: Arc<FileSystem>,
    unmounter: Unmounter,
    told: Words,
    ending: Option<Ending>,
    clock: Clock,
    runtime: tokio::runtime::Handle,
    has_begun: Arc<AtomicBool>,
}

impl Leaver {
    pub(super) fn new(mounted: &Mounted) -> Self {
        Self {
            fs: Arc::clone(&mounted.fs),
            unmounter: mounted.unmounter(),
            told: Arc::clone(&mounted.told),
            ending: mounted.ending.clone(),
            clock: mounted.clock.clone(),
            runtime: mounted.runtime.handle().clone(),
            has_begun: Arc::default(),
        }
    }

    /// Begins the checks; later calls do nothing. When no program needs the engine any more, the mount logs its end, and `exit` ends the
    /// process. A connection that ends earlier ends the process as usual.
    pub fn leave_once_unused(&self, exit: fn()) {
        if self.has_begun.swap(true, Relaxed) {
            return;
        }
        let leaver = self.clone();
        self.runtime.spawn(async move {
            unused(&leaver.clock, || leaver.look()).await;
            tracing::warn!(
                "another mount namespace keeps this mount, and nothing has been open there for {} s: the engine ends, and the mount there is dead",
                UNUSED_FOR.as_secs()
            );
            leaver.fs.end(GOODBYE_WITHIN, MountEnd::Left).await;
            if let Some(ending) = &leaver.ending {
                ending.say();
            }
            let told = leaver.told.lock().take();
            if let Some(told) = told {
                told.last_words().await;
            }
            exit();
        });
    }

    fn look(&self) -> Look {
        let (open, given) = self.fs.handles();
        Look { is_gone_here: self.unmounter.is_gone(), open, given }
    }
}

/// Waits until nothing has been open for [`UNUSED_FOR`], according to `look`.
pub(super) async fn unused(clock: &Clock, look: impl Fn() -> Look) {
    let mut unused = Unused::default();
    while !unused.look(clock.now(), look()) {
        clock.sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_needed_until_nothing_has_been_open_for_10_s() {
        let free = Look { is_gone_here: true, open: 0, given: 7 };
        let busy = Look { open: 1, given: 8, ..free };
        let between = Look { given: 8, ..free };
        let mounted = Look { is_gone_here: false, ..free };
        // Checks with their times in seconds, and whether the engine may end.
        for (looks, ends) in [
            (vec![(0, free), (9, free), (10, free)], Some(10)),
            (vec![(0, busy), (600, busy)], None),
            (vec![(0, free), (9, busy), (600, between), (609, between), (610, between)], Some(610)),
            (vec![(0, free), (9, between), (18, between), (19, between)], Some(19)),
            (vec![(0, mounted), (600, mounted)], None),
            (vec![(0, free), (9, mounted), (12, free), (21, free), (22, free)], Some(22)),
        ] {
            let (mut unused, start) = (Unused::default(), Instant::now());
            let ended = looks.iter().find(|(at, look)| unused.look(start + Duration::from_secs(*at), *look));
            assert_eq!(ended.map(|(at, _)| *at), ends, "{looks:?}");
        }
    }
}
