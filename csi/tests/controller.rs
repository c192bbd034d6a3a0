//! The controller service as the provisioner sees it: real gRPC over a socket, a real S3 server behind it.

mod owners;
mod provisioner;

use csi::controller::cluster::Cluster;
use csi::controller::on_delete::OnDelete;
use csi::controller::ownership::Recorded;
use csi::controller::volume_id::{Place, VolumeId};
use csi::proto::csi::volume_capability::{AccessType, BlockVolume, access_mode::Mode};
use csi::proto::csi::{
    CapacityRange, ControllerGetCapabilitiesRequest, CreateVolumeRequest, DeleteVolumeRequest,
    GetPluginCapabilitiesRequest, ProbeRequest, ValidateVolumeCapabilitiesRequest, VolumeContentSource,
};
use provisioner::api::Api;
use provisioner::{CLUSTER, HUSH, Lab, capability, map};
use s3server::{Effect, Fault};
use tonic::Code;

#[tokio::test]
async fn the_service_says_what_it_can_and_is_ready() {
    let lab = Lab::start().await;
    let plugin = lab.identity().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
    assert!(format!("{plugin:?}").contains("ControllerService"), "{plugin:?}");
    assert_eq!(lab.identity().probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(true));
    let can =
        lab.controller().controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await.unwrap();
    let can = format!("{:?}", can.into_inner());
    assert!(can.contains("CreateDeleteVolume") && can.contains("SingleNodeMultiWriter"), "{can}");
    let status = lab.node().await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "no service Node in this process: {status}");
}

#[tokio::test]
async fn a_claim_gets_a_bucket_with_its_tags_and_a_retry_gets_the_same() {
    let lab = Lab::start().await;
    let mut call = lab.call("pvc-1", &[("tags", "team=${pvc.namespace}"), ("onDelete", "fail")]);
    call.capacity_range = Some(CapacityRange { required_bytes: 5 << 30, limit_bytes: 0 });
    let volume = lab.create(call.clone()).await.unwrap();
    assert_eq!(volume.capacity_bytes, 5 << 30);
    let bucket = volume.volume_context["bucketName"].clone();
    assert!(bucket.starts_with("csi-s3-") && lab.buckets() == [bucket.as_str()], "{bucket}");
    let wanted = map(&[
        ("bucketName", &bucket),
        ("onDelete", "fail"),
        ("authenticationSource", "driver"),
        ("dynamicProvisioning", "true"),
    ]);
    assert_eq!(volume.volume_context, wanted);
    let tags = lab.tags(&bucket).await;
    assert_eq!((tags["team"].as_str(), tags["s3.csi.scality.com/name"].as_str()), ("team-a", "pvc-1"));
    assert_eq!(tags["s3.csi.scality.com/capacity-bytes"], (5u64 << 30).to_string());
    let again = lab.create(call).await.unwrap();
    assert_eq!(again, volume);
    assert_eq!(lab.buckets().len(), 1);
}

#[tokio::test]
async fn the_same_name_with_another_size_exists_already() {
    let lab = Lab::start().await;
    let sized = |required_bytes, limit_bytes| {
        let mut call = lab.call("pvc-1", &[]);
        call.capacity_range = Some(CapacityRange { required_bytes, limit_bytes });
        call
    };
    lab.create(sized(10, 0)).await.unwrap();
    assert_eq!(lab.create(sized(5, 10)).await.unwrap().capacity_bytes, 10, "10 is what is asked for, too");
    for other in [sized(11, 0), sized(1, 9)] {
        let status = lab.create(other).await.unwrap_err();
        assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    }
}

#[tokio::test]
async fn two_calls_for_one_claim_at_once_make_one_bucket() {
    let lab = Lab::start().await;
    let held = lab.server().faults();
    held.add(Fault::on("CreateBucket", Effect::Delay { for_ms: 300 }));
    let (one, other) = tokio::join!(lab.create(lab.call("pvc-1", &[])), lab.create(lab.call("pvc-1", &[])));
    let refused = [&one, &other].into_iter().filter_map(|it| it.as_ref().err());
    assert!(refused.clone().all(|it| it.code() == Code::Aborted), "{one:?} {other:?}");
    assert!(refused.count() <= 1, "one of them does the work");
    lab.create(lab.call("pvc-1", &[])).await.unwrap();
    assert_eq!(lab.buckets().len(), 1);
}

#[tokio::test]
async fn a_caller_that_stops_waiting_finds_the_work_done() {
    let lab = Lab::start().await;
    lab.server().faults().add(Fault::on("CreateBucket", Effect::Hold).nth(1));
    tokio::select! {
        made = lab.create(lab.call("pvc-1", &[])) => panic!("the store has not answered: {made:?}"),
        () = testkit::until_async("the store is asked", || lab.server().faults().fired() > 0) => {}
    }
    lab.server().faults().release();
    let volume = lab.create_until_done(lab.call("pvc-1", &[])).await;
    assert_eq!(lab.buckets(), [volume.volume_context["bucketName"].as_str()]);
    assert_eq!(lab.server().requests().count("CreateBucket"), 1);
}

/// Goal: whatever answer of the store is lost, the next call finds the volume, and never makes a second bucket.
#[tokio::test]
async fn a_lost_answer_leaves_one_bucket_that_the_next_call_finds() {
    for (operation, parameters) in [
        ("CreateBucket", &[][..]),
        ("CreateBucket", &[("bucketNameTemplate", "${pvc.namespace}-${pvc.name}")]),
        ("PutBucketTagging", &[]),
        ("PutBucketTagging", &[("bucketNameTemplate", "${pvc.namespace}-${pvc.name}")]),
    ] {
        let lab = Lab::start().await;
        lab.server().faults().add(Fault::on(operation, Effect::DropAnswer).nth(1));
        let volume = lab.create_until_done(lab.call("pvc-1", parameters)).await;
        assert_eq!(
            lab.buckets(),
            [volume.volume_context["bucketName"].as_str()],
            "{operation} {parameters:?}"
        );
        assert!(lab.tags(&volume.volume_context["bucketName"]).await.len() >= 4);
    }
}

#[tokio::test]
async fn a_bucket_that_could_not_be_tagged_is_not_left_behind() {
    let lab = Lab::start().await;
    let denied = Effect::Error { status: 403, code: "AccessDenied".into() };
    lab.server().faults().add(Fault::on("PutBucketTagging", denied));
    let status = lab.create(lab.call("pvc-1", &[("bucketNameTemplate", "${pvc.name}")])).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    assert!(lab.buckets().is_empty(), "{:?}", lab.buckets());
}

#[tokio::test]
async fn a_bucket_that_is_somebody_else_s_is_left_alone() {
    let lab = Lab::start().await;
    let named = |claim: &str| {
        let mut call = lab.call(claim, &[("bucketNameTemplate", "${pvc.namespace}-${pvc.name}")]);
        call.parameters.insert("csi.storage.k8s.io/pvc/name".into(), "data".into());
        call
    };
    lab.make_bucket("team-a-data");
    let status = lab.create(named("pvc-1")).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert!(status.message().contains("nothing shows that this driver made it"), "{status}");

    let lab = Lab::start().await;
    lab.create(named("pvc-1")).await.unwrap();
    let status = lab.create(named("pvc-2")).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert!(status.message().contains("it belongs to the volume pvc-1"), "{status}");

    let other = Effect::Error { status: 409, code: "BucketAlreadyExists".into() };
    lab.server().faults().add(Fault::on("CreateBucket", other));
    let status = lab.create(lab.call("pvc-3", &[])).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert!(status.message().contains("another account"), "{status}");
}

#[tokio::test]
async fn without_tags_a_digest_name_and_the_volume_id_identify_a_bucket() {
    let lab = Lab::without_tags().await;
    let volume = lab.create(lab.call("pvc-1", &[])).await.unwrap();
    assert_eq!(lab.create(lab.call("pvc-1", &[])).await.unwrap(), volume);
    lab.put(&volume.volume_context["bucketName"], "key").await;
    let status = lab.create(lab.call("pvc-1", &[])).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "it is not empty: {status}");
    lab.remove(&volume.volume_context["bucketName"], "key").await;
    lab.delete(&volume.volume_id).await.unwrap();
    assert!(lab.buckets().is_empty());

    let named = lab.create(lab.call("pvc-2", &[("bucketNameTemplate", "${pvc.name}-x")])).await.unwrap();
    let status = lab.create(lab.call("pvc-2", &[("bucketNameTemplate", "${pvc.name}-x")])).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
    assert!(status.message().contains("${hash}"), "{status}");
    lab.delete(&named.volume_id).await.unwrap();
    assert!(lab.buckets().is_empty());
}

#[tokio::test]
async fn a_prefix_for_each_claim_in_a_bucket_that_is_there() {
    let lab = Lab::start().await;
    let shared = [("bucketName", "shared"), ("prefixTemplate", "${pvc.namespace}/${pvc.name}/")];
    let status = lab.create(lab.call("pvc-1", &shared)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("bucketName"), "{status}");
    lab.make_bucket("shared");
    let volume = lab.create(lab.call("pvc-1", &shared)).await.unwrap();
    assert_eq!(volume.volume_context["prefix"], "team-a/claim-of-pvc-1/");
    assert_eq!(volume.volume_context["bucketName"], "shared");
    assert_eq!(lab.create(lab.call("pvc-1", &shared)).await.unwrap(), volume);
    assert!(volume.volume_id.len() <= 128 && volume.volume_id.ends_with("/shared/team-a/claim-of-pvc-1"));
    assert!(lab.tags("shared").await.is_empty(), "a bucket of many is nobody's");
}

#[tokio::test]
async fn a_prefix_with_the_data_of_an_earlier_claim_is_refused_unless_adopted() {
    let lab = Lab::start().await;
    lab.make_bucket("shared");
    let by_name = [("bucketName", "shared"), ("prefixTemplate", "${pvc.name}")];
    let volume = lab.create(lab.call("pvc-1", &by_name)).await.unwrap();
    // A neighbour whose name goes on is not below this prefix.
    lab.put("shared", "claim-of-pvc-10/a").await;
    assert_eq!(lab.create(lab.call("pvc-1", &by_name)).await.unwrap(), volume, "it is made again");
    lab.put("shared", "claim-of-pvc-1/a").await;
    lab.delete(&volume.volume_id).await.unwrap();
    let status = lab.create(lab.call("pvc-1", &by_name)).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    for words in ["claim-of-pvc-1/", "${pv.name}", "adoptPrefix: \"true\""] {
        assert!(status.message().contains(words), "{words}: {status}");
    }
    let adopting = [&by_name[..], &[("adoptPrefix", "true")]].concat();
    let adopted = lab.create(lab.call("pvc-1", &adopting)).await.unwrap();
    assert_eq!(adopted.volume_context["prefix"], "claim-of-pvc-1/");
    assert_eq!(lab.keys("shared").await, ["claim-of-pvc-1/a", "claim-of-pvc-10/a"]);
    // By the volume's name nobody else can have had it.
    let by_volume = [("bucketName", "shared"), ("prefixTemplate", "${pv.name}")];
    lab.put("shared", "pvc-2/a").await;
    lab.create(lab.call("pvc-2", &by_volume)).await.unwrap();
}

#[tokio::test]
async fn the_deletion_of_a_prefix_ends_exactly_at_its_slash() {
    let lab = Lab::start().await;
    lab.make_bucket("shared");
    let purge = [("bucketName", "shared"), ("prefixTemplate", "${pv.name}"), ("onDelete", "purge")];
    let volume = lab.create(lab.call("pvc-1", &purge)).await.unwrap();
    let others = ["pvc-1", "pvc-10/a", "pvc-1-old/a", "pvc-1.txt", "other/pvc-1/a"];
    for key in others.into_iter().chain(["pvc-1/a", "pvc-1/b/c", "pvc-1/ü +%"]) {
        lab.put("shared", key).await;
    }
    lab.upload("shared", "pvc-1/open").await;
    lab.upload("shared", "pvc-10/open").await;
    let purged =
        lab.recorded(&volume.volume_id, Recorded { on_delete: Some(OnDelete::Purge), ..Recorded::default() });
    let purged = purged.await;
    purged.delete(&volume.volume_id).await.unwrap();
    purged.delete(&volume.volume_id).await.unwrap();
    let mut left = lab.keys("shared").await;
    left.sort();
    let mut wanted = others.map(str::to_owned);
    wanted.sort();
    assert_eq!(left, wanted);
    assert_eq!(lab.uploads("shared").await, ["pvc-10/open"]);
}

#[tokio::test]
async fn the_data_of_a_prefix_stays_unless_the_class_said_otherwise() {
    let lab = Lab::start().await;
    lab.make_bucket("shared");
    let volume = lab.create(lab.call("pvc-1", &[("bucketName", "shared")])).await.unwrap();
    lab.put("shared", "pvc-1/a").await;
    lab.delete(&volume.volume_id).await.unwrap();
    assert_eq!(lab.keys("shared").await, ["pvc-1/a"]);
    let fails = Recorded { on_delete: Some(OnDelete::Fail), ..Recorded::default() };
    let fails = lab.recorded(&volume.volume_id, fails).await;
    let status = fails.delete(&volume.volume_id).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    // An id that another cluster made, or that somebody wrote, deletes nothing.
    let place = Place::Prefix { bucket: "shared".into(), prefix: "pvc-1".into() };
    let foreign = VolumeId::new(&Cluster::new("another"), "pvc-1", place).to_string();
    let purge = Recorded { on_delete: Some(OnDelete::Purge), ..Recorded::default() };
    let purge = lab.recorded(&foreign, purge).await;
    let status = purge.delete(&foreign).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert_eq!(lab.keys("shared").await, ["pvc-1/a"]);
}

#[tokio::test]
async fn an_empty_bucket_goes_and_is_gone_when_asked_again() {
    let lab = Lab::start().await;
    let volume = lab.create(lab.call("pvc-1", &[])).await.unwrap();
    lab.delete(&volume.volume_id).await.unwrap();
    assert!(lab.buckets().is_empty());
    lab.delete(&volume.volume_id).await.unwrap();
    lab.delete("a-bucket-that-never-was").await.unwrap();
    lab.delete("No id of ours / at all").await.unwrap();
}

#[tokio::test]
async fn data_is_kept_refused_or_purged_as_the_tag_says() {
    let lab = Lab::start().await;
    for (on_delete, code, left) in
        [("keep", None, true), ("fail", Some(Code::FailedPrecondition), true), ("purge", None, false)]
    {
        let volume = lab.create(lab.call(on_delete, &[("onDelete", on_delete)])).await.unwrap();
        let bucket = &volume.volume_context["bucketName"];
        for n in 0..30 {
            lab.put(bucket, &format!("a/{n}")).await;
        }
        lab.upload(bucket, "open").await;
        let ended = lab.delete(&volume.volume_id).await.map_err(|status| status.code()).err();
        assert_eq!(ended, code, "{on_delete}");
        assert_eq!(lab.buckets().contains(&bucket.as_str().to_owned()), left, "{on_delete}");
        if left {
            assert_eq!(lab.keys(bucket).await.len(), 30, "{on_delete}");
        }
    }
    let page = lab.service.page();
    for line in [
        "mount_s3_csi_controller_volumes_kept_total 1",
        "mount_s3_csi_controller_calls_total{call=\"DeleteVolume\",code=\"OK\"} 2",
        "mount_s3_csi_controller_calls_total{call=\"DeleteVolume\",code=\"FailedPrecondition\"} 1",
        "mount_s3_csi_controller_call_seconds_count{call=\"CreateVolume\"} 3",
    ] {
        assert!(page.lines().any(|it| it == line), "no {line} in:\n{page}");
    }
}

#[tokio::test]
async fn nothing_is_deleted_without_proof_that_it_is_ours() {
    let lab = Lab::start().await;
    let old = "csi-s3-01234567-89ab-cdef-0123-456789abcdef";
    for bucket in ["photos", old] {
        lab.make_bucket(bucket);
        let status = lab.delete(bucket).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("Retain"), "{status}");
    }
    let volume = lab.create(lab.call("pvc-1", &[])).await.unwrap();
    let bucket = volume.volume_context["bucketName"].clone();
    let (ours, theirs) = (Cluster::new(CLUSTER), Cluster::new("another"));
    for (cluster, request) in [(&theirs, "pvc-1"), (&ours, "pvc-2")] {
        let id = VolumeId::new(cluster, request, Place::Bucket(bucket.clone())).to_string();
        assert_eq!(lab.delete(&id).await.unwrap_err().code(), Code::FailedPrecondition);
    }
    assert_eq!(lab.buckets().len(), 3);
    // What release 2.2 made goes with its PersistentVolume.
    let provisioned = Recorded { provisioned_by_us: true, name: "pvc-old".into(), ..Recorded::default() };
    let lab_with_volume = lab.recorded(old, provisioned).await;
    lab_with_volume.delete(old).await.unwrap();
    assert!(!lab.buckets().contains(&old.to_owned()));
}

#[tokio::test]
async fn a_store_that_is_away_is_unavailable_and_nothing_is_taken_for_done() {
    let lab = Lab::start().await;
    let volume = lab.create(lab.call("pvc-1", &[])).await.unwrap();
    for operation in ["GetBucketTagging", "CreateBucket", "DeleteBucket"] {
        lab.server().faults().clear();
        lab.server().faults().add(Fault::on(operation, Effect::SlowDown { retry_after: None }));
        let status = match operation {
            "DeleteBucket" => lab.delete(&volume.volume_id).await.unwrap_err(),
            _ => lab.create(lab.call("pvc-2", &[])).await.map(drop).unwrap_err(),
        };
        assert_eq!(status.code(), Code::Unavailable, "{operation}: {status}");
        assert!(status.message().contains("503"), "{status}");
    }
    lab.server().faults().clear();
    lab.create(lab.call("pvc-2", &[])).await.unwrap();
    lab.delete(&volume.volume_id).await.unwrap();
    assert_eq!(lab.buckets().len(), 1);
}

#[tokio::test]
async fn keys_of_the_call_are_used_and_wrong_ones_told_apart() {
    let lab = Lab::start().await;
    let with = |key: &str, secret: &str| {
        let mut call = lab.call("pvc-1", &[]);
        call.secrets = map(&[("access_key_id", key), ("secret_access_key", secret)]);
        call
    };
    for (call, code) in [
        (with("UNKNOWN", HUSH), Code::Unauthenticated),
        (with("test", HUSH), Code::Unauthenticated),
        (with("test", ""), Code::InvalidArgument),
        (with("", HUSH), Code::InvalidArgument),
    ] {
        let status = lab.create(call).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains("Secret") && !status.message().contains(HUSH), "{status}");
    }
    let volume = lab.create(with("test", "testsecret")).await.unwrap();
    assert_eq!(volume.volume_context["authenticationSource"], "secret");
    let denied = Effect::Error { status: 403, code: "AccessDenied".into() };
    lab.server().faults().add(Fault::on("DeleteBucket", denied));
    assert_eq!(lab.delete(&volume.volume_id).await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn another_store_is_used_only_if_an_administrator_allows_it() {
    let (lab, other) = (Lab::start().await, Lab::start().await);
    let endpoint = other.server().endpoint();
    let status = lab.create(lab.call("pvc-1", &[("endpointUrl", &endpoint)])).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("s3.allowedEndpoints"), "{status}");
    let both = lab.allowing(&endpoint).await;
    let volume = both.create(both.call("pvc-1", &[("endpointUrl", &endpoint)])).await.unwrap();
    assert_eq!(volume.volume_context["endpointUrl"], endpoint);
    assert_eq!((lab.buckets().len(), other.buckets().len()), (0, 1));
    // No PersistentVolume says where it is.
    both.delete(&volume.volume_id).await.unwrap();
    assert!(other.buckets().is_empty());
}

#[tokio::test]
async fn a_region_goes_to_the_node_and_to_the_store() {
    let lab = Lab::start().await;
    let volume = lab.create(lab.call("pvc-1", &[("region", "eu-west-1")])).await.unwrap();
    assert_eq!(volume.volume_context["region"], "eu-west-1");
}

/// Goal: a class that names the wrong region, or none, works as far as the store helps; the node, and later calls, then ask in the right one.
#[tokio::test]
async fn a_bucket_in_another_region_is_made_mounted_and_deleted_there() {
    let lab = Lab::start().await;
    lab.make_bucket("shared");
    let moved = |operation: &str| {
        lab.server().faults().clear();
        lab.server()
            .faults()
            .add(Fault::on(operation, Effect::Redirect { region: "eu-west-3".into() }).nth(1));
    };
    for (class, asks) in [
        (&[("region", "eu-west-1"), ("onDelete", "purge")][..], "GetBucketTagging"),
        (
            &[("bucketName", "shared"), ("prefixTemplate", "${pv.name}"), ("onDelete", "purge")],
            "ListObjectsV2",
        ),
    ] {
        lab.create(lab.call("pvc-1", class)).await.unwrap();
        moved(asks);
        let volume = lab.create(lab.call("pvc-1", class)).await.unwrap();
        assert_eq!(volume.volume_context["region"], "eu-west-3", "the node asks there");
        let bucket = volume.volume_context["bucketName"].clone();
        lab.put(&bucket, "pvc-1/a").await;

        moved(asks);
        let call = ValidateVolumeCapabilitiesRequest {
            volume_id: volume.volume_id.clone(),
            volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter)],
            ..Default::default()
        };
        let confirmed = lab.controller().validate_volume_capabilities(call).await.unwrap().into_inner();
        assert!(confirmed.confirmed.is_some(), "{confirmed:?}");

        // Its PersistentVolume may be of a release that did not write the region.
        moved(asks);
        let purge = Recorded { on_delete: Some(OnDelete::Purge), ..Recorded::default() };
        lab.recorded(&volume.volume_id, purge).await.delete(&volume.volume_id).await.unwrap();
        assert_eq!(lab.server().faults().fired(), 1);
        lab.server().faults().clear();
        assert!(bucket != "shared" || lab.keys("shared").await.is_empty());
    }
    assert_eq!(lab.buckets(), ["shared"]);
    // Kept data of a prefix, too, is looked for where it is.
    let class = [("bucketName", "shared"), ("prefixTemplate", "${pv.name}")];
    let volume = lab.create(lab.call("pvc-2", &class)).await.unwrap();
    moved("ListObjectsV2");
    lab.delete(&volume.volume_id).await.unwrap();
    let page = lab.service.page();
    assert!(page.contains("mount_s3_csi_controller_volumes_kept_total 0"), "{page}");
}

#[tokio::test]
async fn the_identity_of_workloads_goes_to_the_node() {
    let lab = Lab::start().await;
    let volume = lab.create(lab.call("pvc-1", &[("authenticationSource", "pod")])).await.unwrap();
    assert_eq!(volume.volume_context["authenticationSource"], "pod");
}

#[tokio::test]
async fn what_is_wrong_with_a_call_is_named_and_nothing_is_made() {
    let lab = Lab::start().await;
    type Spoil = fn(&mut CreateVolumeRequest);
    let cases: [(&str, Spoil); 14] = [
        ("name is missing", |c| c.name.clear()),
        ("name is longer", |c| c.name = "n".repeat(129)),
        ("volume_capabilities", |c| c.volume_capabilities.clear()),
        ("accessModes", |c| c.volume_capabilities[0].access_mode = None),
        ("accessModes", |c| c.volume_capabilities.push(capability(Mode::Unknown))),
        ("volumeMode: Filesystem", |c| {
            c.volume_capabilities[0].access_type = Some(AccessType::Block(BlockVolume {}));
        }),
        ("capacity_range", |c| {
            c.capacity_range = Some(CapacityRange { required_bytes: 2, limit_bytes: 1 });
        }),
        ("volume_content_source", |c| c.volume_content_source = Some(VolumeContentSource::default())),
        ("unknown: did you mean bucketName", |c| drop(c.parameters.insert("bucketname".into(), "x".into()))),
        ("belong together", |c| {
            c.parameters.insert("csi.storage.k8s.io/node-publish-secret-name".into(), "x".into());
        }),
        ("belong together", |c| {
            c.parameters.insert("csi.storage.k8s.io/provisioner-secret-namespace".into(), "x".into());
        }),
        ("access_key_id is missing", |c| drop(c.secrets.insert("secret_access_key".into(), HUSH.into()))),
        ("--extra-create-metadata", |c| {
            c.parameters = map(&[("bucketNameTemplate", "${pvc.name}")]);
        }),
        ("onDelete", |c| drop(c.parameters.insert("onDelete".into(), "maybe".into()))),
    ];
    for (words, spoil) in cases {
        let mut call = lab.call("pvc-1", &[]);
        spoil(&mut call);
        let status = lab.create(call).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{words}: {status}");
        assert!(status.message().contains(words) && !status.message().contains(HUSH), "{words}: {status}");
    }
    let status = lab.delete("").await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(lab.buckets().is_empty());
    assert_eq!(lab.server().requests().total(), 0, "no request was sent for any of them");
}

#[tokio::test]
async fn capabilities_are_confirmed_of_volumes_that_are_there() {
    let lab = Lab::start().await;
    lab.make_bucket("shared");
    let bucket = lab.create(lab.call("pvc-1", &[])).await.unwrap();
    let prefix = lab.create(lab.call("pvc-2", &[("bucketName", "shared")])).await.unwrap();
    let ask = async |id: &str, capabilities| {
        let call = ValidateVolumeCapabilitiesRequest {
            volume_id: id.to_owned(),
            volume_capabilities: capabilities,
            ..Default::default()
        };
        lab.controller().validate_volume_capabilities(call).await.map(|it| it.into_inner())
    };
    let good = vec![capability(Mode::MultiNodeMultiWriter), capability(Mode::SingleNodeWriter)];
    for id in [&bucket.volume_id, &prefix.volume_id] {
        let confirmed = ask(id, good.clone()).await.unwrap().confirmed.unwrap();
        assert_eq!(confirmed.volume_capabilities, good);
        let mut block = capability(Mode::MultiNodeMultiWriter);
        block.access_type = Some(AccessType::Block(BlockVolume {}));
        let refused = ask(id, vec![block]).await.unwrap();
        assert!(refused.confirmed.is_none() && refused.message.contains("Filesystem"), "{refused:?}");
        assert_eq!(ask(id, Vec::new()).await.unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!(ask("", good.clone()).await.unwrap_err().code(), Code::InvalidArgument);
    for unknown in ["no-such-bucket", "b-0123456789-0123456789/no-such-bucket", "odd id"] {
        assert_eq!(ask(unknown, good.clone()).await.unwrap_err().code(), Code::NotFound, "{unknown}");
    }
}

#[tokio::test]
async fn until_the_api_server_answered_calls_are_told_to_come_again() {
    let lab = Lab::before_the_api_server_answers().await;
    let status = lab.create(lab.call("pvc-1", &[])).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let id = VolumeId::new(&Cluster::new(CLUSTER), "pvc-1", Place::Bucket("bucket".into())).to_string();
    assert_eq!(lab.delete(&id).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn data_of_an_unseen_volume_is_deleted_or_its_deletion_waits() {
    let lab = Lab::start().await;
    lab.make_bucket("shared");
    let api = Api::start();
    let lab = lab.with_api(&api.client()).await;
    api.watch_broke().await;
    for (on_delete, code) in [("purge", None), ("fail", Some(Code::FailedPrecondition))] {
        let class = [("bucketName", "shared"), ("prefixTemplate", "${pv.name}"), ("onDelete", on_delete)];
        let volume = lab.create(lab.call(on_delete, &class)).await.unwrap();
        api.put(on_delete, &volume);
        let key = format!("{on_delete}/a");
        lab.put("shared", &key).await;
        api.lists(false);
        let status = lab.delete(&volume.volume_id).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert_eq!(lab.keys("shared").await, [key.as_str()]);
        api.lists(true);
        assert_eq!(lab.delete(&volume.volume_id).await.err().map(|it| it.code()), code, "{on_delete}");
        assert_eq!(lab.keys("shared").await.is_empty(), code.is_none(), "{on_delete}");
    }
    // A volume that never got a PersistentVolume.
    let class = [("bucketName", "shared"), ("prefixTemplate", "${pv.name}"), ("onDelete", "purge")];
    let volume = lab.create(lab.call("none", &class)).await.unwrap();
    lab.delete(&volume.volume_id).await.unwrap();
}

#[tokio::test]
async fn secrets_stand_in_no_answer() {
    let lab = Lab::start().await;
    let secrets = map(&[("access_key_id", "test"), ("secret_access_key", HUSH), ("session_token", HUSH)]);
    let mut call = lab.call("pvc-1", &[]);
    call.secrets = secrets.clone();
    let status = lab.create(call).await.unwrap_err();
    assert!(!format!("{status:?}").contains(HUSH), "{status:?}");
    let call = DeleteVolumeRequest { volume_id: "photos".into(), secrets };
    lab.make_bucket("photos");
    let status = lab.controller().delete_volume(call).await.unwrap_err();
    assert!(!format!("{status:?}").contains(HUSH), "{status:?}");
}
