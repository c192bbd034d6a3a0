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

/// Digits of a handle's hash behind its name, if the name alone does not tell it from all others.
const DIGITS: usize = 8;

/// Most bytes of a handle in a file name; a longer one is there by its hash. A name has at most 255 bytes, and a UID and our words take 70.
const HANDLE_MAX_BYTES: usize = 150;

/// The profile of one volume in one Mountpoint Pod, or of one volume of one workload where systemd runs the engine. Its name stays the
/// same for as long as the pod lives, within a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    name: String,
    /// The profile's name in releases that gave handles like `a/b` and `a:b` one name. Engines that such a release started read its files, and get new
    /// keys there for as long as these are there.
    earlier: Option<String>,
}

/// The files of a profile.
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
    /// `InvalidArgument` for a handle with characters that can't be printed.
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

    /// The names under which files of this kind are kept there.
    fn names<'a>(&'a self, directory: &CredentialFiles, kind: Kind) -> impl Iterator<Item = &'a String> {
        let earlier = self.earlier.as_ref().filter(|name| directory.has(&kind.of(name)));
        [&self.name].into_iter().chain(earlier)
    }

    /// Whether a file is one of its own. A driver that ended while it wrote one has left it under another name.
    #[must_use]
    pub fn owns(&self, file: &str) -> bool {
        let unfinished = file.strip_prefix('.').and_then(|file| file.strip_suffix(".new"));
        let file = unfinished.unwrap_or(file);
        Kind::ALL.iter().any(|kind| kind.of(&self.name) == file)
    }

    /// Writes both files. What an earlier call wrote is replaced as a whole: keys that lost their token have none afterwards.
    ///
    /// # Errors
    /// `InvalidArgument` for keys that no engine could use; `Internal` for what the file system says.
    pub fn write(&self, directory: &CredentialFiles, keys: &Credentials) -> Result<()> {
        let failed = |error: io::Error| failed(directory.path(), &error);
        for name in self.names(directory, Kind::Credentials) {
            let text = credentials_text(name, keys)?;
            directory.write(&Kind::Config.of(name), &format!("[profile {name}]\n")).map_err(failed)?;
            directory.write(&Kind::Credentials.of(name), &text).map_err(failed)?;
        }
        Ok(())
    }

    /// Writes the token of a service account for the token service.
    ///
    /// # Errors
    /// `InvalidArgument` for what is not a token; `Internal` for what the file system says.
    pub fn write_token(&self, directory: &CredentialFiles, token: &Token) -> Result<()> {
        self.write_token_of(Kind::Token, directory, token)
    }

    /// Writes the token of a service account for the node's agent.
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

    /// Variables that lead the engine to the token in this directory, and to the role that it takes with it. Neither keys of the pod's surroundings nor
    /// those of its machine are looked for.
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

    /// Variables that lead the engine to the node's agent, and to the token for it in this directory.
    #[must_use]
    pub fn agent_env(&self, directory: &Path, url: &str) -> [(String, String); 3] {
        let token = directory.join(Kind::AgentToken.of(&self.name));
        [
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE".to_owned(), token.to_string_lossy().into_owned()),
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI".to_owned(), url.to_owned()),
            ("AWS_EC2_METADATA_DISABLED".to_owned(), "true".to_owned()),
        ]
    }

    /// Variables that lead the engine to the files in this directory, which is named as the engine sees it.
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
        // A line end would begin another setting, and a blank may begin a comment.
        if value.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(Error::invalid(format!(
                "{name} holds a blank, a line end or a character that can't be printed: was the Secret made with \
                 `echo` where `echo -n` was meant?"
            )));
        }
        // No blank before the value: one that begins with '#' or ';' would be a comment.
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

/// The end of each profile's name. The name of each of its files begins with that name.
const SUFFIX: &str = "-s3-csi";

/// The beginning of the names of a pod's profiles.
fn prefix(pod_uid: &str) -> String {
    format!("{}-", escaped(pod_uid))
}

/// Whether a file belongs to a profile, of whatever pod. A driver that ended while it wrote one has left it under another name.
pub(super) fn is_of_a_profile(file: &str) -> bool {
    let file = file.strip_suffix(".new").unwrap_or(file);
    Kind::ALL.iter().any(|kind| file.ends_with(&kind.of(SUFFIX)))
}

/// Whether a file belongs to a profile of this pod.
pub(super) fn is_of_pod(file: &str, pod_uid: &str) -> bool {
    is_of_a_profile(file) && file.trim_start_matches('.').starts_with(&prefix(pod_uid))
}

/// Replaces characters that a file name or a profile's brackets can't hold by `%`. AWS's tools ignore a profile with other characters in its
/// name. Handles that meet in it differ in their hash: a workload may have several volumes, whose files are side by side where systemd
/// mounts.
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
