//! Cache of the store's checksums of whole object versions, and the parser of the answers that contain one.

use std::collections::{HashMap, VecDeque};

use http::{HeaderMap, StatusCode};

use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::object::{ETag, ObjectId, ObjectKey, Second};
use crate::sync::Mutex;

/// Most versions in the cache, half a KiB each. Beyond it, the oldest is dropped. Doubling it lets twice as many files be looked up between
/// the lookup of a file and its open.
const KNOWN_MAX: usize = 4096;

/// Seconds by which an object's date may be later than the date of the answer to its upload: both are rounded.
const LATER_MAX: i64 = 1;

/// The checksums of recent answers, and of this mount's uploads.
#[derive(Debug, Default)]
pub(crate) struct Sums(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    sums: HashMap<ObjectId, Sum>,
    order: VecDeque<ObjectId>,
    /// ETag and checksum of the last upload.
    last: Option<(ETag, Sum)>,
    /// Whether two uploads of different bytes got one ETag. Then no ETag shows that an object is the upload, and uploads are not compared.
    etags_say_nothing: bool,
}

/// The checksum of a version, and what identifies the version beside its ETag.
#[derive(Clone, Copy, Debug)]
struct Sum {
    checksum: Checksum,
    size: u64,
    source: Source,
}

/// The source of a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// An answer of the store about this version.
    Store,
    /// An upload of this mount, with the date of the store's answer: an object with a later date is another one.
    Upload(Option<Second>),
}

impl Sums {
    /// Learns the checksum of this version of `size` bytes from an answer, and replaces an earlier one.
    pub(crate) fn learn(&self, id: &ObjectId, size: u64, status: StatusCode, headers: &HeaderMap) {
        if let Some(checksum) = of_whole_object(status, headers, &id.etag) {
            self.put(id, size, checksum);
        }
    }

    /// Notes the store's checksum of all bytes of this version.
    pub(crate) fn put(&self, id: &ObjectId, size: u64, checksum: Checksum) {
        if !id.etag.is_none() {
            self.0.lock().put(plain(id), Sum { checksum, size, source: Source::Store });
        }
    }

    /// Notes the checksum of an object that this mount stored. `modified`: the date of the store's answer. The object's own date is
    /// unknown: the checksum goes to the first version of this ETag and size that a reader requests and that is not later.
    pub(crate) fn uploaded(
        &self,
        key: &ObjectKey,
        etag: &ETag,
        size: u64,
        modified: Option<Second>,
        checksum: Checksum,
    ) {
        let id = plain(&ObjectId::by_etag(key.clone(), etag.clone()));
        if id.etag.is_none() {
            return;
        }
        let sum = Sum { checksum, size, source: Source::Upload(modified) };
        let mut known = self.0.lock();
        let last = known.last.replace((id.etag.clone(), sum));
        if last.is_some_and(|(etag, last)| etag == id.etag && last.has_other_bytes(&sum)) {
            known.etags_say_nothing = true;
            known.sums.retain(|_, sum| sum.source == Source::Store);
        }
        if !known.etags_say_nothing {
            known.put(id, sum);
        }
    }

    /// The checksum of all bytes of a version of `size` bytes, if a recent answer contained it, or this mount stored the version.
    pub(crate) fn get(&self, id: &ObjectId, size: u64) -> Option<Checksum> {
        let id = plain(id);
        let mut known = self.0.lock();
        if let Some(sum) = known.sums.get(&id) {
            return (sum.size == size).then_some(sum.checksum);
        }
        let undated = ObjectId { modified: None, ..id.clone() };
        let sum = known.sums.get(&undated).copied().filter(|sum| sum.may_be_of(size, id.modified))?;
        // The checksum now belongs to this date only: some stores give all objects one ETag.
        known.sums.remove(&undated);
        known.put(id, sum);
        Some(sum.checksum)
    }
}

impl Sum {
    /// Whether a version of this size and date may be the one with this checksum.
    fn may_be_of(&self, size: u64, modified: Option<Second>) -> bool {
        let is_later = match self.source {
            Source::Upload(Some(stored)) => {
                modified.is_some_and(|modified| modified.get() > stored.get().saturating_add(LATER_MAX))
            }
            Source::Upload(None) | Source::Store => false,
        };
        self.size == size && !is_later
    }

    fn has_other_bytes(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.checksum, other.checksum);
        self.size != other.size || ours.algorithm == theirs.algorithm && ours.value != theirs.value
    }
}

impl Known {
    fn put(&mut self, id: ObjectId, sum: Sum) {
        if self.sums.insert(id.clone(), sum).is_none() {
            self.order.push_back(id);
            if self.order.len() > KNOWN_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.sums.remove(&oldest);
            }
        }
    }
}

/// The identity without the quotes of the ETag, which some answers and listings leave out.
fn plain(id: &ObjectId) -> ObjectId {
    ObjectId { etag: ETag::new(id.etag.as_str().trim_matches('"')), ..id.clone() }
}

/// The checksum of all bytes of an object, from the answer to a HEAD, or to a GET of all its bytes. Pure.
///
/// A composite is a checksum of checksums, and can't be compared with bytes. S3 leaves out the mark `-N` of a composite in the answer to a
/// GET with a range. There the checksum counts only if its type is FULL_OBJECT, or, without a type, if the ETag is that of an object
/// without parts. A header that comes twice is ignored.
pub(crate) fn of_whole_object(status: StatusCode, headers: &HeaderMap, etag: &ETag) -> Option<Checksum> {
    let one = |name: &str| {
        let mut values = headers.get_all(name).iter();
        let value = values.next()?.to_str().ok()?.trim();
        values.next().is_none().then_some(value)
    };
    let is_full = match (headers.contains_key(TYPE), one(TYPE)) {
        (true, said) => said.is_some_and(|said| said.eq_ignore_ascii_case("FULL_OBJECT")),
        (false, _) => status == StatusCode::OK || !etag.as_str().contains('-'),
    };
    let said = |algorithm: &ChecksumAlgorithm| Checksum::from_base64(*algorithm, one(algorithm.header())?);
    is_full.then(|| ChecksumAlgorithm::ALL.iter().find_map(said)).flatten()
}

const TYPE: &str = "x-amz-checksum-type";

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const CRC32C: &str = "x-amz-checksum-crc32c";
    const CRC64: &str = "x-amz-checksum-crc64nvme";
    /// Both checksums of `123456789`.
    const RIGHT: &str = "4waSgw==";
    const RIGHT64: &str = "rosUhgp5mIg=";

    fn said(status: u16, etag: &str, headers: &[(&'static str, &str)]) -> Option<u64> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        of_whole_object(StatusCode::from_u16(status).unwrap(), &map, &ETag::new(etag)).map(|sum| sum.value)
    }

    #[test]
    fn only_a_checksum_of_all_bytes_is_one() {
        let right = Some(0xe306_9283);
        assert_eq!(said(200, "\"e\"", &[(CRC32C, RIGHT)]), right);
        assert_eq!(said(200, "\"e-2\"", &[(CRC32C, RIGHT)]), right, "of all bytes, as it has no count");
        assert_eq!(said(206, "\"e\"", &[(CRC32C, RIGHT)]), right);
        assert_eq!(said(206, "\"e-2\"", &[(CRC32C, RIGHT), (TYPE, "FULL_OBJECT")]), right);
        assert_eq!(said(200, "\"e\"", &[(CRC64, RIGHT64), (CRC32C, "?")]), Some(0xae8b_1486_0a79_9888));
        assert_eq!(said(200, "\"e\"", &[("x-amz-checksum-crc32", "y/Q5Jg==")]), Some(0xcbf4_3926));
        for (status, etag, headers) in [
            (200, "\"e\"", &[][..]),
            (206, "\"e-2\"", &[(CRC32C, RIGHT)]),
            (200, "\"e-2\"", &[(CRC32C, "4waSgw==-2")]),
            (200, "\"e-2\"", &[(CRC32C, RIGHT), (TYPE, "COMPOSITE")]),
            (206, "\"e\"", &[(CRC32C, RIGHT), (TYPE, "COMPOSITE")]),
            (200, "\"e\"", &[(CRC32C, RIGHT), (TYPE, "FULL_OBJECT"), (TYPE, "COMPOSITE")]),
            (200, "\"e\"", &[(CRC32C, RIGHT), (CRC32C, RIGHT)]),
            (200, "\"e\"", &[(CRC32C, RIGHT64)]),
            (200, "\"e\"", &[(CRC32C, "")]),
            (200, "\"e\"", &[("x-amz-checksum-sha256", "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=")]),
        ] {
            assert_eq!(said(status, etag, headers), None, "{status} {etag} {headers:?}");
        }
    }

    fn sum(value: u64) -> Checksum {
        Checksum { algorithm: ChecksumAlgorithm::Crc32c, value }
    }

    #[test]
    fn the_last_answer_counts_in_every_spelling_of_the_etag_and_old_ones_go() {
        let id = |n: usize, etag: &str| ObjectId::by_etag(format!("k{n}").as_str().into(), ETag::new(etag));
        let sums = Sums::default();
        sums.put(&id(0, "\"e\""), 5, sum(1));
        sums.put(&id(0, "e"), 5, sum(2));
        assert_eq!(sums.get(&id(0, "\"e\""), 5), Some(sum(2)));
        assert_eq!((sums.get(&id(0, "f"), 5), sums.get(&id(0, "e"), 6)), (None, None));
        for n in 1..=KNOWN_MAX {
            sums.put(&id(n, "e"), 5, sum(n as u64));
        }
        assert_eq!((sums.get(&id(0, "e"), 5), sums.get(&id(1, "e"), 5)), (None, Some(sum(1))));
        assert_eq!(sums.0.lock().sums.len(), KNOWN_MAX);
    }

    /// The version of `k` with this ETag and second.
    fn version(etag: &str, second: i64) -> ObjectId {
        ObjectId { key: "k".into(), etag: ETag::new(etag), modified: Second::from_epoch(second) }
    }

    #[test]
    fn an_upload_is_not_compared_with_an_object_of_other_size_or_later_date() {
        let after_upload = || {
            let sums = Sums::default();
            sums.uploaded(&"k".into(), &ETag::new("\"e\""), 5, Second::from_epoch(100), sum(1));
            sums
        };
        for (second, size) in [(100, 6), (100, 4), (102, 5), (5000, 5)] {
            let sums = after_upload();
            assert_eq!(sums.get(&version("e", second), size), None, "{size} bytes at {second}");
        }
        // Parts were sent before the object was complete, an object without a date may be any, and seconds are rounded.
        for second in [7, 100, 101, 0] {
            let sums = after_upload();
            assert_eq!(sums.get(&version("e", second), 5), Some(sum(1)), "at {second}");
            let other = if second == 0 { 100 } else { 99 };
            assert_eq!(sums.get(&version("e", other), 5).is_some(), second == 0, "it has one date");
        }
        let undated = Sums::default();
        undated.uploaded(&"k".into(), &ETag::new("e"), 5, None, sum(1));
        assert_eq!(undated.get(&version("e", 5000), 5), Some(sum(1)), "the store did not say when");
    }

    #[test]
    fn once_two_uploads_share_an_etag_no_object_is_taken_for_an_upload() {
        let sums = Sums::default();
        let upload = |key: &str, etag: &str, size, value| {
            sums.uploaded(&key.into(), &ETag::new(etag), size, Second::from_epoch(100), sum(value));
        };
        upload("k", "e", 5, 1);
        upload("other", "e", 5, 1);
        upload("other", "f", 5, 2);
        assert_eq!(
            sums.get(&version("e", 100), 5),
            Some(sum(1)),
            "the same bytes have one ETag, others another"
        );
        upload("k", "f", 5, 3);
        upload("k", "g", 5, 3);
        sums.put(&version("h", 100), 5, sum(4));
        let found = ["e", "f", "g", "h"].map(|etag| sums.get(&version(etag, 100), 5));
        assert_eq!(found, [None, None, None, Some(sum(4))], "what the store says itself counts");
    }
}
