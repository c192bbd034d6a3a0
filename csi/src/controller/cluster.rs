//! The mark that distinguishes volumes of this cluster from others. Enters: the cluster's id. Leaves: digests that no other cluster
//! computes.
//!
//! Never here: a secret. The digests protect against mistakes (two clusters on one account, a volume copied by hand). Users with the
//! right to write PersistentVolumes can do everything with them anyway.

use crate::contract::digest;

/// Number of characters of [`Cluster::mark`].
const MARK: usize = 16;

/// A cluster, identified by the UID of its namespace `kube-system`, which never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    id: String,
}

impl Cluster {
    /// A cluster with this id.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned() }
    }

    /// The cluster's name in tags: 16 hexadecimal digits, which do not reveal the id.
    #[must_use]
    pub fn mark(&self) -> String {
        self.digest(&["cluster"], MARK)
    }

    /// The first `digits` (at most 56) of a digest of the parts, salted with the cluster's id: hexadecimal digits in lower case.
    #[must_use]
    pub fn digest(&self, parts: &[&str], digits: usize) -> String {
        let mut salted = vec![self.id.as_str()];
        salted.extend(parts);
        let mut hex = digest(&salted);
        hex.truncate(digits);
        hex
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_clusters_compute_the_same() {
        let (one, other) = (Cluster::new("uid-1"), Cluster::new("uid-2"));
        assert_ne!(one.mark(), other.mark());
        assert_ne!(one.digest(&["pvc-1"], 10), other.digest(&["pvc-1"], 10));
        assert_eq!(one.digest(&["pvc-1"], 10), Cluster::new("uid-1").digest(&["pvc-1"], 10));
        assert_eq!((one.mark().len(), one.digest(&["a"], 10).len()), (16, 10));
        assert!(!one.mark().contains("uid"));
    }
}
