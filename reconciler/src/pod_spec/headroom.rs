//! A headroom pod: it requests the resources of a future Mountpoint Pod, on the node of the workload, and does nothing. The Mountpoint Pod
//! preempts it.

use std::collections::BTreeMap;

use csi::contract::pod;
use csi::events::WorkloadRef;
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, Pod, PodAffinity, PodAffinityTerm, PodSpec, SeccompProfile,
    SecurityContext,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::{PodConfig, PullPolicy, Settings, pull_secrets};

/// The settings of headroom pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadroomConfig {
    /// An image whose program only waits.
    pub image: String,
    /// The policy for pulling the image; `None` for the cluster's default.
    pub pull_policy: Option<PullPolicy>,
    /// Labels of headroom pods. They can't replace the driver's own.
    pub labels: BTreeMap<String, String>,
    /// The priority class of headroom pods, below all others.
    pub priority_class: String,
    /// The priority class of Mountpoint Pods with reserved room; it preempts headroom pods.
    pub preempting_class: String,
}

/// The request for one headroom pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadroomRequest {
    /// The workload beside which the pod runs.
    pub workload: WorkloadRef,
    /// The PersistentVolume for whose Mountpoint Pod the headroom pod reserves room.
    pub volume: String,
    /// The volume's own settings.
    pub settings: Settings,
}

/// The headroom pod for this request; `None` if headroom is not configured.
#[must_use]
pub fn headroom_pod(config: &PodConfig, request: &HeadroomRequest) -> Option<Pod> {
    let headroom = config.headroom.as_ref()?;
    let one = |key: &str, value: &str| Some(BTreeMap::from([(key.to_owned(), value.to_owned())]));
    let uid = &request.workload.uid;
    let mut labels = headroom.labels.clone();
    labels.insert(pod::HEADROOM_FOR_POD.to_owned(), uid.clone());
    let beside = PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: one(pod::HEADROOM_FOR_WORKLOAD, uid),
            match_expressions: None,
        }),
        namespaces: Some(vec![request.workload.namespace.clone()]),
        topology_key: "kubernetes.io/hostname".into(),
        ..PodAffinityTerm::default()
    };
    let affinity = PodAffinity {
        required_during_scheduling_ignored_during_execution: Some(vec![beside]),
        ..PodAffinity::default()
    };
    Some(Pod {
        metadata: ObjectMeta {
            name: Some(pod::headroom_name(uid, &request.volume)),
            namespace: Some(config.namespace.clone()),
            labels: Some(labels),
            annotations: one(pod::HEADROOM_FOR_VOLUME, &request.volume),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            affinity: Some(Affinity { pod_affinity: Some(affinity), ..Affinity::default() }),
            tolerations: Some(config.template.tolerations()),
            // The runtime class may add an overhead to the requests.
            runtime_class_name: config.template.runtime_class_name.clone(),
            // The Mountpoint Pod waits for the end of the headroom pod. The grace period is not 0: the scheduler must not give the room
            // away before the kubelet has freed it.
            termination_grace_period_seconds: Some(1),
            priority_class_name: Some(headroom.priority_class.clone()),
            image_pull_secrets: pull_secrets(config),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            containers: vec![Container {
                name: "headroom".into(),
                image: Some(headroom.image.clone()),
                image_pull_policy: headroom.pull_policy.map(|policy| policy.name().to_owned()),
                resources: Some(request.settings.requirements(config)),
                security_context: Some(SecurityContext {
                    run_as_user: (!config.openshift).then_some(1000),
                    run_as_non_root: Some(true),
                    allow_privilege_escalation: Some(false),
                    read_only_root_filesystem: Some(true),
                    capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
                    seccomp_profile: Some(SeccompProfile {
                        type_: "RuntimeDefault".into(),
                        localhost_profile: None,
                    }),
                    ..SecurityContext::default()
                }),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        status: None,
    })
}
