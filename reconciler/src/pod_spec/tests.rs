//! The exact Mountpoint Pod for given settings, and checks of a volume's or the chart's settings for it.

use serde_json::json;

use super::*;

fn config() -> PodConfig {
    PodConfig {
        namespace: "mount-s3".into(),
        image: "registry.example.com/driver:1".into(),
        pull_policy: Some(PullPolicy::IfNotPresent),
        pull_secrets: vec!["regcred".into()],
        command: "/bin/scality-s3-csi-mounter".into(),
        priority_class: Some("mount-s3-critical".into()),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        env: BTreeMap::new(),
        se_linux: None,
        template: Template::default(),
        engine_version: Some("1.2.3".into()),
        resources: Resources {
            requests_cpu: Some("10m".into()),
            limits_memory: Some("512Mi".into()),
            ..Resources::default()
        },
        ca_config_map: None,
        stages_on_nodes: false,
        metrics_port: 0,
        log_format: LogFormat::Text,
        headroom: None,
        openshift: false,
    }
}

fn request() -> PodRequest {
    let attributes = BTreeMap::from(
        [
            (volume::BUCKET_NAME, "b"),
            (volume::POD_SERVICE_ACCOUNT, "account"),
            (volume::REQUESTS_MEMORY, "128Mi"),
            (volume::LIMITS_MEMORY, "1Gi"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    PodRequest {
        name: "mp-1".into(),
        node: "worker-1".into(),
        volume: "pv-1".into(),
        volume_uid: Some("uid-of-pv-1".into()),
        handle: "handle-1".into(),
        workload_uid: "uid-1".into(),
        settings: Settings::new(&attributes, &[]).unwrap(),
    }
}

fn pod_of(config: &PodConfig, request: &PodRequest) -> Pod {
    build(config, request, Owners::default())
}

#[test]
fn a_mountpoint_pod_is_exactly_this() {
    let pod = serde_json::to_value(pod_of(&config(), &request())).unwrap();
    assert_eq!(
        pod,
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "mp-1",
                "namespace": "mount-s3",
                "labels": {
                    "s3.csi.scality.com/mountpoint-version": "1.2.3",
                    "s3.csi.scality.com/mounted-by-csi-driver-version": csi::contract::VERSION,
                },
                "annotations": {
                    "s3.csi.scality.com/volume-name": "pv-1",
                    "s3.csi.scality.com/volume-id": "handle-1",
                    "s3.csi.scality.com/volume-uid": "uid-of-pv-1",
                    "s3.csi.scality.com/pod-uid": "uid-1",
                    "s3.csi.scality.com/spec": digest(&config(), &request()),
                    "cluster-autoscaler.kubernetes.io/daemonset-pod": "true",
                },
            },
            "spec": {
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchFields": [
                        {"key": "metadata.name", "operator": "In", "values": ["worker-1"]},
                    ]}],
                }}},
                "tolerations": [{"operator": "Exists"}],
                "restartPolicy": "OnFailure",
                "terminationGracePeriodSeconds": 600,
                "priorityClassName": "mount-s3-critical",
                "imagePullSecrets": [{"name": "regcred"}],
                "serviceAccountName": "account",
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "securityContext": {"fsGroup": 1000},
                "containers": [{
                    "name": "mountpoint",
                    "image": "registry.example.com/driver:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/bin/scality-s3-csi-mounter"],
                    "args": ["--memory-target=960"],
                    "resources": {
                        "requests": {"cpu": "10m", "memory": "128Mi"},
                        "limits": {"memory": "1Gi"},
                    },
                    "securityContext": {
                        "runAsUser": 1000,
                        "runAsNonRoot": true,
                        "allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true,
                        "capabilities": {"drop": ["ALL"]},
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "volumeMounts": [
                        {"name": "comm", "mountPath": "/comm"},
                        {"name": "state", "mountPath": "/var/lib/mount-s3"},
                        {"name": "tmp", "mountPath": "/tmp"},
                    ],
                }],
                "volumes": [
                    {"name": "comm", "emptyDir": {"medium": "Memory", "sizeLimit": "10Mi"}},
                    {"name": "state", "emptyDir": {"sizeLimit": "10Mi"}},
                    {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
                ],
            },
        })
    );
}

#[test]
fn what_kubernetes_runs_makes_the_digest_and_nothing_else_does() {
    let was = digest(&config(), &request());
    let of = |config: PodConfig| digest(&config, &request());
    assert_eq!(
        of(PodConfig { labels: BTreeMap::from([("team".to_owned(), "a".to_owned())]), ..config() }),
        was
    );
    assert_eq!(
        digest(&config(), &PodRequest { name: "mp-2".into(), workload_uid: "uid-2".into(), ..request() }),
        was
    );
    assert_ne!(of(PodConfig { image: "another".into(), ..config() }), was);
    for set in [
        json!({"dnsPolicy": "Default"}),
        json!({"securityContext": {"runAsGroup": 7}}),
        json!({"tolerations": []}),
    ] {
        let template = serde_json::from_value(set.clone()).unwrap();
        assert_ne!(of(PodConfig { template, ..config() }), was, "{set}");
    }
    assert_ne!(digest(&config(), &PodRequest { settings: Settings::default(), ..request() }), was);
}

#[test]
fn a_pod_says_that_its_volume_names_a_secret_and_is_not_remade_for_it() {
    let keys = |request: &PodRequest| {
        pod_of(&config(), request).metadata.annotations.unwrap().get(pod::KEYS).cloned()
    };
    let settings = Settings { has_secret: true, ..request().settings };
    let with = PodRequest { settings, ..request() };
    assert_eq!((keys(&request()), keys(&with).as_deref()), (None, Some("secret")));
    assert_eq!(digest(&config(), &with), digest(&config(), &request()));
}

#[test]
fn a_pod_says_its_volumes_claim_for_metrics_and_is_not_remade_for_it() {
    let claim = Some(Claim { name: "data".into(), namespace: "team".into() });
    let with = PodRequest { settings: Settings { claim, ..request().settings }, ..request() };
    let said = |request: &PodRequest| {
        let annotations = pod_of(&config(), request).metadata.annotations.unwrap();
        [pod::CLAIM, pod::CLAIM_NAMESPACE].map(|name| annotations.get(name).cloned())
    };
    assert_eq!(said(&request()), [None, None]);
    assert_eq!(said(&with), ["data", "team"].map(|it| Some(it.to_owned())));
    assert_eq!(digest(&config(), &with), digest(&config(), &request()));
}

#[test]
fn certificates_of_the_chart_and_of_the_volume_are_files_of_the_pod() {
    let attributes = BTreeMap::from([(volume::CA_CONFIG_MAP.to_owned(), "team-ca".to_owned())]);
    let settings = Settings::new(&attributes, &[]).unwrap();
    let config = PodConfig { ca_config_map: Some("site-ca".into()), ..config() };
    let pod = serde_json::to_value(pod_of(&config, &PodRequest { settings, ..request() })).unwrap();
    assert_eq!(
        pod["spec"]["volumes"][3],
        json!({"name": "ca", "projected": {"sources": [
            {"configMap": {"name": "site-ca", "items": [{"key": "ca-bundle.crt", "path": "chart.crt"}]}},
            {"configMap": {"name": "team-ca", "items": [{"key": "ca-bundle.crt", "path": "volume.crt"}]}},
        ]}})
    );
    assert_eq!(
        pod["spec"]["containers"][0]["volumeMounts"][3],
        json!({"name": "ca", "mountPath": "/etc/mount-s3/ca", "readOnly": true})
    );
    for name in ["Team", "a/b", "-a", "a..b", "../x"] {
        let attributes = BTreeMap::from([(volume::CA_CONFIG_MAP.to_owned(), name.to_owned())]);
        let error = Settings::new(&attributes, &[]).unwrap_err();
        assert!(error.contains("caBundleConfigMap") && error.contains(name), "{error}");
    }
}

#[test]
fn on_openshift_no_user_and_no_group_is_fixed_and_all_else_is_the_same() {
    let config = PodConfig { openshift: true, ..config() };
    let mut wanted = serde_json::to_value(pod_of(&self::config(), &request())).unwrap();
    wanted["metadata"]["annotations"][pod::SPEC] = json!(digest(&config, &request()));
    wanted["spec"].as_object_mut().unwrap().remove("securityContext");
    wanted["spec"]["containers"][0]["securityContext"].as_object_mut().unwrap().remove("runAsUser");
    let pod = pod_of(&config, &request());
    assert_eq!(serde_json::to_value(&pod).unwrap(), wanted);
    let container = &wanted["spec"]["containers"][0]["securityContext"];
    assert_eq!(
        (&container["runAsNonRoot"], &container["allowPrivilegeEscalation"]),
        (&json!(true), &json!(false))
    );
}

/// Goal: Kubernetes deletes an object without an owner, and removes a missing owner from a list with others.
#[test]
fn a_drain_needs_no_force_and_a_node_registered_again_ends_no_mount() {
    let owners = |owners| {
        serde_json::to_value(build(&config(), &request(), owners)).unwrap()["metadata"]["ownerReferences"]
            .take()
    };
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "name": "mount-s3", "uid": "n", "controller": true});
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": "worker-1", "uid": "w"});
    assert_eq!(owners(Owners { namespace: Some("n"), node: Some("w") }), json!([namespace, node]));
    assert_eq!(owners(Owners { namespace: Some("n"), node: None }), json!([namespace]));
    assert_eq!(owners(Owners::default()), serde_json::Value::Null);
}

#[test]
fn metadata_and_context_of_the_chart_stand_beside_ours() {
    let map =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let config = PodConfig {
        labels: map(&[("team", "storage"), (pod::MOUNTED_BY_VERSION, "0.0.0")]),
        annotations: map(&[("note", "a text"), (pod::VOLUME_NAME, "another")]),
        env: map(&[("HTTPS_PROXY", "http://proxy:3128")]),
        se_linux: Some(SELinuxOptions { level: Some("s0:c1".into()), ..SELinuxOptions::default() }),
        ..config()
    };
    let pod = serde_json::to_value(pod_of(&config, &request())).unwrap();
    assert_eq!(pod["metadata"]["labels"]["team"], "storage");
    assert_eq!(pod["metadata"]["labels"][pod::MOUNTED_BY_VERSION], csi::contract::VERSION);
    assert_eq!(pod["metadata"]["annotations"]["note"], "a text");
    assert_eq!(pod["metadata"]["annotations"][pod::VOLUME_NAME], "pv-1");
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["env"], json!([{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]));
    assert_eq!(container["securityContext"]["seLinuxOptions"], json!({"level": "s0:c1"}));
    assert_eq!(container["securityContext"]["runAsNonRoot"], true, "what the namespace asks for stays");
}

#[test]
fn names_runtime_and_tolerations_of_the_chart_are_the_pods() {
    let set = json!({
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["s3.test"]},
        "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["s3.test"]}],
        "runtimeClassName": "kata",
        "tolerations": [{"key": "storage", "operator": "Exists"}],
    });
    let template = serde_json::from_value(set.clone()).unwrap();
    let pod = serde_json::to_value(pod_of(&PodConfig { template, ..config() }, &request())).unwrap();
    for (name, value) in set.as_object().unwrap() {
        assert_eq!(pod["spec"][name], *value, "{name}");
    }
}

#[test]
fn what_the_chart_leaves_empty_is_left_out() {
    let config = PodConfig {
        pull_policy: None,
        pull_secrets: Vec::new(),
        priority_class: None,
        engine_version: None,
        resources: Resources::default(),
        ..config()
    };
    let request = PodRequest { settings: Settings::default(), ..request() };
    let pod = pod_of(&config, &request);
    assert_eq!(pod.metadata.labels.as_ref().unwrap().len(), 1);
    let spec = pod.spec.unwrap();
    assert_eq!(spec.image_pull_secrets, None);
    assert_eq!(spec.priority_class_name, None);
    assert_eq!(spec.service_account_name, None);
    let resources = spec.containers[0].resources.as_ref().unwrap();
    assert_eq!(
        serde_json::to_value(resources).unwrap(),
        json!({"requests": {"cpu": "10m", "memory": "128Mi"}})
    );
    assert_eq!(spec.containers[0].image_pull_policy, None);
}

#[test]
fn a_mountpoint_pod_asks_for_something_unless_a_limit_does() {
    let of = |own: Resources, chart: Resources| {
        serde_json::to_value(own.or(&chart, &Resources::default())).unwrap()
    };
    let limited = |text: &str| Resources { limits_memory: Some(text.into()), ..Resources::default() };
    let none = Resources::default;
    assert_eq!(of(none(), none()), json!({"requests": {"cpu": "10m", "memory": "128Mi"}}));
    assert_eq!(
        of(limited("64Mi"), none()),
        json!({"requests": {"cpu": "10m"}, "limits": {"memory": "64Mi"}})
    );
    assert_eq!(
        of(none(), limited("64Mi")),
        json!({"requests": {"cpu": "10m"}, "limits": {"memory": "64Mi"}})
    );
    let asks = Resources { requests_memory: Some("1Gi".into()), ..none() };
    assert_eq!(of(none(), asks), json!({"requests": {"cpu": "10m", "memory": "1Gi"}}));
}

#[test]
fn free_text_of_any_length_goes_to_annotations_and_never_to_labels() {
    let long = "v".repeat(250);
    let pod = pod_of(&config(), &PodRequest { volume: long.clone(), handle: long, ..request() });
    assert!(pod.metadata.labels.unwrap().values().all(|value| value.len() <= 63));
}

#[test]
fn the_node_of_a_mountpoint_pod_is_known_before_it_is_scheduled() {
    let mut pod = pod_of(&config(), &request());
    assert_eq!(node_of(&pod), Some("worker-1"));
    pod.spec.as_mut().unwrap().affinity = None;
    assert_eq!(node_of(&pod), None);
    pod.spec.as_mut().unwrap().node_name = Some("worker-2".into());
    assert_eq!(node_of(&pod), Some("worker-2"));
}

#[test]
fn a_quantity_that_is_none_is_refused_with_the_attribute_and_the_form() {
    let attributes = BTreeMap::from([(volume::LIMITS_MEMORY.to_owned(), "lots".to_owned())]);
    let error = Settings::new(&attributes, &[]).unwrap_err();
    assert!(
        error.contains(volume::LIMITS_MEMORY) && error.contains("lots") && error.contains("1Gi"),
        "{error}"
    );
}

#[test]
fn the_cache_has_a_volume_of_its_kind_and_the_mounter_finds_it() {
    let with = |attributes: &[(&str, &str)], options: &[&str]| {
        let attributes = attributes.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        let options: Vec<_> = options.iter().map(|&it| it.to_owned()).collect();
        let settings = Settings::new(&attributes, &options).unwrap();
        let pod = pod_of(&config(), &PodRequest { settings, ..request() });
        let pod = serde_json::to_value(pod).unwrap();
        let mount = &pod["spec"]["containers"][0]["volumeMounts"][3];
        assert_eq!(*mount, json!({"name": "local-cache", "mountPath": "/local-cache"}));
        pod["spec"]["volumes"][3].clone()
    };
    let of_disk = json!({"name": "local-cache", "emptyDir": {"sizeLimit": "2048Mi"}});
    assert_eq!(with(&[(volume::CACHE, "emptyDir"), (volume::CACHE_SIZE_LIMIT, "2Gi")], &[]), of_disk);
    let memory =
        [(volume::CACHE, "emptyDir"), (volume::CACHE_MEDIUM, "Memory"), (volume::CACHE_SIZE_LIMIT, "64Mi")];
    let of_memory = json!({"name": "local-cache", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}});
    assert_eq!(with(&memory, &[]), of_memory);
    let of_option = json!({"name": "local-cache", "emptyDir": {"sizeLimit": "10240Mi"}});
    assert_eq!(with(&[], &["cache /anywhere"]), of_option);
    let ephemeral =
        [(volume::CACHE, "ephemeral"), (volume::CACHE_CLASS, "fast"), (volume::CACHE_REQUEST, "1Gi")];
    assert_eq!(
        with(&ephemeral, &[]),
        json!({"name": "local-cache", "ephemeral": {"volumeClaimTemplate": {
            "metadata": {"labels": {"s3.csi.scality.com/type": "local-ephemeral-cache"}},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeMode": "Filesystem",
                "resources": {"requests": {"storage": "1024Mi"}},
            },
        }}})
    );
}

#[test]
fn mode_full_has_a_stage_on_the_nodes_disk_that_the_pod_asks_for() {
    let options = ["mode=full", "stage-size=100", "commit=fsync"].map(str::to_owned);
    let settings = Settings::new(&BTreeMap::new(), &options).unwrap();
    let of = |limit: Option<&str>| {
        let mut settings = settings.clone();
        settings.resources.limits_memory = limit.map(str::to_owned);
        serde_json::to_value(pod_of(&config(), &PodRequest { settings, ..request() })).unwrap()
    };
    let spec = of(None)["spec"].take();
    assert_eq!(spec["volumes"][3], json!({"name": "stage", "emptyDir": {"sizeLimit": "264Mi"}}));
    let container = &spec["containers"][0];
    assert_eq!(container["volumeMounts"][3], json!({"name": "stage", "mountPath": "/stage"}));
    assert_eq!(container["resources"]["requests"]["ephemeral-storage"], "164Mi");
    assert_eq!(container["resources"]["limits"], json!({"memory": "512Mi"}), "the stage takes disk alone");
    assert_eq!(
        of(Some("1Gi"))["spec"]["containers"][0]["args"],
        json!(["--memory-target=960", "--stage-size=100"])
    );
    let of_node = PodConfig { stages_on_nodes: true, ..config() };
    let pod = serde_json::to_value(pod_of(&of_node, &PodRequest { settings, ..request() })).unwrap();
    assert_eq!(pod["spec"]["volumes"].as_array().unwrap().len(), 3, "the driver gives it a directory");
    let container = &pod["spec"]["containers"][0];
    assert!(container["resources"]["requests"].get("ephemeral-storage").is_none());
    assert!(container["args"].as_array().unwrap().contains(&json!("--stage-size=100")));
}

#[test]
fn metrics_of_the_engine_have_a_port_of_the_pod_where_the_chart_wants_one() {
    let pod =
        serde_json::to_value(pod_of(&PodConfig { metrics_port: 9464, ..config() }, &request())).unwrap();
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["args"], json!(["--memory-target=960", "--metrics-port=9464"]));
    assert_eq!(container["ports"], json!([{"name": "metrics", "containerPort": 9464}]));
    let address = json!([{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]);
    assert_eq!(container["env"], address);
}

#[test]
fn mounters_log_as_the_reconciler_does() {
    let pod =
        serde_json::to_value(pod_of(&PodConfig { log_format: LogFormat::Json, ..config() }, &request()));
    assert_eq!(
        pod.unwrap()["spec"]["containers"][0]["env"],
        json!([{"name": "LOG_FORMAT", "value": "json"}])
    );
}

#[test]
fn the_engines_memory_is_what_the_limit_leaves() {
    let target = |limit: &str, attributes: &[(&str, &str)]| {
        let attributes = attributes.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        let mut settings = Settings::new(&attributes, &[]).unwrap();
        settings.resources.limits_memory = (!limit.is_empty()).then(|| limit.to_owned());
        let config = PodConfig { resources: Resources::default(), ..config() };
        pod_of(&config, &PodRequest { settings, ..request() }).spec.unwrap().containers[0].args.clone()
    };
    let memory =
        [(volume::CACHE, "emptyDir"), (volume::CACHE_MEDIUM, "Memory"), (volume::CACHE_SIZE_LIMIT, "256Mi")];
    assert_eq!(target("256Mi", &[]).unwrap(), ["--memory-target=192"]);
    assert_eq!(target("1Gi", &memory).unwrap(), ["--memory-target=704"], "a cache in memory counts, too");
    assert_eq!(target("", &[]), None, "without a limit the engine chooses");
    assert_eq!(target("191Mi", &[]), None, "too little: the engine says so");
    assert_eq!(target("256Mi", &memory), None);
}

#[test]
fn a_share_of_the_workload_counts_where_volume_and_chart_name_nothing() {
    let workload = |containers: serde_json::Value| -> Pod {
        serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
    };
    let of = |name: &str, requests: serde_json::Value, limits: serde_json::Value| json!({"name": name, "resources": {"requests": requests, "limits": limits}});
    let two = workload(json!([
        of("a", json!({"cpu": "1", "memory": "2Gi"}), json!({"memory": "3Gi"})),
        of("b", json!({"cpu": "500m"}), json!({"cpu": "1", "memory": "1Gi"})),
    ]));
    let share = Resources::share_of(&two, 20);
    let written = |own: &Resources, chart: &Resources, share: &Resources| {
        serde_json::to_value(own.or(chart, share)).unwrap()
    };
    let none = Resources::default();
    assert_eq!(
        written(&none, &none, &share),
        json!({"requests": {"cpu": "300m", "memory": "644245095"}, "limits": {"memory": "858993460"}})
    );
    let limit = Resources { limits_memory: Some("512Mi".into()), ..Resources::default() };
    let wanted = json!({"requests": {"cpu": "300m"}, "limits": {"memory": "512Mi"}});
    assert_eq!(written(&limit, &none, &share), wanted, "the volume's own go first");
    assert_eq!(written(&none, &limit, &share), wanted, "then the chart's");

    let least = json!({"requests": {"cpu": "10m", "memory": "128Mi"}});
    for small in [json!([{"name": "a"}]), json!([])] {
        assert_eq!(written(&none, &none, &Resources::share_of(&workload(small), 50)), least);
    }
    let tiny = workload(json!([of("a", json!({}), json!({"memory": "64Mi"}))]));
    let tiny = written(&none, &none, &Resources::share_of(&tiny, 50));
    assert_eq!(tiny["limits"], json!({"memory": "256Mi"}), "no engine lives with less");
}

#[test]
fn a_headroom_pod_asks_for_its_mountpoint_pods_room_and_is_restricted() {
    let headroom = HeadroomConfig {
        image: "pause".into(),
        pull_policy: Some(PullPolicy::Always),
        labels: [("team", "storage"), (pod::HEADROOM_FOR_POD, "another")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        priority_class: "headroom".into(),
        preempting_class: "preempting".into(),
    };
    let workload =
        csi::events::WorkloadRef { namespace: "default".into(), name: "w".into(), uid: "uid-of-w".into() };
    let settings = request().settings;
    let wanted = HeadroomRequest { workload, volume: "pv".into(), settings: settings.clone() };
    assert_eq!(headroom_pod(&config(), &wanted), None, "the chart does not reserve");
    let config = PodConfig { headroom: Some(headroom), ..config() };
    let made = serde_json::to_value(headroom_pod(&config, &wanted).unwrap()).unwrap();
    assert_eq!(
        made,
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": csi::contract::pod::headroom_name("uid-of-w", "pv"),
                "namespace": "mount-s3",
                "labels": {"s3.csi.scality.com/headroom-for-pod": "uid-of-w", "team": "storage"},
                "annotations": {"s3.csi.scality.com/headroom-for-volume": "pv"},
            },
            "spec": {
                "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
                    "labelSelector": {"matchLabels": {"s3.csi.scality.com/headroom-for-workload": "uid-of-w"}},
                    "namespaces": ["default"],
                    "topologyKey": "kubernetes.io/hostname",
                }]}},
                "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 1,
                "priorityClassName": "headroom",
                "imagePullSecrets": [{"name": "regcred"}],
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "containers": [{
                    "name": "headroom",
                    "image": "pause",
                    "imagePullPolicy": "Always",
                    "resources": serde_json::to_value(settings.resources.or(&config.resources, &settings.share)).unwrap(),
                    "securityContext": {
                        "runAsUser": 1000,
                        "runAsNonRoot": true,
                        "allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true,
                        "capabilities": {"drop": ["ALL"]},
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                }],
            },
        })
    );
    // It asks for what the Mountpoint Pod asks for, and only a workload that reserved has one that preempts.
    let class = |preempts: bool| {
        let settings = Settings { preempts, ..settings.clone() };
        let pod = serde_json::to_value(pod_of(&config, &PodRequest { settings, ..request() })).unwrap();
        assert_eq!(pod["spec"]["containers"][0]["resources"], made["spec"]["containers"][0]["resources"]);
        pod["spec"]["priorityClassName"].clone()
    };
    assert_eq!((class(false), class(true)), (json!("mount-s3-critical"), json!("preempting")));
}
