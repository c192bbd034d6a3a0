//! A bucket in memory behind the engine's own interface: S3's rules, a script of faults, a log of the calls.

use std::collections::HashSet;
use std::ops::Range;

use bytes::Bytes;

use super::fault::{FaultPlan, Gate, HoldAt, Op};
use super::store::Store;
use crate::buffer::{BlockMut, Fill};
use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::clock::Clock;
use crate::object::{ETag, ObjectId, ObjectKey, ObjectMeta};
use crate::s3::{
    Begin, BoxFuture, CompleteUpload, CopyObject, CopyPart, Described, Error, ErrorKind, First, GetFirst,
    GetObject, ListObjects, ListPage, NewObject, ObjectClient, PartLimits, PendingUpload, PutObject, Result,
    Stored, Tags, UploadId, UploadPart, UploadedPart,
};
use crate::sync::{Arc, Mutex};

/// The differences of a [`MemoryClient`] from plain S3.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Smallest part that is not the last, in bytes: 5 MiB on S3, 0 for tests of small parts.
    pub part_size_min: u64,
    /// Most entries of a listing page; S3 allows 1000. Small values make a short listing many pages.
    pub page_max: u16,
    /// Whether a listing begins with the first key whatever the request says, as on some gateways.
    pub ignores_start_after: bool,
    /// The limits of parts that the client reports and enforces.
    pub parts: PartLimits,
    /// The clock for the times of objects and for delays.
    pub clock: Clock,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            part_size_min: 5 << 20,
            page_max: 1000,
            ignores_start_after: false,
            parts: PartLimits::default(),
            clock: Clock::machine(),
        }
    }
}

/// One call of the client, successful or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The operation.
    pub op: Op,
    /// The key; for listings the prefix.
    pub key: String,
    /// The range of bytes of a GetObject.
    pub range: Option<Range<u64>>,
    /// The part number of an UploadPart.
    pub part_number: Option<u32>,
}

/// An [`ObjectClient`] in memory. Clones are the same bucket.
#[derive(Clone, Debug)]
pub struct MemoryClient(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    parts: PartLimits,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    store: Store,
    plans: Vec<FaultPlan>,
    log: Vec<Call>,
    /// Restored objects that listings still call archived.
    restored: HashSet<ObjectKey>,
    /// Keys whose entries in listings can't be read.
    unreadable: HashSet<String>,
    /// The algorithm of whole objects' checksums that the store reports; `None` if it reports none.
    sums: Option<ChecksumAlgorithm>,
    /// Whether the answer to CompleteMultipartUpload has no ETag.
    is_nameless: bool,
}

impl MemoryClient {
    /// An empty bucket with S3's rules.
    pub fn new() -> Self {
        Self::with(Settings::default())
    }

    /// An empty bucket with these rules.
    pub fn with(settings: Settings) -> Self {
        let Settings { part_size_min, page_max, ignores_start_after, parts, .. } = settings;
        let store = Store::new(part_size_min, page_max, ignores_start_after, parts);
        let state = Mutex::new(State {
            store,
            plans: Vec::new(),
            log: Vec::new(),
            restored: HashSet::new(),
            unreadable: HashSet::new(),
            sums: None,
            is_nameless: false,
        });
        Self(Arc::new(Inner { clock: settings.clock, parts: settings.parts, state }))
    }

    /// This bucket in the type that the engine takes.
    pub fn arc(&self) -> Arc<dyn ObjectClient> {
        Arc::new(self.clone())
    }

    /// Makes the store report the checksum of every object from now on.
    pub fn say_checksums(&self, algorithm: ChecksumAlgorithm) {
        self.0.state.lock().sums = Some(algorithm);
    }

    /// Makes the store leave the ETag out of its answer to CompleteMultipartUpload from now on.
    pub fn hide_etags(&self) {
        self.0.state.lock().is_nameless = true;
    }

    /// Makes listings leave a key out, as one whose entry can't be read.
    pub fn leave_out(&self, key: &str) {
        self.0.state.lock().unreadable.insert(key.to_owned());
    }

    /// Adds a fault. Faults stay until they have struck as often as they say; of several that strike one call
    /// all delays and gates count, and the first error.
    pub fn inject(&self, plan: FaultPlan) {
        self.0.state.lock().plans.push(plan);
    }

    /// Holds the plan's calls back before they take effect, as a request that arrives late.
    pub fn hold(&self, plan: FaultPlan) -> Gate {
        let (plan, gate) = plan.held(HoldAt::Request);
        self.inject(plan);
        gate
    }

    /// Holds the plan's calls back after they took effect, as an answer that comes late, and may be outdated.
    pub fn hold_answer(&self, plan: FaultPlan) -> Gate {
        let (plan, gate) = plan.held(HoldAt::Answer);
        self.inject(plan);
        gate
    }

    /// Forgets all faults. Calls at a gate stay there.
    pub fn clear_faults(&self) {
        self.0.state.lock().plans.clear();
    }

    /// Number of calls of this operation since the start or the last reset.
    pub fn calls(&self, op: Op) -> usize {
        self.0.state.lock().log.iter().filter(|call| call.op == op).count()
    }

    /// All calls since the start or the last reset, in order.
    pub fn log(&self) -> Vec<Call> {
        self.0.state.lock().log.clone()
    }

    /// Begins the log anew.
    pub fn reset_log(&self) {
        self.0.state.lock().log.clear();
    }

    /// Stores an object as another writer: without a call or a fault. Returns the ETag of the new version.
    pub fn insert(&self, key: impl AsRef<str>, bytes: impl Into<Bytes>) -> ETag {
        let now = self.0.clock.wall();
        self.0.state.lock().store.insert(ObjectKey::new(key), bytes.into(), "", now)
    }

    /// Removes an object as another writer. Returns whether it existed.
    pub fn remove(&self, key: impl AsRef<str>) -> bool {
        self.0.state.lock().store.remove(&ObjectKey::new(key)).is_some()
    }

    /// Moves an object to an archive tier: it is listed and cannot be read.
    ///
    /// # Panics
    /// The object does not exist.
    pub fn archive(&self, key: impl AsRef<str>) {
        let mut state = self.0.state.lock();
        state.store.object_mut(&ObjectKey::new(key)).expect("an object to archive").meta.readable = false;
    }

    /// Restores an archived object: reads work again, and a listing still names only the archive tier, as S3 does.
    ///
    /// # Panics
    /// There is no such object.
    pub fn restore(&self, key: impl AsRef<str>) {
        let (mut state, key) = (self.0.state.lock(), ObjectKey::new(key));
        state.store.object_mut(&key).expect("an object to restore").meta.readable = true;
        state.restored.insert(key);
    }

    /// The bytes of an object.
    pub fn object(&self, key: impl AsRef<str>) -> Option<Bytes> {
        let state = self.0.state.lock();
        state.store.objects().get(&ObjectKey::new(key)).map(|o| o.bytes.clone())
    }

    /// The metadata of an object.
    pub fn meta(&self, key: impl AsRef<str>) -> Option<ObjectMeta> {
        self.0.state.lock().store.head(&ObjectKey::new(key)).ok()
    }

    /// All keys, in the store's order.
    pub fn keys(&self) -> Vec<String> {
        self.0.state.lock().store.objects().keys().map(|k| k.as_str().to_owned()).collect()
    }

    /// Uploads that were neither completed nor aborted.
    pub fn pending_uploads(&self) -> Vec<UploadId> {
        self.0.state.lock().store.uploads("").into_iter().map(|u| u.upload).collect()
    }

    /// Logs the call, asks the fault plans, waits where they demand it, carries out the effect and then answers.
    async fn call<T>(&self, call: Call, effect: impl FnOnce(&mut Store, &Struck) -> Result<T>) -> Result<T> {
        let struck = self.strike(&call);
        for plan in &struck.0 {
            if !plan.delay.is_zero() {
                self.0.clock.sleep(plan.delay).await;
            }
            plan.wait(HoldAt::Request).await;
        }
        if let Some(kind) = struck.refused() {
            return Err(fault(kind, &call));
        }
        let answer = effect(&mut self.0.state.lock().store, &struck);
        for plan in &struck.0 {
            plan.wait(HoldAt::Answer).await;
        }
        match struck.0.iter().find(|p| p.answer_lost) {
            Some(plan) if answer.is_ok() => {
                Err(fault(plan.fail.clone().unwrap_or(ErrorKind::Unknown), &call).unsettled())
            }
            _ => answer,
        }
    }

    fn strike(&self, call: &Call) -> Struck {
        let mut state = self.0.state.lock();
        state.log.push(call.clone());
        let plans = state.plans.iter_mut();
        Struck(plans.filter_map(|p| p.strikes(call.op, &call.key).then(|| p.clone())).collect())
    }
}

impl Default for MemoryClient {
    fn default() -> Self {
        Self::new()
    }
}

/// The plans that strike one call.
struct Struck(Vec<FaultPlan>);

impl Struck {
    /// The error of a call that must have no effect.
    fn refused(&self) -> Option<ErrorKind> {
        let plans = self.0.iter().filter(|p| p.break_after.is_none() && p.flip.is_none() && !p.answer_lost);
        plans.filter_map(|p| p.fail.clone()).next()
    }

    /// The bytes of a range, with the flipped bits that the plans demand.
    fn flipped(&self, range: &Range<u64>, bytes: Bytes) -> Bytes {
        let mut came = bytes.to_vec();
        for at in self.0.iter().filter_map(|plan| plan.flip).filter(|at| range.contains(at)) {
            came[(at - range.start) as usize] ^= 1;
        }
        came.into()
    }

    fn broken(&self) -> Option<(u64, ErrorKind)> {
        let plan = self.0.iter().find(|p| p.break_after.is_some())?;
        Some((plan.break_after?, plan.fail.clone().unwrap_or(ErrorKind::Network)))
    }
}

impl FaultPlan {
    async fn wait(&self, at: HoldAt) {
        if let Some((_, barrier)) = self.hold.as_ref().filter(|(place, _)| *place == at) {
            barrier.pass().await;
        }
    }
}

fn fault(kind: ErrorKind, call: &Call) -> Error {
    Error::new(kind, call.op.name()).key(&ObjectKey::new(&call.key)).message("the fault plan of the test")
}

fn call(op: Op, key: &str) -> Call {
    Call { op, key: key.to_owned(), range: None, part_number: None }
}

impl ObjectClient for MemoryClient {
    fn checksum(&self, id: &ObjectId, _size: u64) -> Option<Checksum> {
        let state = self.0.state.lock();
        let object = state.store.objects().get(&id.key).filter(|object| object.meta.etag == id.etag)?;
        Some(Checksum::of(state.sums?, &object.bytes))
    }

    fn part_limits(&self) -> PartLimits {
        self.0.parts
    }

    fn head_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<ObjectMeta>> {
        Box::pin(self.call(call(Op::HeadObject, key.as_str()), |store, _| store.head(key)))
    }

    fn list_objects<'a>(&'a self, request: &'a ListObjects) -> BoxFuture<'a, Result<ListPage>> {
        Box::pin(async move {
            let mut page =
                self.call(call(Op::ListObjects, &request.prefix), |store, _| store.list(request)).await?;
            let state = self.0.state.lock();
            page.objects.iter_mut().for_each(|it| it.meta.readable &= !state.restored.contains(&it.key));
            let listed = page.objects.len();
            page.objects.retain(|it| !state.unreadable.contains(it.key.as_str()));
            page.has_left_out = page.objects.len() < listed;
            Ok(page)
        })
    }

    fn get_object<'a>(&'a self, request: &'a GetObject, into: &'a mut Fill) -> BoxFuture<'a, Result<()>> {
        let range = request.range.clone();
        assert_eq!(into.remaining(), range.end.saturating_sub(range.start), "room for exactly the range");
        let call = Call { range: Some(range), ..call(Op::GetObject, request.id.key.as_str()) };
        Box::pin(async move {
            let (bytes, broken) = self
                .call(call.clone(), |store, struck| {
                    let bytes = store.get(request)?;
                    Ok((struck.flipped(&request.range, bytes), struck.broken()))
                })
                .await?;
            // The bytes are put outside of the store's lock, because `put` hands out each full block.
            let came = broken.as_ref().map_or(bytes.len(), |(n, _)| bytes.len().min(*n as usize));
            into.put(&bytes[..came]);
            broken.map_or(Ok(()), |(_, kind)| Err(fault(kind, &call)))
        })
    }

    fn get_first<'a>(&'a self, request: &'a GetFirst, mut room: BlockMut) -> BoxFuture<'a, Result<First>> {
        let key = &request.key;
        let most = room.limit() as u64;
        let range = match request.begin {
            Begin::At(start) => start..start + most,
            // The log shows the highest offsets for bytes whose place only the store knows.
            Begin::Tail => u64::MAX - most..u64::MAX,
        };
        let first = Call { range: Some(range), ..call(Op::GetObject, key.as_str()) };
        Box::pin(async move {
            let ask = |store: &mut Store, struck: &Struck| Ok((store.first(request, most)?, struck.broken()));
            match self.call(first.clone(), ask).await {
                Ok(((meta, start, bytes), broken)) => {
                    room.shorten(bytes.len());
                    room.put(&bytes);
                    Ok(First { meta, bytes: broken.is_none().then(|| (start, room.freeze())) })
                }
                Err(error) if error.http_status() == Some(416) || *error.kind() == ErrorKind::Archived => {
                    let meta = self.head_object(key).await?;
                    match &request.etag {
                        Some(known) if !known.matches(meta.etag.as_str()) => {
                            Err(fault(ErrorKind::Changed, &first))
                        }
                        _ => Ok(First { meta, bytes: None }),
                    }
                }
                Err(error) => Err(error),
            }
        })
    }

    fn put_object<'a>(&'a self, request: &'a PutObject) -> BoxFuture<'a, Result<Stored>> {
        let now = self.0.clock.wall();
        let call = call(Op::PutObject, request.object.key.as_str());
        Box::pin(self.call(call, move |store, _| store.put(request, now)))
    }

    fn create_multipart_upload<'a>(&'a self, request: &'a NewObject) -> BoxFuture<'a, Result<UploadId>> {
        let now = self.0.clock.wall();
        let call = call(Op::CreateMultipartUpload, request.key.as_str());
        Box::pin(self.call(call, move |store, _| store.create_upload(request, now)))
    }

    fn upload_part<'a>(&'a self, request: &'a UploadPart) -> BoxFuture<'a, Result<UploadedPart>> {
        let call = call(Op::UploadPart, request.upload.key.as_str());
        let call = Call { part_number: Some(request.part_number), ..call };
        Box::pin(self.call(call, |store, _| store.upload_part(request)))
    }

    fn complete_multipart_upload<'a>(&'a self, request: &'a CompleteUpload) -> BoxFuture<'a, Result<Stored>> {
        let now = self.0.clock.wall();
        let call = call(Op::CompleteMultipartUpload, request.upload.key.as_str());
        let is_nameless = self.0.state.lock().is_nameless;
        let answered = move |stored: Stored| match is_nameless {
            true => Stored { etag: ETag::new(""), ..stored },
            false => stored,
        };
        Box::pin(self.call(call, move |store, _| store.complete_upload(request, now).map(answered)))
    }

    fn abort_multipart_upload<'a>(&'a self, upload: &'a UploadId) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.call(call(Op::AbortMultipartUpload, upload.key.as_str()), |store, _| {
            store.abort_upload(upload);
            Ok(())
        }))
    }

    fn list_multipart_uploads<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<PendingUpload>>> {
        Box::pin(self.call(call(Op::ListMultipartUploads, prefix), |store, _| Ok(store.uploads(prefix))))
    }

    fn delete_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.call(call(Op::DeleteObject, key.as_str()), |store, _| {
            store.remove(key);
            Ok(())
        }))
    }

    fn delete_version<'a>(&'a self, id: &'a ObjectId) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.call(call(Op::DeleteObject, id.key.as_str()), |store, _| store.remove_version(id)))
    }

    fn describe_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Described>> {
        Box::pin(self.call(call(Op::HeadObject, key.as_str()), |store, _| store.describe(key)))
    }

    fn object_tags<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Tags>> {
        Box::pin(self.call(call(Op::GetObjectTagging, key.as_str()), |store, _| store.tags(key)))
    }

    fn copy_object<'a>(&'a self, request: &'a CopyObject) -> BoxFuture<'a, Result<Stored>> {
        let now = self.0.clock.wall();
        let call = call(Op::CopyObject, request.to.as_str());
        Box::pin(self.call(call, move |store, _| store.copy(request, now)))
    }

    fn upload_part_copy<'a>(&'a self, request: &'a CopyPart) -> BoxFuture<'a, Result<UploadedPart>> {
        let call = call(Op::UploadPartCopy, request.upload.key.as_str());
        let call = Call { part_number: Some(request.part_number), ..call };
        Box::pin(self.call(call, |store, _| store.copy_part(request)))
    }
}

#[cfg(test)]
mod tests;
