//! A check whether nodes accept a volume, before the reconciler creates anything for it. Enters: attributes and mount options of a
//! PersistentVolume. Leaves: the sentence with which the driver of each node would refuse the volume.
//!
//! Never here: facts of one node or of the chart, such as credentials and allowed stores.

use std::collections::{BTreeMap, HashMap};

use super::credentials::AuthenticationSource;
use super::options::{Inputs, MountOptions};
use super::publish::Attributes;
use crate::contract::cache::Cache;

/// A bucket name for the options of a volume whose attributes are unknown.
const ANY_BUCKET: &str = "bucket";

/// Checks a volume like NodePublishVolume does. `attributes` is `None` for an inline volume, of which only the options are checked.
///
/// # Errors
/// The sentence, which names the attribute or option and the volume.
pub fn check(
    volume: &str,
    attributes: Option<&BTreeMap<String, String>>,
    options: &[String],
    fs_group: Option<u32>,
) -> Result<(), String> {
    let inline = attributes.is_none();
    let read = |attributes: &BTreeMap<String, String>| {
        let context: HashMap<_, _> = attributes.clone().into_iter().collect();
        Attributes::read(&context, volume, inline).map_err(|error| error.to_string())
    };
    let cache = Cache::read(|key| attributes?.get(key).map(String::as_str), options)?;
    let attributes = attributes.map(read).transpose()?;
    let attributes = attributes.as_ref();
    let inputs = Inputs {
        no_stage: None,
        // A setting of the nodes, which the reconciler checks by itself.
        keeps_stages: true,
        volume,
        bucket: attributes.map_or(ANY_BUCKET, |it| &it.bucket),
        prefix: attributes.and_then(|it| it.prefix.as_deref()),
        options,
        inline,
        cache: cache.as_ref(),
        fs_group,
        read_only: false,
        source: attributes.map_or(AuthenticationSource::Driver, |it| it.authentication_source),
        kubernetes: None,
    };
    MountOptions::new(&inputs).map(|_| ()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(attributes: &[(&str, &str)], options: &[&str]) -> Result<(), String> {
        let attributes = attributes.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        let options: Vec<_> = options.iter().map(|&it| it.to_owned()).collect();
        check("pv-1", Some(&attributes), &options, Some(1000))
    }

    #[test]
    fn a_volume_that_every_node_refuses_is_refused_in_the_same_words() {
        let good = [("bucketName", "bucket"), ("prefix", "team/")];
        assert_eq!(checked(&good, &["allow-delete", "region=eu-west-1", "cache /x"]), Ok(()));
        for (attributes, options, words) in [
            (&good[..], &["alow-delete"][..], "did you mean 'allow-delete'"),
            (&good, &["uid=none"], "mount-s3 refuses a mount option"),
            (&good, &["otlp-endpoint=0"], "mount-s3 refuses a mount option: --otlp-endpoint"),
            (&good, &["stage=/x"], "is not allowed"),
            (&good, &["prefix=other/"], "beside the attribute prefix"),
            (&[], &[], "bucketName is missing"),
            (&[("bucketName", "b/x")], &[], "folder of a bucket"),
            (&[("bucketName", "bucket"), ("prefix", "team")], &[], "must end in '/'"),
            (&[("bucketName", "bucket"), ("authenticationSource", "role")], &[], "authenticationSource"),
            (&[("bucketName", "bucket"), ("mountpointEnv.AWS_PROFILE", "x")], &[], "AWS_PROFILE"),
            (&[("bucketName", "bucket"), ("region", "a.b/")], &[], "region"),
        ] {
            let refusal = checked(attributes, options).unwrap_err();
            assert!(refusal.contains(words), "{words}: {refusal}");
        }
    }

    #[test]
    fn of_a_volume_in_a_pod_the_options_are_checked() {
        let options = |text: &str| [text.to_owned()];
        assert_eq!(check("csi-1", None, &options("allow-delete"), None), Ok(()));
        let refusal = check("csi-1", None, &options("alow-delete"), None).unwrap_err();
        assert!(refusal.contains("in the pod's manifest"), "{refusal}");
    }
}
