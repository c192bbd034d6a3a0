//! The driver's configuration, as a node or as the controller service. Enters: flags and variables, as clap has read them. Leaves:
//! one configuration, or the name of a missing setting and where to set it.
//!
//! Never here: a default guessed from the machine.

mod kinds;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args as Group, Parser};
use tracing_subscriber::EnvFilter;

use crate::command_line::{WITHOUT_FLAG, switch, trimmed};
use crate::contract::log::{self, LogFormat};
use crate::contract::pod;
use crate::controller::store;
use crate::error::{Error, Result};
use crate::mounter::shared::Disk;
use crate::node::driver_keys::DriverKeys;
use crate::node::{self, Sts, credentials};
use crate::server::Endpoint;
pub use kinds::{Degraded, MounterKind};

/// The CSI driver of S3 buckets: on one node, or with CSI_CONTROLLER_ONLY=true the service that makes and deletes volumes.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "scality-s3-csi-driver",
    override_usage = "scality-s3-csi-driver [OPTIONS]",
    disable_version_flag = true
)]
pub struct Args {
    /// Address for the calls of the kubelet: unix:///path/to.sock or tcp://address:port
    #[arg(long, default_value = "unix://tmp/csi.sock")]
    pub endpoint: Endpoint,
    /// Name of this node
    #[arg(long, env = "CSI_NODE_NAME")]
    pub node_id: Option<String>,
    /// Name of this node, as the pages of release 2.2 call it; --node-id goes before it
    #[arg(long, env = "NODE_NAME")]
    pub node_name: Option<String>,
    /// Address of GET /healthz
    #[arg(long, default_value = "0.0.0.0:9808")]
    pub health_address: SocketAddr,
    /// How much is logged: 5 shows each call, 6 everything
    #[arg(long = "v", value_name = "LEVEL", default_value_t = 2)]
    pub verbosity: u8,
    /// Directives of the log, like `info,kube=debug`; overrides --v
    #[arg(long, env = "RUST_LOG", value_name = "DIRECTIVES", value_parser = directives)]
    pub log: Option<String>,
    /// Form of log lines: text or json
    #[arg(long, env = log::VARIABLE, default_value = "text")]
    pub log_format: LogFormat,
    /// Version of the engine, for the log
    #[arg(long, env = "MOUNTPOINT_VERSION", value_parser = trimmed)]
    pub mp_version: Option<String>,
    /// Be the service that makes and deletes volumes, and no node
    #[arg(long, env = "CSI_CONTROLLER_ONLY", value_parser = switch)]
    pub controller_only: bool,
    /// URL of the store; needed to run
    #[arg(long, env = "AWS_ENDPOINT_URL", value_name = "URL", value_parser = endpoint_url, hide_env_values = true)]
    pub endpoint_url: Option<String>,
    /// URLs of the other stores that volumes may name, with commas between them
    #[arg(
        long,
        env = "ALLOWED_ENDPOINTS",
        value_name = "URLS",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true
    )]
    pub allowed_endpoints: Endpoints,
    /// Region of volumes that name none
    #[arg(long, env = "AWS_REGION", value_parser = trimmed)]
    pub region: Option<String>,
    /// Directory of the Secret with the driver's own keys: access_key_id, secret_access_key, session_token
    #[arg(long, env = "DRIVER_CREDENTIALS_DIRECTORY", value_name = "DIR")]
    pub credentials_directory: Option<PathBuf>,
    /// Certificates that are trusted besides the system's: by the controller service, and by engines that systemd starts
    #[arg(long, env = "EXTRA_CA_BUNDLE", value_name = "FILE")]
    pub extra_ca_bundle: Option<PathBuf>,
    /// Settings of a node.
    #[command(flatten)]
    pub of_node: OfNode,
    /// Id of the cluster, where it is not the UID of the namespace kube-system; for the controller service
    #[arg(long, env = "CSI_CLUSTER_ID", value_name = "ID", value_parser = trimmed)]
    pub cluster_id: Option<String>,
    /// Keys of the driver.
    #[command(flatten)]
    pub keys: Keys,
    /// Print the version, in JSON
    #[arg(long)]
    pub version: bool,
}

/// Settings that the controller service does not use.
#[derive(Clone, Debug, Group)]
pub struct OfNode {
    /// Directory of the kubelet
    #[arg(long, env = "KUBELET_PATH", value_name = "DIR", default_value = "/var/lib/kubelet", value_parser = kubelet_path)]
    pub kubelet_path: PathBuf,
    /// The part that makes mounts: pod (Mountpoint Pods), shared (the engines pod of the node) or systemd (of the node)
    #[arg(long, env = "NODE_MOUNTER", default_value = "pod")]
    pub mounter: MounterKind,
    /// The part that mounts for new workloads while no reconciler works: systemd, or unavailable if they wait
    #[arg(long, env = "NODE_DEGRADED", default_value = "unavailable")]
    pub degraded: Degraded,
    /// The engine that systemd starts, as the host calls it
    #[arg(long, env = "MOUNT_S3_PATH", value_name = "FILE")]
    pub mount_s3_path: Option<PathBuf>,
    /// The most volumes of the node, with shared
    #[arg(long, env = "SHARED_MAX_VOLUMES", value_name = "NUMBER", default_value_t = 8)]
    pub shared_max_volumes: usize,
    /// The size of all caches of an engines pod together, in MiB, with shared; 0: it has no disk for caches
    #[arg(long, env = "SHARED_CACHE_SIZE", value_name = "MiB", default_value_t = 0)]
    pub shared_cache_size: u64,
    /// The directory of the node's disk for these caches, as the driver sees it; without it, a volume of that pod
    #[arg(long, env = "SHARED_CACHE_DIRECTORY", value_name = "DIR")]
    pub shared_cache_directory: Option<PathBuf>,
    /// A digest of the chart's template for engines pods
    #[arg(long, env = "SHARED_REVISION", value_name = "DIGEST", value_parser = trimmed)]
    pub shared_revision: Option<String>,
    /// Namespace of Mountpoint Pods
    #[arg(long, env = "MOUNTPOINT_NAMESPACE", value_name = "NAMESPACE", default_value = pod::NAMESPACE, value_parser = trimmed)]
    pub mountpoint_namespace: String,
    /// Namespace of the release
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", value_parser = trimmed)]
    pub release_namespace: Option<String>,
    /// Let the kernel read whole files of the caches of Mountpoint Pods by itself (Linux 6.9)
    #[arg(long, env = "KERNEL_READS", value_name = "BOOL", default_value = "true", value_parser = switch, action = clap::ArgAction::Set)]
    pub kernel_reads: bool,
    /// Volumes may have the mount option `mode full` (experimental)
    #[arg(long, env = "STAGES", value_name = "BOOL", default_value = "false", value_parser = switch, action = clap::ArgAction::Set)]
    pub stages: bool,
    /// Directory of this node for the stages of volumes with the mount option `mode full`; without it, stages are volumes of Mountpoint Pods
    #[arg(long, env = "STAGE_DIRECTORY", value_name = "DIR", value_parser = stage_directory)]
    pub stage_directory: Option<PathBuf>,
    /// URL of the token service, instead of AWS's
    #[arg(long, env = "AWS_ENDPOINT_URL_STS", value_name = "URL", value_parser = sts_url, hide_env_values = true)]
    pub sts_endpoint_url: Option<String>,
    /// Audience of the tokens that it gets
    #[arg(long, env = "STS_AUDIENCE", value_name = "AUDIENCE", default_value = "sts.amazonaws.com", value_parser = trimmed)]
    pub sts_audience: String,
    /// URL of an agent on each node that gives keys to service accounts, such as EKS Pod Identity's
    #[arg(long, env = "POD_IDENTITY_AGENT_URL", value_name = "URL", value_parser = agent_url, hide_env_values = true)]
    pub pod_identity_agent_url: Option<String>,
}

/// Keys of the driver in its environment.
#[derive(Clone, Default, Group)]
pub struct Keys {
    /// The driver's key, unless a directory has it
    #[arg(env = ACCESS_KEY_ID, value_name = ACCESS_KEY_ID, hide_env_values = true, help_heading = WITHOUT_FLAG)]
    access_key_id: Option<String>,
    /// Secret of that key
    #[arg(env = SECRET_ACCESS_KEY, value_name = SECRET_ACCESS_KEY, hide_env_values = true, help_heading = WITHOUT_FLAG)]
    secret_access_key: Option<String>,
    /// Token of that key, if it is a temporary one
    #[arg(env = SESSION_TOKEN, value_name = SESSION_TOKEN, hide_env_values = true, help_heading = WITHOUT_FLAG)]
    session_token: Option<String>,
}

const ACCESS_KEY_ID: &str = "AWS_ACCESS_KEY_ID";
const SECRET_ACCESS_KEY: &str = "AWS_SECRET_ACCESS_KEY";
const SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

/// URLs of stores, separated by commas in text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints(Vec<String>);

impl FromStr for Endpoints {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let urls: Vec<_> = text.split(',').map(str::trim).filter(|url| !url.is_empty()).collect();
        match urls.iter().all(|url| is_endpoint(url)) {
            true => Ok(Self(urls.into_iter().map(str::to_owned).collect())),
            false => {
                Err("an entry is not of the form http(s)://host[:port] (s3.allowedEndpoints in the chart)"
                    .to_owned())
            }
        }
    }
}

/// The service that this process runs.
#[derive(Clone, Debug)]
pub enum Start {
    /// The driver of one node.
    Node(Box<Config>),
    /// The controller service (`CSI_CONTROLLER_ONLY=true`).
    Controller(Box<ControllerConfig>),
}

impl Start {
    /// Chooses the service, and makes its configuration from flags and variables.
    ///
    /// # Errors
    /// The same as [`Config::new`].
    pub fn new(args: &Args) -> Result<Self> {
        match args.controller_only {
            true => ControllerConfig::new(args).map(|it| Self::Controller(Box::new(it))),
            false => Config::new(args).map(|it| Self::Node(Box::new(it))),
        }
    }
}

/// The complete configuration of the controller service.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The endpoint for the provisioner's calls.
    pub endpoint: Endpoint,
    /// The address of `/healthz`.
    pub health_address: SocketAddr,
    /// The configuration of the stores.
    pub stores: store::Config,
    /// The cluster's id, if it is not the UID of the namespace `kube-system` (`CSI_CLUSTER_ID`).
    pub cluster_id: Option<String>,
}

impl ControllerConfig {
    fn new(args: &Args) -> Result<Self> {
        Ok(Self {
            endpoint: args.endpoint.clone(),
            health_address: args.health_address,
            stores: store::Config {
                endpoint_url: args.store()?,
                allowed_endpoints: args.allowed_endpoints.0.clone(),
                region: args.region.clone(),
                credentials: args.credentials()?,
                extra_ca_bundles: args.extra_ca_bundle.iter().cloned().collect(),
            },
            cluster_id: args.cluster_id.clone(),
        })
    }
}

/// The part that makes the mounts of a node, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mounting {
    /// Mountpoint Pods: architecture v2.
    Pod {
        /// The systemd that mounts for new workloads while no reconciler works; `None`: they wait.
        degraded: Option<Systemd>,
    },
    /// The engines pod of the node.
    Shared {
        /// Most volumes of the node; one more is refused.
        volumes_max: usize,
        /// The disk for caches.
        disk: Option<Disk>,
        /// The digest of the chart's template for engines pods.
        revision: Option<String>,
    },
    /// The node's systemd: architecture v1.
    Systemd(Systemd),
}

/// Settings of mounts by the node's systemd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Systemd {
    /// The path of the engine on the host.
    pub engine: Option<PathBuf>,
    /// Certificates that engines trust besides the host's.
    pub extra_ca_bundle: Option<PathBuf>,
}

/// The complete configuration of a node's driver.
#[derive(Clone, Debug)]
pub struct Config {
    /// The endpoint for the kubelet's calls.
    pub endpoint: Endpoint,
    /// The address of `/healthz`.
    pub health_address: SocketAddr,
    /// The part that makes the mounts.
    pub mounting: Mounting,
    /// The namespace of Mountpoint Pods.
    pub mountpoint_namespace: String,
    /// Whether the kernel may read files of the caches itself (passthrough).
    pub kernel_reads: bool,
    /// Whether volumes may have the mount option `mode full`.
    pub stages: bool,
    /// The directory of this node for stages.
    pub stage_directory: Option<PathBuf>,
    /// The namespace of the release, if a setting names it.
    pub release_namespace: Option<String>,
    /// The version of the engine, if a setting names it.
    pub mountpoint_version: Option<String>,
    /// The configuration of the service Node.
    pub node: node::Config,
}

impl Config {
    /// Makes the configuration of a node from flags and variables.
    ///
    /// # Errors
    /// `InvalidArgument` that names the flag or variable and where the chart sets it.
    pub fn new(args: &Args) -> Result<Self> {
        let named = [&args.node_id, &args.node_name].into_iter().flatten().map(|name| name.trim());
        let node_id = named.into_iter().find(|name| !name.is_empty()).ok_or_else(|| {
            Error::invalid(
                "the node's name is missing: give --node-id or CSI_NODE_NAME (spec.nodeName of the pod)",
            )
        })?;
        let of_node = &args.of_node;
        let node = node::Config {
            node_id: node_id.to_owned(),
            kubelet: of_node.kubelet_path.clone(),
            endpoint_url: args.store()?,
            allowed_endpoints: args.allowed_endpoints.0.clone(),
            region: args.region.clone(),
            credentials: args.credentials()?,
            sts: Sts {
                endpoint_url: of_node.sts_endpoint_url.clone(),
                audience: of_node.sts_audience.clone(),
            },
            agent_url: of_node.pod_identity_agent_url.clone(),
            kubernetes: None,
            mount_table: PathBuf::from("/proc/self/mountinfo"),
        };
        let systemd = || Systemd {
            engine: of_node.mount_s3_path.clone(),
            extra_ca_bundle: args.extra_ca_bundle.clone(),
        };
        let mounting = match (of_node.mounter, of_node.degraded) {
            (MounterKind::Systemd, _) => Mounting::Systemd(systemd()),
            (MounterKind::Shared, _) => Mounting::Shared {
                volumes_max: of_node.shared_max_volumes,
                disk: Disk::of(of_node.shared_cache_size, of_node.shared_cache_directory.clone()),
                revision: of_node.shared_revision.clone(),
            },
            (MounterKind::Pod, Degraded::Systemd) => Mounting::Pod { degraded: Some(systemd()) },
            (MounterKind::Pod, Degraded::Unavailable) => Mounting::Pod { degraded: None },
        };
        Ok(Self {
            endpoint: args.endpoint.clone(),
            health_address: args.health_address,
            mounting,
            mountpoint_namespace: of_node.mountpoint_namespace.clone(),
            kernel_reads: of_node.kernel_reads,
            stages: of_node.stages,
            stage_directory: of_node.stage_directory.clone(),
            release_namespace: of_node.release_namespace.clone(),
            mountpoint_version: args.mp_version.clone(),
            node,
        })
    }
}

impl Args {
    fn store(&self) -> Result<String> {
        self.endpoint_url.clone().ok_or_else(|| {
            Error::invalid(
                "AWS_ENDPOINT_URL is missing: set s3.endpointUrl in the chart to the URL of your store",
            )
        })
    }

    /// The driver's own credentials, from the mounted Secret, else from the environment. Half a key pair is an error, because it shows a
    /// misspelt name.
    fn credentials(&self) -> Result<DriverKeys> {
        if let Some(directory) = &self.credentials_directory {
            return Ok(DriverKeys::Directory(directory.clone()));
        }
        let Keys { access_key_id, secret_access_key, session_token } = &self.keys;
        let values = [access_key_id, secret_access_key, session_token];
        if values.iter().all(|value| value.is_none()) {
            return Ok(DriverKeys::Fixed(None));
        }
        let [key, secret, token] = values.map(Option::as_deref);
        let keys = credentials::checked(key, secret, token);
        keys.map(|keys| DriverKeys::Fixed(Some(keys))).map_err(|(field, wrong)| {
            let name = match field {
                credentials::Field::AccessKeyId => ACCESS_KEY_ID,
                credentials::Field::SecretAccessKey => SECRET_ACCESS_KEY,
                credentials::Field::SessionToken => SESSION_TOKEN,
            };
            Error::invalid(format!(
                "the driver's credentials are unusable: {name} {wrong}; look at the Secret that s3CredentialSecret.name \
                 of the chart names"
            ))
        })
    }
}

type Parsed<T> = std::result::Result<T, String>;

fn directives(text: &str) -> Parsed<String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn kubelet_path(text: &str) -> Parsed<PathBuf> {
    absolute(text, "node.kubeletPath")
}

fn stage_directory(text: &str) -> Parsed<PathBuf> {
    absolute(text, "mountpointPod.stage.hostPath")
}

fn absolute(text: &str, value: &str) -> Parsed<PathBuf> {
    let path = PathBuf::from(text.trim());
    match path.is_absolute() {
        true => Ok(path),
        false => Err(format!("must be an absolute path ({value} in the chart)")),
    }
}

fn endpoint_url(text: &str) -> Parsed<String> {
    endpoint(text, "not of the form http(s)://host[:port] (s3.endpointUrl in the chart)")
}

fn sts_url(text: &str) -> Parsed<String> {
    endpoint(text, "not of the form http(s)://host[:port] (podIdentity.stsEndpointUrl in the chart)")
}

fn agent_url(text: &str) -> Parsed<String> {
    endpoint(text, "not of the form http(s)://host[:port][/path] (podIdentity.agentUrl in the chart)")
}

fn endpoint(text: &str, wrong: &str) -> Parsed<String> {
    let url = text.trim();
    if is_endpoint(url) { Ok(url.to_owned()) } else { Err(wrong.to_owned()) }
}

/// Whether `url` is a URL of http or https without user, query, fragment and comma.
fn is_endpoint(url: &str) -> bool {
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    host.is_some_and(|rest| {
        rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
            && rest.chars().all(|c| c.is_ascii_graphic())
            && !rest.contains(['@', '?', '#', ','])
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::command_line::try_read;

    const URL: &str = "--endpoint-url=http://s3.example.com:8000";

    fn args(line: &[&str]) -> Args {
        try_read(["driver"].iter().chain(line)).unwrap()
    }

    fn config(line: &[&str]) -> Config {
        Config::new(&args(line)).unwrap()
    }

    fn keys(values: [Option<&str>; 3]) -> Keys {
        let [access_key_id, secret_access_key, session_token] = values.map(|it| it.map(str::to_owned));
        Keys { access_key_id, secret_access_key, session_token }
    }

    #[test]
    fn flags_of_a_node_are_understood() {
        let args = args(&[
            URL,
            "--endpoint=unix:/csi/csi.sock",
            "--node-id=worker-1",
            "--v=4",
            "--kubelet-path=/var/snap/kubelet",
            "--mountpoint-namespace=elsewhere",
            "--region= eu-west-1\n",
        ]);
        let config =
            Config::new(&Args { keys: keys([Some("AKIA1\n"), Some("hush"), None]), ..args }).unwrap();
        assert_eq!(config.endpoint.to_string(), "unix:///csi/csi.sock");
        assert_eq!(config.mountpoint_namespace, "elsewhere");
        let node = config.node;
        assert_eq!(
            (node.node_id.as_str(), node.kubelet.as_path()),
            ("worker-1", Path::new("/var/snap/kubelet"))
        );
        assert_eq!(
            (node.endpoint_url.as_str(), node.region.as_deref()),
            ("http://s3.example.com:8000", Some("eu-west-1"))
        );
        let keys = node.credentials.read().unwrap().unwrap();
        assert_eq!((keys.access_key_id.as_str(), keys.session_token), ("AKIA1", None));
    }

    #[test]
    fn settings_that_are_left_out_have_a_default() {
        let config = config(&[URL, "--node-id=worker-2"]);
        assert_eq!(config.node.node_id, "worker-2");
        let named = |line: &[&str]| self::config(line).node.node_id;
        assert_eq!(named(&[URL, "--node-name=worker-3", "--node-id="]), "worker-3");
        assert_eq!(named(&[URL, "--node-name=worker-3", "--node-id=worker-2"]), "worker-2");
        assert_eq!(config.node.kubelet, Path::new("/var/lib/kubelet"));
        assert_eq!(config.mountpoint_namespace, "mount-s3");
        assert_eq!(config.health_address.port(), 9808);
        assert!(config.node.credentials.read().unwrap().is_none() && config.node.region.is_none());
    }

    #[test]
    fn the_chart_chooses_how_mounts_are_made() {
        let mounting = |flags: &[&str]| config(&[&[URL, "--node-id=n"], flags].concat()).mounting;
        let pod = Mounting::Pod { degraded: None };
        assert_eq!((mounting(&[]), mounting(&["--mounter=pod"])), (pod.clone(), pod.clone()));
        assert_eq!(mounting(&["--degraded=unavailable"]), pod);
        let degraded = ["--degraded=systemd", "--mount-s3-path=/opt/x/mount-s3"];
        let by = Systemd { engine: Some("/opt/x/mount-s3".into()), extra_ca_bundle: None };
        assert_eq!(mounting(&degraded), Mounting::Pod { degraded: Some(by) });
        let shared = ["--mounter=shared", "--shared-max-volumes=3", "--degraded=systemd"];
        let of = |volumes_max, disk| Mounting::Shared { volumes_max, disk, revision: None };
        assert_eq!((mounting(&shared), mounting(&shared[..1])), (of(3, None), of(8, None)));
        let disk = ["--mounter=shared", "--shared-cache-size=90", "--shared-cache-directory=/cache"];
        let directory = Some("/cache".into());
        assert_eq!(mounting(&disk), of(8, Some(Disk { mib: 90, directory })));
        assert_eq!(mounting(&disk[..2]), of(8, Some(Disk { mib: 90, directory: None })));
        let told = mounting(&["--mounter=shared", "--shared-revision=abc"]);
        assert!(matches!(told, Mounting::Shared { revision: Some(it), .. } if it == "abc"));
        let systemd = "--mounter=systemd";
        let given = [systemd, "--mount-s3-path=/opt/x/mount-s3", "--extra-ca-bundle=/etc/ca.crt"];
        let (engine, bundle) = (Some("/opt/x/mount-s3".into()), Some("/etc/ca.crt".into()));
        assert_eq!(mounting(&given), Mounting::Systemd(Systemd { engine, extra_ca_bundle: bundle }));
        assert_eq!(mounting(&[systemd]), Mounting::Systemd(Systemd::default()));
    }

    #[test]
    fn the_volume_of_the_secret_goes_before_the_environment_and_is_read_later() {
        let folder = tempfile::tempdir().unwrap();
        let directory = format!("--credentials-directory={}", folder.path().display());
        let args = Args { keys: keys([Some("HALF"), None, None]), ..args(&[URL, "--node-id=n", &directory]) };
        let node = Config::new(&args).unwrap().node;
        assert!(node.credentials.read().unwrap().is_none());
        std::fs::write(folder.path().join("access_key_id"), "LATER").unwrap();
        std::fs::write(folder.path().join("secret_access_key"), "hush").unwrap();
        assert_eq!(node.credentials.read().unwrap().unwrap().access_key_id, "LATER");
    }

    #[test]
    fn half_a_pair_of_keys_is_refused_without_showing_it() {
        for (values, words) in [
            ([Some("HUSH"), None, None], "AWS_SECRET_ACCESS_KEY is missing"),
            ([None, Some("HUSH"), None], "AWS_ACCESS_KEY_ID is missing"),
            ([None, None, Some("HUSH")], "s3CredentialSecret.name"),
        ] {
            let args = Args { keys: keys(values), ..args(&[URL, "--node-id=n"]) };
            let error = Config::new(&args).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("HUSH"), "{words}: {error}");
        }
    }

    #[test]
    fn the_controller_service_needs_a_store_and_no_node() {
        let only = "--controller-only";
        let all = [only, URL, "--allowed-endpoints=https://b.test, http://c.test:1,", "--cluster-id=c"];
        let args = Args { keys: keys([Some("A"), Some("HUSH"), None]), ..args(&all) };
        let Start::Controller(config) = Start::new(&args).unwrap() else { panic!("a node was started") };
        assert_eq!(config.stores.allowed_endpoints, ["https://b.test", "http://c.test:1"]);
        assert_eq!(
            (config.cluster_id.as_deref(), config.stores.credentials.read().unwrap().is_some()),
            (Some("c"), true)
        );
        assert!(!format!("{config:?} {args:?}").contains("HUSH"));
        let wrong = |line: &[&str]| Start::new(&self::args(line)).unwrap_err().to_string();
        assert!(wrong(&[only]).contains("AWS_ENDPOINT_URL"));
        assert!(wrong(&[URL]).contains("CSI_NODE_NAME"));
    }

    #[test]
    fn a_configuration_can_be_logged() {
        let args = Args { keys: keys([Some("HUSH"), Some("HUSH"), None]), ..args(&[URL, "--node-id=n"]) };
        assert!(!format!("{args:?} {:?}", Config::new(&args).unwrap()).contains("HUSH"));
    }
}
