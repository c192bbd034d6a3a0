//! The kinds of stores, and how each differs from S3. Enters: the name of an endpoint, the headers of an answer that the mount reads
//! anyway. Leaves: a kind and its declared properties. Pure.
//!
//! Never here: a request. What a kind does with conditional writes is declared from its sources and from tests, never tried out: a trial
//! would overwrite an object on a store that ignores conditions.

use http::HeaderMap;

use crate::s3::answer::text;

/// A kind of stores.
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
    /// Any other.
    Generic,
}

/// What becomes of `If-None-Match: *` on a request that makes an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Condition {
    /// The store keeps it; or refuses it with 501, which shows at the first upload.
    Kept,
    /// The store ignores it, or did in releases that are in use: it is sent, and the name is asked for first.
    Ignored,
    /// The store answers 501.
    Refused,
}

/// What is known of a kind before the first request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Profile {
    /// If-None-Match on PutObject.
    pub(crate) put: Condition,
    /// If-None-Match on CompleteMultipartUpload.
    pub(crate) complete: Condition,
    /// The bucket stands in the path: the host name of a bucket is one more thing to configure there, and often is not.
    pub(crate) path_style: bool,
    /// The region to sign for if no setting names one.
    pub(crate) region: &'static str,
}

impl StoreKind {
    /// What it is called in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::Scality => "scality",
            Self::Minio => "minio",
            Self::Ceph => "ceph",
            Self::Garage => "garage",
            Self::Versitygw => "versitygw",
            Self::Generic => "generic",
        }
    }

    pub(crate) fn profile(self) -> Profile {
        use Condition::{Ignored, Kept};
        let like_aws = Profile { put: Kept, complete: Kept, path_style: false, region: "us-east-1" };
        let own_names = Profile { path_style: true, ..like_aws };
        match self {
            Self::Aws | Self::Generic => like_aws,
            Self::Minio | Self::Versitygw => own_names,
            // CloudServer's PutObject and CompleteMultipartUpload look at no condition.
            Self::Scality => Profile { put: Ignored, complete: Ignored, ..own_names },
            // The gateway looks at it on PutObject; on CompleteMultipartUpload only since 2025.
            Self::Ceph => Profile { complete: Ignored, ..own_names },
            Self::Garage => Profile { put: Ignored, complete: Ignored, region: "garage", ..own_names },
        }
    }

    /// By the host of an endpoint; `None` for AWS's own.
    pub(crate) fn of_endpoint(host: Option<&str>) -> Option<Self> {
        let Some(host) = host else { return Some(Self::Aws) };
        let host = host.to_ascii_lowercase();
        if ["amazonaws.com", "amazonaws.com.cn"]
            .iter()
            .any(|it| host == *it || host.ends_with(&format!(".{it}")))
        {
            return Some(Self::Aws);
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

    /// By the headers of an answer. Garage's say nothing.
    pub(crate) fn of_answer(headers: &HeaderMap) -> Option<Self> {
        let server = text(headers, "server").unwrap_or_default().to_ascii_lowercase();
        let has = |prefix: &str| headers.keys().any(|name| name.as_str().starts_with(prefix));
        match server.as_str() {
            "amazons3" => Some(Self::Aws),
            "s3 server" => Some(Self::Scality),
            _ if server.starts_with("minio") || has("x-minio-") => Some(Self::Minio),
            _ if server.starts_with("versitygw") => Some(Self::Versitygw),
            _ if server.starts_with("ceph object gateway") || has("x-rgw-") => Some(Self::Ceph),
            // A proxy may have put its name in place of the gateway's. Transactions are tx, digits, and names behind dashes.
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
    fn a_kind_is_known_by_the_words_of_the_endpoints_name() {
        use StoreKind::{Aws, Ceph, Garage, Minio, Scality, Versitygw};
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
            (Some("dominion.example.com"), None),
            (Some("127.0.0.1"), None),
        ] {
            assert_eq!(StoreKind::of_endpoint(host), kind, "{host:?}");
        }
    }

    #[test]
    fn a_kind_is_known_by_the_headers_of_its_answers() {
        use StoreKind::{Aws, Ceph, Minio, Scality, Versitygw};
        for (name, value, kind) in [
            ("server", "AmazonS3", Some(Aws)),
            ("server", "S3 Server", Some(Scality)),
            ("server", "MinIO", Some(Minio)),
            ("server", "MinIO/RELEASE.2024", Some(Minio)),
            ("x-minio-deployment-id", "1", Some(Minio)),
            ("server", "VERSITYGW", Some(Versitygw)),
            ("server", "Ceph Object Gateway (tentacle)", Some(Ceph)),
            ("x-rgw-object-count", "1", Some(Ceph)),
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
