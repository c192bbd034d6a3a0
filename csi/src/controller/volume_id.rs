//! The volume id, the only thing that DeleteVolume gets. Enters: the place of a volume, the name of its request. Leaves: an id, and from
//! an id the place of its volume and whether this cluster made the id. Pure.
//!
//! ```text
//! b-NONCE-PROOF/BUCKET            a bucket of its own
//! p-NONCE-PROOF/BUCKET/PREFIX     a prefix in a bucket that was there before; it ends behind PREFIX/
//! csi-s3-UUID                     a bucket that release 2.2 made
//! ```
//! NONCE is a digest of the request's name, so two volumes at the same place have different ids. PROOF is a digest of everything else,
//! salted with the cluster's id. An id with a wrong proof is used only if the bucket's tags name its owner.

use std::fmt;

use super::bucket_name;
use super::cluster::Cluster;

/// The longest id, in bytes: CSI's limit.
pub const ID_MAX: usize = 128;
/// Number of hexadecimal digits of nonce and proof.
const DIGITS: usize = 10;
/// The length of an id without bucket and prefix, in bytes.
const FRAME: usize = "b--/".len() + 2 * DIGITS;

/// The place of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A bucket for this volume alone.
    Bucket(String),
    /// A prefix in a bucket of many volumes.
    Prefix {
        /// The bucket.
        bucket: String,
        /// The prefix without a slash at its end.
        prefix: String,
    },
}

impl Place {
    /// The bucket.
    #[must_use]
    pub fn bucket(&self) -> &str {
        match self {
            Self::Bucket(bucket) | Self::Prefix { bucket, .. } => bucket,
        }
    }

    /// The prefix with its final slash, as keys begin; `None` for a bucket of its own.
    #[must_use]
    pub fn prefix(&self) -> Option<String> {
        match self {
            Self::Bucket(_) => None,
            Self::Prefix { prefix, .. } => Some(format!("{prefix}/")),
        }
    }
}

/// The longest prefix in this bucket, in bytes, with which the id keeps to its limit.
#[must_use]
pub fn prefix_max(bucket: &str) -> usize {
    ID_MAX.saturating_sub(FRAME + bucket.len() + "/".len())
}

/// The id of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeId {
    /// An id in our form.
    Ours {
        /// The place of the volume.
        place: Place,
        /// A digest of the request's name.
        nonce: String,
        /// A digest of the nonce and the place, salted with the cluster's id.
        proof: String,
    },
    /// The plain name of a bucket, as in release 2.2.
    Plain(String),
}

impl VolumeId {
    /// The id of the volume that this cluster creates for a request.
    #[must_use]
    pub fn new(cluster: &Cluster, request: &str, place: Place) -> Self {
        let nonce = nonce(cluster, request);
        let proof = proof(cluster, &nonce, &place);
        Self::Ours { place, nonce, proof }
    }

    /// Parses the id of a call; `None` if neither this release nor release 2.2 can have made it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let Some((head, rest)) = text.split_once('/') else {
            return bucket_name::is_valid(text).then(|| Self::Plain(text.to_owned()));
        };
        let mut words = head.split('-');
        let (mode, nonce, proof) = (words.next()?, words.next()?, words.next()?);
        let is_digest = |it: &str| it.len() == DIGITS && it.bytes().all(|b| b.is_ascii_hexdigit());
        if words.next().is_some() || !is_digest(nonce) || !is_digest(proof) {
            return None;
        }
        let place = match mode {
            "b" => Place::Bucket(rest.to_owned()),
            "p" => {
                let (bucket, prefix) = rest.split_once('/')?;
                if prefix.is_empty() || prefix.ends_with('/') {
                    return None;
                }
                Place::Prefix { bucket: bucket.to_owned(), prefix: prefix.to_owned() }
            }
            _ => return None,
        };
        let ours = Self::Ours { nonce: nonce.to_owned(), proof: proof.to_owned(), place };
        bucket_name::is_valid(ours.bucket()).then_some(ours)
    }

    /// The place of the volume.
    #[must_use]
    pub fn place(&self) -> Place {
        match self {
            Self::Ours { place, .. } => place.clone(),
            Self::Plain(bucket) => Place::Bucket(bucket.clone()),
        }
    }

    /// The bucket.
    #[must_use]
    pub fn bucket(&self) -> &str {
        match self {
            Self::Ours { place, .. } => place.bucket(),
            Self::Plain(bucket) => bucket,
        }
    }

    /// Whether this cluster made the id.
    #[must_use]
    pub fn is_of(&self, cluster: &Cluster) -> bool {
        match self {
            Self::Ours { place, nonce, proof: said } => *said == proof(cluster, nonce, place),
            Self::Plain(_) => false,
        }
    }

    /// Whether the id was made for the request of this name; always false for a plain id.
    #[must_use]
    pub fn is_for(&self, cluster: &Cluster, request: &str) -> bool {
        match self {
            Self::Ours { nonce: said, .. } => *said == nonce(cluster, request),
            Self::Plain(_) => false,
        }
    }

    /// Whether a name has the form of release 2.2's buckets: `csi-s3-` and a UUID.
    #[must_use]
    pub fn is_named_as_by_release_2_2(&self) -> bool {
        let Self::Plain(bucket) = self else { return false };
        let Some(uuid) = bucket.strip_prefix("csi-s3-") else { return false };
        let groups: Vec<_> = uuid.split('-').collect();
        let is_hex = |it: &&str| it.bytes().all(|b| b.is_ascii_hexdigit());
        groups.iter().map(|it| it.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(is_hex)
    }
}

fn nonce(cluster: &Cluster, request: &str) -> String {
    cluster.digest(&["request", request], DIGITS)
}

fn proof(cluster: &Cluster, nonce: &str, place: &Place) -> String {
    match place {
        Place::Bucket(bucket) => cluster.digest(&["bucket", nonce, bucket], DIGITS),
        Place::Prefix { bucket, prefix } => cluster.digest(&["prefix", nonce, bucket, prefix], DIGITS),
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(bucket) => f.write_str(bucket),
            Self::Ours { place: Place::Bucket(bucket), nonce, proof } => {
                write!(f, "b-{nonce}-{proof}/{bucket}")
            }
            Self::Ours { place: Place::Prefix { bucket, prefix }, nonce, proof } => {
                write!(f, "p-{nonce}-{proof}/{bucket}/{prefix}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        Cluster::new("uid-1")
    }

    fn places() -> [Place; 2] {
        let prefix = Place::Prefix { bucket: "shared".into(), prefix: "team/pvc-1".into() };
        [Place::Bucket("csi-s3-x".into()), prefix]
    }

    #[test]
    fn an_id_says_mode_bucket_and_prefix_and_that_this_cluster_made_it() {
        for place in places() {
            let id = VolumeId::new(&cluster(), "pvc-1", place.clone());
            let read = VolumeId::parse(&id.to_string()).unwrap();
            assert_eq!((&read, read.place()), (&id, place));
            assert!(read.is_of(&cluster()) && !read.is_of(&Cluster::new("uid-2")));
            assert!(read.is_for(&cluster(), "pvc-1") && !read.is_for(&cluster(), "pvc-2"));
        }
        assert_eq!(places()[1].prefix().as_deref(), Some("team/pvc-1/"));
    }

    #[test]
    fn an_id_that_was_edited_proves_nothing() {
        let id = VolumeId::new(&cluster(), "pvc-1", places()[1].clone()).to_string();
        for edited in
            [id.replace("shared", "others"), id.replace("team/pvc-1", "team"), id.replacen('p', "b", 1)]
        {
            let read = VolumeId::parse(&edited);
            assert!(read.is_none_or(|it| !it.is_of(&cluster())), "{edited}");
        }
    }

    #[test]
    fn two_requests_for_one_place_have_two_ids() {
        let place = places()[1].clone();
        assert_ne!(VolumeId::new(&cluster(), "a", place.clone()), VolumeId::new(&cluster(), "b", place));
    }

    #[test]
    fn the_longest_bucket_and_prefix_fit_csi_s_limit() {
        let bucket = "b".repeat(63);
        let prefix = "p".repeat(prefix_max(&bucket));
        let id = VolumeId::new(&cluster(), "pvc-1", Place::Prefix { bucket, prefix });
        assert_eq!(id.to_string().len(), ID_MAX);
        assert!(prefix_max(&"b".repeat(63)) >= "pvc-01234567-0123-0123-0123-0123456789ab".len());
    }

    #[test]
    fn a_plain_name_is_a_bucket_of_release_2_2_if_it_looks_so() {
        let id = VolumeId::parse("csi-s3-01234567-89ab-cdef-0123-456789abcdef").unwrap();
        assert!(id.is_named_as_by_release_2_2() && !id.is_of(&cluster()));
        assert_eq!(id.place(), Place::Bucket(id.to_string()));
        for other in ["csi-s3-1", "csi-s3-01234567-89ab-cdef-0123-456789abcdeg", "photos"] {
            assert!(!VolumeId::parse(other).unwrap().is_named_as_by_release_2_2(), "{other}");
        }
    }

    #[test]
    fn what_can_be_no_id_of_ours_is_none() {
        for text in [
            "",
            "A_B",
            "a/b",
            "b-0123456789-0123456789/",
            "b-0123456789-0123456789/UPPER",
            "b-0123456789-0123456789/bucket/prefix",
            "b-0123456789-012345678g/bucket",
            "b-0123456789/bucket",
            "p-0123456789-0123456789/bucket",
            "p-0123456789-0123456789/bucket/",
            "p-0123456789-0123456789/bucket/prefix/",
            "p-0123456789-0123456789-0/bucket/prefix",
            "x-0123456789-0123456789/bucket",
        ] {
            assert_eq!(VolumeId::parse(text), None, "{text}");
        }
    }
}
