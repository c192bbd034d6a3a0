//! Failing calls of the local disk, each in its turn.

use super::*;

/// Possible values of a byte or a size: the last acknowledged one, and later attempts.
#[derive(Clone, Default)]
struct May {
    bytes: BTreeMap<usize, Vec<u8>>,
    sizes: Vec<usize>,
}

impl May {
    fn of(bytes: &[u8]) -> Self {
        let bytes_ = bytes.iter().map(|byte| vec![*byte]).enumerate().collect();
        Self { bytes: bytes_, sizes: vec![bytes.len()] }
    }

    fn write(&mut self, at: usize, bytes: &[u8], is_done: bool) {
        for (at, byte) in (at..).zip(bytes) {
            let values = self.bytes.entry(at).or_insert_with(|| vec![0]);
            if is_done {
                values.clear();
            }
            values.push(*byte);
        }
        let longest = self.sizes.iter().copied().max().unwrap_or(0).max(at + bytes.len());
        if is_done {
            self.sizes.retain(|size| *size >= at + bytes.len());
        }
        self.sizes.push(longest);
    }

    fn is(&self, bytes: &[u8]) -> bool {
        let is_one =
            |(at, byte): (usize, &u8)| self.bytes.get(&at).is_none_or(|values| values.contains(byte));
        // A failed write may have left a part of its bytes.
        let sizes = self.sizes.iter().min()..=self.sizes.iter().max();
        sizes.contains(&Some(&bytes.len())) && bytes.iter().enumerate().all(is_one)
    }
}

/// Bytes of each file, by key: in the bucket, and as the next mount finds them after a kill or a loss of power. `true`: some are missing.
async fn found(dir: &Path, boot: &str, client: &MemoryClient) -> Vec<(String, Vec<u8>, bool)> {
    let copied = tempfile::tempdir().unwrap();
    copy(dir, copied.path());
    fs::create_dir_all(copied.path().join("kept")).unwrap();
    for entry in fs::read_dir(dir.join("kept")).unwrap().map(|entry| entry.unwrap()) {
        fs::copy(entry.path(), copied.path().join("kept").join(entry.file_name())).unwrap();
    }
    let next = engine(copied.path(), boot, client);
    let mut found: Vec<_> =
        client.keys().into_iter().map(|key| (key.clone(), stored(client, &key), false)).collect();
    for pending in next.pending.clone() {
        let staged = Arc::new(Staged::pending(Arc::clone(&next.shared), pending));
        // Before its first send, a mount asks whether the bucket has an image of the file.
        staged.resolve().await.unwrap();
        found.push((staged.key().as_str().to_owned(), read(&staged, 0, MIB).await.unwrap(), false));
    }
    let kept = kept_in(copied.path()).unwrap().into_iter();
    found.extend(kept.map(|kept| {
        let bytes = fs::read(&kept.file).unwrap();
        (kept.key.unwrap_or_default(), bytes, kept.is_partial)
    }));
    found
}

/// Lets programs change files while calls of the disk fail, and asserts that each acknowledged change is found afterwards. Returns the
/// number of calls.
async fn with_failing(calls: std::ops::Range<u64>) -> u64 {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let etag = client.insert("patched", b"0123456789".to_vec());
    let engine = engine(dir.path(), "one", &client);
    let disk = engine.shared.folder.disk().clone();
    disk.fail(calls.clone());
    let (mut new, mut patched) = (May::default(), May::of(b"0123456789"));
    let (mut new_synced, mut patched_synced) = (None, None);
    let mut names = vec!["new"];
    let made = Staged::create(Arc::clone(&engine.shared), "new".into(), None).map(Arc::new);
    let made = made.and_then(|made| made.note_new().map(|()| made));
    if made.is_ok() {
        new.sizes = vec![0];
    }
    let base = Base { id: ObjectId::by_etag("patched".into(), etag), size: 10, first: None };
    let over = Staged::create(Arc::clone(&engine.shared), "patched".into(), Some(base)).map(Arc::new);
    for round in 0..3_u8 {
        if let Ok(made) = &made {
            let bytes = [b'a' + round; 4];
            new.write(usize::from(round), &bytes, made.write(round.into(), &bytes).is_ok());
            if made.sync().await.is_ok() {
                new_synced = Some(new.clone());
            } else if let Some(synced) = &mut new_synced {
                synced.write(usize::from(round), &bytes, false);
            }
            made.closed();
            if round == 1 {
                names.push("renamed");
                let _ = made.renamed("renamed".into(), crate::s3::Replaces::Nothing);
            }
        }
        if let Ok(over) = &over {
            let (at, bytes) = (usize::from(round) * 4, [b'A' + round; 3]);
            patched.write(at, &bytes, over.write(at as u64, &bytes).is_ok());
            if over.sync().await.is_ok() {
                patched_synced = Some(patched.clone());
            } else if let Some(synced) = &mut patched_synced {
                synced.write(at, &bytes, false);
            }
            over.closed();
            if round == 1 {
                let turn = over.turn().await;
                let _ = over.store(&turn).await;
            }
        }
        // A file that is removed again.
        if let Ok(gone) = Staged::create(Arc::clone(&engine.shared), "gone".into(), None) {
            let _ = gone
                .note_new()
                .and_then(|()| gone.write(0, b"gone"))
                .and_then(|_| gone.unlinked().map(|()| 0));
        }
        let _ = engine.shared.folder.sweep();
    }
    let seen = disk.calls();
    for (boot, new, patched) in
        [("one", Some(&new), Some(&patched)), ("two", new_synced.as_ref(), patched_synced.as_ref())]
    {
        let found = found(dir.path(), boot, &client).await;
        let is_there = |keys: &[&str], may: &May| {
            found.iter().any(|(key, bytes, is_partial)| {
                keys.contains(&key.as_str()) && (*is_partial || may.is(bytes))
            })
        };
        let shown = || {
            found
                .iter()
                .map(|(key, bytes, part)| (key, String::from_utf8_lossy(bytes), part))
                .collect::<Vec<_>>()
        };
        if let Some(new) = new.filter(|_| made.is_ok()) {
            assert!(is_there(&names, new), "{calls:?}, {boot}: {:?}", shown());
        }
        if let Some(patched) = patched {
            assert!(is_there(&["patched"], patched), "{calls:?}, {boot}: {:?}", shown());
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_byte_is_lost_whichever_call_of_the_disk_fails() {
    let calls = with_failing(0..0).await;
    assert!(calls > 60, "{calls}");
    for first in 1..=calls {
        // One failure, then failures from there on: a disk that is full for a moment, or for good.
        with_failing(first..first + 1).await;
        with_failing(first..u64::MAX).await;
    }
}
