//! The kubelet's publish request. Enters: NodePublishVolume as it arrived. Leaves: a request with checked fields, or an error that
//! names the field and the right form.
//!
//! Never here: a default of the driver, access to the disk.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;

use mountpoint::cli::check_name;

use super::credentials::AuthenticationSource;
use super::target::Target;
use crate::contract::{digest, volume};
use crate::error::{Error, Result};
use crate::events::WorkloadRef;
use crate::proto::csi::NodePublishVolumeRequest;
use crate::proto::csi::volume_capability::{AccessType, access_mode::Mode};

/// Most wrong letters of an unknown attribute that is taken for a misspelt bucketName: `bucket`, `bucketNam`, `bucket_name`.
const MISSPELT_MAX: usize = 4;

/// A volume to publish.
pub struct PublishRequest {
    /// The volume handle.
    pub handle: String,
    /// The PersistentVolume's name.
    pub volume: String,
    /// The UID of the workload's pod.
    pub workload_uid: String,
    /// The workload's pod, for Events; `None` if the call does not name it.
    pub workload: Option<WorkloadRef>,
    /// The target path.
    pub target: Target,
    /// The bucket.
    pub bucket: String,
    /// The prefix to which the volume is restricted; it ends in a slash.
    pub prefix: Option<String>,
    /// The bucket's region, if it differs from the driver's.
    pub region: Option<String>,
    /// The store, if it differs from the driver's. It is not checked yet.
    pub endpoint_url: Option<String>,
    /// The region of the token service, if it differs from the bucket's.
    pub sts_region: Option<String>,
    /// Environment variables for the engine; their names are allowed ones.
    pub engine_env: Vec<(String, String)>,
    /// The attributes for the cache.
    pub cache: BTreeMap<String, String>,
    /// The volume's mount options as written.
    pub mount_options: Vec<String>,
    /// Whether the volume is inline, and so has no PersistentVolume.
    pub inline: bool,
    /// The workload's fsGroup.
    pub fs_group: Option<u32>,
    /// Whether this target is read-only.
    pub read_only: bool,
    /// Whether the volume is read-only for all targets.
    pub volume_read_only: bool,
    /// Whether the volume may have only one target at a time.
    pub single_writer: bool,
    /// The source of the credentials.
    pub authentication_source: AuthenticationSource,
    /// Names of the attributes that the driver knows.
    pub known_attributes: Vec<String>,
    /// Names of attributes that the driver does not know, sorted.
    pub unknown_attributes: Vec<String>,
    /// The content of the Secret that the volume names.
    pub secrets: HashMap<String, String>,
    /// Tokens of the workload's service account, if the kubelet sends them beside the attributes.
    pub tokens: HashMap<String, String>,
}

/// Omits the secrets and tokens.
impl fmt::Debug for PublishRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishRequest")
            .field("handle", &self.handle)
            .field("volume", &self.volume)
            .field("workload_uid", &self.workload_uid)
            .field("target", &self.target.path)
            .field("bucket", &self.bucket)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl PublishRequest {
    /// Parses and checks a call.
    ///
    /// # Errors
    /// `InvalidArgument` that names the field.
    pub fn parse(call: NodePublishVolumeRequest, kubelet: &Path) -> Result<Self> {
        let NodePublishVolumeRequest {
            volume_id: handle,
            target_path,
            volume_capability,
            readonly: read_only,
            secrets,
            volume_context: context,
            publish_context: _,
            staging_target_path: _,
        } = call;
        let attribute = |key| context.get(key).map(String::as_str);
        if handle.is_empty() {
            return Err(Error::invalid(
                "volume_id is missing: set spec.csi.volumeHandle of the PersistentVolume",
            ));
        }
        let target = Target::parse("target_path", &target_path, kubelet)?;
        let capability = volume_capability.ok_or_else(|| Error::invalid("volume_capability is missing"))?;
        let mount = match capability.access_type {
            Some(AccessType::Mount(mount)) => mount,
            Some(AccessType::Block(_)) => {
                return Err(Error::invalid(
                    "volume_capability asks for a block device, and a bucket is a file system: \
                     set volumeMode: Filesystem in PersistentVolume and PersistentVolumeClaim",
                ));
            }
            None => return Err(Error::invalid("volume_capability.access_type is missing: it must be mount")),
        };
        let mode = capability.access_mode.map_or(Mode::Unknown, |access| access.mode());
        let (volume_read_only, single_writer) = match mode {
            Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly => (true, false),
            Mode::SingleNodeSingleWriter => (false, true),
            Mode::SingleNodeWriter
            | Mode::SingleNodeMultiWriter
            | Mode::MultiNodeSingleWriter
            | Mode::MultiNodeMultiWriter => (false, false),
            Mode::Unknown => {
                return Err(Error::invalid(
                    "volume_capability.access_mode is missing or unknown: set accessModes of the PersistentVolume to \
                     ReadWriteMany, ReadOnlyMany, ReadWriteOnce or ReadWriteOncePod",
                ));
            }
        };
        let is_inline = attribute(volume::CONTEXT_EPHEMERAL) == Some("true");
        let volume = if is_inline { handle.clone() } else { target.volume(&handle) };
        if is_inline {
            check_inline(&context, &secrets)?;
        }
        let Attributes {
            bucket,
            prefix,
            region,
            endpoint_url,
            sts_region,
            engine_env,
            authentication_source,
        } = Attributes::read(&context, &volume, is_inline)?;
        let workload_uid = target.workload_uid(attribute(volume::CONTEXT_POD_UID));
        let named = |key| attribute(key).filter(|it| !it.is_empty()).map(str::to_owned);
        let workload = named(volume::CONTEXT_POD_NAMESPACE).zip(named(volume::CONTEXT_POD_NAME));
        let workload = workload.map(|(namespace, name)| {
            let uid = workload_uid.clone();
            WorkloadRef { namespace, name, uid }
        });
        let is_ours = |key: &str| volume::is_known(key) || is_inline && key == volume::MOUNT_OPTIONS;
        let (mut known_attributes, unknown): (Vec<_>, Vec<_>) =
            context.keys().cloned().partition(|key| is_ours(key));
        known_attributes.sort();
        let mut unknown_attributes: Vec<_> =
            unknown.iter().map(|key| key.escape_debug().to_string()).collect();
        unknown_attributes.sort();
        let of_cache = |key: &&str| {
            [
                volume::CACHE,
                volume::CACHE_SIZE_LIMIT,
                volume::CACHE_MEDIUM,
                volume::CACHE_CLASS,
                volume::CACHE_REQUEST,
            ]
            .contains(key)
        };
        let cache = context.iter().filter(|(key, _)| of_cache(&key.as_str()));
        let cache = cache.map(|(key, value)| (key.clone(), value.clone())).collect();
        let fs_group = match mount.volume_mount_group.as_str() {
            "" => None,
            group => Some(group.parse().map_err(|_| {
                Error::invalid(format!("volume_mount_group {group:?} is not the number of a group"))
            })?),
        };
        Ok(Self {
            workload_uid,
            workload,
            handle,
            volume,
            target,
            bucket,
            prefix,
            region,
            endpoint_url,
            sts_region,
            engine_env,
            cache,
            mount_options: match is_inline {
                true => volume::inline_options(context.get(volume::MOUNT_OPTIONS).map(String::as_str)),
                false => mount.mount_flags,
            },
            inline: is_inline,
            fs_group,
            read_only,
            volume_read_only,
            single_writer,
            authentication_source,
            known_attributes,
            unknown_attributes,
            secrets,
            tokens: context.into_iter().filter(|(key, _)| key == volume::CONTEXT_TOKENS).collect(),
        })
    }
}

impl PublishRequest {
    /// A digest of the place of the data: bucket, prefix and store, which users can't edit in a PersistentVolume. Mount options are not
    /// included: users can edit them, but a source keeps its own.
    #[must_use]
    pub fn place(&self) -> String {
        let (prefix, store) = (self.prefix.as_deref(), self.endpoint_url.as_deref());
        digest(&[&self.bucket, prefix.unwrap_or_default(), store.unwrap_or_default()])
    }
}

/// The attributes of a volume for its data and credentials.
pub(super) struct Attributes {
    pub(super) bucket: String,
    pub(super) prefix: Option<String>,
    region: Option<String>,
    endpoint_url: Option<String>,
    sts_region: Option<String>,
    engine_env: Vec<(String, String)>,
    pub(super) authentication_source: AuthenticationSource,
}

impl Attributes {
    /// Parses the attributes of a volume. Skips attributes that the kubelet added.
    ///
    /// # Errors
    /// `InvalidArgument` that names the attribute and the volume.
    pub(super) fn read(context: &HashMap<String, String>, volume: &str, inline: bool) -> Result<Self> {
        let named = |key| context.get(key).filter(|it| !it.is_empty()).cloned();
        let bucket = bucket(context, volume, inline)?;
        let source = context.get(volume::AUTHENTICATION_SOURCE).map(String::as_str);
        let authentication_source = AuthenticationSource::parse(source)?;
        let prefix = prefix(named(volume::PREFIX), volume)?;
        let endpoint_url = named(volume::ENDPOINT_URL);
        if endpoint_url.is_some() && is_arn(&bucket) {
            return Err(Error::invalid(format!(
                "{} is an ARN, which names a bucket of AWS, and {} names another store: leave one of them out of volumeAttributes of \
                 PersistentVolume {volume}",
                volume::BUCKET_NAME,
                volume::ENDPOINT_URL
            )));
        }
        Ok(Self {
            prefix,
            region: region_name(volume::REGION, named(volume::REGION), volume)?,
            endpoint_url,
            sts_region: region_name(volume::STS_REGION, named(volume::STS_REGION), volume)?,
            engine_env: engine_env(context, volume)?,
            authentication_source,
            bucket,
        })
    }
}

/// Checks an inline volume, which any author of pods can write. It gets only the credentials of a Secret that it
/// names, and may only name a bucket and a prefix.
fn check_inline(context: &HashMap<String, String>, secrets: &HashMap<String, String>) -> Result<()> {
    if secrets.keys().all(|key| key.starts_with(volume::OF_KUBELET)) {
        return Err(Error::invalid(
            "an inline volume never uses the driver's keys: name a Secret of the pod's namespace in csi.nodePublishSecretRef of the volume",
        ));
    }
    let may =
        |key: &&String| key.starts_with(volume::OF_KUBELET) || volume::OF_INLINE.contains(&key.as_str());
    match context.keys().filter(|key| !may(key)).min() {
        Some(key) => Err(Error::invalid(format!(
            "volumeAttributes of an inline volume are {}, and not {}: an administrator may write a PersistentVolume",
            volume::OF_INLINE.join(", "),
            key.escape_debug()
        ))),
        None => Ok(()),
    }
}

/// Checks a region, which becomes a part of a host name: the token service's, and the store's if no endpoint is set.
fn region_name(key: &str, attribute: Option<String>, volume: &str) -> Result<Option<String>> {
    match attribute {
        Some(region) if !volume::is_region(&region) => Err(Error::invalid(format!(
            "{key} {region:?} is not a valid region: set it in spec.csi.volumeAttributes of PersistentVolume {volume}"
        ))),
        region => Ok(region),
    }
}

/// Parses the engine's proxy variables. Other variables are refused: they could lead the engine to other credentials.
fn engine_env(context: &HashMap<String, String>, volume: &str) -> Result<Vec<(String, String)>> {
    let named =
        context.iter().filter_map(|(key, value)| Some((key.strip_prefix(volume::ENGINE_ENV)?, value)));
    let mut env = Vec::new();
    for (name, value) in named {
        if !volume::ENGINE_VARIABLES.contains(&name) {
            return Err(Error::invalid(format!(
                "{}{} is not allowed: a volume may set {} there. Look at spec.csi.volumeAttributes of PersistentVolume {volume}",
                volume::ENGINE_ENV,
                name.escape_debug(),
                volume::ENGINE_VARIABLES.join(", ")
            )));
        }
        // The error does not show the value, which may contain a password.
        if value.chars().any(char::is_control) {
            return Err(Error::invalid(format!(
                "{}{name} holds a character that can't be printed: look at spec.csi.volumeAttributes of PersistentVolume {volume}",
                volume::ENGINE_ENV
            )));
        }
        env.push((name.to_owned(), value.clone()));
    }
    env.sort();
    Ok(env)
}

/// Checks the prefix, which must end in a slash: the volume must not see the keys of a neighbour such as `prefix-2`.
fn prefix(attribute: Option<String>, volume: &str) -> Result<Option<String>> {
    match attribute {
        Some(prefix) if !prefix.ends_with('/') || prefix.chars().any(char::is_control) => {
            Err(Error::invalid(format!(
                "{} {prefix:?} must end in '/': set it in spec.csi.volumeAttributes of PersistentVolume {volume}",
                volume::PREFIX
            )))
        }
        prefix => Ok(prefix),
    }
}

/// The bucket: a name, or the ARN of an access point. The value becomes an argument of the engine, so it must not look like a
/// flag, a URL or a path.
fn bucket(context: &HashMap<String, String>, volume: &str, inline: bool) -> Result<String> {
    let name = context.get(volume::BUCKET_NAME).map(|it| it.trim()).unwrap_or_default();
    let place = match inline {
        true => "volumeAttributes of the volume in the pod's manifest".to_owned(),
        false => format!("spec.csi.volumeAttributes of PersistentVolume {volume}"),
    };
    let refused = |what: &str| Error::invalid(format!("{} {what}: set it in {place}", volume::BUCKET_NAME));
    if name.is_empty() {
        return Err(match misspelt(context) {
            Some(other) => refused(&format!("is missing, and the driver does not know {other:?}")),
            None => refused("is missing"),
        });
    }
    let is_arn = is_arn(name);
    if is_arn && inline {
        return Err(refused("is an ARN, and an inline volume takes a bucket's name alone"));
    }
    if !is_arn && !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(refused(&format!("{name:?} must begin with a letter or a digit")));
    }
    if name.contains('/') && !is_arn {
        let remedy = "is not a bucket's name. The attribute prefix names a folder of a bucket";
        return Err(refused(&format!("{name:?} {remedy}")));
    }
    check_name(name).map_err(|why| refused(&format!("{name:?} is invalid: {why}")))?;
    Ok(name.to_owned())
}

/// Whether an ARN names the bucket: then the ARN determines the place, and no endpoint is used.
#[must_use]
pub fn is_arn(bucket: &str) -> bool {
    bucket.starts_with("arn:")
}

/// The unknown attribute whose name is most similar to the bucket's, if it is similar enough.
fn misspelt(context: &HashMap<String, String>) -> Option<&str> {
    let unknown = context.keys().map(String::as_str).filter(|key| !volume::is_known(key));
    let like = unknown.map(|key| (strsim::osa_distance(&key.to_lowercase(), "bucketname"), key)).min();
    like.filter(|(distance, _)| *distance <= MISSPELT_MAX).map(|(_, key)| key)
}

#[cfg(test)]
mod tests;
