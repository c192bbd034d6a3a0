//! The parameters of a StorageClass. Enters: keys and values as an administrator wrote them. Leaves: checked settings, and from them the
//! place of a volume; or an error that names the parameter and the remedy. Pure.
//!
//! Never here: a Secret; the provisioner reads Secrets, and does not pass on the parameters that name them.

use std::collections::HashMap;

use mountpoint::s3::Tags;

use super::bucket_name::{self, NAME_MAX};
use super::cluster::Cluster;
use super::on_delete::OnDelete;
use super::template::{self, PV_NAME, PVC_NAME, PVC_NAMESPACE, Values};
use super::volume_id::{Place, prefix_max};
use crate::contract::volume;
use crate::error::{Error, Result};

/// The template of each volume's bucket name.
pub const BUCKET_NAME_TEMPLATE: &str = "bucketNameTemplate";
/// The bucket that all volumes share, each with its own prefix.
pub const BUCKET_NAME: &str = "bucketName";
/// The template of each volume's prefix.
pub const PREFIX_TEMPLATE: &str = "prefixTemplate";
/// `true`: a volume takes over the objects below its prefix, which may be those of an earlier claim.
pub const ADOPT_PREFIX: &str = "adoptPrefix";
/// The region of buckets and requests.
pub const REGION: &str = "region";
/// The store, if it differs from the driver's.
pub const ENDPOINT_URL: &str = "endpointUrl";
/// Tags for new buckets: `key=value,key=value`.
pub const TAGS: &str = "tags";
/// The fate of data: `keep`, `fail`, `purge`.
pub const ON_DELETE: &str = "onDelete";
/// The source of credentials for mounts of a class without a Secret: `driver` or `pod`.
pub const AUTHENTICATION_SOURCE: &str = volume::AUTHENTICATION_SOURCE;

const OURS: [&str; 9] = [
    BUCKET_NAME_TEMPLATE,
    BUCKET_NAME,
    PREFIX_TEMPLATE,
    ADOPT_PREFIX,
    REGION,
    ENDPOINT_URL,
    TAGS,
    ON_DELETE,
    AUTHENTICATION_SOURCE,
];
/// Names and namespaces of Secrets. The side-car reads them, and the usual one does not pass them on.
const SECRETS: [(&str, &str); 2] = [
    ("csi.storage.k8s.io/provisioner-secret-name", "csi.storage.k8s.io/provisioner-secret-namespace"),
    ("csi.storage.k8s.io/node-publish-secret-name", "csi.storage.k8s.io/node-publish-secret-namespace"),
];
/// Most tags of a class; more are refused. S3 allows 50 on a bucket, and some are ours.
const TAGS_MAX: usize = 40;
/// Most characters of a tag's key in S3; a longer one is refused.
const TAG_KEY_MAX: usize = 128;
/// Most characters of a tag's value in S3; a longer one is refused.
const TAG_VALUE_MAX: usize = 256;

/// The settings of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    mode: Mode,
    /// The region of buckets and requests; `None`: the driver's.
    pub region: Option<String>,
    /// The store; `None`: the driver's.
    pub endpoint_url: Option<String>,
    /// The fate of data.
    pub on_delete: OnDelete,
    /// Whether mounts use the identity of their workload.
    pub of_pod: bool,
    tags: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Mode {
    /// A bucket for each volume, named by this template, or by a digest of the request.
    Buckets(Option<String>),
    /// A prefix for each volume in one bucket. `adopts`: whether a volume takes over existing objects.
    Prefixes { bucket: String, template: String, adopts: bool },
}

/// The place of a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The bucket or prefix.
    pub place: Place,
    /// Whether the bucket's name contains a salted digest of the request, so no other request has this name.
    pub is_digest: bool,
    /// Whether another claim may have had this prefix: then it must have no objects.
    pub must_be_empty: bool,
}

impl Parameters {
    /// Parses the parameters of a call.
    ///
    /// # Errors
    /// `InvalidArgument` that names the parameter.
    pub fn parse(given: &HashMap<String, String>) -> Result<Self> {
        let mut unknown: Vec<_> = given.keys().filter(|key| !is_known(key)).collect();
        unknown.sort();
        if let Some(unknown) = unknown.first() {
            return Err(Error::invalid(format!(
                "parameter {} of the StorageClass is unknown: {}",
                unknown.escape_debug(),
                hint(unknown)
            )));
        }
        for (name, namespace) in SECRETS {
            if given.contains_key(name) != given.contains_key(namespace) {
                return Err(Error::invalid(format!(
                    "parameters {name} and {namespace} belong together: set both, or none"
                )));
            }
        }
        let said = |key| given.get(key).map(|it: &String| it.trim()).filter(|it| !it.is_empty());
        let adopts = match said(ADOPT_PREFIX) {
            None | Some("false") => false,
            Some("true") if said(BUCKET_NAME).is_some() => true,
            Some("true") => {
                return Err(Error::invalid(format!(
                    "parameter {ADOPT_PREFIX} needs {BUCKET_NAME}, the bucket of all prefixes"
                )));
            }
            Some(other) => {
                return Err(Error::invalid(format!(
                    "parameter {ADOPT_PREFIX} {other:?} is neither \"true\" nor \"false\""
                )));
            }
        };
        let mode = Mode::of(said(BUCKET_NAME_TEMPLATE), said(BUCKET_NAME), said(PREFIX_TEMPLATE), adopts)?;
        let on_delete = match said(ON_DELETE) {
            None => OnDelete::default(),
            Some(text) => OnDelete::parse(text).ok_or_else(|| {
                Error::invalid(format!("parameter {ON_DELETE} {text:?} is none of keep, fail, purge"))
            })?,
        };
        if let Mode::Prefixes { template, .. } = &mode
            && on_delete == OnDelete::Purge
            && !is_unique(template)
        {
            // A claim that is created again under its name would lose its data with the deletion of the old volume.
            return Err(Error::invalid(format!(
                "parameter {PREFIX_TEMPLATE} {template:?} with {ON_DELETE}: purge: two volumes may get one prefix, and the deletion of \
                 one would take the data of the other; put ${{pv.name}} into it"
            )));
        }
        let region = said(REGION);
        if let Some(region) = region
            && !volume::is_region(region)
        {
            return Err(Error::invalid(format!(
                "parameter {REGION} {region:?} is not the name of a region, such as eu-west-1"
            )));
        }
        let of_pod = match said(AUTHENTICATION_SOURCE) {
            None | Some("driver") => false,
            Some(volume::SOURCE_POD) => true,
            Some(other) => {
                return Err(Error::invalid(format!(
                    "parameter {AUTHENTICATION_SOURCE} {other:?} is neither driver nor pod; for keys of a Secret name that by {}",
                    SECRETS[1].0
                )));
            }
        };
        Ok(Self {
            mode,
            of_pod,
            region: region.map(str::to_owned),
            endpoint_url: said(ENDPOINT_URL).map(|it| it.trim_end_matches('/').to_owned()),
            on_delete,
            tags: tags(said(TAGS).unwrap_or_default())?,
        })
    }

    /// Chooses the place of this request's volume.
    ///
    /// # Errors
    /// `InvalidArgument`: a template that can't be filled in, or whose result is not a valid bucket name or prefix.
    pub fn place(&self, cluster: &Cluster, request: &str, values: &Values) -> Result<Chosen> {
        match &self.mode {
            Mode::Buckets(None) => {
                let place = Place::Bucket(bucket_name::of_request(cluster, request));
                Ok(Chosen { place, is_digest: true, must_be_empty: false })
            }
            Mode::Buckets(Some(template)) => {
                let filled = values.fill(BUCKET_NAME_TEMPLATE, template)?;
                let (name, was_cut) = bucket_name::shortened(cluster, request, &filled, NAME_MAX);
                if let Some(fault) = bucket_name::fault(&name) {
                    return Err(Error::invalid(format!(
                        "parameter {BUCKET_NAME_TEMPLATE} {template:?} makes the bucket's name {name:?}, which {fault}"
                    )));
                }
                let is_digest = was_cut || template::has(template, "hash");
                Ok(Chosen { place: Place::Bucket(name), is_digest, must_be_empty: false })
            }
            Mode::Prefixes { bucket, template, adopts } => {
                let filled = values.fill(PREFIX_TEMPLATE, template)?;
                let whole = filled.trim_end_matches('/');
                if let Some(fault) = prefix_fault(whole) {
                    return Err(Error::invalid(format!(
                        "parameter {PREFIX_TEMPLATE} {template:?} makes the prefix {filled:?}, which {fault}"
                    )));
                }
                let (prefix, was_cut) = bucket_name::shortened(cluster, request, whole, prefix_max(bucket));
                let place = Place::Prefix { bucket: bucket.clone(), prefix };
                let must_be_empty = !adopts && !was_cut && !is_unique(template);
                Ok(Chosen { place, is_digest: was_cut, must_be_empty })
            }
        }
    }

    /// The class's tags for a new bucket.
    ///
    /// # Errors
    /// `InvalidArgument`: a template that can't be filled in, or a tag that S3 does not accept.
    pub fn tags(&self, values: &Values) -> Result<Tags> {
        let mut filled = Tags::new();
        for (key, template) in &self.tags {
            let value = values.fill(TAGS, template)?;
            if value.chars().count() > TAG_VALUE_MAX || !value.chars().all(may_be_in_tag) {
                return Err(Error::invalid(format!(
                    "parameter {TAGS}: the value of {key:?} is longer than {TAG_VALUE_MAX} characters or has characters other \
                     than letters, digits, space and '+-=._:/@'"
                )));
            }
            filled.insert(key.clone(), value);
        }
        Ok(filled)
    }
}

impl Mode {
    fn of(template: Option<&str>, bucket: Option<&str>, prefix: Option<&str>, adopts: bool) -> Result<Self> {
        match (template, bucket, prefix) {
            (Some(_), Some(_), _) => Err(Error::invalid(format!(
                "parameters {BUCKET_NAME_TEMPLATE} and {BUCKET_NAME} exclude each other: the first makes a bucket for each claim, the \
                 second puts all claims into one bucket"
            ))),
            (_, None, Some(_)) => Err(Error::invalid(format!(
                "parameter {PREFIX_TEMPLATE} needs {BUCKET_NAME}, the bucket of all prefixes"
            ))),
            (template, None, None) => Ok(Self::Buckets(template.map(str::to_owned))),
            (None, Some(bucket), prefix) => match bucket_name::fault(bucket) {
                Some(fault) => Err(Error::invalid(format!("parameter {BUCKET_NAME} {bucket:?} {fault}"))),
                None => Ok(Self::Prefixes {
                    bucket: bucket.to_owned(),
                    template: prefix.unwrap_or("${pv.name}").to_owned(),
                    adopts,
                }),
            },
        }
    }
}

/// Whether this template gives each volume a different prefix.
fn is_unique(template: &str) -> bool {
    template::has(template, "pv.name") || template::has(template, "hash")
}

fn is_known(key: &str) -> bool {
    OURS.contains(&key)
        || [PVC_NAME, PVC_NAMESPACE, PV_NAME].contains(&key)
        || SECRETS.iter().any(|(name, namespace)| key == *name || key == *namespace)
}

/// The remedy for an unknown parameter.
fn hint(unknown: &str) -> String {
    match unknown {
        // Examples of release 2.2 had this parameter, which had no effect.
        "bucketNamePrefix" => {
            return format!("write {BUCKET_NAME_TEMPLATE}: <prefix>-${{hash}} instead, or leave it out");
        }
        volume::CA_CONFIG_MAP => {
            return "the controller service must trust the store, too: give the certificates of all stores to the chart, by \
                    tls.caCertConfigMap or tls.caCertData"
                .to_owned();
        }
        "mountOptions" => {
            return "mountOptions is a field of the StorageClass itself, beside parameters".to_owned();
        }
        _ => {}
    }
    let near = OURS
        .iter()
        .map(|known| (strsim::osa_distance(&unknown.to_lowercase(), &known.to_lowercase()), known));
    match near.min() {
        Some((distance, known)) if distance <= 3 => format!("did you mean {known}?"),
        _ => format!("this driver knows {}", OURS.join(", ")),
    }
}

/// The problem with a prefix, as the end of a sentence.
fn prefix_fault(prefix: &str) -> Option<&'static str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if prefix.is_empty() {
        Some("is empty: the whole bucket would be the volume")
    } else if prefix.starts_with('/') || prefix.contains("//") {
        Some("holds an empty name: write a/b, without a slash at the beginning and without two in a row")
    } else if prefix.split('/').any(|name| name == "." || name == "..") {
        Some("holds the name '.' or '..'")
    } else if !prefix.chars().all(is_plain) {
        Some("may hold only letters, digits, '-', '_', '.' and '/'")
    } else {
        None
    }
}

fn may_be_in_tag(c: char) -> bool {
    c.is_alphanumeric() || " +-=._:/@".contains(c)
}

fn tags(text: &str) -> Result<Vec<(String, String)>> {
    let mut tags: Vec<(String, String)> = Vec::new();
    for pair in text.split(',').map(str::trim).filter(|it| !it.is_empty()) {
        let wrong = |what: &str| {
            Err(Error::invalid(format!("parameter {TAGS}: {pair:?} {what}: key=value,key=value")))
        };
        let Some((key, value)) = pair.split_once('=') else { return wrong("has no '='") };
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() || key.chars().count() > TAG_KEY_MAX || !key.chars().all(may_be_in_tag) {
            return wrong("has a key that no tag can have");
        }
        if key.starts_with("aws:") || key.starts_with(super::tags::PREFIX) {
            return wrong("has a key that is reserved");
        }
        if tags.iter().any(|(known, _)| known == key) {
            return wrong("is there twice");
        }
        tags.push((key.to_owned(), value.to_owned()));
    }
    if tags.len() > TAGS_MAX {
        return Err(Error::invalid(format!("parameter {TAGS}: at most {TAGS_MAX} tags")));
    }
    Ok(tags)
}

#[cfg(test)]
mod tests;
