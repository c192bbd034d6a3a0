//! Volumes whose class gives them the same name of a bucket, on stores that answer CreateBucket with 200 to the bucket's owner.

use csi::proto::csi::CreateVolumeRequest;
use s3server::{Effect, Fault};
use tonic::Code;

use crate::provisioner::Lab;

/// A call for the claim `data` of the namespace `team-a` by a class whose template does not tell its volumes apart.
fn alike(lab: &Lab, name: &str, more: &[(&str, &str)]) -> CreateVolumeRequest {
    let mut call = lab.call(name, more);
    call.parameters.insert("bucketNameTemplate".into(), "${pvc.namespace}-${pvc.name}".into());
    call.parameters.insert("csi.storage.k8s.io/pvc/name".into(), "data".into());
    call
}

/// Goal: no claim's deletion takes the data of another. AWS S3 in us-east-1, Ceph RGW and others answer CreateBucket so.
#[tokio::test]
async fn of_two_claims_with_one_bucket_name_at_once_one_gets_the_bucket() {
    let lab = Lab::start().await;
    let faults = lab.server().faults();
    faults.add(Fault::on("CreateBucket", Effect::OwnBucketAgain));
    // Both calls look before either makes the bucket.
    faults.add(Fault::on("GetBucketTagging", Effect::Delay { for_ms: 300 }).times(2));
    faults.add(Fault::on("CreateBucket", Effect::Delay { for_ms: 300 }));
    let call = |name: &str| alike(&lab, name, &[("onDelete", "purge")]);
    let (one, two) = tokio::join!(lab.create(call("pvc-1")), lab.create(call("pvc-2")));
    let (volume, refused, name) = match (one, two) {
        (Ok(volume), Err(refused)) => (volume, refused, "pvc-2"),
        (Err(refused), Ok(volume)) => (volume, refused, "pvc-1"),
        both => panic!("not exactly one has the bucket: {both:?}"),
    };
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    let status = lab.create(call(name)).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert_eq!(lab.buckets(), ["team-a-data"]);

    // A deletion and a creation of the same bucket do not meet, either.
    faults.add(Fault::on("DeleteBucket", Effect::Delay { for_ms: 300 }));
    let (deleted, made) = tokio::join!(lab.delete(&volume.volume_id), async {
        testkit::until_async("it is being deleted", || lab.server().requests().count("DeleteBucket") > 0)
            .await;
        lab.create(call(name)).await
    });
    deleted.unwrap();
    assert_eq!(made.unwrap_err().code(), Code::Aborted);
    lab.create(call(name)).await.unwrap();
}

/// The case: the tags belong to another cluster, whose driver took the bucket for new at the same moment.
#[tokio::test]
async fn a_bucket_whose_tags_another_wrote_over_is_not_ours_and_is_left() {
    let lab = Lab::start().await;
    lab.server().faults().add(Fault::on("PutBucketTagging", Effect::Hold).nth(1));
    let bucket = "team-a-data";
    let (made, ()) = tokio::join!(lab.create(alike(&lab, "pvc-1", &[])), async {
        testkit::until_async("the bucket is tagged", || lab.server().faults().fired() > 0).await;
        while lab.tags(bucket).await.is_empty() {}
        let mut tags = lab.tags(bucket).await;
        tags.insert("s3.csi.scality.com/cluster".into(), "another".into());
        lab.tag(bucket, &tags).await;
        lab.server().faults().release();
    });
    let status = made.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert!(status.message().contains("another cluster"), "{status}");
    assert_eq!(lab.buckets(), [bucket]);
}
