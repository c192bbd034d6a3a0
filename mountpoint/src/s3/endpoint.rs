//! The URL of a key: scheme, host and path, from the bucket's name and the user's configuration. Pure.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};

use super::{Config, Error, ErrorKind, Result};

/// A host to connect to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Authority {
    pub(super) tls: bool,
    /// Name or address, IPv6 without its brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Authority {
    /// Of `scheme://host:port`, as in a URI.
    pub(super) fn of_uri(uri: &http::Uri) -> Option<Self> {
        let tls = match uri.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let host = uri.host()?.trim_matches(['[', ']']).to_owned();
        Some(Self { tls, host, port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }) })
    }

    /// As it stands in the Host header: the port only where it is not the scheme's.
    pub(super) fn host_header(&self) -> String {
        let host = if self.host.parse::<Ipv6Addr>().is_ok() {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

/// The bucket's place on the network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Endpoint {
    pub(super) authority: Authority,
    /// Stands before each key, encoded: `/` or `/bucket/`, behind whatever path the endpoint URL had.
    base: String,
}

impl Endpoint {
    pub(super) fn new(config: &Config, region: &str) -> Result<Self> {
        let url = match &config.endpoint_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("https://s3.{region}.{}", dns_suffix(region)),
        };
        let wrong = |what: &str| {
            Error::new(ErrorKind::InvalidRequest, "endpoint").message(format!(
                "the endpoint URL {url:?} {what}; it should look like https://s3.example.com:9000"
            ))
        };
        let uri: http::Uri = url.parse().map_err(|_| wrong("is no URL"))?;
        let mut authority =
            Authority::of_uri(&uri).ok_or_else(|| wrong("needs http:// or https:// and a host"))?;
        if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
            return Err(wrong("carries a user name"));
        }
        if uri.query().is_some() {
            return Err(wrong("has a query"));
        }
        if config.bucket.is_empty() {
            return Err(Error::new(ErrorKind::InvalidRequest, "endpoint").message("the bucket has no name"));
        }
        let path_style = config.force_path_style || !fits_host(&config.bucket, &authority.host);
        let mut base = uri.path().trim_end_matches('/').to_owned() + "/";
        if path_style {
            encode_path(&mut base, &config.bucket);
            base.push('/');
        } else {
            authority.host = format!("{}.{}", config.bucket, authority.host);
        }
        Ok(Self { authority, base })
    }

    /// The request path of the bucket itself.
    pub(super) fn bucket_path(&self) -> &str {
        // With a path style bucket "/bucket" and "/bucket/" mean the same; AWS's own SDKs send the first.
        match self.base.len() {
            1 => &self.base,
            n => &self.base[..n - 1],
        }
    }

    /// The request path of a key, encoded once, nothing normalised: `a//../b` is a key like any other.
    pub(super) fn key_path(&self, key: &str) -> String {
        let mut path = String::with_capacity(self.base.len() + key.len() + key.len() / 4 + 64);
        path.push_str(&self.base);
        encode_path(&mut path, key);
        path
    }
}

/// Whether the bucket may stand before the host name.
fn fits_host(bucket: &str, host: &str) -> bool {
    let label = (3..=63).contains(&bucket.len())
        && bucket.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !bucket.starts_with('-')
        && !bucket.ends_with('-');
    // A bucket with dots has no wildcard certificate, and localhost no subdomains on most machines.
    let named = host.parse::<IpAddr>().is_err() && host != "localhost" && !host.ends_with(".localhost");
    label && named
}

fn dns_suffix(region: &str) -> &'static str {
    if region.starts_with("cn-") {
        "amazonaws.com.cn"
    } else if region.starts_with("eusc-") {
        "amazonaws.eu"
    } else {
        "amazonaws.com"
    }
}

/// Appends `text` as S3 encodes paths: everything but unreserved characters and `/`.
fn encode_path(into: &mut String, text: &str) {
    encode(into, text, true);
}

/// Appends `text` as S3 encodes query values: everything but unreserved characters.
pub(super) fn encode_query(into: &mut String, text: &str) {
    encode(into, text, false);
}

fn encode(into: &mut String, text: &str, keep_slash: bool) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => into.push(byte as char),
            b'/' if keep_slash => into.push('/'),
            _ => {
                let _ = write!(into, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(bucket: &str, url: Option<&str>) -> Endpoint {
        let config = Config { bucket: bucket.into(), endpoint_url: url.map(Into::into), ..Config::default() };
        Endpoint::new(&config, "eu-west-3").unwrap()
    }

    #[test]
    fn the_bucket_stands_in_the_host_where_dns_and_certificates_allow_it() {
        for (bucket, url, host, path) in [
            ("my-bucket", None, "my-bucket.s3.eu-west-3.amazonaws.com", "/k"),
            ("my.bucket", None, "s3.eu-west-3.amazonaws.com", "/my.bucket/k"),
            ("MyBucket", None, "s3.eu-west-3.amazonaws.com", "/MyBucket/k"),
            ("b_c", None, "s3.eu-west-3.amazonaws.com", "/b_c/k"),
            ("bucket", Some("http://127.0.0.1:9000"), "127.0.0.1:9000", "/bucket/k"),
            ("bucket", Some("http://[::1]:9000/"), "[::1]:9000", "/bucket/k"),
            ("bucket", Some("http://localhost"), "localhost", "/bucket/k"),
            ("bucket", Some("https://s3.example.com"), "bucket.s3.example.com", "/k"),
            ("bucket", Some("https://example.com/s3/"), "bucket.example.com", "/s3/k"),
        ] {
            let e = endpoint(bucket, url);
            assert_eq!((e.authority.host_header().as_str(), e.key_path("k").as_str()), (host, path));
        }
        assert_eq!(endpoint("bucket", Some("http://127.0.0.1")).bucket_path(), "/bucket");
        assert_eq!(endpoint("bucket", None).bucket_path(), "/");
    }

    #[test]
    fn path_style_when_asked() {
        let config = Config { bucket: "bucket".into(), force_path_style: true, ..Config::default() };
        let e = Endpoint::new(&config, "cn-north-1").unwrap();
        assert_eq!(e.authority.host, "s3.cn-north-1.amazonaws.com.cn");
        assert_eq!(e.key_path("k"), "/bucket/k");
    }

    #[test]
    fn any_key_is_encoded_once_and_never_normalised() {
        let e = endpoint("bucket", None);
        assert_eq!(e.key_path("a//../b c+ü%\u{1}~"), "/a//../b%20c%2B%C3%BC%25%01~");
        assert_eq!(e.key_path("/lead"), "//lead");
    }

    #[test]
    fn an_endpoint_that_is_no_plain_url_is_refused() {
        for url in ["example.com", "ftp://x", "http://u:p@x", "http://x/?a=b", "http://"] {
            let config = Config { bucket: "b".into(), endpoint_url: Some(url.into()), ..Config::default() };
            assert!(Endpoint::new(&config, "r").is_err(), "{url}");
        }
    }
}
