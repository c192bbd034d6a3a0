//! Flags and environment of `scality-csi-controller`, as clap reads them once: each value has its type, or the error names flag and variable.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand};
use csi::command_line::{switch, trimmed};
use csi::contract::DRIVER;
use csi::contract::log::{self, LogFormat};
use csi::contract::quantity::Quantity;
use csi::contract::volume::ENGINE_VARIABLES;
use k8s_openapi::api::core::v1::SELinuxOptions;

use crate::pod_spec::{HeadroomConfig, PodConfig, PullPolicy, Resources, Template};

/// A JSON object whose values are strings.
type Map = BTreeMap<String, String>;
type Parsed<T> = Result<T, String>;

/// Gives workloads with S3 volumes their Mountpoint Pods.
#[derive(Debug, Parser)]
#[command(name = "scality-csi-controller", version)]
pub struct Cli {
    /// An action other than to run.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Level of the log, or directives like `info,kube=debug`
    #[arg(long, env = "LOG_LEVEL", default_value = "info", global = true)]
    pub log: String,
    /// Form of log lines, also of Mountpoint Pods: text or json
    #[arg(long, env = log::VARIABLE, default_value = "text", global = true)]
    pub log_format: LogFormat,
    /// How to run.
    #[command(flatten)]
    pub run: Run,
}

/// An action other than to run.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Install the CRD of attachments, or bring it up to date
    InstallCrd,
    /// Delete the CRD of attachments, and with it all attachments
    UninstallCrd,
    /// Fail while attachments exist, because workloads then use volumes
    CheckUnused {
        /// The command that keeps the driver after a refusal, for the message
        #[arg(long, value_name = "COMMAND")]
        keep_by: Option<String>,
    },
}

/// How to run.
#[derive(Debug, Args)]
pub struct Run {
    /// The namespace of Mountpoint Pods
    #[arg(long, env = "MOUNTPOINT_NAMESPACE", default_value = csi::contract::pod::NAMESPACE)]
    pub mountpoint_namespace: String,
    /// The version of the engine, for a label of Mountpoint Pods
    #[arg(long, env = "MOUNTPOINT_VERSION", value_parser = trimmed)]
    pub mountpoint_version: Option<String>,
    /// The priority class of Mountpoint Pods
    #[arg(long, env = "MOUNTPOINT_PRIORITY_CLASS_NAME", value_parser = trimmed)]
    pub mountpoint_priority_class_name: Option<String>,
    /// The priority class of Mountpoint Pods whose workload reserved room; needs the next two settings
    #[arg(long, env = "MOUNTPOINT_PREEMPTING_PRIORITY_CLASS_NAME", value_parser = trimmed)]
    pub mountpoint_preempting_priority_class_name: Option<String>,
    /// The priority class of headroom pods
    #[arg(long, env = "MOUNTPOINT_HEADROOM_PRIORITY_CLASS_NAME", value_parser = trimmed)]
    pub mountpoint_headroom_priority_class_name: Option<String>,
    /// The image of headroom pods: its program only waits
    #[arg(long, env = "MOUNTPOINT_HEADROOM_IMAGE", value_parser = trimmed)]
    pub headroom_image: Option<String>,
    /// When that image is pulled: Always, IfNotPresent or Never
    #[arg(long, env = "MOUNTPOINT_HEADROOM_IMAGE_PULL_POLICY")]
    pub headroom_image_pull_policy: Option<PullPolicy>,
    /// More labels of headroom pods, a JSON object
    #[arg(long, env = "MOUNTPOINT_HEADROOM_POD_LABELS", value_name = "JSON", value_parser = unreserved, hide_env_values = true)]
    pub headroom_pod_labels: Option<Map>,
    /// The image of Mountpoint Pods; needed to run
    #[arg(long, env = "MOUNTPOINT_IMAGE", value_parser = trimmed)]
    pub mountpoint_image: Option<String>,
    /// When that image is pulled: Always, IfNotPresent or Never
    #[arg(long, env = "MOUNTPOINT_IMAGE_PULL_POLICY")]
    pub mountpoint_image_pull_policy: Option<PullPolicy>,
    /// Names of secrets to pull that image with, separated by commas
    #[arg(long, env = "MOUNTPOINT_IMAGE_PULL_SECRETS", value_delimiter = ',')]
    pub mountpoint_image_pull_secrets: Vec<String>,
    /// More labels of Mountpoint Pods, a JSON object
    #[arg(long, env = "MOUNTPOINT_POD_LABELS", value_name = "JSON", value_parser = unreserved, hide_env_values = true)]
    pub mountpoint_pod_labels: Option<Map>,
    /// More annotations of Mountpoint Pods, a JSON object
    #[arg(long, env = "MOUNTPOINT_POD_ANNOTATIONS", value_name = "JSON", value_parser = unreserved, hide_env_values = true)]
    pub mountpoint_pod_annotations: Option<Map>,
    /// Variables for engines whose volume does not set them, a JSON object: HTTP_PROXY, HTTPS_PROXY, NO_PROXY
    #[arg(long, env = "MOUNTPOINT_POD_ENV", value_name = "JSON", value_parser = engine_variables, hide_env_values = true)]
    pub mountpoint_pod_env: Option<Map>,
    /// The SELinux context of Mountpoint Pods, a JSON object
    #[arg(long, env = "MOUNTPOINT_POD_SE_LINUX_OPTIONS", value_name = "JSON", value_parser = json::<SELinuxOptions>, hide_env_values = true)]
    pub mountpoint_pod_se_linux_options: Option<SELinuxOptions>,
    /// Security contexts, DNS, aliases of hosts, runtime class and tolerations of Mountpoint Pods, a JSON object
    #[arg(long, env = "MOUNTPOINT_POD_TEMPLATE", value_name = "JSON", value_parser = template, hide_env_values = true)]
    pub mountpoint_pod_template: Option<Template>,
    /// The mounter in that image
    #[arg(long, env = "MOUNTPOINT_CONTAINER_COMMAND", default_value = "/bin/scality-s3-csi-mounter")]
    pub mountpoint_container_command: String,
    /// CPU request of Mountpoint Pods whose volume sets none
    #[arg(long, env = "MOUNTPOINT_RESOURCES_REQUESTS_CPU", value_name = "QUANTITY", value_parser = quantity)]
    pub mountpoint_resources_requests_cpu: Option<String>,
    /// Memory request of Mountpoint Pods whose volume sets none
    #[arg(long, env = "MOUNTPOINT_RESOURCES_REQUESTS_MEMORY", value_name = "QUANTITY", value_parser = quantity)]
    pub mountpoint_resources_requests_memory: Option<String>,
    /// CPU limit of Mountpoint Pods whose volume sets none
    #[arg(long, env = "MOUNTPOINT_RESOURCES_LIMITS_CPU", value_name = "QUANTITY", value_parser = quantity)]
    pub mountpoint_resources_limits_cpu: Option<String>,
    /// Memory limit of Mountpoint Pods whose volume sets none
    #[arg(long, env = "MOUNTPOINT_RESOURCES_LIMITS_MEMORY", value_name = "QUANTITY", value_parser = quantity)]
    pub mountpoint_resources_limits_memory: Option<String>,
    /// Share of the workload's requests and memory limit, in per cent, that its Mountpoint Pod gets if neither the volume nor the flags above
    /// set any; 0 for none
    #[arg(long, env = "MOUNTPOINT_WORKLOAD_SHARE_PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub mountpoint_workload_share_percent: u32,
    /// Volumes may have the mount option `mode full` (experimental)
    #[arg(long, env = "MOUNTPOINT_STAGES", value_parser = switch)]
    pub mountpoint_stages: bool,
    /// Stages of volumes with `mode full` are directories of the nodes, which the nodes' drivers give to Mountpoint Pods
    #[arg(long, env = "MOUNTPOINT_STAGES_ON_NODES", value_parser = switch)]
    pub mountpoint_stages_on_nodes: bool,
    /// The port of Mountpoint Pods where engines serve their metrics; 0 for none
    #[arg(long, env = "MOUNTPOINT_METRICS_PORT", default_value_t = 0)]
    pub mountpoint_metrics_port: u16,
    /// Give running Mountpoint Pods that image, too: one pod of a node at a time, under its mount
    #[arg(long, env = "MOUNTPOINT_UPGRADE_IN_PLACE", value_parser = switch)]
    pub mountpoint_upgrade_in_place: bool,
    /// A ConfigMap in the namespace of Mountpoint Pods with certificates that engines trust besides the system's (key ca-bundle.crt)
    #[arg(long, env = "TLS_CA_CERT_CONFIGMAP", value_parser = trimmed)]
    pub tls_ca_cert_configmap: Option<String>,
    /// Make Mountpoint Pods also for inline volumes of pods
    #[arg(long, env = "INLINE_VOLUMES", value_parser = switch)]
    pub inline_volumes: bool,
    /// An agent on each node gives keys to service accounts that are annotated with no role, as EKS Pod Identity does
    #[arg(long, env = "POD_IDENTITY_AGENT", value_parser = switch)]
    pub pod_identity_agent: bool,
    /// The namespace of this process, where its Lease is
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// The name of this process's pod, which the Lease names as its holder; needed to run
    #[arg(long, env = "POD_NAME", value_parser = trimmed)]
    pub pod_name: Option<String>,
    /// Address of /healthz, /readyz and /metrics
    #[arg(long, env = "HEALTH_ADDRESS", default_value = "0.0.0.0:8080")]
    pub health_address: SocketAddr,
}

impl Run {
    /// The settings of all Mountpoint Pods, from the flags.
    ///
    /// # Errors
    /// A required setting is missing; the message names its flag and variable.
    pub fn pod_config(&self) -> anyhow::Result<PodConfig> {
        let image = self.mountpoint_image.clone();
        let secrets = self.mountpoint_image_pull_secrets.iter().map(|name| name.trim().to_owned());
        Ok(PodConfig {
            namespace: self.mountpoint_namespace.clone(),
            image: image.context(
                "--mountpoint-image (MOUNTPOINT_IMAGE) is missing: name the image of Mountpoint Pods",
            )?,
            pull_policy: self.mountpoint_image_pull_policy,
            pull_secrets: secrets.filter(|name| !name.is_empty()).collect(),
            command: self.mountpoint_container_command.clone(),
            priority_class: self.mountpoint_priority_class_name.clone(),
            labels: self.mountpoint_pod_labels.clone().unwrap_or_default(),
            annotations: self.mountpoint_pod_annotations.clone().unwrap_or_default(),
            env: self.mountpoint_pod_env.clone().unwrap_or_default(),
            se_linux: self.mountpoint_pod_se_linux_options.clone(),
            template: self.mountpoint_pod_template.clone().unwrap_or_default(),
            engine_version: self.mountpoint_version.clone(),
            resources: Resources {
                requests_cpu: self.mountpoint_resources_requests_cpu.clone(),
                requests_memory: self.mountpoint_resources_requests_memory.clone(),
                limits_cpu: self.mountpoint_resources_limits_cpu.clone(),
                limits_memory: self.mountpoint_resources_limits_memory.clone(),
            },
            ca_config_map: self.tls_ca_cert_configmap.clone(),
            stages_on_nodes: self.mountpoint_stages_on_nodes,
            metrics_port: self.mountpoint_metrics_port,
            log_format: LogFormat::Text,
            headroom: self.headroom()?,
            openshift: false,
        })
    }

    /// The name of this process's pod, the holder of the Lease.
    ///
    /// # Errors
    /// The name is missing.
    pub fn holder(&self) -> anyhow::Result<&str> {
        self.pod_name.as_deref().context(
            "--pod-name (POD_NAME) is missing: each replica needs a name of its own to hold the Lease",
        )
    }

    fn headroom(&self) -> anyhow::Result<Option<HeadroomConfig>> {
        let preempting = &self.mountpoint_preempting_priority_class_name;
        match (preempting, &self.mountpoint_headroom_priority_class_name, &self.headroom_image) {
            (None, None, None) => Ok(None),
            (Some(preempting), Some(headroom), Some(image)) => Ok(Some(HeadroomConfig {
                image: image.clone(),
                pull_policy: self.headroom_image_pull_policy,
                labels: self.headroom_pod_labels.clone().unwrap_or_default(),
                priority_class: headroom.clone(),
                preempting_class: preempting.clone(),
            })),
            _ => bail!(
                "--mountpoint-preempting-priority-class-name (MOUNTPOINT_PREEMPTING_PRIORITY_CLASS_NAME), \
                 --mountpoint-headroom-priority-class-name (MOUNTPOINT_HEADROOM_PRIORITY_CLASS_NAME) and --headroom-image \
                 (MOUNTPOINT_HEADROOM_IMAGE) must all be set, or none: room is reserved with all of them"
            ),
        }
    }
}

/// Parses labels or annotations from the chart. Refuses keys that are reserved for the driver.
fn unreserved(text: &str) -> Parsed<Map> {
    let map: Map = json(text)?;
    match map.keys().find(|key| key.starts_with(&format!("{DRIVER}/"))) {
        Some(key) => Err(format!("{key:?} begins with {DRIVER}/, and only the driver may write such keys")),
        None => Ok(map),
    }
}

fn engine_variables(text: &str) -> Parsed<Map> {
    let map: Map = json(text)?;
    match map.keys().find(|name| !ENGINE_VARIABLES.contains(&name.as_str())) {
        Some(name) => Err(format!("has {name:?}, and may set {}", ENGINE_VARIABLES.join(", "))),
        None => Ok(map),
    }
}

fn template(text: &str) -> Parsed<Template> {
    let template: Template = json(text)?;
    template.check()?;
    Ok(template)
}

fn quantity(text: &str) -> Parsed<String> {
    match Quantity::parse(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("must be a quantity like 100m, 0.5, 256Mi or 1Gi".to_owned()),
    }
}

/// Parses a flag's JSON. The error does not repeat the text, because a proxy's address may contain a password.
fn json<T: serde::de::DeserializeOwned>(text: &str) -> Parsed<T> {
    serde_json::from_str(text).map_err(|error| {
        format!("not a JSON object of the expected form (line {}, column {})", error.line(), error.column())
    })
}

#[cfg(test)]
mod tests {
    use csi::command_line::try_read;

    use super::*;

    fn run(flags: &[&str]) -> Run {
        let base = ["scality-csi-controller", "--mountpoint-image=i", "--pod-name=p"];
        try_read::<Cli>(base.iter().chain(flags)).unwrap().run
    }

    #[test]
    fn the_chart_needs_to_name_only_the_image_and_the_pod() {
        let config = run(&[]).pod_config().unwrap();
        assert_eq!(config.namespace, "mount-s3");
        assert_eq!(config.command, "/bin/scality-s3-csi-mounter");
        assert_eq!(config.pull_secrets, Vec::<String>::new());
        assert_eq!(config.resources, Resources::default());
    }

    #[test]
    fn secrets_are_a_list_and_empty_places_in_it_are_none() {
        let config = run(&["--mountpoint-image-pull-secrets=a, b,"]).pod_config().unwrap();
        assert_eq!(config.pull_secrets, ["a", "b"]);
    }

    #[test]
    fn labels_annotations_variables_and_context_are_json() {
        let config = run(&[
            "--mountpoint-pod-labels={\"team\": \"storage\"}",
            "--mountpoint-pod-annotations={\"note\": \"a text\"}",
            "--mountpoint-pod-env={\"NO_PROXY\": \".local\"}",
            "--mountpoint-pod-se-linux-options={\"level\": \"s0\"}",
        ]);
        let config = config.pod_config().unwrap();
        assert_eq!(config.labels["team"], "storage");
        assert_eq!(config.annotations["note"], "a text");
        assert_eq!(config.env["NO_PROXY"], ".local");
        assert_eq!(config.se_linux.unwrap().level.as_deref(), Some("s0"));
    }

    #[test]
    fn room_is_reserved_with_both_classes_and_an_image_and_never_by_half() {
        assert_eq!(run(&[]).pod_config().unwrap().headroom, None);
        let all = [
            "--mountpoint-preempting-priority-class-name=p",
            "--mountpoint-headroom-priority-class-name=h",
            "--headroom-image=pause",
        ];
        let headroom = run(&all).pod_config().unwrap().headroom.unwrap();
        assert_eq!(
            (&*headroom.preempting_class, &*headroom.priority_class, &*headroom.image),
            ("p", "h", "pause")
        );
        for left_out in 0..3 {
            let some: Vec<_> = (0..3).filter(|it| *it != left_out).map(|it| all[it]).collect();
            let error = run(&some).pod_config().unwrap_err().to_string();
            assert!(error.contains("MOUNTPOINT_HEADROOM_IMAGE"), "{error}");
        }
    }

    #[test]
    fn a_setting_that_is_needed_to_run_is_named() {
        let run =
            |flags: &[&str]| try_read::<Cli>(["scality-csi-controller"].iter().chain(flags)).unwrap().run;
        let image = run(&["--pod-name=p"]).pod_config().unwrap_err().to_string();
        assert!(image.contains("--mountpoint-image (MOUNTPOINT_IMAGE) is missing"), "{image}");
        let name = run(&["--mountpoint-image=i"]).holder().unwrap_err().to_string();
        assert!(name.contains("--pod-name (POD_NAME) is missing"), "{name}");
        assert_eq!(run(&["--pod-name=p"]).holder().unwrap(), "p");
    }

    #[test]
    fn installing_the_crd_needs_no_settings() {
        let cli: Cli = try_read(["scality-csi-controller", "install-crd"]).unwrap();
        assert_eq!(cli.command, Some(Command::InstallCrd));
    }
}
