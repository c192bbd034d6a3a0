//! Shortage of memory: which writers wait, which parts are spilled, and that all writers finish.

use std::time::Duration;

use tokio::task::JoinSet;

use super::*;

/// Slows every part down, as a slow line does, so that memory is out while others ask.
fn slow(bench: &Bench) {
    for op in [Op::UploadPart, Op::PutObject] {
        bench.client.inject(FaultPlan::on(op).always().delay(Duration::from_millis(2)));
    }
}

async fn all_at_once(bench: Bench, writers: usize, len: usize, piece: usize) {
    slow(&bench);
    let bench = Arc::new(bench);
    let expected = Arc::new(data(len, 1));
    let mut tasks = JoinSet::new();
    for i in 0..writers {
        let (bench, expected) = (Arc::clone(&bench), Arc::clone(&expected));
        tasks.spawn(async move {
            let key = format!("{i:03}");
            store(&bench.create(&key), &expected, piece).await.unwrap();
            assert!(bench.client.object(&key).unwrap()[..] == expected[..], "file {i}");
            assert!(bench.client.remove(&key));
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    bench.assert_clean();
}

fn large_parts(spill_dir: Option<&tempfile::TempDir>) -> Config {
    Config {
        part_size: 8 * MIB as u64,
        spill_dir: spill_dir.map(|dir| dir.path().to_owned()),
        ..Config::default()
    }
}

/// Goal: progress at the smallest budget with many at once. 32 writers with parts of 8 MiB need twice the pool, and more for parts being
/// sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_two_writers_at_once_finish_at_128_mib() {
    all_at_once(Bench::new(large_parts(None)), 32, 17 * MIB + 3, MIB).await;
}

/// Goal: first blocks never fill the memory that whole parts need. Readers leave writers their sure 42 MiB; forty first blocks of 1 MiB
/// would leave 2, and all writers would wait for a part.
#[tokio::test]
async fn forty_writers_that_begin_together_finish_with_nowhere_to_spill_to() {
    let bench = Bench::new(large_parts(None));
    let readers = bench.pool.try_reserve(Use::Demand, 70 << 20).unwrap();
    let expected = Arc::new(data(9 * MIB, 4));
    let uploads: Vec<_> = (0..40).map(|i| bench.create(&format!("{i:02}"))).collect();
    let begun: Vec<_> = uploads.iter().map(|upload| start(upload, 0, &expected[..MIB])).collect();
    let mut tasks = JoinSet::new();
    for (upload, begun) in uploads.iter().map(Arc::clone).zip(begun) {
        let expected = Arc::clone(&expected);
        tasks.spawn(async move {
            begun.await.unwrap().unwrap();
            for (i, piece) in expected[MIB..].chunks(MIB / 4).enumerate() {
                write(&upload, MIB + i * (MIB / 4), piece).await.unwrap();
            }
            upload.finish().await.unwrap();
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    for i in 0..40 {
        assert!(bench.client.object(format!("{i:02}")).unwrap()[..] == expected[..], "file {i}");
    }
    drop(readers);
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_writers_of_whole_megabytes_finish_with_a_spill_directory() {
    let dir = tempfile::tempdir().unwrap();
    all_at_once(Bench::new(large_parts(Some(&dir))), 100, 9 * MIB + 3, MIB).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_thread_writes_round_robin_to_64_files_at_128_mib() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(large_parts(Some(&dir)));
    let uploads: Vec<_> = (0..64).map(|i| bench.create(&format!("{i:02}"))).collect();
    let piece = data(MIB, 0);
    for at in 0..10 {
        for upload in &uploads {
            write(upload, at * MIB, &piece).await.unwrap();
        }
    }
    let expected = piece.repeat(10);
    for (i, upload) in uploads.iter().enumerate() {
        assert_eq!(upload.finish().await.unwrap().size, expected.len() as u64);
        assert!(bench.client.object(format!("{i:02}")).unwrap() == expected, "file {i}");
        bench.client.remove(format!("{i:02}"));
    }
    assert!(bench.metrics.uploads_spilled.get() > 0, "64 parts of 8 MiB don't fit");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    bench.assert_clean();
}

#[tokio::test]
async fn a_thousand_small_files_are_open_at_once_without_waiting() {
    let bench = Bench::new(large_parts(None));
    let uploads: Vec<_> = (0..1000).map(|i| bench.create(&format!("{i:04}"))).collect();
    for upload in &uploads {
        write(upload, 0, &[7; 4096]).await.unwrap();
    }
    assert_eq!(bench.pool.used(Use::Write), 1000 * 4096);
    for upload in &uploads {
        upload.finish().await.unwrap();
    }
    assert_eq!(bench.client.keys().len(), 1000);
    bench.assert_clean();
}

#[tokio::test]
async fn without_a_spill_directory_a_write_waits_and_then_reports_no_memory() {
    let clock = Clock::manual();
    let bench = Bench::with(large_parts(None), clock);
    let other = bench.pool.try_reserve(Use::Write, 80 << 20).unwrap();
    let upload = bench.create("a");
    let writer = tokio::spawn({
        let upload = Arc::clone(&upload);
        async move { store(&upload, &data(9 * MIB, 0), MIB).await }
    });
    while bench.pool.waiting(Use::Write) == 0 {
        tokio::task::yield_now().await;
    }
    bench.clock.advance(Duration::from_secs(59));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!writer.is_finished());
    bench.clock.advance(Duration::from_secs(1));
    assert!(matches!(writer.await.unwrap(), Err(Error::NoMemory)));
    assert!(matches!(upload.finish().await, Err(Error::NoMemory)));
    drop(other);
    bench.assert_clean();
}

#[tokio::test]
async fn a_writer_on_a_line_of_minutes_per_part_waits_and_its_file_is_whole() {
    for spill in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let config = large_parts(spill.then_some(&dir));
        let wait_max = config.wait_max;
        let bench = Bench::with(config, Clock::manual());
        let gate = bench.client.hold(FaultPlan::on(Op::UploadPart).always());
        let data = data(100 * MIB, 5);
        let writer = tokio::spawn({
            let (upload, data) = (bench.create("a"), data.clone());
            async move { store(&upload, &data, MIB).await }
        });
        while bench.pool.waiting(Use::Write) == 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..2 {
            bench.clock.advance(wait_max);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
        assert!(!writer.is_finished(), "its parts are on their way");
        gate.release();
        writer.await.unwrap().unwrap();
        assert!(bench.client.object("a").unwrap() == data);
        bench.assert_clean();
    }
}

#[tokio::test]
async fn abort_answers_a_write_that_waits_for_memory() {
    let bench = Bench::new(large_parts(None));
    let other = bench.pool.try_reserve(Use::Write, 84 << 20).unwrap();
    let upload = bench.create("a");
    let writer = tokio::spawn({
        let upload = Arc::clone(&upload);
        async move { write(&upload, 0, &[1; MIB]).await }
    });
    while bench.pool.waiting(Use::Write) == 0 {
        tokio::task::yield_now().await;
    }
    upload.abort().await;
    assert!(matches!(writer.await.unwrap(), Err(Error::Aborted)));
    while bench.pool.waiting(Use::Write) > 0 {
        tokio::task::yield_now().await;
    }
    drop(other);
    bench.assert_clean();
}

#[tokio::test]
async fn a_part_spilled_half_way_is_sent_whole() {
    for (len, put) in [(PART / 2, Op::PutObject), (3 * PART, Op::CompleteMultipartUpload)] {
        let dir = tempfile::tempdir().unwrap();
        let bench = Bench::new(Config { spill_dir: Some(dir.path().to_owned()), ..small_parts() });
        let data = data(len, 3);
        let upload = bench.create("a");
        for (i, chunk) in data.chunks(5000).enumerate() {
            write(&upload, i * 5000, chunk).await.unwrap();
            Arc::clone(&upload).spill().await.unwrap();
        }
        upload.finish().await.unwrap();
        assert_eq!(bench.client.object("a").unwrap(), data);
        assert_eq!(bench.client.calls(put), 1);
        assert_eq!(bench.metrics.uploads_spilled.get(), len.div_ceil(PART) as u64);
        bench.assert_clean();
    }
}

#[tokio::test]
async fn a_disk_that_refuses_leaves_the_part_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(Config { spill_dir: Some(dir.path().join("gone")), ..small_parts() });
    let upload = bench.create("a");
    write(&upload, 0, b"hello").await.unwrap();
    assert!(Arc::clone(&upload).spill().await.is_err());
    write(&upload, 5, b" world").await.unwrap();
    upload.finish().await.unwrap();
    assert_eq!(bench.client.object("a").unwrap(), "hello world");
}

#[tokio::test]
async fn who_waits_gets_the_memory_of_the_part_idle_longest() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::with(large_parts(Some(&dir)), Clock::manual());
    // Room for two parts and a first block.
    let others = bench.pool.try_reserve(Use::Write, (84 - 17) << 20).unwrap();
    let uploads = ["old", "young", "waits"].map(|key| bench.create(key));
    for upload in &uploads[..2] {
        write_all(upload, &data(2 * MIB, 0), MIB).await.unwrap();
        bench.clock.advance(Duration::from_millis(30));
    }
    write(&uploads[2], 0, &data(MIB, 0)).await.unwrap();
    let waiting = tokio::spawn({
        let upload = Arc::clone(&uploads[2]);
        async move { write(&upload, MIB, &data(MIB, MIB)).await }
    });
    waiting.await.unwrap().unwrap();
    while bench.metrics.uploads_spilled.get() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(uploads[0].idle_since().is_none(), "idle for 60 ms: on disk");
    assert!(uploads[1].idle_since().is_some(), "idle for 30 ms: not idle");
    drop(others);
    for (upload, key) in uploads.iter().zip(["old", "young", "waits"]) {
        upload.finish().await.unwrap();
        assert!(bench.client.object(key).unwrap() == data(2 * MIB, 0), "{key}");
    }
    bench.assert_clean();
}

#[tokio::test]
async fn writes_that_wait_stay_within_their_limit_and_then_go_to_disk_or_fail() {
    let most = memory::HELD_MAX as usize / MIB;
    for spill in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let bench = Bench::new(large_parts(spill.then_some(&dir)));
        let others = bench.pool.try_reserve(Use::Write, 84 << 20).unwrap();
        let uploads: Vec<_> = (0..most + 3).map(|i| bench.create(&format!("{i:02}"))).collect();
        let bytes = data(MIB, 9);
        let mut replies: Vec<_> = uploads.iter().map(|upload| start(upload, 0, &bytes)).collect();
        for reply in replies.split_off(most) {
            assert_eq!(reply.await.unwrap().is_ok(), spill);
        }
        assert_eq!(bench.metrics.uploads_spilled.get(), if spill { 3 } else { 0 });
        drop(others);
        let mut tasks = JoinSet::new();
        for (upload, reply) in uploads.iter().map(Arc::clone).zip(replies) {
            tasks.spawn(async move {
                reply.await.unwrap().unwrap();
                upload.finish().await.unwrap();
            });
        }
        while let Some(result) = tasks.join_next().await {
            result.unwrap();
        }
        for upload in &uploads[most..] {
            assert_eq!(upload.finish().await.is_ok(), spill);
        }
        assert_eq!(bench.client.keys().len(), if spill { most + 3 } else { most });
        bench.assert_clean();
    }
}

/// The case: the file being written has its most parts in flight, and other files have the memory and the heap.
#[tokio::test]
async fn a_writer_far_ahead_of_its_line_spills_where_writes_wait_without_enospc() {
    const AT_ONCE: usize = 2;
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        part_size: MIB as u64 + 1,
        parts_in_flight_max: AT_ONCE,
        spill_dir: Some(dir.path().to_owned()),
        ..Config::default()
    };
    let bench = Bench::new(config);
    let gate = bench.client.hold(FaultPlan::on(Op::UploadPart).always());
    let others = bench.pool.try_reserve(Use::Write, 84 << 20).unwrap();
    let waiting: Vec<_> =
        (0..memory::HELD_MAX as usize / MIB).map(|i| bench.create(&format!("{i:02}"))).collect();
    let piece = data(MIB, 1);
    let replies: Vec<_> = waiting.iter().map(|upload| start(upload, 0, &piece)).collect();

    let (ahead, all) = (bench.create("ahead"), data(5 * MIB, 2));
    write_all(&ahead, &all, MIB).await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let queue = bench.pool.waiting(Use::Write);
    assert_eq!(queue, waiting.len() + AT_ONCE, "its other parts wait for a place before they ask for memory");
    drop(others);
    gate.arrived(AT_ONCE).await;
    for reply in replies {
        reply.await.unwrap().unwrap();
    }
    gate.release();
    ahead.finish().await.unwrap();
    assert!(bench.client.object("ahead").unwrap() == all);
    for (i, upload) in waiting.iter().enumerate() {
        upload.finish().await.unwrap();
        assert!(bench.client.object(format!("{i:02}")).unwrap() == piece, "file {i}");
    }
    assert_eq!(bench.metrics.uploads_spilled.get(), 5);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    bench.assert_clean();
}

#[tokio::test]
async fn without_open_files_parts_stay_in_memory_and_a_full_one_is_enospc() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(Config { spill_files_max: 2, ..large_parts(Some(&dir)) });
    let uploads: Vec<_> = (0..3).map(|i| bench.create(&format!("idle{i}"))).collect();
    for (i, upload) in uploads.iter().enumerate() {
        write(upload, 0, b"hello").await.unwrap();
        assert_eq!(Arc::clone(upload).spill().await.is_ok(), i < 2, "file {i}");
    }
    let others = bench.pool.try_reserve(Use::Write, 83 << 20).unwrap();
    let piece = data(MIB, 3);
    let waiting: Vec<_> =
        (0..=memory::HELD_MAX as usize / MIB).map(|i| bench.create(&format!("{i:02}"))).collect();
    let mut replies: Vec<_> = waiting.iter().map(|upload| start(upload, 0, &piece)).collect();
    assert!(matches!(replies.pop().unwrap().await.unwrap(), Err(Error::NoMemory)));
    drop(others);
    for (reply, upload) in replies.into_iter().zip(&waiting) {
        reply.await.unwrap().unwrap();
        upload.finish().await.unwrap();
    }
    uploads[0].finish().await.unwrap();
    Arc::clone(&uploads[2]).spill().await.expect("what is sent gives its file back");
    for upload in &uploads[1..] {
        upload.finish().await.unwrap();
    }
    assert_eq!(bench.client.keys().len(), uploads.len() + waiting.len() - 1);
    bench.assert_clean();
}

#[tokio::test]
async fn a_spilled_file_is_stored_though_idle_parts_hold_all_writer_memory() {
    // The last one has parts as large as memory allows.
    for (len, part_size) in [(2, 8), (20, 8), (30, 1 << 10)] {
        let (len, part_size) = (len * MIB, part_size * MIB as u64);
        let dir = tempfile::tempdir().unwrap();
        let config = Config { part_size, ..large_parts(Some(&dir)) };
        let wait_max = config.wait_max;
        let bench = Bench::with(config, Clock::manual());
        let (upload, data) = (bench.create("a"), data(len, 6));
        write_all(&upload, &data, MIB).await.unwrap();
        Arc::clone(&upload).spill().await.unwrap();
        // The programs are idle, and no more can go to disk.
        let idle: Vec<_> = std::iter::from_fn(|| bench.pool.try_reserve(Use::Write, MIB as u64)).collect();
        let finishing = tokio::spawn(async move { upload.finish().await });
        while !finishing.is_finished() {
            bench.clock.advance(wait_max);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
        finishing.await.unwrap().unwrap();
        assert!(bench.client.object("a").unwrap() == data);
        drop(idle);
        bench.assert_clean();
    }
}

#[tokio::test]
async fn a_part_larger_than_memory_can_serve_is_cut() {
    let bench = Bench::new(Config { part_size: 1 << 30, ..Config::default() });
    let data = data(40 * MIB, 0);
    store(&bench.create("a"), &data, MIB).await.unwrap();
    assert!(bench.client.object("a").unwrap() == data);
    assert_eq!(bench.client.calls(Op::UploadPart), 2);
    bench.assert_clean();
}
