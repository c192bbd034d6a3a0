//! The wiring: turns a configuration into connected rooms and a session with the kernel. Only this file uses all rooms.

mod confined;
mod desk;
mod leaving;
mod lent;
mod observed;
mod outliving;
mod owned;
mod program;
mod remedy;
mod upgrade;

use std::cell::Cell;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::{BoxFuture, OptionFuture};

use crate::broker;
use crate::buffer::Pool;
use crate::cache::{BlockCache, DiskCache};
use crate::clock::Clock;
use crate::config::Config;
use crate::doorbell::Next;
use crate::first::Asker;
use crate::fs::{FileSystem, Keeping, MountEnd};
use crate::fuse::{Device, MountOptions, Session, Unmounter};
use crate::inode::InodeTable;
use crate::kept::{self, Keeper};
use crate::metrics::Metrics;
use crate::moves::{self, Mover};
use crate::outlive::Refused;
use crate::prefetch::Prefetcher;
use crate::s3::{Courier, S3Client};
use crate::stage::{self, Area};
use crate::supervise::{Supervisor, no_thread, try_threads};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Arc, Mutex};
use crate::telemetry::{self, ErrorLine, Told};
use crate::upload::{Reclaim, Uploader};
use confined::Confinement;
pub use desk::Desk;
use leaving::{Leaver, Words};
use observed::Observed;
use outliving::{Ending, Kept, Outlived};
use remedy::Start;
use upgrade::{Upgrade, Way};

/// Interval at which the allocator returns free memory to the kernel, while the mount works. Doubling it holds that memory longer, and
/// costs half as many calls.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(20);
/// Most threads that wait for disks at once, where io_uring does not wait; further work is queued. Not measured: each started thread stays.
/// Doubling it doubles the threads that stay.
const WAITING_MAX: usize = 64;
/// Threads of a cache that are there from the start, beside its writers: of the index, of reads, of proofs, of the watch, and the first
/// that waits for the disk.
const OF_CACHE: usize = 5;
/// Threads and processes beside those of network, FUSE and cache: the thread that handles signals, one for DNS, and `fusermount3`,
/// without which a user can't unmount.
const BESIDE: usize = 3;
/// Longest wait for the start of the runtime's threads; then the mount fails. Doubling it lets a busier machine start a mount, and delays
/// the error of a mount that gets no threads.
const THREADS_WITHIN: Duration = Duration::from_secs(10);
/// Longest wait until the mount leaves the table after the end of its connection, because `umount -f` ends the connection first; then the
/// end counts as an abort. Doubling it doubles the duration of the end after an abort.
const GONE_WITHIN: Duration = Duration::from_secs(1);
/// Longest time without a moved byte for uploads at the end, and for their abort. Doubling it waits longer for an unreachable store.
const GOODBYE_WITHIN: Duration = Duration::from_secs(10);

/// A bucket that is mounted.
#[derive(Debug)]
pub struct Mounted {
    session: Session,
    fs: Arc<FileSystem>,
    metrics: Arc<Metrics>,
    told: Words,
    clock: Clock,
    /// Announces the end of a mount that outlives its engine.
    ending: Option<Ending>,
    /// The sandbox, and with it its helper.
    _confinement: Option<Confinement>,
    runtime: tokio::runtime::Runtime,
}

/// A bucket that answered, with all rooms but the kernel's side.
#[derive(Debug)]
pub struct Connected {
    fs: Arc<FileSystem>,
    uploads: Uploader,
    renames: Option<Mover>,
    device: Device,
    options: MountOptions,
    supervisor: Supervisor,
    telemetry: telemetry::Bound,
    courier: Courier,
    observed: Observed,
    outlived: Option<Outlived>,
    confinement: Option<Confinement>,
    runtime: tokio::runtime::Runtime,
}

/// The calls into the program around the mount: its allocator and its log.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// Makes the allocator return the memory that the calling thread freed.
    pub collect: fn(),
    /// Writes the queued lines of the log, before the process ends.
    pub flush_log: fn(),
    /// The last errors and warnings of the log, the newest last.
    pub recent_errors: fn() -> Vec<ErrorLine>,
}

/// Asks the store whether the bucket exists, opens the cache, and joins the rooms. Nothing is mounted yet.
///
/// # Errors
/// One line that says what could not be reached, found or read, and what to look at.
pub fn connect(config: Config, process: Process) -> anyhow::Result<Connected> {
    let rounds = Arc::new(AtomicU64::new(0));
    let (clock, metrics) = (Clock::machine(), Arc::new(Metrics::default()));
    let of_cache = config.cache.as_ref().map_or(0, |cache| cache.writers + OF_CACHE);
    let others = config.mount.threads + of_cache + BESIDE;
    let runtime = runtime(Arc::clone(&rounds), process.collect, others, &clock)?;
    // This comes before the first use of the network, because the helper resolves names.
    let confinement = runtime.block_on(Confinement::begin(
        config.sandbox,
        &config.device,
        config.mount.transport,
        &config.s3,
    ))?;
    let kept = config.supervised.map(Kept::take).transpose().context("the mount's journal")?;
    let (bucket, prefix) = (config.s3.bucket.clone(), config.s3.prefix.clone());
    let start = Start::of(&config.s3, config.missing_key);
    let client = runtime
        .block_on(async {
            match &kept {
                Some(kept) => kept.client(config.s3, clock.clone(), Arc::clone(&metrics)).await,
                None => S3Client::connect(config.s3, clock.clone(), Arc::clone(&metrics)).await,
            }
        })
        .map_err(|error| anyhow::Error::msg(start.explained(&error)))
        .with_context(|| format!("bucket {}", config.name))?;
    let is_new = !kept.as_ref().is_some_and(Kept::goes_on);
    let kept = kept.map(|kept| kept.begin(&bucket, &prefix, &client, clock.wall())).transpose()?;
    let of_renames = if config.stage.is_some() { "--mode full" } else { "--allow-rename" };
    for (is_given, flag) in [
        (config.moves.is_some(), of_renames),
        (config.fs.allow_append, "--allow-append"),
        (config.kept.as_ref().is_some_and(|kept| kept.keeps), "--keep-metadata"),
    ] {
        if is_given && is_new {
            check_copies(&client, flag)?;
        }
    }
    let pool = Pool::new(&config.buffer);
    let telemetry = config.telemetry.bind()?;
    let mut upload = config.upload;
    let disk_cache = match config.cache {
        Some(mut cache) => {
            cache.endpoint = client.endpoint_url().unwrap_or_default().to_owned();
            let shared = upload.spill_dir.as_deref().is_some_and(|spill| are_on_one_disk(spill, &cache.dir));
            let cache = DiskCache::open(cache, clock.clone(), Arc::clone(&metrics)).context("--cache")?;
            let cache = Arc::new(cache);
            let gives = Arc::clone(&cache);
            upload.reclaim = shared.then(|| Reclaim::new(move |bytes| gives.give_room(bytes)));
            Some(cache)
        }
        None => None,
    };
    let cache = disk_cache.clone().map(|cache| cache as Arc<dyn BlockCache>);
    if let Some(journal) = &mut upload.journal {
        journal.endpoint = client.endpoint_url().unwrap_or_default().to_owned();
    }
    let handle = runtime.handle().clone();
    let asker = Asker::new(client.clone(), pool.clone(), cache.clone(), Arc::clone(&metrics));
    let inodes = InodeTable::new(asker, config.inode, clock.clone(), Arc::clone(&metrics));
    let prefetcher = Prefetcher::new(
        client.clone(),
        cache,
        pool.clone(),
        config.prefetch,
        clock.clone(),
        Arc::clone(&metrics),
        handle.clone(),
    );
    let courier = client.courier();
    let mover = config.moves.map(|mut moves| {
        if let Some(notes) = &mut moves.notes {
            notes.endpoint = client.endpoint_url().unwrap_or_default().to_owned();
        }
        Mover::new(client.clone(), moves)
    });
    let renames = mover.clone();
    let keeping = config.kept.map(|kept| {
        let file = kept.file.map(|file| kept::FileConfig {
            endpoint: client.endpoint_url().unwrap_or_default().to_owned(),
            ..file
        });
        let copies = Mover::new(client.clone(), moves::Config::default());
        Keeping::new(Keeper::new(client.clone(), copies, file), kept.keeps, kept.shows)
    });
    let on = handle.clone();
    let endpoint = client.endpoint_url().unwrap_or_default().to_owned();
    let uploader =
        Uploader::new(client, pool.clone(), upload, clock.clone(), Arc::clone(&metrics), handle.clone());
    let uploads = uploader.clone();
    let area = match config.stage {
        Some(stage) => {
            let stage = stage::Config { endpoint, is_confined: broker::of_this_process().is_some(), ..stage };
            let area =
                Area::open(stage, uploader.clone(), prefetcher.clone(), pool.clone(), clock.clone(), handle);
            Some(area.context("--stage")?)
        }
        None => None,
    };
    let fs = FileSystem::new(inodes, prefetcher, uploader, config.fs, clock.clone());
    let fs = match mover {
        Some(mover) => fs.renaming(mover),
        None => fs,
    };
    let fs = match area {
        Some(area) => fs.in_full(area),
        None => fs,
    };
    let fs = match keeping {
        Some(keeping) => fs.keeping(keeping),
        None => fs,
    };
    let (fs, outlived) = match kept {
        Some((outlived, restored)) => {
            (fs.outliving(Arc::clone(&outlived.journal), restored, &on), Some(outlived))
        }
        None => (fs, None),
    };
    let fs = Arc::new(fs);
    let supervisor = Supervisor { metrics: Arc::clone(&metrics), clock };
    let observed = Observed {
        fs: Arc::clone(&fs),
        process,
        pool: pool.clone(),
        cache: disk_cache,
        memory_target: config.buffer.target,
        threads: config.mount.threads as u64,
        upgrade: Arc::default(),
        no_upgrade: upgrade::UNSUPERVISED,
    };
    if fs.sends_later() {
        let (sends, syncs) = (Arc::clone(&fs), Arc::clone(&fs));
        supervisor
            .task(runtime.handle(), "sending files of the stage", move || Arc::clone(&sends).keep_sending());
        supervisor
            .task(runtime.handle(), "syncing files of the stage", move || Arc::clone(&syncs).keep_syncing());
    }
    supervisor.task(runtime.handle(), "giving idle memory back", move || pool.clone().keep_trimmed());
    let (Supervisor { metrics, clock }, workers) = (supervisor.clone(), runtime.metrics().num_workers());
    supervisor.task(runtime.handle(), "giving freed memory back", move || {
        let rounds = Arc::clone(&rounds);
        give_back(Arc::clone(&metrics), clock.clone(), move || begin_round(&rounds, workers))
    });
    Ok(Connected {
        fs,
        uploads,
        renames,
        device: config.device,
        options: MountOptions { registrar: telemetry.registrar(), ..config.mount },
        supervisor,
        telemetry,
        courier,
        observed,
        outlived,
        confinement,
        runtime,
    })
}

/// Checks that the store can copy. Renames and appends are copies by the store, with conditions, so no other client's version is replaced
/// or deleted. A log line names the conditions that this store does not keep.
///
/// # Errors
/// The store is known to have no copies.
fn check_copies(client: &S3Client, flag: &str) -> anyhow::Result<()> {
    if client.refuses_copies() {
        anyhow::bail!(
            "{flag}: this store does not know CopyObject, as an earlier rename showed: leave the flag out"
        );
    }
    let (store, asked) = (client.store().name(), client.store().asks_before());
    if !asked.is_empty() {
        tracing::warn!(
            "{flag}: stores of the kind {store:?} are not known to keep If-Match and If-None-Match on {}: the engine asks what is there just before, \
             and a change by another client between the two requests can be lost",
            asked.join(", ")
        );
    }
    Ok(())
}

/// Whether two directories are on one disk: space freed in one is then space for the other.
fn are_on_one_disk(one: &Path, other: &Path) -> bool {
    let device = |dir: &Path| std::fs::metadata(dir).ok().map(|about| about.dev());
    device(one).is_some_and(|device_of_one| Some(device_of_one) == device(other))
}

/// Starts the threads of the network, and one that may wait for disks. That thread stays: a runtime without one panics, and loses the work,
/// when the system has no thread left for us. Further threads join it while more work waits at once, and stay, too.
///
/// # Errors
/// The system has no threads for these and for `others`. tokio would panic, or wait for ever for a missing thread, so this function tries
/// the threads first.
fn runtime(
    rounds: Arc<AtomicU64>,
    collect: fn(),
    others: usize,
    clock: &Clock,
) -> anyhow::Result<tokio::runtime::Runtime> {
    let network = std::thread::available_parallelism().map_or(1, usize::from);
    try_threads(network + 1 + others, clock).context("starting the threads of the network")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("mount-s3")
        .on_thread_park(move || collect_once_a_round(&rounds, collect))
        .thread_keep_alive(Duration::MAX)
        .max_blocking_threads(WAITING_MAX)
        .enable_all()
        .build()
        .context("starting the threads of the network")?;
    // This work queues behind the start of the threads of the network.
    let waits = runtime.spawn_blocking(|| ());
    match runtime.block_on(clock.timeout(THREADS_WITHIN, waits)) {
        Some(Ok(())) => Ok(runtime),
        _ => {
            runtime.shutdown_background();
            let late = no_thread(std::io::ErrorKind::WouldBlock.into());
            Err(late).context("starting a thread that waits for disks")
        }
    }
}

impl Connected {
    /// Mounts. Returns once the directory can be used.
    ///
    /// # Errors
    /// An error of the kernel or of fusermount3; nothing is left mounted then.
    pub fn mount(self) -> anyhow::Result<Mounted> {
        let Self {
            fs,
            uploads,
            renames,
            device,
            options,
            supervisor,
            telemetry,
            courier,
            mut observed,
            outlived,
            confinement,
            runtime,
        } = self;
        let is_passed = matches!(device, Device::Adopted(_));
        let (device, ending) = match outlived {
            Some(outlived) => {
                let (device, ending) = outlived.device(device);
                (device, Some(ending))
            }
            None => (device, None),
        };
        let (handle, metrics) = (runtime.handle().clone(), Arc::clone(&supervisor.metrics));
        let tell = |observed| {
            let post =
                Arc::new(move |request| Box::pin(courier.clone().post(request)) as BoxFuture<'static, _>);
            telemetry.start(observed, post, &supervisor, runtime.handle())
        };
        let start = || {
            Session::start(device, Arc::clone(&fs), &options, Arc::clone(&metrics), handle)
            .inspect_err(|error| {
                // The device is closed: the next start mounts anew.
                if let Some(ending) = &ending
                    && matches!(error.downcast_ref(), Some(Refused::NoResend))
                {
                    ending.say();
                }
            })
            .context("mounting: is fuse3 installed, and may this user mount? (/dev/fuse, and user_allow_other in /etc/fuse.conf for --allow-other)")
        };
        let status = ending.as_ref().and_then(Ending::restart_status);
        // Another process has a device that was handed over.
        let way = match (is_passed, &confinement) {
            (true, _) => status.map(Way::Leave),
            (false, None) => Some(Way::Guard),
            (false, Some(_)) => status.map(Way::Restart),
        };
        let (upgrade, flush_log) = (Arc::clone(&observed.upgrade), observed.process.flush_log);
        let prepare_upgrade = |session: &Session| {
            let parts = session.requests().zip(ending.as_ref().map(Ending::journal)).zip(way);
            if let Some(((requests, journal), way)) = parts {
                let clock = supervisor.clock.clone();
                let _ = upgrade.set(Upgrade::new(way, Arc::clone(&fs), requests, journal, clock, flush_log));
            }
        };
        let (session, told) = match &confinement {
            // A device that was handed over is served behind the sandbox, and the sandbox makes no sockets.
            Some(confinement) if is_passed => {
                let told = tell(observed)?;
                confinement.enter()?;
                let session = start()?;
                prepare_upgrade(&session);
                (session, told)
            }
            _ => {
                let session = start()?;
                if way.is_none() && !is_passed && session.requests().is_some() {
                    observed.no_upgrade = upgrade::CONFINED;
                }
                prepare_upgrade(&session);
                let confine =
                    |confinement: &Confinement| confinement.enter_mounted(session.unmounter().device());
                let told = tell(observed);
                let confined = confinement.as_ref().map_or(Ok(()), confine);
                match told.and_then(|told| confined.map(|()| told)) {
                    Ok(told) => (session, told),
                    Err(error) => {
                        let _ = session.unmounter().unmount();
                        return Err(error);
                    }
                }
            }
        };
        // The start does not wait for this: the store is asked once the mount serves.
        uploads.abort_left_behind();
        if let Some(renames) = renames {
            runtime.spawn(async move { renames.go_on().await });
        }
        let told = Arc::new(Mutex::new(Some(told)));
        let clock = supervisor.clock;
        Ok(Mounted { session, fs, metrics, told, clock, ending, _confinement: confinement, runtime })
    }
}

impl Mounted {
    /// A handle that unmounts, from any thread.
    pub fn unmounter(&self) -> Unmounter {
        self.session.unmounter()
    }

    /// A handle that completes closed files and gives up open ones, for a mount that another process unmounts.
    pub fn farewell(&self) -> Farewell {
        Farewell { fs: Arc::clone(&self.fs), runtime: self.runtime.handle().clone() }
    }

    /// A handle that ends the process after a signal, if another mount namespace keeps the mount.
    pub fn leaver(&self) -> Leaver {
        Leaver::new(self)
    }

    /// The counters of this mount.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Serves until the unmount, then completes closed files and gives up those still being written.
    ///
    /// # Errors
    /// The FUSE device failed otherwise than by an unmount; the mount is unmounted then.
    pub fn wait(self) -> anyhow::Result<()> {
        let (farewell, unmounter) = (self.farewell(), self.unmounter());
        let served = self.session.wait().context("serving /dev/fuse");
        if served.is_err() {
            let _ = unmounter.unmount();
        }
        farewell.say(match served {
            Ok(()) if is_soon_gone(&unmounter, &Clock::machine()) => MountEnd::Unmounted,
            _ => MountEnd::Aborted,
        });
        if let Some(ending) = &self.ending {
            ending.say();
        }
        let told = self.told.lock().take();
        self.runtime.block_on(async { OptionFuture::from(told.map(Told::last_words)).await });
        self.runtime.shutdown_timeout(Duration::from_secs(1));
        served
    }
}

/// Collects memory while the mount works, and once more afterwards, for memory that the last request freed.
async fn give_back(metrics: Arc<Metrics>, clock: Clock, collect: impl Fn()) {
    let mut worked = false;
    let look = |was_rung| {
        if std::mem::replace(&mut worked, was_rung) {
            collect();
        }
        if was_rung { Next::Look(GIVE_BACK_EVERY) } else { Next::Rest }
    };
    metrics.work.keep_house(&clock, look).await;
}

/// Wakes the threads of the network, which collect memory when they go to sleep again. With many processors, some threads may sleep on.
fn begin_round(rounds: &AtomicU64, workers: usize) {
    rounds.fetch_add(1, Relaxed);
    for _ in 0..workers {
        tokio::spawn(async {});
    }
}

/// Collects memory as a thread goes to sleep, once a round. The allocator has a heap for each thread, and only that thread can collect it.
fn collect_once_a_round(rounds: &AtomicU64, collect: impl Fn()) {
    thread_local!(static SEEN: Cell<u64> = const { Cell::new(0) });
    let round = rounds.load(Relaxed);
    if SEEN.replace(round) != round {
        collect();
    }
}

/// Whether a connection that ended was unmounted: then its mount leaves the table.
fn is_soon_gone(unmounter: &Unmounter, clock: &Clock) -> bool {
    let until = clock.now() + GONE_WITHIN;
    while unmounter.is_still_mounted() {
        if clock.now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Ends the writing of a mount that another process unmounts; from [`Mounted::farewell`].
#[derive(Clone, Debug)]
pub struct Farewell {
    fs: Arc<FileSystem>,
    runtime: tokio::runtime::Handle,
}

impl Farewell {
    /// Completes closed files and gives up those still being written, as [`FileSystem::end`] does. Do not call this on a thread of the
    /// runtime.
    pub fn say(&self, how: MountEnd) {
        self.runtime.block_on(self.fs.end(GOODBYE_WITHIN, how));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn freed_memory_goes_back_during_work_and_once_more_and_then_all_rests() {
        let (metrics, clock, collected) =
            (Arc::new(Metrics::default()), Clock::manual(), Arc::new(Mutex::new(0)));
        let count = Arc::clone(&collected);
        let collect = move || *count.lock() += 1;
        let _house = tokio::spawn(give_back(Arc::clone(&metrics), clock.clone(), collect));
        let after = async |rounds: u32| {
            let before = *collected.lock();
            for _ in 0..rounds {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                clock.advance(GIVE_BACK_EVERY);
            }
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            *collected.lock() - before
        };
        assert_eq!(after(100).await, 1, "of the start");
        metrics.work.ring();
        assert_eq!(after(0).await, 0, "the work has just begun");
        metrics.work.ring();
        assert_eq!(after(1).await, 1);
        assert_eq!(after(100).await, 1, "for what was freed since the last round");
        assert_eq!(after(100).await, 0);
    }

    #[test]
    fn a_thread_collects_once_a_round() {
        let (rounds, collected) = (AtomicU64::new(0), AtomicU64::new(0));
        let parks = || {
            collect_once_a_round(&rounds, || _ = collected.fetch_add(1, Relaxed));
            collected.load(Relaxed)
        };
        assert_eq!([parks(), parks()], [0, 0], "before the first round");
        rounds.fetch_add(1, Relaxed);
        assert_eq!([parks(), parks()], [1, 1]);
        rounds.fetch_add(2, Relaxed);
        assert_eq!([parks(), parks()], [2, 2]);
        let other = std::thread::scope(|scope| scope.spawn(parks).join().unwrap());
        assert_eq!(other, 3, "each thread has a heap of its own");
    }
}
