//! Cache of the store's checksums of whole object versions, and the parser of the answers that contain one.

use std::collections::{HashMap, VecDeque};

use http::{HeaderMap, StatusCode};

use crate::checksum::{Checksum, ChecksumAlgorithm};
use crate::object::{ETag, ObjectId};
use crate::sync::Mutex;

/// Most versions in the cache, half a KiB each. Beyond it, the oldest is dropped. Doubling it lets twice as many files be looked up between
/// the lookup of a file and its open.
const KNOWN_MAX: usize = 4096;

/// The checksums of recent answers.
#[derive(Debug, Default)]
pub(crate) struct Sums(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    sums: HashMap<ObjectId, Checksum>,
    order: VecDeque<ObjectId>,
}

impl Sums {
    /// Learns the checksum of this version from an answer, and replaces an earlier one.
    pub(crate) fn learn(&self, id: &ObjectId, status: StatusCode, headers: &HeaderMap) {
        if let Some(sum) = of_whole_object(status, headers, &id.etag) {
            self.put(id, sum);
        }
    }

    /// Notes the checksum of all bytes of this version. The answer to an upload may lack the object's date: then the checksum goes to the
    /// first version that a reader requests with this ETag.
    pub(crate) fn put(&self, id: &ObjectId, sum: Checksum) {
        if !id.etag.is_none() {
            self.0.lock().put(plain(id), sum);
        }
    }

    /// The checksum of all bytes of a version, if a recent answer contained it.
    pub(crate) fn get(&self, id: &ObjectId) -> Option<Checksum> {
        let id = plain(id);
        let mut known = self.0.lock();
        if let Some(sum) = known.sums.get(&id) {
            return Some(*sum);
        }
        // The checksum now belongs to this date only: some stores give all objects one ETag.
        let sum = known.sums.remove(&ObjectId { modified: None, ..id.clone() })?;
        known.put(id, sum);
        Some(sum)
    }
}

impl Known {
    fn put(&mut self, id: ObjectId, sum: Checksum) {
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
/// none.
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

    #[test]
    fn the_last_answer_counts_in_every_spelling_of_the_etag_and_old_ones_go() {
        let id = |n: usize, etag: &str| ObjectId::by_etag(format!("k{n}").as_str().into(), ETag::new(etag));
        let sum = |value| Checksum { algorithm: ChecksumAlgorithm::Crc32c, value };
        let sums = Sums::default();
        sums.put(&id(0, "\"e\""), sum(1));
        sums.put(&id(0, "e"), sum(2));
        assert_eq!(sums.get(&id(0, "\"e\"")), Some(sum(2)));
        assert_eq!(sums.get(&id(0, "f")), None);
        for n in 1..=KNOWN_MAX {
            sums.put(&id(n, "e"), sum(n as u64));
        }
        assert_eq!((sums.get(&id(0, "e")), sums.get(&id(1, "e"))), (None, Some(sum(1))));
        assert_eq!(sums.0.lock().sums.len(), KNOWN_MAX);
    }
}
