//! Tests of the caches that go to make room, and of those that stay though notes are lost.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::task::Poll;

use super::*;
use crate::mounter::testing::{isolated, request, runtime};

fn kept(mib: u64, source: &str, used: u64) -> Kept {
    Kept { mib, source: source.into(), used }
}

/// Sources without a readable note.
fn named(names: &[&str]) -> Sources {
    names.iter().map(|&it| (it.to_owned(), None)).collect()
}

/// A source that uses a cache, by its own note.
fn with(source: &str, cache: &str, mib: Option<u64>) -> (String, Option<Share>) {
    let share = Share { key: "k".into(), cache: Some(cache.into()), cache_mib: mib, ..Share::default() };
    (source.to_owned(), Some(share))
}

#[test]
fn the_oldest_unused_caches_make_room_and_those_in_use_stay() {
    let all = BTreeMap::from([
        ("a".to_owned(), State::Known(kept(30, "sh-1", 5))),
        ("b".to_owned(), State::Known(kept(30, "sh-2", 3))),
        ("c".to_owned(), State::Known(kept(30, "sh-3", 4))),
    ]);
    let chosen = |name, mib| to_remove(&all, &BTreeSet::from(["sh-3"]), (name, mib), 100);
    assert_eq!(chosen("d", 10), Ok(vec![]), "it fits");
    assert_eq!(chosen("d", 11), Ok(vec!["b".to_owned()]));
    assert_eq!(chosen("d", 70), Ok(vec!["b".to_owned(), "a".to_owned()]));
    let why = chosen("d", 71).unwrap_err();
    assert!(why.contains("71 MiB") && why.contains("30 of 100 MiB"), "{why}");
    assert_eq!(chosen("a", 40), Ok(vec![]), "its own size is free for it");
    assert!(chosen("c", 1).unwrap_err().contains("another source"));
    let stuck = BTreeMap::from([("b".to_owned(), State::Stays(30)), ("c".to_owned(), all["c"].clone())]);
    let chosen = |name, mib| to_remove(&stuck, &BTreeSet::new(), (name, mib), 100);
    assert_eq!(chosen("d", 70), Ok(vec!["c".to_owned()]));
    assert!(chosen("d", 71).unwrap_err().contains("30 of 100 MiB"), "the disk does not remove it");
    assert_eq!(chosen("b", 70), Ok(vec![]), "its own volume may have it");
}

#[test]
fn a_cache_that_no_note_tells_of_has_an_unknown_size_and_is_in_use() {
    let all = BTreeMap::from([
        ("a".to_owned(), State::Known(kept(30, "sh-1", 5))),
        ("b".to_owned(), State::Unknown),
    ]);
    let chosen = |name, mib| to_remove(&all, &BTreeSet::from(["sh-3"]), (name, mib), 100);
    for name in ["d", "b"] {
        let why = chosen(name, 1).unwrap_err();
        assert!(why.contains("shared-caches/b"), "{why}");
    }
    assert_eq!(chosen("a", 30), Ok(vec![]), "it has its room already");
    assert!(chosen("a", 31).is_err());
    let all = BTreeMap::from([("b".to_owned(), State::Unused)]);
    let chosen = |name| to_remove(&all, &BTreeSet::from(["sh-3"]), (name, 70), 100);
    assert_eq!(chosen("b"), Ok(vec![]), "nobody else can have it");
    assert_eq!(chosen("d"), Ok(vec!["b".to_owned()]), "no source is left that may use it");
}

#[test]
fn notes_of_sources_stand_in_for_the_unreadable_note_of_a_cache() {
    let state =
        |others: &[(String, Option<Share>)], own| by_sources("a", &others.iter().cloned().collect(), own);
    let (user, other) = (with("sh-1", "a", Some(30)), with("sh-2", "b", Some(30)));
    assert_eq!(state(&[user.clone(), other.clone()], None), State::Known(kept(30, "sh-1", 0)));
    assert_eq!(state(&[with("sh-1", "a", None)], None), State::Unknown, "an earlier driver noted no size");
    assert_eq!(state(std::slice::from_ref(&other), None), State::Unused);
    assert_eq!(state(&[other, ("sh-3".to_owned(), None)], None), State::Unknown);
    let own = kept(60, "sh-4", 7);
    assert_eq!(state(&[("sh-3".to_owned(), None)], Some(own.clone())), State::Known(own));
    let mut left_out = user;
    left_out.1.as_mut().unwrap().without_cache = true;
    assert_eq!(state(&[left_out], None), State::Unused, "its engine has no cache");
}

#[test]
fn volumes_of_one_bucket_have_caches_of_their_own() {
    let first = request("pv-1", "w1");
    assert_eq!(name_of(&first), name_of(&request("pv-1", "w2")));
    let elsewhere = MountRequest { place: "elsewhere".into(), ..first.clone() };
    for other in [request("pv-2", "w1"), elsewhere] {
        assert_ne!(name_of(&first), name_of(&other));
    }
    assert!(is_name(&name_of(&first)) && !is_name("lost+found") && !is_name(".."));
}

struct Home {
    caches: Caches,
    comm: Comm,
    root: PathBuf,
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (root, comm) = (folder.path().join("disk"), Comm::at(folder.path().join("comm")));
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(comm.directory()).unwrap();
        std::fs::write(comm.engines_cache(), "").unwrap();
        let disk = Disk { mib: 100, directory: Some(root.clone()) };
        Self { caches: Caches::of(folder.path(), Some(disk)), comm, root, folder }
    }

    fn take(&self, volume: &str, source: &str, mib: u64, sources: &[&str]) -> Result<PathBuf, String> {
        self.take_beside((volume, source, mib), named(sources))
    }

    fn take_beside(&self, wanted: (&str, &str, u64), sources: Sources) -> Result<PathBuf, String> {
        let turn = Turn { _choosing: Arc::clone(&self.caches.choosing).blocking_lock_owned() };
        self.take_in(&turn, wanted, sources)
    }

    fn take_in(
        &self,
        turn: &Turn,
        (volume, source, mib): (&str, &str, u64),
        sources: Sources,
    ) -> Result<PathBuf, String> {
        let name = name_of(&request(volume, "w1"));
        let user = rustix::process::geteuid().as_raw();
        let wanted = Wanted { source, comm: &self.comm, user, mib };
        self.caches.take(turn, &name, &wanted, || Ok(sources))?;
        Ok(self.caches.directory(&self.comm, &name).unwrap())
    }

    /// Takes a cache, and leaves it at this time, in seconds since 1970.
    fn used_until(&self, volume: &str, mib: u64, used: u64) -> PathBuf {
        let cache = self.take(volume, "sh-0", mib, &[]).unwrap();
        self.caches.put(&name_of(&request(volume, "w1")), &kept(mib, "sh-0", used)).unwrap();
        std::fs::write(cache.join("block"), "bytes").unwrap();
        cache
    }
}

/// Goal: one directory that can't be removed does not keep all later volumes from a cache.
#[test]
fn a_cache_that_can_not_be_removed_keeps_its_size_and_the_next_one_goes() {
    isolated(|| {
        let home = Home::new();
        let [one, two, three] =
            [("pv-1", 5), ("pv-2", 6), ("pv-3", 7)].map(|(it, at)| home.used_until(it, 30, at));
        let busy = one.join("busy");
        std::fs::create_dir(&busy).unwrap();
        rustix::mount::mount("tmpfs", &busy, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
        let four = home.take("pv-4", "sh-4", 30, &[]).unwrap();
        assert!(busy.is_dir() && !two.exists() && three.join("block").exists() && four.is_dir());
        // The next one takes the room of the third. Nothing is left to remove but the first.
        home.take("pv-5", "sh-5", 30, &["sh-4"]).unwrap();
        let why = home.take("pv-6", "sh-6", 30, &["sh-4", "sh-5"]).unwrap_err();
        assert!(why.contains("removing the earlier cache") && why.contains("busy"), "{why}");
        assert!(busy.is_dir() && !three.exists() && four.is_dir());
        rustix::mount::unmount(&busy, rustix::mount::UnmountFlags::empty()).unwrap();
        home.take("pv-6", "sh-6", 30, &["sh-4", "sh-5"]).unwrap();
        assert!(!one.exists() && four.is_dir());
    });
}

/// Goal: volumes that begin at once evict neither one another nor more than they need.
#[test]
fn a_volume_that_waits_for_room_sees_what_the_one_before_it_left() {
    let (home, runtime) = (Home::new(), runtime());
    home.used_until("pv-0", 60, 5);
    let first = runtime.block_on(home.caches.turn());
    let mut second = Box::pin(home.caches.turn());
    let waits = std::future::poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending()));
    assert!(runtime.block_on(waits), "room is made for one at a time");
    let one = home.take_in(&first, ("pv-1", "sh-1", 60), named(&["sh-2"])).unwrap();
    drop(first);
    let second = runtime.block_on(second);
    let why = home.take_in(&second, ("pv-2", "sh-2", 60), named(&["sh-1"])).unwrap_err();
    assert!(why.contains("60 of 100 MiB") && one.is_dir(), "{why}");
    home.take_in(&second, ("pv-2", "sh-2", 40), named(&["sh-1"])).unwrap();
    assert!(one.is_dir(), "its engine uses it");
}

#[test]
fn a_cache_is_kept_until_its_room_is_needed_and_foreign_files_stay() {
    let home = Home::new();
    std::fs::create_dir(home.root.join("lost+found")).unwrap();
    let first = home.take("pv-1", "sh-1", 60, &[]).unwrap();
    assert_eq!(first.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    std::fs::write(first.join("block"), "bytes").unwrap();
    let why = home.take("pv-2", "sh-2", 60, &["sh-1"]).unwrap_err();
    assert!(why.contains("60 of 100 MiB"), "{why}");
    // The source goes and comes again.
    home.caches.leave(&name_of(&request("pv-1", "w1")), "sh-1");
    assert_eq!(home.take("pv-1", "sh-3", 60, &[]).unwrap(), first);
    assert_eq!(std::fs::read_to_string(first.join("block")).unwrap(), "bytes");
    // A driver that starts anew knows it.
    let disk = home.caches.disk.clone();
    let home = Home { caches: Caches::of(home.folder.path(), disk), ..home };
    assert!(home.take("pv-2", "sh-2", 60, &["sh-3"]).is_err());
    let second = home.take("pv-2", "sh-2", 60, &[]).unwrap();
    assert!(!first.exists() && second.is_dir() && home.root.join("lost+found").exists());
}

#[test]
fn a_cache_in_use_stays_though_its_note_can_not_be_read() {
    let home = Home::new();
    let first = home.take("pv-1", "sh-1", 60, &[]).unwrap();
    std::fs::write(first.join("block"), "bytes").unwrap();
    let note = home.caches.notes.join(name_of(&request("pv-1", "w1")));
    for half in ["", "{", "{}", "{\"mib\":60}"] {
        std::fs::write(&note, half).unwrap();
        let why = home.take("pv-2", "sh-2", 1, &["sh-1", "sh-2"]).unwrap_err();
        assert!(why.contains("can't be read") && first.join("block").exists(), "{half}: {why}");
    }
    home.caches.leave(&name_of(&request("pv-1", "w1")), "sh-1");
    // A note of another kind, which can't even be opened as a file.
    std::fs::remove_file(&note).unwrap();
    std::fs::create_dir(&note).unwrap();
    home.take("pv-2", "sh-2", 1, &["sh-1", "sh-2"]).unwrap_err();
    assert!(first.join("block").exists());
    std::fs::remove_dir(&note).unwrap();
    std::fs::write(&note, "").unwrap();
    home.take("pv-2", "sh-2", 60, &["sh-2"]).unwrap();
    assert!(!first.exists() && !note.exists(), "no source is left that may use it");
}

#[test]
fn unreadable_notes_of_caches_in_use_leave_room_for_those_that_fit() {
    let home = Home::new();
    let [one, two, three] = ["pv-1", "pv-2", "pv-3"].map(|it| name_of(&request(it, "w1")));
    home.take("pv-1", "sh-1", 60, &[]).unwrap();
    home.take("pv-2", "sh-2", 30, &["sh-1"]).unwrap();
    let sources = Sources::from([with("sh-1", &one, Some(60)), with("sh-2", &two, Some(30))]);
    let lose = || {
        std::fs::write(home.caches.notes.join(&one), "").unwrap();
        std::fs::remove_file(home.caches.notes.join(&two)).unwrap();
    };
    lose();
    let take = |volume, source, mib| home.take_beside((volume, source, mib), sources.clone());
    assert!(take("pv-3", "sh-3", 11).unwrap_err().contains("90 of 100 MiB"));
    for (volume, source, mib) in [("pv-3", "sh-3", 10), ("pv-1", "sh-1", 60), ("pv-2", "sh-2", 30)] {
        take(volume, source, mib).unwrap();
    }
    lose();
    home.caches.leave(&three, "sh-3");
    let why = take("pv-4", "sh-4", 11).unwrap_err();
    assert!(why.contains("90 of 100 MiB"), "{why}");
    assert!([&one, &two, &three].iter().all(|name| home.root.join(name).is_dir()));
}

#[test]
fn notes_or_sources_that_can_not_be_listed_remove_no_cache() {
    let home = Home::new();
    let first = home.take("pv-1", "sh-1", 60, &[]).unwrap();
    let name = name_of(&request("pv-2", "w1"));
    let user = rustix::process::geteuid().as_raw();
    let wanted = Wanted { source: "sh-2", comm: &home.comm, user, mib: 60 };
    let turn = Turn { _choosing: Arc::clone(&home.caches.choosing).blocking_lock_owned() };
    let unlisted = || Err(io::ErrorKind::PermissionDenied.into());
    home.caches.take(&turn, &name, &wanted, unlisted).unwrap_err();
    assert!(first.exists());
    let aside = home.caches.notes.with_extension("aside");
    std::fs::rename(&home.caches.notes, &aside).unwrap();
    std::fs::write(&home.caches.notes, "a file").unwrap();
    home.caches.take(&turn, &name, &wanted, || Ok(Sources::new())).unwrap_err();
    assert!(first.exists(), "notes that can't be listed are not none");
}

#[test]
fn a_link_in_place_of_a_cache_leads_nowhere() {
    let home = Home::new();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("file"), "").unwrap();
    let owner = elsewhere.path().metadata().unwrap().uid();
    let cache = home.take("pv-1", "sh-1", 60, &[]).unwrap();
    std::fs::remove_dir(&cache).unwrap();
    symlink(elsewhere.path(), &cache).unwrap();
    home.take("pv-1", "sh-1", 60, &[]).unwrap_err();
    home.take("pv-2", "sh-2", 60, &[]).unwrap();
    assert!(cache.symlink_metadata().is_err(), "the link went to make room");
    assert_eq!(elsewhere.path().metadata().unwrap().uid(), owner);
    assert!(elsewhere.path().join("file").exists());
}

#[test]
fn a_disk_that_went_with_its_pod_has_no_caches_and_an_old_pod_none() {
    let home = Home::new();
    let cache = home.take("pv-1", "sh-1", 60, &[]).unwrap();
    std::fs::remove_dir(&cache).unwrap();
    home.take("pv-2", "sh-2", 90, &["sh-1"]).unwrap();
    std::fs::remove_file(home.comm.engines_cache()).unwrap();
    assert!(home.take("pv-2", "sh-2", 90, &[]).unwrap_err().contains("delete the pod"));
    let without = Caches::of(home.folder.path(), None);
    assert!(!without.has_disk() && without.directory(&home.comm, "x").is_none());
}
