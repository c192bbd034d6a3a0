//! Faults as data: which requests fail, and how.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;

/// The faults of a server. They can change while it runs. Clones share their faults.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan(Arc<Plan>);

#[derive(Debug, Default)]
struct Plan {
    armed: Mutex<Vec<Armed>>,
    /// The channel that releases held answers. It is used with the lock held, so a release does not miss a request.
    released: watch::Sender<()>,
}

#[derive(Debug)]
struct Armed {
    fault: Fault,
    seen: u64,
    fired: u64,
}

/// One fault: the requests that match it, how many of them it strikes, and its effect.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The operation by its S3 name (`GetObject`); every operation if absent.
    #[serde(default)]
    pub operation: Option<String>,
    /// A text that the keys of matching requests contain.
    #[serde(default)]
    pub key: Option<String>,
    /// Number of matching requests that pass before the fault strikes.
    #[serde(default)]
    pub skip: u64,
    /// Number of matching requests that the fault then strikes; all later ones if absent.
    #[serde(default)]
    pub times: Option<u64>,
    /// The effect on a matching request.
    pub effect: Effect,
}

/// The effect of a fault on a request. Offsets count the bytes of a body; an offset at or after the body's end has no
/// effect.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Effect {
    /// The server answers with this HTTP status and S3 error code, and does not execute the request.
    Error {
        /// HTTP status, 300 to 599.
        status: u16,
        /// S3 error code, such as `SlowDown`.
        code: String,
    },
    /// The server answers 503 `SlowDown`, as S3 throttles, and does not execute the request.
    SlowDown {
        /// Value of the header `Retry-After`: seconds or a date; no header if absent.
        #[serde(default)]
        retry_after: Option<String>,
    },
    /// The server answers 200 with an error as the body, as S3 may do for CompleteMultipartUpload and CopyObject, and does not execute
    /// the request.
    OkWithError {
        /// S3 error code, such as `InternalError`.
        code: String,
    },
    /// The server resets the connection (TCP RST): without executing the request, or after this many bytes of the answer's body.
    Reset {
        /// Offset in the answer's body; at once if absent.
        #[serde(default)]
        after_bytes: Option<u64>,
    },
    /// The server resets the connection after this many bytes of the request's body, and stores nothing.
    ResetUpload {
        /// Offset in the request's body.
        after_bytes: u64,
    },
    /// The server ends the answer's body early and closes the connection in order (FIN); Content-Length stays unchanged.
    Truncate {
        /// Offset in the answer's body.
        after_bytes: u64,
    },
    /// The server stops in the answer's body, and goes on later.
    Stall {
        /// Offset in the answer's body.
        after_bytes: u64,
        /// Length of the pause, in milliseconds.
        for_ms: u64,
    },
    /// The server returns an ETag that is not the object's.
    WrongEtag,
    /// The server flips one bit of the answer's body.
    FlipBit {
        /// Offset of the byte in the answer's body.
        at_byte: u64,
    },
    /// The server executes the request, and answers later.
    Delay {
        /// Delay in milliseconds.
        for_ms: u64,
    },
    /// The server executes the request, and answers after [`FaultPlan::release`] or [`FaultPlan::clear`]. Not available in a file,
    /// because nothing could release the answer.
    #[serde(skip_deserializing)]
    Hold,
    /// A CompleteMultipartUpload takes longer. It goes on even if the client disconnects.
    Slow {
        /// Additional time in milliseconds.
        for_ms: u64,
    },
    /// The server ignores If-Match of a GetObject.
    IgnoreIfMatch,
    /// The server ignores Range of a GetObject, and answers 200 with the whole object.
    IgnoreRange,
    /// The server ignores the encryption in a PutObject or CreateMultipartUpload, and stores none.
    IgnoreSse,
    /// The server ignores If-None-Match and If-Match of a PutObject, CopyObject, CompleteMultipartUpload or DeleteObject, and the
    /// condition on the source of a CopyObject.
    IgnoreConditions,
    /// The server does not check a PutObject's checksums, and stores none.
    IgnoreChecksums,
    /// The server ignores parameters and headers that it would refuse, and executes the request without them, like servers that do not
    /// know them.
    IgnoreUnknown,
    /// The server answers 200 to a CreateBucket of an existing bucket, as AWS S3 does in us-east-1 for the owner.
    OwnBucketAgain,
    /// The server answers 301 PermanentRedirect and names this region as the bucket's. It does not execute the request.
    Redirect {
        /// The region's name.
        region: String,
    },
    /// The server sends another date.
    Date {
        /// Difference from now in seconds; negative for the past.
        ahead_s: i64,
    },
    /// The server executes the request, then resets the connection instead of an answer.
    DropAnswer,
    /// The server sets or removes a header of a successful answer.
    Header {
        /// The header's name.
        name: String,
        /// The header's value; absent to remove the header.
        #[serde(default)]
        value: Option<String>,
    },
    /// The server writes an answer's ETag in another form.
    Etag {
        /// The other form.
        form: EtagForm,
    },
    /// The server adds this many headers to an answer.
    MoreHeaders {
        /// Number of additional headers.
        count: u32,
    },
    /// The server answers 412 to a GetObject with If-Match, like stores that do not recognize an ETag in the form in which they returned
    /// it.
    RefuseIfMatch,
    /// The server changes an element of the objects in a listing.
    Entry {
        /// A text that the keys of changed objects contain, in the listing's encoding.
        #[serde(default)]
        key: Option<String>,
        /// The name of the element.
        element: String,
        /// The element's content, as XML; absent to remove the element.
        #[serde(default)]
        text: Option<String>,
    },
    /// The server gives the root element of a listing this name.
    Root {
        /// The name.
        name: String,
    },
    /// The server refuses a PutObject or UploadPart without Content-MD5, like some stores in a bucket with Object Lock.
    DemandMd5,
    /// The server refuses an UploadPart with a greater part number, as Scaleway does.
    PartsMax {
        /// The greatest part number.
        parts: u32,
    },
    /// The server refuses a CompleteMultipartUpload whose parts, except the last, differ in size, as Cloudflare R2 does.
    EqualParts,
}

/// A form of an ETag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EtagForm {
    /// A weak ETag: `W/"x"`.
    Weak,
    /// The ETag without its quotes.
    Unquoted,
    /// The ETag with upper-case letters.
    Upper,
}

impl Fault {
    /// A fault of every request of one operation.
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

    /// Parses a plan: a JSON list of [`Fault`]s.
    ///
    /// # Errors
    /// The text is not such a list; the error names the line and the field.
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

    /// Adds a fault. It counts requests from now on.
    pub fn add(&self, fault: Fault) {
        self.lock().push(Armed { fault, seen: 0, fired: 0 });
    }

    /// Removes all faults, and releases held answers.
    pub fn clear(&self) {
        let mut armed = self.lock();
        armed.clear();
        self.0.released.send_replace(());
    }

    /// Releases all answers that [`Effect::Hold`] holds; these faults strike no more. Other faults stay.
    pub fn release(&self) {
        let mut armed = self.lock();
        for armed in armed.iter_mut().filter(|armed| armed.fault.effect == Effect::Hold) {
            armed.fault.times = Some(0);
        }
        self.0.released.send_replace(());
    }

    /// Number of strikes of the present faults, each since it was added.
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
    /// Changes when held answers are released.
    released: watch::Receiver<()>,
}

impl Struck {
    /// Waits until the answer may be sent, according to [`Effect::Delay`] and [`Effect::Hold`].
    pub(crate) async fn wait(&self) {
        let delay = delay(&self.effects);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if self.effects.contains(&Effect::Hold) && self.released.clone().changed().await.is_err() {
            // The plan was dropped, and nothing else can release the answer.
            std::future::pending::<()>().await;
        }
    }
}

/// The additional time of [`Effect::Slow`].
pub(crate) fn slow(effects: &[Effect]) -> Duration {
    let longer = |effect: &Effect| match effect {
        Effect::Slow { for_ms } => *for_ms,
        _ => 0,
    };
    Duration::from_millis(effects.iter().map(longer).sum())
}

/// The wait before the answer, by [`Effect::Delay`].
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
