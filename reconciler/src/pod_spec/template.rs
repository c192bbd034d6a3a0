//! Settings that an administrator gives all Mountpoint Pods, and their security contexts. Enters: the chart's settings. Leaves: their
//! parts of a specification, or a sentence about a setting that would give a privilege.
//!
//! Never here: the settings of one volume or workload.

use k8s_openapi::api::core::v1::{
    Capabilities, EmptyDirVolumeSource, HostAlias, PodDNSConfig, PodSecurityContext, SELinuxOptions,
    SeccompProfile, SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;

/// User and group of Mountpoint Pods, unless the chart or OpenShift sets others.
const USER: i64 = 1000;
/// The volume for /tmp, the only writable part of the root file system.
const TMP: &str = "tmp";
/// Size limit of /tmp; the kubelet evicts a pod that exceeds it.
const TMP_LIMIT: &str = "64Mi";

/// Settings of the chart that go into each Mountpoint Pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Template {
    /// Fields of the pod's security context that replace the driver's.
    pub pod_security_context: Option<PodSecurityContext>,
    /// Fields of the container's security context that replace the driver's.
    pub security_context: Option<SecurityContext>,
    /// The DNS policy: `ClusterFirst`, `Default` or `None`.
    pub dns_policy: Option<String>,
    /// Name servers, search domains and options of the resolver.
    pub dns_config: Option<PodDNSConfig>,
    /// Additional lines of /etc/hosts.
    pub host_aliases: Option<Vec<HostAlias>>,
    /// The runtime class.
    pub runtime_class_name: Option<String>,
    /// Tolerations; they replace the default, which tolerates every taint.
    pub tolerations: Option<Vec<Toleration>>,
}

impl Template {
    /// Refuses settings that would give Mountpoint Pods a privilege: these pods hold credentials and serve other users' programs, and need
    /// none.
    ///
    /// # Errors
    /// The setting and its allowed values.
    pub fn check(&self) -> Result<(), String> {
        let refused = |setting: &str, but: &str| {
            Err(format!("{setting}: Mountpoint Pods run without privileges, so {but}"))
        };
        let pod = self.pod_security_context.clone().unwrap_or_default();
        let container = self.security_context.clone().unwrap_or_default();
        for (context, user, non_root) in [
            ("podSecurityContext", pod.run_as_user, pod.run_as_non_root),
            ("securityContext", container.run_as_user, container.run_as_non_root),
        ] {
            if user == Some(0) {
                return refused(&format!("{context}.runAsUser is 0"), "name another user");
            }
            if non_root == Some(false) {
                return refused(&format!("{context}.runAsNonRoot is false"), "leave it out");
            }
        }
        if container.privileged == Some(true) {
            return refused("securityContext.privileged is true", "leave it out");
        }
        if container.allow_privilege_escalation == Some(true) {
            return refused("securityContext.allowPrivilegeEscalation is true", "leave it out");
        }
        match container.capabilities.and_then(|it| it.add).unwrap_or_default().first() {
            Some(added) => refused(
                &format!("securityContext.capabilities.add has {added}"),
                "all capabilities are dropped",
            ),
            None => Ok(()),
        }
    }

    /// The tolerations; by default of every taint: the workload is on the node already, and no taint may keep its mount away.
    pub(super) fn tolerations(&self) -> Vec<Toleration> {
        let every = || vec![Toleration { operator: Some("Exists".into()), ..Toleration::default() }];
        self.tolerations.clone().unwrap_or_else(every)
    }

    /// The security context of the pod, or `None` if nothing is set. `openshift`: the cluster chooses users and groups.
    pub(super) fn pod_security_context(&self, openshift: bool) -> Option<PodSecurityContext> {
        let set = self.pod_security_context.clone().unwrap_or_default();
        let context = PodSecurityContext {
            // The node's driver writes credentials for the group of the comm directory.
            fs_group: set.fs_group.or_else(|| (!openshift).then_some(USER)),
            ..set
        };
        (context != PodSecurityContext::default()).then_some(context)
    }

    /// The security context of the container. Fields that the pod's context sets are not repeated.
    pub(super) fn security_context(
        &self,
        openshift: bool,
        se_linux: Option<&SELinuxOptions>,
    ) -> SecurityContext {
        let set = self.security_context.clone().unwrap_or_default();
        let pod = self.pod_security_context.clone().unwrap_or_default();
        let user = (!openshift && pod.run_as_user.is_none()).then_some(USER);
        let profile = SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None };
        let drop = Capabilities { drop: Some(vec!["ALL".into()]), add: None };
        SecurityContext {
            run_as_user: set.run_as_user.or(user),
            run_as_non_root: Some(true),
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: set.read_only_root_filesystem.or(Some(true)),
            capabilities: Some(drop),
            se_linux_options: se_linux.cloned().or(set.se_linux_options),
            seccomp_profile: set.seccomp_profile.or_else(|| pod.seccomp_profile.is_none().then_some(profile)),
            ..set
        }
    }
}

/// The volume for /tmp.
pub(super) fn tmp_volume() -> Volume {
    let limit = Some(Quantity(TMP_LIMIT.into()));
    Volume {
        name: TMP.into(),
        empty_dir: Some(EmptyDirVolumeSource { medium: None, size_limit: limit }),
        ..Volume::default()
    }
}

/// The mount of the volume for /tmp.
pub(super) fn tmp_mount() -> VolumeMount {
    VolumeMount { name: TMP.into(), mount_path: "/tmp".into(), ..VolumeMount::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn template(value: Value) -> Template {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_gives_a_privilege_is_refused_by_its_name() {
        let refusals = [
            (json!({"securityContext": {"privileged": true}}), "privileged is true"),
            (json!({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}), "add has SYS_ADMIN"),
            (json!({"securityContext": {"allowPrivilegeEscalation": true}}), "allowPrivilegeEscalation"),
            (json!({"securityContext": {"runAsUser": 0}}), "securityContext.runAsUser is 0"),
            (json!({"podSecurityContext": {"runAsUser": 0}}), "podSecurityContext.runAsUser is 0"),
            (json!({"securityContext": {"runAsNonRoot": false}}), "securityContext.runAsNonRoot"),
            (json!({"podSecurityContext": {"runAsNonRoot": false}}), "podSecurityContext.runAsNonRoot"),
        ];
        for (value, named) in refusals {
            let refusal = template(value).check().unwrap_err();
            assert!(refusal.contains(named), "{refusal}");
        }
        for host in ["hostNetwork", "hostPID", "hostIPC"] {
            assert!(serde_json::from_value::<Template>(json!({host: true})).is_err(), "{host}");
        }
        assert_eq!(Template::default().check(), Ok(()));
        let harmless = json!({"securityContext": {"privileged": false, "capabilities": {"drop": ["ALL"]}}});
        assert_eq!(template(harmless).check(), Ok(()));
    }

    #[test]
    fn contexts_of_the_chart_lie_over_ours_and_the_pod_stays_restricted() {
        let set = template(json!({
            "podSecurityContext": {"fsGroup": 2000, "runAsUser": 2001, "supplementalGroups": [7]},
            "securityContext": {"runAsGroup": 2002, "readOnlyRootFilesystem": false},
        }));
        let pod = set.pod_security_context(false);
        let wanted = json!({"fsGroup": 2000, "runAsUser": 2001, "supplementalGroups": [7]});
        assert_eq!(serde_json::to_value(pod).unwrap(), wanted);
        assert_eq!(
            serde_json::to_value(set.security_context(false, None)).unwrap(),
            json!({
                "runAsGroup": 2002,
                "runAsNonRoot": true,
                "readOnlyRootFilesystem": false,
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            })
        );
    }

    #[test]
    fn on_openshift_only_a_user_that_the_chart_names_is_fixed() {
        let none = Template::default();
        assert_eq!(none.pod_security_context(true), None);
        assert_eq!(none.security_context(true, None).run_as_user, None);
        let set = template(json!({"securityContext": {"runAsUser": 1000660000}}));
        assert_eq!(set.security_context(true, None).run_as_user, Some(1_000_660_000));
    }

    #[test]
    fn a_list_of_tolerations_takes_the_place_of_the_one_for_every_taint() {
        assert_eq!(
            serde_json::to_value(Template::default().tolerations()).unwrap(),
            json!([{"operator": "Exists"}])
        );
        assert_eq!(template(json!({"tolerations": []})).tolerations(), []);
        let one = json!([{"key": "storage", "operator": "Exists", "effect": "NoSchedule"}]);
        let set = template(json!({"tolerations": one}));
        assert_eq!(serde_json::to_value(set.tolerations()).unwrap(), one);
    }
}
