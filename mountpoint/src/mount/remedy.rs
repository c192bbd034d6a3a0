//! The remedy for a bucket that did not answer at the start: names the flag, the variable or the command that helps. Pure.

use crate::s3::{self, Error, ErrorKind};

/// The settings of a start that a remedy depends on.
#[derive(Clone, Debug)]
pub(super) struct Start {
    bucket: String,
    endpoint: Option<String>,
    has_prefix: bool,
    signs: bool,
    has_profile: bool,
    /// The variable that is missing from a pair of keys, while the other one is set.
    missing_key: Option<&'static str>,
}

impl Start {
    pub(super) fn of(config: &s3::Config, missing_key: Option<&'static str>) -> Self {
        Self {
            bucket: config.bucket.clone(),
            endpoint: config.endpoint_url.clone(),
            has_prefix: !config.prefix.is_empty(),
            signs: config.sign_requests,
            has_profile: config.profile.is_some(),
            missing_key,
        }
    }

    /// The error, with the next step for the user.
    pub(super) fn explained(&self, error: &Error) -> String {
        match self.remedy(error) {
            Some(remedy) => format!("{error}; {remedy}"),
            None => error.to_string(),
        }
    }

    /// The remedy for an error; `None` if the error names it already.
    fn remedy(&self, error: &Error) -> Option<String> {
        if let Some(remedy) = self.about_tls(&error.to_string()) {
            return Some(remedy);
        }
        Some(match error.kind() {
            ErrorKind::NoCredentials => return self.about_credentials(),
            // A file of certificates that can't be read.
            ErrorKind::InvalidRequest if error.operation() == "TLS" => {
                "check --ca-bundle, --extra-ca-bundle and AWS_CA_BUNDLE".to_owned()
            }
            ErrorKind::Denied => self.about_denial(error.code()),
            ErrorKind::NoSuchBucket | ErrorKind::NotFound => self.about_name(),
            ErrorKind::InvalidRequest if error.code() == Some("InvalidBucketName") => self.about_name(),
            ErrorKind::InvalidRequest
                if error.http_status() == Some(400) && error.code().is_none() && self.is_plain() =>
            {
                format!(
                    "if this port expects TLS, give --endpoint-url {}",
                    self.endpoint().replacen("http://", "https://", 1)
                )
            }
            ErrorKind::WrongRegion(Some(region)) => format!("give --region {region}"),
            ErrorKind::WrongRegion(None) => "find the bucket's region, and give it as --region".to_owned(),
            ErrorKind::BadAnswer | ErrorKind::Unsupported => format!(
                "no S3 store answers at {}: check host and port of --endpoint-url, a console often has a port of its own",
                self.endpoint()
            ),
            ErrorKind::Network | ErrorKind::Timeout => format!(
                "check --endpoint-url ({}) and the network on the way, proxies (HTTPS_PROXY, NO_PROXY) included",
                self.endpoint()
            ),
            // A wrong setting, which the error names.
            ErrorKind::InvalidRequest if error.http_status().is_none() => return None,
            _ => format!("mount-s3-ctl doctor {} examines the store, with the same flags", self.bucket),
        })
    }

    fn endpoint(&self) -> &str {
        self.endpoint.as_deref().unwrap_or("AWS")
    }

    /// Whether requests go without TLS.
    fn is_plain(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|url| url.starts_with("http://"))
    }

    /// The remedy for a mismatch of TLS and plain HTTP, or for a bad certificate, recognized by the texts of the libraries.
    fn about_tls(&self, said: &str) -> Option<String> {
        let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
        let (endpoint, is_plain) = (self.endpoint(), self.is_plain());
        Some(if says(&["CaUsedAsEndEntity"]) {
            "the store shows the certificate of an authority as its own: have that authority sign one for the store's name (CA:FALSE), and give the authority's as --ca-bundle".to_owned()
        } else if says(&["UnknownIssuer", "BadSignature"]) {
            "give the certificate of the authority that signed the store's: --ca-bundle FILE, or --extra-ca-bundle FILE beside the system's".to_owned()
        } else if says(&["NotValidForName", "not valid for name"]) {
            "give the --endpoint-url that stands in the certificate; --force-path-style leaves the bucket out of the host's name".to_owned()
        } else if says(&["certificate: Expired", "certificate expired"]) {
            "renew the certificate of the store, and check this machine's clock (timedatectl)".to_owned()
        } else if says(&["ProtocolVersion", "ServerTlsVersionIsDisabled", "ServerDoesNotSupportTls12Or13"]) {
            "the store speaks no TLS that is safe: turn on TLS 1.2 or 1.3 there, or give the --endpoint-url of a proxy before it that speaks one"
                .to_owned()
        } else if says(&["InvalidContentType"]) && !is_plain {
            format!(
                "this port speaks no TLS: give --endpoint-url {}",
                endpoint.replacen("https://", "http://", 1)
            )
        } else if is_plain && says(&["HTTPS server", "HTTPS port", "\\u{15}\\u{3}", "not HTTP"]) {
            format!(
                "this port speaks TLS: give --endpoint-url {}",
                endpoint.replacen("http://", "https://", 1)
            )
        } else {
            return None;
        })
    }

    fn about_credentials(&self) -> Option<String> {
        match self.missing_key {
            _ if self.has_profile => Some("`aws configure list` shows what is set".to_owned()),
            Some(missing) => {
                Some(format!("{missing} is not set, and the other key of the pair is: set both"))
            }
            None => None,
        }
    }

    fn about_denial(&self, code: Option<&str>) -> String {
        let bucket = &self.bucket;
        match code {
            Some("SignatureDoesNotMatch") => {
                "the secret key is not that of the access key, or a proxy changes requests: check AWS_SECRET_ACCESS_KEY or --profile".to_owned()
            }
            Some("InvalidAccessKeyId" | "InvalidClientTokenId") => {
                "the store does not know this access key: check AWS_ACCESS_KEY_ID or --profile, and --endpoint-url".to_owned()
            }
            Some("ExpiredToken" | "InvalidToken") => {
                "get new temporary keys (`aws sso login`, or AWS_SESSION_TOKEN with both keys)".to_owned()
            }
            _ if !self.signs => "the bucket is not public: leave --no-sign-request out".to_owned(),
            _ if self.has_prefix => format!(
                "these keys need s3:ListBucket for this --prefix; `mount-s3-ctl doctor {bucket}` with the same flags examines it"
            ),
            _ => format!(
                "these keys need s3:ListBucket on the bucket, or a --prefix that they may list; `mount-s3-ctl doctor {bucket}` with the same flags examines it"
            ),
        }
    }

    fn about_name(&self) -> String {
        let lower = self.bucket.to_ascii_lowercase();
        if lower != self.bucket {
            return format!("S3 takes lower-case names only: did you mean {lower}?");
        }
        format!("check the bucket's name, --endpoint-url ({}) and --region", self.endpoint())
    }
}
