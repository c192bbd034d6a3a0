//! The table of inodes under the schedules of the model checker.

use shuttle::future::block_on;
use shuttle::thread::spawn;

use super::*;
use crate::testing::model::check;

/// A table over a bucket with these keys, whose threads share it.
fn table(keys: &[&str]) -> (MemoryClient, InodeTable) {
    let Bench { client, table, .. } = Bench::new(Ttl::Minimal, keys);
    (client, table)
}

/// Looks a name up as the file system does: memory first.
fn lookup(table: &InodeTable, parent: InodeNo, name: &str) -> Result<Found> {
    let name = OsStr::new(name);
    table.try_lookup(parent, name).unwrap_or_else(|| block_on(table.lookup(parent, name)))
}

#[test]
fn shuttle_lookups_that_meet_share_an_inode_and_forgets_leave_nothing() {
    check(|| {
        let (_, table) = table(&["dir/file"]);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let table = table.clone();
                spawn(move || {
                    let dir = lookup(&table, ROOT, "dir").unwrap().ino;
                    let file = lookup(&table, dir, "file").unwrap().ino;
                    let again = lookup(&table, dir, "file").unwrap().ino;
                    assert_eq!(file, again, "one name, one inode, while somebody refers to it");
                    let missing = lookup(&table, dir, "missing");
                    assert!(matches!(kind(missing), ErrorKind::NotFound));
                    table.forget(dir, 1);
                    table.forget(file, 2);
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(table.len(), 1, "the root alone");
        assert!(table.0.tree.lock().board.is_empty(), "no lookup is under way");
    });
}

#[test]
fn shuttle_a_lookup_beside_a_create_finds_the_file_or_nothing() {
    check(|| {
        let (client, table) = table(&["dir/other"]);
        let dir = lookup(&table, ROOT, "dir").unwrap().ino;
        let writer = {
            let table = table.clone();
            spawn(move || {
                let made = block_on(table.create(dir, OsStr::new("new"))).unwrap().ino;
                let wish = WriteWish {
                    truncate: true,
                    append: false,
                    allow_overwrite: true,
                    ..WriteWish::default()
                };
                let OpenWrite::Granted { key, .. } = block_on(table.open_write(made, 1, wish)).unwrap()
                else {
                    panic!("somebody writes already")
                };
                table.written(made, 7);
                client.insert(key.as_str(), "content");
                table.commit_write(made, client.meta(key.as_str()).unwrap());
                made
            })
        };
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let table = table.clone();
                spawn(move || {
                    let found = lookup(&table, dir, "new");
                    match &found {
                        Ok(found) => table.forget(found.ino, 1),
                        Err(error) => assert!(matches!(error.kind(), ErrorKind::NotFound), "{error}"),
                    }
                    found.ok().map(|found| found.ino)
                })
            })
            .collect();
        let made = writer.join().unwrap();
        for reader in readers {
            let found = reader.join().unwrap();
            assert!(found.is_none_or(|ino| ino == made), "one name, one inode");
        }
        let after = lookup(&table, dir, "new").unwrap();
        assert_eq!((after.ino, after.stat.size), (made, 7), "what is stored is found");
        table.forget(made, 2);
        table.forget(dir, 1);
        assert_eq!(table.len(), 1);
    });
}
