//! Requests that a store supports for uploads: declared by its kind, or learned from earlier uploads of this engine. Enters: the kind that
//! the user names, headers of answers, refusals of uploads. Leaves: the form of the next upload.
//!
//! Never here: a request. A file of the state directory keeps the learned facts, so the next mount does not send requests that the store
//! refuses. The facts expire after [`BELIEVED`], because stores are upgraded.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::s3::Config;
use crate::s3::endpoint::Endpoint;
use crate::s3::kind::{Condition, PartLimits, StoreKind};
use crate::s3::oddities::Oddities;
use crate::s3::replaces::Replaces;
use crate::sync::{Arc, Mutex};

/// Time for which learned facts about a store are valid. Doubling it notices an upgraded store later, and sends half as many requests that
/// an old store refuses.
const BELIEVED: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most bytes read of a file of facts; the rest is cut off, so the file can't be parsed. The engine's files have about 200 bytes.
const FILE_MAX: u64 = 16 << 10;

/// The requests that change the object under a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Write {
    Put,
    Complete,
    Copy,
    Delete,
}

impl Write {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Put => "PutObject",
            Self::Complete => "CompleteMultipartUpload",
            Self::Copy => "CopyObject",
            Self::Delete => "DeleteObject",
        }
    }
}

/// The abilities of one store: its kind, and limits learned from its answers.
#[derive(Debug)]
pub(crate) struct Abilities {
    kind: Mutex<Known>,
    learned: Arc<Mutex<Learned>>,
    /// The facts that this process last wrote to the file. The lock is held while the file is written.
    saved: Arc<Mutex<Option<Learned>>>,
    file: Option<PathBuf>,
    /// Deviations of the store's answers from S3, seen so far.
    pub(crate) oddities: Oddities,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    kind: StoreKind,
    /// Whether the user named the kind, or an answer showed it.
    is_final: bool,
}

/// Facts learned from refused uploads. Each is false or `None` until the store refuses a request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Learned {
    endpoint: String,
    /// The store answers PutObject with If-None-Match or If-Match with 501. The next three fields are the same for other requests.
    put_refuses_condition: bool,
    complete_refuses_condition: bool,
    #[serde(default)]
    copy_refuses_condition: bool,
    #[serde(default)]
    delete_refuses_condition: bool,
    /// The store answers 501 to a copy without a condition on its target.
    #[serde(default)]
    refuses_copies: bool,
    /// The store refuses checksum headers, with whatever error.
    refuses_checksums: bool,
    /// The store answers 501 to a request for the checksum of an object.
    #[serde(default)]
    refuses_checksum_mode: bool,
    /// The store refuses uploads without Content-MD5.
    demands_md5: bool,
    /// The store refuses to complete an upload whose parts differ in size.
    wants_equal_parts: bool,
    /// Most parts of an upload: the store refused a part with a greater number.
    parts_max: Option<u32>,
}

impl Abilities {
    /// Abilities of the kind that the user names; without one, of the kind that the endpoint's name shows. Reads the learned facts from
    /// their file.
    pub(crate) fn new(config: &Config, endpoint: &Endpoint, now: SystemTime) -> Self {
        let kind = config.store.or_else(|| kind_of_endpoint(config)).unwrap_or(StoreKind::Generic);
        let name = endpoint.authority.host_header();
        let file = config.state_dir.as_ref().map(|dir| dir.join("stores").join(file_name(&name)));
        let learned = file.as_deref().and_then(|file| read(file, &name, now));
        if let Some(learned) = &learned {
            tracing::debug!(?learned, "known of this store from earlier uploads");
        }
        let learned = learned.unwrap_or_else(|| Learned { endpoint: name, ..Learned::default() });
        Self {
            kind: Mutex::new(Known { kind, is_final: config.store.is_some() }),
            learned: Arc::new(Mutex::new(learned)),
            saved: Arc::default(),
            file,
            oddities: Oddities::default(),
        }
    }

    /// The kind of the store; generic until the user, the endpoint or an answer shows another one.
    pub(crate) fn kind(&self) -> StoreKind {
        self.kind.lock().kind
    }

    /// Decides the kind by the headers of the first answer, if the user named none.
    pub(crate) fn see(&self, headers: &HeaderMap) {
        let mut known = self.kind.lock();
        if std::mem::replace(&mut known.is_final, true) {
            return;
        }
        if let Some(kind) = StoreKind::of_answer(headers) {
            known.kind = kind;
        }
        tracing::info!(
            "the store seems to be of the kind {:?} (--store sets another kind)",
            known.kind.name()
        );
    }

    /// The store's treatment of the condition of this request (If-None-Match or If-Match).
    pub(crate) fn condition(&self, write: Write, replaces: &Replaces) -> Condition {
        let profile = self.kind().profile();
        let learned = self.learned.lock();
        let (declared, refuses) = match write {
            Write::Put => (profile.put, learned.put_refuses_condition),
            Write::Complete => (profile.complete, learned.complete_refuses_condition),
            Write::Copy => (profile.copy, learned.copy_refuses_condition),
            Write::Delete => (profile.delete, learned.delete_refuses_condition),
        };
        match replaces {
            _ if refuses => Condition::Refused,
            Replaces::Version(_) => declared.version,
            Replaces::Anything | Replaces::Nothing => declared.absent,
        }
    }

    /// Whether the store refuses copies.
    pub(crate) fn refuses_copies(&self) -> bool {
        self.learned.lock().refuses_copies
    }

    /// Notes that the store refused a copy without a condition on its target.
    pub(crate) fn learn_refused_copies(&self) {
        if self.learn(|learned| set(&mut learned.refuses_copies)) {
            tracing::warn!(
                "the store does not know CopyObject: files can't be renamed there, and for a week mounts with --allow-rename are refused"
            );
        }
    }

    /// Whether uploads must not carry checksum headers.
    pub(crate) fn refuses_checksums(&self) -> bool {
        self.learned.lock().refuses_checksums
    }

    /// Whether objects must be requested without their checksums.
    pub(crate) fn refuses_checksum_mode(&self) -> bool {
        self.learned.lock().refuses_checksum_mode
    }

    /// Notes that a request for an object worked only without the header for its checksum.
    pub(crate) fn learn_refused_checksum_mode(&self) {
        if self.learn(|learned| set(&mut learned.refuses_checksum_mode)) {
            tracing::warn!(
                "the store refuses x-amz-checksum-mode: what is read is not compared with the checksum of the whole object"
            );
        }
    }

    /// Whether uploads carry Content-MD5, beside any checksum.
    pub(crate) fn demands_md5(&self) -> bool {
        self.learned.lock().demands_md5
    }

    /// The store's limits on parts: their number, and whether they must have equal sizes.
    pub(crate) fn part_limits(&self) -> PartLimits {
        let declared = self.kind().profile().parts;
        let learned = self.learned.lock();
        PartLimits {
            parts_max: learned.parts_max.map_or(declared.parts_max, |max| max.min(declared.parts_max)),
            are_equal: declared.are_equal || learned.wants_equal_parts,
        }
    }

    /// Whether the store decompresses compressed objects unless a header forbids it.
    pub(crate) fn decompresses(&self) -> bool {
        self.kind().profile().decompresses
    }

    /// Notes that a request worked only without the condition.
    pub(crate) fn learn_refused_condition(&self, write: Write) {
        let is_new = self.learn(|learned| match write {
            Write::Put => set(&mut learned.put_refuses_condition),
            Write::Complete => set(&mut learned.complete_refuses_condition),
            Write::Copy => set(&mut learned.copy_refuses_condition),
            Write::Delete => set(&mut learned.delete_refuses_condition),
        });
        if is_new {
            tracing::info!(
                "the store does not know If-None-Match or If-Match on {}: the engine asks what is there before it changes a key",
                write.name()
            );
        }
    }

    /// Notes that an upload worked only without checksum headers.
    pub(crate) fn learn_refused_checksums(&self) {
        if self.learn(|learned| set(&mut learned.refuses_checksums)) {
            tracing::warn!(
                "the store refuses checksum headers (x-amz-checksum-*): uploads carry Content-MD5 in their place"
            );
        }
    }

    /// Notes that an upload worked only with Content-MD5.
    pub(crate) fn learn_demanded_md5(&self) {
        if self.learn(|learned| set(&mut learned.demands_md5)) {
            tracing::info!(
                "the store demands Content-MD5, as for Object Lock: all uploads carry it from now on"
            );
        }
    }

    /// Notes that the store refused an upload because its parts differ in size.
    pub(crate) fn learn_equal_parts(&self) {
        if self.learn(|learned| set(&mut learned.wants_equal_parts)) {
            tracing::warn!(
                "the store takes parts of one size only: files that are opened from now on are sent so \
                 (--store r2 does it from the start, --write-part-size sets the size)"
            );
        }
    }

    /// Notes that the store refused part `parts + 1` for its number.
    pub(crate) fn learn_parts_max(&self, parts: u32) {
        let lower = |known: &mut Option<u32>| {
            let is_new = known.is_none_or(|max| parts < max);
            *known = Some(known.map_or(parts, |max| max.min(parts)));
            is_new
        };
        if self.learn(|learned| lower(&mut learned.parts_max)) {
            tracing::warn!(
                "the store takes {parts} parts of an object at most: parts of files that are opened from now on grow sooner \
                 (--store scaleway does it from the start, --write-part-size sets the size of the first ones)"
            );
        }
    }

    /// Sets a fact with `fact`, which returns whether the fact is new. Returns the same, and saves a new fact.
    fn learn(&self, fact: impl Fn(&mut Learned) -> bool) -> bool {
        if !fact(&mut self.learned.lock()) {
            return false;
        }
        if let Some(file) = self.file.clone() {
            let (learned, saved) = (Arc::clone(&self.learned), Arc::clone(&self.saved));
            // The write runs off the runtime's threads, and no request waits for it: facts that are not saved are learned again.
            tokio::task::spawn_blocking(move || {
                // If two facts were learned at once, the first task writes both.
                let mut saved = saved.lock();
                let known = learned.lock().clone();
                if saved.as_ref() == Some(&known) {
                    return;
                }
                if let Err(error) = write(&file, &known) {
                    tracing::debug!(path = %file.display(), %error, "the facts learned about the store can't be saved");
                }
                *saved = Some(known);
            });
        }
        true
    }
}

/// Sets a fact, and returns whether it is new.
fn set(fact: &mut bool) -> bool {
    !std::mem::replace(fact, true)
}

/// The store's kind, if the endpoint's host name shows it.
pub(crate) fn kind_of_endpoint(config: &Config) -> Option<StoreKind> {
    let uri = config.endpoint_url.as_deref().map(str::parse::<http::Uri>);
    match uri {
        None => StoreKind::of_endpoint(None),
        Some(uri) => StoreKind::of_endpoint(Some(uri.ok()?.host()?)),
    }
}

/// The name of the file of an endpoint's facts: short, and valid in every file system.
fn file_name(endpoint: &str) -> String {
    let digest = Sha256::digest(endpoint.as_bytes());
    format!("{}.json", base16ct::lower::encode_string(&digest[..16]))
}

fn read(file: &Path, endpoint: &str, now: SystemTime) -> Option<Learned> {
    use std::io::Read as _;
    let file = std::fs::File::open(file).ok()?;
    let age = now.duration_since(file.metadata().ok()?.modified().ok()?).unwrap_or_default();
    let mut text = String::new();
    file.take(FILE_MAX).read_to_string(&mut text).ok()?;
    let learned: Learned = serde_json::from_str(&text).ok()?;
    (age < BELIEVED && learned.endpoint == endpoint).then_some(learned)
}

fn write(file: &Path, learned: &Learned) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // The rename replaces the file at once, so a reader finds the whole old text or the whole new one.
    let new = file.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&new, serde_json::to_string(learned)?)?;
    std::fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn abilities(config: &Config) -> Abilities {
        let endpoint = Endpoint::new(config, "us-east-1").unwrap();
        Abilities::new(config, &endpoint, SystemTime::now())
    }

    fn config(dir: Option<&Path>, url: &str) -> Config {
        Config {
            bucket: "bucket".into(),
            endpoint_url: Some(url.into()),
            state_dir: dir.map(Into::into),
            ..Config::default()
        }
    }

    #[test]
    fn the_named_kind_precedes_answers_and_answers_the_endpoints_name() {
        let minio = HeaderMap::from_iter([(http::header::SERVER, http::HeaderValue::from_static("MinIO"))]);
        let auto = config(None, "http://garage.example.com");
        let it = abilities(&auto);
        assert_eq!(
            (it.kind(), it.condition(Write::Put, &Replaces::Nothing)),
            (StoreKind::Garage, Condition::Ignored)
        );
        it.see(&minio);
        assert_eq!(
            (it.kind(), it.condition(Write::Put, &Replaces::Nothing)),
            (StoreKind::Minio, Condition::Kept)
        );
        it.see(&HeaderMap::new());
        assert_eq!(it.kind(), StoreKind::Minio);
        let named = abilities(&Config { store: Some(StoreKind::Scality), ..auto });
        named.see(&minio);
        assert_eq!(named.kind(), StoreKind::Scality);
        assert_eq!(abilities(&config(None, "http://127.0.0.1:9000")).kind(), StoreKind::Generic);
    }

    #[tokio::test]
    async fn facts_from_uploads_are_known_to_the_next_mount_for_a_week() {
        let dir = tempfile::tempdir().unwrap();
        let here = config(Some(dir.path()), "http://store:1");
        let it = abilities(&here);
        assert_eq!(
            (it.condition(Write::Put, &Replaces::Nothing), it.refuses_checksums()),
            (Condition::Kept, false)
        );
        it.learn_refused_condition(Write::Put);
        it.learn_refused_checksums();
        it.learn_demanded_md5();
        it.learn_equal_parts();
        it.learn_parts_max(1000);
        it.learn_parts_max(1001);
        let file = it.file.clone().unwrap();
        let limits = PartLimits { parts_max: 1000, are_equal: true };
        while abilities(&here).condition(Write::Put, &Replaces::Nothing) != Condition::Refused
            || !abilities(&here).refuses_checksums()
            || !abilities(&here).demands_md5()
            || abilities(&here).part_limits() != limits
        {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            abilities(&here).condition(Write::Complete, &Replaces::Nothing),
            Condition::Kept,
            "nothing showed that"
        );
        let other = abilities(&config(Some(dir.path()), "http://store:2"));
        assert_eq!(other.condition(Write::Put, &Replaces::Nothing), Condition::Kept, "another store");
        let old = SystemTime::now() - BELIEVED;
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
        assert!(!abilities(&here).refuses_checksums(), "stores are upgraded");
        for torn in ["", "{", "{\"endpoint\":\"store:1\"}", "{\"parts_max\":-1}", "null"] {
            std::fs::write(&file, torn).unwrap();
            assert!(!abilities(&here).refuses_checksums(), "{torn:?}");
        }
    }
}
