//! The probes that only read: URL style, credentials, region, listings, conditions, ranges.

use std::time::Duration;

use http::Method;
use mountpoint::buffer::{Fill, Pool, Use};
use mountpoint::object::ObjectId;
use mountpoint::s3::{
    Error, ErrorKind, GetObject, ListObjects, ListedObject, ObjectClient as _, ProbeAnswer, ProbeRequest,
    S3Client,
};
use mountpoint::sync::Arc;

use super::advice::Advice;
use super::report::{Finding, Verdict};
use super::{Examination, judge, odd, said};

/// Time limit of the other URL style, which a mount would not use.
const OTHER_WAY_MAX: Duration = Duration::from_secs(5);
/// An ETag that no object has.
const NO_ETAG: &str = "\"00000000000000000000000000000000\"";

/// The object for the read probes: the largest one that can be read.
pub(super) fn to_read(listed: &[ListedObject]) -> Option<ListedObject> {
    let readable = listed.iter().filter(|it| it.meta.readable && it.meta.size > 0);
    readable.max_by_key(|it| it.meta.size).cloned()
}

impl Examination<'_> {
    /// Reports the source of the credentials.
    pub(super) async fn signature(&mut self) {
        if !self.begin("credentials") {
            return;
        }
        match self.client.signed().await {
            Ok(None) => self.report.fine("credentials", "none: requests are not signed"),
            Ok(Some(signed)) => {
                let now = self.around.clock.wall();
                let left = signed.expires.map(|at| at.duration_since(now).unwrap_or_default().as_secs() / 60);
                let end = match left {
                    Some(minutes) => format!("; they end in {minutes} minutes, and are renewed before"),
                    None => String::new(),
                };
                self.report.fine("credentials", format!("from {}{end}", signed.source));
            }
            // The finding about the bucket contains the error.
            Err(error) => {
                self.report.fails("credentials", said(&error), "mounting: there are no credentials")
            }
        }
    }

    pub(super) async fn tls(&mut self) {
        if !self.begin("TLS") {
            return;
        }
        let own_roots = self.config.s3.ca_bundle.is_some() || !self.config.s3.extra_ca_bundles.is_empty();
        match self.client.handshake().await {
            Ok(shaken) => {
                let now = self.around.clock.wall();
                self.report.add(judge::tls(shaken.as_ref(), own_roots, now));
            }
            // The finding about the bucket contains the error.
            Err(error) => self.report.skipped("tls", format!("no connection: {error}")),
        }
    }

    /// Reports the reason why the bucket can't be listed, as far as requests can show it.
    pub(super) async fn refused(&mut self, error: Error) {
        let region = match error.kind() {
            ErrorKind::WrongRegion(Some(right)) => Some(right.clone()),
            _ => None,
        };
        if let Some(right) = region {
            self.report.advise(Advice::Set("--region", right));
        } else if self.other_way_works().await == Some(true) {
            let (found, advice) = match self.client.has_bucket_in_host() {
                true => (
                    "in the host name the bucket is not found; in the path it is",
                    Advice::Add("--force-path-style"),
                ),
                false => (
                    "in the path the bucket is not found; in the host name it is",
                    Advice::LeaveOut("--force-path-style"),
                ),
            };
            self.report.fails("addressing", found, "mounting with the bucket named in this way");
            self.report.advise(advice);
        }
        let hint = match error.kind() {
            ErrorKind::Denied if self.config.s3.prefix.is_empty() => {
                ", or at --prefix, if only keys below a prefix are allowed"
            }
            _ => "",
        };
        self.report.fails("bucket", said(&error) + hint, "mounting: the bucket can't be listed");
        if error.http_status().is_none() {
            return;
        }
        if let Ok(reply) = list_one(&self.client, &self.config.s3.prefix).await {
            if let Some(location) = reply.header("location") {
                let found = format!("status {} sends requests to {location:?}", reply.status);
                self.report.note(
                    "redirect",
                    found,
                    "a mount follows no redirect: give the endpoint and the region that it names",
                );
            }
            self.report.add(judge::clock(reply.ahead_s));
        }
    }

    /// Whether the bucket is found with the other URL style; `None`: that style is not possible.
    async fn other_way_works(&self) -> Option<bool> {
        self.config.s3.endpoint_url.as_ref()?;
        let in_host = self.client.has_bucket_in_host();
        let other = self.client.changed(|config| config.force_path_style = in_host).ok()?;
        if other.has_bucket_in_host() == in_host {
            return None;
        }
        let asking = Box::pin(list_one(&other, &self.config.s3.prefix));
        let asked = self.around.clock.timeout(OTHER_WAY_MAX, asking).await;
        Some(matches!(asked, Some(Ok(ProbeAnswer { refusal: None, .. }))))
    }

    pub(super) async fn addressing(&mut self) {
        if !self.begin("addressing") {
            return;
        }
        let other = self.other_way_works().await;
        let given = self.config.s3.force_path_style;
        self.report.add(judge::addressing(self.client.has_bucket_in_host(), given, other));
        if !self.client.has_bucket_in_host() && self.config.s3.endpoint_url.is_some() && !given {
            self.report.advise(Advice::Add("--force-path-style"));
        }
    }

    pub(super) async fn region_and_clock(&mut self) {
        if !self.begin("region") {
            return;
        }
        let signed = self.client.region().to_owned();
        let reply = self.client.ask(&ProbeRequest::of("HeadBucket", Method::HEAD)).await;
        let told = reply.as_ref().ok().and_then(|reply| reply.header("x-amz-bucket-region"));
        match told {
            Some(told) if told == signed => {
                self.report.fine("region", format!("{signed}, as the store says"));
            }
            Some(told) => {
                let found = format!("requests are signed for {signed}; the store says {told:?}");
                self.report.note("region", found, "the store accepts these signatures now; give its region");
                self.report.advise(Advice::Set("--region", told.to_owned()));
            }
            None => self
                .report
                .fine("region", format!("{signed}; the store names no region, and accepts this one")),
        }
        // Each start without the flag costs a request to find the region, and on AWS one to the instance's service.
        if self.config.s3.region.is_none() && signed != "us-east-1" {
            self.report.advise(Advice::Set("--region", signed));
        }
        match reply {
            Ok(reply) => self.report.add(judge::clock(reply.ahead_s)),
            Err(error) => self.report.skipped("clock", said(&error)),
        }
    }

    /// Checks the listings that a mount makes: the first page, its order, a start after a key, and a delimiter.
    pub(super) async fn listings(&mut self) -> Vec<ListedObject> {
        if !self.begin("listings") {
            return Vec::new();
        }
        let request =
            ListObjects { prefix: self.config.s3.prefix.clone(), max_keys: 1000, ..ListObjects::default() };
        let page = match self.client.list_objects(&request).await {
            Ok(page) => page,
            Err(error) => {
                self.report.fails("listing", said(&error), "ls: the bucket's names can't be listed");
                return Vec::new();
            }
        };
        let in_order = page.objects.is_sorted_by(|a, b| a.key.as_str() < b.key.as_str());
        let goes_on = match page.objects.as_slice() {
            [first, _, ..] => {
                let after = ListObjects {
                    start_after: Some(first.key.as_str().to_owned()),
                    max_keys: 1,
                    ..request.clone()
                };
                let next = self.client.list_objects(&after).await;
                next.is_ok_and(|next| next.objects.first().is_some_and(|it| it.key > first.key))
            }
            _ => true,
        };
        let rolled = ListObjects { delimited: true, ..request };
        if let Err(error) = self.client.list_objects(&rolled).await {
            self.report.fails(
                "listing",
                said(&error),
                "ls: listings of one directory (with a delimiter) fail",
            );
            return page.objects;
        }
        let more = if page.next_token.is_some() { ", and more" } else { "" };
        let found = format!("{} keys on the first page{more}", page.objects.len());
        let root = list_one(&self.client, &self.config.s3.prefix).await.ok().and_then(|reply| reply.root());
        odd::page(root.as_deref(), self.client.has_left_out_entries())
            .into_iter()
            .chain(odd::entries(&page.objects))
            .for_each(|finding| self.report.add(finding));
        match (in_order, goes_on) {
            (true, true) => self.report.fine("listing", format!("{found}, in order")),
            (false, _) => self.report.note(
                "listing",
                format!("{found}, not in the order of their bytes"),
                "walks and lookups request more listings",
            ),
            (_, false) => self.report.note(
                "listing",
                format!("{found}; start-after is ignored"),
                "walks request more listings",
            ),
        }
        page.objects
    }

    /// Checks versioning, object lock and unfinished uploads.
    pub(super) async fn history(&mut self) {
        if !self.begin("versions") {
            return;
        }
        let versions = self.is_enabled("GetBucketVersioning", "versioning").await;
        let lock = self.is_enabled("GetObjectLockConfiguration", "object-lock").await;
        self.report.add(judge::history(versions, lock));
        match self.client.list_multipart_uploads(&self.config.s3.prefix).await {
            Ok(uploads) if uploads.is_empty() => {
                self.report.fine("unfinished uploads", "none");
            }
            Ok(uploads) => self.report.note(
                "unfinished uploads",
                format!("{} were begun and neither completed nor aborted", uploads.len()),
                "their parts are paid for: a lifecycle rule that ends incomplete uploads removes them",
            ),
            Err(error) => self.report.note(
                "unfinished uploads",
                format!("unknown: {error}"),
                "a mount aborts its own without this; those of others can't be seen",
            ),
        }
    }

    /// Whether a setting of the bucket is enabled; `None`: the store does not say.
    async fn is_enabled(&self, operation: &'static str, parameter: &'static str) -> Option<bool> {
        let query = [(parameter, "")];
        let question = ProbeRequest { query: &query, ..ProbeRequest::of(operation, Method::GET) };
        let reply = self.client.ask(&question).await.ok()?;
        match reply.refusal.as_ref().map(|error| (error.kind(), error.code())) {
            None => Some(String::from_utf8_lossy(&reply.body).contains(">Enabled<")),
            Some((_, Some("ObjectLockConfigurationNotFoundError"))) => Some(false),
            Some((ErrorKind::Unsupported, _)) => Some(false),
            Some(_) => None,
        }
    }

    /// Reads one object, and checks ranges, conditions and headers.
    pub(super) async fn object(&mut self, object: &ListedObject) {
        if !self.begin("reading") {
            return;
        }
        // The reads name the version in the answer about the object, not the listing's.
        let own = match self.client.head_object(&object.key).await {
            Ok(meta) if meta.size > 0 => ListedObject { key: object.key.clone(), meta, storage_class: None },
            _ => object.clone(),
        };
        if let Err(error) = get(&self.client, &own, own.meta.size - 1).await {
            let what = match error.kind() {
                ErrorKind::Denied => "reading files: these credentials may not get objects",
                ErrorKind::BadAnswer => "reading files: ranges of objects are not answered as S3 does",
                _ => "reading files",
            };
            self.report.fails("reading", said(&error), what);
            return;
        }
        self.report.fine("reading", "ranges of an object are answered");
        if self.client.is_refused_if_match() {
            self.report.note(
                "read conditions",
                "If-Match is refused with the object's own ETag",
                "reads go without it, and compare the version of each answer",
            );
        }
        let if_match = self.is_kept(object, "if-match", NO_ETAG, 412).await;
        let if_none_match = self.is_kept(object, "if-none-match", own.meta.etag.as_str(), 304).await;
        if let (Some(if_match), Some(if_none_match)) = (if_match, if_none_match) {
            self.report.add(judge::read_conditions(if_match, if_none_match));
        }
        let question =
            ProbeRequest { key: Some(&object.key), ..ProbeRequest::of("HeadObject", Method::HEAD) };
        let with_checksum =
            ProbeRequest { headers: &[("x-amz-checksum-mode", "ENABLED")], ..question.clone() };
        let is_refused = self.client.refuses_checksum_mode();
        if is_refused {
            self.report.note(
                "metadata",
                "x-amz-checksum-mode is refused (501)",
                "what is read is not compared with the store's checksum of the whole object",
            );
        }
        match self.client.ask(if is_refused { &question } else { &with_checksum }).await {
            Ok(reply) if reply.refusal.is_none() => self.metadata(object, &reply),
            Ok(reply) => self.report.fails(
                "metadata",
                format!("HeadObject is answered {}", reply.word()),
                "stat and open: the store does not answer for single objects",
            ),
            Err(error) => self.report.fails("metadata", said(&error), "stat and open of single objects"),
        }
    }

    fn metadata(&mut self, object: &ListedObject, reply: &ProbeAnswer) {
        odd::answer(&object.meta, reply).into_iter().for_each(|finding| self.report.add(finding));
        let (own, _) = reply.object();
        let same = object.meta.etag.may_be(own.etag.as_str());
        let sum = ["crc32c", "crc64nvme", "crc32", "sha256", "sha1"]
            .into_iter()
            .find(|name| reply.header(&format!("x-amz-checksum-{name}")).is_some());
        let sum = sum.map_or_else(|| "no checksum".to_owned(), |name| format!("its {name}"));
        let found = format!("an object comes with {sum}");
        match same {
            true => self.report.fine("metadata", found),
            false => self.report.note(
                "metadata",
                format!("{found}; its ETag in the listing differs from that of the object"),
                "each open asks for the object once more",
            ),
        }
        let sse = reply.header("x-amz-server-side-encryption");
        let found = sse.map_or_else(
            || "the store reports none for an object".to_owned(),
            |it| format!("an object has {it:?}"),
        );
        self.report.add(Finding::new("encryption", Verdict::Fine, found));
    }

    /// Whether a GET with this condition is answered with `status`; `None` without an answer.
    async fn is_kept(
        &self,
        object: &ListedObject,
        condition: &'static str,
        etag: &str,
        status: u16,
    ) -> Option<bool> {
        // A store that ignores the condition then sends only one byte.
        let headers = [(condition, etag), ("range", "bytes=0-0")];
        let question = ProbeRequest {
            key: Some(&object.key),
            headers: &headers,
            ..ProbeRequest::of("GetObject", Method::GET)
        };
        Some(self.client.ask(&question).await.ok()?.status == status)
    }
}

/// Lists at most one key.
async fn list_one(client: &S3Client, prefix: &str) -> mountpoint::s3::Result<ProbeAnswer> {
    let query = [("list-type", "2"), ("max-keys", "1"), ("prefix", prefix)];
    client.ask(&ProbeRequest { query: &query, ..ProbeRequest::of("ListObjectsV2", Method::GET) }).await
}

/// Reads the byte at `offset` with the engine's own read.
pub(super) async fn get(
    client: &Arc<S3Client>,
    object: &ListedObject,
    offset: u64,
) -> mountpoint::s3::Result<()> {
    let pool = Pool::new(&mountpoint::buffer::Config::default());
    let block = pool.try_take(Use::Demand, 1);
    let mut fill = Fill::new(block, |_| ());
    let id = ObjectId::of(object.key.clone(), &object.meta);
    let request = GetObject { id, range: offset..offset + 1, object_size: object.meta.size };
    client.get_object(&request, &mut fill).await
}
