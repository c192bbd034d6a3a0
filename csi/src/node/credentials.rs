//! Chooses the credentials of a mount. Enters: the volume's attributes and the secrets of the call. Leaves: complete, valid credentials, or
//! an error that names the field, never a value.
//!
//! Never here: a file, a log line.

use std::collections::HashMap;
use std::fmt;

use crate::contract::{DRIVER, volume};
use crate::error::{Error, ErrorKind, Result};
use crate::mounter::{Credentials, Token};

/// Field of a Secret: the access key id.
pub const ACCESS_KEY_ID: &str = "access_key_id";
/// Field of a Secret: the secret access key.
pub const SECRET_ACCESS_KEY: &str = "secret_access_key";
/// Field of a Secret: the session token of temporary credentials; optional.
pub const SESSION_TOKEN: &str = "session_token";

/// Longest id and secret, in characters; a longer one is refused. RING and AWS give 20 and 40, and other stores let their users choose.
const KEY_MAX: usize = 1024;
/// Characters that end the access key id in the header of a signature.
const NOT_IN_ACCESS_KEY: [char; 3] = [',', '/', '='];
/// Longest token, in characters; a longer one is refused. AWS's have about a thousand.
const TOKEN_MAX: usize = 16 << 10;

/// The value of `authenticationSource`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthenticationSource {
    /// The driver's own credentials, or the engine's credential chain if the driver has none.
    Driver,
    /// The Secret that the volume names.
    Secret,
    /// The role of the workload's service account.
    Pod,
}

impl AuthenticationSource {
    /// Parses a volume's attribute.
    ///
    /// # Errors
    /// `InvalidArgument` for any other value.
    pub fn parse(attribute: Option<&str>) -> Result<Self> {
        match attribute.unwrap_or_default() {
            "" | "driver" => Ok(Self::Driver),
            "secret" => Ok(Self::Secret),
            volume::SOURCE_POD => Ok(Self::Pod),
            other => Err(Error::invalid(format!(
                "{} {other:?} is unknown: write 'driver', 'secret' or 'pod' into the volumeAttributes of the volume",
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
            Self::Pod => "pod",
        })
    }
}

/// The credentials to use, and their source. A volume with a Secret uses it with any `authenticationSource`: the author of
/// nodePublishSecretRef meant those credentials, and the driver's may allow more. A volume with `secret` and no Secret uses the
/// driver's, like volumes whose StorageClass names only the Secret of the provisioner. An empty Secret looks like none here;
/// the mounter distinguishes them, if a Mountpoint Pod says that its volume has a Secret.
///
/// # Errors
/// `InvalidArgument` if the Secret is incomplete or invalid; the errors of the driver's credentials if those are used.
pub fn resolve(
    secrets: &HashMap<String, String>,
    driver: impl FnOnce() -> Result<Option<Credentials>>,
) -> Result<(AuthenticationSource, Option<Credentials>)> {
    // The kubelet may put its own values among the secrets.
    if secrets.keys().all(|key| key.starts_with(volume::OF_KUBELET)) {
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

/// The kubelet's token for this audience: from the secrets of newer kubelets, else from the volume's context.
///
/// # Errors
/// `FailedPrecondition` if there is none; `InvalidArgument` if it does not have the kubelet's form.
pub fn token(
    secrets: &HashMap<String, String>,
    context: &HashMap<String, String>,
    audience: &str,
) -> Result<Token> {
    let named = secrets.get(volume::CONTEXT_TOKENS).or_else(|| context.get(volume::CONTEXT_TOKENS));
    let none = || {
        Error::new(
            ErrorKind::FailedPrecondition,
            format!(
                "authenticationSource 'pod' needs a token of the workload's service account for the audience {audience:?}, and \
                 the kubelet sent none: look at spec.tokenRequests of CSIDriver {DRIVER} (podIdentity.audience and podIdentity.agentUrl of the \
                 chart)"
            ),
        )
    };
    let tokens: HashMap<String, Issued> = serde_json::from_str(named.ok_or_else(none)?)
        // The error does not show the text, which contains the tokens.
        .map_err(|_| Error::invalid(format!("{} is not in the kubelet's form", volume::CONTEXT_TOKENS)))?;
    tokens.get(audience).map(|it| Token(it.token.clone())).ok_or_else(none)
}

/// A token in the kubelet's form. Its expiry is not needed: the token itself contains it.
#[derive(serde::Deserialize)]
struct Issued {
    token: String,
}

/// A field of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The access key id.
    AccessKeyId,
    /// The secret access key.
    SecretAccessKey,
    /// The session token.
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

/// Trims and checks credentials, by the same rules for the environment, the driver's Secret, the volume's and the provisioner's. A blank
/// token counts as absent.
///
/// # Errors
/// The field and the problem with it, as the end of a sentence.
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
    let access_key_id = required(
        Field::AccessKeyId,
        key,
        |c| c.is_ascii_graphic() && !NOT_IN_ACCESS_KEY.contains(&c),
        "printable ASCII characters without white space, and not ',', '/' or '='",
    )?;
    let secret_access_key = required(
        Field::SecretAccessKey,
        secret,
        |c| c.is_ascii_graphic(),
        "printable ASCII characters without white space",
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
        assert_eq!(AuthenticationSource::parse(Some("pod")).unwrap(), AuthenticationSource::Pod);
        let error = AuthenticationSource::parse(Some("role")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("authenticationSource"), "{error}");
    }

    #[test]
    fn the_token_is_that_of_the_audience_wherever_the_kubelet_puts_it() {
        let said = r#"{"other":{"token":"HUSH2"},"sts.amazonaws.com":{"token":"a.b.c","expirationTimestamp":"2026-01-01T00:00:00Z"}}"#;
        let (with, without) = (secrets(&[(volume::CONTEXT_TOKENS, said)]), HashMap::new());
        let audience = "sts.amazonaws.com";
        assert!(token(&with, &without, audience).unwrap() == Token("a.b.c".into()));
        assert!(token(&without, &with, audience).unwrap() == Token("a.b.c".into()));
        for (context, words) in
            [(without.clone(), "tokenRequests"), (secrets(&[(volume::CONTEXT_TOKENS, "HUSH")]), "form")]
        {
            let error = token(&without, &context, audience).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("HUSH"), "{error}");
        }
        let error = token(&with, &without, "third").unwrap_err();
        assert!(
            error.kind == ErrorKind::FailedPrecondition && error.to_string().contains("podIdentity.audience"),
            "{error}"
        );
        assert!(!format!("{:?}", token(&with, &without, audience)).contains("a.b.c"));
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

    /// The four routes have this rule: the environment (`config.rs`), the driver's Secret (`driver_keys.rs`), and both Secrets of volumes.
    #[test]
    fn keys_are_printable_and_what_breaks_a_signature_or_a_file_is_refused() {
        let secret = "s3cr%t;#[]\"'=,/~!";
        let longest = "k".repeat(KEY_MAX);
        for good in ["a", "min_io!u@x.1", "#x", ";x", "[x]", "a:b", longest.as_str()] {
            let keys = checked(Some(&format!(" {good}\n")), Some(&format!("{secret}\n")), None).unwrap();
            assert_eq!((keys.access_key_id.as_str(), keys.secret_access_key.as_str()), (good, secret));
        }
        let too_long = "k".repeat(KEY_MAX + 1);
        let for_both = ["", " ", &too_long, "HUSH x", "HUSH\tx", "HUSH\nx", "HUSH\0", "HUSHé", "HUSH\u{7f}"];
        for bad in for_both.into_iter().chain(["HUSH,", "HUSH/", "HUSH="]) {
            let (field, wrong) = checked(Some(bad), Some("s"), None).unwrap_err();
            assert_eq!(field, Field::AccessKeyId);
            assert!(!wrong.contains("HUSH"), "{wrong}");
        }
        for bad in for_both {
            let (field, wrong) = checked(Some("a"), Some(bad), None).unwrap_err();
            assert_eq!(field, Field::SecretAccessKey);
            assert!(!wrong.contains("HUSH"), "{wrong}");
        }
    }

    #[test]
    fn a_broken_secret_is_named_by_its_field_and_never_shown() {
        let long = "x".repeat(KEY_MAX + 1);
        for (field, given) in [
            (ACCESS_KEY_ID, secrets(&[(SECRET_ACCESS_KEY, "HUSH")])),
            (ACCESS_KEY_ID, secrets(&[(ACCESS_KEY_ID, "HUSH/"), (SECRET_ACCESS_KEY, "HUSH")])),
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
