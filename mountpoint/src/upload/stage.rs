//! The stages of a file that is being written, the events, and the transition for each pair. Pure: one table.
//!
//! Enters: an event from the writer (bytes, a closed descriptor, fsync), from newcomers (another open, the removal of the name, the end of
//! the mount) or from the upload itself. Leaves: the next stage, and the caller's next action.
//!
//! The file is stored by fsync, by the release of the last descriptor, or by a close that completes it (see [`Closer`]), and by nothing
//! else. Another open never stores the file, and never stops the writer.

/// The stage of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The file accepts bytes.
    Open {
        /// Whether a descriptor was closed since the last byte. It may have been the last one.
        closed: bool,
    },
    /// The file waits for its last request and accepts no more bytes. It can still be aborted.
    Finishing {
        /// Whether the last descriptor is closed.
        released: bool,
    },
    /// The request that makes the object visible is in flight: only the store's answer decides.
    Committing {
        /// Whether the last descriptor is closed.
        released: bool,
    },
    /// The object is stored.
    Stored {
        /// Whether the tree of names has the object.
        settled: bool,
    },
    /// The upload failed: no object is made, and every call returns the error.
    Failed {
        /// Whether the tree of names has the result.
        settled: bool,
    },
}

/// An event in the life of a written file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write at the right offset.
    Write,
    /// A descriptor was closed.
    Close {
        /// The value of [`Closer::completes`].
        completes: bool,
    },
    /// An fsync.
    Sync,
    /// The release of the last descriptor.
    Release,
    /// Another open of the file.
    Open,
    /// The removal of the file's name.
    Unlink,
    /// The end of the mount.
    End {
        /// Whether the file system is unmounted: no release comes any more.
        unmounted: bool,
    },
    /// The request that makes the object visible is about to be sent.
    Commit,
    /// The store has the object.
    Keep,
    /// The store does not have the object, or its answer is lost.
    Lose,
    /// A step failed, or the upload is aborted.
    Fail,
    /// The result is about to be entered into the tree of names.
    Settle,
}

/// The next action of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The event needs no further action.
    Done,
    /// The file begins to be stored: wait for the result.
    Store,
    /// Wait for the result, which is known or will come.
    Outcome,
    /// A release or a write may come at any moment: wait briefly for the next event, and try again.
    Moment,
    /// Refused: the file is being written.
    Written,
    /// Refused: the file accepts no more bytes.
    Finished,
    /// Refused: the event comes too late, or a second time.
    No,
    /// Abort the upload.
    GiveUp,
}

impl Stage {
    /// The stage of a newly opened file.
    pub const NEW: Self = Self::Open { closed: false };

    /// The next stage and the decision after an event.
    pub fn on(self, event: Event) -> (Self, Decision) {
        use Decision::{Done, Finished, GiveUp, Moment, No, Outcome, Store, Written};
        use Event as E;
        use Stage::{Committing, Failed, Finishing, Open, Stored};
        let ended = matches!(self, Stored { .. } | Failed { .. });
        match (self, event) {
            // Bytes.
            (Open { .. }, E::Write) => (Open { closed: false }, Done),
            (Finishing { .. } | Committing { .. } | Stored { .. }, E::Write) => (self, Finished),
            (Failed { .. }, E::Write) => (self, Outcome),

            // Events that make an object from the file.
            (Open { .. }, E::Close { completes: true } | E::Sync) => (Finishing { released: false }, Store),
            (Open { .. }, E::Close { completes: false }) => (Open { closed: true }, Done),
            (Finishing { .. } | Committing { .. } | Stored { .. }, E::Close { completes: false }) => {
                (self, Done)
            }
            (_, E::Close { .. } | E::Sync) => (self, Outcome),
            (Open { .. }, E::Release) => (Finishing { released: true }, Store),
            (Finishing { .. }, E::Release) => (Finishing { released: true }, Outcome),
            (Committing { .. }, E::Release) => (Committing { released: true }, Outcome),
            (_, E::Release) => (self, Outcome),

            // Newcomers, and the end.
            (Open { closed: true }, E::Open | E::Unlink) => (self, Moment),
            (Open { closed: false }, E::Open | E::Unlink) => (self, Written),
            (Finishing { released: false } | Committing { released: false }, E::Unlink) => (self, Written),
            (Finishing { .. }, E::Unlink) => (self, GiveUp),
            (_, E::Open | E::Unlink) => (self, Outcome),
            (Open { closed: true }, E::End { unmounted: true }) => (Finishing { released: true }, Store),
            (Open { closed: true }, E::End { unmounted: false }) => (self, Moment),
            (Open { .. }, E::End { .. }) => (self, GiveUp),
            (_, E::End { .. }) => (self, Outcome),

            // The upload itself.
            (Finishing { released }, E::Commit) => (Committing { released }, Done),
            (Committing { .. }, E::Keep) => (Stored { settled: false }, Done),
            (Committing { .. }, E::Lose) => (Failed { settled: false }, Done),
            (Open { .. } | Finishing { .. }, E::Fail | E::Lose) => (Failed { settled: false }, Done),
            (_, E::Commit | E::Keep | E::Lose | E::Fail) => (self, No),
            (Stored { settled: false }, E::Settle) => (Stored { settled: true }, Done),
            (Failed { settled: false }, E::Settle) => (Failed { settled: true }, Done),
            (_, E::Settle) => {
                debug_assert!(ended, "nothing is reported before the end");
                (self, No)
            }
        }
    }

    /// Whether a caller with [`Decision::Moment`] keeps waiting.
    pub(super) fn is_still_closed(self) -> bool {
        matches!(self, Self::Open { closed: true })
    }
}

/// Facts about the process that closes a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Closer {
    /// Whether the process opened the file, and has had it open since then.
    pub is_opener: bool,
    /// Whether the process has another descriptor of the file; `None` if the engine can't find out.
    pub holds_another: Option<bool>,
    /// Whether the last bytes came from another process, which still has the file open.
    pub another_writes: bool,
}

impl Closer {
    /// Whether the close of a descriptor completes a file of this many bytes, so that close(2) reports the result. The opener must close
    /// its last descriptor, after at least one byte. Four kinds of closes do not complete the file: before the first byte (shells open,
    /// duplicate, and close the first descriptor); of an inherited descriptor; of a duplicate (shells redirect a builtin this way); and
    /// while a child writes (programs open the output of another program, start it, and close). If the engine can't find out, the first
    /// close completes the file, as with AWS's mount-s3.
    pub fn completes(self, written: u64) -> bool {
        written > 0 && self.is_opener && self.holds_another != Some(true) && !self.another_writes
    }

    /// Whether the opener has no descriptor left, after a close that does not complete the file. Another process may then get its PID.
    pub fn leaves(self) -> bool {
        self.is_opener && self.holds_another == Some(false)
    }
}

#[cfg(test)]
mod tests;
