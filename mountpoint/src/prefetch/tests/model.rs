//! Reads that wait for the same pieces, handles that close and requests that end, under the schedules of the model checker.
//!
//! The requests run as in a mount, on a runtime; here one thread of the model drives it, so that each lock that they take is one of the
//! model's, too. Nothing of it waits for a machine: the store is memory and the clock stands still.

use shuttle::thread::{spawn, yield_now};

use super::*;
use crate::testing::model::check;

/// Some pieces of a request.
const LEN: usize = 300 << 10;
/// A request takes a few turns of its runtime.
const TURNS: usize = 32;

/// The outcome of a read.
type Outcome = (Range<usize>, Result<Vec<u8>, Error>);

/// A prefetcher over one object, and the results of the reads.
struct World {
    runtime: Arc<tokio::runtime::Runtime>,
    client: MemoryClient,
    pool: Pool,
    prefetcher: Prefetcher,
    id: ObjectId,
    outcomes: Arc<Mutex<Vec<Outcome>>>,
}

impl World {
    fn new(data: &bytes::Bytes) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let client = MemoryClient::new();
        let id = ObjectId::by_etag("o".into(), client.insert("o", data.clone()));
        let pool = Pool::new(&buffer::Config { target: 16 << 20, network: 0 });
        let (clock, metrics) = (Clock::manual(), Arc::new(Metrics::default()));
        let of_runtime = runtime.handle().clone();
        let prefetcher =
            Prefetcher::new(client.arc(), None, pool.clone(), Config::default(), clock, metrics, of_runtime);
        Self { runtime: Arc::new(runtime), client, pool, prefetcher, id, outcomes: Arc::default() }
    }

    /// A program that opens the object, reads these ranges without waiting for their bytes, and closes it.
    fn program(&self, ranges: Vec<Range<usize>>) -> impl FnOnce() + Send + 'static {
        let (prefetcher, id, outcomes) =
            (self.prefetcher.clone(), self.id.clone(), Arc::clone(&self.outcomes));
        move || {
            let reader = prefetcher.open(id, LEN as u64, None);
            for range in ranges {
                let outcomes = Arc::clone(&outcomes);
                reader.read(range.start as u64, range.len(), move |result| {
                    outcomes.lock().push((range, result.map(|bytes| bytes.to_vec())));
                });
            }
        }
    }

    /// The thread of the network, which polls ready tasks and never sleeps.
    fn network(&self) -> impl FnOnce() + Send + 'static {
        let runtime = Arc::clone(&self.runtime);
        move || {
            for _ in 0..TURNS {
                runtime.block_on(tokio::task::yield_now());
                yield_now();
            }
        }
    }

    /// Runs these threads beside the network, lets the requests end, and leaves nothing behind. Returns the results of the reads.
    fn run(self, programs: Vec<Vec<Range<usize>>>) -> Vec<Outcome> {
        let reads: usize = programs.iter().map(Vec::len).sum();
        let mut threads = vec![spawn(self.network())];
        threads.extend(programs.into_iter().map(|ranges| spawn(self.program(ranges))));
        for thread in threads {
            thread.join().unwrap();
        }
        self.network()();
        let outcomes = std::mem::take(&mut *self.outcomes.lock());
        assert_eq!(outcomes.len(), reads, "each read is answered once");
        for purpose in [Use::Demand, Use::Ahead] {
            assert_eq!((self.pool.used(purpose), self.pool.waiting(purpose)), (0, 0), "{purpose:?}");
        }
        assert!(self.prefetcher.0.objects.lock().is_empty(), "no handle is open");
        outcomes
    }
}

/// Programs with equal ranges, with ranges of one request, and with ranges that only one of them reads.
fn programs() -> Vec<Vec<Range<usize>>> {
    const K: usize = 1 << 10;
    vec![
        vec![0..128 * K, 128 * K..192 * K],
        vec![64 * K..200 * K, 0..10],
        vec![100 * K..104 * K, LEN - 10..LEN],
    ]
}

#[test]
fn shuttle_reads_of_the_same_pieces_get_their_bytes_in_any_closing_order() {
    let data = bytes::Bytes::from(pattern(LEN));
    check(move || {
        for (range, result) in World::new(&data).run(programs()) {
            assert!(result.expect("bytes") == data[range.clone()], "wrong bytes of {range:?}");
        }
    });
}

#[test]
fn shuttle_a_broken_request_answers_each_waiting_read_exactly_once() {
    let data = bytes::Bytes::from(pattern(LEN));
    check(move || {
        let world = World::new(&data);
        world.client.inject(FaultPlan::on(Op::GetObject).break_after(100 << 10));
        for (range, result) in world.run(programs()) {
            match result {
                Ok(bytes) => assert!(bytes == data[range.clone()], "wrong bytes of {range:?}"),
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Network), "{range:?}: {error}"),
            }
        }
    });
}

#[test]
fn shuttle_an_open_survives_the_last_close_of_a_handle_of_another_size() {
    let data = bytes::Bytes::from(pattern(LEN));
    check(move || {
        let world = World::new(&data);
        let open = |size: usize| {
            let (prefetcher, id) = (world.prefetcher.clone(), world.id.clone());
            spawn(move || drop(prefetcher.open(id, size as u64, None)))
        };
        for thread in [open(LEN), open(LEN - 1)] {
            thread.join().unwrap();
        }
        assert!(world.prefetcher.0.objects.lock().is_empty(), "no handle is open");
    });
}

#[test]
fn shuttle_a_handle_opened_while_the_last_one_closes_follows_a_rename() {
    let data = bytes::Bytes::from(pattern(LEN));
    check(move || {
        let world = World::new(&data);
        let to = ObjectId { key: "new".into(), ..world.id.clone() };
        let last = world.prefetcher.open(world.id.clone(), LEN as u64, None);
        let closing = spawn(move || drop(last));
        let reader = world.prefetcher.open(world.id.clone(), LEN as u64, None);
        world.prefetcher.moved(&world.id, &to);
        closing.join().unwrap();
        let shared = &world.prefetcher.0;
        assert_eq!(shared.where_is(&world.id), to);
        drop(reader);
        assert!(shared.moved.lock().is_empty() && shared.objects.lock().is_empty(), "no handle is open");
    });
}
