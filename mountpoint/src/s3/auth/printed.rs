//! Credentials that a program prints (`credential_process` of a profile), for a sandboxed engine, which can't start programs. Its helper
//! runs the program that the profile named when the engine was sandboxed. Without a helper the chain of `aws-config` runs it.

use std::borrow::Cow;
use std::io;

use aws_config::profile::{ProfileSet, load};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_runtime::env_config::file::EnvConfigFiles;
use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use aws_types::os_shim_internal::{Env, Fs};
use serde::Deserialize;

use crate::broker;

/// Keys of a profile that the chain prefers to `credential_process`.
const BEFORE: [&str; 6] = [
    "role_arn",
    "credential_source",
    "web_identity_token_file",
    "sso_session",
    "sso_start_url",
    "aws_access_key_id",
];
/// Variables that the chain prefers to a profile, unless a flag names the profile.
const KEYS: [&str; 2] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];

/// The output of a program that prints credentials.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

/// Longest chain of `source_profile` that is followed. The chain of `aws-config` refuses circles.
const SOURCES_MAX: usize = 16;

/// The source of the credentials, as far as a sandbox must know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceOfKeys {
    /// Whether the credentials can't be refreshed in a sandbox: no helper runs the program of a role (`source_profile`); the file of a web
    /// identity may be anywhere; and the tokens of a session of IAM Identity Center are written to `~/.aws`.
    pub(crate) is_out_of_reach: bool,
    /// The program that prints the credentials, if there is one.
    pub(crate) program: Option<String>,
}

/// Finds the source by reading the profiles. Makes no request.
pub(in crate::s3) async fn source(profile: Option<&str>) -> SourceOfKeys {
    let env = Env::real();
    if has_keys(profile, &env) {
        return SourceOfKeys::default();
    }
    let named = profile.map(|name| Cow::Owned(name.to_owned()));
    let Ok(profiles) = load(&Fs::real(), &env, &EnvConfigFiles::default(), named).await else {
        return SourceOfKeys::default();
    };
    let program = program(&profiles).map(str::to_owned);
    SourceOfKeys { is_out_of_reach: is_out_of_reach(&profiles), program }
}

fn is_out_of_reach(profiles: &ProfileSet) -> bool {
    let mut next = Some(profiles.selected_profile());
    for depth in 0..SOURCES_MAX {
        let Some(profile) = next.and_then(|name| profiles.get_profile(name)) else { return false };
        let has_program = profile.get("credential_process").is_some();
        let has_any = |keys: [&str; 2]| keys.iter().any(|key| profile.get(key).is_some());
        if has_any(["web_identity_token_file", "sso_session"]) || has_program && depth > 0 {
            return true;
        }
        // A profile may be its own source.
        if profile.get("role_arn").is_some() && has_program {
            return true;
        }
        next = profile.get("source_profile");
    }
    false
}

/// Whether the chain takes the keys from the environment, and reads no profile.
fn has_keys(profile: Option<&str>, env: &Env) -> bool {
    profile.is_none() && KEYS.iter().all(|name| env.get(name).is_ok_and(|value| !value.is_empty()))
}

/// Gets credentials from the helper, if there is one and the profile has a program. `None`: the caller asks the chain.
pub(super) async fn ask(profile: Option<&str>) -> Option<Result<Credentials, CredentialsError>> {
    let broker = broker::of_this_process()?;
    let env = Env::real();
    if has_keys(profile, &env) {
        return None;
    }
    let named = profile.map(|name| Cow::Owned(name.to_owned()));
    let profiles = load(&Fs::real(), &env, &EnvConfigFiles::default(), named).await.ok()?;
    let command = program(&profiles)?.to_owned();
    let printed = broker.credentials(command).and_then(|text| credentials(&text));
    Some(printed.map_err(CredentialsError::provider_error))
}

/// The `credential_process` of the profile in use; `None` if the chain prefers another key of the profile.
fn program(profiles: &ProfileSet) -> Option<&str> {
    let is_first = BEFORE.iter().all(|key| profiles.get(key).is_none());
    profiles.get("credential_process").filter(|_| is_first)
}

/// Parses the program's output. The error repeats nothing of the output, which may contain a secret.
fn credentials(text: &str) -> io::Result<Credentials> {
    let wrong = |what: &str| io::Error::other(format!("the credential_process printed {what}"));
    let printed: Printed = serde_json::from_str(text).map_err(|_| wrong("no credentials in JSON"))?;
    if printed.version != 1 {
        return Err(wrong(&format!("version {} of the format: 1 is known", printed.version)));
    }
    let end = |text: String| DateTime::from_str(&text, Format::DateTimeWithOffset).ok()?.try_into().ok();
    let expiry = match printed.expiration {
        Some(text) => Some(end(text).ok_or_else(|| wrong("an Expiration that can't be read"))?),
        None => None,
    };
    let Printed { access_key_id, secret_access_key, session_token, .. } = printed;
    Ok(Credentials::new(access_key_id, secret_access_key, session_token, expiry, "credential_process"))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn printed_credentials_are_read_and_an_error_has_no_word_of_others() {
        let whole = r#"{"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "SECRET", "SessionToken": "T",
            "Expiration": "1970-01-01T01:00:10+01:00"}"#;
        let read = credentials(whole).unwrap();
        let parts = (read.access_key_id(), read.secret_access_key(), read.session_token());
        assert_eq!(parts, ("AK", "SECRET", Some("T")));
        assert_eq!(read.expiry(), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(10)));
        let lasting = r#"{"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "SECRET"}"#;
        assert_eq!(credentials(lasting).unwrap().expiry(), None);
        for wrong in [
            "",
            "SECRET",
            r#"{"Version": 2, "AccessKeyId": "AK", "SecretAccessKey": "SECRET"}"#,
            r#"{"Version": 1, "SecretAccessKey": "SECRET"}"#,
            r#"{"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "SECRET", "Expiration": "soon"}"#,
        ] {
            let error = credentials(wrong).unwrap_err().to_string();
            assert!(!error.contains("SECRET"), "{error}");
        }
    }

    #[tokio::test]
    async fn keys_whose_source_a_sandbox_closes_are_known_by_their_profiles() {
        const OTHER: &str = "[profile q]\ncredential_process = cat x\n";
        for (text, expected) in [
            ("[profile p]\ncredential_process = cat x\n", false),
            ("[profile p]\nrole_arn = r\nsource_profile = r\n[profile r]\naws_access_key_id = k\n", false),
            ("[profile p]\nrole_arn = r\nsource_profile = q\n", true),
            (
                "[profile p]\nrole_arn = r\nsource_profile = r\n[profile r]\nrole_arn = r\nsource_profile = q\n",
                true,
            ),
            ("[profile p]\nrole_arn = r\nsource_profile = p\ncredential_process = cat x\n", true),
            ("[profile p]\nrole_arn = r\nweb_identity_token_file = /token\n", true),
            ("[profile p]\nrole_arn = r\nsource_profile = p\n", false),
            ("[profile p]\nsso_session = s\n", true),
            ("[profile p]\nrole_arn = r\nsource_profile = r\n[profile r]\nsso_session = s\n", true),
            ("[profile p]\nsso_start_url = https://x\n", false),
            ("[profile p]\nregion = x\n", false),
        ] {
            let text = format!("{text}{OTHER}");
            let fs = Fs::from_slice(&[("/config", text.as_str())]);
            let env = Env::from_slice(&[("AWS_CONFIG_FILE", "/config"), ("AWS_PROFILE", "p")]);
            let profiles = load(&fs, &env, &EnvConfigFiles::default(), None).await.unwrap();
            assert_eq!(is_out_of_reach(&profiles), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn a_program_counts_where_the_profile_has_no_other_source() {
        let of = async |text: &str| {
            let fs = Fs::from_slice(&[("/config", text)]);
            let env = Env::from_slice(&[("AWS_CONFIG_FILE", "/config"), ("AWS_PROFILE", "p")]);
            let profiles = load(&fs, &env, &EnvConfigFiles::default(), None).await.unwrap();
            program(&profiles).map(str::to_owned)
        };
        assert_eq!(of("[profile p]\ncredential_process = cat x\n").await.as_deref(), Some("cat x"));
        assert_eq!(of("[profile p]\nrole_arn = r\ncredential_process = cat x\n").await, None);
        assert_eq!(of("[profile p]\naws_access_key_id = k\ncredential_process = cat x\n").await, None);
        assert_eq!(of("[profile other]\ncredential_process = cat x\n").await, None);
    }
}
