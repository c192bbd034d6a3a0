//! The tree of names over a flat bucket.
//!
//! Enters: a directory's inode number and a name, the kernel's references, the result of an upload. Leaves: inode numbers and their
//! attributes, the object version to read, the key to write, the entries of a directory. The room knows S3 through [`ObjectClient`] and
//! time through [`Clock`]. Never here: file handles, contents of files, FUSE, errno.
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

/// The mounted directory.
pub const ROOT: InodeNo = InodeNo(1);

/// How long an open, or a create, may rely on the lookup the kernel sent just before it, without any TTL.
///
/// open(2) is a LOOKUP and then an OPEN, microseconds apart; asking S3 for both would cost two round trips for one answer. Only the
/// operation right after the lookup may use its answer. A second lookup of the name from memory uses the answer up. While the answer is
/// unused, the reply tells the kernel not to keep the entry, so every path to the file looks up again. An OPEN that finds an unused
/// answer therefore follows its own lookup, and sees every close of the file elsewhere before this open(2) began. The limit only matters
/// for a lookup without an open (a stat), if a program later opens the same inode by descriptor: 20 ms is a scheduler's delay on a busy
/// machine, and less than a round trip to S3.
const FRESH: Duration = Duration::from_millis(20);

/// The kind of a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A file.
    File,
    /// A directory: a prefix that ends in `/`.
    Directory,
    /// A symbolic link: an object that contains the target. Only its metadata mark the link, which this room does not read: here the kind
    /// is `File`.
    Link,
}

/// The attributes that stat shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// File or directory.
    pub kind: Kind,
    /// Bytes; 0 for a directory.
    pub size: u64,
    /// Access time: equal to `modified`, unless a program set another one on a file that is not stored yet.
    pub accessed: SystemTime,
    /// Modification time: when the version was stored; of a directory, when the bucket was mounted.
    pub modified: SystemTime,
    /// Whether the object can be read: false in an archive tier.
    pub readable: bool,
    /// How long the kernel may keep these attributes; zero: not at all.
    pub valid_for: Duration,
}

/// A time that a program sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeWish {
    /// The time of the call.
    Now,
    /// The given time.
    At(SystemTime),
}

/// A found name, with one kernel reference counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The inode of the name.
    pub ino: InodeNo,
    /// The attributes of the name.
    pub stat: Stat,
    /// How long the kernel may keep the entry for this name; zero: not at all.
    pub entry_valid_for: Duration,
}

/// Settings of the tree.
#[derive(Clone, Debug)]
pub struct Config {
    /// The mounted part of the bucket.
    pub prefix: Prefix,
    /// TTLs of S3's answers. Doubling them halves the lookups, and doubles the time until a change by another client shows.
    pub ttl: Ttl,
    /// Keys per page of a listing, 1 to 1000 (the most S3 gives): doubling it halves the requests of a listing.
    pub list_page: u16,
    /// Keys requested in a LIST that checks whether a directory exists. 1 is enough, except for stores that count keys wrongly.
    pub lookup_page: u16,
    /// Most names of a directory that come with its first lookup, in the LIST that finds it; 0: none. Doubling it spares a page in
    /// directories of twice the size, and doubles what that LIST brings of a longer one (about 400 bytes a name).
    pub brought: u16,
    /// Whether empty objects `name_$folder$` mark directories, as Hadoop and EMR write them. Then a lookup of an absent name costs one
    /// request more.
    pub folder_marks: bool,
    /// How long names count as absent without a question, beyond the TTL.
    pub unasked: Unasked,
}

/// Names of a directory that come with its first lookup on a mount: those of a folder of a model or an array.
pub const BROUGHT: u16 = 32;

/// How long names count as absent without a question, beyond the TTL (`--mode full`; zero elsewhere). If another client made such a name,
/// the condition of the upload (If-None-Match) finds out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unasked {
    /// Time for names that a directory lacked when it was made here, or in a page of its listing (without `by_name`, only where the
    /// directory was made here). Doubling it halves the pages that a program costs that makes many files, and doubles the time that a
    /// name of another client may be missing.
    pub in_directory: Duration,
    /// Time for a name that S3 called absent, or that this mount removed. Doubling it halves the lookups of a name that comes and goes, such
    /// as a database's journal, and doubles the time that a name of another client may be missing.
    pub by_name: Duration,
}

impl Unasked {
    /// A second each, as long as a directory's TTL.
    pub const SECOND: Self = Self { in_directory: Duration::from_secs(1), by_name: Duration::from_secs(1) };
}

impl Default for Config {
    fn default() -> Self {
        Self {
            prefix: Prefix::default(),
            ttl: Ttl::Minimal,
            list_page: 1000,
            lookup_page: 1,
            brought: 0,
            folder_marks: false,
            unasked: Unasked::default(),
        }
    }
}

/// The inodes of one mount. Clones share one table.
///
/// Methods named `try_` answer from memory without waiting, or return `None`; the method without `try_` then asks S3. The files of the
/// methods:
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
/// | `proof.rs` | files that were opened by a listing's marks |
/// | `version.rs` | versions behind names |
/// | `outliving.rs` | the table of a mount that outlives its engine |
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
    /// A table with only the root, for the bucket that `asker` asks.
    pub fn new(asker: Asker, config: Config, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let client = Arc::clone(asker.client());
        let mut tree = Tree::new(&config.prefix, config.ttl, clock.now(), clock.wall());
        (tree.unasked, tree.folder_marks) = (config.unasked, config.folder_marks);
        Self(Arc::new(Shared { client, asker, config, clock, metrics, tree: Mutex::new(tree) }))
    }

    /// Takes a question off the board after its answer arrived, or after the last operation stopped waiting.
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

    /// Notes that the kernel dropped `count` references to an inode. An inode without references and local entries goes.
    pub fn forget(&self, ino: InodeNo, count: u64) {
        let mut tree = self.0.tree.lock();
        if let Ok(inode) = tree.inode_mut(ino)
            && ino != ROOT
        {
            let known = inode.lookups & !state::UNKNOWN;
            let is_adopted = inode.lookups != known;
            debug_assert!(is_adopted || known >= count, "the kernel forgets what it was given");
            // The kernel returns more references to an adopted inode than this engine gave out: it returns all of them.
            inode.lookups = if count > known { 0 } else { inode.lookups - count };
            let is_free = inode.lookups == 0;
            tree.drop_if_idle(ino);
            if is_free {
                tree.record(ino);
            }
        }
    }

    /// Whether an inode exists only here so far, or this mount is replacing its object: then S3 knows nothing useful about the inode.
    pub fn is_local(&self, ino: InodeNo) -> bool {
        self.0.tree.lock().inode(ino).is_some_and(|inode| inode.place == state::Place::Local)
    }

    /// Whether an inode with this number lives.
    pub fn lives(&self, ino: InodeNo) -> bool {
        self.0.tree.lock().inode(ino).is_some()
    }

    /// The key of an inode, for logs. A directory's key ends in `/`. `None` if the inode is gone.
    pub fn key_of(&self, ino: InodeNo) -> Option<ObjectKey> {
        self.0.tree.lock().key(ino)
    }

    /// Number of living inodes.
    pub fn len(&self) -> usize {
        self.0.tree.lock().len()
    }

    /// Always false: the root always lives.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl fmt::Debug for InodeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InodeTable").field("config", &self.0.config).finish_non_exhaustive()
    }
}
