//! Attributes that objects keep in their user metadata: modes, owners, times, symbolic links, extended attributes (`--keep-metadata`).
//!
//! Enters: the version of an object. Leaves: its attributes, with one HEAD per version and machine; or, after a change, the object's new
//! version, made by a copy onto itself. This room knows no inode, no handle and no errno, and decides nothing about a file.

mod known;
mod words;

use std::fmt;

use foldhash::HashMap;
use tokio::sync::{OnceCell, Semaphore};

pub use known::FileConfig;
pub use words::{Kept, Words};

use crate::moves::{self, Mover, Restated};
use crate::object::{ObjectId, ObjectKey, ObjectMeta, Second};
use crate::s3::{self, Described, ErrorKind, ObjectClient};
use crate::sync::{Arc, Mutex};
use known::Known;

/// Most HEADs for attributes in flight. Doubling it halves the time of a cold listing on a distant store, and leaves fewer connections to
/// other requests.
const AT_ONCE: usize = 64;

/// Reads and changes the attributes of objects. One per mount; clones share it.
#[derive(Clone)]
pub struct Keeper(Arc<Shared>);

/// A HEAD in flight, or its answer.
type Question = OnceCell<Result<Arc<Kept>>>;

struct Shared {
    client: Arc<dyn ObjectClient>,
    mover: Mover,
    known: Known,
    /// Permits for HEADs.
    turns: Semaphore,
    /// HEADs in flight, by version.
    asked: Mutex<HashMap<ObjectId, Arc<Question>>>,
}

/// The reason why attributes could not be read or changed.
#[derive(Clone, Debug)]
pub enum Error {
    /// The object has another version by now, or no longer exists.
    Changed,
    /// The object's metadata would exceed S3's limit of 2 KiB.
    TooMuch,
    /// An error of the store.
    Remote(Arc<s3::Error>),
    /// An error of the copy.
    Copy(moves::Error),
}

/// Result of an operation on attributes.
pub type Result<T> = std::result::Result<T, Error>;

impl Keeper {
    /// A keeper for the client's bucket. `mover` makes the changes. `file` keeps known attributes for the next mount.
    pub fn new(client: Arc<dyn ObjectClient>, mover: Mover, file: Option<FileConfig>) -> Self {
        Self(Arc::new(Shared {
            client,
            mover,
            known: Known::open(file),
            turns: Semaphore::new(AT_ONCE),
            asked: Mutex::default(),
        }))
    }

    /// The attributes of a version, if they are in memory.
    pub fn known(&self, id: &ObjectId) -> Option<Arc<Kept>> {
        self.0.known.get(id)
    }

    /// The attributes of a version, from memory or a HEAD. Concurrent calls for one version share one HEAD.
    ///
    /// # Errors
    /// `Changed`, `Remote`.
    pub async fn ask(&self, id: &ObjectId) -> Result<Arc<Kept>> {
        if let Some(kept) = self.known(id) {
            return Ok(kept);
        }
        let cell = Arc::clone(self.0.asked.lock().entry(id.clone()).or_default());
        let answer = cell.get_or_init(|| self.head(id)).await.clone();
        self.0.asked.lock().remove(id);
        answer
    }

    async fn head(&self, id: &ObjectId) -> Result<Arc<Kept>> {
        // An earlier HEAD may have been answered since the caller checked.
        if let Some(kept) = self.known(id) {
            return Ok(kept);
        }
        let _turn = self.0.turns.acquire().await;
        let described = self.describe(id).await?;
        Ok(self.0.known.learn(&ObjectId::of(id.key.clone(), &described.meta), &described.properties.user))
    }

    /// The facts of a HEAD about this version.
    ///
    /// # Errors
    /// `Changed`, `Remote`.
    pub async fn describe(&self, id: &ObjectId) -> Result<Described> {
        let described = match self.0.client.describe_object(&id.key).await {
            Ok(described) => described,
            Err(error) if *error.kind() == ErrorKind::NotFound => return Err(Error::Changed),
            Err(error) => return Err(error.into()),
        };
        let meta = &described.meta;
        match id.may_be(meta.etag.as_str(), Second::of(meta.last_modified)) {
            true => Ok(described),
            false => Err(Error::Changed),
        }
    }

    /// Notes the attributes of a version that was just uploaded; `meta` is from the answer to the upload.
    pub fn stored(&self, key: &ObjectKey, meta: &ObjectMeta, kept: Kept) {
        let id = ObjectId::by_etag(key.clone(), meta.etag.clone());
        self.0.known.stored(&id, Second::of(meta.last_modified), kept);
    }

    /// Notes that a version was copied to another key, with its attributes.
    pub fn moved(&self, from: &ObjectId, to: &ObjectId) {
        self.0.known.moved(from, to);
    }

    /// Changes the attributes of a version: the store copies the object onto itself. `None` if `change` changes nothing.
    ///
    /// # Errors
    /// `Changed`: the object has another version by now; `TooMuch`; the errors of the copy.
    pub async fn change(
        &self,
        id: &ObjectId,
        change: impl Fn(&mut Kept) + Send + Sync,
    ) -> Result<Option<Restated>> {
        let described = self.describe(id).await?;
        let mut words = described.properties.user.clone();
        let before = Kept::of(&words);
        let mut after = before.clone();
        change(&mut after);
        if before == after {
            self.0.known.learn(&ObjectId::of(id.key.clone(), &described.meta), &words);
            return Ok(None);
        }
        if !after.fits(&words) {
            return Err(Error::TooMuch);
        }
        after.say(&mut words);
        let restated = self.0.mover.restate(&id.key, described, words.clone()).await.map_err(Error::Copy)?;
        self.0.known.learn(&restated.id, &words);
        Ok(Some(restated))
    }
}

impl Keeper {
    /// The attributes of a directory, from its marker; empty without one. Listings do not show a marker's version, so each call makes a
    /// HEAD.
    ///
    /// # Errors
    /// `Remote`.
    pub async fn ask_marker(&self, key: &ObjectKey) -> Result<Kept> {
        let _turn = self.0.turns.acquire().await;
        match self.0.client.describe_object(key).await {
            Ok(described) => Ok(Kept::of(&described.properties.user)),
            Err(error) if *error.kind() == ErrorKind::NotFound => Ok(Kept::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Changes the attributes of a directory's marker, which the store copies onto itself; `None` without a marker.
    ///
    /// # Errors
    /// `TooMuch`; the errors of the copy.
    pub async fn change_marker(
        &self,
        key: &ObjectKey,
        change: impl Fn(&mut Kept) + Send + Sync,
    ) -> Result<Option<Kept>> {
        let described = match self.0.client.describe_object(key).await {
            Ok(described) => described,
            Err(error) if *error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut words = described.properties.user.clone();
        let before = Kept::of(&words);
        let mut after = before.clone();
        change(&mut after);
        if before == after {
            return Ok(Some(after));
        }
        if !after.fits(&words) {
            return Err(Error::TooMuch);
        }
        after.say_of_directory(&mut words);
        self.0.mover.restate(key, described, words).await.map_err(Error::Copy)?;
        Ok(Some(after))
    }
}

impl Error {
    /// The underlying error of the store, if there is one.
    pub fn remote(&self) -> Option<&Arc<s3::Error>> {
        match self {
            Self::Remote(error) | Self::Copy(moves::Error::Remote(error)) => Some(error),
            _ => None,
        }
    }

    /// Whether the store denies this mount to read the object.
    pub fn is_denied(&self) -> bool {
        self.remote().is_some_and(|error| *error.kind() == ErrorKind::Denied)
    }

    /// Converts to an error of the store, for rooms that know no other.
    pub fn into_remote(self, key: &ObjectKey) -> Arc<s3::Error> {
        match self {
            Self::Remote(error) => error,
            Self::Copy(error) => error.into_remote(key),
            Self::Changed => moves::Error::Changing.into_remote(key),
            Self::TooMuch => moves::Error::Different(self.to_string()).into_remote(key),
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
            Self::Changed => f.write_str("the object is another version by now"),
            Self::TooMuch => {
                f.write_str("S3 keeps 2 KiB of metadata of an object, and these attributes take more")
            }
            Self::Remote(error) => error.fmt(f),
            Self::Copy(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}
