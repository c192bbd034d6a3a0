//! The kinds of stores, and their differences from S3. Enters: the name of an endpoint, and the headers of answers to the mount's own
//! requests. Leaves: a kind and its declared properties. Pure.
//!
//! Never here: a request. The treatment of conditional writes by each kind is declared from its sources and from tests, never tried out: a
//! trial would overwrite an object on a store that ignores conditions.

use http::HeaderMap;

use crate::s3::answer::text;

/// A kind of store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreKind {
    /// AWS S3.
    Aws,
    /// RING, ARTESCA, Zenko, CloudServer.
    Scality,
    /// MinIO.
    Minio,
    /// Ceph's RADOS gateway.
    Ceph,
    /// Garage.
    Garage,
    /// versitygw.
    Versitygw,
    /// Cloudflare R2.
    R2,
    /// Scaleway's object storage.
    Scaleway,
    /// Google Cloud Storage, by its XML API.
    Gcs,
    /// Any other store.
    Generic,
}

/// The store's treatment of a condition of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Condition {
    /// The store honours the condition, or refuses it with 501 at the first request.
    Kept,
    /// The store ignores the condition, or did in releases still in use: the condition is sent, after a HEAD that checks it.
    Ignored,
    /// The store answers 501 to the condition.
    Refused,
}

impl Condition {
    /// The treatment in a word.
    fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Ignored => "ignored",
            Self::Refused => "refused",
        }
    }
}

/// The treatment of the conditions on the object that a request replaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Conditions {
    /// `If-None-Match: *`.
    pub(crate) absent: Condition,
    /// `If-Match` with an ETag.
    pub(crate) version: Condition,
}

impl Conditions {
    const KEPT: Self = Self { absent: Condition::Kept, version: Condition::Kept };
    const IGNORED: Self = Self { absent: Condition::Ignored, version: Condition::Ignored };
}

/// A store's limits on the parts of an upload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartLimits {
    /// Most parts of one object.
    pub parts_max: u32,
    /// Whether all parts but the last must have the same size.
    pub are_equal: bool,
}

impl Default for PartLimits {
    fn default() -> Self {
        Self { parts_max: 10_000, are_equal: false }
    }
}

/// Properties of a kind, known before the first request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Profile {
    /// Conditions on PutObject.
    pub(crate) put: Conditions,
    /// Conditions on CompleteMultipartUpload.
    pub(crate) complete: Conditions,
    /// Conditions on the target of a CopyObject. All kinds honour the condition on its source.
    pub(crate) copy: Conditions,
    /// Conditions on DeleteObject: If-Match alone.
    pub(crate) delete: Conditions,
    /// Whether the bucket is in the path of URLs: such a store often has no host names for buckets, since these need configuration.
    pub(crate) path_style: bool,
    /// Region to sign for if no setting names one.
    pub(crate) region: &'static str,
    pub(crate) parts: PartLimits,
    /// Whether the store decompresses objects with `Content-Encoding: gzip`, unless the request accepts gzip.
    pub(crate) decompresses: bool,
}

impl StoreKind {
    /// The kind's name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::Scality => "scality",
            Self::Minio => "minio",
            Self::Ceph => "ceph",
            Self::Garage => "garage",
            Self::Versitygw => "versitygw",
            Self::R2 => "r2",
            Self::Scaleway => "scaleway",
            Self::Gcs => "gcs",
            Self::Generic => "generic",
        }
    }

    pub(crate) fn profile(self) -> Profile {
        const KEPT: Conditions = Conditions::KEPT;
        const IGNORED: Conditions = Conditions::IGNORED;
        let like_aws = Profile {
            put: KEPT,
            complete: KEPT,
            copy: KEPT,
            delete: KEPT,
            path_style: false,
            region: "us-east-1",
            parts: PartLimits::default(),
            decompresses: false,
        };
        // AWS honours conditions on copies and deletes only since 2025, long after those on uploads.
        let others = Profile { copy: IGNORED, delete: IGNORED, ..like_aws };
        let own_names = Profile { path_style: true, ..others };
        // These stores ignore If-Match if the key does not exist, and would create the object.
        let if_there = Conditions { version: Condition::Ignored, ..KEPT };
        match self {
            Self::Aws => like_aws,
            Self::Generic => others,
            Self::Minio => own_names,
            Self::Versitygw => Profile { put: if_there, complete: if_there, ..own_names },
            // CloudServer's PutObject and CompleteMultipartUpload ignore every condition.
            Self::Scality => Profile { put: IGNORED, complete: IGNORED, ..own_names },
            // The gateway honours the condition on PutObject; on CompleteMultipartUpload only since 2025.
            Self::Ceph => Profile { complete: IGNORED, ..own_names },
            Self::Garage => Profile { put: IGNORED, complete: IGNORED, region: "garage", ..own_names },
            // R2 documents conditions of PutObject, but none of CompleteMultipartUpload.
            Self::R2 => Profile {
                complete: IGNORED,
                region: "auto",
                parts: PartLimits { are_equal: true, ..PartLimits::default() },
                ..own_names
            },
            Self::Scaleway => {
                Profile { parts: PartLimits { parts_max: 1000, ..PartLimits::default() }, ..others }
            }
            // Google documents If-None-Match for reads only.
            Self::Gcs => {
                Profile { put: IGNORED, complete: IGNORED, region: "auto", decompresses: true, ..own_names }
            }
        }
    }

    /// The requests after a HEAD of the object, because the store may not honour their condition.
    pub fn asks_before(self) -> Vec<&'static str> {
        let profile = self.profile();
        let requests = [
            ("PutObject", profile.put),
            ("CompleteMultipartUpload", profile.complete),
            ("CopyObject", profile.copy),
            ("DeleteObject", profile.delete),
        ];
        requests.into_iter().filter(|(_, kept)| *kept != Conditions::KEPT).map(|(name, _)| name).collect()
    }

    /// The declared treatment of each condition that the engine sends: the request, its header, and "kept", "ignored" or "refused".
    pub fn conditions(self) -> Vec<(&'static str, &'static str, &'static str)> {
        let profile = self.profile();
        let of = |request, conditions: Conditions| {
            [
                (request, "If-None-Match", conditions.absent.word()),
                (request, "If-Match", conditions.version.word()),
            ]
        };
        let makes = [
            of("PutObject", profile.put),
            of("CompleteMultipartUpload", profile.complete),
            of("CopyObject", profile.copy),
        ];
        let others = [
            ("CopyObject", "x-amz-copy-source-if-match", Condition::Kept.word()),
            ("DeleteObject", "If-Match", profile.delete.version.word()),
        ];
        makes.into_iter().flatten().chain(others).collect()
    }

    /// The kind of the store, if the host name of its endpoint shows it. No endpoint (`None`) means AWS.
    pub(crate) fn of_endpoint(host: Option<&str>) -> Option<Self> {
        let Some(host) = host else { return Some(Self::Aws) };
        let host = host.to_ascii_lowercase();
        let of_provider = [
            ("amazonaws.com", Self::Aws),
            ("amazonaws.com.cn", Self::Aws),
            ("r2.cloudflarestorage.com", Self::R2),
            ("scw.cloud", Self::Scaleway),
            ("googleapis.com", Self::Gcs),
        ];
        let is_below = |domain: &str| {
            host.strip_suffix(domain).is_some_and(|left| left.is_empty() || left.ends_with('.'))
        };
        if let Some((_, kind)) = of_provider.into_iter().find(|(domain, _)| is_below(domain)) {
            return Some(kind);
        }
        host.split(['.', '-']).find_map(|word| match word {
            "scality" | "artesca" | "zenko" => Some(Self::Scality),
            "minio" => Some(Self::Minio),
            "ceph" | "rgw" => Some(Self::Ceph),
            "garage" => Some(Self::Garage),
            "versitygw" => Some(Self::Versitygw),
            _ => None,
        })
    }

    /// The kind that the headers of an answer show; `None` for Garage, among others.
    pub(crate) fn of_answer(headers: &HeaderMap) -> Option<Self> {
        let server = text(headers, "server").unwrap_or_default().to_ascii_lowercase();
        let has = |prefix: &str| headers.keys().any(|name| name.as_str().starts_with(prefix));
        match server.as_str() {
            "amazons3" => Some(Self::Aws),
            "s3 server" => Some(Self::Scality),
            _ if server.starts_with("minio") || has("x-minio-") => Some(Self::Minio),
            _ if server.starts_with("versitygw") => Some(Self::Versitygw),
            _ if has("x-guploader-") => Some(Self::Gcs),
            _ if server.starts_with("ceph object gateway") || has("x-rgw-") => Some(Self::Ceph),
            // A proxy may have replaced the gateway's name. Its transaction ids begin with "tx" and digits, and have names behind dashes.
            _ => {
                let id = text(headers, "x-amz-request-id")?;
                (id.starts_with("tx0000") && id.contains('-')).then_some(Self::Ceph)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn a_kind_says_before_which_requests_it_must_be_asked() {
        assert_eq!(StoreKind::Aws.asks_before(), Vec::<&str>::new());
        assert_eq!(StoreKind::Minio.asks_before(), ["CopyObject", "DeleteObject"]);
        assert_eq!(StoreKind::Scality.asks_before().len(), 4);
        assert!(StoreKind::Aws.conditions().iter().all(|(.., fate)| *fate == "kept"));
        let of = |kind: StoreKind, request, header| {
            let rows = kind.conditions();
            let row = rows.iter().find(|(of, named, _)| (*of, *named) == (request, header));
            row.map(|(.., fate)| *fate)
        };
        assert_eq!(of(StoreKind::Versitygw, "PutObject", "If-None-Match"), Some("kept"));
        assert_eq!(of(StoreKind::Versitygw, "PutObject", "If-Match"), Some("ignored"));
        assert_eq!(of(StoreKind::Minio, "DeleteObject", "If-Match"), Some("ignored"));
    }

    #[test]
    fn a_kind_is_known_by_the_words_of_the_endpoints_name() {
        use StoreKind::{Aws, Ceph, Garage, Gcs, Minio, R2, Scaleway, Scality, Versitygw};
        for (host, kind) in [
            (None, Some(Aws)),
            (Some("s3.eu-west-3.amazonaws.com"), Some(Aws)),
            (Some("vpce-1.s3.us-east-1.vpce.amazonaws.com"), Some(Aws)),
            (Some("s3.cn-north-1.amazonaws.com.cn"), Some(Aws)),
            (Some("notamazonaws.com"), None),
            (Some("minio.example.com"), Some(Minio)),
            (Some("MINIO"), Some(Minio)),
            (Some("garage.garage.svc.cluster.local"), Some(Garage)),
            (Some("rook-ceph-rgw-store.rook-ceph.svc"), Some(Ceph)),
            (Some("s3.artesca.local"), Some(Scality)),
            (Some("versitygw"), Some(Versitygw)),
            (Some("0123.r2.cloudflarestorage.com"), Some(R2)),
            (Some("0123.eu.r2.cloudflarestorage.com"), Some(R2)),
            (Some("s3.nl-ams.scw.cloud"), Some(Scaleway)),
            (Some("storage.googleapis.com"), Some(Gcs)),
            (Some("bucket.storage.googleapis.com"), Some(Gcs)),
            (Some("googleapis.com.example.com"), None),
            (Some("dominion.example.com"), None),
            (Some("127.0.0.1"), None),
        ] {
            assert_eq!(StoreKind::of_endpoint(host), kind, "{host:?}");
        }
    }

    #[test]
    fn a_kind_is_known_by_the_headers_of_its_answers() {
        use StoreKind::{Aws, Ceph, Gcs, Minio, Scality, Versitygw};
        for (name, value, kind) in [
            ("server", "AmazonS3", Some(Aws)),
            ("server", "S3 Server", Some(Scality)),
            ("server", "MinIO", Some(Minio)),
            ("server", "MinIO/RELEASE.2024", Some(Minio)),
            ("x-minio-deployment-id", "1", Some(Minio)),
            ("server", "VERSITYGW", Some(Versitygw)),
            ("server", "Ceph Object Gateway (tentacle)", Some(Ceph)),
            ("x-rgw-object-count", "1", Some(Ceph)),
            ("x-guploader-uploadid", "AB", Some(Gcs)),
            ("x-amz-request-id", "tx00000a1b2c3d4e5f60718-0065f1-zone", Some(Ceph)),
            ("x-amz-request-id", "318BC8BC148832E5", None),
            ("server", "nginx", None),
        ] {
            let pair = (HeaderName::from_static(name), HeaderValue::from_static(value));
            assert_eq!(StoreKind::of_answer(&HeaderMap::from_iter([pair])), kind, "{name}: {value}");
        }
        assert_eq!(StoreKind::of_answer(&HeaderMap::new()), None);
    }
}
