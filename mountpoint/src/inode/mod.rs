//! The tree of names over a flat bucket.
//!
//! Enters: a directory's inode number and a name, the kernel's references, the result of an upload. Leaves: inode numbers
//! and their attributes, the object version to read, the key to write, the entries of a directory.
//! It knows S3 through [`ObjectClient`] and time through [`Clock`]. It never holds a file handle, never
//! reads or writes contents, and knows neither FUSE nor errno.
//!
//! An inode is a name at one version. When S3 has another ETag or kind under the name, the name gets another number, so that no page in
//! the kernel's cache mixes two versions. A remote directory wins over a local entry, and a local entry over a remote file.

mod board;
mod change;
mod check;
mod compact;
mod dir_entry;
mod error;
mod facts;
mod firsts;
mod flight;
mod fresh;
mod inodes;
mod lookup;
mod open;
mod outliving;
mod proof;
mod readdir;
mod refresh;
mod remote;
mod rename;
mod staged;
mod state;
mod tree;
mod version;

#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::Hash;
use std::time::{Duration, SystemTime};

pub use change::Unlinked;
pub use dir_entry::DirEntry;
pub use error::{Error, ErrorKind, Result};
pub use open::{KnownSize, OpenRead, OpenWrite};
pub use readdir::Listing;
pub use rename::{Below, Follower, Names, Rename, RenameWish};
pub use staged::Pending;
pub use state::{Before, WriteWish};

use crate::clock::Clock;
use crate::first::Asker;
use crate::listing::EntryNo;
pub use crate::listing::expiry::Ttl;
pub use crate::listing::path::Prefix;
use crate::metrics::Metrics;
use crate::object::ObjectKey;
use crate::s3::ObjectClient;
use crate::sync::{Arc, Mutex};
use board::Board;
use flight::Flights;
use tree::Tree;

/// Number of an inode: unique for the life of a mount, never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct InodeNo(pub u64);

impl From<EntryNo> for InodeNo {
    fn from(EntryNo(number): EntryNo) -> Self {
        Self(number)
    }
}

impl From<InodeNo> for EntryNo {
    fn from(InodeNo(number): InodeNo) -> Self {
        Self(number)
    }
}

/// The directory that is mounted.
pub const ROOT: InodeNo = InodeNo(1);

/// How long an open, or a create, may rely on the lookup the kernel sent just before it, without any TTL.
///
/// open(2) is a LOOKUP and then an OPEN, microseconds apart; asking S3 for both would cost two round trips for one
/// answer. It is used once, by the first thing that follows: a second lookup of the name that is answered from memory
/// takes it away, and while it stands the reply tells the kernel not to keep the entry, so that every path that leads here
/// looks up again. An OPEN that finds it therefore follows its own lookup, and sees every close of the file elsewhere before
/// this open(2) began. The limit only matters for a lookup that nothing follows (a stat) with an open of the same
/// inode by descriptor after it: 20 ms is a scheduler's delay on a busy machine, and less than a round trip to S3.
const FRESH: Duration = Duration::from_millis(20);

/// The kind of a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// An object.
    File,
    /// A prefix that ends in `/`.
    Directory,
    /// An object that holds the target of a symbolic link. Only its metadata say so, which this room does not know: it says `File`.
    Link,
}

/// The attributes that stat shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// File or directory.
    pub kind: Kind,
    /// Bytes; 0 for a directory.
    pub size: u64,
    /// Access time: as `modified`, unless a program set it on a file that is not stored yet.
    pub accessed: SystemTime,
    /// When the version was stored; of a directory, when the bucket was mounted.
    pub modified: SystemTime,
    /// False for an object in an archive tier.
    pub readable: bool,
    /// How long the kernel may keep this; zero: not at all.
    pub valid_for: Duration,
}

/// A time that a program sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeWish {
    /// The time of the call.
    Now,
    /// This one.
    At(SystemTime),
}

/// A name that was found. One kernel reference was counted for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The inode.
    pub ino: InodeNo,
    /// The attributes of the name.
    pub stat: Stat,
    /// How long the kernel may keep that the name leads here; zero: not at all.
    pub entry_valid_for: Duration,
}

/// How the tree behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// The part of the bucket that is mounted.
    pub prefix: Prefix,
    /// How long S3's answers hold. Doubling it halves the lookups and doubles how long a foreign change goes unseen.
    pub ttl: Ttl,
    /// Keys per page of a listing, 1 to 1000 (the most S3 gives): doubling it halves the requests of a listing.
    pub list_page: u16,
    /// Keys asked for to see whether a directory is there: 1 is enough, except for stores that count it wrongly.
    pub lookup_page: u16,
    /// Empty objects `name_$folder$` mark directories, as Hadoop and EMR write them. A name that is not there costs one request more.
    pub folder_marks: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            prefix: Prefix::default(),
            ttl: Ttl::Minimal,
            list_page: 1000,
            lookup_page: 1,
            folder_marks: false,
        }
    }
}

/// The inodes of one mount. Clones are the same table.
///
/// Methods named `try_` answer from memory, without waiting, or say `None`: then the one without `try_` asks S3. They stand in these files:
///
/// | file | methods |
/// |---|---|
/// | `lookup.rs` | lookup, getattr |
/// | `open.rs` | opens and closes, and the state of a file that is written |
/// | `change.rs` | mkdir, rmdir, unlink |
/// | `rename.rs` | rename |
/// | `staged.rs` | files in the stage (`--mode full`) |
/// | `readdir.rs` | listings |
/// | `check.rs` | whether a file is still the version of its inode |
/// | `refresh.rs` | pages asked for ahead of names |
#[derive(Clone)]
pub struct InodeTable(Arc<Shared>);

pub(in crate::inode) struct Shared {
    client: Arc<dyn ObjectClient>,
    asker: Asker,
    config: Config,
    clock: Clock,
    metrics: Arc<Metrics>,
    tree: Mutex<Tree>,
}

impl InodeTable {
    /// A table that knows the root alone, of the bucket that `asker` asks.
    pub fn new(asker: Asker, config: Config, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let client = Arc::clone(asker.client());
        let tree = Tree::new(&config.prefix, config.ttl, clock.now(), clock.wall());
        Self(Arc::new(Shared { client, asker, config, clock, metrics, tree: Mutex::new(tree) }))
    }

    /// Takes a question off the board once it has its answer, or no operation waits for it any more.
    fn landed<K, Q, A>(
        &self,
        of: fn(&mut Board) -> &mut Flights<K, Q, A>,
    ) -> impl FnOnce(&K, &Arc<Q>) + Send + use<K, Q, A>
    where
        K: Eq + Hash + Clone + Send + 'static,
        Q: Send + Sync + 'static,
        A: Clone + Send + Sync + 'static,
    {
        let table = Arc::downgrade(&self.0);
        move |subject, question| {
            if let Some(table) = table.upgrade() {
                of(&mut table.tree.lock().board).land(subject, question);
            }
        }
    }

    /// The kernel drops `count` references to an inode. One that nothing refers to any more, and that has nothing
    /// local, goes.
    pub fn forget(&self, ino: InodeNo, count: u64) {
        let mut tree = self.0.tree.lock();
        if let Ok(inode) = tree.inode_mut(ino)
            && ino != ROOT
        {
            let known = inode.lookups & !state::UNKNOWN;
            let is_adopted = inode.lookups != known;
            debug_assert!(is_adopted || known >= count, "the kernel forgets what it was given");
            // More references to an adopted inode than this engine gave out: the kernel returns all of them.
            inode.lookups = if count > known { 0 } else { inode.lookups - count };
            let is_free = inode.lookups == 0;
            tree.drop_if_idle(ino);
            if is_free {
                tree.record(ino);
            }
        }
    }

    /// Whether the inode exists only here so far, or is being replaced from here: S3 has nothing to say of it yet.
    pub fn is_local(&self, ino: InodeNo) -> bool {
        self.0.tree.lock().inode(ino).is_some_and(|inode| inode.place == state::Place::Local)
    }

    /// Whether there is such an inode.
    pub fn lives(&self, ino: InodeNo) -> bool {
        self.0.tree.lock().inode(ino).is_some()
    }

    /// The key of an inode, for logs; a directory's ends in `/`. `None` when the inode is gone.
    pub fn key_of(&self, ino: InodeNo) -> Option<ObjectKey> {
        self.0.tree.lock().key(ino)
    }

    /// How many inodes live.
    pub fn len(&self) -> usize {
        self.0.tree.lock().len()
    }

    /// Never: the root is always there.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl fmt::Debug for InodeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InodeTable").field("config", &self.0.config).finish_non_exhaustive()
    }
}
