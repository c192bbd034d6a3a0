//! Renames of objects and directories: objects get another key.
//!
//! Enters: an object's key, another key, and the object that may be replaced there. Leaves: the metadata of the object under its new key,
//! with proof that the bytes are the source's; then, when the caller wants it, the source is deleted, if it still is the copied version. S3
//! has no rename: the store makes a copy, and deletes the source. The engine receives no byte, and at every moment at least one of the two
//! keys has the object. A directory is all objects below its key. A long rename has a note in the state directory, with which the next
//! mount continues if this process is killed. This room knows no inode, no handle and no errno.

mod directory;
mod lost;
mod mark;
mod note;
mod object;
mod parts;
mod restate;
mod resume;

#[cfg(test)]
mod tests;

use std::fmt;

use crate::object::{ObjectId, ObjectKey, ObjectMeta};
pub use crate::s3::Replaces;
use crate::s3::{self, ObjectClient};
use crate::sync::{Arc, Mutex};
pub use directory::CopiedDirectory;
pub use note::NotesConfig;
use note::{Note, Notes};
pub use restate::Restated;

/// Settings of moves.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most bytes of an object that one request copies; S3's limit is 5 GiB. Larger objects are copied in parts.
    pub copy_max: u64,
    /// Bytes of a part of a larger copy. Doubling it halves the requests, and lets the store copy fewer parts at once.
    pub part: u64,
    /// Most parts of one object that the store copies at once. Doubling it speeds up copies on a store that handles many requests at once.
    pub parts_at_once: usize,
    /// Most objects of one directory that are copied, or deleted, at once. Doubling it halves the time of a long rename on a distant store,
    /// and leaves fewer connections to other requests.
    pub at_once: usize,
    /// Most objects of a directory that can be renamed (`--rename-limit`). Doubling it allows renames that take twice as long.
    pub names_max: usize,
    /// Whether an empty object `dir_$folder$` marks the directory `dir/`, and is renamed with it.
    pub folder_marks: bool,
    /// The notes of long renames; `None`: renames are not noted.
    pub notes: Option<NotesConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            copy_max: 5 << 30,
            part: 512 << 20,
            parts_at_once: 16,
            at_once: 64,
            names_max: 100_000,
            folder_marks: false,
            notes: None,
        }
    }
}

/// A copy of a single object whose source still exists, and the note of its rename.
type Noted = (ObjectId, Arc<Note>);

/// Renames objects and directories. One per mount.
#[derive(Clone, Debug)]
pub struct Mover {
    client: Arc<dyn ObjectClient>,
    config: Config,
    notes: Option<Arc<Notes>>,
    /// The notes of single objects whose source still exists, with their copies.
    noted: Arc<Mutex<Vec<Noted>>>,
}

/// A proven copy, whose source still exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The version that was copied.
    pub source: ObjectId,
    /// The copy.
    pub id: ObjectId,
    /// The metadata of the copy.
    pub meta: ObjectMeta,
}

/// The result of deleting the source of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The source is deleted.
    Deleted,
    /// Another client has stored a newer version meanwhile, which stays.
    Replaced,
}

/// The reason why a rename failed. The source stays, except with `Partial`.
#[derive(Clone, Debug)]
pub enum Error {
    /// The source does not exist.
    Gone,
    /// Other clients replaced the source at each attempt.
    Changing,
    /// The object under the new key must not be replaced.
    Taken,
    /// The copy differs from the source, by the store's answer.
    Different(String),
    /// The directory has more objects than this limit.
    TooMany(usize),
    /// The directory to replace is not empty.
    NotEmpty,
    /// This key is longer than S3 allows.
    NameTooLong(String),
    /// The note of the rename can't be written to the state directory.
    Note(Arc<std::io::Error>),
    /// All objects have the new name; some still have the old one, too.
    Partial {
        /// Number of objects that still have the old name.
        left: usize,
        /// Number of objects of the directory.
        of: usize,
        /// The store's last error.
        error: String,
    },
    /// The store may still delete the object under the old name, so both names stay.
    Undecided(Arc<s3::Error>),
    /// An error of the store.
    Remote(Arc<s3::Error>),
}

/// Result of a move.
pub type Result<T> = std::result::Result<T, Error>;

impl Mover {
    /// A mover for the client's bucket.
    pub fn new(client: Arc<dyn ObjectClient>, config: Config) -> Self {
        let notes = config.notes.clone().and_then(|notes| {
            let dir = notes.dir.clone();
            let open = Notes::open(notes);
            open.inspect_err(|error| {
                tracing::warn!(dir = %dir.display(), %error, "renames can't be noted in --state-dir: one whose mount-s3 is killed stays as far as it came");
            })
            .ok()
        });
        Self { client, config, notes: notes.map(Arc::new), noted: Arc::default() }
    }
}

impl Error {
    /// Converts to an error of the store, for rooms that know no other.
    pub fn into_remote(self, key: &ObjectKey) -> Arc<s3::Error> {
        match self {
            Self::Remote(error) | Self::Undecided(error) => error,
            other => {
                let error = s3::Error::new(s3::ErrorKind::Exists, "CopyObject").key(key);
                Arc::new(error.message(other.to_string()))
            }
        }
    }
}

impl From<s3::Error> for Error {
    fn from(error: s3::Error) -> Self {
        Self::Remote(Arc::new(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the object is gone"),
            Self::Changing => f.write_str("another client replaces the object again and again"),
            Self::Taken => f.write_str("another client has stored or removed an object under the new name"),
            Self::Different(why) => {
                write!(
                    f,
                    "the store's copy is not the object ({why}): look at the store; both names are there"
                )
            }
            Self::TooMany(max) => {
                write!(
                    f,
                    "the directory has more than {max} objects, and --rename-limit allows no more: rename what is in it"
                )
            }
            Self::NotEmpty => f.write_str("the directory that is to be replaced is not empty"),
            Self::NameTooLong(name) => {
                write!(f, "{name:?} would be longer than a key can be: rename to a shorter name")
            }
            Self::Note(error) => {
                write!(f, "the rename can't be noted in --state-dir: {error}; nothing was renamed")
            }
            Self::Partial { left, of, error } => {
                write!(
                    f,
                    "{left} of {of} objects have the old name, too, as the store does not delete them: {error}; the next mount tries again"
                )
            }
            Self::Undecided(error) => {
                write!(
                    f,
                    "the new name has the object; the old one may go yet, as the delete's outcome is unknown: {error}"
                )
            }
            Self::Remote(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}
