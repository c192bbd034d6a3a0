//! Panics of the engine's own tasks: tests that every waiter gets an error, and the store is left clean.

use std::pin::pin;

use super::*;
use crate::buffer::{BlockMut, Fill};
use crate::s3::*;
use crate::testing::log_of;
use crate::upload;

/// Long enough for everything that ends at all.
const EVER: Duration = Duration::from_secs(60);

/// A client that panics at one operation.
#[derive(Debug)]
struct Panicking(MemoryClient, Op);

impl Panicking {
    fn at(&self, op: Op) {
        assert_ne!(self.1, op, "a broken vase");
    }
}

impl ObjectClient for Panicking {
    fn put_object<'a>(&'a self, request: &'a PutObject) -> BoxFuture<'a, Result<Stored>> {
        Box::pin(async {
            self.at(Op::PutObject);
            self.0.put_object(request).await
        })
    }

    fn upload_part<'a>(&'a self, request: &'a UploadPart) -> BoxFuture<'a, Result<UploadedPart>> {
        Box::pin(async {
            self.at(Op::UploadPart);
            self.0.upload_part(request).await
        })
    }

    fn complete_multipart_upload<'a>(&'a self, request: &'a CompleteUpload) -> BoxFuture<'a, Result<Stored>> {
        Box::pin(async {
            self.at(Op::CompleteMultipartUpload);
            self.0.complete_multipart_upload(request).await
        })
    }

    fn create_multipart_upload<'a>(&'a self, request: &'a NewObject) -> BoxFuture<'a, Result<UploadId>> {
        Box::pin(async {
            self.at(Op::CreateMultipartUpload);
            self.0.create_multipart_upload(request).await
        })
    }

    passed_on!();
}

fn on_a_runtime(test: impl Future<Output = ()>) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    log_of(|| runtime.block_on(test))
}

#[test]
fn a_panic_at_any_upload_request_is_an_error_at_close_and_leaves_nothing() {
    let requests = [
        (Op::PutObject, 1),
        (Op::CreateMultipartUpload, 3),
        (Op::UploadPart, 3),
        (Op::CompleteMultipartUpload, 3),
    ];
    for (op, parts) in requests {
        let log = on_a_runtime(async move {
            let bench = Bench::through(small_parts(), Clock::machine(), |client| {
                Arc::new(Panicking(client.clone(), op))
            });
            let upload = bench.create("a");
            let bytes = vec![1; parts * PART];
            let stored = pin!(store(&upload, &bytes, PART));
            let stored = bench.clock.timeout(EVER, stored).await.expect("the closer hears of it");
            assert!(matches!(stored, Err(upload::Error::Panicked)), "{op:?}: {stored:?}");
            let again = bench.clock.timeout(EVER, pin!(upload.abort())).await;
            assert!(again.is_some(), "{op:?}: the abort ends");
            assert!(bench.client.object("a").is_none(), "{op:?}");
            bench.assert_clean();
        });
        assert!(log.contains("a panic ended it") && log.contains("key=a"), "{op:?}: {log}");
    }
}

#[test]
fn a_panic_of_a_writers_callback_ends_the_wait_of_its_close() {
    on_a_runtime(async {
        let bench = Bench::new(small_parts());
        let mut all = Vec::new();
        for bytes in [MIB as u64, 4096] {
            all.extend(std::iter::from_fn(|| bench.pool.try_reserve(Use::Write, bytes)));
        }
        let upload = bench.create("a");
        upload.write(0, &vec![1; PART], Box::new(|_| panic!("a broken vase")));
        assert!(upload.is_busy(), "it waits for memory");
        drop(all);
        let closed = bench.clock.timeout(EVER, pin!(upload.finish())).await.expect("the closer hears of it");
        assert!(matches!(closed, Err(upload::Error::Panicked)), "{closed:?}");
        bench.assert_clean();
    });
}
