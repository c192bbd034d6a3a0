//! The sources of an engines pod: each one's share key, fixed when it was made, and the pod that serves it. Enters: checked requests.
//! Leaves: the name of the source for a request, and notes that outlive the driver.
//!
//! The notes are in the driver's own directory on the node, which no pod can write to.
//!
//! Never here: a mount, a key of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use mountpoint::sync::Mutex;
use serde::{Deserialize, Serialize};

use crate::contract::engines_pod::{self, is_source};
use crate::contract::{comm, digest};
use crate::error::{Error, ErrorKind, Result};
use crate::mounter::MountRequest;

/// The note of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Share {
    /// The share key of the requests that this source serves.
    pub(super) key: String,
    /// The UID of the engines pod that served it last; empty before the first mount.
    pub(super) pod: String,
    /// A digest of the place of the data: bucket, prefix and store.
    pub(super) place: String,
    /// Whether the source was mounted with the keys of a Secret.
    pub(super) of_secret: bool,
    /// The cache of its engine. A source that is mounted without its cache keeps this name: the cache may be taken again.
    pub(super) cache: Option<String>,
    /// The size of that cache, in MiB. A driver of before did not note it.
    pub(super) cache_mib: Option<u64>,
    /// Whether its engine runs without a cache.
    pub(super) without_cache: bool,
}

impl Share {
    /// The cache that its engine may use.
    pub(super) fn used_cache(&self) -> Option<&String> {
        self.cache.as_ref().filter(|_| !self.without_cache)
    }

    /// Whether the note could be read.
    pub(super) fn is_readable(&self) -> bool {
        !self.key.is_empty()
    }
}

/// Writes a note, whole or not at all, also if the machine loses power.
pub(super) fn write_note(directory: &Path, name: &str, note: &impl Serialize) -> io::Result<()> {
    write_whole(directory, name, &serde_json::to_vec(note).map_err(io::Error::other)?)
}

/// Writes a file of the driver like [`write_note`].
pub(super) fn write_whole(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = directory.join(format!(".{name}.new"));
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    // A name that reaches the disk before its bytes is an empty note after a loss of power.
    file.sync_all()?;
    std::fs::rename(&temporary, directory.join(name))
}

/// The names of all notes in a directory, whatever they say. A directory that is not there has none.
pub(super) fn noted(directory: &Path, is_name: impl Fn(&str) -> bool) -> io::Result<BTreeSet<String>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string().ok().filter(|name| is_name(name)));
    }
    Ok(names)
}

/// The option that tells the store the versions of the driver and of Kubernetes.
const OF_VERSIONS: &str = "--user-agent-prefix=";

/// The share key of a request: requests with one key share a source. Covers all that the engine gets, except the store's keys and the
/// versions: after an upgrade, new workloads find the sources of before.
pub(super) fn key_of(request: &MountRequest) -> String {
    let env: Vec<_> = request.env.iter().flat_map(|(name, value)| [name.as_str(), value]).collect();
    let args = request.args.iter().map(String::as_str);
    let args: Vec<_> = args.filter(|arg| !arg.starts_with(OF_VERSIONS)).collect();
    let whether = |it: bool| if it { "yes" } else { "no" };
    digest(&[
        &request.volume,
        &request.handle,
        &request.bucket,
        &request.place,
        &digest(&args),
        &digest(&env),
        whether(request.source_read_only),
        whether(request.of_secret),
    ])
}

/// The choice of a source for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    /// A source that exists.
    Known(String),
    /// A new source.
    New(String),
    /// No room for another source.
    Full,
}

/// Chooses the source for a key. `is_taken` tells of a name that is in use without a note.
fn chosen(
    shares: &BTreeMap<String, Share>,
    key: &str,
    max: usize,
    is_taken: impl Fn(&str) -> bool,
) -> Chosen {
    if let Some((name, _)) = shares.iter().find(|(_, share)| share.key == key) {
        return Chosen::Known(name.clone());
    }
    if shares.len() >= max {
        return Chosen::Full;
    }
    // An earlier source of this key may still be ending in the pod.
    let names = (0..).map(|attempt| engines_pod::name(key, attempt));
    let mut free = names.filter(|name| !shares.contains_key(name) && !is_taken(name));
    free.next().map_or(Chosen::Full, Chosen::New)
}

/// The notes of this node's sources.
#[derive(Debug)]
pub(super) struct Shares {
    directory: PathBuf,
    max: usize,
    /// Locked while a source is chosen.
    choosing: Mutex<()>,
}

impl Shares {
    /// The notes beneath this kubelet's root directory, for at most `max` sources.
    pub(super) fn of(kubelet: &Path, max: usize) -> Self {
        let directory = comm::plugin_directory(kubelet).join("shared");
        Self { directory, max, choosing: Mutex::default() }
    }

    /// The largest number of sources.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Chooses the source for a request, and notes a new one.
    pub(super) fn choose(
        &self,
        key: &str,
        request: &MountRequest,
        is_taken: impl Fn(&str) -> bool,
    ) -> Result<Chosen> {
        let _choosing = self.choosing.lock();
        let all = self.all().map_err(|error| failed(&self.directory, &error))?;
        let chosen = chosen(&all, key, self.max, is_taken);
        if let Chosen::New(name) = &chosen {
            let share = Share {
                key: key.to_owned(),
                place: request.place.clone(),
                of_secret: request.of_secret,
                ..Share::default()
            };
            self.put(name, &share)?;
        }
        Ok(chosen)
    }

    /// All sources by name.
    pub(super) fn all(&self) -> io::Result<BTreeMap<String, Share>> {
        let names = self.names()?.into_iter();
        Ok(names.filter_map(|name| self.get(&name).map(|share| (name, share))).collect())
    }

    /// The names of all sources.
    pub(super) fn names(&self) -> io::Result<BTreeSet<String>> {
        noted(&self.directory, is_source)
    }

    /// The source of this name. A note that can't be read is not [`Share::is_readable`].
    pub(super) fn get(&self, name: &str) -> Option<Share> {
        match std::fs::read(self.directory.join(Some(name).filter(|name| is_source(name))?)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // A note that can't be read counts: its source may be mounted.
            text => Some(text.ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()),
        }
    }

    /// Writes the note of a source, whole or not at all.
    pub(super) fn put(&self, name: &str, share: &Share) -> Result<()> {
        let write = || -> io::Result<()> {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
            write_note(&self.directory, name, share)
        };
        write().map_err(|error| failed(&self.directory, &error))
    }

    /// Removes the note of a source. Succeeds without one, too.
    pub(super) fn forget(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.directory.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn failed(directory: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("the node's notes in {}: {error}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounter::Credentials;
    use crate::mounter::testing::request;

    fn share(key: &str) -> Share {
        Share { key: key.into(), ..Share::default() }
    }

    #[test]
    fn requests_of_one_key_differ_in_workload_target_and_keys_alone() {
        let first = request("pv-1", "w1");
        let keys = Credentials {
            access_key_id: "rotated".into(),
            secret_access_key: "canary".into(),
            session_token: None,
        };
        let same = MountRequest {
            workload_uid: "w2".into(),
            target: "/elsewhere".into(),
            read_only: true,
            credentials: Some(keys),
            ..first.clone()
        };
        assert_eq!(key_of(&first), key_of(&same));
        let of_version = |version: &str| {
            let agent = format!(
                "--user-agent-prefix=s3-csi-driver/{version} credential-source#driver k8s/v1.{version}"
            );
            key_of(&MountRequest { args: [&[agent][..], &first.args].concat(), ..first.clone() })
        };
        assert_eq!(of_version("2"), of_version("3"), "an upgrade changes no key");
        let others = [
            MountRequest { volume: "pv-2".into(), ..first.clone() },
            MountRequest { handle: "h".into(), ..first.clone() },
            MountRequest { bucket: "b".into(), ..first.clone() },
            MountRequest { place: "p".into(), ..first.clone() },
            MountRequest { args: vec!["--gid=7".into()], ..first.clone() },
            MountRequest { env: vec![("AWS_REGION".into(), "q".into())], ..first.clone() },
            MountRequest { source_read_only: true, ..first.clone() },
            MountRequest { of_secret: true, ..first.clone() },
        ];
        let keys: std::collections::BTreeSet<_> = others.iter().chain([&first]).map(key_of).collect();
        assert_eq!(keys.len(), others.len() + 1);
    }

    #[test]
    fn a_key_has_one_source_a_new_one_a_free_name_and_one_too_many_none() {
        let (first, second) = (engines_pod::name("key", 0), engines_pod::name("key", 1));
        let none = BTreeMap::new();
        assert_eq!(chosen(&none, "key", 1, |_| false), Chosen::New(first.clone()));
        assert_eq!(chosen(&none, "key", 1, |name| name == first), Chosen::New(second), "it still ends");
        let one = BTreeMap::from([(first.clone(), share("key"))]);
        assert_eq!(chosen(&one, "key", 1, |_| true), Chosen::Known(first));
        assert_eq!(chosen(&one, "other", 1, |_| false), Chosen::Full);
    }

    #[test]
    fn notes_outlive_the_driver_and_lead_nowhere_else() {
        let kubelet = tempfile::tempdir().unwrap();
        let shares = Shares::of(kubelet.path(), 1);
        let request = request("pv-1", "w1");
        let Chosen::New(name) = shares.choose("key", &request, |_| false).unwrap() else { panic!() };
        assert_eq!(shares.choose("other", &request, |_| false).unwrap(), Chosen::Full);
        let anew = Shares::of(kubelet.path(), 1);
        assert_eq!(anew.choose("key", &request, |_| false).unwrap(), Chosen::Known(name.clone()));
        assert_eq!(anew.get(&name).unwrap().place, request.place);
        assert_eq!((anew.get("../shared"), anew.get("mp-1")), (None, None));
        std::fs::write(anew.directory.join(&name), "half").unwrap();
        assert_eq!(anew.all().unwrap().len(), 1, "its source may be mounted");
        std::fs::remove_file(anew.directory.join(&name)).unwrap();
        std::fs::create_dir(anew.directory.join(&name)).unwrap();
        assert_eq!(anew.all().unwrap().len(), 1, "neither can this one be read");
        std::fs::remove_dir(anew.directory.join(&name)).unwrap();
        std::fs::write(anew.directory.join(&name), "").unwrap();
        anew.forget(&name).unwrap();
        anew.forget(&name).unwrap();
        assert_eq!(anew.all().unwrap(), BTreeMap::new());
    }
}
