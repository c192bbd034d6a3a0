//! S3's state and answers, without time: a map of keys, a map of uploads, the rules.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};

use super::Op;
use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::object::{ETag, ObjectId, ObjectKey, ObjectMeta, Second};
use crate::s3::{
    Begin, CompleteUpload, CopyObject, CopyPart, Described, Error, ErrorKind, GetFirst, GetObject,
    ListObjects, ListPage, ListedObject, NewObject, PartLimits, PendingUpload, Properties, PutObject,
    Replaces, Result, Stored, Tags, UploadId, UploadPart, UploadedPart,
};

/// The bucket. Its keys are in the order of their UTF-8 bytes, as S3 lists them.
#[derive(Debug)]
pub(super) struct Store {
    objects: BTreeMap<ObjectKey, Object>,
    uploads: BTreeMap<String, Upload>,
    versions: u64,
    part_size_min: u64,
    page_max: u16,
    ignores_start_after: bool,
    limits: PartLimits,
}

#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) bytes: Bytes,
    pub(super) meta: ObjectMeta,
    pub(super) properties: Properties,
}

#[derive(Debug)]
struct Upload {
    id: UploadId,
    properties: Properties,
    checksum: Option<ChecksumAlgorithm>,
    parts: BTreeMap<u32, (UploadedPart, Bytes)>,
    initiated: SystemTime,
}

/// Largest range of one copy, in bytes: S3's limit.
const COPY_MAX: u64 = 5 << 30;

impl Store {
    pub(super) fn new(
        part_size_min: u64,
        page_max: u16,
        ignores_start_after: bool,
        limits: PartLimits,
    ) -> Self {
        let (objects, uploads) = (BTreeMap::new(), BTreeMap::new());
        Self { objects, uploads, versions: 0, part_size_min, page_max, ignores_start_after, limits }
    }

    /// Keys in order, with their objects.
    pub(super) fn objects(&self) -> &BTreeMap<ObjectKey, Object> {
        &self.objects
    }

    pub(super) fn object_mut(&mut self, key: &ObjectKey) -> Option<&mut Object> {
        self.objects.get_mut(key)
    }

    pub(super) fn head(&self, key: &ObjectKey) -> Result<ObjectMeta> {
        let found = self.objects.get(key).map(|o| o.meta.clone());
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, Op::HeadObject.name()).key(key).status(404))
    }

    pub(super) fn get(&self, request: &GetObject) -> Result<Bytes> {
        let error = |kind| Error::new(kind, Op::GetObject.name()).key(&request.id.key);
        let object = self.objects.get(&request.id.key);
        let object = object.ok_or_else(|| error(ErrorKind::NotFound).status(404))?;
        if !object.meta.etag.matches(request.id.etag.as_str()) {
            return Err(error(ErrorKind::Changed).status(412));
        }
        let second = Second::of(object.meta.last_modified);
        if request.id.modified.is_some_and(|expected| second != Some(expected)) {
            return Err(error(ErrorKind::Changed).message("the object was stored at another time"));
        }
        if !object.meta.readable {
            return Err(error(ErrorKind::Archived).status(403));
        }
        if request.object_size != object.meta.size {
            return Err(error(ErrorKind::Changed).message("the object has another size"));
        }
        let range = request.range.clone();
        if range.is_empty() || range.end > object.meta.size {
            return Err(error(ErrorKind::InvalidRequest).status(416));
        }
        Ok(object.bytes.slice(range.start as usize..range.end as usize))
    }

    pub(super) fn first(&self, request: &GetFirst, most: u64) -> Result<(ObjectMeta, u64, Bytes)> {
        let error = |kind, status| Error::new(kind, Op::GetObject.name()).key(&request.key).status(status);
        let object = self.objects.get(&request.key).ok_or_else(|| error(ErrorKind::NotFound, 404))?;
        let meta = object.meta.clone();
        if request.etag.as_ref().is_some_and(|etag| !etag.matches(meta.etag.as_str())) {
            return Err(error(ErrorKind::Changed, 412));
        }
        if !meta.readable {
            return Err(error(ErrorKind::Archived, 403));
        }
        let start = match request.begin {
            Begin::At(start) => start,
            Begin::Tail => meta.size.saturating_sub(most),
        };
        if meta.size <= start {
            return Err(error(ErrorKind::Changed, 416));
        }
        let end = meta.size.min(start.saturating_add(most));
        Ok((meta, start, object.bytes.slice(start as usize..end as usize)))
    }

    pub(super) fn put(&mut self, request: &PutObject, now: SystemTime) -> Result<Stored> {
        let key = &request.object.key;
        check_key(key, Op::PutObject)?;
        let bytes = join(&request.body);
        check(request.checksum, &bytes)
            .map_err(|kind| Error::new(kind, Op::PutObject.name()).key(key).status(400))?;
        self.check_there(key, &request.object.replaces, Op::PutObject)?;
        let etag = self.insert(key.clone(), bytes, "", now);
        self.describe_as(key, &request.object.properties);
        Ok(Stored { etag, checksum: request.checksum.map(Checksum::to_base64), modified: None })
    }

    /// Stores an object at a key, or replaces the one there.
    pub(super) fn insert(&mut self, key: ObjectKey, bytes: Bytes, suffix: &str, now: SystemTime) -> ETag {
        let etag = self.next_etag(suffix);
        // Each version has a second of its own, however fast tests are.
        let before = self.objects.get(&key).map(|object| object.meta.last_modified + Duration::from_secs(1));
        let meta = ObjectMeta {
            size: bytes.len() as u64,
            etag: etag.clone(),
            last_modified: before.map_or_else(|| whole_seconds(now), |before| before.max(whole_seconds(now))),
            readable: true,
        };
        self.objects.insert(key, Object { bytes, meta, properties: Properties::default() });
        etag
    }

    fn describe_as(&mut self, key: &ObjectKey, properties: &Properties) {
        if let Some(object) = self.objects.get_mut(key) {
            object.properties = properties.clone();
        }
    }

    /// Checks that the object at a key may be replaced.
    fn check_there(&self, key: &ObjectKey, replaces: &Replaces, op: Op) -> Result<()> {
        let there = self.objects.get(key).map(|object| &object.meta.etag);
        let refused = |kind| Err(Error::new(kind, op.name()).key(key).status(412));
        match (replaces, there) {
            (Replaces::Anything, _) | (Replaces::Nothing, None) => Ok(()),
            (Replaces::Version(known), Some(there)) if known.matches(there.as_str()) => Ok(()),
            (Replaces::Version(_), _) if op != Op::CopyObject => refused(ErrorKind::Changed),
            _ => refused(ErrorKind::Exists),
        }
    }

    pub(super) fn describe(&self, key: &ObjectKey) -> Result<Described> {
        let meta = self.head(key)?;
        let properties = self.objects[key].properties.clone();
        let (tags, properties) = (properties.tags.len(), Properties { tags: Tags::new(), ..properties });
        Ok(Described { meta, properties, version: None, tags: tags as u32, checksum: None })
    }

    pub(super) fn tags(&self, key: &ObjectKey) -> Result<Tags> {
        self.head(key)?;
        Ok(self.objects[key].properties.tags.clone())
    }

    /// A copy of exactly this version of an object.
    fn source(&self, id: &ObjectId, op: Op) -> Result<Object> {
        let error = |kind| Error::new(kind, op.name()).key(&id.key);
        let object = self.objects.get(&id.key).ok_or_else(|| error(ErrorKind::NotFound).status(404))?;
        if !object.meta.etag.matches(id.etag.as_str()) {
            return Err(error(ErrorKind::Changed).status(412));
        }
        if !object.meta.readable {
            return Err(error(ErrorKind::Archived).status(403));
        }
        Ok(object.clone())
    }

    pub(super) fn copy(&mut self, request: &CopyObject, now: SystemTime) -> Result<Stored> {
        let to = &request.to;
        check_key(to, Op::CopyObject)?;
        let source = self.source(&request.source, Op::CopyObject)?;
        if source.meta.size > COPY_MAX {
            return Err(Error::new(ErrorKind::InvalidRequest, Op::CopyObject.name()).key(to).status(400));
        }
        self.check_there(to, &request.replaces, Op::CopyObject)?;
        let mut properties = request.properties.clone().unwrap_or_else(|| source.properties.clone());
        properties.storage_class.clone_from(&request.storage_class);
        if properties.tags.is_empty() {
            properties.tags = source.properties.tags;
        }
        let etag = self.insert(to.clone(), source.bytes, "", now);
        self.describe_as(to, &properties);
        Ok(Stored { etag, checksum: None, modified: None })
    }

    pub(super) fn copy_part(&mut self, request: &CopyPart) -> Result<UploadedPart> {
        let source = self.source(&request.source, Op::UploadPartCopy)?;
        let refused =
            || Error::new(ErrorKind::InvalidRequest, Op::UploadPartCopy.name()).key(&request.source.key);
        let range = request.range.clone();
        if range.is_empty() || range.end > source.meta.size || range.end - range.start > COPY_MAX {
            return Err(refused().status(416));
        }
        let body = source.bytes.slice(range.start as usize..range.end as usize);
        let checksum = self.uploads.get(&request.upload.id).and_then(|upload| upload.checksum);
        let checksum = checksum.map(|algorithm| Checksum::of(algorithm, &body));
        let (upload, part_number) = (request.upload.clone(), request.part_number);
        self.upload_part(&UploadPart { upload, part_number, body: vec![body], checksum })
    }

    /// Removes an object of this version. A missing object is a success.
    pub(super) fn remove_version(&mut self, id: &ObjectId) -> Result<()> {
        if self.objects.contains_key(&id.key) {
            self.check_there(&id.key, &Replaces::Version(id.etag.clone()), Op::DeleteObject)?;
            self.objects.remove(&id.key);
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Object> {
        self.objects.remove(key)
    }

    pub(super) fn create_upload(&mut self, object: &NewObject, now: SystemTime) -> Result<UploadId> {
        check_key(&object.key, Op::CreateMultipartUpload)?;
        self.versions += 1;
        // Ids grow in the order of the uploads' start, so a listing is in that order too.
        let id = UploadId { key: object.key.clone(), id: format!("upload-{:08}", self.versions) };
        let upload = Upload {
            id: id.clone(),
            properties: object.properties.clone(),
            checksum: object.checksum,
            parts: BTreeMap::new(),
            initiated: whole_seconds(now),
        };
        self.uploads.insert(id.id.clone(), upload);
        Ok(id)
    }

    pub(super) fn upload_part(&mut self, request: &UploadPart) -> Result<UploadedPart> {
        let error = |kind| Error::new(kind, Op::UploadPart.name()).key(&request.upload.key);
        let etag = self.next_etag("");
        let parts_max = self.limits.parts_max;
        let upload = self.uploads.get_mut(&request.upload.id).filter(|u| u.id == request.upload);
        let upload = upload.ok_or_else(|| error(ErrorKind::NotFound).status(404))?;
        if !(1..=parts_max).contains(&request.part_number) {
            let why = format!("a part number is 1 to {parts_max}");
            return Err(error(ErrorKind::InvalidRequest).status(400).message(why));
        }
        if upload.checksum.is_some() && upload.checksum != request.checksum.map(|c| c.algorithm) {
            return Err(
                error(ErrorKind::InvalidRequest).message("the upload was started for another checksum")
            );
        }
        let bytes = join(&request.body);
        check(request.checksum, &bytes).map_err(|kind| error(kind).status(400))?;
        let part = UploadedPart {
            part_number: request.part_number,
            etag,
            size: bytes.len() as u64,
            checksum: request.checksum,
        };
        upload.parts.insert(request.part_number, (part.clone(), bytes));
        Ok(part)
    }

    pub(super) fn complete_upload(&mut self, request: &CompleteUpload, now: SystemTime) -> Result<Stored> {
        let key = &request.upload.key;
        let error = |kind| Error::new(kind, Op::CompleteMultipartUpload.name()).key(key);
        let upload = self.uploads.get(&request.upload.id).filter(|u| u.id == request.upload);
        let upload = upload.ok_or_else(|| error(ErrorKind::NotFound).status(404))?;
        let refused = |why: &str| error(ErrorKind::InvalidRequest).status(400).message(why);
        if request.parts.is_empty() || !request.parts.is_sorted_by(|a, b| a.part_number < b.part_number) {
            return Err(refused("the parts must be listed by ascending number, at least one"));
        }
        let mut whole = BytesMut::new();
        for (i, asked) in request.parts.iter().enumerate() {
            let found = upload.parts.get(&asked.part_number).filter(|(part, _)| part.etag == asked.etag);
            let (part, bytes) = found.ok_or_else(|| refused("a part is not there, or is another one"))?;
            if part.checksum != asked.checksum {
                return Err(refused("a part was sent with another checksum"));
            }
            if i + 1 < request.parts.len() && part.size < self.part_size_min {
                return Err(refused("a part before the last is too small"));
            }
            let first = request.parts[0].size;
            if self.limits.are_equal && i > 0 && i + 1 < request.parts.len() && part.size != first {
                return Err(refused("all parts but the last must have the same length"));
            }
            whole.extend_from_slice(bytes);
        }
        let properties = upload.properties.clone();
        self.check_there(key, &request.replaces, Op::CompleteMultipartUpload)?;
        self.uploads.remove(&request.upload.id);
        let suffix = format!("-{}", request.parts.len());
        let etag = self.insert(key.clone(), whole.freeze(), &suffix, now);
        self.describe_as(key, &properties);
        // The object has the time of its first request on AWS, and the answer that of the last.
        let modified = self.objects.get(key).map(|object| object.meta.last_modified + Duration::from_secs(1));
        Ok(Stored { etag, checksum: checksum_of_parts(&request.parts), modified })
    }

    pub(super) fn abort_upload(&mut self, upload: &UploadId) {
        if self.uploads.get(&upload.id).is_some_and(|u| u.id == *upload) {
            self.uploads.remove(&upload.id);
        }
    }

    pub(super) fn uploads(&self, prefix: &str) -> Vec<PendingUpload> {
        let under = self.uploads.values().filter(|u| u.id.key.as_str().starts_with(prefix));
        let mut found: Vec<_> =
            under.map(|u| PendingUpload { upload: u.id.clone(), initiated: u.initiated }).collect();
        found.sort_by(|a, b| (&a.upload.key, &a.upload.id).cmp(&(&b.upload.key, &b.upload.id)));
        found
    }

    pub(super) fn list(&self, request: &ListObjects) -> Result<ListPage> {
        let error = |why: &str| Error::new(ErrorKind::InvalidRequest, Op::ListObjects.name()).message(why);
        if !(1..=1000).contains(&request.max_keys) {
            return Err(error("max_keys is 1 to 1000"));
        }
        let max = usize::from(request.max_keys.min(self.page_max));
        // A token is the last entry of the page before: a key, or a common prefix of all keys under it.
        let start_after = request.start_after.clone().filter(|_| !self.ignores_start_after);
        let (mut after, mut skip) = (start_after.unwrap_or_default(), None);
        if let Some(token) = &request.continuation_token {
            match token.split_at_checked(1) {
                Some(("k", key)) => after = key.to_owned(),
                Some(("p", prefix)) => skip = Some(prefix.to_owned()),
                _ => return Err(error("a token of ours begins with k or p")),
            }
        }
        let mut page = ListPage::default();
        let mut last = String::new();
        let from = skip.clone().unwrap_or_else(|| after.clone()).max(request.prefix.clone());
        let keys = self.objects.range((Bound::Included(ObjectKey::new(&from)), Bound::Unbounded));
        for (key, object) in keys.filter(|(key, _)| key.as_str() > after.as_str()) {
            let Some(rest) = key.as_str().strip_prefix(&request.prefix) else { break };
            if skip.as_ref().is_some_and(|skip| key.as_str().starts_with(skip)) {
                continue;
            }
            let cut = if request.delimited { rest.find('/') } else { None };
            let common = cut.map(|at| key.as_str()[..request.prefix.len() + at + 1].to_owned());
            if common.is_some() && page.common_prefixes.last() == common.as_ref() {
                continue;
            }
            if page.objects.len() + page.common_prefixes.len() == max {
                page.next_token = Some(last);
                break;
            }
            if let Some(common) = common {
                last = format!("p{common}");
                page.common_prefixes.push(common);
            } else {
                last = format!("k{}", key.as_str());
                page.objects.push(ListedObject {
                    key: key.clone(),
                    meta: object.meta.clone(),
                    storage_class: object.properties.storage_class.clone(),
                });
            }
        }
        Ok(page)
    }

    fn next_etag(&mut self, suffix: &str) -> ETag {
        self.versions += 1;
        ETag::new(format!("\"{:032x}{suffix}\"", self.versions))
    }
}

/// Rounds a time down to whole seconds, the resolution of Last-Modified.
fn whole_seconds(time: SystemTime) -> SystemTime {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn check_key(key: &ObjectKey, op: Op) -> Result<()> {
    if key.as_str().is_empty() || key.as_str().len() > ObjectKey::LEN_MAX {
        let error = Error::new(ErrorKind::InvalidRequest, op.name()).key(key).status(400);
        return Err(error.message("a key has 1 to 1024 bytes"));
    }
    Ok(())
}

/// Copies the body, as a network does: the bucket does not keep the sender's memory.
fn join(body: &[Bytes]) -> Bytes {
    body.concat().into()
}

fn check(sent: Option<Checksum>, bytes: &[u8]) -> std::result::Result<(), ErrorKind> {
    match sent {
        Some(sum) if Checksum::of(sum.algorithm, bytes) != sum => Err(ErrorKind::Corrupt),
        _ => Ok(()),
    }
}

/// The checksum that S3 answers to Complete: composite for CRC32C, of the whole object for CRC64NVME, nothing where parts carried none.
fn checksum_of_parts(parts: &[UploadedPart]) -> Option<String> {
    let sums: Option<Vec<Checksum>> = parts.iter().map(|p| p.checksum).collect();
    let sums = sums?;
    match sums.first()?.algorithm {
        ChecksumAlgorithm::Crc32c | ChecksumAlgorithm::Crc32 => Some(Checksum::composite(&sums)),
        ChecksumAlgorithm::Crc64Nvme => {
            let pairs = sums.iter().zip(parts).skip(1);
            Some(pairs.fold(sums[0], |whole, (sum, part)| whole.combine(*sum, part.size)).to_base64())
        }
    }
}
