//! Long directories, listed by several requests at once.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::Semaphore;

use super::*;
use crate::buffer::{BlockMut, Fill};
use crate::object::ObjectKey;
use crate::s3::{
    BoxFuture, CompleteUpload, First, GetFirst, GetObject, ListObjects, ListPage, NewObject, ObjectClient,
    PendingUpload, PutObject, Stored, UploadId, UploadPart, UploadedPart,
};

fn files(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("f{i:06}")).collect()
}

fn bench(keys: &[String]) -> Bench {
    Bench::new(Ttl::Minimal, &keys.iter().map(String::as_str).collect::<Vec<_>>())
}

#[tokio::test]
async fn a_long_directory_is_listed_by_several_requests_at_once() {
    let names = files(30_000);
    let keys: Vec<String> = names.iter().map(|name| format!("d/{name}")).collect();
    let bench = bench(&keys);
    let d = bench.lookup(ROOT, "d").await.unwrap().ino;
    bench.client.reset_log();
    assert_eq!(bench.names(d).await, names);
    let requests = bench.client.calls(Op::ListObjects);
    assert!((31..=45).contains(&requests), "{requests} requests for 30 pages");
    // Directories among the files, local names, and a name that disappears meanwhile.
    for i in 0..200 {
        bench.client.insert(format!("d/f{:06}/below", i * 150), "");
    }
    bench.table.create(d, OsStr::new("f0100005")).await.unwrap();
    bench.table.create(d, OsStr::new("zz")).await.unwrap();
    let mut expected = names.clone();
    expected.extend(["f0100005".to_owned(), "zz".to_owned()]);
    expected.sort_by_key(|name| format!("{name}/"));
    assert_eq!(bench.names(d).await, expected);
}

#[tokio::test]
async fn a_long_listing_that_is_given_up_costs_six_times_what_was_read_at_most() {
    let keys = files(50_000);
    let bench = bench(&keys);
    for pages in [1, 2, 4] {
        bench.client.reset_log();
        let listing = bench.table.opendir(ROOT).await.unwrap();
        let mut offset = 2;
        while offset < pages * 1000 {
            offset = listing.entries(&bench.table, offset, 100).await.unwrap().last().unwrap().offset;
        }
        drop(listing);
        tokio::task::yield_now().await;
        let requests = bench.client.calls(Op::ListObjects) as u64;
        assert!(requests <= 6 * pages, "{requests} requests for {pages} pages");
    }
}

#[tokio::test]
async fn a_range_that_fails_fails_the_listing_there_and_it_goes_on() {
    let keys = files(20_000);
    let bench = bench(&keys);
    let listing = bench.table.opendir(ROOT).await.unwrap();
    let (mut offset, mut shown, mut errors, mut injected) = (2, Vec::new(), 0, false);
    loop {
        if shown.len() >= 2500 && !std::mem::replace(&mut injected, true) {
            bench
                .client
                .inject(FaultPlan::on(Op::ListObjects).times(3).fail(crate::s3::ErrorKind::ServerError));
        }
        match listing.entries(&bench.table, offset, 100).await {
            Ok(entries) => {
                let Some(last) = entries.last() else { break };
                offset = last.offset;
                shown.extend(entries.iter().map(|entry| entry.name().to_owned()));
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Remote(_)), "{error}");
                errors += 1;
            }
        }
    }
    assert_eq!(shown, keys);
    assert!((1..=3).contains(&errors), "{errors}");
}

/// A store whose pages are out of order from the fourth on. The gate holds these pages back.
#[derive(Debug)]
struct Disorderly(MemoryClient, AtomicUsize, Semaphore);

impl ObjectClient for Disorderly {
    fn list_objects<'a>(&'a self, request: &'a ListObjects) -> BoxFuture<'a, s3::Result<ListPage>> {
        Box::pin(async {
            let mut page = self.0.list_objects(request).await?;
            if self.1.fetch_add(1, Relaxed) >= 3 {
                let _passed = self.2.acquire().await;
                page.objects.reverse();
            }
            Ok(page)
        })
    }

    fn head_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, s3::Result<ObjectMeta>> {
        self.0.head_object(key)
    }

    fn get_object<'a>(&'a self, request: &'a GetObject, into: &'a mut Fill) -> BoxFuture<'a, s3::Result<()>> {
        self.0.get_object(request, into)
    }

    fn get_first<'a>(&'a self, request: &'a GetFirst, room: BlockMut) -> BoxFuture<'a, s3::Result<First>> {
        self.0.get_first(request, room)
    }

    fn put_object<'a>(&'a self, request: &'a PutObject) -> BoxFuture<'a, s3::Result<Stored>> {
        self.0.put_object(request)
    }

    fn create_multipart_upload<'a>(&'a self, request: &'a NewObject) -> BoxFuture<'a, s3::Result<UploadId>> {
        self.0.create_multipart_upload(request)
    }

    fn upload_part<'a>(&'a self, request: &'a UploadPart) -> BoxFuture<'a, s3::Result<UploadedPart>> {
        self.0.upload_part(request)
    }

    fn complete_multipart_upload<'a>(
        &'a self,
        request: &'a CompleteUpload,
    ) -> BoxFuture<'a, s3::Result<Stored>> {
        self.0.complete_multipart_upload(request)
    }

    fn abort_multipart_upload<'a>(&'a self, upload: &'a UploadId) -> BoxFuture<'a, s3::Result<()>> {
        self.0.abort_multipart_upload(upload)
    }

    fn list_multipart_uploads<'a>(
        &'a self,
        prefix: &'a str,
    ) -> BoxFuture<'a, s3::Result<Vec<PendingUpload>>> {
        self.0.list_multipart_uploads(prefix)
    }

    fn delete_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, s3::Result<()>> {
        self.0.delete_object(key)
    }
}

fn disorderly(plain: Bench, passing: usize) -> (Bench, Arc<Disorderly>) {
    let client = Arc::new(Disorderly(plain.client.clone(), AtomicUsize::new(0), Semaphore::new(passing)));
    let asker = Asker::of_attributes(client.clone());
    let table = InodeTable::new(asker, Config::default(), plain.clock.clone(), plain.metrics.clone());
    (Bench { table, ..plain }, client)
}

/// The disorder shows while no reader waits for a page: no reader requests one then, and the next names must still appear.
#[tokio::test]
async fn disorder_that_shows_between_two_pages_ends_no_listing() {
    let names = files(20_000);
    let (bench, store) = disorderly(bench(&names), 0);
    let listing = bench.table.opendir(ROOT).await.unwrap();
    let (mut offset, mut shown) = (2, Vec::new());
    let mut is_held = true;
    loop {
        let entries = listing.entries(&bench.table, offset, 100).await.unwrap();
        let Some(last) = entries.last() else { break };
        offset = last.offset;
        shown.extend(entries.iter().map(|entry| entry.name().to_owned()));
        // The reader is within the second page; the third is in memory, and others are in flight.
        if shown.len() > 1500 && std::mem::take(&mut is_held) {
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            assert!(store.1.load(Relaxed) > 3, "requests are held");
            store.2.add_permits(Semaphore::MAX_PERMITS);
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
        }
    }
    shown.sort();
    assert_eq!(shown, names);
}

#[tokio::test]
async fn a_store_without_order_is_listed_from_the_start_each_name_once() {
    let names = files(20_000);
    let plain = bench(&names);
    let (bench, _) = disorderly(plain, Semaphore::MAX_PERMITS);
    let mut shown = bench.names(ROOT).await;
    shown.sort();
    assert_eq!(shown, names);
    // From here on the listing requests one page after another.
    bench.client.reset_log();
    let mut shown = bench.names(ROOT).await;
    shown.sort();
    assert_eq!((shown, bench.client.calls(Op::ListObjects)), (names, 20));
}
