//! The journal of a mount that outlives its engine: what a new engine must know to serve the numbers that the kernel holds.
//!
//! Enters: directories that the kernel refers to, files and directories that it has open, numbers that are given out. Leaves: the same
//! facts, to the next engine after this one was killed. The journal is a table in a memfd that another process holds. This room does not
//! know what a number means for names or reads, and holds no byte of a file. Without a holder there is no journal.
//!
//! Files that the kernel knows but does not have open are not recorded: after ESTALE the kernel looks their path up anew, once, by itself.

#[cfg(feature = "testing")]
pub mod fuzzing;
mod header;
mod record;
mod restored;
mod table;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

pub use header::{Agreed, Greeting, Identity, Marks, Wished};
pub use record::{Directory, File, Listing, Place, Record, Standing};
pub use restored::Restored;

use foldhash::HashMap;

use crate::sync::Mutex;
use header::Again;
use record::Subject;
use table::Table;

/// Numbers that are reserved at once. Doubling it halves the stores for them, and loses twice as many of 2^62 numbers at a crash.
const BLOCK: u64 = 65_536;

/// The number of repetitions after which a request is answered EIO, so that it can't kill every engine.
const AGAIN_REFUSED: u32 = 3;

/// How long a repeated request counts. Doubling it also catches requests that kill an engine more slowly.
const AGAIN_WITHIN: Duration = Duration::from_secs(60);

/// Bit of a request's number: the kernel has sent it before.
const RESENT: u64 = 1 << 63;

/// The reason why a journal can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The descriptor is not a memfd sealed against shrinking.
    #[error(
        "it is not a memfd sealed with F_SEAL_SHRINK alone: the holder must pass the descriptor that this program gave it"
    )]
    Unsealed,
    /// The file has another length than a journal.
    #[error("it has {0} bytes, which is not the length of a journal")]
    Length(u64),
    /// The file does not begin as a journal.
    #[error("it is not a journal of mount-s3")]
    Foreign,
    /// Another release wrote the journal.
    #[error("it has format {0}, and this program knows format {VERSION}: go back to the program that wrote it, or unmount", VERSION = header::VERSION)]
    Version(u32),
    /// A part of the journal's header is torn.
    #[error("its {0} can't be read: unmount and mount anew")]
    Damaged(&'static str),
    /// A living process has locked the journal.
    #[error("another engine serves this mount: end that first")]
    InUse,
    /// The flags name another mount than the journal.
    #[error("it belongs to {was}, and the flags name {is}: use the flags of before, or unmount")]
    Another {
        /// The mount of the journal.
        was: String,
        /// The mount of the flags.
        is: String,
    },
    /// The device belongs to another mount than the journal.
    #[error(
        "the device that was passed with it belongs to another mount: the holder must pass both descriptors of one mount"
    )]
    AnotherDevice,
    /// The kernel can't send requests again.
    #[error("the kernel can't send requests again (FUSE_NOTIFY_RESEND needs Linux 6.9): the mount ends")]
    NoResend,
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A range of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Numbers of inodes.
    Inodes,
    /// Numbers of open files and directories.
    Handles,
}

/// A handle that an earlier engine gave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    /// An open file.
    File(u64),
    /// An open directory.
    Listing(u64),
}

/// The journal of one mount, locked by this process.
#[derive(Debug)]
pub struct Journal {
    table: Table,
    /// The descriptor for the holder. Its lock is not ours.
    shared: OwnedFd,
    identity: Identity,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    agreed: Agreed,
    marks: Marks,
    again: Again,
    /// Handles of earlier engines by the request that they answer. The kernel gives no two requests of a mount the same number.
    asked: HashMap<u64, Handle>,
}

impl Journal {
    /// A new, empty journal.
    ///
    /// # Errors
    /// The kernel refuses a memfd.
    pub fn create(identity: Identity) -> Result<Self, Refused> {
        let shared = table::new_file()?;
        let table = Table::create(&shared, &identity)?;
        let (agreed, marks) = (Agreed::default(), Marks { inodes: 2, handles: 1 });
        let state = State { agreed, marks, again: Again::new(), asked: HashMap::default() };
        table.store(header::MARKS_AT, &header::encode_marks(state.marks))?;
        table.store(header::AGREED_AT, &header::encode_agreed(state.agreed))?;
        Ok(Self { table, shared, identity, state: Mutex::new(state) })
    }

    /// Takes over the journal of an earlier engine, with its records.
    ///
    /// # Errors
    /// The descriptor is not a journal of ours, or another engine uses it.
    pub fn adopt(shared: OwnedFd) -> Result<(Self, Restored), Refused> {
        let (table, page, records) = Table::open(&shared)?;
        let damaged = |part| Refused::Damaged(part);
        let identity = header::decode_identity(&page).ok_or_else(|| damaged("bucket and prefix"))?;
        let marks = header::decode_marks(&page).ok_or_else(|| damaged("range of numbers"))?;
        let agreed = header::decode_agreed(&page).ok_or_else(|| damaged("greeting"))?;
        let (restored, dropped) = Restored::of(records, marks);
        let again = header::decode_again(&page);
        let state = State { agreed, marks, again, asked: restored.asked() };
        dropped.iter().for_each(|&subject| table.remove(subject));
        if !dropped.is_empty() {
            tracing::warn!("journal: {} records make no sense and are dropped", dropped.len());
        }
        Ok((Self { table, shared, identity, state: Mutex::new(state) }, restored))
    }

    /// The identity of a journal that another engine uses. Locks nothing.
    ///
    /// # Errors
    /// This program could not continue with the journal.
    pub fn examine(shared: &OwnedFd) -> Result<Identity, Refused> {
        let page = table::examine(shared)?;
        header::decode_identity(&page).ok_or(Refused::Damaged("bucket and prefix"))
    }

    /// The descriptor that a holder keeps.
    pub fn shared(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }

    /// The identity of the mount.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The agreement of INIT.
    pub fn agreed(&self) -> Agreed {
        self.state.lock().agreed
    }

    /// Notes the agreements of INIT, and the progress of the greeting.
    ///
    /// # Errors
    /// The system refused the store.
    pub fn agree(&self, agreed: Agreed) -> io::Result<()> {
        self.table.store(header::AGREED_AT, &header::encode_agreed(agreed))?;
        self.state.lock().agreed = agreed;
        Ok(())
    }

    /// The ends of the numbers that earlier engines gave out.
    pub fn marks(&self) -> Marks {
        self.state.lock().marks
    }

    /// Reserves numbers: all below the result may be given out. `needed`: the least number that must be among them.
    pub fn raise(&self, mark: Mark, needed: u64) -> u64 {
        let mut state = self.state.lock();
        let of = match mark {
            Mark::Inodes => &mut state.marks.inodes,
            Mark::Handles => &mut state.marks.handles,
        };
        *of = (*of).max(needed.saturating_add(BLOCK));
        let raised = *of;
        if let Err(error) = self.table.store(header::MARKS_AT, &header::encode_marks(state.marks)) {
            // Without this store a number could be given out twice. Only a broken memfd refuses a store to its first page.
            tracing::error!("journal: setting numbers aside: {error}");
        }
        raised
    }

    /// Writes a record, in place of an earlier one of the same number. Call this before the kernel learns the number.
    pub fn record(&self, record: &Record) {
        self.table.record(record);
    }

    /// Removes the record of a directory that is gone.
    pub fn forget_directory(&self, number: u64) {
        self.table.remove(Subject::Inode(number));
    }

    /// Whether a directory is recorded.
    pub fn has_directory(&self, number: u64) -> bool {
        self.table.has(Subject::Inode(number))
    }

    /// Removes the record of a released file handle.
    pub fn forget_file(&self, handle: u64) {
        self.table.remove(Subject::File(handle));
    }

    /// Removes the record of a released directory handle.
    pub fn forget_listing(&self, handle: u64) {
        self.table.remove(Subject::Listing(handle));
    }

    /// The handle that an earlier engine gave out for this request, which the kernel has sent again: the engine ended before its answer, so the
    /// kernel does not know the handle. `None` at the second call.
    pub fn unanswered(&self, unique: u64) -> Option<Handle> {
        self.state.lock().asked.remove(&Self::first(unique))
    }

    /// The number of a request when the kernel first sent it.
    pub fn first(unique: u64) -> u64 {
        unique & !RESENT
    }

    /// Whether the kernel has sent this request before, to an engine that is gone.
    pub fn is_resent(unique: u64) -> bool {
        unique & RESENT != 0
    }

    /// Counts a repeated request. Returns whether to refuse it, because engine after engine died with it.
    pub fn refuses(&self, unique: u64, now: SystemTime) -> bool {
        let unique = Self::first(unique);
        let second = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut state = self.state.lock();
        state.again.retain(|(_, _, at)| second.saturating_sub(*at) <= AGAIN_WITHIN.as_secs());
        let before = state.again.iter().position(|(other, ..)| *other == unique);
        let count = before.map_or(0, |at| state.again.remove(at).1).saturating_add(1);
        if state.again.len() >= header::AGAIN_MAX {
            state.again.remove(0);
        }
        state.again.push((unique, count, second));
        if let Err(error) = self.table.store(header::AGAIN_AT, &header::encode_again(&state.again)) {
            tracing::warn!("journal: noting a request that was sent again: {error}");
        }
        count >= AGAIN_REFUSED
    }
}

impl Identity {
    /// Whether the flags name the mount of this journal.
    ///
    /// # Errors
    /// They name another.
    pub fn check(&self, bucket: &str, prefix: &str, endpoint: &str) -> Result<(), Refused> {
        let name = |bucket: &str, prefix: &str, endpoint: &str| {
            let at = if endpoint.is_empty() { "AWS" } else { endpoint };
            format!("bucket \"{bucket}\", prefix \"{}\" at {at}", prefix.escape_debug())
        };
        if (self.bucket.as_str(), self.prefix.as_str(), self.endpoint.as_str()) == (bucket, prefix, endpoint)
        {
            return Ok(());
        }
        let was = name(&self.bucket, &self.prefix, &self.endpoint);
        Err(Refused::Another { was, is: name(bucket, prefix, endpoint) })
    }

    /// The time of the mount.
    pub fn mounted(&self) -> SystemTime {
        let since = Duration::from_micros(self.mounted_us);
        SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
