//! Locks and atomics by one name, so that a model checker can take their place.
//!
//! With feature `shuttle` the same names are shuttle's, and tests named `shuttle_*` run what they lock under many schedules:
//! today the line for memory in `buffer`. A lock is never poisoned here: a panic in one request answers EIO and the
//! mount goes on; whoever takes the lock next finds the state as the last whole statement left it.

#[cfg(feature = "shuttle")]
use shuttle::sync as imp;
#[cfg(not(feature = "shuttle"))]
use std::sync as imp;

pub use imp::{Arc, Weak};

/// Atomics under the same roof.
pub mod atomic {
    pub use super::imp::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

/// A lock for short, plain work; never held across an await (clippy denies it).
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(imp::Mutex<T>);

/// What [`Mutex::lock`] gives.
pub type MutexGuard<'a, T> = imp::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    /// Unlocked.
    pub fn new(value: T) -> Self {
        Self(imp::Mutex::new(value))
    }

    /// The value, once nobody else can hold the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(|e| e.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// A lock that many may read at once.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(imp::RwLock<T>);

impl<T> RwLock<T> {
    /// Unlocked.
    pub fn new(value: T) -> Self {
        Self(imp::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until nobody writes.
    pub fn read(&self) -> imp::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until nobody else holds it.
    pub fn write(&self) -> imp::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(|e| e.into_inner())
    }
}
