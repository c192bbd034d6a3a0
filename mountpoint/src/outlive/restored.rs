//! The meaning of a journal's records together. Pure. Enters: records in any order. Leaves: directories, each before its entries.

use foldhash::{HashMap, HashMapExt as _, HashSet};

use super::Handle;
use super::header::Marks;
use super::record::{Directory, File, Listing, Records, Subject};

/// The directory that is mounted.
const ROOT: u64 = 1;

/// The records of an engine that is gone.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Directories, each after its parent.
    pub directories: Vec<Directory>,
    /// Open files. Those of one inode are of one version.
    pub files: Vec<File>,
    /// Open directories.
    pub listings: Vec<Listing>,
}

impl Restored {
    /// The valid records, and the subjects of the others: numbers beyond the marks, directories without a parent or in a circle, handles
    /// of unrecorded subjects, one number for two subjects.
    pub(super) fn of(records: Records, marks: Marks) -> (Self, Vec<Subject>) {
        let Records { mut directories, mut files, mut listings } = records;
        let mut dropped = Vec::new();
        directories.retain(|it| is_kept(it.number < marks.inodes, Subject::Inode(it.number), &mut dropped));
        files.retain(|it| {
            let is_given_out = it.handle < marks.handles && it.ino < marks.inodes;
            is_kept(is_given_out, Subject::File(it.handle), &mut dropped)
        });
        listings.retain(|it| is_kept(it.handle < marks.handles, Subject::Listing(it.handle), &mut dropped));
        let directories = parents_first(directories, &mut dropped);
        let asked = files.iter().flat_map(|it| [it.parent, it.ino]).chain(listings.iter().map(|it| it.ino));
        let asked: HashSet<u64> = asked.collect();
        let numbers = directories.iter().map(|it| it.number).chain(std::iter::once(ROOT));
        let is_directory: HashSet<u64> = numbers.filter(|number| asked.contains(number)).collect();
        files.sort_unstable_by_key(|it| it.ino);
        let mut first = 0;
        let are_sound: Vec<bool> = (0..files.len())
            .map(|at| {
                if files[at].ino != files[first].ino {
                    first = at;
                }
                let (one, of_first) = (&files[at], &files[first]);
                is_directory.contains(&one.parent)
                    && !is_directory.contains(&one.ino)
                    && (one.parent, &one.name, &one.etag, one.size)
                        == (of_first.parent, &of_first.name, &of_first.etag, of_first.size)
            })
            .collect();
        let mut are_sound = are_sound.into_iter();
        files.retain(|it| is_kept(are_sound.next() == Some(true), Subject::File(it.handle), &mut dropped));
        listings
            .retain(|it| is_kept(is_directory.contains(&it.ino), Subject::Listing(it.handle), &mut dropped));
        (Self { directories, files, listings }, dropped)
    }

    /// Handles by the request that they answer.
    pub(super) fn asked(&self) -> HashMap<u64, Handle> {
        let files = self.files.iter().filter_map(|it| Some((it.asked?, Handle::File(it.handle))));
        let listings = self.listings.iter().filter_map(|it| Some((it.asked?, Handle::Listing(it.handle))));
        files.chain(listings).collect()
    }
}

/// Notes a subject that is not kept.
fn is_kept(keeps: bool, subject: Subject, dropped: &mut Vec<Subject>) -> bool {
    dropped.extend((!keeps).then_some(subject));
    keeps
}

/// Orders directories so that each comes after its parent. Directories in a circle or without a parent are dropped.
fn parents_first(mut directories: Vec<Directory>, dropped: &mut Vec<Subject>) -> Vec<Directory> {
    directories.sort_unstable_by_key(|it| it.number);
    if are_parents_first(&directories) {
        return directories;
    }
    let mut below: HashMap<u64, Vec<Directory>> = HashMap::new();
    for directory in directories {
        below.entry(directory.parent).or_default().push(directory);
    }
    let mut ordered: Vec<Directory> = below.remove(&ROOT).unwrap_or_default();
    let mut next = 0;
    while let Some(directory) = ordered.get(next) {
        next += 1;
        if let Some(inside) = below.remove(&directory.number) {
            ordered.extend(inside);
        }
    }
    dropped.extend(below.into_values().flatten().map(|it| Subject::Inode(it.number)));
    ordered
}

/// Whether each directory's parent is before it, in the order of numbers: a parent gets its number first, unless a directory was moved.
fn are_parents_first(directories: &[Directory]) -> bool {
    let mut found = ROOT;
    directories.iter().enumerate().all(|(at, it)| {
        let is_found = it.parent == ROOT
            || it.parent == found
            || directories[..at].binary_search_by_key(&it.parent, |other| other.number).is_ok();
        found = it.parent;
        is_found
    })
}

#[cfg(test)]
mod tests {
    use super::super::record::Record;
    use super::super::record::tests::{a_directory, a_file};
    use super::*;

    const MARKS: Marks = Marks { inodes: 100, handles: 100 };

    fn of_all(records: Vec<Record>) -> (Restored, Vec<Subject>) {
        Restored::of(records.into_iter().collect(), MARKS)
    }

    fn numbers(restored: &Restored) -> Vec<u64> {
        restored.directories.iter().map(|it| it.number).collect()
    }

    #[test]
    fn directories_come_behind_the_one_that_they_are_in() {
        let records = vec![a_directory(5, 9, "c"), a_directory(9, 7, "b"), a_directory(7, 1, "a")];
        let (restored, dropped) = of_all(records);
        assert_eq!((numbers(&restored), dropped), (vec![7, 9, 5], vec![]));
    }

    #[test]
    fn directories_in_the_order_of_their_numbers_are_taken_as_they_are() {
        let records = vec![a_directory(9, 7, "c"), a_directory(7, 1, "a"), a_directory(8, 1, "b")];
        let (restored, dropped) = of_all(records);
        assert_eq!((numbers(&restored), dropped), (vec![7, 8, 9], vec![]));
    }

    #[test]
    fn circles_missing_parents_and_numbers_beyond_the_marks_are_dropped() {
        let records = vec![
            a_directory(5, 6, "a"),
            a_directory(6, 5, "b"),
            a_directory(7, 8, "of nothing"),
            a_directory(100, 1, "beyond"),
            a_directory(9, 1, "good"),
        ];
        let (restored, mut dropped) = of_all(records);
        dropped.sort_unstable();
        assert_eq!(numbers(&restored), [9]);
        assert_eq!(dropped, [5, 6, 7, 100].map(Subject::Inode));
    }

    #[test]
    fn handles_of_one_inode_are_of_one_version_and_of_no_directory() {
        let of = |handle, change: &dyn Fn(&mut File)| {
            let Record::File(mut file) = a_file(handle) else { unreachable!() };
            change(&mut file);
            Record::File(file)
        };
        let listing =
            |handle, ino| Record::Listing(Listing { handle, ino, places: Default::default(), asked: None });
        let records = vec![
            of(1, &|_| ()),
            of(2, &|_| ()),
            of(3, &|file| file.etag = "\"other\"".into()),
            of(4, &|file| file.parent = 50),
            of(5, &|file| file.ino = 20),
            of(100, &|_| ()),
            a_directory(20, 1, "d"),
            listing(6, 20),
            listing(7, 1),
            listing(8, 21),
        ];
        let (restored, mut dropped) = of_all(records);
        dropped.sort_unstable();
        assert_eq!(restored.files.iter().map(|it| it.handle).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(restored.listings.iter().map(|it| it.handle).collect::<Vec<_>>(), [6, 7]);
        let mut expected = [3, 4, 5, 100].map(Subject::File).to_vec();
        expected.push(Subject::Listing(8));
        assert_eq!(dropped, expected);
    }
}
