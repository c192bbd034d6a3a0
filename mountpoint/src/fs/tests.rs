//! Operations of several programs on one file, over a bucket in memory.

mod appends;
mod directories;
pub(crate) mod full;
mod full_directories;
mod hung_disk;
mod opens;
mod renames;
mod seeks;
mod staged;

use std::ffi::OsStr;
use std::time::Duration;

use proptest::prelude::*;
use rustix::io::Errno;

use super::*;
use crate::buffer::{self, Pool};
use crate::clock::Clock;
use crate::first::Asker;
use crate::inode::{self, ROOT};
use crate::metrics::Metrics;
use crate::stage::tests::transfers;
use crate::sync::Arc;
use crate::testing::{FaultPlan, MemoryClient, Op, Settings};

/// A file system over an empty bucket.
fn over(client: &MemoryClient) -> Arc<FileSystem> {
    allowing(client, false)
}

fn allowing(client: &MemoryClient, allow_overwrite: bool) -> Arc<FileSystem> {
    Arc::new(made(client, allow_overwrite))
}

fn made(client: &MemoryClient, allow_overwrite: bool) -> FileSystem {
    by_clock(client, allow_overwrite, Clock::machine())
}

fn by_clock(client: &MemoryClient, allow_overwrite: bool, clock: Clock) -> FileSystem {
    with_names(client, allow_overwrite, clock, inode::Config::default())
}

fn with_names(
    client: &MemoryClient,
    allow_overwrite: bool,
    clock: Clock,
    names: inode::Config,
) -> FileSystem {
    let metrics = Arc::new(Metrics::default());
    let pool = Pool::new(&buffer::Config { target: 128 << 20, network: 16 << 20 });
    let inodes =
        InodeTable::new(Asker::of_attributes(client.arc()), names, clock.clone(), Arc::clone(&metrics));
    let (prefetcher, uploader) = transfers(client, &pool, &clock, &metrics);
    let ownership = Ownership { uid: 0, gid: 0, file_mode: 0o644, dir_mode: 0o755 };
    let config = Config {
        ownership,
        read_only: false,
        allow_delete: false,
        allow_overwrite,
        allow_append: true,
        rename_errno: RenameErrno::default(),
        directory_markers: false,
        attributes: Attributes::default(),
        read_mode: ReadMode::Auto,
    };
    FileSystem::new(inodes, prefetcher, uploader, config, clock)
}

#[tokio::test]
async fn a_failed_create_leaves_a_file_that_another_program_writes() {
    let (client, me) = (MemoryClient::new(), std::process::id());
    let fs = over(&client);
    let made = fs.make_file(ROOT, OsStr::new("file"), Maker::default()).await.unwrap();
    let found = fs.lookup(ROOT, OsStr::new("file")).await.unwrap();
    let wish = OpenFlags { write: true, ..OpenFlags::default() };
    let opened = fs.open(found.attr.ino, wish, me).await.unwrap();
    fs.write(opened.handle, 0, b"whole", 0, |result| result.unwrap());

    let refused = fs.open_made(made, OpenFlags::default(), me).await.unwrap_err();
    assert_eq!(refused.errno(), Errno::PERM);
    assert_eq!(fs.lookup(ROOT, OsStr::new("file")).await.unwrap().attr.size, 5, "its name is there");
    fs.fsync(opened.handle).await.unwrap();
    assert_eq!(client.keys(), ["file"]);
    assert_eq!(fs.lookup(ROOT, OsStr::new("file")).await.unwrap().attr.ino, found.attr.ino);
}

#[tokio::test]
async fn an_engine_that_leaves_a_device_waits_for_files_closed_meanwhile() {
    let client = MemoryClient::new();
    let fs = over(&client);
    let [first, second] = ["first", "second"].map(|key| client.hold(FaultPlan::on(Op::PutObject).key(key)));
    let close_new = async |name: &str| {
        let (_, opened) =
            fs.create(ROOT, OsStr::new(name), OpenFlags::default(), Maker::default(), 1).await.unwrap();
        let due = fs.release(opened.handle).unwrap().expect("a file that was written");
        let fs = Arc::clone(&fs);
        tokio::spawn(async move { fs.finish_released(opened.handle, due).await });
    };
    close_new("first").await;
    first.arrived(1).await;
    let leaving = Arc::clone(&fs);
    let end = tokio::spawn(async move { leaving.end(Duration::from_secs(60), MountEnd::Left).await });
    // By then the end has seen the first file alone.
    tokio::time::sleep(Duration::from_millis(50)).await;
    close_new("second").await;
    second.arrived(1).await;
    first.release();
    testkit::until_async("the first file is stored", || client.keys() == ["first"]).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!end.is_finished(), "the second file is not stored yet");
    second.release();
    end.await.unwrap();
    assert_eq!(client.keys(), ["first", "second"]);
}

#[tokio::test]
async fn an_engine_that_leaves_a_device_waits_for_the_abort_of_a_failed_file() {
    let client = MemoryClient::new();
    let fs = over(&client);
    let [part, abort] = [Op::UploadPart, Op::AbortMultipartUpload].map(|op| client.hold(FaultPlan::on(op)));
    let wish = OpenFlags { write: true, ..OpenFlags::default() };
    let (_, opened) = fs.create(ROOT, OsStr::new("file"), wish, Maker::default(), 1).await.unwrap();
    let parts = vec![0; 20 << 20];
    fs.write(opened.handle, 0, &parts, 0, |result| result.unwrap());
    part.arrived(1).await;
    part.release();
    fs.write(opened.handle, 0, b"elsewhere", 0, |result| drop(result.unwrap_err()));
    if let Some(due) = fs.release(opened.handle).unwrap() {
        fs.finish_released(opened.handle, due).await;
    }
    abort.arrived(1).await;
    let leaving = Arc::clone(&fs);
    let end = tokio::spawn(async move { leaving.end(Duration::from_secs(60), MountEnd::Left).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!end.is_finished(), "the upload is not aborted yet");
    abort.release();
    end.await.unwrap();
}

/// Threads take requests in turn, and finish them in any order.
#[tokio::test]
async fn a_newcomer_that_writes_waits_for_the_release_of_closed_readers() {
    let (client, me) = (MemoryClient::new(), std::process::id());
    client.insert("file", b"old".to_vec());
    let fs = allowing(&client, true);
    let ino = fs.lookup(ROOT, OsStr::new("file")).await.unwrap().attr.ino;
    let to_read = OpenFlags::default();
    let to_replace = OpenFlags { write: true, truncate: true, ..to_read };
    let readers = [fs.open(ino, to_read, me).await.unwrap(), fs.open(ino, to_read, me).await.unwrap()];

    fs.try_flush(readers[0].handle, me).unwrap().unwrap();
    let refused = fs.open(ino, to_replace, me).await.unwrap_err();
    assert_eq!(refused.errno(), Errno::PERM, "one of them is open");

    fs.try_flush(readers[1].handle, me).unwrap().unwrap();
    let mut newcomer = std::pin::pin!(fs.open(ino, to_replace, me));
    for reader in readers {
        assert!(futures_util::poll!(newcomer.as_mut()).is_pending(), "it waits for both");
        fs.release(reader.handle).unwrap();
    }
    newcomer.await.expect("nobody reads any more");
}

/// RELEASE can be behind many other requests where a machine has too much to do.
#[tokio::test]
async fn a_newcomer_waits_for_a_late_release_while_no_process_has_a_descriptor() {
    let (client, me, clock) = (MemoryClient::new(), std::process::id(), Clock::manual());
    client.insert("file", b"old".to_vec());
    let fs = Arc::new(by_clock(&client, true, clock.clone()));
    let ino = fs.lookup(ROOT, OsStr::new("file")).await.unwrap().attr.ino;
    let to_read = OpenFlags::default();
    let to_replace = OpenFlags { write: true, truncate: true, ..to_read };
    for is_released in [false, true] {
        let reader = fs.open(ino, to_read, me).await.unwrap();
        fs.try_flush(reader.handle, me).unwrap().unwrap();
        let mut newcomer = std::pin::pin!(fs.open(ino, to_replace, me));
        for seconds in [0, 2, 7] {
            clock.advance(Duration::from_secs(seconds));
            assert!(futures_util::poll!(newcomer.as_mut()).is_pending(), "RELEASE may come yet");
        }
        if is_released {
            fs.release(reader.handle).unwrap();
            newcomer.await.expect("nobody reads any more");
        } else {
            clock.advance(Duration::from_secs(20));
            assert_eq!(newcomer.await.unwrap_err().errno(), Errno::PERM, "it is mapped, perhaps");
            fs.release(reader.handle).unwrap();
        }
    }
}

#[tokio::test]
async fn a_file_that_was_made_and_not_opened_can_be_removed_again() {
    let client = MemoryClient::new();
    let fs = over(&client);
    let made = fs.make_file(ROOT, OsStr::new("file"), Maker::default()).await.unwrap();
    fs.inodes.remove_new(made.attr.ino);
    assert_eq!(fs.lookup(ROOT, OsStr::new("file")).await.unwrap_err().errno(), Errno::NOENT);
    fs.make_file(ROOT, OsStr::new("file"), Maker::default()).await.expect("its name is free");
}

/// A step of the programs that have a new file open, or the kernel's report of one.
#[derive(Clone, Debug)]
enum Step {
    /// A write at the end of the file.
    Write(usize),
    /// A write at an offset that the engine refuses.
    WriteElsewhere,
    /// FLUSH, by the process that opened the file or by an heir of the descriptor.
    Close {
        by_opener: bool,
    },
    Sync,
    /// A program that waited in close was killed.
    Interrupt,
    /// Another program opens the same file.
    Open {
        to_write: bool,
    },
}

/// The end of a life.
#[derive(Clone, Copy, Debug)]
enum Last {
    Release,
    /// The opener was killed before the reply reached it.
    TakeBack,
    Unmount,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..5000usize).prop_map(Step::Write),
        1 => Just(Step::WriteElsewhere),
        3 => any::<bool>().prop_map(|by_opener| Step::Close { by_opener }),
        1 => Just(Step::Sync),
        1 => Just(Step::Interrupt),
        3 => any::<bool>().prop_map(|to_write| Step::Open { to_write }),
    ];
    prop::collection::vec(step, 0..12)
}

/// The state of the file that follows from the calls alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Written { closed_last: bool },
    Stored,
    Failed,
}

async fn write(fs: &Arc<FileSystem>, handle: HandleNo, offset: usize, data: &[u8]) -> Result<()> {
    let (tell, told) = tokio::sync::oneshot::channel();
    fs.write(handle, offset as u64, data, 0, |result| tell.send(result).unwrap());
    told.await.unwrap()
}

fn errno<T>(result: Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

/// Applies all steps to one new file, and compares each answer, and the store's content at the end. The engine knows no device here, so
/// it can't see descriptors: the opener's first close after a byte stores the file.
async fn live(steps: &[Step], last: Last) {
    let (client, opener, heir) = (MemoryClient::new(), std::process::id(), 1);
    let fs = over(&client);
    let (entry, opened) =
        fs.create(ROOT, OsStr::new("file"), OpenFlags::default(), Maker::default(), opener).await.unwrap();
    let (ino, handle) = (entry.attr.ino, opened.handle);
    let (mut bytes, mut fate) = (Vec::new(), Fate::Written { closed_last: false });
    for step in steps {
        match *step {
            Step::Write(len) => {
                let data = vec![bytes.len() as u8; len];
                let refused = errno(write(&fs, handle, bytes.len(), &data).await);
                match fate {
                    Fate::Written { .. } => {
                        assert_eq!(refused, None, "a writer that nobody ended goes on");
                        bytes.extend(data);
                        fate = Fate::Written { closed_last: false };
                    }
                    Fate::Stored => assert_eq!(refused, Some(Errno::BADF)),
                    Fate::Failed => assert_eq!(refused, Some(Errno::INVAL)),
                }
            }
            Step::WriteElsewhere => {
                let refused = errno(write(&fs, handle, bytes.len() + (16 << 20), b"elsewhere").await);
                let expected = if fate == Fate::Stored { Errno::BADF } else { Errno::INVAL };
                assert_eq!(refused, Some(expected));
                fate = if fate == Fate::Stored { fate } else { Fate::Failed };
            }
            Step::Close { by_opener } => {
                let closed = match fs.try_flush(handle, if by_opener { opener } else { heir }) {
                    Some(answer) => answer,
                    None => fs.fsync(handle).await,
                };
                assert_eq!(errno(closed), (fate == Fate::Failed).then_some(Errno::INVAL));
                fate = match fate {
                    Fate::Written { .. } if by_opener && !bytes.is_empty() => Fate::Stored,
                    Fate::Written { .. } => Fate::Written { closed_last: true },
                    ended => ended,
                };
            }
            Step::Sync => {
                let synced = errno(fs.fsync(handle).await);
                assert_eq!(synced, (fate == Fate::Failed).then_some(Errno::INVAL));
                fate = if fate == Fate::Failed { fate } else { Fate::Stored };
            }
            Step::Interrupt => fs.nobody_waits(handle, "close"),
            // It would wait a second for the release.
            Step::Open { .. } if fate == (Fate::Written { closed_last: true }) => {}
            Step::Open { to_write } => {
                let flags = OpenFlags { write: to_write, ..OpenFlags::default() };
                match (fs.open(ino, flags, heir).await, fate) {
                    (Ok(other), Fate::Stored) if !to_write => {
                        assert!(fs.release(other.handle).unwrap().is_none());
                    }
                    (Ok(_), _) => panic!("{flags:?} in {fate:?}"),
                    (Err(error), Fate::Failed) => assert_eq!(error.errno(), Errno::STALE),
                    (Err(error), _) => assert_eq!(error.errno(), Errno::PERM),
                }
            }
        }
        let stored = client.object("file");
        assert_eq!(stored.is_some(), fate == Fate::Stored, "{step:?}");
    }
    let is_stored = match (last, fate) {
        (_, Fate::Stored) => true,
        (_, Fate::Failed) | (Last::TakeBack, _) => false,
        (Last::Release, _) => true,
        (Last::Unmount, Fate::Written { closed_last }) => closed_last,
    };
    match last {
        Last::Release => {
            let due = fs.release(handle).unwrap().expect("a file that was written");
            fs.finish_released(handle, due).await;
        }
        Last::TakeBack => fs.take_back(handle).await,
        Last::Unmount => fs.end(Duration::from_secs(60), MountEnd::Unmounted).await,
    }
    assert_eq!(client.object("file").as_deref(), is_stored.then_some(&bytes[..]), "{fate:?}");
    assert!(client.pending_uploads().is_empty());
    let found = fs.lookup(ROOT, OsStr::new("file")).await;
    assert_eq!(found.ok().map(|entry| entry.attr.size), is_stored.then_some(bytes.len() as u64));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn programs_hear_a_files_outcome_and_the_store_gets_the_promised_bytes(
        steps in steps(),
        last in prop_oneof![Just(Last::Release), Just(Last::TakeBack), Just(Last::Unmount)],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(live(&steps, last));
    }
}
