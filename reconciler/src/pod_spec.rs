//! The specification of a Mountpoint Pod. Enters: the chart's settings, and the workload and volume of the pod. Leaves: a [`Pod`], or a
//! sentence about invalid attributes.
//!
//! Never here: a call to the API server, a choice of the workloads to serve.

use std::collections::BTreeMap;

use csi::contract::{pod, volume};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMapProjection, Container, EmptyDirVolumeSource, EnvVar, KeyToPath,
    LocalObjectReference, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
    PodSecurityContext, PodSpec, ProjectedVolumeSource, ResourceRequirements, SELinuxOptions, SeccompProfile,
    SecurityContext, Toleration, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// CPU that a Mountpoint Pod requests by default: an idle engine takes less.
const LEAST_CPU: &str = "10m";
/// Memory that a Mountpoint Pod requests by default: an engine always makes progress with it.
const LEAST_MEMORY: &str = "128Mi";

/// The settings of all Mountpoint Pods.
#[derive(Clone, Debug, PartialEq)]
pub struct PodConfig {
    /// The namespace of Mountpoint Pods.
    pub namespace: String,
    /// The image with mounter and engine.
    pub image: String,
    /// When the image is pulled: `Always`, `IfNotPresent` or `Never`.
    pub pull_policy: String,
    /// Names of the secrets to pull it with, in the namespace of Mountpoint Pods.
    pub pull_secrets: Vec<String>,
    /// The mounter in the image.
    pub command: String,
    /// The priority class; empty for the cluster's default.
    pub priority_class: String,
    /// Labels besides ours.
    pub labels: BTreeMap<String, String>,
    /// Annotations besides ours.
    pub annotations: BTreeMap<String, String>,
    /// Variables of the container. The mounter hands those of `volume::ENGINE_VARIABLES` to the engine, where the volume says nothing.
    pub env: BTreeMap<String, String>,
    /// The SELinux context of the container; `None` for the container runtime's.
    pub se_linux: Option<SELinuxOptions>,
    /// The engine's version, for a label; empty for none.
    pub engine_version: String,
    /// Defaults for volumes that do not set their own.
    pub resources: Resources,
    /// A ConfigMap in that namespace with certificates that every engine trusts besides the system's; empty for none.
    pub ca_config_map: String,
    /// OpenShift gives each namespace a range of users and groups of its own, and admits no fixed ones.
    pub openshift: bool,
}

/// The requests and limits of a Mountpoint Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// CPU asked for.
    pub requests_cpu: Option<String>,
    /// Memory asked for.
    pub requests_memory: Option<String>,
    /// The limit of CPU.
    pub limits_cpu: Option<String>,
    /// The limit of memory.
    pub limits_memory: Option<String>,
}

/// A volume's attributes about its Mountpoint Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The service account.
    pub service_account: Option<String>,
    /// Resources, each of which wins over the chart's.
    pub resources: Resources,
    /// A ConfigMap with certificates that this volume's engine trusts besides.
    pub ca_config_map: Option<String>,
}

/// One Mountpoint Pod to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRequest {
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: String,
    /// The PersistentVolume's name.
    pub volume: String,
    /// The volume handle.
    pub handle: String,
    /// The workload that it is made for.
    pub workload_uid: String,
    /// The volume's own setting.
    pub settings: Settings,
}

impl Settings {
    /// Reads the attributes of a volume.
    ///
    /// # Errors
    /// A sentence that names the attribute, its value and the form that is expected.
    pub fn new(attributes: &BTreeMap<String, String>) -> Result<Self, String> {
        let quantity = |attribute: &str| match attributes.get(attribute) {
            None => Ok(None),
            Some(text) if is_quantity(text) => Ok(Some(text.clone())),
            Some(text) => Err(format!(
                "volume attribute {attribute} is {text:?}, and must be a quantity like 100m, 0.5, 256Mi or 1Gi"
            )),
        };
        let resources = Resources {
            requests_cpu: quantity(volume::REQUESTS_CPU)?,
            requests_memory: quantity(volume::REQUESTS_MEMORY)?,
            limits_cpu: quantity(volume::LIMITS_CPU)?,
            limits_memory: quantity(volume::LIMITS_MEMORY)?,
        };
        let service_account =
            attributes.get(volume::POD_SERVICE_ACCOUNT).filter(|name| !name.is_empty()).cloned();
        let ca_config_map = attributes.get(volume::CA_CONFIG_MAP).filter(|name| !name.is_empty()).cloned();
        if let Some(name) = ca_config_map.as_ref().filter(|name| !is_name(name)) {
            return Err(format!(
                "volume attribute {} is {name:?}, and must be the name of a ConfigMap in the namespace of Mountpoint Pods",
                volume::CA_CONFIG_MAP
            ));
        }
        Ok(Self { service_account, resources, ca_config_map })
    }
}

impl Resources {
    /// A Mountpoint Pod always asks for something: one that asks for nothing is the first to be killed when a node runs out of memory,
    /// and its workloads lose their volume.
    fn or(&self, defaults: &Self) -> Option<ResourceRequirements> {
        let list = |cpu: &Option<String>,
                    cpu_default: &Option<String>,
                    memory: &Option<String>,
                    memory_default: &Option<String>| {
            let named = [
                ("cpu", cpu.as_ref().or(cpu_default.as_ref())),
                ("memory", memory.as_ref().or(memory_default.as_ref())),
            ];
            let list: BTreeMap<String, Quantity> = named
                .into_iter()
                .filter_map(|(name, text)| Some((name.to_owned(), Quantity(text?.clone()))))
                .collect();
            (!list.is_empty()).then_some(list)
        };
        let limits =
            list(&self.limits_cpu, &defaults.limits_cpu, &self.limits_memory, &defaults.limits_memory);
        // Where only a limit is given, Kubernetes asks for as much.
        let least = |resource: &str, text: &str| {
            let is_limited = limits.as_ref().is_some_and(|limits| limits.contains_key(resource));
            (!is_limited).then(|| text.to_owned())
        };
        let requests = list(
            &self.requests_cpu,
            &defaults.requests_cpu.clone().or_else(|| least("cpu", LEAST_CPU)),
            &self.requests_memory,
            &defaults.requests_memory.clone().or_else(|| least("memory", LEAST_MEMORY)),
        );
        Some(ResourceRequirements { requests, limits, ..ResourceRequirements::default() })
    }
}

/// The pod that this request asks for. `node_uid` is that of the Node object, where there is one.
#[must_use]
pub fn build(config: &PodConfig, request: &PodRequest, node_uid: Option<&str>) -> Pod {
    let mut labels = config.labels.clone();
    labels.insert(pod::MOUNTED_BY_VERSION.to_owned(), csi::contract::VERSION.to_owned());
    if !config.engine_version.is_empty() {
        labels.insert(pod::MOUNTPOINT_VERSION.to_owned(), config.engine_version.clone());
    }
    let ours = [
        (pod::VOLUME_NAME.to_owned(), request.volume.clone()),
        (pod::VOLUME_ID.to_owned(), request.handle.clone()),
        (pod::WORKLOAD_UID.to_owned(), request.workload_uid.clone()),
        // Bound to its node like a DaemonSet's pod: it must not keep a node from being scaled away.
        ("cluster-autoscaler.kubernetes.io/daemonset-pod".to_owned(), "true".to_owned()),
    ];
    let mut annotations = config.annotations.clone();
    annotations.extend(ours);
    let pull_secrets: Vec<_> =
        config.pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() }).collect();
    Pod {
        metadata: ObjectMeta {
            name: Some(request.name.clone()),
            namespace: Some(config.namespace.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: node_uid.map(|uid| vec![owned_by(&request.node, uid)]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            affinity: Some(on_node(&request.node)),
            // The workload is on the node already; whatever keeps others away must not keep its mount away.
            tolerations: Some(vec![Toleration { operator: Some("Exists".into()), ..Toleration::default() }]),
            restart_policy: Some("OnFailure".into()),
            // A drain ends Mountpoint Pods beside their workloads; the mount must outlive the slowest of them.
            termination_grace_period_seconds: Some(600),
            security_context: (!config.openshift).then(|| PodSecurityContext {
                // The node writes credentials for the group of the comm directory, whichever it is.
                fs_group: Some(1000),
                ..PodSecurityContext::default()
            }),
            priority_class_name: (!config.priority_class.is_empty()).then(|| config.priority_class.clone()),
            image_pull_secrets: (!pull_secrets.is_empty()).then_some(pull_secrets),
            service_account_name: request.settings.service_account.clone(),
            automount_service_account_token: Some(false),
            containers: vec![mounter(config, request)],
            volumes: Some(
                [comm_volume(), state_volume()].into_iter().chain(ca_volume(config, request)).collect(),
            ),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// Its node, as of a static pod: a drain goes on only if each pod has a controller. Never the attachment, since deleting that by hand
/// would end mounts that are read.
fn owned_by(node: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.into(),
        uid: uid.into(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

fn comm_volume() -> Volume {
    Volume {
        name: pod::COMM_VOLUME.into(),
        empty_dir: Some(EmptyDirVolumeSource {
            // In memory: credentials never touch the node's disk.
            medium: Some("Memory".into()),
            size_limit: Some(Quantity("10Mi".into())),
        }),
        ..Volume::default()
    }
}

/// On the node's disk: it outlives a container, and goes with the pod.
fn state_volume() -> Volume {
    Volume {
        name: pod::STATE_VOLUME.into(),
        empty_dir: Some(EmptyDirVolumeSource { medium: None, size_limit: Some(Quantity("10Mi".into())) }),
        ..Volume::default()
    }
}

/// The certificates of the chart and of the volume, a file each.
fn ca_volume(config: &PodConfig, request: &PodRequest) -> Option<Volume> {
    let of_chart = Some(&config.ca_config_map).filter(|name| !name.is_empty());
    let named = [(of_chart, "chart.crt"), (request.settings.ca_config_map.as_ref(), "volume.crt")];
    let sources = named.into_iter().filter_map(|(name, path)| {
        let item = KeyToPath { key: pod::CA_KEY.into(), path: path.into(), mode: None };
        let config_map = ConfigMapProjection { name: name?.clone(), items: Some(vec![item]), optional: None };
        Some(VolumeProjection { config_map: Some(config_map), ..VolumeProjection::default() })
    });
    let sources: Vec<_> = sources.collect();
    (!sources.is_empty()).then(|| Volume {
        name: pod::CA_VOLUME.into(),
        projected: Some(ProjectedVolumeSource { sources: Some(sources), default_mode: None }),
        ..Volume::default()
    })
}

fn mounter(config: &PodConfig, request: &PodRequest) -> Container {
    let env = |(name, value): (&String, &String)| EnvVar {
        name: name.clone(),
        value: Some(value.clone()),
        value_from: None,
    };
    Container {
        name: pod::CONTAINER.into(),
        image: Some(config.image.clone()),
        image_pull_policy: (!config.pull_policy.is_empty()).then(|| config.pull_policy.clone()),
        command: Some(vec![config.command.clone()]),
        env: (!config.env.is_empty()).then(|| config.env.iter().map(env).collect()),
        resources: request.settings.resources.or(&config.resources),
        security_context: Some(SecurityContext {
            run_as_user: (!config.openshift).then_some(1000),
            run_as_non_root: Some(true),
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
            se_linux_options: config.se_linux.clone(),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts(config, request)),
        ..Container::default()
    }
}

fn mounts(config: &PodConfig, request: &PodRequest) -> Vec<VolumeMount> {
    let comm = VolumeMount {
        name: pod::COMM_VOLUME.into(),
        mount_path: csi::contract::comm::Comm::in_pod().directory().to_string_lossy().into_owned(),
        ..VolumeMount::default()
    };
    let ca = ca_volume(config, request).map(|volume| VolumeMount {
        name: volume.name,
        mount_path: pod::CA_DIRECTORY.into(),
        read_only: Some(true),
        ..VolumeMount::default()
    });
    let state = VolumeMount {
        name: pod::STATE_VOLUME.into(),
        mount_path: pod::STATE_DIRECTORY.into(),
        ..VolumeMount::default()
    };
    [comm, state].into_iter().chain(ca).collect()
}

/// Through the scheduler, so that resources are counted, and to one node only.
fn on_node(node: &str) -> Affinity {
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![NodeSelectorTerm {
                    match_fields: Some(vec![NodeSelectorRequirement {
                        key: "metadata.name".into(),
                        operator: "In".into(),
                        values: Some(vec![node.to_owned()]),
                    }]),
                    match_expressions: None,
                }],
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}

/// The node that a Mountpoint Pod is bound to, also before it is scheduled.
#[must_use]
pub fn node_of(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if let Some(node) = spec.node_name.as_deref().filter(|node| !node.is_empty()) {
        return Some(node);
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let selector = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = selector.node_selector_terms.iter().filter_map(|term| term.match_fields.as_ref()).flatten();
    fields
        .filter(|field| field.key == "metadata.name" && field.operator == "In")
        .find_map(|field| field.values.as_ref()?.first())
        .map(String::as_str)
}

/// The form of an object's name: parts of small letters, digits and dashes, with points between them.
fn is_name(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

/// The form of a quantity that is not negative: digits with at most one point, then a suffix or an exponent.
#[must_use]
pub(crate) fn is_quantity(text: &str) -> bool {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    if !number.bytes().any(|b| b.is_ascii_digit()) || number.matches('.').count() > 1 {
        return false;
    }
    if SUFFIXES.contains(&suffix) {
        return true;
    }
    let Some(exponent) = suffix.strip_prefix(['e', 'E']) else { return false };
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

const SUFFIXES: [&str; 16] =
    ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

#[cfg(test)]
mod tests;
