//! Credentials in the form that the engine reads: an AWS profile in two files. Enters: credentials from a Secret. Leaves: files in a
//! directory of credentials, and environment variables with their paths.
//!
//! Never here: a credential in a message, an error or a log.

use std::io;
use std::path::Path;

use sha2::Digest as _;

use super::comm_files::CredentialFiles;
use super::{Credentials, Token};
use crate::error::{Error, ErrorKind, Result};

/// Hexadecimal digits of a handle's hash after its name, if the name alone is not unique.
const DIGITS: usize = 8;

/// Longest handle in a file name, in bytes; of a longer one only the hash is used. A file name has at most 255 bytes, and a UID and our
/// words take 70.
const HANDLE_MAX_BYTES: usize = 150;

/// The profile of one volume in one Mountpoint Pod, or of one volume of one workload if systemd runs the engine. Its name does not
/// change during the pod's life, within a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    name: String,
    /// The profile's name in releases that gave handles like `a/b` and `a:b` the same name. Engines that such a release started read files
    /// with it, which get new credentials as long as they exist.
    earlier: Option<String>,
}

/// The kinds of files of a profile.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Config,
    Credentials,
    Token,
    AgentToken,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Config, Self::Credentials, Self::Token, Self::AgentToken];

    fn of(self, profile: &str) -> String {
        let kind = match self {
            Self::Config => "config",
            Self::Credentials => "credentials",
            Self::Token => "token",
            Self::AgentToken => "agent-token",
        };
        format!("{profile}-{kind}")
    }
}

impl Profile {
    /// The profile of the pod with this UID and this volume handle.
    ///
    /// # Errors
    /// `InvalidArgument` for a handle with control characters.
    pub fn new(pod_uid: &str, handle: &str) -> Result<Self> {
        if handle.chars().any(char::is_control) {
            return Err(Error::invalid("volumeHandle holds a character that can't be printed: remove it"));
        }
        let named = |handle: &str| format!("{}{handle}{SUFFIX}", prefix(pod_uid));
        if handle.len() > HANDLE_MAX_BYTES {
            return Ok(Self { name: named(&hashed(handle)), earlier: None });
        }
        let plain = named(&escaped(handle));
        if handle.chars().all(is_plain) {
            return Ok(Self { name: plain, earlier: None });
        }
        let digits = &hashed(handle)[..DIGITS];
        Ok(Self { name: named(&format!("{}-{digits}", escaped(handle))), earlier: Some(plain) })
    }

    /// The names of the profile with which this kind of file is kept in the directory.
    fn names<'a>(&'a self, directory: &CredentialFiles, kind: Kind) -> impl Iterator<Item = &'a String> {
        let earlier = self.earlier.as_ref().filter(|name| directory.has(&kind.of(name)));
        [&self.name].into_iter().chain(earlier)
    }

    /// Whether a file belongs to this profile. That includes an unfinished file, which a driver that ended early has left.
    #[must_use]
    pub fn owns(&self, file: &str) -> bool {
        let unfinished = file.strip_prefix('.').and_then(|file| file.strip_suffix(".new"));
        let file = unfinished.unwrap_or(file);
        Kind::ALL.iter().any(|kind| kind.of(&self.name) == file)
    }

    /// Writes both files. Each replaces the earlier one as a whole: credentials without a token leave no old token behind.
    ///
    /// # Errors
    /// `InvalidArgument` for credentials that no engine can use; `Internal` for an error of the file system.
    pub fn write(&self, directory: &CredentialFiles, keys: &Credentials) -> Result<()> {
        let failed = |error: io::Error| failed(directory.path(), &error);
        for name in self.names(directory, Kind::Credentials) {
            let text = credentials_text(name, keys)?;
            directory.write(&Kind::Config.of(name), &format!("[profile {name}]\n")).map_err(failed)?;
            directory.write(&Kind::Credentials.of(name), &text).map_err(failed)?;
        }
        Ok(())
    }

    /// Writes the service account's token for the token service.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid token; `Internal` for an error of the file system.
    pub fn write_token(&self, directory: &CredentialFiles, token: &Token) -> Result<()> {
        self.write_token_of(Kind::Token, directory, token)
    }

    /// Writes the service account's token for the node's agent.
    ///
    /// # Errors
    /// The errors of [`Self::write_token`].
    pub fn write_agent_token(&self, directory: &CredentialFiles, token: &Token) -> Result<()> {
        self.write_token_of(Kind::AgentToken, directory, token)
    }

    fn write_token_of(&self, kind: Kind, directory: &CredentialFiles, token: &Token) -> Result<()> {
        if token.0.is_empty() || !token.0.chars().all(|c| c.is_ascii_graphic()) {
            return Err(Error::invalid(
                "the kubelet sent a service account token that is empty or has invalid characters",
            ));
        }
        for name in self.names(directory, kind) {
            let written = directory.write(&kind.of(name), &token.0);
            written.map_err(|error| failed(directory.path(), &error))?;
        }
        Ok(())
    }

    /// Environment variables with the token in this directory, and with the role that the engine assumes by it. They keep the engine from
    /// credentials of the pod's environment and of the machine.
    #[must_use]
    pub fn token_env(&self, directory: &Path, role: &str) -> [(String, String); 4] {
        let token = directory.join(Kind::Token.of(&self.name));
        [
            ("AWS_EC2_METADATA_DISABLED".to_owned(), "true".to_owned()),
            ("AWS_ROLE_ARN".to_owned(), role.to_owned()),
            ("AWS_ROLE_SESSION_NAME".to_owned(), "s3-csi-driver".to_owned()),
            ("AWS_WEB_IDENTITY_TOKEN_FILE".to_owned(), token.to_string_lossy().into_owned()),
        ]
    }

    /// Environment variables with the URL of the node's agent, and with the token for it in this directory.
    #[must_use]
    pub fn agent_env(&self, directory: &Path, url: &str) -> [(String, String); 3] {
        let token = directory.join(Kind::AgentToken.of(&self.name));
        [
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE".to_owned(), token.to_string_lossy().into_owned()),
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI".to_owned(), url.to_owned()),
            ("AWS_EC2_METADATA_DISABLED".to_owned(), "true".to_owned()),
        ]
    }

    /// Environment variables with the files in this directory, which must be the engine's path of it.
    #[must_use]
    pub fn env(&self, directory: &Path) -> [(String, String); 3] {
        let path = |kind: Kind| directory.join(kind.of(&self.name)).to_string_lossy().into_owned();
        [
            ("AWS_CONFIG_FILE".to_owned(), path(Kind::Config)),
            ("AWS_PROFILE".to_owned(), self.name.clone()),
            ("AWS_SHARED_CREDENTIALS_FILE".to_owned(), path(Kind::Credentials)),
        ]
    }
}

fn credentials_text(profile: &str, keys: &Credentials) -> Result<String> {
    let mut text = format!("[{profile}]\n");
    let token = keys.session_token.as_deref().map(|token| ("aws_session_token", token));
    let pairs = [
        ("aws_access_key_id", keys.access_key_id.as_str()),
        ("aws_secret_access_key", keys.secret_access_key.as_str()),
    ];
    for (name, value) in pairs.into_iter().chain(token) {
        if value.is_empty() {
            return Err(Error::invalid(format!("{name} is empty: look at the Secret")));
        }
        // A line end would begin another setting, and white space may begin a comment.
        if value.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(Error::invalid(format!(
                "{name} holds a blank, a line end or a character that can't be printed: was the Secret made with \
                 `echo` where `echo -n` was meant?"
            )));
        }
        // There is no space before the value: a value that begins with '#' or ';' would then be a comment.
        text.push_str(&format!("{name}={value}\n"));
    }
    Ok(text)
}

/// The error for a directory of credentials that can't be opened or written.
pub(super) fn failed(path: &Path, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, format!("writing credentials beneath {}: {error}", path.display()))
}

/// The end of each profile's name, with which the name of each of its files begins.
const SUFFIX: &str = "-s3-csi";

/// The prefix of the names of a pod's profiles.
fn prefix(pod_uid: &str) -> String {
    format!("{}-", escaped(pod_uid))
}

/// Whether a file belongs to a profile of any pod. That includes an unfinished file, which a driver that ended early has left.
pub(super) fn is_of_a_profile(file: &str) -> bool {
    let file = file.strip_suffix(".new").unwrap_or(file);
    Kind::ALL.iter().any(|kind| file.ends_with(&kind.of(SUFFIX)))
}

/// Whether a file belongs to a profile of this pod.
pub(super) fn is_of_pod(file: &str, pod_uid: &str) -> bool {
    is_of_a_profile(file) && file.trim_start_matches('.').starts_with(&prefix(pod_uid))
}

/// Replaces characters that can't be in a file name or between a profile's brackets by `%`. AWS's tools ignore a profile with other
/// characters in its name. Handles that become equal have different hashes: a workload may have several volumes, whose files are in one
/// directory if systemd mounts.
fn escaped(id: &str) -> String {
    id.chars().map(|c| if is_plain(c) { c } else { '%' }).collect()
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
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
        let digits = &hashed("bucket/with prefix")[..DIGITS];
        let name = &format!("uid-1-bucket%with%prefix-{digits}-s3-csi");
        let read =
            |file: &str| std::fs::read_to_string(folder.path().join("credentials").join(file)).unwrap();
        assert_eq!(read(&format!("{name}-config")), format!("[profile {name}]\n"));
        assert_eq!(
            read(&format!("{name}-credentials")),
            format!(
                "[{name}]\naws_access_key_id=AKIA\naws_secret_access_key=canary/+=\naws_session_token=token\n"
            )
        );
        assert_eq!(
            profile.env(Path::new("/comm/credentials")),
            [
                ("AWS_CONFIG_FILE".to_owned(), format!("/comm/credentials/{name}-config")),
                ("AWS_PROFILE".to_owned(), name.clone()),
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
    fn unusable_keys_are_refused_without_being_shown_and_old_ones_stay() {
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
    fn two_handles_that_differ_in_odd_characters_have_two_profiles() {
        let handles = ["team/a", "team:a", "team a", "team%a", "team-a"];
        let profiles = handles.map(|handle| Profile::new("u", handle).unwrap());
        for (at, profile) in profiles.iter().enumerate() {
            for other in &profiles[at + 1..] {
                assert_ne!(profile.name, other.name);
            }
            for kind in Kind::ALL {
                assert!(is_of_pod(&kind.of(&profile.name), "u") && is_of_a_profile(&kind.of(&profile.name)));
            }
        }
        let ours: Vec<_> = profiles.iter().filter(|it| it.owns(&Kind::Token.of(&profiles[0].name))).collect();
        assert_eq!(ours, [&profiles[0]]);
        assert!(profiles[0].owns(&format!(".{}.new", Kind::Config.of(&profiles[0].name))));
    }

    /// An engine that an older release started has the old name of the profile in its options for as long as it runs.
    #[test]
    fn an_engine_of_an_older_release_gets_new_keys_under_its_old_name() {
        let (files, folder) = comm();
        let held = |file: &str| std::fs::read_to_string(folder.path().join("credentials").join(file)).ok();
        let profile = Profile::new("u", "team/a").unwrap();
        profile.write(&files, &keys(None)).unwrap();
        profile.write_token(&files, &Token("t".into())).unwrap();
        assert_eq!(held("u-team%a-s3-csi-credentials"), None, "nothing of an older release is here");
        for file in ["u-team%a-s3-csi-config", "u-team%a-s3-csi-credentials", "u-team%a-s3-csi-token"] {
            files.write(file, "old").unwrap();
        }
        profile.write(&files, &keys(None)).unwrap();
        profile.write_token(&files, &Token("t".into())).unwrap();
        let credentials = held("u-team%a-s3-csi-credentials").unwrap();
        assert!(credentials.starts_with("[u-team%a-s3-csi]\n") && credentials.contains("AKIA"));
        assert_eq!(held("u-team%a-s3-csi-config").as_deref(), Some("[profile u-team%a-s3-csi]\n"));
        assert_eq!(held("u-team%a-s3-csi-token").as_deref(), Some("t"));
    }

    #[test]
    fn a_handle_stands_in_the_name_safely_whatever_it_is() {
        assert!(Profile::new("u", "a\nb").is_err());
        let name = |handle: &str| Profile::new("u", handle).unwrap().name;
        assert_eq!(name("a-b_c.d"), "u-a-b_c.d-s3-csi");
        assert!(name("../x").starts_with("u-..%x-") && name("a]b#ü").starts_with("u-a%b%%-"));
        let long = |end: &str| Profile::new("u", &format!("{}{end}", "x".repeat(300))).unwrap().name;
        assert!(long("a").len() < 100 && long("a") != long("b"));
    }
}
