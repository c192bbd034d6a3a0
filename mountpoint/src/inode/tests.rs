//! Tests of the room over a bucket in memory.

use std::ffi::OsStr;

use super::*;
use crate::object::{ETag, ObjectMeta};
use crate::s3;
use crate::testing::{FaultPlan, MemoryClient, Op, Settings};

mod absent;
mod along;
mod first;
mod folder_marks;
mod listing;
mod local;
mod lookups;
#[cfg(feature = "shuttle")]
mod model;
mod opens;
mod outliving;
mod ranges;
mod recent;
mod sisters;
mod unasked;
mod walk;
mod walked;

/// A bucket with some keys, a table over it, and the clock of both.
struct Bench {
    client: MemoryClient,
    table: InodeTable,
    clock: Clock,
    metrics: Arc<Metrics>,
}

const MINUTE: Ttl = Ttl::For { found: Duration::from_secs(60), missing: Duration::from_secs(60) };

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
        let table =
            InodeTable::new(Asker::of_attributes(client.arc()), config, clock.clone(), metrics.clone());
        Self { client, table, clock, metrics }
    }

    /// Looks a name up as the file system does: memory first.
    async fn lookup(&self, parent: InodeNo, name: &str) -> Result<Found> {
        match self.table.try_lookup(parent, OsStr::new(name)) {
            Some(answer) => answer,
            None => self.table.lookup(parent, OsStr::new(name)).await,
        }
    }

    async fn walk(&self, path: &str) -> Result<Found> {
        let mut found = None;
        let mut at = ROOT;
        for name in path.split('/') {
            let next = self.lookup(at, name).await?;
            at = next.ino;
            found = Some(next);
        }
        Ok(found.expect("a path has a name"))
    }

    async fn open_read(&self, ino: InodeNo) -> Result<OpenRead> {
        match self.table.try_open_read(ino) {
            Some(answer) => answer,
            None => self.table.open_read(ino, false).await,
        }
    }

    async fn list(&self, ino: InodeNo) -> Vec<DirEntry> {
        let listing = self.table.opendir(ino).await.unwrap();
        let (mut all, mut offset) = (Vec::new(), 0);
        loop {
            let entries = match listing.try_entries(&self.table, offset, 7) {
                Some(entries) => entries.unwrap(),
                None => listing.entries(&self.table, offset, 7).await.unwrap(),
            };
            let Some(last) = entries.last() else { break };
            offset = last.offset;
            all.extend(entries);
        }
        assert_eq!(all[0].name(), ".");
        assert_eq!(all[1].name(), "..");
        all.split_off(2)
    }

    async fn names(&self, ino: InodeNo) -> Vec<String> {
        self.list(ino).await.iter().map(|entry| entry.name().to_string()).collect()
    }

    /// Makes a file and stores it, as an upload does.
    async fn write(&self, parent: InodeNo, name: &str, content: &'static str) -> InodeNo {
        let made = self.table.create(parent, OsStr::new(name)).await.unwrap();
        self.overwrite(made.ino, content).await;
        made.ino
    }

    async fn overwrite(&self, ino: InodeNo, content: &'static str) {
        let wish = WriteWish { truncate: true, append: false, allow_overwrite: true, ..WriteWish::default() };
        let OpenWrite::Granted { key, .. } = self.table.open_write(ino, 1, wish).await.unwrap() else {
            panic!("somebody writes already")
        };
        self.table.written(ino, content.len() as u64);
        self.client.insert(key.as_str(), content);
        self.table.commit_write(ino, self.client.meta(key.as_str()).unwrap());
    }

    fn requests(&self) -> usize {
        self.client.log().len()
    }

    /// The requests that `ask` makes.
    async fn cost<T>(&self, ask: impl Future<Output = T>) -> (T, usize) {
        let before = self.requests();
        let answer = ask.await;
        (answer, self.requests() - before)
    }
}

fn kind<T: fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("an error").kind().clone()
}

macro_rules! assert_error {
    ($result:expr, $kind:pat) => {
        let error = crate::inode::tests::kind($result);
        assert!(matches!(error, $kind), "{error:?}");
    };
}
use assert_error;
