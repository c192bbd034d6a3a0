//! The mounter's part in an upgrade in place. Enters: the node's request in the comm directory. Leaves: whether an engine that left its
//! mount ends this container, and how long the next container waits for the new image.
//!
//! The container whose engine left the mount writes `mount.left`. The next one still has the old image, since the kubelet starts it at
//! once: it renames that file to `mount.waits` and takes no mount. The reconciler sees it and changes the image. The container after it
//! finds `mount.waits` and goes on with the mount, with either image. A container that waited in vain ends without the mount: its end gives
//! the pod another version, so a late change of the image fails.
//!
//! Never here: a process, a descriptor.

use std::thread;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;

use super::{LOOK_IN_PAUSE, exit_announced, write_whole};
use crate::contract::comm::Comm;
use crate::contract::restart::RESTART_WITHIN;
use crate::contract::upgrade::{HandingOver, SERVES_WITHIN};
use crate::error::{Error, Result};

/// Time that the old image needs to go on with a mount that the new image refused. Doubled, the new image has less time on a node whose
/// kubelet starts it slowly.
const BEFORE_NEEDS: Duration = Duration::from_secs(15);

/// Whether the node asks to leave the mount to the next container.
pub(super) fn is_asked(comm: &Comm) -> bool {
    let text = std::fs::read_to_string(comm.handover()).unwrap_or_default();
    HandingOver::read(&text, Timestamp::now()).is_some()
}

/// Records that the next container gets the mount; `false` if the file can't be written.
pub(super) fn leave(comm: &Comm) -> bool {
    let noted = write_whole(comm, &comm.left(), "the mount is left to the next container");
    noted.inspect_err(|error| tracing::error!("writing {}: {error}", comm.left().display())).is_ok()
}

/// The time by which the new image's engine must serve. After it the container ends, and the reconciler restores the old image. The holder
/// keeps the mount for [`RESTART_WITHIN`] from the death of the old engine.
pub(super) fn serves_until(starts: Instant, died: Instant) -> Instant {
    (starts + SERVES_WITHIN).min(died + RESTART_WITHIN.saturating_sub(BEFORE_NEEDS))
}

/// Waits for the kubelet to end this container, if it is the first one after an engine that left its mount.
///
/// # Errors
/// The kubelet did not end it in time: the container must end itself, and the next one goes on.
pub(super) fn wait_for_image(comm: &Comm, within: Duration) -> Result<()> {
    if std::fs::rename(comm.left(), comm.waits()).is_err() {
        let _ = std::fs::remove_file(comm.waits());
        return Ok(());
    }
    tracing::info!("waiting for another image of this pod, at most {within:?}");
    let until = Instant::now() + within;
    while Instant::now() < until {
        if exit_announced(comm) {
            return Ok(());
        }
        thread::sleep(LOOK_IN_PAUSE);
    }
    Err(Error::internal("no other image came: the next container goes on with the mount"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_engine_has_ten_seconds_and_leaves_time_for_the_one_before() {
        let died = Instant::now();
        let until =
            |second| serves_until(died + Duration::from_secs(second), died).duration_since(died).as_secs();
        assert_eq!([0, 5, 35, 40].map(until), [10, 15, 45, 45]);
    }
}
