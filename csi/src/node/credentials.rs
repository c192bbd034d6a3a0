//! Chooses the keys of a mount. Enters: the volume's attributes and the secrets of the call. Leaves: complete, well-formed keys, or an
//! error that names the field, never a value.
//!
//! Never here: a file, a log line.

use std::collections::HashMap;
use std::fmt;

use crate::contract::volume;
use crate::error::{Error, Result};
use crate::mounter::Credentials;

/// Keys of a Secret, as users write them.
pub const ACCESS_KEY_ID: &str = "access_key_id";
/// The secret that belongs to it.
pub const SECRET_ACCESS_KEY: &str = "secret_access_key";
/// The token of temporary keys; may be absent.
pub const SESSION_TOKEN: &str = "session_token";

/// What the kubelet adds has keys that begin so.
const OF_KUBELET: &str = "csi.storage.k8s.io/";

/// Longest key and secret: RING and AWS give 20 and 40 characters.
const KEY_MAX: usize = 128;
/// Longest token: AWS's are about a thousand characters, and a file holds any number.
const TOKEN_MAX: usize = 16 << 10;

/// What `authenticationSource` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthenticationSource {
    /// The driver's own keys, or the engine's chain if the driver has none.
    Driver,
    /// The Secret that the volume names.
    Secret,
}

impl AuthenticationSource {
    /// Out of a volume's attributes.
    ///
    /// # Errors
    /// `InvalidArgument` for a word that is neither.
    pub fn parse(attribute: Option<&str>) -> Result<Self> {
        match attribute.unwrap_or_default() {
            "" | "driver" => Ok(Self::Driver),
            "secret" => Ok(Self::Secret),
            other => Err(Error::invalid(format!(
                "{} {other:?} is unknown: write 'driver' or 'secret' into the volumeAttributes of the volume",
                volume::AUTHENTICATION_SOURCE
            ))),
        }
    }
}

impl fmt::Display for AuthenticationSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Driver => "driver",
            Self::Secret => "secret",
        })
    }
}

/// The keys to use, and whose they are. A volume with a Secret uses it, whatever it says of its source: whoever wrote
/// nodePublishSecretRef meant those keys, and the driver's may open more. One that says `secret` and comes with none at all uses the
/// driver's: so it is with volumes whose StorageClass names only the Secret of the provisioner.
///
/// # Errors
/// `InvalidArgument` if a Secret came and is not whole; those of the driver's keys where they are used.
pub fn resolve(
    secrets: &HashMap<String, String>,
    driver: impl FnOnce() -> Result<Option<Credentials>>,
) -> Result<(AuthenticationSource, Option<Credentials>)> {
    // The kubelet may put what it adds itself among the secrets.
    if secrets.keys().all(|key| key.starts_with(OF_KUBELET)) {
        return Ok((AuthenticationSource::Driver, driver()?));
    }
    let at = |key| secrets.get(key).map(String::as_str);
    let keys =
        checked(at(ACCESS_KEY_ID), at(SECRET_ACCESS_KEY), at(SESSION_TOKEN)).map_err(|(field, wrong)| {
            Error::invalid(format!(
                "the Secret of the volume (nodePublishSecretRef) is unusable: {} {wrong}",
                field.in_secret()
            ))
        })?;
    Ok((AuthenticationSource::Secret, Some(keys)))
}

/// Which of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The key's id.
    AccessKeyId,
    /// The secret.
    SecretAccessKey,
    /// The token.
    SessionToken,
}

impl Field {
    fn in_secret(self) -> &'static str {
        match self {
            Self::AccessKeyId => ACCESS_KEY_ID,
            Self::SecretAccessKey => SECRET_ACCESS_KEY,
            Self::SessionToken => SESSION_TOKEN,
        }
    }
}

/// Trims and checks. A token of white space is none.
///
/// # Errors
/// The field, and what is wrong with it, as the end of a sentence.
pub fn checked(
    key: Option<&str>,
    secret: Option<&str>,
    token: Option<&str>,
) -> std::result::Result<Credentials, (Field, String)> {
    let required = |field, value: Option<&str>, allowed: fn(char) -> bool, words| {
        let value = value.unwrap_or_default().trim();
        if value.is_empty() {
            Err((field, "is missing or empty".to_owned()))
        } else if value.len() > KEY_MAX {
            Err((field, format!("is longer than {KEY_MAX} characters")))
        } else if !value.chars().all(allowed) {
            Err((field, format!("may hold only {words}")))
        } else {
            Ok(value.to_owned())
        }
    };
    let access_key_id =
        required(Field::AccessKeyId, key, |c| c.is_ascii_alphanumeric(), "letters and digits")?;
    let secret_access_key = required(
        Field::SecretAccessKey,
        secret,
        |c| c.is_ascii_alphanumeric() || "/+-=".contains(c),
        "letters, digits and '/', '+', '-', '='",
    )?;
    let token = token.map(str::trim).filter(|token| !token.is_empty());
    if token.is_some_and(|token| token.len() > TOKEN_MAX || !token.chars().all(|c| c.is_ascii_graphic())) {
        let wrong = format!("must be at most {TOKEN_MAX} printable characters without white space");
        return Err((Field::SessionToken, wrong));
    }
    Ok(Credentials { access_key_id, secret_access_key, session_token: token.map(str::to_owned) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn secrets(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn of_driver() -> Credentials {
        Credentials { access_key_id: "DRIVER".into(), secret_access_key: "d".into(), session_token: None }
    }

    #[test]
    fn the_source_is_driver_unless_the_volume_says_secret() {
        assert_eq!(AuthenticationSource::parse(None).unwrap(), AuthenticationSource::Driver);
        assert_eq!(AuthenticationSource::parse(Some("")).unwrap(), AuthenticationSource::Driver);
        assert_eq!(AuthenticationSource::parse(Some("driver")).unwrap(), AuthenticationSource::Driver);
        assert_eq!(AuthenticationSource::parse(Some("secret")).unwrap(), AuthenticationSource::Secret);
        let error = AuthenticationSource::parse(Some("pod")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("authenticationSource"), "{error}");
    }

    #[test]
    fn a_secret_is_trimmed_and_its_token_kept() {
        let given = secrets(&[
            (ACCESS_KEY_ID, " AKIA1\n"),
            (SECRET_ACCESS_KEY, "a/+-=\n"),
            (SESSION_TOKEN, "tok en".replace(' ', "/").as_str()),
            ("region", "ignored"),
        ]);
        let keys = resolve(&given, || Ok(Some(of_driver()))).unwrap().1.unwrap();
        assert_eq!(keys.access_key_id, "AKIA1");
        assert_eq!(keys.secret_access_key, "a/+-=");
        assert_eq!(keys.session_token.as_deref(), Some("tok/en"));
        let without = secrets(&[(ACCESS_KEY_ID, "A"), (SECRET_ACCESS_KEY, "b"), (SESSION_TOKEN, " \n")]);
        let keys = resolve(&without, || Ok(None)).unwrap().1.unwrap();
        assert_eq!(keys.session_token, None);
    }

    #[test]
    fn the_driver_s_keys_are_used_unless_the_volume_brings_its_own() {
        let given = secrets(&[(ACCESS_KEY_ID, "A"), (SECRET_ACCESS_KEY, "b")]);
        let driver = of_driver();
        let (source, keys) = resolve(&given, || Ok(Some(driver.clone()))).unwrap();
        assert_eq!((source, keys.unwrap().access_key_id.as_str()), (AuthenticationSource::Secret, "A"));
        for none in [HashMap::new(), secrets(&[("csi.storage.k8s.io/serviceAccount.tokens", "{}")])] {
            assert!(
                resolve(&none, || Ok(Some(driver.clone()))).unwrap()
                    == (AuthenticationSource::Driver, Some(of_driver()))
            );
        }
        assert!(resolve(&HashMap::new(), || Ok(None)).unwrap().1.is_none());
    }

    #[test]
    fn a_broken_secret_is_named_by_its_field_and_never_shown() {
        let long = "x".repeat(KEY_MAX + 1);
        for (field, given) in [
            (ACCESS_KEY_ID, secrets(&[(SECRET_ACCESS_KEY, "HUSH")])),
            (ACCESS_KEY_ID, secrets(&[(ACCESS_KEY_ID, "HUSH!"), (SECRET_ACCESS_KEY, "HUSH")])),
            (ACCESS_KEY_ID, secrets(&[(ACCESS_KEY_ID, &long), (SECRET_ACCESS_KEY, "HUSH")])),
            (SECRET_ACCESS_KEY, secrets(&[(ACCESS_KEY_ID, "HUSH")])),
            (SECRET_ACCESS_KEY, secrets(&[(ACCESS_KEY_ID, "HUSH"), (SECRET_ACCESS_KEY, " ")])),
            (SECRET_ACCESS_KEY, secrets(&[(ACCESS_KEY_ID, "HUSH"), (SECRET_ACCESS_KEY, "HUSH\nx=HUSH")])),
            (
                SESSION_TOKEN,
                secrets(&[
                    (ACCESS_KEY_ID, "HUSH"),
                    (SECRET_ACCESS_KEY, "HUSH"),
                    (SESSION_TOKEN, "HUSH\nHUSH"),
                ]),
            ),
        ] {
            let error = resolve(&given, || Ok(Some(of_driver()))).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(&format!(": {field} ")), "{field}: {error}");
            assert!(!error.to_string().contains("HUSH"), "{error}");
        }
    }
}
