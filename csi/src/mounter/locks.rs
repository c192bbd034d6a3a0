//! Locks by name: one caller at a time for a Mountpoint Pod or a target.

use std::collections::HashMap;

use mountpoint::sync::{Arc, Mutex, Weak};
use tokio::sync::OwnedMutexGuard;

type Lock = tokio::sync::Mutex<()>;

/// The locks. A name takes memory only while a caller holds or waits for its lock.
#[derive(Debug, Default)]
pub(crate) struct Locks(Mutex<HashMap<String, Weak<Lock>>>);

impl Locks {
    /// Waits until no other caller holds this name, and takes it.
    pub(crate) async fn lock(&self, name: &str) -> OwnedMutexGuard<()> {
        self.of(name).lock_owned().await
    }

    /// Takes the lock of this name; `None` if another caller holds it.
    pub(crate) fn try_lock(&self, name: &str) -> Option<OwnedMutexGuard<()>> {
        self.of(name).try_lock_owned().ok()
    }

    /// Whether a caller holds or waits for this name.
    #[cfg(test)]
    pub(crate) fn is_wanted(&self, name: &str) -> bool {
        self.0.lock().get(name).is_some_and(|lock| lock.strong_count() > 0)
    }

    fn of(&self, name: &str) -> Arc<Lock> {
        let mut locks = self.0.lock();
        if let Some(lock) = locks.get(name).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(Lock::new(()));
        locks.insert(name.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_is_held_by_one_and_forgotten_when_nobody_holds_it() {
        let locks = Locks::default();
        let held = locks.lock("a").await;
        assert!(locks.try_lock("a").is_none());
        let other = locks.try_lock("b");
        assert!(other.is_some());
        drop((held, other));
        assert!(locks.try_lock("a").is_some());
        drop(locks.lock("c").await);
        assert_eq!(locks.0.lock().len(), 1, "names that nobody holds go with the next");
    }
}
