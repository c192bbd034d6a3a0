//! Pages of a listing and local names, merged into one order without doubles. Pure.
//!
//! S3 sends keys in byte order, and a directory counts with its `/`: `a`, `a-b`, `a/`. So only a listing that has passed `a/`, perhaps
//! pages later, shows whether a directory `a` hides the file `a`. The merge holds the file until then, and returns entries in the order
//! of name + `/`. The held files are prefixes of each other: at most 255.
//!
//! If a store sends pages out of order, the merge remembers every name it has returned from the first such page on, and returns only new
//! names.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use super::EntryNo;
use crate::object::ObjectMeta;

/// A name in the listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Box<str>,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Directory,
    /// A directory by the object beside it that marks it, unless a file or directory has the name. Returned as a directory.
    Marked,
    File(ObjectMeta),
    /// The name exists only here.
    Local(EntryNo),
}

impl Entry {
    fn is_directory(&self) -> bool {
        matches!(self.what, What::Directory | What::Marked)
    }
}

/// The order in which the merge returns entries: by name + `/`.
pub(crate) fn order(a: &str, b: &str) -> Ordering {
    compare((a, true), (b, true))
}

/// The order in which S3 sends entries.
fn sent(a: &Entry, b: &Entry) -> Ordering {
    compare((&a.name, a.is_directory()), (&b.name, b.is_directory()))
}

/// Compares two names by bytes. A name whose flag is set counts with a `/` behind it.
fn compare((a, a_ends): (&str, bool), (b, b_ends): (&str, bool)) -> Ordering {
    let both = a.len().min(b.len());
    let (a_head, a_rest) = a.as_bytes().split_at(both);
    let (b_head, b_rest) = b.as_bytes().split_at(both);
    let slash = |ends: bool| ends.then_some(&b'/');
    a_head
        .cmp(b_head)
        .then_with(|| a_rest.iter().chain(slash(a_ends)).cmp(b_rest.iter().chain(slash(b_ends))))
}

#[derive(Debug)]
pub(crate) struct Merge {
    /// Local names in `order`, last first, that the merge has not returned yet.
    locals: Vec<(Box<str>, EntryNo)>,
    /// Files that a directory may still hide; each is a prefix of the next.
    waiting: Vec<Entry>,
    /// S3's last entry.
    last: Option<Entry>,
    /// Names of earlier pages that begin the last name: `a` and `a/`, whose mark `a_$folder$` comes behind both.
    begins: Vec<Box<str>>,
    /// Returned names (hashed, with a key of this process), once pages came out of order.
    seen: Option<(RandomState, HashSet<u64>)>,
}

impl Merge {
    pub(crate) fn new(locals: impl IntoIterator<Item = (Box<str>, EntryNo)>) -> Self {
        let mut locals: Vec<_> = locals.into_iter().collect();
        locals.sort_unstable_by(|a, b| order(&b.0, &a.0));
        Self { locals, waiting: Vec::new(), last: None, begins: Vec::new(), seen: None }
    }

    /// Whether all pages came in order so far.
    pub(crate) fn is_sorted(&self) -> bool {
        self.seen.is_none()
    }

    /// Takes one page in, and returns the entries that are certain. Calls `left` with every name that was returned before.
    pub(crate) fn page(
        &mut self,
        mut page: Vec<Entry>,
        out: &mut Vec<Entry>,
        left: impl FnOnce(&mut dyn FnMut(&str)),
    ) {
        self.settle_marks(&mut page);
        page.sort_by(sent);
        let (Some(first), Some(end)) = (page.first(), page.last().cloned()) else { return };
        let in_order = self.last.as_ref().is_none_or(|last| sent(last, first).is_lt());
        if self.is_sorted() && !in_order {
            let (hasher, mut seen) = (RandomState::new(), HashSet::new());
            left(&mut |name| {
                seen.insert(hasher.hash_one(name));
            });
            self.seen = Some((hasher, seen));
        }
        self.last = Some(end);
        if self.seen.is_some() {
            return self.unsorted_page(page, out);
        }
        for entry in page {
            self.release(&entry, out);
            match entry.what {
                What::Directory => {
                    if self.waiting.last().is_some_and(|file| file.name == entry.name) {
                        self.waiting.pop();
                    }
                    self.emit(entry, out);
                }
                // The page has one key twice.
                _ if self.waiting.last().is_some_and(|file| file.name == entry.name) => {}
                _ => self.waiting.push(entry),
            }
        }
    }

    /// Ends the listing, and returns the rest.
    pub(crate) fn finish(&mut self, out: &mut Vec<Entry>) {
        while let Some(file) = self.waiting.pop() {
            self.emit(file, out);
        }
        while let Some((name, ino)) = self.locals.pop() {
            out.push(Entry { name, what: What::Local(ino) });
        }
    }

    /// Resolves marks: a mark stands for a directory, unless a file or directory has the name. Those come before the mark, perhaps pages
    /// before.
    fn settle_marks(&mut self, page: &mut Vec<Entry>) {
        let is_mark = |entry: &Entry| entry.what == What::Marked;
        if page.iter().any(is_mark) {
            let others = page.iter().filter(|entry| !is_mark(entry));
            let names: HashSet<Box<str>> =
                others.map(|entry| &entry.name).chain(&self.begins).cloned().collect();
            page.retain(|entry| !is_mark(entry) || !names.contains(&entry.name));
            page.iter_mut().filter(|entry| is_mark(entry)).for_each(|entry| entry.what = What::Directory);
        }
        if let Some(last) = page.iter().max_by(|a, b| sent(a, b)).map(|entry| entry.name.clone()) {
            let begins = page.iter().filter(|entry| last.starts_with(&*entry.name));
            let begins: Vec<_> = begins.map(|entry| entry.name.clone()).collect();
            self.begins.retain(|name| last.starts_with(&**name) && !begins.contains(name));
            self.begins.extend(begins);
        }
    }

    /// Releases the held files that no entry from `next` on can hide.
    fn release(&mut self, next: &Entry, out: &mut Vec<Entry>) {
        while let Some(file) = self.waiting.last() {
            if compare((&file.name, true), (&next.name, next.is_directory())).is_ge() {
                return;
            }
            let file = self.waiting.pop().expect("looked at above");
            self.emit(file, out);
        }
    }

    /// Returns a remote entry, and the local ones before it. A local file hides a remote one.
    fn emit(&mut self, entry: Entry, out: &mut Vec<Entry>) {
        while let Some((name, _)) = self.locals.last() {
            match order(name, &entry.name) {
                Ordering::Greater => break,
                Ordering::Less => {
                    let (name, ino) = self.locals.pop().expect("looked at above");
                    out.push(Entry { name, what: What::Local(ino) });
                }
                Ordering::Equal => {
                    let (name, ino) = self.locals.pop().expect("looked at above");
                    let what = match entry.what {
                        What::Directory => What::Directory,
                        _ => What::Local(ino),
                    };
                    out.push(Entry { name, what });
                    return;
                }
            }
        }
        // The page has one directory twice.
        if out.last().is_none_or(|last| last.name != entry.name) {
            out.push(entry);
        }
    }

    /// Handles a page out of order: directories first, each name once, local names at the end.
    fn unsorted_page(&mut self, mut page: Vec<Entry>, out: &mut Vec<Entry>) {
        page.append(&mut self.waiting);
        page.sort_by_key(|entry| !entry.is_directory());
        let Some((hasher, seen)) = &mut self.seen else { return };
        for entry in page {
            let local = self.locals.binary_search_by(|(name, _)| order(&entry.name, name));
            match (&entry.what, local) {
                (What::Directory, Ok(at)) => drop(self.locals.remove(at)),
                (_, Ok(_)) => continue,
                (_, Err(_)) => {}
            }
            if seen.insert(hasher.hash_one(&*entry.name)) {
                out.push(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use proptest::prelude::*;

    use super::*;
    use crate::object::ETag;

    fn file(name: &str) -> Entry {
        let meta = ObjectMeta {
            size: 1,
            etag: ETag::new("e"),
            last_modified: SystemTime::UNIX_EPOCH,
            readable: true,
        };
        Entry { name: name.into(), what: What::File(meta) }
    }

    fn directory(name: &str) -> Entry {
        Entry { name: name.into(), what: What::Directory }
    }

    fn run(locals: &[(&str, u64)], pages: Vec<Vec<Entry>>) -> Vec<Entry> {
        let mut merge = Merge::new(locals.iter().map(|(name, ino)| ((*name).into(), EntryNo(*ino))));
        let mut out: Vec<Entry> = Vec::new();
        for page in pages {
            let mut new = Vec::new();
            merge.page(page, &mut new, |seen| out.iter().for_each(|entry| seen(&entry.name)));
            out.append(&mut new);
        }
        merge.finish(&mut out);
        out
    }

    fn names(entries: &[Entry]) -> Vec<&str> {
        entries.iter().map(|entry| &*entry.name).collect()
    }

    #[test]
    fn a_directory_hides_the_file_of_its_name_even_pages_later() {
        let pages = vec![vec![file("a"), file("a-1")], vec![file("a.2")], vec![directory("a"), file("b")]];
        let out = run(&[], pages);
        assert_eq!(names(&out), ["a-1", "a.2", "a", "b"]);
        assert_eq!(out[2], directory("a"));
    }

    #[test]
    fn local_entries_stand_between_remote_directories_and_remote_files() {
        let out = run(&[("d", 7), ("f", 8), ("l", 9)], vec![vec![directory("d"), file("f"), file("z")]]);
        let local = |ino| What::Local(EntryNo(ino));
        let expected = [("d", What::Directory), ("f", local(8)), ("l", local(9)), ("z", file("z").what)];
        let expected = expected.map(|(name, what)| Entry { name: name.into(), what });
        assert_eq!(out, expected);
    }

    /// Names over few letters, so that prefixes, duplicates and `-`, `.`, `0` around `/` are common.
    fn name() -> impl Strategy<Value = String> {
        "[a\\-.0]{1,3}".prop_filter("dots", |n| n != "." && n != "..")
    }

    proptest! {
        #[test]
        fn every_name_leaves_once_as_the_one_that_precedes(
            files in prop::collection::btree_set(name(), 0..12),
            directories in prop::collection::btree_set(name(), 0..6),
            locals in prop::collection::btree_set(name(), 0..6),
            page_size in 1usize..5,
            shuffle in prop::option::of(prop::collection::vec(any::<prop::sample::Index>(), 20)),
        ) {
            let mut sent_entries: Vec<Entry> = files.iter().map(|n| file(n)).collect();
            sent_entries.extend(directories.iter().map(|n| directory(n)));
            sent_entries.sort_by(sent);
            let sorted = shuffle.is_none();
            for (i, other) in shuffle.iter().flatten().enumerate() {
                if i < sent_entries.len() {
                    let j = other.index(sent_entries.len());
                    sent_entries.swap(i, j);
                    // Some names appear twice.
                    if j % 3 == 0 {
                        let twice = sent_entries[j].clone();
                        sent_entries.push(twice);
                    }
                }
            }
            let local_names: Vec<_> =
                locals.iter().enumerate().map(|(i, n)| (n.as_str(), i as u64 + 100)).collect();
            let pages = sent_entries.chunks(page_size).map(<[_]>::to_vec).collect();
            let out = run(&local_names, pages);

            let mut model: BTreeMap<&str, What> = BTreeMap::new();
            model.extend(files.iter().map(|n| (n.as_str(), file(n).what)));
            model.extend(local_names.iter().map(|(n, ino)| (*n, What::Local(EntryNo(*ino)))));
            model.extend(directories.iter().map(|n| (n.as_str(), What::Directory)));
            let mut shown = names(&out);
            if sorted {
                prop_assert!(shown.windows(2).all(|w| order(w[0], w[1]).is_lt()), "{:?}", shown);
                for entry in &out {
                    prop_assert_eq!(&entry.what, &model[&*entry.name]);
                }
            }
            shown.sort_unstable();
            prop_assert_eq!(shown, model.keys().copied().collect::<Vec<_>>());
        }
    }
}
