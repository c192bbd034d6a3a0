//! The meaning of a journal's records together. Pure. Enters: records in any order. Leaves: directories, each before its entries.

use foldhash::{HashMap, HashMapExt as _, HashSet};

use super::header::Marks;
use super::record::{Directory, File, Listing, Record, Subject};

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
    pub(super) fn of(records: Vec<Record>, marks: Marks) -> (Self, Vec<Subject>) {
        let (mut directories, mut files, mut listings) = (Vec::new(), Vec::new(), Vec::new());
        let mut dropped = Vec::new();
        for record in records {
            match record {
                Record::Directory(it) if it.number < marks.inodes => directories.push(it),
                Record::File(it) if it.handle < marks.handles && it.ino < marks.inodes => files.push(it),
                Record::Listing(it) if it.handle < marks.handles => listings.push(it),
                other => dropped.push(other.subject()),
            }
        }
        // The order of numbers gives a name to the later of two inodes.
        directories.sort_unstable_by_key(|it| it.number);
        files.sort_unstable_by_key(|it| it.ino);
        let directories = parents_first(directories, &mut dropped);
        let is_directory: HashSet<u64> =
            directories.iter().map(|it| it.number).chain(std::iter::once(ROOT)).collect();
        let mut versions: HashMap<u64, File> = HashMap::new();
        files.retain(|it| {
            let same = |other: &File| {
                (other.parent, &other.name, &other.etag, other.size)
                    == (it.parent, &it.name, &it.etag, it.size)
            };
            let first = versions.entry(it.ino).or_insert_with(|| it.clone());
            let keeps = is_directory.contains(&it.parent) && !is_directory.contains(&it.ino) && same(first);
            if !keeps {
                dropped.push(Subject::File(it.handle));
            }
            keeps
        });
        listings.retain(|it| {
            let keeps = is_directory.contains(&it.ino);
            if !keeps {
                dropped.push(Subject::Listing(it.handle));
            }
            keeps
        });
        (Self { directories, files, listings }, dropped)
    }
}

/// Orders directories so that each comes after its parent. Directories in a circle or without a parent are dropped.
fn parents_first(directories: Vec<Directory>, dropped: &mut Vec<Subject>) -> Vec<Directory> {
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

#[cfg(test)]
mod tests {
    use super::super::record::tests::{a_directory, a_file};
    use super::*;

    const MARKS: Marks = Marks { inodes: 100, handles: 100 };

    fn numbers(restored: &Restored) -> Vec<u64> {
        restored.directories.iter().map(|it| it.number).collect()
    }

    #[test]
    fn directories_come_behind_the_one_that_they_are_in() {
        let records = vec![a_directory(5, 9, "c"), a_directory(9, 7, "b"), a_directory(7, 1, "a")];
        let (restored, dropped) = Restored::of(records, MARKS);
        assert_eq!((numbers(&restored), dropped), (vec![7, 9, 5], vec![]));
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
        let (restored, mut dropped) = Restored::of(records, MARKS);
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
        let listing = |handle, ino| Record::Listing(Listing { handle, ino, places: Default::default() });
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
        let (restored, mut dropped) = Restored::of(records, MARKS);
        dropped.sort_unstable();
        assert_eq!(restored.files.iter().map(|it| it.handle).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(restored.listings.iter().map(|it| it.handle).collect::<Vec<_>>(), [6, 7]);
        let mut expected = [3, 4, 5, 100].map(Subject::File).to_vec();
        expected.push(Subject::Listing(8));
        assert_eq!(dropped, expected);
    }
}
