//! One call at a time for a volume. Enters: the name of a request, or a volume id. Leaves: a turn that ends when it is dropped, or the
//! reason to refuse.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use mountpoint::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// The calls under way. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Pending(Arc<Mutex<HashSet<String>>>);

/// A call under way.
#[derive(Debug)]
pub struct Turn {
    all: Pending,
    of: String,
}

impl Pending {
    /// Begins a call for this volume.
    ///
    /// # Errors
    /// `Aborted`: another one is in progress. The provisioner tries again.
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
}
