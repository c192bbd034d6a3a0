//! Turns observations into facts. Enters: the caches of pods, claims, volumes and attachments. Leaves: the groups that an object
//! affects, and the [`Facts`] of a group.
//!
//! Never here: a call to the API server, a decision. A scan of the cached pods takes a millisecond for ten thousand pods: callers for
//! many groups share an [`Index`].

pub(crate) mod index;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use csi::contract::DRIVER;
use csi::contract::attachment::{Identity, MountpointS3PodAttachment, ShareKey};
use csi::contract::volume::{self, joined_options};
use csi::contract::{pod, stage};
use csi::events::WorkloadRef;
use csi::node::trial;
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod,
    ServiceAccount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::reflector::{ObjectRef, Store};

use crate::facts::{Facts, Group, Phase, Wants, Workload};
use crate::handles::{Handles, handle_of};
use crate::mountpoint_pod;
use crate::pod_spec::{self, Claim, Resources, Settings};
pub use index::Index;

/// The cluster's state according to the watches. Each store may lag by a different time.
#[derive(Clone)]
pub struct Cache {
    /// The namespace of Mountpoint Pods.
    pub namespace: String,
    /// All pods of the cluster.
    pub pods: Store<Pod>,
    /// All claims of the cluster.
    pub claims: Store<PersistentVolumeClaim>,
    /// All volumes of the cluster.
    pub volumes: Store<PersistentVolume>,
    /// The index of the volumes by handle.
    pub handles: Handles,
    /// All attachments of the cluster.
    pub attachments: Store<MountpointS3PodAttachment>,
    /// Whether inline volumes get Mountpoint Pods, too.
    pub inline: bool,
    /// The share of a workload's resources, in per cent, that its Mountpoint Pod gets if no other setting names any.
    pub share_percent: u32,
    /// Whether volumes may have `mode full`.
    pub stages: bool,
    /// Stages are directories of the nodes.
    pub stages_on_nodes: bool,
    /// Whether an agent gives credentials to service accounts whose annotations name no role.
    pub agent: bool,
    /// All service accounts, for the roles in their annotations.
    pub accounts: Store<ServiceAccount>,
}

impl Cache {
    /// The groups that a change of a pod may affect: by its claims, by attachments that name it, or as a Mountpoint Pod.
    #[must_use]
    pub fn groups_of_pod(&self, pod: &Pod) -> BTreeSet<Group> {
        let mut groups = BTreeSet::new();
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        if self.is_mountpoint_pod(pod) {
            groups.extend(self.group_of_mountpoint_pod(pod));
            let names = |it: &&Arc<MountpointS3PodAttachment>| it.spec.mountpoint_pods.contains_key(&name);
            groups.extend(self.attachments.state().iter().filter(names).map(|it| group_of_attachment(it)));
            return groups;
        }
        let Some(node) = node_of(pod) else { return groups };
        groups.extend(self.groups_of_volumes(pod, node));
        let on_node =
            self.attachments.state_filter(|it| it.spec.node_name == node && it.spec.pod_of(&uid).is_some());
        groups.extend(on_node.iter().map(|it| group_of_attachment(it)));
        groups
    }

    /// A workload's groups by its volumes, and by other volumes with the same handle.
    fn groups_of_volumes(&self, pod: &Pod, node: &str) -> BTreeSet<Group> {
        let mut groups = BTreeSet::new();
        for volume in self.volumes_of(pod) {
            let twins = self.twins_of(&volume);
            let all = twins.iter().chain([&volume]);
            groups.extend(all.map(|it| Group { node: node.to_owned(), volume: it.name_any() }));
        }
        groups
    }

    /// The groups that a change of a claim may affect.
    #[must_use]
    pub fn groups_of_claim(&self, claim: &PersistentVolumeClaim) -> BTreeSet<Group> {
        let (namespace, name) = (claim.namespace(), claim.name_any());
        self.groups_where(|pod| pod.namespace() == namespace && claims_of(pod).any(|(it, _)| it == name))
    }

    /// The groups that a change of a service account may affect.
    #[must_use]
    pub fn groups_of_account(&self, account: &ServiceAccount) -> BTreeSet<Group> {
        let (namespace, name) = (account.namespace(), account.name_any());
        self.groups_where(|pod| pod.namespace() == namespace && account_of(pod) == name)
    }

    /// The groups that a change of a volume may affect.
    #[must_use]
    pub fn groups_of_volume(&self, volume: &PersistentVolume) -> BTreeSet<Group> {
        let Some(claim) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
            return BTreeSet::new();
        };
        let is = |name: &str| claim.name.as_deref() == Some(name);
        self.groups_where(|pod| pod.namespace() == claim.namespace && claims_of(pod).any(|(it, _)| is(&it)))
    }

    /// All groups in the caches.
    #[must_use]
    pub fn groups(&self) -> BTreeSet<Group> {
        self.groups_by(&self.index())
    }

    /// All groups, from an index of the present caches.
    #[must_use]
    pub fn groups_by(&self, index: &Index) -> BTreeSet<Group> {
        let known = index.mountpoint_pods.keys().chain(index.attachments.keys());
        let mut groups: BTreeSet<_> = known.cloned().collect();
        for (node, pods) in &index.workloads {
            groups.extend(pods.iter().flat_map(|pod| self.groups_of_volumes(pod, node)));
        }
        groups
    }

    /// The facts of a group.
    #[must_use]
    pub fn facts(&self, group: &Group, release: &str, now: Timestamp) -> Facts {
        self.facts_by(&self.index(), group, release, now)
    }

    /// The facts of a group, from an index of the present caches.
    #[must_use]
    pub fn facts_by(&self, index: &Index, group: &Group, release: &str, now: Timestamp) -> Facts {
        let attachments = index.attachments.get(group).into_iter().flatten();
        let attachments: Vec<_> = attachments.map(|it| (**it).clone()).collect();
        let workloads = self.workloads(index, group, &attachments);
        let mut pods = BTreeMap::new();
        let mut add = |pod: &Pod| {
            let name = pod.name_any();
            let used = index.named.get(name.as_str());
            let read = mountpoint_pod::read(pod, used.is_some(), used == Some(&true));
            pods.insert(name, read);
        };
        for pod in index.mountpoint_pods.get(group).into_iter().flatten() {
            add(pod);
        }
        let listed = attachments.iter().flat_map(|it| it.spec.mountpoint_pods.keys());
        for pod in listed.filter_map(|name| self.pod(name)) {
            add(&pod);
        }
        // Another pod may already have the name of a future Mountpoint Pod.
        for uid in workloads.keys() {
            let names = (0..).map(|attempt| pod::name(uid, &group.volume, release, attempt));
            for pod in names.map_while(|name| self.pod(&name)) {
                add(&pod);
            }
        }
        let twins = self.twins_in_use(index, group);
        let (group, release, refused) = (group.clone(), release.to_owned(), BTreeSet::new());
        Facts { now, group, release, workloads, attachments, pods, twins, refused }
    }

    fn twins_in_use(&self, index: &Index, group: &Group) -> BTreeSet<String> {
        let volume = self.volumes.get(&ObjectRef::new(&group.volume));
        let twins = volume.map(|volume| self.twins_of(&volume)).unwrap_or_default();
        if twins.is_empty() {
            return BTreeSet::new();
        }
        let twins: BTreeSet<String> = twins.iter().map(|it| it.name_any()).collect();
        let on_node = index.on_node(&group.node).filter(|pod| !mountpoint_pod::phase(pod).has_ended());
        let used = on_node.flat_map(|pod| self.volumes_of(pod)).map(|volume| volume.name_any());
        used.filter(|name| twins.contains(name)).collect()
    }

    /// The other volumes of this driver with the same handle as this one.
    fn twins_of(&self, volume: &PersistentVolume) -> Vec<Arc<PersistentVolume>> {
        let Some(handle) = handle_of(volume) else { return Vec::new() };
        let others = self.handles.names(handle).into_iter().filter(|name| *name != volume.name_any());
        let others = others.filter_map(|name| self.volumes.get(&ObjectRef::new(&name)));
        others.filter(|it| handle_of(it) == Some(handle)).collect()
    }

    fn workloads(
        &self,
        index: &Index,
        group: &Group,
        attachments: &[MountpointS3PodAttachment],
    ) -> BTreeMap<String, Workload> {
        let attached: BTreeSet<&str> = attachments
            .iter()
            .flat_map(|it| it.spec.mountpoint_pods.values().flatten())
            .map(|it| it.workload_pod_uid.as_str())
            .collect();
        let (mut workloads, mut tried) = (BTreeMap::new(), BTreeMap::new());
        for pod in index.on_node(&group.node) {
            let uid = pod.uid().unwrap_or_default();
            let volume = self.volumes_of(pod).find(|volume| volume.name_any() == group.volume);
            let wants = volume.and_then(|volume| {
                let wants = self.wants(pod, &volume, group)?;
                let refusal = tried.entry(fs_group_of(pod)).or_insert_with(|| refusal(&volume, pod));
                Some(match refusal.clone() {
                    Some(why) if wants.settings.is_ok() => Wants { settings: Err(why), ..wants },
                    _ => wants,
                })
            });
            if wants.is_some() || attached.contains(uid.as_str()) {
                let at = WorkloadRef {
                    namespace: pod.namespace().unwrap_or_default(),
                    name: pod.name_any(),
                    uid: uid.clone(),
                };
                let deleting = pod.metadata.deletion_timestamp.is_some();
                workloads.insert(uid, Workload { at, phase: mountpoint_pod::phase(pod), deleting, wants });
            }
        }
        workloads
    }

    /// The volumes of this driver that a pod uses: those bound to its claims, and inline ones.
    pub(crate) fn volumes_of<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = Arc<PersistentVolume>> + 'a {
        let inline = inline_of(pod).filter(|_| self.inline);
        self.bound_to(pod).chain(inline)
    }

    fn bound_to<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = Arc<PersistentVolume>> + 'a {
        let namespace = pod.namespace().unwrap_or_default();
        claims_of(pod).filter_map(move |(name, owner)| {
            let claim = self.claims.get(&ObjectRef::new(&name).within(&namespace))?;
            // Kubernetes creates the claim of an ephemeral volume, with the pod as owner; another claim of the same name does not count.
            if owner.is_some_and(|uid| !claim.owner_references().iter().any(|it| it.uid == uid)) {
                return None;
            }
            let volume = self.volumes.get(&ObjectRef::new(claim.spec.as_ref()?.volume_name.as_deref()?))?;
            let spec = volume.spec.as_ref()?;
            let bound = spec.claim_ref.as_ref()?;
            let is_bound = bound.name.as_deref() == Some(&name)
                && bound.namespace.as_deref() == Some(&namespace)
                && (bound.uid.is_none() || bound.uid == claim.uid());
            let is_ours = spec.csi.as_ref().is_some_and(|csi| csi.driver == DRIVER);
            let is_block = spec.volume_mode.as_deref() == Some("Block");
            (is_bound && is_ours && !is_block).then_some(volume)
        })
    }

    pub(crate) fn wants(&self, pod: &Pod, volume: &PersistentVolume, group: &Group) -> Option<Wants> {
        let spec = volume.spec.as_ref()?;
        let csi = spec.csi.as_ref()?;
        let fs_group = fs_group_of(pod);
        let said = csi.volume_attributes.as_ref().and_then(|all| all.get(volume::AUTHENTICATION_SOURCE));
        // A Secret wins over the pod's identity, as in the node's driver.
        let of_pod = said.is_some_and(|it| it == volume::SOURCE_POD) && csi.node_publish_secret_ref.is_none();
        let identity = of_pod.then(|| self.identity(pod));
        let key = ShareKey {
            node: group.node.clone(),
            volume: group.volume.clone(),
            handle: csi.volume_handle.clone(),
            mount_options: joined_options(spec.mount_options.as_deref().unwrap_or_default()),
            fs_group: fs_group.map(|group| group.to_string()).unwrap_or_default(),
            identity: identity.clone(),
        };
        let settings = match (&csi.volume_attributes, identity) {
            (_, Some(Identity { namespace, service_account, role })) if role.is_empty() && !self.agent => {
                Err(format!(
                    "volume attribute {} is 'pod', and ServiceAccount {namespace}/{service_account} has no annotation {}: write the ARN of \
                 the role there that its workloads take, or let an agent of the nodes give them keys (podIdentity.agentUrl of the chart)",
                    volume::AUTHENTICATION_SOURCE,
                    volume::ROLE_ANNOTATIONS[0]
                ))
            }
            (attributes, _) => {
                let (none, options) = (BTreeMap::new(), spec.mount_options.as_deref().unwrap_or_default());
                let settings = Settings::new(attributes.as_ref().unwrap_or(&none), options);
                let is_kept = |it: &Settings| match &it.stage {
                    None => Ok(()),
                    Some(_) if !self.stages => {
                        Err(format!("mount option 'mode full' is not allowed: {}", stage::EXPERIMENTAL))
                    }
                    Some(stage) => stage.check(self.stages_on_nodes),
                };
                settings.and_then(|it| is_kept(&it).map(|()| it))
            }
        };
        let share = (self.share_percent > 0).then(|| Resources::share_of(pod, self.share_percent));
        let preempts = has_reserved(pod);
        let has_secret = csi.node_publish_secret_ref.is_some();
        let share = share.unwrap_or_default();
        let claim = spec
            .claim_ref
            .as_ref()
            .and_then(|claim| Some(Claim { name: claim.name.clone()?, namespace: claim.namespace.clone()? }));
        let settings = settings.map(|it| Settings { share, has_secret, preempts, claim, ..it });
        Some(Wants { key, volume_uid: volume.metadata.uid.clone(), settings })
    }

    /// The pod's identity for credentials; the role is empty if no annotation of its service account names one.
    fn identity(&self, pod: &Pod) -> Identity {
        let namespace = pod.namespace().unwrap_or_default();
        let service_account = account_of(pod);
        let account = self.accounts.get(&ObjectRef::new(&service_account).within(&namespace));
        let annotations = account.as_ref().map(|account| account.annotations());
        let role = annotations.and_then(|all| volume::ROLE_ANNOTATIONS.iter().find_map(|key| all.get(*key)));
        let role = role.map(|role| role.trim().to_owned()).unwrap_or_default();
        Identity { namespace, service_account, role }
    }

    fn groups_where(&self, pick: impl Fn(&Pod) -> bool) -> BTreeSet<Group> {
        let picked = self.pods.state_filter(|pod| node_of(pod).is_some() && pick(pod));
        picked.iter().flat_map(|pod| self.groups_of_pod(pod)).collect()
    }

    fn mountpoint_pods(&self) -> Vec<Arc<Pod>> {
        self.pods.state_filter(|pod| self.is_mountpoint_pod(pod))
    }

    fn pod(&self, name: &str) -> Option<Arc<Pod>> {
        self.pods.get(&ObjectRef::new(name).within(&self.namespace))
    }

    pub(crate) fn is_mountpoint_pod(&self, pod: &Pod) -> bool {
        pod.metadata.namespace.as_deref() == Some(&self.namespace)
            && pod.labels().contains_key(pod::MOUNTED_BY_VERSION)
            && pod.metadata.name.as_deref().is_some_and(|name| name.starts_with("mp-"))
    }

    fn group_of_mountpoint_pod(&self, pod: &Pod) -> Option<Group> {
        let node = pod_spec::node_of(pod)?.to_owned();
        let volume = mountpoint_pod::read(pod, false, false).volume?;
        Some(Group { node, volume })
    }
}

/// Numbers of objects in use, for the page of metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// The number of attachments.
    pub attachments: usize,
    /// Numbers of Mountpoint Pods by phase.
    pub mountpoint_pods: BTreeMap<&'static str, usize>,
    /// Numbers of workloads by volume and node.
    pub volumes: BTreeMap<VolumeInUse, usize>,
}

/// A volume on a node, by names that users know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeInUse {
    /// The node.
    pub node: String,
    /// The PersistentVolume.
    pub volume: String,
    /// The claim to which the volume is bound; empty without one.
    pub claim: String,
    /// The claim's namespace.
    pub claim_namespace: String,
}

impl Cache {
    /// Counts the objects that are in use now.
    #[must_use]
    pub fn in_use(&self) -> InUse {
        let mut in_use = InUse::default();
        for phase in ["Pending", "Running", "Succeeded", "Failed"] {
            in_use.mountpoint_pods.insert(phase, 0);
        }
        for pod in self.mountpoint_pods() {
            let phase = match mountpoint_pod::phase(&pod) {
                Phase::Pending => "Pending",
                Phase::Running => "Running",
                Phase::Succeeded => "Succeeded",
                Phase::Failed => "Failed",
            };
            *in_use.mountpoint_pods.entry(phase).or_default() += 1;
        }
        for attachment in self.attachments.state() {
            in_use.attachments += 1;
            let Group { node, volume } = group_of_attachment(&attachment);
            let found = self.volumes.get(&ObjectRef::new(&volume));
            let claim = found.and_then(|it| it.spec.as_ref()?.claim_ref.clone()).unwrap_or_default();
            let (claim, claim_namespace) =
                (claim.name.unwrap_or_default(), claim.namespace.unwrap_or_default());
            let workloads = attachment.spec.mountpoint_pods.values().map(Vec::len).sum::<usize>();
            *in_use.volumes.entry(VolumeInUse { node, volume, claim, claim_namespace }).or_default() +=
                workloads;
        }
        in_use
    }
}

/// The group of an attachment.
#[must_use]
pub fn group_of_attachment(attachment: &MountpointS3PodAttachment) -> Group {
    Group { node: attachment.spec.node_name.clone(), volume: attachment.spec.persistent_volume_name.clone() }
}

fn fs_group_of(pod: &Pod) -> Option<i64> {
    pod.spec.as_ref()?.security_context.as_ref()?.fs_group
}

/// The reason why every node would refuse the volume for this pod. A volume that can't be mounted gets no Mountpoint Pod.
fn refusal(volume: &PersistentVolume, pod: &Pod) -> Option<String> {
    let spec = volume.spec.as_ref()?;
    let attributes = spec.csi.as_ref()?.volume_attributes.as_ref();
    let none = BTreeMap::new();
    // An inline volume has no claim.
    let attributes = spec.claim_ref.is_some().then(|| attributes.unwrap_or(&none));
    let fs_group = fs_group_of(pod).and_then(|group| u32::try_from(group).ok());
    let options = spec.mount_options.as_deref().unwrap_or_default();
    trial::check(&volume.name_any(), attributes, options, fs_group).err()
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

/// The inline volumes of this driver in a pod, each as the PersistentVolume that it would be. The only attribute that counts here is the
/// mount options: authors of pods must not decide how Mountpoint Pods are made.
fn inline_of(pod: &Pod) -> impl Iterator<Item = Arc<PersistentVolume>> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(move |it| {
        let csi = it.csi.as_ref().filter(|csi| csi.driver == DRIVER)?;
        let handle = volume::inline_handle(uid, &it.name);
        let options = csi.volume_attributes.as_ref().and_then(|all| all.get(volume::MOUNT_OPTIONS));
        let source = CSIPersistentVolumeSource {
            driver: DRIVER.to_owned(),
            volume_handle: handle.clone(),
            ..CSIPersistentVolumeSource::default()
        };
        let spec = PersistentVolumeSpec {
            csi: Some(source),
            mount_options: Some(volume::allowed_inline(volume::inline_options(options.map(String::as_str)))),
            ..PersistentVolumeSpec::default()
        };
        let metadata = ObjectMeta { name: Some(handle), ..ObjectMeta::default() };
        Some(Arc::new(PersistentVolume { metadata, spec: Some(spec), status: None }))
    })
}

/// The names of a pod's claims. A claim that Kubernetes creates for an ephemeral volume comes with the pod's UID, its owner.
pub(crate) fn claims_of(pod: &Pod) -> impl Iterator<Item = (String, Option<&str>)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| {
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some((claim.claim_name.clone(), None));
        }
        volume.ephemeral.as_ref()?;
        Some((
            format!("{}-{}", pod.name_any(), volume.name),
            Some(pod.metadata.uid.as_deref().unwrap_or_default()),
        ))
    })
}

/// Whether room is reserved for the pod's Mountpoint Pods. The label's value must be the pod's own UID: a copied label does not count.
pub(crate) fn has_reserved(pod: &Pod) -> bool {
    pod.metadata.uid.is_some() && pod.labels().get(pod::HEADROOM_FOR_WORKLOAD) == pod.metadata.uid.as_ref()
}

fn account_of(pod: &Pod) -> String {
    let named = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    named.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned())
}
