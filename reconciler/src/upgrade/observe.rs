//! Reads the facts about upgrades from the caches. Enters: pods and attachments. Leaves: [`Facts`].

use std::collections::{BTreeMap, BTreeSet, HashMap};

use csi::contract::pod;
use csi::contract::upgrade::ANNOTATION;
use csi::events::WorkloadRef;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod as Object};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::{Facts, Pod};
use crate::facts::Phase;
use crate::mountpoint_pod;
use crate::observed::Cache;
use crate::plan::Version;
use crate::pod_spec;

impl Cache {
    /// The Mountpoint Pods of the cluster, and the images of the drivers in `release_namespace`. `image` is the image of new Mountpoint
    /// Pods.
    #[must_use]
    pub fn upgrades(&self, image: Option<&str>, release_namespace: &str, now: Timestamp) -> Facts {
        let mut served = HashMap::<String, BTreeSet<String>>::new();
        for attachment in self.attachments.state() {
            for (name, workloads) in &attachment.spec.mountpoint_pods {
                let uids = workloads.iter().map(|it| it.workload_pod_uid.clone());
                served.entry(name.clone()).or_default().extend(uids);
            }
        }
        let uids: BTreeSet<_> = served.values().flatten().cloned().collect();
        let (mut drivers, mut pods) = (BTreeMap::<String, BTreeSet<String>>::new(), Vec::new());
        let mut workloads = HashMap::new();
        for pod in self.pods.state() {
            if self.is_mountpoint_pod(&pod) {
                let names = served.get(&pod.name_any());
                pods.extend(read(&pod).map(|read| (read, names.cloned().unwrap_or_default())));
            } else if let Some(uid) = pod.uid().filter(|uid| uids.contains(uid)) {
                workloads.insert(uid, reference(&pod));
            } else if pod.metadata.namespace.as_deref() == Some(release_namespace)
                && let Some((node, image)) = driver(&pod)
            {
                drivers.entry(node).or_default().insert(image);
            }
        }
        let with_workloads = |(pod, uids): (Pod, BTreeSet<String>)| {
            let workloads: Vec<_> = uids.iter().filter_map(|uid| workloads.get(uid).cloned()).collect();
            Pod { serves: pod.serves && !workloads.is_empty(), workloads, ..pod }
        };
        let mut pods: Vec<_> = pods.into_iter().map(with_workloads).collect();
        pods.sort_by(|one, other| one.at.name.cmp(&other.at.name));
        Facts { now, image: image.map(str::to_owned), drivers, pods }
    }

    /// Whether a pod is a Mountpoint Pod with an attempt of an upgrade.
    #[must_use]
    pub fn is_about_upgrades(&self, pod: &Object) -> bool {
        self.is_mountpoint_pod(pod) && pod.annotations().contains_key(ANNOTATION)
    }
}

/// Reads a Mountpoint Pod from its object; its workloads are added later.
fn read(pod: &Object) -> Option<Pod> {
    let known = mountpoint_pod::read(pod, true, true);
    let (image, status) = container(pod, pod::CONTAINER)?;
    let ended = status.and_then(|it| it.last_state.as_ref()?.terminated.as_ref());
    let ended =
        ended.map(|it| (it.exit_code, it.finished_at.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)));
    Some(Pod {
        at: reference(pod),
        version: Version {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            resource_version: pod.resource_version().unwrap_or_default(),
        },
        node: pod_spec::node_of(pod)?.to_owned(),
        image,
        attempt: pod.annotations().get(ANNOTATION).and_then(|text| serde_json::from_str(text).ok()),
        serves: known.phase == Phase::Running && known.stays(),
        runs_since: status.and_then(runs_since),
        restarts: known.restarts,
        ended,
        workloads: Vec::new(),
    })
}

/// The node and the image of a driver's pod; `None` unless its container runs.
fn driver(pod: &Object) -> Option<(String, String)> {
    let (image, status) = container(pod, pod::DRIVER_CONTAINER)?;
    status.and_then(runs_since)?;
    Some((pod.spec.as_ref()?.node_name.clone()?, image))
}

/// The image and the status of a container.
fn container<'a>(pod: &'a Object, name: &str) -> Option<(String, Option<&'a ContainerStatus>)> {
    let container = pod.spec.as_ref()?.containers.iter().find(|it| it.name == name)?;
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    Some((container.image.clone()?, statuses.into_iter().find(|it| it.name == name)))
}

fn runs_since(status: &ContainerStatus) -> Option<Timestamp> {
    let running = status.state.as_ref()?.running.as_ref()?;
    Some(running.started_at.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0))
}

fn reference(pod: &Object) -> WorkloadRef {
    WorkloadRef {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
    }
}
