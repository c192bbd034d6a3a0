//! Publish requests of the kubelet, whole and spoilt.

use super::*;
use crate::error::ErrorKind;
use crate::proto::csi::VolumeCapability;
use crate::proto::csi::volume_capability::{AccessMode, BlockVolume, MountVolume};

const TARGET: &str = "/var/lib/kubelet/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount";

fn call() -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: "handle-1".into(),
        target_path: TARGET.into(),
        volume_capability: Some(VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }),
        volume_context: HashMap::from([(volume::BUCKET_NAME.to_owned(), "bucket-1".to_owned())]),
        ..Default::default()
    }
}

fn parse(call: NodePublishVolumeRequest) -> Result<PublishRequest> {
    PublishRequest::parse(call, Path::new("/var/lib/kubelet"))
}

fn mount(call: &mut NodePublishVolumeRequest) -> &mut MountVolume {
    match call.volume_capability.as_mut().unwrap().access_type.as_mut().unwrap() {
        AccessType::Mount(mount) => mount,
        AccessType::Block(_) => unreachable!("call() asks for a mount"),
    }
}

fn mode(call: &mut NodePublishVolumeRequest, mode: Mode) {
    call.volume_capability.as_mut().unwrap().access_mode = Some(AccessMode { mode: mode.into() });
}

#[test]
fn a_whole_call_is_read() {
    let mut given = call();
    mount(&mut given).mount_flags = vec!["allow-delete".into()];
    mount(&mut given).volume_mount_group = "2000".into();
    given.readonly = true;
    given.volume_context.insert(volume::CONTEXT_POD_UID.into(), "uid-2".into());
    let request = parse(given).unwrap();
    assert_eq!(request.handle, "handle-1");
    assert_eq!(request.volume, "pv-1");
    assert_eq!(request.workload_uid, "uid-2");
    assert_eq!(request.workload, None, "an Event needs the pod's name and namespace");
    assert_eq!(request.bucket, "bucket-1");
    assert_eq!(request.mount_options, ["allow-delete"]);
    assert_eq!(request.fs_group, Some(2000));
    assert!(request.read_only && !request.volume_read_only && !request.single_writer);
    assert_eq!(request.authentication_source, AuthenticationSource::Driver);
}

#[test]
fn the_workload_is_known_by_what_the_kubelet_says_of_its_pod() {
    let mut given = call();
    given.volume_context.insert(volume::CONTEXT_POD_NAMESPACE.into(), "team".into());
    assert_eq!(parse(given.clone()).unwrap().workload, None);
    given.volume_context.insert(volume::CONTEXT_POD_NAME.into(), "web-0".into());
    let workload = WorkloadRef { namespace: "team".into(), name: "web-0".into(), uid: "uid-1".into() };
    assert_eq!(parse(given).unwrap().workload, Some(workload));
}

#[test]
fn an_inline_volume_brings_its_own_secret_and_names_only_a_bucket() {
    let mut given = call();
    given.volume_id = volume::inline_handle("uid-1", "data");
    given.target_path = TARGET.replace("pv-1", "data");
    given.volume_context.insert(volume::CONTEXT_EPHEMERAL.into(), "true".into());
    given.volume_context.insert(volume::MOUNT_OPTIONS.into(), "allow-delete,region=r".into());
    let error = parse(given.clone()).unwrap_err().to_string();
    assert!(error.contains("nodePublishSecretRef"), "{error}");
    given.secrets = HashMap::from([(volume::CONTEXT_TOKENS.to_owned(), "{}".to_owned())]);
    assert!(parse(given.clone()).is_err(), "tokens are not a Secret");
    given.secrets = HashMap::from([("access_key_id".to_owned(), "A".to_owned())]);
    let request = parse(given.clone()).unwrap();
    assert_eq!(
        (request.volume.as_str(), request.handle.as_str()),
        (given.volume_id.as_str(), given.volume_id.as_str())
    );
    assert!(request.inline && request.mount_options == ["allow-delete", "region=r"]);
    assert_eq!(request.unknown_attributes, Vec::<String>::new());
    for key in [
        volume::ENDPOINT_URL,
        volume::CA_CONFIG_MAP,
        volume::AUTHENTICATION_SOURCE,
        volume::POD_SERVICE_ACCOUNT,
        "mountpointEnv.HTTPS_PROXY",
    ] {
        let mut given = given.clone();
        given.volume_context.insert(key.into(), "x".into());
        let error = parse(given).unwrap_err();
        assert!(error.kind == ErrorKind::InvalidArgument && error.to_string().contains(key), "{error}");
    }
}

#[test]
fn unread_attributes_are_named_and_those_of_side_cars_left_alone() {
    let mut given = call();
    for key in [
        volume::CONTEXT_POD_UID,
        "csi.storage.k8s.io/ephemeral",
        "csi.storage.k8s.io/serviceAccount.name",
        "storage.kubernetes.io/csiProvisionerIdentity",
        "dynamicProvisioning",
        volume::AUTHENTICATION_SOURCE,
        volume::LIMITS_MEMORY,
    ] {
        given.volume_context.insert(key.into(), String::new());
    }
    assert_eq!(parse(given.clone()).unwrap().unknown_attributes, Vec::<String>::new());
    given.volume_context.insert("colour".into(), "red".into());
    given.volume_context.insert("bucketname".into(), "b".into());
    assert_eq!(parse(given).unwrap().unknown_attributes, ["bucketname", "colour"]);
}

#[test]
fn every_access_mode_but_unknown_is_served_as_its_name_says() {
    for (given, read_only, single) in [
        (Mode::SingleNodeWriter, false, false),
        (Mode::SingleNodeReaderOnly, true, false),
        (Mode::MultiNodeReaderOnly, true, false),
        (Mode::MultiNodeSingleWriter, false, false),
        (Mode::MultiNodeMultiWriter, false, false),
        (Mode::SingleNodeSingleWriter, false, true),
        (Mode::SingleNodeMultiWriter, false, false),
    ] {
        let mut call = call();
        mode(&mut call, given);
        let request = parse(call).unwrap();
        assert_eq!((request.volume_read_only, request.single_writer), (read_only, single), "{given:?}");
        assert!(!request.read_only, "{given:?}");
    }
}

#[test]
fn the_place_of_data_depends_on_bucket_prefix_and_store_alone() {
    let place = |spoil: fn(&mut NodePublishVolumeRequest)| {
        let mut call = call();
        spoil(&mut call);
        parse(call).unwrap().place()
    };
    let here = place(|_| {});
    assert_eq!(place(|c| c.volume_context.extend([("region".into(), "r".into())])), here);
    assert_eq!(place(|c| mount(c).mount_flags = vec!["prefix other/".into()]), here);
    let edits: [fn(&mut NodePublishVolumeRequest); 3] = [
        |c| c.volume_context.extend([(volume::BUCKET_NAME.into(), "bucket-2".into())]),
        |c| c.volume_context.extend([(volume::PREFIX.into(), "other/".into())]),
        |c| c.volume_context.extend([(volume::ENDPOINT_URL.into(), "https://other".into())]),
    ];
    for edit in edits {
        assert_ne!(place(edit), here);
    }
}

#[test]
fn what_is_wrong_is_named() {
    type Spoil = fn(&mut NodePublishVolumeRequest);
    let cases: [(&str, Spoil); 19] = [
        ("volume_id", |c| c.volume_id.clear()),
        ("target_path", |c| c.target_path.clear()),
        ("kubeletPath", |c| c.target_path = "/etc/cron.d".into()),
        ("'..'", |c| c.target_path = "/var/lib/kubelet/../x".into()),
        ("volume_capability", |c| c.volume_capability = None),
        ("access_type", |c| c.volume_capability.as_mut().unwrap().access_type = None),
        ("volumeMode: Filesystem", |c| {
            c.volume_capability.as_mut().unwrap().access_type = Some(AccessType::Block(BlockVolume {}));
        }),
        ("accessModes", |c| mode(c, Mode::Unknown)),
        ("accessModes", |c| c.volume_capability.as_mut().unwrap().access_mode = None),
        ("accessModes", |c| {
            c.volume_capability.as_mut().unwrap().access_mode = Some(AccessMode { mode: 99 });
        }),
        ("bucketName is missing: set it in spec.csi.volumeAttributes of PersistentVolume pv-1", |c| {
            c.volume_context.clear();
        }),
        ("bucketName", |c| {
            c.volume_context.insert(volume::BUCKET_NAME.into(), "--log-directory=/etc".into());
        }),
        ("prefix", |c| {
            c.volume_context.insert(volume::BUCKET_NAME.into(), "bucket/folder".into());
        }),
        ("prefix \"team\" must end in '/'", |c| {
            c.volume_context.insert(volume::PREFIX.into(), "team".into());
        }),
        ("authenticationSource", |c| {
            c.volume_context.insert(volume::AUTHENTICATION_SOURCE.into(), "magic".into());
        }),
        ("stsRegion", |c| {
            c.volume_context.insert(volume::STS_REGION.into(), "evil.example.com/".into());
        }),
        ("region \"evil.example.com/\" is not a valid region", |c| {
            c.volume_context.insert(volume::REGION.into(), "evil.example.com/".into());
        }),
        ("HTTP_PROXY, HTTPS_PROXY, NO_PROXY", |c| {
            c.volume_context.insert("mountpointEnv.AWS_PROFILE".into(), "other".into());
        }),
        ("volume_mount_group", |c| mount(c).volume_mount_group = "staff".into()),
    ];
    for (words, spoil) in cases {
        let mut call = call();
        spoil(&mut call);
        let error = parse(call).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument, "{words}: {error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
}

#[test]
fn a_bucket_is_named_or_refused_by_its_field() {
    let with = |name: &str| {
        let mut call = call();
        call.volume_context.insert(volume::BUCKET_NAME.into(), name.into());
        call
    };
    let access_point = "arn:aws:s3:eu-west-1:123456789012:accesspoint/data";
    for good in ["bucket-1", "Not_A_Bucket", "data-abc-s3alias", access_point] {
        assert_eq!(parse(with(good)).unwrap().bucket, good);
    }
    let cases = [
        ("b1", "3-255"),
        ("x".repeat(256).as_str(), "3-255"),
        ("s3://bucket-1", "prefix"),
        ("bucket-1/folder/", "prefix"),
        ("-bucket", "begin with"),
        ("bücket", "letters"),
        ("arn:aws:s3:eu-west-1:123456789012:nothing/data", "nothing"),
    ]
    .map(|(bad, words)| (bad.to_owned(), words));
    for (bad, words) in cases {
        let error = parse(with(&bad)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        let text = error.to_string();
        assert!(text.starts_with("bucketName ") && text.contains(words), "{bad}: {text}");
        assert!(text.contains("volumeAttributes of PersistentVolume pv-1"), "{text}");
        assert!(!text.contains("mountOptions"), "{text}");
    }
    let mut elsewhere = with(access_point);
    elsewhere.volume_context.insert(volume::ENDPOINT_URL.into(), "https://other".into());
    let error = parse(elsewhere).unwrap_err().to_string();
    assert!(error.contains("bucketName is an ARN") && error.contains("endpointUrl"), "{error}");
    let mut misspelt = call();
    let name = misspelt.volume_context.remove(volume::BUCKET_NAME).unwrap();
    misspelt.volume_context.insert("bucketNam".into(), name);
    let error = parse(misspelt).unwrap_err().to_string();
    assert!(error.contains("does not know \"bucketNam\""), "{error}");
    let mut inline = with(access_point);
    inline.volume_context.insert(volume::CONTEXT_EPHEMERAL.into(), "true".into());
    inline.secrets = HashMap::from([("access_key_id".to_owned(), "A".to_owned())]);
    let error = parse(inline).unwrap_err().to_string();
    assert!(error.contains("an inline volume takes a bucket's name"), "{error}");
}

#[test]
fn a_request_can_be_logged_without_its_secrets() {
    let mut call = call();
    call.secrets.insert("secret_access_key".into(), "HUSH".into());
    assert!(!format!("{:?}", parse(call).unwrap()).contains("HUSH"));
}
