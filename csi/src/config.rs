//! The driver's configuration, as a node or as the controller service. Enters: the command line and the environment, read once. Leaves:
//! one configuration, or the name of a missing setting and where to set it.
//!
//! Never here: a default guessed from the machine.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

use crate::contract::log::{self, LogFormat};
use crate::contract::pod;
use crate::controller::store;
use crate::error::{Error, Result};
use crate::node::driver_keys::DriverKeys;
use crate::node::{self, Sts, credentials};

/// The CSI driver of S3 buckets: on one node, or with CSI_CONTROLLER_ONLY=true the service that makes and deletes volumes.
#[derive(Clone, Debug, Parser)]
#[command(name = "scality-s3-csi-driver", disable_version_flag = true)]
pub struct Args {
    /// Address for the calls of the kubelet: unix:///path/to.sock or tcp://address:port
    #[arg(long, default_value = "unix://tmp/csi.sock")]
    pub endpoint: String,
    /// Name of this node [default: CSI_NODE_NAME, else NODE_NAME]
    #[arg(long)]
    pub node_id: Option<String>,
    /// Address of GET /healthz
    #[arg(long, default_value = "0.0.0.0:9808")]
    pub health_address: SocketAddr,
    /// How much is logged: 5 shows each call, 6 everything; RUST_LOG overrides it
    #[arg(long = "v", value_name = "LEVEL", default_value_t = 2)]
    pub verbosity: u8,
    /// Form of log lines: text or json
    #[arg(long, env = log::VARIABLE, default_value = "text")]
    pub log_format: LogFormat,
    /// Version of the engine, for the log [default: MOUNTPOINT_VERSION]
    #[arg(long)]
    pub mp_version: Option<String>,
    /// Print the version, in JSON
    #[arg(long)]
    pub version: bool,
}

/// The service of this process.
#[derive(Clone, Debug)]
pub enum Start {
    /// The driver of one node.
    Node(Box<Config>),
    /// The controller service, by `CSI_CONTROLLER_ONLY=true`.
    Controller(Box<ControllerConfig>),
}

impl Start {
    /// Reads the configuration from the command line and this process's environment.
    ///
    /// # Errors
    /// The same as [`Config::new`].
    pub fn from_args(args: &Args) -> Result<Self> {
        Self::new(args, |name| std::env::var(name).ok())
    }

    /// Reads the configuration from the command line and an environment.
    ///
    /// # Errors
    /// The same as [`Config::new`].
    pub fn new(args: &Args, environment: impl Fn(&str) -> Option<String>) -> Result<Self> {
        match environment("CSI_CONTROLLER_ONLY").is_some_and(|it| it.trim() == "true") {
            true => ControllerConfig::new(args, environment).map(|it| Self::Controller(Box::new(it))),
            false => Config::new(args, environment).map(|it| Self::Node(Box::new(it))),
        }
    }
}

/// A controller service that can run.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The endpoint for the provisioner's calls, as it was written.
    pub endpoint: String,
    /// The address at which `/healthz` is answered.
    pub health_address: SocketAddr,
    /// How the stores are reached.
    pub stores: store::Config,
    /// The cluster's id, where it is not the UID of the namespace `kube-system` (`CSI_CLUSTER_ID`).
    pub cluster_id: Option<String>,
}

impl ControllerConfig {
    fn new(args: &Args, environment: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let var = |name: &str| said(&environment, name);
        Ok(Self {
            endpoint: args.endpoint.clone(),
            health_address: args.health_address,
            stores: store::Config {
                endpoint_url: endpoint_url(var("AWS_ENDPOINT_URL"))?,
                allowed_endpoints: allowed_endpoints(var("ALLOWED_ENDPOINTS"))?,
                region: var("AWS_REGION"),
                credentials: of_driver(&var)?,
                extra_ca_bundles: var("EXTRA_CA_BUNDLE").map(PathBuf::from).into_iter().collect(),
            },
            cluster_id: var("CSI_CLUSTER_ID"),
        })
    }
}

/// How a node makes mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mounting {
    /// Mounts in Mountpoint Pods: architecture v2.
    Pod {
        /// The systemd that mounts for new workloads while no reconciler works; `None`: they wait.
        degraded: Option<Systemd>,
    },
    /// Mounts by the node's systemd: architecture v1.
    Systemd(Systemd),
}

/// How the node's systemd makes mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Systemd {
    /// The engine's file, as the host calls it.
    pub engine: Option<PathBuf>,
    /// Certificates that engines are to trust besides the host's.
    pub extra_ca_bundle: Option<PathBuf>,
}

/// A driver of a node that can run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The endpoint for the kubelet's calls, as it was written.
    pub endpoint: String,
    /// The address at which `/healthz` is answered.
    pub health_address: SocketAddr,
    /// How it makes mounts.
    pub mounting: Mounting,
    /// The namespace of Mountpoint Pods.
    pub mountpoint_namespace: String,
    /// The namespace of the release, if it was said.
    pub release_namespace: Option<String>,
    /// The version of the engine, if it was said.
    pub mountpoint_version: Option<String>,
    /// The configuration of the service Node.
    pub node: node::Config,
}

impl Config {
    /// Reads the configuration from the command line and an environment. An empty variable is an absent one, as charts write it.
    ///
    /// # Errors
    /// `InvalidArgument` that names the flag or variable and where the chart sets it.
    pub fn new(args: &Args, environment: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let var = |name: &str| said(&environment, name);
        let node_id = args
            .node_id
            .clone()
            .filter(|id| !id.is_empty())
            .or_else(|| var("CSI_NODE_NAME").or_else(|| var("NODE_NAME")));
        let node_id = node_id.ok_or_else(|| {
            Error::invalid(
                "the node's name is missing: give --node-id or CSI_NODE_NAME (spec.nodeName of the pod)",
            )
        })?;
        let kubelet = PathBuf::from(var("KUBELET_PATH").unwrap_or_else(|| "/var/lib/kubelet".to_owned()));
        if !kubelet.is_absolute() {
            return Err(Error::invalid(format!(
                "KUBELET_PATH {kubelet:?} must be an absolute path: set node.kubeletPath in the chart"
            )));
        }
        let node = node::Config {
            node_id,
            kubelet,
            endpoint_url: endpoint_url(var("AWS_ENDPOINT_URL"))?,
            allowed_endpoints: allowed_endpoints(var("ALLOWED_ENDPOINTS"))?,
            region: var("AWS_REGION"),
            credentials: of_driver(&var)?,
            sts: sts(&var)?,
            kubernetes: None,
            mount_table: PathBuf::from("/proc/self/mountinfo"),
        };
        Ok(Self {
            endpoint: args.endpoint.clone(),
            health_address: args.health_address,
            mounting: mounting(&var)?,
            mountpoint_namespace: var("MOUNTPOINT_NAMESPACE").unwrap_or_else(|| pod::NAMESPACE.to_owned()),
            release_namespace: var("POD_NAMESPACE"),
            mountpoint_version: args.mp_version.clone().or_else(|| var("MOUNTPOINT_VERSION")),
            node,
        })
    }
}

fn mounting(var: &impl Fn(&str) -> Option<String>) -> Result<Mounting> {
    let systemd = || Systemd {
        engine: var("MOUNT_S3_PATH").map(PathBuf::from),
        extra_ca_bundle: var("EXTRA_CA_BUNDLE").map(PathBuf::from),
    };
    let degraded = match var("NODE_DEGRADED").as_deref() {
        None | Some("unavailable") => None,
        Some("systemd") => Some(systemd()),
        Some(other) => {
            return Err(Error::invalid(format!(
                "NODE_DEGRADED {other:?} is neither unavailable nor systemd: set node.degraded in the chart"
            )));
        }
    };
    match var("NODE_MOUNTER").as_deref() {
        None | Some("pod") => Ok(Mounting::Pod { degraded }),
        Some("systemd") => Ok(Mounting::Systemd(systemd())),
        Some(other) => Err(Error::invalid(format!(
            "NODE_MOUNTER {other:?} is neither pod nor systemd: set node.mounter in the chart"
        ))),
    }
}

fn sts(var: &impl Fn(&str) -> Option<String>) -> Result<Sts> {
    let endpoint_url = var("AWS_ENDPOINT_URL_STS");
    if endpoint_url.as_ref().is_some_and(|url| !is_endpoint(url)) {
        return Err(Error::invalid(
            "AWS_ENDPOINT_URL_STS is not of the form http(s)://host[:port]: look at podIdentity.stsEndpointUrl in the chart",
        ));
    }
    let audience = var("STS_AUDIENCE").unwrap_or_else(|| "sts.amazonaws.com".to_owned());
    Ok(Sts { endpoint_url, audience })
}

/// A variable that is not empty.
fn said(environment: &impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    environment(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn endpoint_url(value: Option<String>) -> Result<String> {
    let url = value.ok_or_else(|| {
        Error::invalid(
            "AWS_ENDPOINT_URL is missing: set s3.endpointUrl in the chart to the URL of your store",
        )
    })?;
    if is_endpoint(&url) {
        return Ok(url);
    }
    // It may hold a password: not shown.
    Err(Error::invalid(
        "AWS_ENDPOINT_URL is not of the form http(s)://host[:port]: set s3.endpointUrl in the chart",
    ))
}

/// URLs with commas between them.
fn allowed_endpoints(value: Option<String>) -> Result<Vec<String>> {
    let urls: Vec<_> = value.iter().flat_map(|it| it.split(',')).map(|it| it.trim().to_owned()).collect();
    let urls: Vec<_> = urls.into_iter().filter(|it| !it.is_empty()).collect();
    if urls.iter().all(|url| is_endpoint(url)) {
        return Ok(urls);
    }
    Err(Error::invalid(
        "ALLOWED_ENDPOINTS has an entry that is not of the form http(s)://host[:port]: look at s3.allowedEndpoints in the chart",
    ))
}

fn is_endpoint(url: &str) -> bool {
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    host.is_some_and(|rest| {
        rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
            && rest.chars().all(|c| c.is_ascii_graphic())
            && !rest.contains(['@', '?', '#', ','])
    })
}

/// The Secret's volume, if one is mounted; else what the environment holds, all or nothing: half a pair of keys is a misspelt key.
fn of_driver(var: &impl Fn(&str) -> Option<String>) -> Result<DriverKeys> {
    if let Some(directory) = var("DRIVER_CREDENTIALS_DIRECTORY") {
        return Ok(DriverKeys::Directory(directory.into()));
    }
    let values = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"].map(var);
    if values.iter().all(Option::is_none) {
        return Ok(DriverKeys::Fixed(None));
    }
    let [key, secret, token] = &values;
    let keys = credentials::checked(key.as_deref(), secret.as_deref(), token.as_deref());
    keys.map(|keys| DriverKeys::Fixed(Some(keys))).map_err(
        |(field, wrong)| {
            let name = match field {
                credentials::Field::AccessKeyId => "AWS_ACCESS_KEY_ID",
                credentials::Field::SecretAccessKey => "AWS_SECRET_ACCESS_KEY",
                credentials::Field::SessionToken => "AWS_SESSION_TOKEN",
            };
            Error::invalid(format!(
                "the driver's credentials are unusable: {name} {wrong}; look at the Secret that s3CredentialSecret.name \
                 of the chart names"
            ))
        },
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::Path;

    use super::*;

    fn config(args: &[&str], environment: &[(&str, &str)]) -> Result<Config> {
        let args = Args::try_parse_from(["driver"].iter().chain(args)).unwrap();
        let environment: HashMap<_, _> = environment.iter().copied().collect();
        Config::new(&args, |name| environment.get(name).map(|&value| value.to_owned()))
    }

    const URL: (&str, &str) = ("AWS_ENDPOINT_URL", "http://s3.example.com:8000");

    #[test]
    fn the_chart_s_arguments_and_variables_are_understood() {
        let config = config(
            &["--endpoint=unix:/csi/csi.sock", "--node-id=worker-1", "--v=4"],
            &[
                URL,
                ("KUBELET_PATH", "/var/snap/kubelet"),
                ("MOUNTPOINT_NAMESPACE", "elsewhere"),
                ("AWS_REGION", "eu-west-1"),
                ("AWS_ACCESS_KEY_ID", "AKIA1\n"),
                ("AWS_SECRET_ACCESS_KEY", "hush"),
                ("AWS_SESSION_TOKEN", ""),
            ],
        )
        .unwrap();
        assert_eq!(config.endpoint, "unix:/csi/csi.sock");
        assert_eq!(config.mountpoint_namespace, "elsewhere");
        let node = config.node;
        assert_eq!(
            (node.node_id.as_str(), node.kubelet.as_path()),
            ("worker-1", Path::new("/var/snap/kubelet"))
        );
        assert_eq!((node.endpoint_url.as_str(), node.region.as_deref()), (URL.1, Some("eu-west-1")));
        let keys = node.credentials.read().unwrap().unwrap();
        assert_eq!((keys.access_key_id.as_str(), keys.session_token), ("AKIA1", None));
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let config = config(&[], &[URL, ("CSI_NODE_NAME", "worker-2"), ("KUBELET_PATH", "")]).unwrap();
        assert_eq!(config.node.node_id, "worker-2");
        // As release 2.2's own pages call it.
        let named = |environment: &[_]| self::config(&[], environment).unwrap().node.node_id;
        assert_eq!(named(&[URL, ("NODE_NAME", "worker-3")]), "worker-3");
        assert_eq!(named(&[URL, ("NODE_NAME", "worker-3"), ("CSI_NODE_NAME", "worker-2")]), "worker-2");
        assert_eq!(config.node.kubelet, Path::new("/var/lib/kubelet"));
        assert_eq!(config.mountpoint_namespace, "mount-s3");
        assert_eq!(config.health_address.port(), 9808);
        assert!(config.node.credentials.read().unwrap().is_none() && config.node.region.is_none());
    }

    #[test]
    fn the_chart_chooses_how_mounts_are_made() {
        let mounting = |environment: &[(&str, &str)]| {
            let environment = [&[URL, ("CSI_NODE_NAME", "n")], environment].concat();
            config(&[], &environment).unwrap().mounting
        };
        let pod = Mounting::Pod { degraded: None };
        assert_eq!((mounting(&[]), mounting(&[("NODE_MOUNTER", "pod")])), (pod.clone(), pod.clone()));
        assert_eq!(mounting(&[("NODE_DEGRADED", "unavailable")]), pod);
        let degraded = [("NODE_DEGRADED", "systemd"), ("MOUNT_S3_PATH", "/opt/x/mount-s3")];
        let by = Systemd { engine: Some("/opt/x/mount-s3".into()), extra_ca_bundle: None };
        assert_eq!(mounting(&degraded), Mounting::Pod { degraded: Some(by) });
        let systemd = ("NODE_MOUNTER", "systemd");
        let given = [systemd, ("MOUNT_S3_PATH", "/opt/x/mount-s3"), ("EXTRA_CA_BUNDLE", "/etc/ca.crt")];
        let (engine, bundle) = (Some("/opt/x/mount-s3".into()), Some("/etc/ca.crt".into()));
        assert_eq!(mounting(&given), Mounting::Systemd(Systemd { engine, extra_ca_bundle: bundle }));
        assert_eq!(mounting(&[systemd]), Mounting::Systemd(Systemd::default()));
    }

    #[test]
    fn the_volume_of_the_secret_goes_before_the_environment_and_is_read_later() {
        let folder = tempfile::tempdir().unwrap();
        let directory = ("DRIVER_CREDENTIALS_DIRECTORY", folder.path().to_str().unwrap());
        let node = config(&[], &[URL, ("CSI_NODE_NAME", "n"), directory, ("AWS_ACCESS_KEY_ID", "HALF")])
            .unwrap()
            .node;
        assert!(node.credentials.read().unwrap().is_none());
        std::fs::write(folder.path().join("access_key_id"), "LATER").unwrap();
        std::fs::write(folder.path().join("secret_access_key"), "hush").unwrap();
        assert_eq!(node.credentials.read().unwrap().unwrap().access_key_id, "LATER");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named_with_its_place_in_the_chart() {
        let node = ("CSI_NODE_NAME", "n");
        for (environment, words) in [
            (&[node][..], "s3.endpointUrl"),
            (&[node, ("AWS_ENDPOINT_URL", " ")], "AWS_ENDPOINT_URL is missing"),
            (&[node, ("AWS_ENDPOINT_URL", "s3.example.com")], "AWS_ENDPOINT_URL"),
            (&[node, ("AWS_ENDPOINT_URL", "http://a:HUSH@s3.example.com")], "AWS_ENDPOINT_URL"),
            (&[URL], "CSI_NODE_NAME"),
            (&[URL, node, ("NODE_MOUNTER", "docker")], "node.mounter"),
            (&[URL, node, ("NODE_DEGRADED", "docker")], "node.degraded"),
            (&[URL, node, ("AWS_ENDPOINT_URL_STS", "http://a:HUSH@c.test")], "podIdentity.stsEndpointUrl"),
            (&[URL, node, ("KUBELET_PATH", "kubelet")], "node.kubeletPath"),
            (&[URL, node, ("AWS_ACCESS_KEY_ID", "HUSH")], "AWS_SECRET_ACCESS_KEY is missing"),
            (&[URL, node, ("AWS_SECRET_ACCESS_KEY", "HUSH")], "AWS_ACCESS_KEY_ID is missing"),
            (&[URL, node, ("AWS_SESSION_TOKEN", "HUSH")], "s3CredentialSecret.name"),
            (
                &[URL, node, ("ALLOWED_ENDPOINTS", "https://b.test,http://a:HUSH@c.test")],
                "s3.allowedEndpoints",
            ),
        ] {
            let error = config(&[], environment).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
            assert!(!error.contains("HUSH"), "{error}");
        }
    }

    #[test]
    fn the_controller_service_needs_a_store_and_no_node() {
        let start = |environment: &[(&str, &str)]| {
            let args = Args::try_parse_from(["driver", "--endpoint=unix:///csi/csi.sock"]).unwrap();
            let environment: HashMap<_, _> = environment.iter().copied().collect();
            Start::new(&args, |name| environment.get(name).map(|&value| value.to_owned()))
        };
        let only = ("CSI_CONTROLLER_ONLY", "true");
        let others = ("ALLOWED_ENDPOINTS", "https://b.test, http://c.test:1,");
        let keys = [("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "HUSH")];
        let started = start(&[only, URL, others, keys[0], keys[1], ("CSI_CLUSTER_ID", "c")]).unwrap();
        let Start::Controller(config) = started else { panic!("a node was started") };
        assert_eq!(config.stores.allowed_endpoints, ["https://b.test", "http://c.test:1"]);
        assert_eq!(
            (config.cluster_id.as_deref(), config.stores.credentials.read().unwrap().is_some()),
            (Some("c"), true)
        );
        assert!(!format!("{config:?}").contains("HUSH"));
        assert!(start(&[only]).unwrap_err().to_string().contains("AWS_ENDPOINT_URL"));
        assert!(
            start(&[("CSI_CONTROLLER_ONLY", "false"), URL])
                .unwrap_err()
                .to_string()
                .contains("CSI_NODE_NAME")
        );
    }

    #[test]
    fn a_configuration_can_be_logged() {
        let environment =
            [URL, ("CSI_NODE_NAME", "n"), ("AWS_ACCESS_KEY_ID", "HUSH"), ("AWS_SECRET_ACCESS_KEY", "HUSH")];
        assert!(!format!("{:?}", config(&[], &environment).unwrap()).contains("HUSH"));
    }
}
