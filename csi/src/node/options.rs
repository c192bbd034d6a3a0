//! Mount options. Enters: the volume's options, and those that the call adds. Leaves: the exact arguments of the engine.
//!
//! Only this file adds, moves, drops or refuses a flag, and [`TABLE`] has the rule for each flag. The engine's own
//! parser checks the result, so a typo fails the call, not a Mountpoint Pod later.
//!
//! Never here: a path of the node, a credential.

use std::collections::BTreeSet;

use clap::{CommandFactory as _, FromArgMatches as _};
use mountpoint::cli::Args;

use crate::contract::cache::{self, Cache};
use crate::contract::stage::{self, Stage};
use crate::contract::{VERSION, volume};
use crate::error::{Error, Result};

use super::credentials::AuthenticationSource;
use super::publish::is_arn;

/// The rule for an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The engine gets the option unchanged.
    Pass,
    /// The option is left out, and an Event gives this reason: it changes neither reads nor stored bytes, or release 2.2 left it
    /// out. Volumes with the option still mount.
    Strip(&'static str),
    /// The driver sets the option itself; the volume's value is ignored.
    Own,
    /// The engine gets the option with this value in place of the volume's.
    Fixed(&'static str),
    /// The engine gets the option's value in this environment variable.
    Env(&'static str),
    /// The call fails with this reason and remedy.
    Refuse(&'static str),
}

use Rule::{Env, Fixed, Own, Pass, Refuse, Strip};

const ONE_STORE: &str = "the driver serves one store; s3.endpointUrl of the chart has its address";
const NOT_HERE: &str =
    "the driver does not support S3 Express One Zone, so every bucket is a general purpose one";
const NO_PATHS: &str = "the engine runs in a pod of its own, where paths of the node do not exist; caBundleConfigMap in the volumeAttributes, \
     or tls.caCertConfigMap of the chart, names certificates to trust besides the public ones";
const NO_FILES: &str = "the engine runs in a pod of its own, and 'kubectl logs' shows its log";

const OWN_STAGE: &str = "with 'mode full' the driver gives the engine a directory of its pod, of the size that 'stage-size' says; leave it out";
const NO_PASSTHROUGH: &str =
    "only root may have the kernel write files by itself, and engines in pods are not root; leave it out";

/// Every option of the engine; also options of AWS's engine and of release 2.2's driver that volumes may have and our engine does not.
/// Sorted.
pub const TABLE: &[(&str, Rule)] = &[
    ("allow-append", Pass),
    ("allow-delete", Pass),
    ("allow-other", Pass),
    ("allow-overwrite", Pass),
    ("allow-rename", Pass),
    ("allow-root", Pass),
    ("auto-unmount", Own),
    ("aws-max-attempts", Env("AWS_MAX_ATTEMPTS")),
    ("bind", Refuse("the engine has the network of its pod, as Kubernetes gives it; leave it out")),
    ("bucket-type", Strip(NOT_HERE)),
    ("ca-bundle", Strip(NO_PATHS)),
    ("cache", Fixed(cache::DIRECTORY)),
    ("cache-block-size", Strip("blocks of the cache have 1 MiB")),
    ("cache-passthrough", Pass),
    ("cache-xz", Strip(NOT_HERE)),
    ("check-journal", Own),
    ("commit", Pass),
    ("control-socket", Own),
    ("debug", Pass),
    ("debug-crt", Strip("the engine has no CRT; 'debug' and 'log-filter' show its requests")),
    ("dir-mode", Pass),
    ("directory-markers", Pass),
    ("dual-stack", Strip(ONE_STORE)),
    ("endpoint-url", Strip(ONE_STORE)),
    ("expected-bucket-owner", Pass),
    ("extra-ca-bundle", Strip(NO_PATHS)),
    ("file-mode", Pass),
    ("force-path-style", Pass),
    ("foreground", Own),
    ("fuse-transport", Pass),
    ("gid", Pass),
    ("help", Own),
    ("ignore-attributes", Pass),
    ("incremental-upload", Strip(NOT_HERE)),
    ("infer-content-type", Pass),
    ("keep-metadata", Pass),
    ("log-directory", Strip(NO_FILES)),
    ("log-filter", Pass),
    ("log-format", Pass),
    ("log-metrics", Pass),
    ("max-attempts", Pass),
    ("max-cache-size", Pass),
    ("max-threads", Pass),
    ("maximum-throughput-gbps", Pass),
    ("memory-target", Pass),
    ("metadata-ttl", Pass),
    ("metrics-listen", Refuse("set metrics.enginePort of the chart, or use 'log-metrics'")),
    ("mode", Pass),
    ("negative-metadata-ttl", Pass),
    ("no-log", Pass),
    ("no-sign-request", Pass),
    ("o", Strip("the driver sets the options of mount(8) itself; for a read-only mount use 'read-only'")),
    ("operation-timeout", Pass),
    ("otlp-endpoint", Pass),
    ("otlp-export-interval", Pass),
    ("part-size", Pass),
    ("prefix", Pass),
    (
        "profile",
        Strip("the driver gives the engine its keys; set nodePublishSecretRef of the volume to use others"),
    ),
    ("read-mode", Pass),
    ("read-only", Pass),
    ("read-part-size", Pass),
    ("ready-file", Own),
    ("region", Pass),
    ("rename-errno", Pass),
    ("rename-limit", Pass),
    ("requester-pays", Pass),
    ("sandbox", Pass),
    ("sign-payload", Pass),
    (
        "spill-dir",
        Refuse(
            "the engine runs in a pod of its own; use 'cache', where it also puts parts that do not fit in memory",
        ),
    ),
    ("sse", Pass),
    ("sse-kms-key-id", Pass),
    ("stage", Refuse(OWN_STAGE)),
    ("stage-passthrough", Refuse(NO_PASSTHROUGH)),
    ("stage-size", Pass),
    ("state-dir", Own),
    ("storage-class", Strip("the store's default class is used")),
    ("store", Pass),
    ("supervised", Own),
    ("transfer-acceleration", Strip(ONE_STORE)),
    ("uid", Pass),
    ("upload-checksums", Pass),
    ("user-agent-prefix", Own),
    ("version", Own),
    ("write-part-size", Pass),
    ("xattrs", Pass),
];

/// The inputs for the options.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The PersistentVolume, for messages.
    pub volume: &'a str,
    /// The bucket, for the check by the engine's parser.
    pub bucket: &'a str,
    /// The prefix of the volume's attributes.
    pub prefix: Option<&'a str>,
    /// The volume's mount options.
    pub options: &'a [String],
    /// Whether the volume is inline: then any author of pods may have written its options.
    pub inline: bool,
    /// The cache, if the Mountpoint Pod has a volume for it.
    pub cache: Option<&'a Cache>,
    /// The reason why the mounter has no place for a stage; `None`: it has one.
    pub no_stage: Option<&'static str>,
    /// Whether a stage outlives its engine's pod.
    pub keeps_stages: bool,
    /// The workload's fsGroup.
    pub fs_group: Option<u32>,
    /// Whether the access mode forbids writes.
    pub read_only: bool,
    /// The source of the credentials, for the user agent.
    pub source: AuthenticationSource,
    /// The API server's version, if it is known.
    pub kubernetes: Option<&'a str>,
}

/// The options for the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Flags, sorted: `--key` or `--key=value`.
    pub args: Vec<String>,
    /// Environment variables.
    pub env: Vec<(String, String)>,
    /// Whether the mount is read-only, by the access mode or by an option.
    pub read_only: bool,
    /// Options that were left out, with the reason, for the log and an Event.
    pub stripped: Vec<(String, &'static str)>,
    /// Options that the driver sets itself, with the reason, for the log.
    pub overruled: Vec<(String, &'static str)>,
}

impl MountOptions {
    /// Applies the rules.
    ///
    /// # Errors
    /// `InvalidArgument` that names the option, and the volume that has it.
    pub fn new(inputs: &Inputs<'_>) -> Result<Self> {
        let refuse = |what: String| {
            Error::invalid(match inputs.inline {
                true => format!("{what}: fix the mountOptions of the volume in the pod's manifest"),
                false => format!("{what}: fix the mountOptions of PersistentVolume {}", inputs.volume),
            })
        };
        let mut flags = Flags::default();
        let mut made = Self::default();
        for item in inputs.options {
            let Some((name, value)) = split(item) else { continue };
            let Some(rule) = rule(&name) else {
                return Err(refuse(unknown(&name)));
            };
            if inputs.inline && volume::NOT_INLINE.contains(&name.as_str()) {
                return Err(refuse(format!(
                    "mount option '{name}' is not allowed in an inline volume, only in a PersistentVolume, which an administrator writes"
                )));
            }
            match rule {
                Pass => flags.add(&name, value),
                Own => made.overruled.push((name, "the driver sets it")),
                Strip(why) => made.stripped.push((name, why)),
                Fixed(value) => {
                    made.overruled.push((name.clone(), value));
                    flags.set(&name, value);
                }
                Refuse(why) => return Err(refuse(format!("mount option '{name}' is not allowed: {why}"))),
                Env(variable) => {
                    if !value.is_some_and(|it| it.parse::<u32>().is_ok_and(|n| n > 0)) {
                        return Err(refuse(format!("mount option '{name}' takes a number from 1 on")));
                    }
                    let value = value.unwrap_or_default().to_owned();
                    if made.env.iter().any(|(key, other)| key == variable && *other != value) {
                        return Err(refuse(format!("mount option '{name}' is given twice")));
                    }
                    made.env.retain(|(key, _)| key != variable);
                    made.env.push((variable.to_owned(), value));
                }
            }
        }
        if inputs.prefix.is_some() && flags.has("prefix") {
            return Err(refuse(
                "mount option 'prefix' stands beside the attribute prefix of the volume".to_owned(),
            ));
        }
        if is_arn(inputs.bucket) && flags.has("force-path-style") {
            return Err(refuse(
                "mount option 'force-path-style' does not go with the ARN in bucketName, whose host names the bucket".to_owned(),
            ));
        }
        let stage = Stage::read(inputs.options).map_err(refuse)?;
        if let Some(stage) = stage {
            if let Some(why) = inputs.no_stage {
                return Err(refuse(format!("mount option 'mode full' is not allowed: {why}")));
            }
            stage.check(inputs.keeps_stages).map_err(refuse)?;
            flags.set("stage", stage::DIRECTORY);
        }
        flags.complete(inputs);
        made.read_only = flags.has("read-only");
        made.args = flags.args();
        try_out(inputs.bucket, &made.args).map_err(refuse)?;
        Ok(made)
    }
}

impl MountOptions {
    /// Leaves out more options, which the mounter can't follow.
    pub fn leave_out(&mut self, names: &[&str], why: &'static str) {
        let stripped = &mut self.stripped;
        self.args.retain(|arg| {
            let name = arg.trim_start_matches('-').split('=').next().unwrap_or_default();
            let stays = !names.contains(&name);
            if !stays {
                stripped.push((name.to_owned(), why));
            }
            stays
        });
    }

    /// A sentence for the volume's users about the options that were left out; `None` if there are none.
    #[must_use]
    pub fn left_out(&self, volume: &str) -> Option<String> {
        let each: Vec<_> = self.stripped.iter().map(|(name, why)| format!("'{name}' ({why})")).collect();
        (!each.is_empty()).then(|| {
            let each = each.join(", ");
            format!("mount options have no effect: {each}. Take them out of the mountOptions of PersistentVolume {volume}")
        })
    }
}

/// Splits an item into name and value at the first `=` or white space; dashes are optional, short names become long. `None` if it is empty.
fn split(item: &str) -> Option<(String, Option<&str>)> {
    let item = item.trim();
    let (name, value) = match item.split_once(|c: char| c == '=' || c.is_whitespace()) {
        Some((name, value)) => (name, Some(value.trim_start())),
        None => (item, None),
    };
    let bare = name.trim_start_matches('-');
    if bare.is_empty() && value.is_none() {
        return None;
    }
    let long = match (name.starts_with("--"), bare) {
        (false, "d") => "debug",
        (false, "f") => "foreground",
        (false, "h") => "help",
        (false, "l") => "log-directory",
        (false, "v" | "V") => "version",
        _ => bare,
    };
    Some((long.to_owned(), value))
}

fn rule(name: &str) -> Option<Rule> {
    TABLE.binary_search_by_key(&name, |(known, _)| known).ok().map(|at| TABLE[at].1)
}

fn unknown(name: &str) -> String {
    let nearest = TABLE
        .iter()
        .filter(|(_, rule)| matches!(rule, Pass | Fixed(_) | Env(_)))
        .map(|(known, _)| (strsim::normalized_damerau_levenshtein(known, name), *known))
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    match nearest {
        Some((likeness, known)) if likeness >= LIKE => {
            format!("mount option '{}' is unknown, did you mean '{known}'?", name.escape_debug())
        }
        _ => format!("mount option '{}' is unknown", name.escape_debug()),
    }
}

/// Smallest similarity of a suggested name (1 means equal): two wrong letters in five are not a typo.
const LIKE: f64 = 0.6;

/// The set of flags for the engine.
#[derive(Default)]
struct Flags(BTreeSet<(String, Option<String>)>);

impl Flags {
    /// Adds a flag beside others of that name: only the author knows which one is right.
    fn add(&mut self, name: &str, value: Option<&str>) {
        self.0.insert((name.to_owned(), value.map(str::to_owned)));
    }

    /// Sets a flag, in place of others of that name.
    fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.add(name, Some(value));
    }

    fn remove(&mut self, name: &str) {
        self.0.retain(|(known, _)| known != name);
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    fn default_to(&mut self, name: &str, value: &str) {
        if !self.has(name) {
            self.add(name, Some(value));
        }
    }

    /// Adds the driver's options.
    fn complete(&mut self, inputs: &Inputs<'_>) {
        if inputs.read_only {
            self.add("read-only", None);
        }
        if let Some(prefix) = inputs.prefix {
            self.add("prefix", Some(prefix));
        }
        if let Some(cache) = inputs.cache {
            self.set("cache", cache::DIRECTORY);
            self.set("max-cache-size", &cache.max_mib.to_string());
        }
        // The options of a volume with `gid` have set the access already.
        if let Some(group) = inputs.fs_group
            && !self.has("gid")
        {
            self.set("gid", &group.to_string());
            self.default_to("dir-mode", "770");
            self.default_to("file-mode", "660");
            // The kernel's permission check lets the group's members in; --allow-root would keep them out.
            self.remove("allow-root");
            self.add("allow-other", None);
        }
        if !self.has("allow-other") {
            self.add("allow-root", None);
        }
        if !is_arn(inputs.bucket) {
            self.add("force-path-style", None);
        }
        let mut agent = format!("s3-csi-driver/{VERSION} credential-source#{}", inputs.source);
        if let Some(kubernetes) = inputs.kubernetes {
            agent.push_str(" k8s/");
            agent.extend(kubernetes.chars().filter(char::is_ascii_graphic));
        }
        self.set("user-agent-prefix", &agent);
    }

    fn args(self) -> Vec<String> {
        let written = |(name, value): (String, Option<String>)| match value {
            Some(value) => format!("--{name}={value}"),
            None => format!("--{name}"),
        };
        self.0.into_iter().map(written).collect()
    }
}

/// Checks the arguments by the engine's own parser. It does not read the environment, which is this process's, not the engine's.
fn try_out(bucket: &str, args: &[String]) -> std::result::Result<(), String> {
    let command = Args::command().mut_args(|arg| arg.env(clap::builder::Resettable::Reset));
    let line = ["mount-s3", bucket, "/dev/fd/3"].into_iter().chain(args.iter().map(String::as_str));
    let parsed = command.try_get_matches_from(line).and_then(|matches| Args::from_arg_matches(&matches));
    let args = parsed.map_err(|error| {
        let text = error.to_string();
        let said: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
        format!("mount-s3 refuses a mount option: {}", said.join(" ").trim_start_matches("error: "))
    })?;
    args.check().map_err(|error| format!("mount-s3 refuses a mount option: {error}"))
}

#[cfg(test)]
#[path = "options/tests.rs"]
mod tests;
