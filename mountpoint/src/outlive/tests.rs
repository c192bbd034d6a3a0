//! Tests of the journal against a plain map of records, cut at any store, and against memfds that are not a journal.

use std::collections::BTreeMap;
use std::fs::File as Opened;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::record::tests::{a_directory, a_file, asked};
use super::*;
use crate::sync::atomic::Ordering::Relaxed;

fn a_journal() -> Journal {
    let identity = Identity { bucket: "bucket".into(), prefix: "p/".into(), ..Identity::default() };
    Journal::create(identity).expect("memfds are there")
}

/// The journal as the next engine finds it.
fn after(journal: Journal) -> Result<(Journal, Restored), Refused> {
    let shared = journal.shared.try_clone().unwrap();
    drop(journal);
    Journal::adopt(shared)
}

fn listing(handle: u64, ends: [(u64, &str); 2]) -> Record {
    let places = ends.map(|(offset, name)| Place { offset, name: name.into() });
    Record::Listing(Listing { handle, ino: 1, places, asked: None })
}

/// All records by subject.
fn records(restored: Restored) -> BTreeMap<Subject, Record> {
    let directories = restored.directories.into_iter().map(Record::Directory);
    let files = restored.files.into_iter().map(Record::File);
    let listings = restored.listings.into_iter().map(Record::Listing);
    directories.chain(files).chain(listings).map(|record| (record.subject(), record)).collect()
}

#[test]
fn what_was_recorded_outlives_its_engine_and_a_second_engine_is_refused() {
    let journal = a_journal();
    let marks = (journal.raise(Mark::Inodes, 2), journal.raise(Mark::Handles, 1));
    let agreed = Agreed { greeting: Greeting::Done, connection: 44, passthrough: true, wished: None };
    journal.agree(agreed).unwrap();
    for record in [a_directory(7, 1, "d"), a_file(1), listing(2, [(0, ""), (0, "")])] {
        journal.record(&record);
    }
    journal.record(&listing(2, [(0, ""), (9, "last")]));
    journal.record(&a_directory(8, 7, "gone"));
    journal.forget_directory(8);
    assert!(matches!(Journal::adopt(journal.shared.try_clone().unwrap()), Err(Refused::InUse)));
    let (journal, restored) = after(journal).unwrap();
    assert_eq!((journal.marks().inodes, journal.marks().handles), marks);
    assert_eq!((journal.agreed(), journal.identity().bucket.as_str()), (agreed, "bucket"));
    let expected = [a_directory(7, 1, "d"), a_file(1), listing(2, [(0, ""), (9, "last")])];
    assert_eq!(records(restored), expected.into_iter().map(|it| (it.subject(), it)).collect());
    assert!(journal.raise(Mark::Inodes, 2) >= marks.0, "a mark never falls");
}

#[test]
fn a_handle_is_unanswered_once_its_request_comes_again() {
    let journal = a_journal();
    journal.raise(Mark::Inodes, 2);
    journal.raise(Mark::Handles, 1);
    // One number of a file and of a directory: they have tables of their own.
    journal.record(&asked(a_file(1), 40));
    journal.record(&asked(listing(1, [(0, ""), (0, "")]), 42));
    journal.record(&asked(a_file(2), 44));
    journal.record(&a_file(2));
    journal.record(&asked(a_file(3), 46));
    journal.forget_file(3);
    assert_eq!(journal.unanswered(40 | RESENT), None, "no earlier engine opened it");
    let (journal, restored) = after(journal).unwrap();
    assert_eq!((restored.files.len(), restored.listings.len()), (2, 1));
    let found = [40, 42, 44, 46].map(|unique| journal.unanswered(unique | RESENT));
    assert_eq!(found, [Some(Handle::File(1)), Some(Handle::Listing(1)), None, None]);
    assert_eq!(journal.unanswered(40 | RESENT), None, "once");
    // It stays noted for the engine after this one, as long as the handle is.
    let (journal, _) = after(journal).unwrap();
    assert_eq!(journal.unanswered(40 | RESENT), Some(Handle::File(1)));
}

#[test]
fn a_request_that_is_sent_to_the_fourth_engine_is_refused_within_a_minute() {
    let mut journal = a_journal();
    let mut now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push((journal.refuses(4 | RESENT, now), journal.refuses(now_unique(now), now)));
        now += Duration::from_secs(20);
        journal = after(journal).unwrap().0;
    }
    assert_eq!(answers, [(false, false), (false, false), (true, false)]);
    assert!(!journal.refuses(4 | RESENT, now + Duration::from_secs(61)), "an engine lived long since");
    (0..100).for_each(|i| assert!(!journal.refuses(1000 + i, now)));
    assert!(journal.state.lock().again.len() <= header::AGAIN_MAX);
}

/// A request with a new number each time.
fn now_unique(now: SystemTime) -> u64 {
    (now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() * 2) | RESENT
}

#[test]
fn a_directory_takes_at_most_256_bytes_beside_its_name() {
    let journal = a_journal();
    (2..1002).for_each(|i| journal.record(&a_directory(i, 1, &format!("directory-{i:050}"))));
    let (count, bytes) = journal.table.size();
    assert_eq!(count, 1000);
    assert!(bytes / 1000 <= 256, "{} bytes", bytes / 1000);
}

#[test]
fn a_full_journal_keeps_what_it_has_and_still_follows_its_changes() {
    let journal = a_journal();
    journal.raise(Mark::Inodes, 1 << 20);
    journal.raise(Mark::Handles, 10);
    journal.record(&listing(1, [(0, ""), (0, "")]));
    let longest = "n".repeat(255);
    (2..200_000).for_each(|i| journal.record(&a_directory(i, 1, &longest)));
    let (full, _) = journal.table.size();
    assert!((120_000..140_000).contains(&full), "{full}");
    // A longer record than the slot of before: what can't be said any more is not said wrongly.
    journal.record(&listing(1, [(0, ""), (9, &"n".repeat(200))]));
    journal.record(&a_directory(5, 1, "renamed"));
    journal.forget_directory(6);
    journal.record(&a_directory(700_000, 1, "in its place"));
    let (_, restored) = after(journal).unwrap();
    let records = records(restored);
    assert_eq!(records.get(&Subject::Inode(5)), Some(&a_directory(5, 1, "renamed")));
    assert!(records.contains_key(&Subject::Inode(700_000)) && !records.contains_key(&Subject::Inode(6)));
    assert!(!records.contains_key(&Subject::Listing(1)));
}

/// A memfd that a holder could pass in place of a journal.
fn a_memfd(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let file = memfd_create("any", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let mut writer = Opened::from(file);
    writer.write_all(bytes).unwrap();
    fcntl_add_seals(&writer, seals).unwrap();
    writer.into()
}

#[test]
fn what_is_no_journal_is_refused_with_the_reason() {
    let whole = {
        let journal = a_journal();
        journal.raise(Mark::Inodes, 2);
        journal.record(&a_directory(7, 1, "d"));
        let file = Opened::from(journal.shared.try_clone().unwrap());
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let changed = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let refused = |bytes: &[u8]| Journal::adopt(a_memfd(bytes, SealFlags::SHRINK)).unwrap_err();
    assert!(Journal::adopt(a_memfd(&whole, SealFlags::SHRINK)).is_ok());
    assert!(matches!(Journal::adopt(a_memfd(&whole, SealFlags::GROW)).unwrap_err(), Refused::Unsealed));
    let plain = Opened::from(OwnedFd::from(tempfile::tempfile().unwrap()));
    assert!(matches!(Journal::adopt(plain.into()).unwrap_err(), Refused::Unsealed));
    assert!(matches!(refused(&whole[..5000]), Refused::Length(5000)));
    assert!(matches!(refused(b""), Refused::Length(0)));
    assert!(matches!(refused(&vec![0; 65 << 20]), Refused::Length(_)));
    assert!(matches!(refused(&changed(0)), Refused::Foreign));
    assert!(matches!(refused(&changed(8)), Refused::Version(17)));
    for (at, part) in [(20, "range of numbers"), (70, "greeting"), (2060, "bucket and prefix")] {
        assert!(matches!(refused(&changed(at)), Refused::Damaged(said) if said == part), "{part}");
    }
    let sealed_for_writing = Journal::adopt(a_memfd(&whole, SealFlags::SHRINK | SealFlags::WRITE));
    assert!(matches!(sealed_for_writing.unwrap_err(), Refused::Unsealed));
    // A torn slot is not a record, and the rest goes on.
    let adopted = |bytes: &[u8]| Journal::adopt(a_memfd(bytes, SealFlags::SHRINK)).unwrap().1;
    assert_eq!(adopted(&whole).directories.len(), 1);
    assert_eq!(adopted(&changed(65536 + 20)), Restored::default());
}

#[test]
fn the_flags_of_another_mount_are_refused() {
    let identity = Identity { bucket: "b".into(), prefix: "p/".into(), ..Identity::default() };
    identity.check("b", "p/", "").unwrap();
    for (bucket, prefix, endpoint) in [("c", "p/", ""), ("b", "", ""), ("b", "p/", "http://store")] {
        let said = identity.check(bucket, prefix, endpoint).unwrap_err().to_string();
        assert!(said.contains("bucket \"b\", prefix \"p/\" at AWS"), "{said}");
    }
}

/// One change of a journal.
#[derive(Clone, Debug)]
enum Step {
    Directory(u64, String),
    Listing(u64, u64, String),
    File(u64),
    Open(u64, u64),
    Close(u64),
    CloseListing(u64),
    Forget(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || "[a-z]{1,200}";
    let step = prop_oneof![
        3 => (2u64..8, name()).prop_map(|(number, name)| Step::Directory(number, name)),
        3 => (1u64..5, 3u64..99, name()).prop_map(|(handle, at, name)| Step::Listing(handle, at, name)),
        2 => (1u64..5).prop_map(Step::File),
        2 => (1u64..5, 1u64..99).prop_map(|(handle, unique)| Step::Open(handle, unique)),
        1 => (1u64..5).prop_map(Step::Close),
        1 => (1u64..5).prop_map(Step::CloseListing),
        1 => (2u64..8).prop_map(Step::Forget),
    ];
    prop::collection::vec(step, 1..40)
}

type Model = BTreeMap<Subject, Record>;

fn apply(journal: &Journal, model: &mut Model, step: &Step) {
    let record = match step {
        Step::Directory(number, name) => a_directory(*number, 1, name),
        Step::Listing(handle, at, name) => listing(*handle, [(2, ""), (*at, name)]),
        Step::File(handle) => a_file(*handle),
        Step::Open(handle, unique) => asked(a_file(*handle), *unique),
        Step::Close(handle) => {
            journal.forget_file(*handle);
            model.remove(&Subject::File(*handle));
            return;
        }
        Step::CloseListing(handle) => {
            journal.forget_listing(*handle);
            model.remove(&Subject::Listing(*handle));
            return;
        }
        Step::Forget(number) => {
            journal.forget_directory(*number);
            model.remove(&Subject::Inode(*number));
            return;
        }
    };
    journal.record(&record);
    model.insert(record.subject(), record);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Kills the engine at any store, also in its middle. The next one finds the state of before or after the interrupted operation,
    /// or that after it without the number of a request.
    #[test]
    fn a_journal_cut_at_any_store_is_that_before_or_after_the_operation(
        steps in steps(), more in steps(), cut in 1u64..60
    ) {
        let journal = a_journal();
        journal.raise(Mark::Inodes, 100);
        journal.raise(Mark::Handles, 100);
        journal.table.stores_left.store(cut, Relaxed);
        let (mut model, mut states) = (Model::new(), Vec::new());
        for step in &steps {
            states = vec![model.clone()];
            apply(&journal, &mut model, step);
            states.push(model.clone());
            if let Step::Open(handle, _) = step {
                // Half a slot before an earlier record of the same content is whole but for the number behind it.
                let mut torn = model.clone();
                torn.insert(Subject::File(*handle), a_file(*handle));
                states.push(torn);
            }
            if journal.table.stores_left.load(Relaxed) == 0 {
                break;
            }
        }
        let (journal, restored) = after(journal).unwrap();
        let found = records(restored);
        prop_assert!(states.contains(&found), "{found:?} is neither of {states:?}");
        // The table that was found is as good as a new one.
        let mut model = found;
        for step in &more {
            apply(&journal, &mut model, step);
        }
        let (_, restored) = after(journal).unwrap();
        prop_assert_eq!(records(restored), model);
    }
}
