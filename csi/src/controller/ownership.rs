//! The owner of a bucket. Enters: its tags, a volume id, the record of the PersistentVolume. Leaves: whether an existing bucket may serve
//! a new request, and whether a bucket may be deleted. Pure.
//!
//! A bucket is deleted only on proof: the driver's tag; an id that this cluster made; or a name in release 2.2's form, on a
//! PersistentVolume that names this driver as its provisioner.

use mountpoint::s3::Tagging;

use super::cluster::Cluster;
use super::on_delete::OnDelete;
use super::tags::Mark;
use super::volume_id::VolumeId;

/// The owner of an existing bucket, compared with a new request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// An earlier call for this request created the bucket.
    Ours {
        /// The capacity in its tag, in bytes.
        capacity_bytes: Option<i64>,
    },
    /// An earlier call may have created the bucket and been interrupted: the bucket is ours if it is empty.
    OursIfEmpty,
    /// The bucket belongs to another volume, cluster or user, for this reason.
    Taken(String),
}

/// Judges an existing bucket. `is_digest`: its name is a digest of the request. `made_just_now`: a moment ago the bucket did not exist,
/// and a CreateBucket of this call without a clear answer may have created it.
#[must_use]
pub fn at_creation(
    tagging: &Tagging,
    cluster: &Cluster,
    request: &str,
    is_digest: bool,
    made_just_now: bool,
) -> Found {
    let mark = match tagging {
        Tagging::Tags(tags) => Mark::of(tags),
        Tagging::Unsupported => None,
    };
    match mark {
        Some(mark) if mark.is_of(cluster, request) => Found::Ours { capacity_bytes: mark.capacity_bytes },
        Some(mark) if mark.cluster == cluster.mark() => {
            Found::Taken(format!("it belongs to the volume {}", mark.name.escape_debug()))
        }
        Some(_) => Found::Taken("it belongs to a volume of another cluster".to_owned()),
        None if is_digest || made_just_now => Found::OursIfEmpty,
        None => Found::Taken("nothing shows that this driver made it".to_owned()),
    }
}

/// The record of a volume: the facts in its PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The PersistentVolume's name.
    pub name: String,
    /// Whether its annotation `pv.kubernetes.io/provisioned-by` names this driver.
    pub provisioned_by_us: bool,
    /// The fate of its data, from its attributes.
    pub on_delete: Option<OnDelete>,
    /// The store, from its attributes.
    pub endpoint_url: Option<String>,
    /// The region, from its attributes.
    pub region: Option<String>,
}

/// The proof that a volume is ours to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Our tag on the bucket.
    Tag,
    /// The volume id, which this cluster made.
    Id,
    /// The bucket's name in release 2.2's form, and its PersistentVolume.
    Release22,
}

/// The proof that permits to delete the bucket of `id`, and the fate of its data.
///
/// # Errors
/// The reason against a deletion, as the end of a sentence.
pub fn at_deletion(
    id: &VolumeId,
    tagging: &Tagging,
    cluster: &Cluster,
    recorded: Option<&Recorded>,
) -> Result<(Proof, OnDelete), String> {
    let by_volume = recorded.and_then(|it| it.on_delete).unwrap_or_default();
    if let Tagging::Tags(tags) = tagging
        && let Some(mark) = Mark::of(tags)
    {
        if mark.cluster != cluster.mark() {
            return Err("its tags say that another cluster made it".to_owned());
        }
        if !id.is_for(cluster, &mark.name) {
            let name = mark.name.escape_debug();
            return Err(format!("its tags say that it belongs to the volume {name}"));
        }
        return Ok((Proof::Tag, mark.on_delete.unwrap_or(by_volume)));
    }
    if id.is_of(cluster) {
        return Ok((Proof::Id, by_volume));
    }
    if id.is_named_as_by_release_2_2() && recorded.is_some_and(|it| it.provisioned_by_us) {
        return Ok((Proof::Release22, by_volume));
    }
    Err("neither its tags nor its volume id show that this driver made it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::volume_id::Place;
    use mountpoint::s3::Tags;

    fn cluster() -> Cluster {
        Cluster::new("uid-1")
    }

    fn tagged(cluster: &Cluster, request: &str, on_delete: OnDelete) -> Tagging {
        Tagging::Tags(Mark::new(cluster, request, 5, on_delete).tags(Tags::new()))
    }

    fn none() -> Tagging {
        Tagging::Tags(Tags::new())
    }

    #[test]
    fn a_bucket_that_is_there_serves_only_its_own_request() {
        let found =
            |tagging: &Tagging, digest, just_now| at_creation(tagging, &cluster(), "pvc-1", digest, just_now);
        let ours = Found::Ours { capacity_bytes: Some(5) };
        assert_eq!(found(&tagged(&cluster(), "pvc-1", OnDelete::Keep), false, false), ours);
        for other in [
            tagged(&cluster(), "pvc-2", OnDelete::Keep),
            tagged(&Cluster::new("uid-2"), "pvc-1", OnDelete::Keep),
        ] {
            for digest in [false, true] {
                assert!(matches!(found(&other, digest, true), Found::Taken(_)), "{other:?}");
            }
        }
        for untagged in [none(), Tagging::Unsupported] {
            assert_eq!(found(&untagged, true, false), Found::OursIfEmpty);
            assert_eq!(found(&untagged, false, true), Found::OursIfEmpty);
            assert!(matches!(found(&untagged, false, false), Found::Taken(_)));
        }
    }

    #[test]
    fn a_bucket_is_deleted_by_its_tag_by_its_id_or_as_release_2_2_named_it() {
        let id = VolumeId::new(&cluster(), "pvc-1", Place::Bucket("data".into()));
        let allowed = |tagging: &Tagging, recorded| at_deletion(&id, tagging, &cluster(), recorded);
        let recorded = Recorded { on_delete: Some(OnDelete::Fail), ..Recorded::default() };
        let by_tag = allowed(&tagged(&cluster(), "pvc-1", OnDelete::Purge), Some(&recorded));
        assert_eq!(by_tag, Ok((Proof::Tag, OnDelete::Purge)), "the tag is what an administrator may change");
        assert_eq!(allowed(&none(), Some(&recorded)), Ok((Proof::Id, OnDelete::Fail)));
        assert_eq!(allowed(&Tagging::Unsupported, None), Ok((Proof::Id, OnDelete::Keep)));

        let old = VolumeId::parse("csi-s3-01234567-89ab-cdef-0123-456789abcdef").unwrap();
        let old = |recorded: Option<Recorded>| at_deletion(&old, &none(), &cluster(), recorded.as_ref());
        let provisioned = Recorded { provisioned_by_us: true, ..Recorded::default() };
        assert_eq!(old(Some(provisioned)), Ok((Proof::Release22, OnDelete::Keep)));
        assert!(old(Some(Recorded::default())).is_err() && old(None).is_err());
    }

    #[test]
    fn without_proof_nothing_is_deleted() {
        let (ours, theirs) = (cluster(), Cluster::new("uid-2"));
        let place = Place::Bucket("data".into());
        let (id, foreign) =
            (VolumeId::new(&ours, "pvc-1", place.clone()), VolumeId::new(&theirs, "pvc-1", place));
        let plain = VolumeId::parse("photos").unwrap();
        let by_hand = VolumeId::parse("data").unwrap();
        let provisioned = Recorded { provisioned_by_us: true, ..Recorded::default() };
        for (id, tagging) in [
            (&id, tagged(&theirs, "pvc-1", OnDelete::Purge)),
            (&id, tagged(&ours, "pvc-2", OnDelete::Purge)),
            (&foreign, none()),
            (&foreign, Tagging::Unsupported),
            (&plain, none()),
            (&by_hand, tagged(&ours, "pvc-1", OnDelete::Purge)),
        ] {
            assert!(at_deletion(id, &tagging, &ours, Some(&provisioned)).is_err(), "{id} {tagging:?}");
        }
    }
}
