//! Flags and environment of `scality-csi-controller`, read once.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{anyhow, bail, ensure};
use clap::{Args, Parser, Subcommand};
use csi::contract::DRIVER;
use csi::contract::log::{self, LogFormat};
use csi::contract::quantity::Quantity;
use csi::contract::volume::ENGINE_VARIABLES;

use crate::pod_spec::{HeadroomConfig, PodConfig, Resources, Template};

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
    #[arg(long, env = "MOUNTPOINT_VERSION", default_value = "")]
    pub mountpoint_version: String,
    /// The priority class of Mountpoint Pods
    #[arg(long, env = "MOUNTPOINT_PRIORITY_CLASS_NAME", default_value = "")]
    pub mountpoint_priority_class_name: String,
    /// The priority class of Mountpoint Pods whose workload reserved room; needs the next two settings
    #[arg(long, env = "MOUNTPOINT_PREEMPTING_PRIORITY_CLASS_NAME", default_value = "")]
    pub mountpoint_preempting_priority_class_name: String,
    /// The priority class of headroom pods
    #[arg(long, env = "MOUNTPOINT_HEADROOM_PRIORITY_CLASS_NAME", default_value = "")]
    pub mountpoint_headroom_priority_class_name: String,
    /// The image of headroom pods: its program only waits
    #[arg(long, env = "MOUNTPOINT_HEADROOM_IMAGE", default_value = "")]
    pub headroom_image: String,
    /// When that image is pulled: Always, IfNotPresent or Never
    #[arg(long, env = "MOUNTPOINT_HEADROOM_IMAGE_PULL_POLICY", default_value = "")]
    pub headroom_image_pull_policy: String,
    /// More labels of headroom pods, a JSON object
    #[arg(long, env = "MOUNTPOINT_HEADROOM_POD_LABELS", default_value = "")]
    pub headroom_pod_labels: String,
    /// The image of Mountpoint Pods; needed to run
    #[arg(long, env = "MOUNTPOINT_IMAGE", default_value = "")]
    pub mountpoint_image: String,
    /// When that image is pulled: Always, IfNotPresent or Never
    #[arg(long, env = "MOUNTPOINT_IMAGE_PULL_POLICY", default_value = "")]
    pub mountpoint_image_pull_policy: String,
    /// Names of secrets to pull that image with, separated by commas
    #[arg(long, env = "MOUNTPOINT_IMAGE_PULL_SECRETS", value_delimiter = ',')]
    pub mountpoint_image_pull_secrets: Vec<String>,
    /// More labels of Mountpoint Pods, a JSON object
    #[arg(long, env = "MOUNTPOINT_POD_LABELS", default_value = "")]
    pub mountpoint_pod_labels: String,
    /// More annotations of Mountpoint Pods, a JSON object
    #[arg(long, env = "MOUNTPOINT_POD_ANNOTATIONS", default_value = "")]
    pub mountpoint_pod_annotations: String,
    /// Variables for engines whose volume does not set them, a JSON object: HTTP_PROXY, HTTPS_PROXY, NO_PROXY
    #[arg(long, env = "MOUNTPOINT_POD_ENV", default_value = "", hide_env_values = true)]
    pub mountpoint_pod_env: String,
    /// The SELinux context of Mountpoint Pods, a JSON object
    #[arg(long, env = "MOUNTPOINT_POD_SE_LINUX_OPTIONS", default_value = "")]
    pub mountpoint_pod_se_linux_options: String,
    /// Security contexts, DNS, aliases of hosts, runtime class and tolerations of Mountpoint Pods, a JSON object
    #[arg(long, env = "MOUNTPOINT_POD_TEMPLATE", default_value = "")]
    pub mountpoint_pod_template: String,
    /// The mounter in that image
    #[arg(long, env = "MOUNTPOINT_CONTAINER_COMMAND", default_value = "/bin/scality-s3-csi-mounter")]
    pub mountpoint_container_command: String,
    /// CPU request of Mountpoint Pods whose volume sets none
    #[arg(long, env = "MOUNTPOINT_RESOURCES_REQUESTS_CPU", default_value = "")]
    pub mountpoint_resources_requests_cpu: String,
    /// Memory request of Mountpoint Pods whose volume sets none
    #[arg(long, env = "MOUNTPOINT_RESOURCES_REQUESTS_MEMORY", default_value = "")]
    pub mountpoint_resources_requests_memory: String,
    /// CPU limit of Mountpoint Pods whose volume sets none
    #[arg(long, env = "MOUNTPOINT_RESOURCES_LIMITS_CPU", default_value = "")]
    pub mountpoint_resources_limits_cpu: String,
    /// Memory limit of Mountpoint Pods whose volume sets none
    #[arg(long, env = "MOUNTPOINT_RESOURCES_LIMITS_MEMORY", default_value = "")]
    pub mountpoint_resources_limits_memory: String,
    /// Share of the workload's requests and memory limit, in per cent, that its Mountpoint Pod gets if neither the volume nor the flags above
    /// set any; 0 for none
    #[arg(long, env = "MOUNTPOINT_WORKLOAD_SHARE_PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub mountpoint_workload_share_percent: u32,
    /// The port of Mountpoint Pods where engines serve their metrics; 0 for none
    #[arg(long, env = "MOUNTPOINT_METRICS_PORT", default_value_t = 0)]
    pub mountpoint_metrics_port: u16,
    /// A ConfigMap in the namespace of Mountpoint Pods with certificates that engines trust besides the system's (key ca-bundle.crt)
    #[arg(long, env = "TLS_CA_CERT_CONFIGMAP", default_value = "")]
    pub tls_ca_cert_configmap: String,
    /// Make Mountpoint Pods also for inline volumes of pods
    #[arg(long, env = "INLINE_VOLUMES")]
    pub inline_volumes: bool,
    /// An agent on each node gives keys to service accounts that are annotated with no role, as EKS Pod Identity does
    #[arg(long, env = "POD_IDENTITY_AGENT")]
    pub pod_identity_agent: bool,
    /// The namespace of this process, where its Lease is
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// The name of this process's pod, which the Lease names as its holder; needed to run
    #[arg(long, env = "POD_NAME", default_value = "")]
    pub pod_name: String,
    /// Address of /healthz, /readyz and /metrics
    #[arg(long, env = "HEALTH_ADDRESS", default_value = "0.0.0.0:8080")]
    pub health_address: SocketAddr,
}

impl Run {
    /// The settings of all Mountpoint Pods.
    ///
    /// # Errors
    /// A setting that is missing or makes no sense; the message names flag and variable.
    pub fn pod_config(&self) -> anyhow::Result<PodConfig> {
        ensure!(
            !self.mountpoint_image.is_empty(),
            "--mountpoint-image (MOUNTPOINT_IMAGE) is empty: name the image of Mountpoint Pods"
        );
        ensure!(
            !self.pod_name.is_empty(),
            "--pod-name (POD_NAME) is empty: each replica needs a name of its own to hold the Lease"
        );
        ensure!(
            ["", "Always", "IfNotPresent", "Never"].contains(&self.mountpoint_image_pull_policy.as_str()),
            "--mountpoint-image-pull-policy (MOUNTPOINT_IMAGE_PULL_POLICY) is {:?}, and must be Always, IfNotPresent or Never",
            self.mountpoint_image_pull_policy
        );
        let quantity = |flag: &str, text: &str| {
            ensure!(
                text.is_empty() || Quantity::parse(text).is_some(),
                "--mountpoint-resources-{flag} is {text:?}, and must be a quantity like 100m, 0.5, 256Mi or 1Gi"
            );
            Ok((!text.is_empty()).then(|| text.to_owned()))
        };
        let env: BTreeMap<String, String> =
            json("--mountpoint-pod-env (MOUNTPOINT_POD_ENV)", &self.mountpoint_pod_env)?.unwrap_or_default();
        if let Some(name) = env.keys().find(|name| !ENGINE_VARIABLES.contains(&name.as_str())) {
            bail!(
                "--mountpoint-pod-env (MOUNTPOINT_POD_ENV) has {name:?}, and may set {}",
                ENGINE_VARIABLES.join(", ")
            );
        }
        let flag = "--mountpoint-pod-template (MOUNTPOINT_POD_TEMPLATE)";
        let template: Template = json(flag, &self.mountpoint_pod_template)?.unwrap_or_default();
        template.check().map_err(|refusal| anyhow!("{flag}: {refusal}"))?;
        let secrets = self.mountpoint_image_pull_secrets.iter().map(|name| name.trim().to_owned());
        Ok(PodConfig {
            namespace: self.mountpoint_namespace.clone(),
            image: self.mountpoint_image.clone(),
            pull_policy: self.mountpoint_image_pull_policy.clone(),
            pull_secrets: secrets.filter(|name| !name.is_empty()).collect(),
            command: self.mountpoint_container_command.clone(),
            priority_class: self.mountpoint_priority_class_name.clone(),
            labels: unreserved(
                "--mountpoint-pod-labels (MOUNTPOINT_POD_LABELS)",
                &self.mountpoint_pod_labels,
            )?,
            annotations: unreserved(
                "--mountpoint-pod-annotations (MOUNTPOINT_POD_ANNOTATIONS)",
                &self.mountpoint_pod_annotations,
            )?,
            env,
            se_linux: json(
                "--mountpoint-pod-se-linux-options (MOUNTPOINT_POD_SE_LINUX_OPTIONS)",
                &self.mountpoint_pod_se_linux_options,
            )?,
            template,
            engine_version: self.mountpoint_version.clone(),
            resources: Resources {
                requests_cpu: quantity("requests-cpu", &self.mountpoint_resources_requests_cpu)?,
                requests_memory: quantity("requests-memory", &self.mountpoint_resources_requests_memory)?,
                limits_cpu: quantity("limits-cpu", &self.mountpoint_resources_limits_cpu)?,
                limits_memory: quantity("limits-memory", &self.mountpoint_resources_limits_memory)?,
            },
            ca_config_map: self.tls_ca_cert_configmap.clone(),
            metrics_port: self.mountpoint_metrics_port,
            log_format: LogFormat::Text,
            headroom: self.headroom()?,
            openshift: false,
        })
    }
}

impl Run {
    fn headroom(&self) -> anyhow::Result<Option<HeadroomConfig>> {
        let [preempting, headroom, image] = [
            &self.mountpoint_preempting_priority_class_name,
            &self.mountpoint_headroom_priority_class_name,
            &self.headroom_image,
        ];
        match [preempting, headroom, image].map(|text| text.is_empty()) {
            [true, true, true] => Ok(None),
            [false, false, false] => Ok(Some(HeadroomConfig {
                image: image.clone(),
                pull_policy: self.headroom_image_pull_policy.clone(),
                labels: unreserved(
                    "--headroom-pod-labels (MOUNTPOINT_HEADROOM_POD_LABELS)",
                    &self.headroom_pod_labels,
                )?,
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

/// Labels or annotations that the chart gives, of which none may be the driver's own.
fn unreserved(flag: &str, text: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let map: BTreeMap<String, String> = json(flag, text)?.unwrap_or_default();
    match map.keys().find(|key| key.starts_with(&format!("{DRIVER}/"))) {
        Some(key) => {
            bail!("{flag} has {key:?}, but only the driver may write keys that begin with {DRIVER}/")
        }
        None => Ok(map),
    }
}

/// The value of a flag that holds JSON; the text itself is not repeated, since a proxy's address may hold a password.
fn json<T: serde::de::DeserializeOwned>(flag: &str, text: &str) -> anyhow::Result<Option<T>> {
    if text.is_empty() {
        return Ok(None);
    }
    let parsed = serde_json::from_str(text);
    parsed.map(Some).map_err(|error| {
        anyhow!(
            "{flag} is not a JSON object of the expected form (line {}, column {})",
            error.line(),
            error.column()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(flags: &[&str]) -> Run {
        let base = ["scality-csi-controller", "--mountpoint-image=i", "--pod-name=p"];
        Cli::try_parse_from(base.iter().chain(flags)).unwrap().run
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
    fn a_setting_without_sense_is_named() {
        let cases: [(&[&str], &str); 13] = [
            (&["--mountpoint-pod-labels=team"], "MOUNTPOINT_POD_LABELS"),
            (&["--mountpoint-pod-labels={\"a\": 1}"], "MOUNTPOINT_POD_LABELS"),
            (
                &["--mountpoint-pod-annotations={\"s3.csi.scality.com/needs-unmount\": \"true\"}"],
                "needs-unmount",
            ),
            (&["--mountpoint-pod-env={\"AWS_PROFILE\": \"x\"}"], "AWS_PROFILE"),
            (&["--mountpoint-pod-env=HTTPS_PROXY=http://user:password@proxy"], "MOUNTPOINT_POD_ENV"),
            (&["--mountpoint-pod-se-linux-options=[1]"], "MOUNTPOINT_POD_SE_LINUX_OPTIONS"),
            (&["--mountpoint-pod-template={\"hostNetwork\": true}"], "MOUNTPOINT_POD_TEMPLATE"),
            (&["--mountpoint-pod-template={\"securityContext\": {\"runAsUser\": 0}}"], "runAsUser is 0"),
            (&["--mountpoint-pod-template={\"dnsPolicy\": 1}"], "MOUNTPOINT_POD_TEMPLATE"),
            (&["--mountpoint-resources-limits-memory=much"], "--mountpoint-resources-limits-memory"),
            (&["--mountpoint-image-pull-policy=Sometimes"], "MOUNTPOINT_IMAGE_PULL_POLICY"),
            (&["--mountpoint-image="], "MOUNTPOINT_IMAGE"),
            (&["--pod-name="], "POD_NAME"),
        ];
        for (flags, named) in cases {
            let base = ["scality-csi-controller", "--mountpoint-image=i", "--pod-name=p"];
            let kept = base
                .iter()
                .filter(|it| !flags.iter().any(|flag| flag.split('=').next() == it.split('=').next()));
            let error =
                Cli::try_parse_from(kept.chain(flags)).unwrap().run.pod_config().unwrap_err().to_string();
            assert!(error.contains(named) && !error.contains("password"), "{error}");
        }
    }

    #[test]
    fn installing_the_crd_needs_no_settings() {
        let cli = Cli::try_parse_from(["scality-csi-controller", "install-crd"]).unwrap();
        assert_eq!(cli.command, Some(Command::InstallCrd));
    }
}
