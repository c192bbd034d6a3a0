//! The index, the versions and the account of the cache under the schedules of the model checker.

use shuttle::thread::spawn;

use super::super::store::PREFIXES;
use super::*;
use crate::testing::model::check;

const SIZE: u64 = MIB + 100;
/// Room for one version and a block of another.
const LIMIT: u64 = 5 * MIB / 2;

#[test]
fn shuttle_puts_reads_and_evictions_keep_the_account_and_the_bytes() {
    check(|| {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(store_with(disk(dir.path()), dir.path(), Some(LIMIT)));
        // Nothing lies there that had to be loaded.
        store.set_loaded(PREFIXES);
        let act = |act: fn(&Store, &ObjectId, &ObjectId)| {
            let store = Arc::clone(&store);
            spawn(move || act(&store, &id("a", "\"1\""), &id("b", "\"1\"")))
        };
        let threads = [
            act(|store, a, b| {
                let _ = (put(store, a, SIZE, 0), put(store, b, SIZE, 0));
            }),
            act(|store, a, b| {
                // A sector of a block, a block of which another thread may write the rest.
                store.write(b, SIZE, SECTOR, &content(b, SECTOR..2 * SECTOR));
                let _ = (put(store, a, SIZE, 1), put(store, b, SIZE, 1));
            }),
            act(|store, a, b| {
                for _ in 0..2 {
                    read(store, a, SIZE, 10..20);
                    read(store, b, SIZE, SECTOR..SECTOR + 10);
                }
            }),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        let mut charged = 0;
        store.index.for_each(|entry| charged += entry.charge_all());
        assert_eq!(store.used_bytes(), charged, "the account is what the versions take");
        assert!(charged <= LIMIT, "{charged}");
        let ids = [id("a", "\"1\""), id("b", "\"1\"")];
        for id in &ids {
            for block in 0..2 {
                let whole = Sectors::touching(&(0..block_range(SIZE, block).end - block * MIB));
                let all = store.present(id, block).contains(whole);
                assert_eq!(read_block(&store, id, SIZE, block), all, "what the index says is there is there");
            }
        }
        assert_eq!(store.metrics.cache_corrupt.get(), 0);
    });
}

#[test]
fn shuttle_a_lent_file_whose_version_is_removed_and_returns_has_no_holes() {
    check(|| {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(store_with(disk(dir.path()), dir.path(), Some(LIMIT)));
        store.set_loaded(PREFIXES);
        let a = id("a", "\"1\"");
        assert!(put(&store, &a, SIZE, 0) && put(&store, &a, SIZE, 1));
        let lender = {
            let (store, a) = (Arc::clone(&store), a.clone());
            spawn(move || store.whole(&a, SIZE).map(|whole| whole.file))
        };
        store.remove(&store.find(&store.identity(&a)).unwrap());
        put(&store, &a, SIZE, 1);
        if let Some(file) = lender.join().unwrap() {
            let mut bytes = vec![0; SIZE as usize];
            let file = std::fs::File::from(file.try_clone().unwrap());
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
            assert!(bytes == content(&a, 0..SIZE));
        }
    });
}
