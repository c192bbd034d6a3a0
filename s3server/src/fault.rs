//! Faults as data: which requests fail, and how.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;

/// The faults of a server, changeable while it runs. Clones share their faults.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan(Arc<Plan>);

#[derive(Debug, Default)]
struct Plan {
    armed: Mutex<Vec<Armed>>,
    /// The channel that releases held answers. Sent to with the lock held, so that a release does not miss a request.
    released: watch::Sender<()>,
}

#[derive(Debug)]
struct Armed {
    fault: Fault,
    seen: u64,
    fired: u64,
}

/// One fault: the requests that match it, those that it strikes, and its effect on them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The operation by its S3 name (`GetObject`); any operation when absent.
    #[serde(default)]
    pub operation: Option<String>,
    /// A text that the keys of matching requests contain.
    #[serde(default)]
    pub key: Option<String>,
    /// Lets this many matching requests pass first.
    #[serde(default)]
    pub skip: u64,
    /// Number of matching requests that the fault then strikes; all later ones if absent.
    #[serde(default)]
    pub times: Option<u64>,
    /// The effect on a matching request.
    pub effect: Effect,
}

/// The effect of a fault on a request. Offsets are bytes of the body, from its first; an offset at or
/// behind the body's end has no effect.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Effect {
    /// Answered with this HTTP status and S3 error code; nothing is done.
    Error {
        /// HTTP status, 300 to 599.
        status: u16,
        /// S3 error code, as `SlowDown`.
        code: String,
    },
    /// Answered with status 503 and code `SlowDown`, as S3 throttles; nothing is done.
    SlowDown {
        /// Value of the header `Retry-After`: seconds or a date; absent without one.
        #[serde(default)]
        retry_after: Option<String>,
    },
    /// Answered with status 200 and an error as the body, as S3 may do for CompleteMultipartUpload and CopyObject;
    /// nothing is done.
    OkWithError {
        /// S3 error code, as `InternalError`.
        code: String,
    },
    /// The connection is reset (TCP RST): before anything is done, or after this many bytes of the answer's body.
    Reset {
        /// Bytes of the answer's body; at once when absent.
        #[serde(default)]
        after_bytes: Option<u64>,
    },
    /// The connection is reset after this many bytes of the request's body; nothing is stored.
    ResetUpload {
        /// Bytes of the request's body.
        after_bytes: u64,
    },
    /// The answer's body ends early and the connection closes in order; Content-Length stays unchanged.
    Truncate {
        /// Bytes of the answer's body.
        after_bytes: u64,
    },
    /// The answer's body stops for a while, then goes on.
    Stall {
        /// Bytes of the answer's body.
        after_bytes: u64,
        /// Milliseconds.
        for_ms: u64,
    },
    /// The answer carries an ETag that is not the object's.
    WrongEtag,
    /// One bit of the answer's body is flipped.
    FlipBit {
        /// Offset of the byte in the answer's body.
        at_byte: u64,
    },
    /// The answer comes later: the request is carried out, then waits.
    Delay {
        /// Milliseconds.
        for_ms: u64,
    },
    /// The answer waits for [`FaultPlan::release`] or [`FaultPlan::clear`]; the request is carried out before. Not available in a file,
    /// where nothing could release it.
    #[serde(skip_deserializing)]
    Hold,
    /// The work of a CompleteMultipartUpload takes longer, and goes on when the client has left.
    Slow {
        /// Milliseconds.
        for_ms: u64,
    },
    /// Ignore If-Match of a GetObject.
    IgnoreIfMatch,
    /// Range of a GetObject is not looked at: the whole object, status 200.
    IgnoreRange,
    /// The encryption that a PutObject or CreateMultipartUpload asks for is not looked at: the object is stored without.
    IgnoreSse,
    /// Ignore If-None-Match and If-Match of a PutObject, CopyObject, CompleteMultipartUpload or DeleteObject, and the condition on
    /// the source of a CopyObject.
    IgnoreConditions,
    /// Checksums of a PutObject are not compared with its bytes, and none is kept.
    IgnoreChecksums,
    /// The server ignores parameters and headers that it would refuse, and takes the request for a plain one, like servers that do not
    /// know them.
    IgnoreUnknown,
    /// A CreateBucket of a bucket that is there is answered with 200, as AWS S3 does in us-east-1 for one's own.
    OwnBucketAgain,
    /// The bucket is said to be in this region, with status 301; nothing is done.
    Redirect {
        /// The region's name.
        region: String,
    },
    /// The date of the answer is off.
    Date {
        /// Seconds ahead; behind if negative.
        ahead_s: i64,
    },
    /// The request is carried out, then the connection is reset instead of an answer.
    DropAnswer,
    /// A header of a success has this value, or is not there.
    Header {
        /// The header's name.
        name: String,
        /// The header's value; absent to leave the header out.
        #[serde(default)]
        value: Option<String>,
    },
    /// The ETag of an answer is spelled otherwise.
    Etag {
        /// The other spelling.
        form: EtagForm,
    },
    /// An answer has this many headers more.
    MoreHeaders {
        /// Number of repetitions.
        count: u32,
    },
    /// The server answers a GetObject with If-Match with 412, like stores that do not know the ETag in the form that they gave it.
    RefuseIfMatch,
    /// An element of a listing's objects has this content.
    Entry {
        /// A text that the keys of the objects contain, in the listing's spelling.
        #[serde(default)]
        key: Option<String>,
        /// The name of the element.
        element: String,
        /// The element's content, as XML; absent to leave the element out.
        #[serde(default)]
        text: Option<String>,
    },
    /// The root element of a listing has this name.
    Root {
        /// The name.
        name: String,
    },
    /// The server refuses a PutObject or UploadPart without Content-MD5, like some stores in a bucket with Object Lock.
    DemandMd5,
    /// An UploadPart of a greater number is refused, as by Scaleway.
    PartsMax {
        /// The greatest number of a part.
        parts: u32,
    },
    /// A CompleteMultipartUpload is refused if its parts, except the last, differ in size, as by Cloudflare R2.
    EqualParts,
}

/// A spelling of an ETag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EtagForm {
    /// `W/"x"`.
    Weak,
    /// The ETag without its quotes.
    Unquoted,
    /// The ETag with upper-case letters.
    Upper,
}

impl Fault {
    /// A fault of all requests of one operation, always.
    pub fn on(operation: &str, effect: Effect) -> Self {
        Self { operation: Some(operation.to_owned()), key: None, skip: 0, times: None, effect }
    }

    /// Restricts the fault to keys that contain `part`.
    pub fn key(mut self, part: &str) -> Self {
        self.key = Some(part.to_owned());
        self
    }

    /// Restricts the fault to the nth matching request, counted from 1.
    pub fn nth(mut self, nth: u64) -> Self {
        self.skip = nth.saturating_sub(1);
        self.times = Some(1);
        self
    }

    /// Restricts the fault to the first `times` matching requests.
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    fn matches(&self, operation: &str, key: Option<&str>) -> bool {
        let operation_fits = self.operation.as_deref().is_none_or(|wanted| wanted == operation);
        let key_fits = self.key.as_deref().is_none_or(|part| key.is_some_and(|key| key.contains(part)));
        operation_fits && key_fits
    }
}

impl FaultPlan {
    /// A plan without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a plan: a JSON list of [`Fault`]s.
    ///
    /// # Errors
    /// Says which line and field is wrong.
    pub fn from_json(text: &str) -> anyhow::Result<Self> {
        let faults: Vec<Fault> = serde_json::from_str(text)?;
        let plan = Self::new();
        for fault in faults {
            if let Effect::Error { status, .. } = fault.effect {
                anyhow::ensure!(
                    (300..600).contains(&status),
                    "an error's status is 300 to 599, not {status}"
                );
            }
            plan.add(fault);
        }
        Ok(plan)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Armed>> {
        self.0.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a fault, counting from now.
    pub fn add(&self, fault: Fault) {
        self.lock().push(Armed { fault, seen: 0, fired: 0 });
    }

    /// Removes all faults, and releases the answers that they hold.
    pub fn clear(&self) {
        let mut armed = self.lock();
        armed.clear();
        self.0.released.send_replace(());
    }

    /// Releases all answers that [`Effect::Hold`] holds, and holds no later ones. Other faults stay.
    pub fn release(&self) {
        let mut armed = self.lock();
        for armed in armed.iter_mut().filter(|armed| armed.fault.effect == Effect::Hold) {
            armed.fault.times = Some(0);
        }
        self.0.released.send_replace(());
    }

    /// Number of strikes of all faults since each was added.
    pub fn fired(&self) -> u64 {
        self.lock().iter().map(|armed| armed.fired).sum()
    }

    /// Counts a request and returns the effects on it. Several faults can strike one request.
    pub(crate) fn strike(&self, operation: &str, key: Option<&str>) -> Struck {
        let mut effects = Vec::new();
        let mut plan = self.lock();
        for armed in plan.iter_mut().filter(|a| a.fault.matches(operation, key)) {
            let turn = armed.seen;
            armed.seen += 1;
            let end = armed.fault.times.map_or(u64::MAX, |times| armed.fault.skip.saturating_add(times));
            if (armed.fault.skip..end).contains(&turn) {
                armed.fired += 1;
                effects.push(armed.fault.effect.clone());
            }
        }
        Struck { effects, released: self.0.released.subscribe() }
    }
}

/// The effects that strike one request.
#[derive(Clone, Debug)]
pub(crate) struct Struck {
    pub(crate) effects: Vec<Effect>,
    /// Changes when the request's answer is released.
    released: watch::Receiver<()>,
}

impl Struck {
    /// Waits as long as the request's answer is delayed or held.
    pub(crate) async fn wait(&self) {
        let delay = delay(&self.effects);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if self.effects.contains(&Effect::Hold) && self.released.clone().changed().await.is_err() {
            // The plan is gone, and with it the only way to release the answer.
            std::future::pending::<()>().await;
        }
    }
}

/// The additional duration of the work.
pub(crate) fn slow(effects: &[Effect]) -> Duration {
    let longer = |effect: &Effect| match effect {
        Effect::Slow { for_ms } => *for_ms,
        _ => 0,
    };
    Duration::from_millis(effects.iter().map(longer).sum())
}

/// The wait before the answer.
fn delay(effects: &[Effect]) -> Duration {
    let wait = |effect: &Effect| match effect {
        Effect::Delay { for_ms } => *for_ms,
        _ => 0,
    };
    Duration::from_millis(effects.iter().map(wait).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_matching_request_is_struck_and_no_other() {
        let plan = FaultPlan::new();
        plan.add(Fault::on("GetObject", Effect::DropAnswer).key("big").nth(2));
        let struck: Vec<bool> = [
            ("GetObject", Some("big/1")),
            ("PutObject", Some("big/1")),
            ("GetObject", Some("small")),
            ("GetObject", Some("a/big")),
            ("GetObject", Some("big/1")),
        ]
        .map(|(operation, key)| !plan.strike(operation, key).effects.is_empty())
        .to_vec();
        assert_eq!(struck, [false, false, false, true, false]);
        assert_eq!(plan.fired(), 1);
    }

    #[test]
    fn a_plan_is_read_from_json() {
        let plan = FaultPlan::from_json(
            r#"[
                {"operation": "GetObject", "key": "x", "skip": 1, "times": 2,
                 "effect": {"error": {"status": 503, "code": "SlowDown"}}},
                {"effect": "wrong_etag"},
                {"effect": {"reset": {}}},
                {"effect": {"stall": {"after_bytes": 10, "for_ms": 5}}},
                {"effect": {"slow_down": {"retry_after": "2"}}},
                {"effect": {"header": {"name": "ETag", "value": "\"\""}}},
                {"effect": {"header": {"name": "Last-Modified"}}},
                {"effect": {"etag": {"form": "weak"}}},
                {"effect": {"entry": {"key": "a", "element": "ETag"}}}
            ]"#,
        )
        .unwrap();
        assert_eq!(plan.lock().len(), 9);
        assert_eq!(plan.lock()[2].fault.effect, Effect::Reset { after_bytes: None });
    }

    #[test]
    fn a_plan_with_a_mistake_is_refused() {
        for text in [
            r#"[{"effect": "explode"}]"#,
            r#"[{"efect": "wrong_etag"}]"#,
            r#"[{"effect": "hold"}]"#,
            r#"[{"effect": {"error": {"status": 200, "code": "X"}}}]"#,
        ] {
            assert!(FaultPlan::from_json(text).is_err(), "{text}");
        }
    }
}
