//! The driver's own credentials. Enters: the mounted Secret, or the environment at the start. Leaves: the present, complete credentials, or
//! a sentence about the problem.
//!
//! Never here: a credential in an error or a log. The kubelet changes the Secret's files while the driver runs, so nothing is cached.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::credentials::{ACCESS_KEY_ID, Field, SECRET_ACCESS_KEY, SESSION_TOKEN, checked};
use crate::error::{Error, Result};
use crate::mounter::Credentials;

/// The link that the kubelet replaces to change all files of a volume at once.
const DATA: &str = "..data";
/// Limit on reads of a Secret whose files change during each read; at the limit the last read counts. Changes are a minute apart.
const ATTEMPTS: usize = 4;
/// Most bytes that are read of a file. Credentials are shorter; a longer value is refused.
const VALUE_MAX: u64 = 32 << 10;

/// The source of the driver's credentials.
#[derive(Clone, Debug)]
pub enum DriverKeys {
    /// Credentials of the driver's start; `None`: the signing code finds credentials itself.
    Fixed(Option<Credentials>),
    /// A directory with the files `access_key_id`, `secret_access_key` and `session_token`; without files there are no credentials.
    Directory(PathBuf),
}

impl DriverKeys {
    /// Reads the present credentials.
    ///
    /// # Errors
    /// `InvalidArgument`: the Secret is incomplete. `Unavailable`: an error of the file system.
    pub fn read(&self) -> Result<Option<Credentials>> {
        let directory = match self {
            Self::Fixed(keys) => return Ok(keys.clone()),
            Self::Directory(directory) => directory,
        };
        let values = values(directory).map_err(|error| {
            let at = directory.display();
            Error::new(
                crate::error::ErrorKind::Unavailable,
                format!("reading the driver's credentials in {at}: {error}"),
            )
        })?;
        if values.iter().all(Option::is_none) {
            return Ok(None);
        }
        let [key, secret, token] = &values;
        checked(key.as_deref(), secret.as_deref(), token.as_deref()).map(Some).map_err(|(field, wrong)| {
            let name = match field {
                Field::AccessKeyId => ACCESS_KEY_ID,
                Field::SecretAccessKey => SECRET_ACCESS_KEY,
                Field::SessionToken => SESSION_TOKEN,
            };
            Error::invalid(format!(
                "the driver's credentials are unusable: {name} {wrong}; look at the Secret that s3CredentialSecret.name of the \
                 chart names"
            ))
        })
    }
}

/// Reads all values of one version of the Secret.
fn values(directory: &Path) -> io::Result<[Option<String>; 3]> {
    let current = || directory.join(DATA).canonicalize().unwrap_or_else(|_| directory.to_owned());
    let mut at = current();
    for _ in 1..ATTEMPTS {
        let values = values_at(&at);
        let now = current();
        if now == at {
            return values;
        }
        at = now;
    }
    values_at(&at)
}

fn values_at(directory: &Path) -> io::Result<[Option<String>; 3]> {
    let [key, secret, token] =
        [ACCESS_KEY_ID, SECRET_ACCESS_KEY, SESSION_TOKEN].map(|name| value(&directory.join(name)));
    Ok([key?, secret?, token?])
}

fn value(file: &Path) -> io::Result<Option<String>> {
    let file = match File::open(file) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(VALUE_MAX).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Writes a Secret's volume as the kubelet does.
    fn publish(directory: &Path, version: &str, files: &[(&str, &str)]) {
        let data = directory.join(format!("..{version}"));
        std::fs::create_dir(&data).unwrap();
        for (name, text) in files {
            std::fs::write(data.join(name), text).unwrap();
        }
        let link = directory.join("..data_tmp");
        symlink(data.file_name().unwrap(), &link).unwrap();
        std::fs::rename(&link, directory.join(DATA)).unwrap();
    }

    #[test]
    fn keys_are_those_that_the_secret_has_now() {
        let folder = tempfile::tempdir().unwrap();
        let keys = DriverKeys::Directory(folder.path().to_owned());
        assert!(keys.read().unwrap().is_none(), "no Secret");
        publish(
            folder.path(),
            "1",
            &[(ACCESS_KEY_ID, "ONE\n"), (SECRET_ACCESS_KEY, "s1"), (SESSION_TOKEN, "t1")],
        );
        let one = keys.read().unwrap().unwrap();
        assert_eq!((one.access_key_id.as_str(), one.session_token.as_deref()), ("ONE", Some("t1")));
        publish(folder.path(), "2", &[(ACCESS_KEY_ID, "TWO"), (SECRET_ACCESS_KEY, "s2")]);
        let two = keys.read().unwrap().unwrap();
        assert_eq!((two.access_key_id.as_str(), two.secret_access_key.as_str()), ("TWO", "s2"));
        assert_eq!(two.session_token, None);
    }

    #[test]
    fn keys_are_never_of_two_states_of_the_secret() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().to_owned();
        publish(&directory, "0", &[(ACCESS_KEY_ID, "K0"), (SECRET_ACCESS_KEY, "K0")]);
        let keys = DriverKeys::Directory(directory.clone());
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                for version in 1..200 {
                    let key = format!("K{version}");
                    publish(
                        &directory,
                        &version.to_string(),
                        &[(ACCESS_KEY_ID, &key), (SECRET_ACCESS_KEY, &key)],
                    );
                    if version >= 2 {
                        std::fs::remove_dir_all(directory.join(format!("..{}", version - 2))).unwrap();
                    }
                }
            });
            while !writer.is_finished() {
                // A writer that is this fast may outrun all attempts: then there is an error or none, never a mixture.
                if let Ok(Some(read)) = keys.read() {
                    assert_eq!(read.access_key_id, read.secret_access_key);
                }
            }
        });
    }

    #[test]
    fn half_a_secret_is_named_by_its_field_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let keys = DriverKeys::Directory(folder.path().to_owned());
        publish(folder.path(), "1", &[(ACCESS_KEY_ID, "HUSH")]);
        let error = keys.read().unwrap_err().to_string();
        assert!(
            error.contains("secret_access_key is missing") && error.contains("s3CredentialSecret.name"),
            "{error}"
        );
        assert!(!error.contains("HUSH"), "{error}");
        assert!(!format!("{keys:?}").contains("HUSH"));
    }
}
