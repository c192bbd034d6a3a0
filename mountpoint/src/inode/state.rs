//! State and transitions of one inode. Pure: time and numbers come in as values.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use super::InodeNo;
use super::compact::{Moment, Stored, Teller};
use super::error::ErrorKind;
use crate::listing::listed::Listed;
use crate::listing::recent::Recent;
use crate::object::{ObjectKey, ObjectMeta};

/// One inode, which is a name at one version.
#[derive(Debug)]
pub(super) struct Inode {
    /// Last component of the path; empty for the root.
    pub(super) name: Box<str>,
    /// The directory in which the name was found.
    pub(super) parent: InodeNo,
    /// The map of its directory that holds the inode.
    pub(super) place: Place,
    /// References that the kernel holds; see [`UNKNOWN`].
    pub(super) lookups: u64,
    /// The event of the latest fact about the inode. An answer to an earlier request changes nothing.
    pub(super) learned: u64,
    pub(super) node: Node,
}

/// The map of a directory that holds an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// `children`: S3 has the name.
    Remote,
    /// `locals`: made here and not stored yet, or replaced by this mount.
    Local,
    /// Neither map: the name was removed, or another version took it. The inode lives while references to it exist.
    Nowhere,
}

impl Inode {
    pub(super) fn directory(&self) -> Option<&Directory> {
        match &self.node {
            Node::Directory(directory) => Some(directory),
            Node::File(_) => None,
        }
    }

    pub(super) fn directory_mut(&mut self) -> Option<&mut Directory> {
        match &mut self.node {
            Node::Directory(directory) => Some(directory),
            Node::File(_) => None,
        }
    }
}

/// Flag in the references to an inode from an earlier engine, whose number is unknown. The kernel returns all of them at once.
pub(super) const UNKNOWN: u64 = 1 << 63;

#[derive(Debug)]
pub(super) enum Node {
    Directory(Box<Directory>),
    File(File),
}

#[derive(Debug)]
pub(super) struct Directory {
    /// The directory's key, which ends in `/` (the root's key is the prefix).
    pub(super) key: ObjectKey,
    /// Number of living inodes for names that S3 has in the directory; [`super::tree::Tree::child`] finds them.
    pub(super) children: usize,
    /// Names made in this mount.
    pub(super) locals: BTreeMap<Box<str>, InodeNo>,
    /// When S3 last had keys below the directory, or none below a local one; `None` if the last key may be gone.
    pub(super) checked: Option<Instant>,
    /// Number of open listings.
    pub(super) listings: u32,
    /// The last complete listing, while it may answer lookups.
    pub(super) listed: Option<Listed>,
    /// The number of names in the last complete listing.
    pub(super) length: Option<u32>,
    /// Recent lookups, and the pages requested for them.
    pub(super) recent: Option<Box<Recent>>,
    /// When S3 had nothing below the directory, which this mount made then; `None` once that is too long ago.
    pub(super) bare: Option<Bare>,
    /// Whether this mount made the directory.
    pub(super) is_made_here: bool,
    /// Whether the stage has yet to store the directory's marker. Until then the directory shows without a question.
    pub(super) owes_marker: bool,
    /// The event at which a program last requested a page of the listing: it may show names that earlier answers lack.
    pub(super) listing_at: u64,
}

/// The moment and the event at which S3 had nothing below a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bare {
    pub(super) since: Instant,
    pub(super) asked: u64,
}

impl Directory {
    /// A new directory. The tree sets its key when it places the directory.
    pub(super) fn new(checked: Instant) -> Self {
        Self {
            key: ObjectKey::new(""),
            children: 0,
            locals: BTreeMap::new(),
            checked: Some(checked),
            listings: 0,
            listed: None,
            length: None,
            recent: None,
            bare: None,
            is_made_here: false,
            owes_marker: false,
            listing_at: 0,
        }
    }

    /// Whether entries, open listings or the stage need the directory.
    pub(super) fn is_in_use(&self) -> bool {
        self.listings > 0 || self.children > 0 || !self.locals.is_empty() || self.owes_marker
    }

    /// Whether a page that was requested earlier may still arrive or be used.
    pub(super) fn has_pages(&self) -> bool {
        self.listings > 0
            || self.listed.is_some()
            || self.bare.is_some()
            || self.recent.as_ref().is_some_and(|recent| recent.is_in_use())
    }
}

#[derive(Debug)]
pub(super) struct File {
    /// The object in S3, and the time until which a stat may rely on it.
    pub(super) stored: Option<Stored>,
    /// When S3 last had no directory of the file's name.
    pub(super) checked: Moment,
    pub(super) phase: Phase,
    /// Number of open read handles.
    pub(super) readers: u32,
    /// Whether the kernel's pages may be older than a write of this mount, or contain refused changes.
    pub(super) pages_stale: bool,
    /// Whether the kernel knows another size of this version, and was not notified yet.
    pub(super) size_stale: bool,
    /// Whether the kernel may know a size above this version's.
    pub(super) was_larger: bool,
    /// Whether a request for the last bytes may be older than the discovery that the file is shorter.
    pub(super) end_is_old: bool,
}

/// The phase of a file: whether it is written in this mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The file has no writer: S3 has its object.
    Stored,
    /// The file was made here, and never opened for writing.
    New { times: Box<Times> },
    /// The file has a writer, or lies in the stage.
    Writing(Box<Writing>),
}

/// The state of a file that is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Writing {
    pub(super) writer: u64,
    /// Size in bytes so far.
    pub(super) size: u64,
    pub(super) times: Times,
    /// Whether the file lies in the stage: then any number of handles write and read it, and an object may exist, too.
    pub(super) is_staged: bool,
}

/// The times of a file until it is stored: those that it shows (afterwards it shows its object's time), and when S3 lacked it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) accessed: SystemTime,
    pub(super) modified: SystemTime,
    /// When S3 last lacked the file's name, as far as the mount knows.
    pub(super) lacked: Option<Instant>,
}

impl Times {
    fn of(time: SystemTime) -> Self {
        Self { accessed: time, modified: time, lacked: None }
    }
}

/// The object under a name before it was opened for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// S3 has an object.
    Exists,
    /// S3 had no object at the create or, within a TTL, before. Another client may have stored one since.
    Absent,
}

/// The flags of an open for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WriteWish {
    /// Whether the open has O_TRUNC (or a truncation to 0 follows).
    pub truncate: bool,
    /// Whether the open has O_APPEND.
    pub append: bool,
    /// Whether the mount may replace objects (`--allow-overwrite`).
    pub allow_overwrite: bool,
    /// Whether the mount may append to objects (`--allow-append`).
    pub allow_append: bool,
}

/// The reason why a transition is refused.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The file has a writer.
    Busy { writer: u64 },
    /// The file has readers.
    HasReaders,
    /// The file's state or the mount refuses the transition.
    Error(ErrorKind),
}

impl File {
    /// A file made here at this moment.
    pub(super) fn new(checked: Instant, modified: SystemTime) -> Self {
        Self {
            stored: None,
            checked: Moment::of(checked),
            phase: Phase::New { times: Box::new(Times::of(modified)) },
            readers: 0,
            pages_stale: false,
            size_stale: false,
            was_larger: false,
            end_is_old: false,
        }
    }

    /// A file in the stage, with changes of an earlier mount. `stored`: the object that the file replaces.
    pub(super) fn pending(
        number: u64,
        size: u64,
        modified: SystemTime,
        stored: Option<Stored>,
        checked: Instant,
    ) -> Self {
        let times = Times::of(modified);
        let phase = Phase::Writing(Box::new(Writing { writer: number, size, times, is_staged: true }));
        Self { stored, phase, ..Self::new(checked, modified) }
    }

    /// A file that S3 has.
    pub(super) fn stored(meta: &ObjectMeta, teller: Teller, until: Instant, checked: Instant) -> Self {
        Self {
            stored: Some(Stored::new(meta, teller, Some(until))),
            checked: Moment::of(checked),
            phase: Phase::Stored,
            readers: 0,
            pages_stale: false,
            size_stale: false,
            was_larger: false,
            end_is_old: false,
        }
    }

    /// Whether the file exists only here, or this mount is replacing its object.
    pub(super) fn is_local(&self) -> bool {
        self.phase != Phase::Stored
    }

    /// Counts one more reader of the stored object. Returns the object's metadata, and whether the kernel may keep its pages.
    pub(super) fn open_read(&mut self) -> Result<(ObjectMeta, bool), Refusal> {
        let meta = match (&self.phase, &self.stored) {
            (Phase::Writing(writing), _) => return Err(Refusal::Busy { writer: writing.writer }),
            (Phase::Stored, Some(stored)) => stored.meta(),
            (Phase::New { .. } | Phase::Stored, _) => {
                return Err(Refusal::Error(ErrorKind::NotPermitted(
                    "was created in this mount and has not been written yet",
                )));
            }
        };
        if !meta.readable {
            return Err(Refusal::Error(ErrorKind::Archived));
        }
        self.readers += 1;
        let keep_cache = !std::mem::take(&mut self.pages_stale);
        Ok((meta, keep_cache))
    }

    pub(super) fn close_read(&mut self) {
        debug_assert!(self.readers > 0, "a reader is closed once");
        self.readers = self.readers.saturating_sub(1);
    }

    /// Makes the caller the file's writer. Returns whether S3 has an object of this name, as far as the mount knows.
    pub(super) fn open_write(
        &mut self,
        writer: u64,
        wish: WriteWish,
        modified: SystemTime,
    ) -> Result<Before, Refusal> {
        let refused = |why| Err(Refusal::Error(ErrorKind::NotPermitted(why)));
        if let Phase::Writing(writing) = &self.phase {
            return Err(Refusal::Busy { writer: writing.writer });
        }
        let appends = wish.allow_append && wish.append && !wish.truncate;
        let before_size = self.stored.as_ref().filter(|_| appends).map_or(0, Stored::size);
        if self.stored.is_some() && !appends {
            if wish.append && !wish.truncate {
                return refused("exists; appending to it needs --allow-append");
            }
            if !wish.allow_overwrite {
                return refused("exists; replacing it needs --allow-overwrite");
            }
            if !wish.truncate {
                return refused("exists; an object is replaced as a whole: open it with O_TRUNC");
            }
        }
        if self.readers > 0 {
            return Err(Refusal::HasReaders);
        }
        let before = if self.stored.is_some() { Before::Exists } else { Before::Absent };
        self.phase = Phase::Writing(Box::new(Writing {
            writer,
            size: before_size,
            times: Times { lacked: self.lacked(), ..Times::of(modified) },
            is_staged: false,
        }));
        self.pages_stale = true;
        Ok(before)
    }

    /// Puts the file into the stage under this number, with the object's bytes. Returns whether there is an object.
    pub(super) fn stage(&mut self, number: u64) -> Result<Before, Refusal> {
        let times = match &self.phase {
            Phase::Writing(writing) => return Err(Refusal::Busy { writer: writing.writer }),
            Phase::New { times } => **times,
            Phase::Stored => Times::of(self.stored.as_ref().map_or(SystemTime::UNIX_EPOCH, Stored::modified)),
        };
        let size = self.stored.as_ref().map_or(0, Stored::size);
        self.phase = Phase::Writing(Box::new(Writing { writer: number, size, times, is_staged: true }));
        Ok(if self.stored.is_some() { Before::Exists } else { Before::Absent })
    }

    /// Whether the file lies in the stage.
    pub(super) fn is_staged(&self) -> bool {
        matches!(&self.phase, Phase::Writing(writing) if writing.is_staged)
    }

    /// When S3 last lacked the name of a file that has no object.
    pub(super) fn lacked(&self) -> Option<Instant> {
        match &self.phase {
            Phase::New { times } => times.lacked,
            Phase::Writing(writing) => writing.times.lacked,
            Phase::Stored => None,
        }
    }

    pub(super) fn set_lacked(&mut self, since: Option<Instant>) {
        match &mut self.phase {
            Phase::New { times } => times.lacked = since,
            Phase::Writing(writing) => writing.times.lacked = since,
            Phase::Stored => {}
        }
    }

    /// Notes that the file has an object now, and stays in the stage.
    pub(super) fn stored_from_stage(&mut self, meta: &ObjectMeta, until: Instant) {
        self.set_lacked(None);
        self.stored = Some(Stored::new(meta, Teller::Upload, Some(until)));
    }

    /// Takes the file out of the stage: its known object counts from then on. Returns the times that the file showed.
    pub(super) fn leave_stage(&mut self) -> Option<Times> {
        match std::mem::replace(&mut self.phase, Phase::Stored) {
            Phase::Writing(writing) => Some(writing.times),
            Phase::Stored | Phase::New { .. } => None,
        }
    }

    /// Notes the size and time that the writer reached.
    pub(super) fn written(&mut self, size: u64, modified: SystemTime) {
        if let Phase::Writing(writing) = &mut self.phase {
            (writing.size, writing.times.modified) = (writing.size.max(size), modified);
        }
    }

    /// Sets the times that the file shows until it is stored.
    pub(super) fn set_times(&mut self, accessed: Option<SystemTime>, modified: Option<SystemTime>) {
        let times = match &mut self.phase {
            Phase::New { times, .. } => &mut **times,
            Phase::Writing(writing) => &mut writing.times,
            Phase::Stored => return,
        };
        times.accessed = accessed.unwrap_or(times.accessed);
        times.modified = modified.unwrap_or(times.modified);
    }

    /// Notes that the upload is complete. A stat may rely on the new object for the TTL.
    pub(super) fn commit(&mut self, meta: &ObjectMeta, until: Instant) {
        self.stored = Some(Stored::new(meta, Teller::Upload, Some(until)));
        self.phase = Phase::Stored;
    }

    /// Notes that the upload was given up. Returns whether S3 had an object before (and may have it still).
    pub(super) fn abandon(&mut self) -> bool {
        if !self.is_local() {
            return true;
        }
        self.phase = Phase::Stored;
        if let Some(stored) = &mut self.stored {
            stored.doubt();
        }
        self.stored.is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::object::ETag;

    fn meta(version: u64) -> ObjectMeta {
        ObjectMeta {
            size: version,
            etag: ETag::new(format!("\"{version}\"")),
            last_modified: SystemTime::UNIX_EPOCH,
            readable: true,
        }
    }

    fn stored() -> File {
        File::stored(&meta(1), Teller::Object, Instant::now(), Instant::now())
    }

    const OVERWRITE: WriteWish =
        WriteWish { truncate: true, append: false, allow_overwrite: true, allow_append: false };

    #[test]
    fn an_inode_is_small() {
        assert!(
            size_of::<Inode>() <= 128,
            "{} bytes, and that many are held of every name",
            size_of::<Inode>()
        );
    }

    #[test]
    fn replacing_an_object_names_what_would_allow_it() {
        let refusal = |wish| match stored().open_write(1, wish, SystemTime::UNIX_EPOCH) {
            Err(Refusal::Error(ErrorKind::NotPermitted(why))) => why,
            other => panic!("{other:?}"),
        };
        assert!(refusal(WriteWish { truncate: true, ..Default::default() }).contains("--allow-overwrite"));
        assert!(refusal(WriteWish { allow_overwrite: true, ..Default::default() }).contains("O_TRUNC"));
        assert!(
            refusal(WriteWish { append: true, allow_overwrite: true, ..Default::default() })
                .contains("append")
        );
        assert_eq!(stored().open_write(1, OVERWRITE, SystemTime::UNIX_EPOCH).unwrap(), Before::Exists);
        let append = WriteWish { append: true, allow_append: true, ..Default::default() };
        let mut file = stored();
        assert_eq!(file.open_write(1, append, SystemTime::UNIX_EPOCH).unwrap(), Before::Exists);
        assert!(matches!(&file.phase, Phase::Writing(writing) if writing.size == 1), "it has its bytes");
    }

    #[test]
    fn pages_of_before_a_write_are_dropped_once() {
        let mut file = stored();
        assert!(file.open_read().unwrap().1);
        file.close_read();
        file.open_write(1, OVERWRITE, SystemTime::UNIX_EPOCH).unwrap();
        file.commit(&meta(2), Instant::now());
        assert!(!file.open_read().unwrap().1);
        assert!(file.open_read().unwrap().1);
    }

    #[test]
    fn an_archived_object_is_not_opened() {
        let mut file = File::stored(
            &ObjectMeta { readable: false, ..meta(1) },
            Teller::Object,
            Instant::now(),
            Instant::now(),
        );
        assert!(matches!(file.open_read(), Err(Refusal::Error(ErrorKind::Archived))));
        assert_eq!(file.readers, 0);
    }

    proptest! {
        /// Random transitions: the file always has one writer or readers, and giving up never loses S3's object.
        #[test]
        fn a_file_has_readers_or_one_writer(
            exists in any::<bool>(),
            steps in prop::collection::vec((0u8..5, any::<bool>(), any::<bool>()), 0..40),
        ) {
            let now = Instant::now();
            let mut file = if exists { stored() } else { File::new(now, SystemTime::UNIX_EPOCH) };
            let mut version = 1;
            let mut there = exists;
            for (i, (step, truncate, allow_overwrite)) in steps.into_iter().enumerate() {
                let writing = matches!(file.phase, Phase::Writing { .. });
                let readers = file.readers;
                match step {
                    0 => {
                        let opened = file.open_read().is_ok();
                        prop_assert_eq!(opened, there && !writing);
                    }
                    1 if readers > 0 => file.close_read(),
                    2 => {
                        let wish = WriteWish { truncate, allow_overwrite, ..WriteWish::default() };
                        let opened = file.open_write(i as u64, wish, SystemTime::UNIX_EPOCH).is_ok();
                        prop_assert_eq!(opened, !writing && readers == 0 && (!there || (truncate && allow_overwrite)));
                    }
                    3 if writing => {
                        version += 1;
                        file.commit(&meta(version), now);
                        there = true;
                    }
                    4 if writing => {
                        prop_assert_eq!(file.abandon(), there);
                        if !there {
                            return Ok(());
                        }
                    }
                    _ => {}
                }
                let is_written = matches!(file.phase, Phase::Writing { .. });
                prop_assert!(file.readers == 0 || !is_written);
                prop_assert_eq!(file.stored.as_ref().map(Stored::size), there.then_some(version));
            }
        }
    }
}
