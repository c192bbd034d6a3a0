//! Admits one call at a time for a volume, and for its bucket. Enters: the name of a request, a volume id, or a bucket. Leaves: a turn,
//! which ends when it is dropped, or the reason to refuse the call.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use mountpoint::sync::Arc;

use super::volume_id::Place;
use crate::error::{Error, ErrorKind, Result};

/// The calls in progress. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Pending(Arc<Mutex<HashSet<String>>>);

/// The turn of a call in progress.
#[derive(Debug)]
pub struct Turn {
    all: Pending,
    of: String,
}

impl Pending {
    /// Begins a call for this volume.
    ///
    /// # Errors
    /// `Aborted`: another call is in progress. The provisioner repeats the call.
    pub fn begin(&self, of: &str) -> Result<Turn> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.insert(of.to_owned()) {
            return Err(Error::new(
                ErrorKind::Aborted,
                format!("another call for {of} is in progress; the provisioner repeats this one"),
            ));
        }
        Ok(Turn { all: self.clone(), of: of.to_owned() })
    }

    /// Begins a call that creates or deletes the bucket of this place. Two volumes may have the same bucket name, and some stores answer a
    /// second CreateBucket like the first. `None`: the place is a prefix, whose bucket does not change.
    ///
    /// # Errors
    /// The same as [`Self::begin`].
    pub fn begin_for(&self, endpoint: &str, place: &Place) -> Result<Option<Turn>> {
        match place {
            Place::Bucket(bucket) => self.begin(&format!("bucket {endpoint}/{bucket}")).map(Some),
            Place::Prefix { .. } => Ok(None),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_one_call_at_a_time_and_others_do_not_wait_for_it() {
        let pending = Pending::default();
        let turn = pending.begin("pvc-1").unwrap();
        assert_eq!(pending.begin("pvc-1").unwrap_err().kind, ErrorKind::Aborted);
        drop(pending.begin("pvc-2").unwrap());
        drop(turn);
        assert!(pending.begin("pvc-1").is_ok());
    }

    #[test]
    fn one_call_at_a_time_makes_or_deletes_a_bucket_and_prefixes_never_wait() {
        let pending = Pending::default();
        let bucket = |name: &str| Place::Bucket(name.to_owned());
        let turn = pending.begin_for("http://a.test", &bucket("data")).unwrap();
        let error = pending.begin_for("http://a.test", &bucket("data")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Aborted);
        assert!(error.to_string().contains("bucket http://a.test/data"), "{error}");
        drop(pending.begin_for("http://a.test", &bucket("other")).unwrap());
        drop(pending.begin_for("http://b.test", &bucket("data")).unwrap());
        let prefix = Place::Prefix { bucket: "data".into(), prefix: "p".into() };
        assert!(pending.begin_for("http://a.test", &prefix).unwrap().is_none());
        drop(turn);
        assert!(pending.begin_for("http://a.test", &bucket("data")).unwrap().is_some());
    }
}
