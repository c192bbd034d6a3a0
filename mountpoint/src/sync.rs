//! Locks and atomics under one name: a model checker can replace them.
//!
//! With feature `shuttle` the same names are shuttle's, and tests named `shuttle_*` run the code under these locks in many schedules:
//! inodes, handles, requests, waiting reads, memory and the cache. A lock is never poisoned here: a panic in one request answers EIO and
//! the mount goes on; the next holder of the lock finds the state after the last complete statement.

#[cfg(feature = "shuttle")]
use shuttle::sync as imp;
#[cfg(not(feature = "shuttle"))]
use std::sync as imp;

// Shuttle has no Arc of its own: its Arc is the standard one.
pub use std::sync::{Arc, Weak};

/// The atomics, which the model checker replaces, too.
pub mod atomic {
    pub use super::imp::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

/// A lock for short, plain work. No holder keeps it across an await (clippy denies that).
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(imp::Mutex<T>);

/// The guard of a locked [`Mutex`].
pub type MutexGuard<'a, T> = imp::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    /// Creates an unlocked lock.
    pub fn new(value: T) -> Self {
        Self(imp::Mutex::new(value))
    }

    /// The value, once no other thread can hold the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(|e| e.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes the lock, unless another thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
}

/// A lock that many may read at once.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(imp::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub fn new(value: T) -> Self {
        Self(imp::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no thread writes.
    pub fn read(&self) -> imp::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until no other thread holds the lock.
    pub fn write(&self) -> imp::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(|e| e.into_inner())
    }
}
