//! Copies of one moment, made while programs write.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::*;

const SIZE: usize = 600_000;

/// A change that a program makes.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write { at: usize, len: usize, byte: u8 },
    Resize(usize),
}

impl Change {
    fn any(random: &mut fastrand::Rng) -> Self {
        match random.u8(0..8) {
            0 => Self::Resize(random.usize(0..SIZE)),
            1 => Self::Resize(SIZE),
            _ => {
                let (at, len) = (random.usize(0..SIZE), random.usize(1..40_000));
                Self::Write { at, len: len.min(SIZE - at), byte: random.u8(1..) }
            }
        }
    }

    fn on_file(self, staged: &Staged) {
        match self {
            Self::Write { at, len, byte } => _ = staged.write(at as u64, &vec![byte; len]).unwrap(),
            Self::Resize(size) => staged.set_size(size as u64).unwrap(),
        }
    }

    fn on_model(self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write { at, len, byte } => {
                bytes.resize(bytes.len().max(at + len), 0);
                bytes[at..at + len].fill(byte);
            }
            Self::Resize(size) => bytes.resize(size, 0),
        }
    }
}

/// A folder that never clones makes the stage copy piece by piece.
fn copies_by_pieces(engine: &mut Engine) {
    let shared = Arc::get_mut(&mut engine.shared).unwrap();
    shared.folder.never_clones();
}

/// A file of this many MiB, and a copy of it that is held at its third piece.
async fn held_copy(
    engine: &mut Engine,
    mib: u64,
) -> (Arc<Staged>, tokio::task::JoinHandle<Result<Arc<fs::File>, Error>>) {
    copies_by_pieces(engine);
    let staged = engine.new_file("file");
    for n in 0..mib {
        staged.write(n * MIB as u64, &[7; MIB]).unwrap();
    }
    let disk = engine.shared.folder.disk();
    // The copy: its file is made, loses its name, two sizes.
    disk.fail(0..0);
    disk.hold(7..8);
    let copying = Arc::clone(&staged);
    let copy = tokio::spawn(async move { copying.copied().await });
    while disk.calls() < 7 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (staged, copy)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_made_while_programs_write_is_of_one_moment() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let mut engine = engine(dir.path(), "one", &client);
    copies_by_pieces(&mut engine);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let staged = engine.new_file("file");
    let mut model = Vec::new();
    let (mut rounds, mut fell) = (0, 0);
    // A slow machine takes more rounds until a change falls into a copy.
    while rounds < 20 || fell == 0 && rounds < 2_000 {
        rounds += 1;
        let is_over = Arc::new(AtomicBool::new(false));
        let (writer, ends, mut choice) = (Arc::clone(&staged), Arc::clone(&is_over), random.fork());
        let program = std::thread::spawn(move || {
            let is_copied = || writer.state.lock().copying.is_some();
            let (mut changes, mut fell) = (Vec::new(), 0);
            while !ends.load(Relaxed) {
                let change = Change::any(&mut choice);
                let was_copied = is_copied();
                change.on_file(&writer);
                fell += usize::from(was_copied && is_copied());
                changes.push(change);
            }
            (changes, fell)
        });
        let copy = staged.copied().await;
        is_over.store(true, Relaxed);
        let ((changes, fell_here), copy) = (program.join().unwrap(), copy.unwrap());
        fell += fell_here;
        let mut copied = vec![0; copy.metadata().unwrap().len() as usize];
        copy.read_exact_at(&mut copied, 0).unwrap();
        let mut is_one = model == copied;
        for change in changes {
            change.on_model(&mut model);
            is_one |= model == copied;
        }
        assert!(is_one, "the copy has bytes of two moments (seed {seed})");
    }
    assert!(fell > 0, "no change fell into a copy (seed {seed})");
    assert!(read(&staged, 0, SIZE).await.unwrap() == model, "and the file has what was written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_and_a_close_do_not_wait_for_a_copy_of_the_whole_file() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let mut engine = engine(dir.path(), "one", &client);
    let (staged, copy) = held_copy(&mut engine, 1).await;
    let disk = engine.shared.folder.disk();
    assert!(staged.waits_for_disk(), "a change saves bytes for the copy");
    let program = Arc::clone(&staged);
    let changes = std::thread::spawn(move || {
        // A piece that is copied, the one on its way, and later ones.
        program.write(5, b"done").unwrap();
        program.write(300_000, b"on its way").unwrap();
        program.write(390_000, &[1; 10_000]).unwrap();
        program.set_size(900_000).unwrap();
        program.set_size(950_000).unwrap();
        program.closed();
    });
    for _ in 0..1_000 {
        if changes.is_finished() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let went_on = changes.is_finished() && !copy.is_finished();
    disk.hold(0..0);
    changes.join().unwrap();
    assert!(went_on, "the program waited for the copy");
    let copy = copy.await.unwrap().unwrap();
    let mut bytes = vec![0; MIB];
    copy.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7), "and the copy has the bytes from before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_begins_anew_where_a_program_cuts_off_a_long_end() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let mut engine = engine(dir.path(), "one", &client);
    let (staged, copy) = held_copy(&mut engine, 20).await;
    let disk = engine.shared.folder.disk();
    staged.set_size(100).unwrap();
    staged.set_size(200).unwrap();
    disk.hold(0..0);
    let copy = copy.await.unwrap().unwrap();
    let mut bytes = vec![1; 200];
    copy.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((bytes, copy.metadata().unwrap().len()), ([[7; 100], [0; 100]].concat(), 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_ends_where_a_program_cuts_off_a_long_end_all_the_time() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let mut engine = engine(dir.path(), "one", &client);
    copies_by_pieces(&mut engine);
    let staged = engine.new_file("file");
    for n in 0..20 {
        staged.write(n * MIB as u64, &[7; MIB]).unwrap();
    }
    let copying = Arc::clone(&staged);
    let copy = tokio::spawn(async move { copying.copied().await });
    // Much longer than a copy takes: each one is cut off.
    for _ in 0..30_000 {
        if copy.is_finished() {
            break;
        }
        if staged.state.lock().copying.is_some() {
            staged.set_size(100).unwrap();
            staged.set_size(20 * MIB as u64).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(copy.is_finished(), "it begins anew for ever");
    let copy = copy.await.unwrap().unwrap();
    let mut bytes = vec![1; copy.metadata().unwrap().len() as usize];
    copy.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes[..100].iter().all(|byte| *byte == 7));
    let end = bytes.get(100).copied().unwrap_or(0);
    assert!((end == 0 || end == 7) && bytes[100..].iter().all(|byte| *byte == end), "two moments");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_begins_anew_where_the_disk_refuses_what_a_change_saves() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let mut engine = engine(dir.path(), "one", &client);
    let (staged, copy) = held_copy(&mut engine, 1).await;
    let disk = engine.shared.folder.disk();
    // The change's own write is the second call from here on.
    disk.fail(1..2);
    staged.write(900_000, b"change").unwrap();
    assert!(staged.state.lock().copying.is_none(), "the copy would lack what the change replaced");
    disk.fail(0..0);
    disk.hold(0..0);
    let copy = copy.await.unwrap().unwrap();
    let mut bytes = [0; 6];
    copy.read_exact_at(&mut bytes, 900_000).unwrap();
    assert_eq!(&bytes, b"change", "a new copy has it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_another_one_follows_takes_no_bytes_of_it() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let mut engine = engine(dir.path(), "one", &client);
    let (staged, dropped) = held_copy(&mut engine, 1).await;
    let disk = engine.shared.folder.disk();
    // The first one waits for its third piece, the second one as well.
    disk.fail(0..0);
    let copying = Arc::clone(&staged);
    let copy = tokio::spawn(async move { copying.copied().await });
    while disk.calls() < 7 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    disk.hold(0..0);
    // The first one fails, unless the second one has ended before it goes on.
    let copies = [Some(copy.await.unwrap().unwrap()), dropped.await.unwrap().ok()];
    for copy in copies.into_iter().flatten() {
        let mut bytes = vec![0; MIB];
        copy.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_does_not_wait_for_a_change_that_the_disk_holds_up() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let staged = engine.new_file("file");
    let change = staged.state.lock();
    let closing = Arc::clone(&staged);
    let close = std::thread::spawn(move || closing.closed());
    for _ in 0..1_000 {
        if close.is_finished() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let went_on = close.is_finished();
    drop(change);
    close.join().unwrap();
    assert!(went_on, "the close waits, and it holds the lock of all files");
    assert!(staged.was_closed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_a_file_at_rest_does_not_wait_for_its_disk() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), "one", &client);
    let staged = engine.new_file("file");
    staged.write(0, b"bytes").unwrap();
    let change = staged.hold();
    assert!(staged.try_rest().is_none());
    assert_eq!(staged.try_pending(), Some(0), "it counts, without bytes");
    drop(change);
    assert!(!staged.try_rest().unwrap().is_done);
    assert_eq!(staged.try_pending(), Some(5));
    let turn = staged.turn().await;
    staged.store(&turn).await.unwrap().expect("there was a change");
    let rest = staged.try_rest().unwrap();
    assert!(rest.is_done && !rest.was_lent && !rest.is_without_object, "{rest:?}");
    assert_eq!(staged.try_pending(), None);
    staged.unlinked().unwrap();
    assert!(staged.try_rest().unwrap().is_without_object);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_for_which_the_disk_has_no_room_is_refused_before_it_begins() {
    let (client, dir) = (MemoryClient::default(), tempfile::tempdir().unwrap());
    let mut engine = engine(dir.path(), "one", &client);
    copies_by_pieces(&mut engine);
    let staged = engine.new_file("file");
    staged.write(0, &[7; MIB]).unwrap();
    staged.set_size(10 * MIB as u64).unwrap();
    let disk = engine.shared.folder.disk();
    // Bytes that are there, and as many that stay free: holes take none.
    disk.set_room(Some(2 * MIB as u64 - 1));
    disk.fail(0..0);
    let refused = staged.copied().await.unwrap_err();
    assert!(refused.to_string().contains("no storage space"), "{refused}");
    // The file is made and loses its name, two sizes: no piece.
    assert!(disk.calls() <= 4, "{}", disk.calls());
    staged.write(0, b"on").unwrap();
    disk.set_room(Some(2 * MIB as u64));
    let copy = staged.copied().await.unwrap();
    assert_eq!(copy.metadata().unwrap().len(), 10 * MIB as u64);
    disk.set_room(None);
    staged.copied().await.unwrap();
}
