//! Advice to the author of a volume after the store refused it. Enters: the engine's message, the source of its credentials. Leaves: the
//! field to check, as the end of a sentence.
//!
//! The engine knows buckets and credentials, but not the fields of a volume that name them.

use super::credentials::AuthenticationSource;
use crate::contract::volume;

/// S3's codes for credentials that it does not know, that are invalid, or that may not use the bucket.
const OF_KEYS: [&str; 7] = [
    "AccessDenied",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "NoCredentials",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
];

/// The field to check; `None` if the message does not name a cause in the volume.
#[must_use]
pub fn field_for(words: &str, volume: &str, source: AuthenticationSource) -> Option<String> {
    if words.contains("InvalidBucketName") {
        return Some(format!(
            "{} in spec.csi.volumeAttributes of PersistentVolume {volume} is not a name that the store takes: 3 to 63 lower-case letters, \
             digits, '-' and '.'",
            volume::BUCKET_NAME
        ));
    }
    if words.contains("NoSuchBucket") {
        return Some(format!(
            "set {} in spec.csi.volumeAttributes of PersistentVolume {volume} to a bucket that exists",
            volume::BUCKET_NAME
        ));
    }
    if !OF_KEYS.iter().any(|code| words.contains(code)) {
        return None;
    }
    Some(match source {
        AuthenticationSource::Secret => {
            format!("look at the Secret that nodePublishSecretRef of PersistentVolume {volume} names")
        }
        AuthenticationSource::Pod => format!(
            "the keys are those of the workload's service account: look at its annotation {}, at the role's trust in that account, and at \
             the token service (podIdentity.stsEndpointUrl of the chart). Without that annotation they are of the agent: look at the \
             account's association there (podIdentity.agentUrl)",
            volume::ROLE_ANNOTATIONS[0]
        ),
        AuthenticationSource::Driver => format!(
            "the keys are the driver's: look at the Secret that s3CredentialSecret.name of the chart names, or give \
             PersistentVolume {volume} its own by nodePublishSecretRef"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_that_is_not_there_leads_to_the_attribute() {
        let words = "the engine could not mount: bucket x: 404 NoSuchBucket";
        let field = field_for(words, "pv-1", AuthenticationSource::Secret).unwrap();
        assert!(
            field.contains("bucketName in spec.csi.volumeAttributes of PersistentVolume pv-1"),
            "{field}"
        );
    }

    #[test]
    fn a_name_that_the_store_does_not_take_leads_to_the_attribute() {
        let words = "the engine could not mount: bucket Not_A_Bucket: 400 InvalidBucketName";
        let field = field_for(words, "pv-1", AuthenticationSource::Driver).unwrap();
        assert!(
            field.starts_with("bucketName in spec.csi.volumeAttributes of PersistentVolume pv-1"),
            "{field}"
        );
        assert!(field.contains("lower-case"), "{field}");
    }

    #[test]
    fn refused_keys_lead_to_the_secret_that_holds_them() {
        for code in OF_KEYS {
            let words = format!("403 {code}");
            let own = field_for(&words, "pv-1", AuthenticationSource::Secret).unwrap();
            assert!(own.contains("nodePublishSecretRef of PersistentVolume pv-1"), "{own}");
            assert!(!own.contains("chart"), "{own}");
            let of_pod = field_for(words.as_str(), "pv-1", AuthenticationSource::Pod).unwrap();
            assert!(of_pod.contains("role-arn") && of_pod.contains("podIdentity.stsEndpointUrl"), "{of_pod}");
            let driver = field_for(&words, "pv-1", AuthenticationSource::Driver).unwrap();
            assert!(driver.contains("s3CredentialSecret.name"), "{driver}");
        }
    }

    #[test]
    fn what_is_nobody_s_field_gets_no_advice() {
        for words in ["no Mountpoint Pod yet", "Network: connection refused", "503 SlowDown"] {
            assert_eq!(field_for(words, "pv-1", AuthenticationSource::Driver), None, "{words}");
        }
    }
}
