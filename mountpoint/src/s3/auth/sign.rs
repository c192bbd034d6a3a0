//! AWS Signature Version 4 for the engine's requests.
//!
//! The cryptography comes from `aws-sigv4`, but this file builds the canonical request. The library would derive the signing key (four
//! HMACs) and copy all headers for every request. The engine's requests are already in canonical form: path encoded once, query sorted,
//! header names in lower case. A test compares both on random requests.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::sign::{v4, v4a};
use base16ct::lower;
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};
use time::OffsetDateTime;
use time::macros::format_description;

use crate::sync::{Arc, Mutex};

/// The service and region in the scope of a signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Signing {
    /// The name of the service.
    pub(crate) service: &'static str,
    /// The region; `None`: every region at once, with SigV4A.
    pub(crate) region: Option<String>,
}

impl Signing {
    pub(crate) fn of(service: &'static str, region: &str) -> Self {
        Self { service, region: Some(region.to_owned()) }
    }
}

/// SHA-256 of an empty body.
pub(crate) const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// The value in place of a body's hash: the checksum header and TLS protect the body.
pub(crate) const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";

const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
/// The header with the regions for which a SigV4A signature is valid.
const REGION_SET: HeaderName = HeaderName::from_static("x-amz-region-set");
const EVERY_REGION: HeaderValue = HeaderValue::from_static("*");
/// Longest time after 1970 that can be signed, up to the end of 9998: the year has four digits.
const SIGNABLE: Duration = Duration::from_secs(253_370_764_799);

/// Signs requests for one region with SigV4, or for every region with SigV4A. Caches the signing key of the day.
#[derive(Debug)]
pub(crate) struct Signer {
    region: String,
    signing: Signing,
    key: Mutex<Option<Arc<DayKey>>>,
}

struct DayKey {
    /// The day of the key; empty for a key of SigV4A, which is valid on every day.
    day: String,
    access_key_id: String,
    /// Hash of the secret. It shows a rotation without keeping the secret.
    secret_hash: [u8; 32],
    key: [u8; 32],
}

impl std::fmt::Debug for DayKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DayKey").field("day", &self.day).finish_non_exhaustive()
    }
}

impl Signer {
    /// Makes a signer. `region` is the client's; `signing` comes from the endpoint.
    pub(crate) fn new(region: &str, signing: Signing) -> Self {
        Self { region: region.to_owned(), signing, key: Mutex::new(None) }
    }

    pub(crate) fn region(&self) -> &str {
        &self.region
    }

    /// Adds the signing headers. `headers` contains all other headers to sign (`host` among them); `target` is path and query in canonical
    /// form.
    pub(crate) fn sign(
        &self,
        method: &http::Method,
        target: &str,
        headers: &mut HeaderMap,
        payload_hash: &str,
        credentials: &Credentials,
        at: SystemTime,
    ) -> Result<(), http::header::InvalidHeaderValue> {
        let stamp = timestamp(at);
        let day = &stamp[..8];
        let service = self.signing.service;
        if self.signing.region.is_none() {
            headers.insert(REGION_SET, EVERY_REGION);
        }
        headers.insert(CONTENT_SHA256, HeaderValue::from_str(payload_hash)?);
        headers.insert(DATE, HeaderValue::from_str(&stamp)?);
        if let Some(token) = credentials.session_token() {
            let mut token = HeaderValue::from_str(token)?;
            token.set_sensitive(true);
            headers.insert(SECURITY_TOKEN, token);
        }
        let (canonical, signed) = canonical_request(method, target, headers, payload_hash);
        let (algorithm, scope) = match &self.signing.region {
            Some(region) => ("AWS4-HMAC-SHA256", format!("{day}/{region}/{service}/aws4_request")),
            None => ("AWS4-ECDSA-P256-SHA256", format!("{day}/{service}/aws4_request")),
        };
        let mut to_sign = String::with_capacity(160 + scope.len());
        let _ = write!(to_sign, "{algorithm}\n{stamp}\n{scope}\n");
        to_sign.push_str(&lower::encode_string(&Sha256::digest(canonical.as_bytes())));
        let key = self.day_key(credentials, day, at);
        let signature = match self.signing.region {
            Some(_) => v4::calculate_signature(key.key, to_sign.as_bytes()),
            None => v4a::calculate_signature(key.key, to_sign.as_bytes()),
        };
        let mut authorization = HeaderValue::try_from(format!(
            "{algorithm} Credential={}/{scope}, SignedHeaders={signed}, Signature={signature}",
            credentials.access_key_id(),
        ))?;
        authorization.set_sensitive(true);
        headers.insert(http::header::AUTHORIZATION, authorization);
        Ok(())
    }

    fn day_key(&self, credentials: &Credentials, day: &str, at: SystemTime) -> Arc<DayKey> {
        let secret_hash: [u8; 32] = Sha256::digest(credentials.secret_access_key().as_bytes()).into();
        let day = if self.signing.region.is_some() { day } else { "" };
        let kept = self.key.lock().clone();
        if let Some(kept) = kept
            && kept.day == day
            && kept.access_key_id == credentials.access_key_id()
            && kept.secret_hash == secret_hash
        {
            return kept;
        }
        let secret = credentials.secret_access_key();
        let mut key = [0; 32];
        match &self.signing.region {
            Some(region) => {
                let derived = v4::generate_signing_key(secret, at, region, self.signing.service);
                key.copy_from_slice(derived.as_ref());
            }
            None => {
                let derived = v4a::generate_signing_key(credentials.access_key_id(), secret);
                key.copy_from_slice(derived.as_ref());
            }
        }
        let fresh = Arc::new(DayKey {
            day: day.to_owned(),
            access_key_id: credentials.access_key_id().to_owned(),
            secret_hash,
            key,
        });
        *self.key.lock() = Some(Arc::clone(&fresh));
        fresh
    }
}

/// SHA-256 of a body in pieces, as lower-case hex.
pub(crate) fn payload_sha256(pieces: &[bytes::Bytes]) -> String {
    let mut hash = Sha256::new();
    pieces.iter().for_each(|p| hash.update(p));
    lower::encode_string(&hash.finalize())
}

/// The canonical request, and the list of its signed headers.
fn canonical_request(
    method: &http::Method,
    target: &str,
    headers: &HeaderMap,
    payload_hash: &str,
) -> (String, String) {
    let mut lines: Vec<(&str, &HeaderValue)> = headers
        .iter()
        .filter(|(name, _)| !UNSIGNED.contains(name))
        .map(|(name, value)| (name.as_str(), value))
        .collect();
    lines.sort_unstable_by_key(|(name, _)| *name);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut signed = String::with_capacity(lines.len() * 20);
    let mut canonical = String::with_capacity(target.len() + 512);
    let _ = write!(canonical, "{method}\n{path}\n{query}\n");
    for (i, (name, value)) in lines.iter().enumerate() {
        canonical.push_str(name);
        canonical.push(':');
        push_value(&mut canonical, value.as_bytes());
        canonical.push('\n');
        if i > 0 {
            signed.push(';');
        }
        signed.push_str(name);
    }
    let _ = write!(canonical, "\n{signed}\n{payload_hash}");
    (canonical, signed)
}

/// Headers that are not signed, because proxies may change them.
const UNSIGNED: [HeaderName; 3] =
    [http::header::AUTHORIZATION, http::header::USER_AGENT, http::header::TRANSFER_ENCODING];

/// Appends a header value, with each run of blanks as one blank.
fn push_value(into: &mut String, value: &[u8]) {
    let text = String::from_utf8_lossy(value);
    for (i, word) in text.split([' ', '\t']).filter(|w| !w.is_empty()).enumerate() {
        if i > 0 {
            into.push(' ');
        }
        into.push_str(word);
    }
}

/// The time of a signature, such as `20260102T030405Z`.
fn timestamp(at: SystemTime) -> String {
    let stamp = format_description!("[year][month][day]T[hour][minute][second]Z");
    // [`Skew`] clamps the time to years of four digits.
    OffsetDateTime::from(at).format(stamp).unwrap_or_default()
}

/// The difference between the store's clock and this machine's, which is added to the local time before signing.
#[derive(Debug, Default)]
pub(crate) struct Skew(Mutex<Learned>);

#[derive(Debug, Default)]
struct Learned {
    is_behind: bool,
    by: Duration,
    times: u64,
}

impl Skew {
    /// The local time, corrected to the store's clock, within the years that can be signed.
    pub(crate) fn apply(&self, ours: SystemTime) -> SystemTime {
        let theirs = match *self.0.lock() {
            Learned { is_behind: false, by, .. } => ours.checked_add(by),
            Learned { is_behind: true, by, .. } => ours.checked_sub(by),
        };
        theirs.unwrap_or(ours).clamp(SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + SIGNABLE)
    }

    /// Learns the skew from the store's time and the local time at the same moment.
    pub(crate) fn learn(&self, ours: SystemTime, theirs: SystemTime) {
        let (is_behind, by) = match theirs.duration_since(ours) {
            Ok(ahead) => (false, ahead),
            Err(e) => (true, e.duration()),
        };
        let mut learned = self.0.lock();
        *learned = Learned { is_behind, by, times: learned.times + 1 };
    }

    /// Number of times that the skew was learned. A request signed before the last time may have been refused for its date.
    pub(crate) fn times_learned(&self) -> u64 {
        self.0.lock().times
    }
}

#[cfg(test)]
mod tests {
    use aws_sigv4::http_request::{
        PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
        UriPathNormalizationMode,
    };
    use proptest::prelude::*;

    use super::*;
    use crate::s3::url::encode_query;

    /// `region`: `None` for all.
    fn by_the_library(
        target: &str,
        region: Option<&str>,
        headers: &HeaderMap,
        credentials: &Credentials,
        at: SystemTime,
    ) -> String {
        let mut settings = SigningSettings::default();
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        let identity = credentials.clone().into();
        let params = match region {
            Some(region) => {
                let params = v4::SigningParams::builder().identity(&identity).region(region).name("s3");
                params.time(at).settings(settings).build().unwrap().into()
            }
            None => {
                let params = v4a::SigningParams::builder().identity(&identity).region_set("*").name("s3");
                params.time(at).settings(settings).build().unwrap().into()
            }
        };
        let uri = format!("http://{}{target}", headers["host"].to_str().unwrap());
        let lines = headers.iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap()));
        let body = SignableBody::Precomputed(UNSIGNED_PAYLOAD.to_owned());
        let request = SignableRequest::new("GET", uri, lines, body).unwrap();
        let (instructions, _) = aws_sigv4::http_request::sign(request, &params).unwrap().into_parts();
        instructions.headers().find(|(n, _)| *n == "authorization").unwrap().1.to_owned()
    }

    proptest! {
        #[test]
        fn our_signature_is_the_librarys(
            key in "[ -~]{0,30}",
            prefix in "[ -~äß]{0,20}",
            value in "[!-~]{1,10}( {1,3}[!-~]{1,10}){0,3}",
            token in proptest::option::of("[A-Za-z0-9+/=]{10,60}"),
            seconds in 0u64..4_000_000_000,
        ) {
            let config = crate::s3::Config {
                bucket: "bucket".into(),
                endpoint_url: Some("http://127.0.0.1:9000".into()),
                ..Default::default()
            };
            let endpoint = crate::s3::endpoint::Endpoint::new(&config, "eu-west-3").unwrap();
            let mut target = endpoint.key_path(&key) + "?list-type=2&prefix=";
            encode_query(&mut target, &prefix);
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let credentials = Credentials::new("AKID", "secret", token, None, "test");
            let mut headers = HeaderMap::new();
            headers.insert("host", HeaderValue::from_static("127.0.0.1:9000"));
            headers.insert("range", HeaderValue::from_static("bytes=0-5"));
            headers.insert("x-amz-storage-class", HeaderValue::from_str(&value).unwrap());
            // SigV4A takes a thousand times as long in a test build: one case of sixteen.
            let regions: &[_] = if seconds % 16 == 0 { &[Some("eu-west-3"), None] } else { &[Some("eu-west-3")] };
            for &region in regions {
                let expected = by_the_library(&target, region, &headers, &credentials, at);
                let signer = Signer::new("eu-west-3", Signing { service: "s3", region: region.map(Into::into) });
                for _ in 0..2 {
                    let mut signed = headers.clone();
                    signer
                        .sign(&http::Method::GET, &target, &mut signed, UNSIGNED_PAYLOAD, &credentials, at)
                        .unwrap();
                    prop_assert_eq!(signed["authorization"].to_str().unwrap(), &expected);
                    prop_assert_eq!(signed.get("x-amz-region-set").is_some(), region.is_none());
                }
            }
        }
    }

    #[test]
    fn a_rotated_secret_or_a_new_day_makes_a_new_key() {
        let signer = Signer::new("r", Signing::of("s3", "r"));
        let day = Duration::from_secs(86400);
        let at = SystemTime::UNIX_EPOCH + day;
        let one = Credentials::new("A", "s1", None, None, "test");
        let two = Credentials::new("A", "s2", None, None, "test");
        let key = |c, at| signer.day_key(c, &timestamp(at)[..8], at).key;
        let first = key(&one, at);
        assert_eq!(first, key(&one, at));
        assert_ne!(first, key(&two, at));
        assert_ne!(first, key(&one, at + day));
        assert_eq!(first, key(&one, at));
    }

    #[test]
    fn a_store_clock_at_the_end_of_time_is_signed_for_without_a_panic() {
        let (skew, signer) = (Skew::default(), Signer::new("r", Signing::of("s3", "r")));
        let ours = SystemTime::now();
        let credentials = Credentials::new("A", "s", None, None, "test");
        for theirs in [253_402_300_799_i64, -377_705_116_800, i64::MAX, i64::MIN, 0] {
            let seconds = Duration::from_secs(theirs.unsigned_abs());
            let epoch = SystemTime::UNIX_EPOCH;
            let at = if theirs < 0 { epoch.checked_sub(seconds) } else { epoch.checked_add(seconds) };
            let Some(at) = at else { continue };
            skew.learn(ours, at);
            for later in [Duration::ZERO, Duration::from_secs(86400 * 400)] {
                let mut headers = HeaderMap::new();
                let at = skew.apply(ours + later);
                signer.sign(&http::Method::GET, "/", &mut headers, EMPTY_SHA256, &credentials, at).unwrap();
                assert_eq!(headers["x-amz-date"].len(), "20260102T030405Z".len());
            }
        }
    }

    #[test]
    fn the_stores_clock_corrects_ours_in_both_directions() {
        let skew = Skew::default();
        let ours = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000);
        for theirs in [ours + Duration::from_secs(3600), ours - Duration::from_secs(3600)] {
            skew.learn(ours, theirs);
            assert_eq!(skew.apply(ours), theirs);
        }
    }
}
