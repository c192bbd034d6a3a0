//! The tags that the driver writes on a bucket that it created. Enters: the facts of a volume. Leaves: tags; and from tags those
//! facts. Pure.

use mountpoint::s3::Tags;

use super::cluster::Cluster;
use super::on_delete::OnDelete;

/// The prefix of the driver's tag keys.
pub const PREFIX: &str = "s3.csi.scality.com/";
const NAME: &str = "s3.csi.scality.com/name";
const CLUSTER: &str = "s3.csi.scality.com/cluster";
const CAPACITY: &str = "s3.csi.scality.com/capacity-bytes";
const ON_DELETE: &str = "s3.csi.scality.com/on-delete";

/// The facts in the driver's tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The name of the request, which is also the PersistentVolume's.
    pub name: String,
    /// The cluster's [`Cluster::mark`].
    pub cluster: String,
    /// The capacity in bytes; recorded, never enforced.
    pub capacity_bytes: Option<i64>,
    /// The fate of the data. An administrator may change this tag.
    pub on_delete: Option<OnDelete>,
}

impl Mark {
    /// The mark of a new volume.
    #[must_use]
    pub fn new(cluster: &Cluster, request: &str, capacity_bytes: i64, on_delete: OnDelete) -> Self {
        Self {
            name: tag_text(cluster, request),
            cluster: cluster.mark(),
            capacity_bytes: Some(capacity_bytes),
            on_delete: Some(on_delete),
        }
    }

    /// Parses tags; `None` if this driver did not write them.
    #[must_use]
    pub fn of(tags: &Tags) -> Option<Self> {
        Some(Self {
            name: tags.get(NAME)?.clone(),
            cluster: tags.get(CLUSTER)?.clone(),
            capacity_bytes: tags.get(CAPACITY).and_then(|it| it.parse().ok()),
            on_delete: tags.get(ON_DELETE).and_then(|it| OnDelete::parse(it)),
        })
    }

    /// The mark as tags, together with the class's tags.
    #[must_use]
    pub fn tags(&self, of_class: Tags) -> Tags {
        let mut tags = of_class;
        let mut set = |key: &str, value: String| tags.insert(key.to_owned(), value);
        set(NAME, self.name.clone());
        set(CLUSTER, self.cluster.clone());
        if let Some(capacity) = self.capacity_bytes {
            set(CAPACITY, capacity.to_string());
        }
        if let Some(on_delete) = self.on_delete {
            set(ON_DELETE, on_delete.to_string());
        }
        tags
    }

    /// Whether this cluster wrote the mark for the request of this name.
    #[must_use]
    pub fn is_of(&self, cluster: &Cluster, request: &str) -> bool {
        self.cluster == cluster.mark() && self.name == tag_text(cluster, request)
    }
}

/// The request's name as a tag's value; a digest if a tag can't contain the name, which Kubernetes' names never need.
fn tag_text(cluster: &Cluster, request: &str) -> String {
    let fits = request.chars().count() <= 200
        && request.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    if fits { request.to_owned() } else { format!("sha224:{}", cluster.digest(&["tag", request], 56)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written_beside_the_tags_of_others() {
        let cluster = Cluster::new("uid-1");
        let mark = Mark::new(&cluster, "pvc-1", 1 << 30, OnDelete::Purge);
        let tags = mark.tags([("team".to_owned(), "a".to_owned())].into());
        assert_eq!((tags["team"].as_str(), tags.len()), ("a", 5));
        assert_eq!(Mark::of(&tags), Some(mark.clone()));
        assert!(mark.is_of(&cluster, "pvc-1"));
        assert!(!mark.is_of(&cluster, "pvc-2") && !mark.is_of(&Cluster::new("uid-2"), "pvc-1"));
        assert_eq!(Mark::of(&Tags::new()), None);
    }

    #[test]
    fn any_name_fits_a_tag() {
        let cluster = Cluster::new("uid-1");
        for odd in ["a\"b", &"x".repeat(500), "ü", ""] {
            let mark = Mark::new(&cluster, odd, 1, OnDelete::Keep);
            assert!(mark.name.len() <= 256 && mark.name.is_ascii() && mark.is_of(&cluster, odd), "{odd}");
        }
    }
}
