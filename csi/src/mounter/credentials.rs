//! Keys in the form that the engine reads: an AWS profile in two files. Enters: keys from a Secret. Leaves: files in a directory of
//! credentials, and the environment variables that name them.
//!
//! Never here: a key in a message, an error or a log.

use std::io;
use std::path::Path;

use sha2::Digest as _;

use super::comm_files::CredentialFiles;
use super::{Credentials, Token};
use crate::error::{Error, ErrorKind, Result};

/// A longer handle stands in file names by its hash: a name has at most 255 bytes, and a UID and our words take 70 of them.
const HANDLE_MAX_BYTES: usize = 150;

/// The profile of one volume in one Mountpoint Pod, or of one volume of one workload where systemd runs the engine. Its name stays the
/// same for as long as the pod lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    name: String,
}

impl Profile {
    /// For the pod with this UID and this volume handle.
    ///
    /// # Errors
    /// `InvalidArgument` for a handle with characters that can't be printed.
    pub fn new(pod_uid: &str, handle: &str) -> Result<Self> {
        if handle.chars().any(char::is_control) {
            return Err(Error::invalid("volumeHandle holds a character that can't be printed: remove it"));
        }
        let handle = if handle.len() > HANDLE_MAX_BYTES { hashed(handle) } else { escaped(handle) };
        Ok(Self { name: format!("{}{handle}{SUFFIX}", prefix(pod_uid)) })
    }

    /// Writes both files. What an earlier call wrote is replaced as a whole: keys that lost their token have none afterwards.
    ///
    /// # Errors
    /// `InvalidArgument` for keys that no engine could use; `Internal` for what the file system says.
    pub fn write(&self, directory: &CredentialFiles, keys: &Credentials) -> Result<()> {
        let text = self.credentials_text(keys)?;
        let failed = |error: io::Error| failed(directory.path(), &error);
        directory.write(&self.config_file(), &format!("[profile {}]\n", self.name)).map_err(failed)?;
        directory.write(&self.credentials_file(), &text).map_err(failed)
    }

    /// Writes the token of a service account.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no token; `Internal` for what the file system says.
    pub fn write_token(&self, directory: &CredentialFiles, token: &Token) -> Result<()> {
        if token.0.is_empty() || !token.0.chars().all(|c| c.is_ascii_graphic()) {
            return Err(Error::invalid(
                "the kubelet sent a service account token that is empty or has invalid characters",
            ));
        }
        directory.write(&self.token_file(), &token.0).map_err(|error| failed(directory.path(), &error))
    }

    /// What leads the engine to the token in this directory, and the role that it takes with it. Neither keys of the pod's surroundings nor
    /// those of its machine are looked for.
    #[must_use]
    pub fn token_env(&self, directory: &Path, role: &str) -> [(String, String); 4] {
        let token = directory.join(self.token_file());
        [
            ("AWS_EC2_METADATA_DISABLED".to_owned(), "true".to_owned()),
            ("AWS_ROLE_ARN".to_owned(), role.to_owned()),
            ("AWS_ROLE_SESSION_NAME".to_owned(), "s3-csi-driver".to_owned()),
            ("AWS_WEB_IDENTITY_TOKEN_FILE".to_owned(), token.to_string_lossy().into_owned()),
        ]
    }

    /// What leads the engine to the files in this directory, which is named as the engine sees it.
    #[must_use]
    pub fn env(&self, directory: &Path) -> [(String, String); 3] {
        let path = |file: String| directory.join(file).to_string_lossy().into_owned();
        [
            ("AWS_CONFIG_FILE".to_owned(), path(self.config_file())),
            ("AWS_PROFILE".to_owned(), self.name.clone()),
            ("AWS_SHARED_CREDENTIALS_FILE".to_owned(), path(self.credentials_file())),
        ]
    }

    fn config_file(&self) -> String {
        format!("{}-config", self.name)
    }

    fn credentials_file(&self) -> String {
        format!("{}-credentials", self.name)
    }

    fn token_file(&self) -> String {
        format!("{}-token", self.name)
    }

    fn credentials_text(&self, keys: &Credentials) -> Result<String> {
        let mut text = format!("[{}]\n", self.name);
        let token = keys.session_token.as_deref().map(|token| ("aws_session_token", token));
        let pairs = [
            ("aws_access_key_id", keys.access_key_id.as_str()),
            ("aws_secret_access_key", keys.secret_access_key.as_str()),
        ];
        for (name, value) in pairs.into_iter().chain(token) {
            if value.is_empty() {
                return Err(Error::invalid(format!("{name} is empty: look at the Secret")));
            }
            // A line end would begin another setting, and a blank may begin a comment.
            if value.chars().any(|c| c.is_control() || c.is_whitespace()) {
                return Err(Error::invalid(format!(
                    "{name} holds a blank, a line end or a character that can't be printed: was the Secret made with \
                     `echo` where `echo -n` was meant?"
                )));
            }
            text.push_str(&format!("{name} = {value}\n"));
        }
        Ok(text)
    }
}

/// The error for a directory of credentials that can't be opened or written.
pub(super) fn failed(path: &Path, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, format!("writing credentials beneath {}: {error}", path.display()))
}

/// Each name of a profile ends so, and each of its files begins with such a name.
const SUFFIX: &str = "-s3-csi";

/// Names of a pod's profiles begin so.
fn prefix(pod_uid: &str) -> String {
    format!("{}-", escaped(pod_uid))
}

/// Whether a file belongs to a profile, of whatever pod. A driver that ended while it wrote one has left it under another name.
pub(super) fn is_of_a_profile(file: &str) -> bool {
    let file = file.strip_suffix(".new").unwrap_or(file);
    ["config", "credentials", "token"].iter().any(|kind| file.ends_with(&format!("{SUFFIX}-{kind}")))
}

/// Whether a file belongs to a profile of this pod.
pub(super) fn is_of_pod(file: &str, pod_uid: &str) -> bool {
    is_of_a_profile(file) && file.trim_start_matches('.').starts_with(&prefix(pod_uid))
}

/// What may stand in a file name and in a profile's brackets; the rest becomes `%`. AWS's tools ignore a profile with other characters in its
/// name. A pod has one volume, so no two meet.
fn escaped(id: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    id.chars().map(|c| if plain(c) { c } else { '%' }).collect()
}

fn hashed(id: &str) -> String {
    base16ct::lower::encode_string(&sha2::Sha224::digest(id.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::super::comm_files::CommFiles;
    use super::*;
    use crate::contract::comm::Comm;

    fn keys(token: Option<&str>) -> Credentials {
        Credentials {
            access_key_id: "AKIA".into(),
            secret_access_key: "canary/+=".into(),
            session_token: token.map(str::to_owned),
        }
    }

    fn comm() -> (CredentialFiles, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        (CommFiles::open(&Comm::at(folder.path())).unwrap().credentials().unwrap(), folder)
    }

    #[test]
    fn the_files_are_a_profile_and_the_variables_lead_to_it_in_the_pod() {
        let (files, folder) = comm();
        let profile = Profile::new("uid-1", "bucket/with prefix").unwrap();
        profile.write(&files, &keys(Some("token"))).unwrap();
        let name = "uid-1-bucket%with%prefix-s3-csi";
        let read =
            |file: &str| std::fs::read_to_string(folder.path().join("credentials").join(file)).unwrap();
        assert_eq!(read(&format!("{name}-config")), format!("[profile {name}]\n"));
        assert_eq!(
            read(&format!("{name}-credentials")),
            format!(
                "[{name}]\naws_access_key_id = AKIA\naws_secret_access_key = canary/+=\naws_session_token = token\n"
            )
        );
        assert_eq!(
            profile.env(Path::new("/comm/credentials")),
            [
                ("AWS_CONFIG_FILE".to_owned(), format!("/comm/credentials/{name}-config")),
                ("AWS_PROFILE".to_owned(), name.to_owned()),
                ("AWS_SHARED_CREDENTIALS_FILE".to_owned(), format!("/comm/credentials/{name}-credentials")),
            ]
        );
    }

    #[test]
    fn a_secret_that_loses_its_token_drops_the_token() {
        let (files, folder) = comm();
        let profile = Profile::new("u", "h").unwrap();
        profile.write(&files, &keys(Some("token"))).unwrap();
        profile.write(&files, &keys(None)).unwrap();
        let text = std::fs::read_to_string(folder.path().join("credentials/u-h-s3-csi-credentials")).unwrap();
        assert!(!text.contains("token") && text.contains("AKIA"), "{text}");
    }

    #[test]
    fn keys_that_no_engine_could_use_are_refused_without_being_repeated_and_the_old_ones_stay() {
        let (files, folder) = comm();
        let profile = Profile::new("u", "h").unwrap();
        profile.write(&files, &keys(None)).unwrap();
        for bad in ["canary2\n", "canary2 #x", "\u{7}canary2", ""] {
            let bad = Credentials { secret_access_key: bad.into(), ..keys(None) };
            let error = profile.write(&files, &bad).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
            let text = error.to_string();
            assert!(text.contains("aws_secret_access_key") && !text.contains("canary2"), "{text}");
        }
        let text = std::fs::read_to_string(folder.path().join("credentials/u-h-s3-csi-credentials")).unwrap();
        assert!(text.contains("canary/+="), "{text}");
    }

    #[test]
    fn a_handle_stands_in_the_name_safely_whatever_it_is() {
        assert!(Profile::new("u", "a\nb").is_err());
        assert_eq!(Profile::new("u", "../x").unwrap().name, "u-..%x-s3-csi");
        assert_eq!(Profile::new("u", "a]b#ü").unwrap().name, "u-a%b%%-s3-csi");
        let long = |end: &str| Profile::new("u", &format!("{}{end}", "x".repeat(300))).unwrap().name;
        assert!(long("a").len() < 100 && long("a") != long("b"));
    }
}
