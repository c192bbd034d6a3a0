//! Makes staged files durable: first the bytes, then the record about them.

use std::io;

use super::log::Record;
use super::{Error, Staged};
use crate::sync::Arc;

impl Staged {
    /// Makes all earlier writes durable, so that they outlive a loss of power.
    ///
    /// # Errors
    /// `Disk`: the stage keeps the bytes, since the kernel may have lost some of them, and each later change fails.
    pub async fn sync(self: &Arc<Self>) -> Result<(), Error> {
        let this = Arc::clone(self);
        let synced = self.shared.runtime.spawn_blocking(move || this.sync_now());
        synced.await.map_err(std::io::Error::other)?
    }

    /// Makes the bytes of all earlier writes durable, on a thread that may wait for the disk. They count after a loss of power once the log
    /// is durable, too.
    ///
    /// # Errors
    /// The errors of [`Staged::sync`].
    pub(super) fn sync_bytes(&self) -> Result<(), Error> {
        self.sync_but_the_log().map(drop)
    }

    /// Makes all earlier writes durable, on a thread that may wait for the disk.
    pub(super) fn sync_now(&self) -> Result<(), Error> {
        let facts = match self.sync_but_the_log()? {
            Logged::Already => return Ok(()),
            Logged::Not { facts } => facts,
        };
        self.shared.folder.sync_log()?;
        if let Some(facts) = facts {
            self.state.lock().vouched = Some(facts);
        }
        Ok(())
    }

    /// Makes all earlier writes durable except their record.
    fn sync_but_the_log(&self) -> Result<Logged, Error> {
        let _one_at_a_time = self.syncing.lock();
        let before = {
            let state = self.look();
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            // A mapping that the kernel has of a lent file shows some of its changes only in a sync.
            if !state.image.is_dirty() && state.lent.is_none() {
                return Ok(Logged::Already);
            }
            let (file, is_whole) = (self.number, !state.image.needs_base());
            if !is_whole && state.synced != Some(state.image.generation()) {
                self.shared.folder.append(&[Record::Syncing { file }])?;
            }
            Before {
                generation: state.image.generation(),
                opens: state.opens,
                is_whole,
                is_named: state.is_named,
                is_lent: state.lent.is_some(),
                facts: state.facts,
                is_vouched: is_whole && state.vouched == Some(state.facts),
            }
        };
        if !before.is_lent && self.is_synced() {
            return Ok(if before.is_vouched { Logged::Already } else { Logged::Not { facts: None } });
        }
        if let Err(error) = self.file_for_now().and_then(|file| self.shared.folder.disk().sync_data(&file)) {
            return Err(self.fail(error));
        }
        if before.is_vouched && self.is_vouched_still(&before) {
            return Ok(Logged::Already);
        }
        if !before.is_named {
            self.shared.folder.sync_names(self.names)?;
        }
        let is_noted = self.note_synced(&before)?;
        Ok(Logged::Not { facts: (is_noted && before.is_whole).then_some(before.facts) })
    }

    /// Whether the log on the disk said already, and still says, that the file counts as the disk has it: then it needs no record of this
    /// sync.
    fn is_vouched_still(&self, before: &Before) -> bool {
        let mut state = self.state.lock();
        let is_it = state.vouched == Some(state.facts);
        if is_it {
            state.synced = Some(before.generation);
        }
        is_it
    }

    /// Handles a failed sync. The kernel forgets the failure, and perhaps the bytes: so the file refuses changes and sends from now on,
    /// whether it can be kept or not.
    pub(super) fn fail(&self, error: io::Error) -> Error {
        let error = Error::from(error);
        {
            let mut state = self.state.lock();
            state.error = Some(error.clone());
            if let Err(error) = self.shared.folder.append(&[Record::Failed { file: self.number }]) {
                tracing::debug!(%error, "a failed sync could not be noted in the log of the stage");
            }
        }
        self.keep_failed(&error);
        error
    }

    /// Moves a file whose sync failed to `kept/`, and logs it. Each attempt to send the file tries again.
    pub(super) fn keep_failed(&self, error: &Error) {
        match self.keep_now(&format!("the disk of the stage failed: {error}")) {
            Ok(kept) => tracing::error!(
                "\"{}\" could not be synced to the disk of the stage: {error}; what can be read of it is in {}",
                self.key(),
                kept.display()
            ),
            Err(second) => tracing::error!(
                "\"{}\" could not be synced to the disk of the stage: {error}; it can't be moved to kept/ either: {second}; \
                 it is not stored, and stays in {}",
                self.key(),
                self.shared.folder.path(self.number).display()
            ),
        }
    }

    /// Whether all writes are durable, once the log is.
    pub fn is_synced(&self) -> bool {
        let state = self.look();
        !state.image.is_dirty() || state.synced == Some(state.image.generation())
    }

    /// Whether the file once was durable, in the state of then.
    pub fn was_synced(&self) -> bool {
        self.state.lock().was_synced
    }

    /// Notes that the bytes of that moment are on the disk. Returns whether there is a record of it.
    fn note_synced(&self, before: &Before) -> Result<bool, Error> {
        let mut state = self.state.lock();
        // A program opened and changed the file since: the disk may have a part of the change.
        if state.opens != before.opens || !state.image.is_dirty() {
            return Ok(false);
        }
        // The bucket has the file by now. A record of the sync would make a later mount replace the object by an older state.
        if state.image.has_stored(before.generation) {
            return Ok(false);
        }
        let (file, is_whole) = (self.number, before.is_whole);
        self.shared.folder.append(&[Record::Synced { file, is_whole }])?;
        (state.was_synced, state.is_named, state.synced) = (true, true, Some(before.generation));
        Ok(true)
    }
}

/// Whether the log must be made durable after a sync of the bytes.
enum Logged {
    /// The log on the disk says what counts.
    Already,
    /// `facts`: the number of facts with which the log vouches for the file, once it is durable.
    Not { facts: Option<u64> },
}

/// The state of a file before its bytes go to the disk.
struct Before {
    generation: u64,
    opens: u64,
    is_whole: bool,
    is_named: bool,
    is_lent: bool,
    facts: u64,
    /// Whether the log on the disk says that the file counts as the disk has it.
    is_vouched: bool,
}
