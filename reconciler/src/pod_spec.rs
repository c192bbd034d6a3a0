//! The specification of a Mountpoint Pod. Enters: the chart's settings, and the workload and volume of the pod. Leaves: a [`Pod`], or a
//! sentence about invalid attributes.
//!
//! Never here: a call to the API server, the choice of the workloads that the pod serves.

mod headroom;
mod resources;
mod template;

use std::collections::BTreeMap;
use std::str::FromStr;

use csi::contract::cache::{self, Cache, Place};
use csi::contract::log::{self, LogFormat};
use csi::contract::quantity::Quantity as Amount;
use csi::contract::stage::{self, Stage};
use csi::contract::{pod, volume};
use k8s_openapi::api::core::v1::{
    Affinity, ConfigMapProjection, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource,
    EphemeralVolumeSource, KeyToPath, LocalObjectReference, NodeAffinity, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, ObjectFieldSelector, PersistentVolumeClaimSpec,
    PersistentVolumeClaimTemplate, Pod, PodSpec, ProjectedVolumeSource, ResourceRequirements, SELinuxOptions,
    Volume, VolumeMount, VolumeProjection, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

pub use headroom::{HeadroomConfig, HeadroomRequest, headroom_pod};
pub use resources::Resources;
pub use template::Template;

/// Most memory that an engine needs beside its memory target.
const BESIDE_TARGET_BYTES: u64 = 64 << 20;
/// The smallest memory target that an engine accepts.
const LEAST_TARGET_BYTES: u64 = 128 << 20;

/// The settings of all Mountpoint Pods.
#[derive(Clone, Debug, PartialEq)]
pub struct PodConfig {
    /// The namespace of Mountpoint Pods.
    pub namespace: String,
    /// The image with the mounter and the engine.
    pub image: String,
    /// The policy for pulling the image; `None` for the cluster's default.
    pub pull_policy: Option<PullPolicy>,
    /// Names of the secrets for pulling the image, in the namespace of Mountpoint Pods.
    pub pull_secrets: Vec<String>,
    /// The path of the mounter in the image.
    pub command: String,
    /// The priority class; `None` for the cluster's default.
    pub priority_class: Option<String>,
    /// Labels besides the driver's own.
    pub labels: BTreeMap<String, String>,
    /// Annotations besides the driver's own.
    pub annotations: BTreeMap<String, String>,
    /// Variables of the container. The mounter passes those of `volume::ENGINE_VARIABLES` to the engine, unless the volume sets them.
    pub env: BTreeMap<String, String>,
    /// The SELinux context of the container; `None` for the container runtime's default.
    pub se_linux: Option<SELinuxOptions>,
    /// Security contexts, DNS, host aliases, runtime class and tolerations.
    pub template: Template,
    /// The engine's version, for a label.
    pub engine_version: Option<String>,
    /// Defaults for volumes that do not set their own.
    pub resources: Resources,
    /// A ConfigMap in that namespace with certificates that every engine trusts besides the system's.
    pub ca_config_map: Option<String>,
    /// Whether stages are directories of the nodes, which the nodes' drivers give to the pods; else they are volumes of the pods.
    pub stages_on_nodes: bool,
    /// The port where engines serve their metrics; 0 for none.
    pub metrics_port: u16,
    /// The form of log lines of mounter and engine.
    pub log_format: LogFormat,
    /// The settings of headroom pods; `None`: no room is reserved.
    pub headroom: Option<HeadroomConfig>,
    /// Whether the cluster is OpenShift, which assigns each namespace a range of users and groups, and admits no fixed ones.
    pub openshift: bool,
}

/// The kubelet's policy for pulling an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// Pull at each start.
    Always,
    /// Pull if the node does not have the image.
    IfNotPresent,
    /// Never pull: the image must be on the node.
    Never,
}

impl PullPolicy {
    /// The policy in Kubernetes' spelling.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

impl FromStr for PullPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Always, Self::IfNotPresent, Self::Never];
        let found = all.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| "must be Always, IfNotPresent or Never".to_owned())
    }
}

/// A volume's attributes for its Mountpoint Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The service account.
    pub service_account: Option<String>,
    /// CPU and memory; each value wins over the chart's.
    pub resources: Resources,
    /// A ConfigMap with certificates that this volume's engine trusts, too.
    pub ca_config_map: Option<String>,
    /// The cache, if the volume asks for one.
    pub cache: Option<Cache>,
    /// The stage, if the volume has `mode full`.
    pub stage: Option<Stage>,
    /// A share of the workload's resources, for each resource that neither volume nor chart sets.
    pub share: Resources,
    /// Whether the volume names a Secret with credentials of its own.
    pub has_secret: bool,
    /// Whether room is reserved for this pod, which it takes by preemption.
    pub preempts: bool,
    /// The claim to which the volume is bound, for metrics.
    pub claim: Option<Claim>,
}

/// A claim by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The claim's name.
    pub name: String,
    /// The claim's namespace.
    pub namespace: String,
}

/// The request for one Mountpoint Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRequest {
    /// The name of the pod.
    pub name: String,
    /// The node of the pod.
    pub node: String,
    /// The PersistentVolume's name.
    pub volume: String,
    /// The UID of the volume; `None` for an inline volume.
    pub volume_uid: Option<String>,
    /// The volume handle.
    pub handle: String,
    /// The workload for which the pod is made.
    pub workload_uid: String,
    /// The volume's own settings.
    pub settings: Settings,
}

impl Settings {
    /// Parses the attributes of a volume, and its mount options that concern Mountpoint Pods.
    ///
    /// # Errors
    /// A sentence that names the attribute, its value and the expected form.
    pub fn new(attributes: &BTreeMap<String, String>, options: &[String]) -> Result<Self, String> {
        let quantity = |attribute: &str| match attributes.get(attribute) {
            None => Ok(None),
            Some(text) if Amount::parse(text).is_some() => Ok(Some(text.clone())),
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
        let cache = Cache::read(|key| attributes.get(key).map(String::as_str), options)?;
        let stage = Stage::read(options)?;
        Ok(Self { service_account, resources, ca_config_map, cache, stage, ..Self::default() })
    }

    /// The stage that is a volume of the pod.
    fn stage_of_pod(&self, config: &PodConfig) -> Option<&Stage> {
        self.stage.as_ref().filter(|_| !config.stages_on_nodes)
    }

    /// The resources of the pod: the volume's, the chart's, or a share of the workload's; and the disk of a stage.
    fn requirements(&self, config: &PodConfig) -> ResourceRequirements {
        let mut resources = self.resources.or(&config.resources, &self.share);
        if let Some(stage) = self.stage_of_pod(config) {
            // The scheduler then counts it, and a kubelet that is short of disk first ends pods that have more than they asked for.
            let disk = ("ephemeral-storage".to_owned(), Quantity(stage.request().as_memory()));
            resources.requests.get_or_insert_default().extend([disk]);
        }
        resources
    }
}

/// UIDs of the objects that own a Mountpoint Pod; `None` for one that does not exist.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owners<'a> {
    /// The namespace of Mountpoint Pods.
    pub namespace: Option<&'a str>,
    /// The Node.
    pub node: Option<&'a str>,
}

/// The pod for this request.
#[must_use]
pub fn build(config: &PodConfig, request: &PodRequest, owners: Owners<'_>) -> Pod {
    let mut labels = config.labels.clone();
    labels.insert(pod::MOUNTED_BY_VERSION.to_owned(), csi::contract::VERSION.to_owned());
    labels.extend(config.engine_version.clone().map(|version| (pod::MOUNTPOINT_VERSION.to_owned(), version)));
    let ours = [
        (pod::VOLUME_NAME.to_owned(), request.volume.clone()),
        (pod::VOLUME_ID.to_owned(), request.handle.clone()),
        (pod::WORKLOAD_UID.to_owned(), request.workload_uid.clone()),
        // The pod is bound to its node like a DaemonSet's pod: it must not keep the autoscaler from removing the node.
        ("cluster-autoscaler.kubernetes.io/daemonset-pod".to_owned(), "true".to_owned()),
    ];
    let mut annotations = config.annotations.clone();
    annotations.extend(ours);
    annotations.extend(request.volume_uid.clone().map(|uid| (pod::VOLUME_UID.to_owned(), uid)));
    if let Some(Claim { name, namespace }) = request.settings.claim.clone() {
        annotations.extend([(pod::CLAIM.to_owned(), name), (pod::CLAIM_NAMESPACE.to_owned(), namespace)]);
    }
    if request.settings.has_secret {
        annotations.insert(pod::KEYS.to_owned(), pod::KEYS_OF_SECRET.to_owned());
    }
    let spec = spec(config, request);
    annotations.insert(pod::SPEC.to_owned(), digest_of(&spec));
    Pod {
        metadata: ObjectMeta {
            name: Some(request.name.clone()),
            namespace: Some(config.namespace.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: owned_by(config, request, owners),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The digest of the specification for this request.
#[must_use]
pub fn digest(config: &PodConfig, request: &PodRequest) -> String {
    digest_of(&spec(config, request))
}

fn digest_of(spec: &PodSpec) -> String {
    pod::spec_digest(&serde_json::to_string(spec).expect("each key of a specification is text"))
}

fn spec(config: &PodConfig, request: &PodRequest) -> PodSpec {
    let preempting = config.headroom.as_ref().filter(|_| request.settings.preempts);
    let preempting_class = preempting.map(|headroom| headroom.preempting_class.clone());
    PodSpec {
        affinity: Some(on_node(&request.node)),
        tolerations: Some(config.template.tolerations()),
        restart_policy: Some("OnFailure".into()),
        // A drain ends Mountpoint Pods at the same time as their workloads; the mount must outlive the slowest workload.
        termination_grace_period_seconds: Some(600),
        security_context: config.template.pod_security_context(config.openshift),
        dns_policy: config.template.dns_policy.clone(),
        dns_config: config.template.dns_config.clone(),
        host_aliases: config.template.host_aliases.clone(),
        runtime_class_name: config.template.runtime_class_name.clone(),
        priority_class_name: preempting_class.or_else(|| config.priority_class.clone()),
        image_pull_secrets: pull_secrets(config),
        service_account_name: request.settings.service_account.clone(),
        automount_service_account_token: Some(false),
        // A Service named `mountpoint-metrics` would set variables that our programs read.
        enable_service_links: Some(false),
        containers: vec![mounter(config, request)],
        volumes: Some(
            [comm_volume(), state_volume(), template::tmp_volume()]
                .into_iter()
                .chain(ca_volume(config, request))
                .chain(request.settings.cache.as_ref().map(cache_volume))
                .chain(request.settings.stage_of_pod(config).map(stage_volume))
                .collect(),
        ),
        ..PodSpec::default()
    }
}

fn pull_secrets(config: &PodConfig) -> Option<Vec<LocalObjectReference>> {
    let named = config.pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
    (!config.pull_secrets.is_empty()).then(|| named.collect())
}

/// The two owners of a pod. Kubernetes deletes an object without an existing owner. The controller is the pod's own namespace: a drain
/// needs a controller for each pod, and a namespace is never deleted before its pods. The Node as owner tells autoscalers that the pod
/// can't move to another node, like a static pod. The Node alone would not do: a Node that is registered again has another UID, and all its
/// mounts would end with the old Node. Kubernetes itself deletes the pods of a node that is gone. The attachment is never an owner, because
/// somebody may delete it by hand.
fn owned_by(config: &PodConfig, request: &PodRequest, owners: Owners<'_>) -> Option<Vec<OwnerReference>> {
    let owner = |kind: &str, name: &str, uid: &str| OwnerReference {
        api_version: "v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid.into(),
        controller: (kind == "Namespace").then_some(true),
        block_owner_deletion: None,
    };
    let namespace = owners.namespace.map(|uid| owner("Namespace", &config.namespace, uid));
    let owned: Vec<_> =
        namespace.into_iter().chain(owners.node.map(|uid| owner("Node", &request.node, uid))).collect();
    (!owned.is_empty()).then_some(owned)
}

fn comm_volume() -> Volume {
    Volume {
        name: pod::COMM_VOLUME.into(),
        empty_dir: Some(EmptyDirVolumeSource {
            // This volume is in memory: credentials never touch the node's disk.
            medium: Some("Memory".into()),
            size_limit: Some(Quantity("10Mi".into())),
        }),
        ..Volume::default()
    }
}

/// The volume for the pod's state, on the node's disk: it outlives the containers, and is deleted with the pod.
fn state_volume() -> Volume {
    Volume {
        name: pod::STATE_VOLUME.into(),
        empty_dir: Some(EmptyDirVolumeSource { medium: None, size_limit: Some(Quantity("10Mi".into())) }),
        ..Volume::default()
    }
}

/// The volume of a cache. A generic ephemeral volume belongs to the pod: Kubernetes creates and deletes it with the pod.
fn cache_volume(cache: &Cache) -> Volume {
    let size = Quantity(cache.size.as_memory());
    let empty_dir = |medium: Option<&str>| EmptyDirVolumeSource {
        medium: medium.map(str::to_owned),
        size_limit: Some(size.clone()),
    };
    let volume = Volume { name: cache::VOLUME.into(), ..Volume::default() };
    match &cache.place {
        Place::Disk => Volume { empty_dir: Some(empty_dir(None)), ..volume },
        Place::Memory => Volume { empty_dir: Some(empty_dir(Some("Memory"))), ..volume },
        Place::Ephemeral { class } => {
            let spec = PersistentVolumeClaimSpec {
                access_modes: Some(vec!["ReadWriteOnce".into()]),
                storage_class_name: Some(class.clone()),
                volume_mode: Some("Filesystem".into()),
                resources: Some(VolumeResourceRequirements {
                    requests: Some(BTreeMap::from([("storage".to_owned(), size)])),
                    limits: None,
                }),
                ..PersistentVolumeClaimSpec::default()
            };
            let labels = BTreeMap::from([(pod::CLAIM_TYPE.to_owned(), pod::CLAIM_OF_CACHE.to_owned())]);
            let template = PersistentVolumeClaimTemplate {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec,
            };
            let ephemeral = EphemeralVolumeSource { volume_claim_template: Some(template) };
            Volume { ephemeral: Some(ephemeral), ..volume }
        }
    }
}

/// The volume of a stage, on the node's disk. It outlives a container: the next engine stores what a dead one left.
fn stage_volume(stage: &Stage) -> Volume {
    let size_limit = Some(Quantity(stage.limit().as_memory()));
    Volume {
        name: stage::VOLUME.into(),
        empty_dir: Some(EmptyDirVolumeSource { medium: None, size_limit }),
        ..Volume::default()
    }
}

/// The volume with the certificates of chart and volume, each in its own file; `None` if both have none.
fn ca_volume(config: &PodConfig, request: &PodRequest) -> Option<Volume> {
    let named = [
        (config.ca_config_map.as_ref(), "chart.crt"),
        (request.settings.ca_config_map.as_ref(), "volume.crt"),
    ];
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
    let of_chart = |(name, value): (&String, &String)| EnvVar {
        name: name.clone(),
        value: Some(value.clone()),
        value_from: None,
    };
    let mut env: Vec<_> = config.env.iter().map(of_chart).collect();
    if config.log_format != LogFormat::Text {
        let value = Some(config.log_format.to_string());
        env.push(EnvVar { name: log::VARIABLE.into(), value, value_from: None });
    }
    if config.metrics_port > 0 {
        let field_ref = ObjectFieldSelector { field_path: "status.podIP".into(), api_version: None };
        let address = EnvVarSource { field_ref: Some(field_ref), ..EnvVarSource::default() };
        env.push(EnvVar { name: pod::POD_ADDRESS.into(), value: None, value_from: Some(address) });
    }
    let resources = request.settings.requirements(config);
    let port = (config.metrics_port > 0).then_some(config.metrics_port);
    let target = memory_target(&resources, request.settings.cache.as_ref());
    let args: Vec<_> = [
        target.map(|mib| format!("--memory-target={mib}")),
        port.map(|it| format!("--metrics-port={it}")),
        request.settings.stage.as_ref().map(|stage| format!("--stage-size={}", stage.mib)),
    ]
    .into_iter()
    .flatten()
    .collect();
    Container {
        name: pod::CONTAINER.into(),
        image: Some(config.image.clone()),
        image_pull_policy: config.pull_policy.map(|policy| policy.name().to_owned()),
        command: Some(vec![config.command.clone()]),
        env: (!env.is_empty()).then_some(env),
        args: (!args.is_empty()).then_some(args),
        ports: port.map(|port| {
            let port = ContainerPort { container_port: port.into(), ..ContainerPort::default() };
            vec![ContainerPort { name: Some(pod::METRICS_PORT.into()), ..port }]
        }),
        resources: Some(resources),
        security_context: Some(config.template.security_context(config.openshift, config.se_linux.as_ref())),
        volume_mounts: Some(mounts(config, request)),
        ..Container::default()
    }
}

/// The engine's memory target in MiB: the memory limit without the engine's other memory, and without a cache in memory. `None` without a
/// limit, or if less remains than an engine needs: then the engine chooses its target, and logs it.
fn memory_target(resources: &ResourceRequirements, cache: Option<&Cache>) -> Option<u64> {
    let limit = Amount::parse(&resources.limits.as_ref()?.get("memory")?.0)?.bytes();
    let in_memory = cache.filter(|cache| cache.place == Place::Memory).map_or(0, |cache| cache.size.bytes());
    let target = limit.saturating_sub(BESIDE_TARGET_BYTES).saturating_sub(in_memory);
    (target >= LEAST_TARGET_BYTES).then_some(target >> 20)
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
    let cache = request.settings.cache.as_ref().map(|_| VolumeMount {
        name: cache::VOLUME.into(),
        mount_path: cache::DIRECTORY.into(),
        ..VolumeMount::default()
    });
    let stage = request.settings.stage_of_pod(config).map(|_| VolumeMount {
        name: stage::VOLUME.into(),
        mount_path: stage::MOUNT_PATH.into(),
        ..VolumeMount::default()
    });
    [comm, state, template::tmp_mount()].into_iter().chain(ca).chain(cache).chain(stage).collect()
}

/// The affinity to one node. The pod goes through the scheduler, which counts its resources.
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

/// The node for which a Mountpoint Pod was created, also before it is scheduled.
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

/// Whether a text has the form of an object's name: parts of lower-case letters, digits and dashes, separated by dots; 253 bytes at most.
fn is_name(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

#[cfg(test)]
mod tests;
