//! The room over a bucket in memory.

use std::ffi::OsStr;

use super::*;
use crate::testing::{MemoryClient, Op, Settings};

/// A bucket with these keys, a table over it, and the clock of both.
struct Bench {
    client: MemoryClient,
    table: InodeTable,
}

impl Bench {
    fn new(ttl: Ttl, keys: &[&str]) -> Self {
        Self::with(Config { ttl, ..Config::default() }, keys)
    }

    fn with(config: Config, keys: &[&str]) -> Self {
        let clock = Clock::manual();
        let client = MemoryClient::with(Settings { clock: clock.clone(), ..Settings::default() });
        for key in keys {
            client.insert(key, "content");
        }
        let metrics = Arc::new(Metrics::default());
        let table = InodeTable::new(client.arc(), config, clock, metrics);
        Self { client, table }
    }

    async fn lookup(&self, parent: InodeNo, name: &str) -> Result<Found> {
        match self.table.try_lookup(parent, OsStr::new(name)) {
            Some(answer) => answer,
            None => self.table.lookup(parent, OsStr::new(name)).await,
        }
    }

    fn requests(&self) -> usize {
        self.client.log().len()
    }
}

#[tokio::test]
async fn a_cold_open_costs_one_head_and_one_list() {
    let bench = Bench::new(Ttl::Minimal, &["a"]);
    let found = bench.lookup(ROOT, "a").await.unwrap();
    let open = bench.table.try_open_read(found.ino).expect("the lookup just answered").unwrap();
    assert!(matches!(open, OpenRead::Object { size: 7, .. }));
    assert_eq!((bench.client.calls(Op::HeadObject), bench.client.calls(Op::ListObjects)), (1, 1));
    assert_eq!(bench.requests(), 2);
}
