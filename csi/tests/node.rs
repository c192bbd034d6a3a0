//! The driver's server as the kubelet sees it: real sockets, real gRPC. Only the mounter is a double, which records its requests.

mod harness;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi::contract::reason::Reason;
use csi::contract::volume;
use csi::events::WorkloadRef;
use csi::mounter::Made;
use csi::proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, access_mode::Mode};
use csi::proto::csi::{
    ControllerGetCapabilitiesRequest, CreateVolumeRequest, GetPluginCapabilitiesRequest,
    GetPluginInfoRequest, NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, ProbeRequest,
};
use harness::{Driver, HUSH, http_get, mount_of};
use tonic::Code;

#[tokio::test]
async fn the_driver_says_who_it_is_and_what_it_can() {
    let driver = Driver::start().await;
    let info = driver.identity().get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(
        (info.name.as_str(), info.vendor_version.as_str()),
        ("s3.csi.scality.com", csi::contract::VERSION)
    );
    // A driver that could mount is ready.
    let probe = async || driver.identity().probe(ProbeRequest {}).await.unwrap().into_inner().ready;
    assert_eq!(probe().await, Some(false));
    std::fs::write(driver.directory().join("fuse"), "").unwrap();
    assert_eq!(probe().await, Some(true));
    let plugin = driver.identity().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
    assert!(plugin.into_inner().capabilities.is_empty(), "this process makes no volumes");
    let node = driver.node().node_get_capabilities(NodeGetCapabilitiesRequest {}).await.unwrap().into_inner();
    assert_eq!(node.capabilities.len(), 4);
    for name in ["VolumeMountGroup", "SingleNodeMultiWriter", "GetVolumeStats", "VolumeCondition"] {
        assert!(format!("{node:?}").contains(name), "{name}: {node:?}");
    }
    let controller =
        driver.controller().controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await;
    assert!(format!("{:?}", controller.unwrap().into_inner()).contains("SingleNodeMultiWriter"));
    let info = driver.node().node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("worker-1", 0));
    assert_eq!(info.accessible_topology, None);
    driver.registered().await;
}

#[tokio::test]
async fn what_the_driver_does_not_do_is_unimplemented() {
    let driver = Driver::start().await;
    let stage = driver.node().node_stage_volume(NodeStageVolumeRequest::default()).await.unwrap_err();
    let expand = driver.node().node_expand_volume(NodeExpandVolumeRequest::default()).await.unwrap_err();
    let create = driver.controller().create_volume(CreateVolumeRequest::default()).await.unwrap_err();
    for status in [stage, expand, create] {
        assert_eq!(status.code(), Code::Unimplemented, "{status}");
    }
}

#[tokio::test]
async fn a_volume_is_published_again_and_again_and_unpublished_twice() {
    let driver = Driver::start().await;
    driver.publish(driver.call()).await.unwrap();
    driver.publish(driver.call()).await.unwrap();
    let asked = driver.mounter.mounts();
    assert_eq!(asked.len(), 2, "a republish reaches the mounter, which refreshes credentials");
    let mount = &asked[0];
    assert_eq!(mount.volume, "pv-1");
    assert_eq!(mount.handle, "handle-1");
    assert_eq!(mount.workload_uid, "uid-1");
    assert_eq!(mount.target, Path::new(&driver.target("uid-1")));
    assert_eq!(mount.bucket, "bucket-1");
    assert!(!mount.read_only && !mount.source_read_only);
    let agent =
        format!("--user-agent-prefix=s3-csi-driver/{} credential-source#driver", csi::contract::VERSION);
    assert_eq!(mount.args, ["--allow-delete", "--allow-root", "--force-path-style", &agent]);
    let env = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(
        mount.env,
        [env("AWS_ENDPOINT_URL", "http://s3.example.com:8000"), env("AWS_REGION", "us-east-1")]
    );
    assert_eq!(mount.credentials.as_ref().unwrap().access_key_id, "DRIVERKEY");
    assert_eq!(format!("{:?}", asked[0]), format!("{:?}", asked[1]));
    let call =
        NodeUnpublishVolumeRequest { volume_id: "handle-1".into(), target_path: driver.target("uid-1") };
    driver.node().node_unpublish_volume(call.clone()).await.unwrap();
    driver.node().node_unpublish_volume(call).await.unwrap();
    assert_eq!(
        driver.mounter.unmounts(),
        [driver.target("uid-1"), driver.target("uid-1")].map(PathBuf::from)
    );
}

#[tokio::test]
async fn a_volume_that_the_driver_made_is_its_prefix_in_its_region_and_store() {
    let driver = Driver::start().await;
    let mut call = driver.call();
    for (key, value) in [
        (volume::BUCKET_NAME, "shared"),
        (volume::PREFIX, "team-a/pvc-1/"),
        (volume::REGION, "eu-west-3"),
        (volume::ENDPOINT_URL, "https://other.example.com/"),
        (volume::ON_DELETE, "purge"),
        (volume::DYNAMIC_PROVISIONING, "true"),
    ] {
        call.volume_context.insert(key.to_owned(), value.to_owned());
    }
    call.volume_id = "p-0123456789-0123456789/shared/team-a/pvc-1".into();
    driver.publish(call.clone()).await.unwrap();
    let mount = &driver.mounter.mounts()[0];
    assert_eq!(mount.bucket, "shared");
    assert!(mount.args.iter().any(|arg| arg == "--prefix=team-a/pvc-1/"), "{:?}", mount.args);
    let env = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(
        mount.env,
        [env("AWS_ENDPOINT_URL", "https://other.example.com/"), env("AWS_REGION", "eu-west-3")]
    );
    assert!(driver.notice().is_none(), "no attribute of it is unknown");
    mount_of(&mut call).mount_flags.push("prefix x/".into());
    let status = driver.publish(call.clone()).await.unwrap_err();
    assert!(status.code() == Code::InvalidArgument && status.message().contains("prefix"), "{status}");
    mount_of(&mut call).mount_flags.pop();
    call.volume_context.insert(volume::ENDPOINT_URL.to_owned(), "https://evil.example.com".to_owned());
    let status = driver.publish(call).await.unwrap_err();
    assert!(status.code() == Code::InvalidArgument, "{status}");
    assert!(status.message().contains("s3.allowedEndpoints"), "{status}");
    assert_eq!(driver.mounter.mounts().len(), 1);
}

#[tokio::test]
async fn the_workload_is_the_one_that_the_kubelet_names() {
    let driver = Driver::start().await;
    let mut call = driver.call();
    call.volume_context.insert(volume::CONTEXT_POD_UID.into(), "said-by-kubelet".into());
    driver.publish(call).await.unwrap();
    assert_eq!(driver.mounter.mounts()[0].workload_uid, "said-by-kubelet");
}

#[tokio::test]
async fn a_plain_target_is_served_as_csi_sanity_asks() {
    let driver = Driver::start().await;
    let mut call = driver.call();
    call.target_path = format!("{}/sanity/target", driver.kubelet());
    mode(&mut call, Mode::SingleNodeWriter);
    driver.publish(call).await.unwrap();
    let mount = &driver.mounter.mounts()[0];
    assert_eq!((mount.volume.as_str(), mount.workload_uid.as_str()), ("handle-1", "sanity/target"));
}

#[tokio::test]
async fn an_fs_group_becomes_group_and_modes() {
    let driver = Driver::start().await;
    let mut call = driver.call();
    mount_of(&mut call).volume_mount_group = "2000".into();
    driver.publish(call).await.unwrap();
    let args = &driver.mounter.mounts()[0].args;
    for flag in ["--gid=2000", "--allow-other", "--dir-mode=770", "--file-mode=660"] {
        assert!(args.iter().any(|arg| arg == flag), "{flag}: {args:?}");
    }
    assert!(!args.iter().any(|arg| arg == "--allow-root"), "{args:?}");
}

/// Goal: a reader never makes the source read-only for others; a volume that is read-only is so for all.
#[tokio::test]
async fn read_only_is_of_the_target_or_of_the_volume() {
    for (readonly, access, option, target_alone, source) in [
        (false, Mode::MultiNodeMultiWriter, false, false, false),
        (true, Mode::MultiNodeMultiWriter, false, true, false),
        (false, Mode::MultiNodeReaderOnly, false, false, true),
        (false, Mode::SingleNodeReaderOnly, false, false, true),
        (true, Mode::MultiNodeReaderOnly, false, true, true),
        (false, Mode::SingleNodeWriter, true, false, true),
    ] {
        let driver = Driver::start().await;
        let mut call = driver.call();
        call.readonly = readonly;
        mode(&mut call, access);
        if option {
            mount_of(&mut call).mount_flags.push("--read-only".into());
        }
        driver.publish(call).await.unwrap();
        let mount = &driver.mounter.mounts()[0];
        let case = format!("readonly {readonly}, {access:?}, option {option}");
        assert_eq!((mount.read_only, mount.source_read_only), (target_alone, source), "{case}");
        assert_eq!(mount.args.iter().any(|arg| arg == "--read-only"), source, "{case}");
    }
}

#[tokio::test]
async fn a_bad_publish_is_refused_by_name_and_nothing_is_mounted() {
    type Spoil = fn(&mut NodePublishVolumeRequest);
    let cases: [(&[&str], Spoil); 21] = [
        (&["volume_id", "volumeHandle"], |c| c.volume_id.clear()),
        (&["target_path"], |c| c.target_path.clear()),
        (&["target_path", "/etc/cron.d", "node.kubeletPath"], |c| c.target_path = "/etc/cron.d".into()),
        (&["target_path", ".."], |c| c.target_path.push_str("/../../../../../../../etc")),
        (&["target_path", "absolute"], |c| c.target_path = "pods/uid-1/mount".into()),
        (&["volume_capability"], |c| c.volume_capability = None),
        (&["access_type"], |c| c.volume_capability.as_mut().unwrap().access_type = None),
        (&["block", "volumeMode: Filesystem"], |c| {
            c.volume_capability.as_mut().unwrap().access_type = Some(AccessType::Block(BlockVolume {}));
        }),
        (&["access_mode", "accessModes"], |c| c.volume_capability.as_mut().unwrap().access_mode = None),
        (&["access_mode"], |c| mode(c, Mode::Unknown)),
        (&["bucketName", "volumeAttributes of PersistentVolume pv-1"], |c| {
            c.volume_context.remove(volume::BUCKET_NAME);
        }),
        (&["bucketName"], |c| {
            c.volume_context.insert(volume::BUCKET_NAME.into(), "--foreground".into());
        }),
        (&["authenticationSource", "'driver', 'secret' or 'pod'"], |c| {
            c.volume_context.insert(volume::AUTHENTICATION_SOURCE.into(), "iam".into());
        }),
        (&["access_key_id", "missing", "nodePublishSecretRef"], |c| {
            c.secrets = secrets(&[("secret_access_key", HUSH)]);
        }),
        (&["access_key_id", "printable ASCII"], |c| {
            c.secrets = secrets(&[("access_key_id", "HUSHHUSH,"), ("secret_access_key", HUSH)]);
        }),
        (&["secret_access_key"], |c| {
            c.secrets = secrets(&[("access_key_id", "A"), ("secret_access_key", "HUSHHUSH\n[x]")]);
        }),
        (&["session_token"], |c| {
            c.secrets = secrets(&[
                ("access_key_id", "A"),
                ("secret_access_key", "b"),
                ("session_token", "HUSHHUSH HUSHHUSH"),
            ]);
        }),
        (&["'alow-delete'", "'allow-delete'", "mountOptions of PersistentVolume pv-1"], |c| {
            mount_of(c).mount_flags = vec!["alow-delete".into()];
        }),
        (&["'spill-dir'", "mountOptions of PersistentVolume pv-1"], |c| {
            mount_of(c).mount_flags = vec!["spill-dir=/etc".into()];
        }),
        (&["--uid", "mountOptions of PersistentVolume pv-1"], |c| {
            mount_of(c).mount_flags = vec!["uid=everybody".into()];
        }),
        (&["volume_mount_group"], |c| mount_of(c).volume_mount_group = "staff".into()),
    ];
    let driver = Driver::start().await;
    for (words, spoil) in cases {
        let mut call = driver.call();
        call.volume_context.insert(volume::AUTHENTICATION_SOURCE.into(), "secret".into());
        call.secrets = secrets(&[("access_key_id", "A"), ("secret_access_key", HUSH)]);
        spoil(&mut call);
        let status = driver.publish(call).await.expect_err(words[0]);
        assert_eq!(status.code(), Code::InvalidArgument, "{words:?}: {status}");
        for word in words {
            assert!(status.message().contains(word), "{word}: {status}");
        }
        assert!(!format!("{status:?}").contains(HUSH), "{words:?} shows a secret");
    }
    assert!(driver.mounter.mounts().is_empty());
}

/// Goal: the author of an option without effect hears of it where `kubectl describe pod` shows it, once for each mount.
#[tokio::test]
async fn a_workload_is_told_of_options_that_have_no_effect() {
    let driver = Driver::start().await;
    let with_options = || {
        let mut call = driver.call();
        mount_of(&mut call).mount_flags =
            ["endpoint-url=http://HUSHHUSH", "dual-stack", "cache /x", "max-cache-size 100", "allow-delete"]
                .map(String::from)
                .into();
        call
    };
    let of_pod = || {
        let mut call = with_options();
        of_web(&mut call);
        call
    };
    driver.publish(of_pod()).await.unwrap();
    let notice = driver.notice().unwrap();
    assert_eq!(
        notice.workload,
        WorkloadRef { namespace: "team".into(), name: "web-0".into(), uid: "uid-1".into() }
    );
    assert_eq!(notice.reason, Reason::MountOptionLeftOut);
    for word in
        ["'endpoint-url' (", "s3.endpointUrl", "'dual-stack' (", "mountOptions of PersistentVolume pv-1"]
    {
        assert!(notice.note.contains(word), "{word}: {}", notice.note);
    }
    assert!(!notice.note.contains(HUSH) && !notice.note.contains("cache"), "{}", notice.note);
    assert_eq!(driver.notice(), None, "one Event for all of them");

    // A mount that failed is explained again; the writer of Events counts repetitions.
    driver.publish(of_pod()).await.unwrap();
    assert!(driver.notice().is_some());
    driver.mounted(&[&driver.target("uid-1")]);
    driver.publish(of_pod()).await.unwrap();
    assert_eq!(driver.notice(), None, "a mounted volume was reported");
    driver.mounted(&[]);
    driver.publish(with_options()).await.unwrap();
    assert_eq!(driver.notice(), None, "no pod is named: the log has it");
    driver.publish(driver.call()).await.unwrap();
    assert_eq!(driver.notice(), None);
    assert_eq!(driver.mounter.mounts().len(), 5);
}

/// Goal: a user of a cache without a limit learns that the cache has a limit now, and how to choose it.
#[tokio::test]
async fn a_cache_without_a_size_gets_one_and_its_workload_is_told() {
    let driver = Driver::start().await;
    let with = |options: &[&str], attributes: &[(&str, &str)]| {
        let mut call = driver.call();
        of_web(&mut call);
        mount_of(&mut call).mount_flags = options.iter().map(|&it| it.to_owned()).collect();
        let attributes = attributes.iter().map(|&(key, value)| (key.to_owned(), value.to_owned()));
        call.volume_context.extend(attributes);
        call
    };
    let sizes = || {
        let args = driver.mounter.mounts().last().unwrap().args.clone();
        args.into_iter().filter(|it| it.contains("cache")).collect::<Vec<_>>()
    };
    driver.publish(with(&["cache /x"], &[])).await.unwrap();
    assert_eq!(sizes(), ["--cache=/local-cache", "--max-cache-size=9728"]);
    let notice = driver.notice().unwrap();
    assert_eq!(notice.reason, Reason::CacheLimited);
    assert!(
        notice.note.contains("9728 MiB") && notice.note.contains("cacheEmptyDirSizeLimit"),
        "{}",
        notice.note
    );
    let sized = [(volume::CACHE, "emptyDir"), (volume::CACHE_SIZE_LIMIT, "1Gi")];
    driver.publish(with(&[], &sized)).await.unwrap();
    assert_eq!(sizes(), ["--cache=/local-cache", "--max-cache-size=972"]);
    assert_eq!(driver.notice(), None);
    let error = driver.publish(with(&["max-cache-size 2000"], &sized)).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("PersistentVolume pv-1") && error.message().contains("2000"), "{error}");
    // The node's systemd puts a cache where it has room, as before.
    driver.mounter.ignore(volume::OF_MOUNTPOINT_PODS);
    driver.publish(with(&["cache /x"], &[])).await.unwrap();
    assert_eq!(sizes(), ["--cache=/local-cache"]);
    assert_eq!(driver.notice(), None);
}

/// Goal: a misspelt attribute is not missed in silence.
#[tokio::test]
async fn a_workload_is_told_of_attributes_that_nobody_reads() {
    let driver = Driver::start().await;
    let mut call = driver.call();
    of_web(&mut call);
    driver.publish(call.clone()).await.unwrap();
    assert_eq!(driver.notice(), None);
    call.volume_context.insert("regionn".into(), HUSH.into());
    driver.publish(call.clone()).await.unwrap();
    let notice = driver.notice().unwrap();
    assert_eq!(notice.reason, Reason::VolumeAttributeUnknown);
    assert!(
        notice.note.contains("regionn") && notice.note.contains("PersistentVolume pv-1"),
        "{}",
        notice.note
    );
    assert!(!notice.note.contains(HUSH), "{}", notice.note);
    driver.mounted(&[&driver.target("uid-1")]);
    driver.publish(call).await.unwrap();
    assert_eq!(driver.notice(), None, "said when it was new");
}

#[tokio::test]
async fn a_workload_hears_of_pod_attributes_without_effect_under_systemd() {
    let driver = Driver::start().await;
    let mut call = driver.call();
    of_web(&mut call);
    call.volume_context.insert(volume::CA_CONFIG_MAP.into(), "certificates".into());
    call.volume_context.insert(volume::LIMITS_MEMORY.into(), "1Gi".into());
    driver.publish(call.clone()).await.unwrap();
    assert_eq!(driver.notice(), None, "Mountpoint Pods have certificates and limits");
    driver.mounter.ignore(volume::OF_MOUNTPOINT_PODS);
    driver.publish(call).await.unwrap();
    let notice = driver.notice().unwrap();
    assert_eq!(notice.reason, Reason::VolumeAttributeUnknown);
    let named = "caBundleConfigMap, mountpointContainerResourcesLimitsMemory.";
    assert!(notice.note.contains(named) && notice.note.contains("node.mounter: systemd"), "{}", notice.note);
    assert!(notice.note.contains("tls.caCertConfigMap"), "{}", notice.note);
}

#[tokio::test]
async fn an_attribute_that_the_mounter_refuses_is_named_and_nothing_is_mounted() {
    let driver = Driver::start().await;
    driver.mounter.refuse(&[volume::CA_CONFIG_MAP]);
    let mut call = driver.call();
    call.volume_context.insert(volume::CA_CONFIG_MAP.into(), HUSH.into());
    let error = driver.publish(call).await.unwrap_err();
    let said = error.message();
    assert!(error.code() == Code::InvalidArgument && !said.contains(HUSH), "{error}");
    assert!(said.contains("caBundleConfigMap") && said.contains("tls.caCertConfigMap"), "{said}");
    assert!(driver.mounter.mounts().is_empty());
}

#[tokio::test]
async fn a_workload_hears_of_cache_and_memory_that_engines_of_one_pod_lack() {
    let driver = Driver::start().await;
    let with = |options: &[&str], attributes: &[(&str, &str)]| {
        let mut call = driver.call();
        of_web(&mut call);
        mount_of(&mut call).mount_flags = options.iter().map(|&it| it.to_owned()).collect();
        call.volume_context.extend(attributes.iter().map(|(key, value)| ((*key).into(), (*value).into())));
        call
    };
    driver.mounter.ignore(volume::OF_ONE_POD_EACH);
    driver.mounter.leave_out(&["memory-target", "cache"], "one pod");
    driver.publish(with(&["cache /x", "memory-target 200", "allow-delete"], &[])).await.unwrap();
    let notice = driver.notice().unwrap();
    assert_eq!(notice.reason, Reason::MountOptionLeftOut);
    assert!(notice.note.contains("'cache' (one pod), 'memory-target' (one pod)"), "{}", notice.note);
    let args = driver.mounter.mounts().pop().unwrap().args;
    assert!(args.contains(&"--allow-delete".to_owned()), "{args:?}");
    assert!(!args.iter().any(|arg| arg.contains("cache") || arg.contains("memory")), "{args:?}");

    // A pod with a disk for caches has none for claims.
    driver.mounter.ignore(volume::OF_ONE_DISK_EACH);
    driver.mounter.leave_out(&["memory-target"], "one pod");
    let on_a_claim =
        [(volume::CACHE, "ephemeral"), (volume::CACHE_CLASS, "fast"), (volume::CACHE_REQUEST, "1Gi")];
    driver.publish(with(&[], &on_a_claim)).await.unwrap();
    let notice = driver.notice().unwrap();
    let named = "cache, cacheEphemeralStorageClassName, cacheEphemeralStorageResourceRequest.";
    assert!(notice.note.contains(named), "{}", notice.note);
    driver
        .publish(with(&[], &[(volume::CACHE, "emptyDir"), (volume::CACHE_SIZE_LIMIT, "1Gi")]))
        .await
        .unwrap();
    assert_eq!(driver.notice(), None);
    let args = driver.mounter.mounts().pop().unwrap().args;
    assert!(args.contains(&"--max-cache-size=972".to_owned()), "{args:?}");
}

/// Goal: a mount that differs from the chart's settings is explained in the log.
#[tokio::test]
async fn a_workload_is_told_when_systemd_mounts_in_place_of_a_mountpoint_pod() {
    let driver = Driver::start().await;
    driver.mounter.makes(Made::BySystemdInstead("no reconciler works".into()));
    let mut call = driver.call();
    of_web(&mut call);
    driver.publish(call.clone()).await.unwrap();
    let notice = driver.notice().unwrap();
    assert_eq!((notice.reason, notice.workload.name.as_str()), (Reason::MountedBySystemd, "web-0"));
    for words in ["systemd mounts PersistentVolume pv-1", "until the pod ends", "no reconciler works"] {
        assert!(notice.note.contains(words), "{words}: {}", notice.note);
    }
    driver.mounter.makes(Made::AsUsual);
    driver.publish(call).await.unwrap();
    assert_eq!(driver.notice(), None);
}

/// Goal: bad edits of options keep no new keys from an existing mount.
#[tokio::test]
async fn a_badly_edited_volume_is_refreshed_if_mounted_and_else_refused() {
    let driver = Driver::start().await;
    let mut call = driver.call();
    mount_of(&mut call).mount_flags = vec!["alow-delete".into()];
    let status = driver.publish(call.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    driver.mounted(&[&driver.target("uid-1")]);
    driver.publish(call.clone()).await.unwrap();
    let [mount] = &driver.mounter.mounts()[..] else { panic!("one mount") };
    assert_eq!(mount.credentials.as_ref().unwrap().access_key_id, "DRIVERKEY");
    let why = mount.unusable.as_deref().unwrap();
    assert!(why.contains("'alow-delete'") && why.contains("PersistentVolume pv-1"), "{why}");
    // Another pod of the same volume is new.
    call.target_path = driver.target("uid-2");
    assert_eq!(driver.publish(call.clone()).await.unwrap_err().code(), Code::InvalidArgument);
    // Access modes may be edited, too.
    driver.mounted(&[&driver.target("uid-1"), &driver.target("uid-2")]);
    mode(&mut call, Mode::SingleNodeSingleWriter);
    driver.publish(call).await.unwrap();
}

#[tokio::test]
async fn a_bad_unpublish_is_refused_by_name() {
    let driver = Driver::start().await;
    for (id, target, word) in [
        ("", driver.target("u"), "volume_id"),
        ("h", String::new(), "target_path"),
        ("h", "/etc".into(), "target_path"),
    ] {
        let call = NodeUnpublishVolumeRequest { volume_id: id.into(), target_path: target };
        let status = driver.node().node_unpublish_volume(call).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(word), "{status}");
    }
    assert!(driver.mounter.unmounts().is_empty());
}

#[tokio::test]
async fn a_mounter_s_error_keeps_its_kind_and_its_words() {
    let driver = Driver::start().await;
    driver.mounter.fail(csi::error::ErrorKind::Unavailable, "no Mountpoint Pod yet");
    let status = driver.publish(driver.call()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "no Mountpoint Pod yet"));
    driver.mounter.fail(csi::error::ErrorKind::FailedPrecondition, "404 NoSuchBucket");
    let status = driver.publish(driver.call()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(
        status.message().starts_with("404 NoSuchBucket: set bucketName in spec.csi.volumeAttributes"),
        "{status}"
    );
    // A failed try is not in the way of the next one.
    driver.publish(driver.call()).await.unwrap();
}

/// Goal: a mount that has begun runs to its end after its caller went away, and no other call touches the target meanwhile.
#[tokio::test]
async fn a_mount_outlives_its_caller_and_is_not_disturbed() {
    let driver = Driver::start().await;
    let gate = driver.mounter.hold();
    let mut node = driver.node();
    let call = driver.call();
    let caller = tokio::spawn(async move { node.node_publish_volume(call).await });
    driver.mounter.reached().await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    let status = driver.publish(driver.call()).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    let call =
        NodeUnpublishVolumeRequest { volume_id: "handle-1".into(), target_path: driver.target("uid-1") };
    let status = driver.node().node_unpublish_volume(call).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert_eq!(driver.mounter.finished(), 0);
    drop(gate);
    while driver.mounter.finished() == 0 {
        tokio::task::yield_now().await;
    }
}

/// Goal: an alert on a full disk stays silent while one of several mounts of a claim is dead.
#[tokio::test]
async fn a_call_that_has_begun_ends_after_the_signal_to_stop() {
    let mut driver = Driver::start().await;
    let gate = driver.mounter.hold();
    let mut node = driver.node();
    let call = driver.call();
    let caller = tokio::spawn(async move { node.node_publish_volume(call).await });
    driver.mounter.reached().await;
    driver.stop();
    drop(gate);
    caller.await.unwrap().unwrap();
    driver.ended().await;
}

/// Goal: troubles that a restart does not mend cause no restart, and the readiness page shows them.
#[tokio::test]
async fn healthz_follows_the_socket_and_readyz_also_the_device_and_the_crd() {
    let mut driver = Driver::start().await;
    let (device, missing) = (driver.directory().join("fuse"), driver.directory().join("missing-crd"));
    let crd = missing.clone();
    let fault =
        move || crd.exists().then(|| "the API server does not know mountpoints3podattachments".to_owned());
    let address = driver.health(&device, std::sync::Arc::new(fault)).await;
    let ok = (200, "ok\n".to_owned());
    assert_eq!(http_get(address, "/healthz").await, ok, "no device: a new start brings none");
    let (status, body) = http_get(address, "/readyz").await;
    assert!(status == 503 && body.contains("does not open") && body.contains("fuse"), "{status} {body}");
    std::fs::write(&device, "").unwrap();
    assert_eq!(http_get(address, "/readyz").await, ok);
    std::fs::write(&missing, "").unwrap();
    let (status, body) = http_get(address, "/readyz").await;
    assert!(status == 503 && body.contains("mountpoints3podattachments"), "{status} {body}");
    assert_eq!(http_get(address, "/healthz").await, ok);
    assert_eq!(http_get(address, "/").await.0, 404);
    driver.stop();
    driver.ended().await;
    // The last connection may need a moment to notice.
    let gone = async {
        loop {
            let (status, body) = http_get(address, "/healthz").await;
            if status == 503 {
                return body;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let body = gone.await;
    assert!(body.contains("the driver's socket"), "{body}");
}

/// Names the pod in a call, as the kubelet does.
fn of_web(call: &mut NodePublishVolumeRequest) {
    call.volume_context.insert(volume::CONTEXT_POD_NAME.into(), "web-0".into());
    call.volume_context.insert(volume::CONTEXT_POD_NAMESPACE.into(), "team".into());
}

fn mode(call: &mut NodePublishVolumeRequest, mode: Mode) {
    call.volume_capability.as_mut().unwrap().access_mode = Some(AccessMode { mode: mode.into() });
}

fn secrets(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
