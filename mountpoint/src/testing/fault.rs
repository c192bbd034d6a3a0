//! Faults as data: which call fails, and how.

use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use crate::s3::ErrorKind;
use crate::sync::Arc;

/// The operations of an [`ObjectClient`](crate::s3::ObjectClient).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// `head_object`, `describe_object`
    HeadObject,
    /// `list_objects`
    ListObjects,
    /// `get_object`
    GetObject,
    /// `put_object`
    PutObject,
    /// `create_multipart_upload`
    CreateMultipartUpload,
    /// `upload_part`
    UploadPart,
    /// `complete_multipart_upload`
    CompleteMultipartUpload,
    /// `abort_multipart_upload`
    AbortMultipartUpload,
    /// `list_multipart_uploads`
    ListMultipartUploads,
    /// `delete_object`, `delete_version`
    DeleteObject,
    /// `object_tags`
    GetObjectTagging,
    /// `copy_object`; its key is that of the copy
    CopyObject,
    /// `upload_part_copy`
    UploadPartCopy,
}

impl Op {
    /// The operation's S3 name.
    pub fn name(self) -> &'static str {
        match self {
            Self::HeadObject => "HeadObject",
            Self::ListObjects => "ListObjectsV2",
            Self::GetObject => "GetObject",
            Self::PutObject => "PutObject",
            Self::CreateMultipartUpload => "CreateMultipartUpload",
            Self::UploadPart => "UploadPart",
            Self::CompleteMultipartUpload => "CompleteMultipartUpload",
            Self::AbortMultipartUpload => "AbortMultipartUpload",
            Self::ListMultipartUploads => "ListMultipartUploads",
            Self::DeleteObject => "DeleteObject",
            Self::GetObjectTagging => "GetObjectTagging",
            Self::CopyObject => "CopyObject",
            Self::UploadPartCopy => "UploadPartCopy",
        }
    }
}

/// One fault: the calls of one operation that it strikes, and the effect on them. [`MemoryClient::inject`](super::MemoryClient::inject) and
/// [`hold`](super::MemoryClient::hold) take it.
///
/// Without further methods the fault strikes the first matching call, once.
///
/// ```
/// use mountpoint::{s3::ErrorKind, testing::{FaultPlan, MemoryClient, Op}};
/// let client = MemoryClient::new();
/// client.inject(FaultPlan::on(Op::UploadPart).key("big").nth(3).fail(ErrorKind::Throttled));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a plan does nothing until a client is given it"]
pub struct FaultPlan {
    op: Op,
    key: Option<String>,
    nth: usize,
    times: usize,
    seen: usize,
    pub(super) delay: Duration,
    pub(super) fail: Option<ErrorKind>,
    pub(super) break_after: Option<u64>,
    pub(super) flip: Option<u64>,
    pub(super) answer_lost: bool,
    pub(super) hold: Option<(HoldAt, Arc<Barrier>)>,
}

/// The point at which a held call waits: before its effect, or after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HoldAt {
    Request,
    Answer,
}

impl FaultPlan {
    /// Strikes calls of this operation.
    pub fn on(op: Op) -> Self {
        Self {
            op,
            key: None,
            nth: 1,
            times: 1,
            seen: 0,
            delay: Duration::ZERO,
            fail: None,
            break_after: None,
            flip: None,
            answer_lost: false,
            hold: None,
        }
    }

    /// Restricts the fault to calls whose key (or prefix, for listings) contains `part`.
    pub fn key(mut self, part: impl Into<String>) -> Self {
        self.key = Some(part.into());
        self
    }

    /// Begins with the `n`th matching call after the plan was handed over; the first one is 1.
    pub fn nth(mut self, n: usize) -> Self {
        assert!(n > 0, "calls are counted from 1");
        self.nth = n;
        self
    }

    /// Strikes this many matching calls in a row.
    pub fn times(mut self, n: usize) -> Self {
        self.times = n;
        self
    }

    /// Strikes all matching calls from the first one on.
    pub fn always(self) -> Self {
        self.times(usize::MAX)
    }

    /// Fails the call without any effect, with an error of this kind. With [`FaultPlan::break_after`] or [`FaultPlan::answer_lost`] this is
    /// the kind of their error.
    pub fn fail(mut self, kind: ErrorKind) -> Self {
        self.fail = Some(kind);
        self
    }

    /// Delays the beginning of the call by this much, on the client's clock.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Ends a GetObject after its first `bytes` bytes, with `Network` (or the error of [`FaultPlan::fail`]).
    pub fn break_after(mut self, bytes: u64) -> Self {
        assert!(self.op == Op::GetObject, "only a GetObject has a body to break");
        self.break_after = Some(bytes);
        self
    }

    /// Flips one bit of the object's byte at this offset in the answer of a GetObject that contains the byte.
    pub fn flip(mut self, at: u64) -> Self {
        assert!(self.op == Op::GetObject, "only a GetObject brings bytes");
        self.flip = Some(at);
        self
    }

    /// Loses the answer of a call that takes effect: its caller gets `Unknown` (or the error of [`FaultPlan::fail`]).
    pub fn answer_lost(mut self) -> Self {
        self.answer_lost = true;
        self
    }

    pub(super) fn held(mut self, at: HoldAt) -> (Self, Gate) {
        let barrier = Arc::new(Barrier { passes: Semaphore::new(0), arrived: watch::Sender::new(0) });
        self.hold = Some((at, Arc::clone(&barrier)));
        (self, Gate(barrier))
    }

    /// Counts a call that matches the plan. Returns whether the plan strikes it.
    pub(super) fn strikes(&mut self, op: Op, key: &str) -> bool {
        if self.op != op || self.key.as_ref().is_some_and(|part| !key.contains(part)) {
            return false;
        }
        self.seen += 1;
        self.seen >= self.nth && self.seen - self.nth < self.times
    }
}

#[derive(Debug)]
pub(super) struct Barrier {
    passes: Semaphore,
    arrived: watch::Sender<usize>,
}

impl Barrier {
    pub(super) async fn pass(&self) {
        self.arrived.send_modify(|n| *n += 1);
        // An error means that the gate was opened for good.
        if let Ok(permit) = self.passes.acquire().await {
            permit.forget();
        }
    }
}

/// Holds calls back until the test lets them go: tests set an order without sleeping. Dropping the gate opens it.
#[derive(Debug)]
#[must_use = "dropping the gate opens it"]
pub struct Gate(Arc<Barrier>);

impl Gate {
    /// Waits until `n` calls in all have arrived at the gate.
    pub async fn arrived(&self, n: usize) {
        let mut arrived = self.0.arrived.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = arrived.wait_for(|&a| a >= n).await;
    }

    /// Lets one call pass: a waiting one, or otherwise the next one.
    pub fn pass_one(&self) {
        self.0.passes.add_permits(1);
    }

    /// Opens the gate for good.
    pub fn release(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.0.passes.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_strikes_the_calls_it_names_and_no_others() {
        let mut plan = FaultPlan::on(Op::UploadPart).key("big").nth(2).times(2);
        let calls = [
            (Op::UploadPart, "big", false),
            (Op::UploadPart, "small", false),
            (Op::PutObject, "big", false),
            (Op::UploadPart, "a/big", true),
            (Op::UploadPart, "big", true),
            (Op::UploadPart, "big", false),
        ];
        for (op, key, struck) in calls {
            assert_eq!(plan.strikes(op, key), struck, "{op:?} {key}");
        }
    }

    #[test]
    fn a_plan_that_always_strikes_does() {
        let mut plan = FaultPlan::on(Op::HeadObject).always();
        assert!((0..100).all(|_| plan.strikes(Op::HeadObject, "")));
    }
}
