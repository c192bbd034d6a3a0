//! The contract between two processes: the attachment, the names of Mountpoint Pods, the files between node and pod, the message with
//! the device. Enters: plain values only. Leaves: types, names and paths, which golden tests check.
//!
//! Never here: a decision about a mount, a call to the API server, a log line. The formats are those of release 2.2, so either side
//! may be upgraded first. New fields are optional for a reader, and old readers ignore them.

pub mod attachment;
pub mod cache;
pub mod comm;
pub mod engines_pod;
pub mod hold;
pub mod lease;
pub mod log;
pub mod message;
pub mod pod;
pub mod quantity;
pub mod reason;
pub mod restart;
pub mod rights;
pub mod stage;
pub mod target;
pub mod upgrade;
pub mod volume;

/// The driver's name, and the prefix of its labels, annotations and directories.
pub const DRIVER: &str = "s3.csi.scality.com";

/// The release of this process, in the form of the chart and of the labels of Mountpoint Pods.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// SHA-224 of the parts: 56 hexadecimal digits, which fit a label, and a name with a prefix. The length precedes each part, so
/// different lists of parts have different digests.
pub(crate) fn digest(parts: &[&str]) -> String {
    use sha2::Digest as _;
    let mut sha = sha2::Sha224::new();
    for part in parts {
        sha.update((part.len() as u64).to_be_bytes());
        sha.update(part.as_bytes());
    }
    base16ct::lower::encode_string(&sha.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_only_join_alike_have_different_digests() {
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
        assert_eq!(digest(&["a"]).len(), 56);
    }
}
