//! Parameters of a StorageClass, and the answers to mistakes in them.

use super::*;
use crate::error::ErrorKind;

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

const CLAIM: [(&str, &str); 3] = [(PVC_NAME, "data"), (PVC_NAMESPACE, "team-a"), (PV_NAME, "pvc-1")];

fn chosen(pairs: &[(&str, &str)]) -> Result<Chosen> {
    let given = map(&[pairs, &CLAIM].concat());
    let cluster = Cluster::new("uid-1");
    Parameters::parse(&given)?.place(&cluster, "pvc-1", &Values::new(&cluster, "pvc-1", &given))
}

#[test]
fn without_parameters_each_claim_has_a_bucket_that_is_kept() {
    let parameters = Parameters::parse(&HashMap::new()).unwrap();
    assert_eq!(parameters.on_delete, OnDelete::Keep);
    let chosen = chosen(&[]).unwrap();
    assert!(chosen.is_digest && chosen.place.bucket().starts_with("csi-s3-"), "{chosen:?}");
}

#[test]
fn a_template_names_the_bucket_of_each_claim() {
    let bucket = |template| chosen(&[(BUCKET_NAME_TEMPLATE, template)]).unwrap();
    let plain = bucket("${pvc.namespace}-${pvc.name}");
    assert_eq!(
        plain,
        Chosen { place: Place::Bucket("team-a-data".into()), is_digest: false, must_be_empty: false }
    );
    let hashed = bucket("${pvc.name}-${hash}");
    assert!(hashed.is_digest && hashed.place.bucket().starts_with("data-"), "{hashed:?}");
    let long = bucket(&format!("{}-${{pvc.name}}", "n".repeat(70)));
    assert!(long.is_digest && long.place.bucket().len() == 63, "{long:?}");
}

#[test]
fn one_bucket_has_a_prefix_for_each_claim() {
    let prefix =
        |pairs: &[(&str, &str)]| chosen(&[&[(BUCKET_NAME, "shared")], pairs].concat()).unwrap().place;
    let place = |prefix: &str| Place::Prefix { bucket: "shared".into(), prefix: prefix.into() };
    assert_eq!(prefix(&[]), place("pvc-1"));
    assert_eq!(prefix(&[(PREFIX_TEMPLATE, "${pvc.namespace}/${pvc.name}/")]), place("team-a/data"));
    let long = prefix(&[(PREFIX_TEMPLATE, &format!("{}/${{pv.name}}", "n".repeat(200)))]);
    let Place::Prefix { bucket, prefix } = &long else { panic!("{long:?}") };
    assert!(prefix.len() <= prefix_max(bucket), "{long:?}");
}

#[test]
fn a_prefix_that_two_claims_may_get_must_be_empty_unless_it_is_adopted() {
    let empty =
        |pairs: &[(&str, &str)]| chosen(&[&[(BUCKET_NAME, "shared")], pairs].concat()).unwrap().must_be_empty;
    assert!(empty(&[(PREFIX_TEMPLATE, "${pvc.namespace}/${pvc.name}")]));
    assert!(empty(&[(PREFIX_TEMPLATE, "fixed"), (ADOPT_PREFIX, "false")]));
    assert!(!empty(&[(PREFIX_TEMPLATE, "${pvc.namespace}/${pvc.name}"), (ADOPT_PREFIX, "true")]));
    for unique in ["${pv.name}", "${pvc.name}-${hash}", &format!("{}/${{pvc.name}}", "n".repeat(200))] {
        assert!(!empty(&[(PREFIX_TEMPLATE, unique)]), "{unique}");
    }
    assert!(!empty(&[]));
    assert!(!chosen(&[(BUCKET_NAME_TEMPLATE, "${pvc.name}")]).unwrap().must_be_empty);
}

#[test]
fn tags_are_filled_in_and_checked() {
    let given = map(&[&[(TAGS, "team=${pvc.namespace}, cost = 42 ,empty=")][..], &CLAIM].concat());
    let values = Values::new(&Cluster::new("uid-1"), "pvc-1", &given);
    let tags = Parameters::parse(&given).unwrap().tags(&values).unwrap();
    let wanted = [("cost", "42"), ("empty", ""), ("team", "team-a")];
    assert!(tags.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(wanted), "{tags:?}");
}

#[test]
fn the_other_settings_are_read() {
    let given = map(&[(REGION, "eu-west-3"), (ENDPOINT_URL, "https://b.test/"), (ON_DELETE, "purge")]);
    let parameters = Parameters::parse(&given).unwrap();
    assert_eq!(parameters.region.as_deref(), Some("eu-west-3"));
    assert_eq!(parameters.endpoint_url.as_deref(), Some("https://b.test"));
    assert_eq!(parameters.on_delete, OnDelete::Purge);
    assert!(!parameters.of_pod);
    let of = |source| Parameters::parse(&map(&[(AUTHENTICATION_SOURCE, source)])).unwrap();
    assert!(of("pod").of_pod && !of("driver").of_pod);
}

#[test]
fn what_is_wrong_is_named_with_what_to_write() {
    let secret = "csi.storage.k8s.io/provisioner-secret-name";
    for (pairs, words) in [
        (&[("bucketnametemplate", "x")][..], "did you mean bucketNameTemplate?"),
        (&[("bucketNamePrefix", "x")], "write bucketNameTemplate"),
        (&[("mountOptions", "x")], "a field of the StorageClass"),
        (&[("color\n", "x")], "this driver knows bucketNameTemplate, "),
        (&[(BUCKET_NAME, "shared"), (BUCKET_NAME_TEMPLATE, "x")], "exclude each other"),
        (&[(PREFIX_TEMPLATE, "x")], "needs bucketName"),
        (&[(ADOPT_PREFIX, "true")], "needs bucketName"),
        (&[(BUCKET_NAME, "shared"), (ADOPT_PREFIX, "yes")], "neither \"true\" nor \"false\""),
        (&[(BUCKET_NAME, "No_Bucket")], "small letters"),
        (&[(BUCKET_NAME, "arn:aws:s3:eu-west-1:123456789012:accesspoint/ap")], "small letters"),
        (&[(BUCKET_NAME_TEMPLATE, "${pvc.name}_x")], "makes the bucket's name \"data_x\""),
        (&[(BUCKET_NAME_TEMPLATE, "${pvc.uid}")], "there is no variable ${pvc.uid}"),
        (&[(BUCKET_NAME, "shared"), (PREFIX_TEMPLATE, "/")], "whole bucket"),
        (&[(BUCKET_NAME, "shared"), (PREFIX_TEMPLATE, "/a")], "empty name"),
        (&[(BUCKET_NAME, "shared"), (PREFIX_TEMPLATE, "a//b")], "empty name"),
        (&[(BUCKET_NAME, "shared"), (PREFIX_TEMPLATE, "a/../b")], "'..'"),
        (&[(BUCKET_NAME, "shared"), (PREFIX_TEMPLATE, "ä")], "letters"),
        (&[(BUCKET_NAME, "shared"), (PREFIX_TEMPLATE, "${pvc.name}"), (ON_DELETE, "purge")], "${pv.name}"),
        (&[(ON_DELETE, "delete")], "none of keep, fail, purge"),
        (&[(AUTHENTICATION_SOURCE, "secret")], "name that by csi.storage.k8s.io/node-publish-secret-name"),
        (&[("caBundleConfigMap", "mine")], "tls.caCertConfigMap"),
        (&[(REGION, "eu west")], "not the name of a region"),
        (&[(TAGS, "novalue")], "has no '='"),
        (&[(TAGS, "a=1,a=2")], "twice"),
        (&[(TAGS, "aws:x=1")], "reserved"),
        (&[(TAGS, "s3.csi.scality.com/name=1")], "reserved"),
        (&[(TAGS, "a&b=1")], "no tag can have"),
        (&[(secret, "x")], "belong together"),
    ] {
        let error = chosen(pairs).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument, "{pairs:?}");
        let said = error.to_string();
        assert!(said.contains(words) && !said.contains('\n'), "{pairs:?}: {said}");
    }
    let given = map(&[(TAGS, "a=b&c")]);
    let values = Values::new(&Cluster::new("uid-1"), "pvc-1", &given);
    assert!(Parameters::parse(&given).unwrap().tags(&values).unwrap_err().to_string().contains("\"a\""));
}

#[test]
fn parameters_of_the_side_car_are_left_alone() {
    let mut given = map(&CLAIM);
    for (name, namespace) in SECRETS {
        given.insert(name.into(), "n".into());
        given.insert(namespace.into(), "ns".into());
    }
    assert!(Parameters::parse(&given).is_ok());
}
