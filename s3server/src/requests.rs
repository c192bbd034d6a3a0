//! Counts of requests to the server, which tests compare with the expected number.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Counts of requests by operation, and of bytes on the wire. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct RequestLog(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    operations: Mutex<BTreeMap<String, u64>>,
    sent: AtomicU64,
    received: AtomicU64,
}

impl RequestLog {
    /// Number of requests of one operation (`GetObject`) since the start or the last reset, including those struck by faults. Requests with
    /// a refused signature do not count.
    pub fn count(&self, operation: &str) -> u64 {
        self.all().get(operation).copied().unwrap_or(0)
    }

    /// Number of requests by operation.
    pub fn all(&self) -> BTreeMap<String, u64> {
        self.0.operations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of all requests.
    pub fn total(&self) -> u64 {
        self.all().values().sum()
    }

    /// Bytes sent on all connections, including HTTP headers.
    pub fn bytes_sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// Bytes received on all connections, including HTTP headers.
    pub fn bytes_received(&self) -> u64 {
        self.0.received.load(Ordering::Relaxed)
    }

    /// Sets all counts to zero.
    pub fn reset(&self) {
        self.0.operations.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.0.sent.store(0, Ordering::Relaxed);
        self.0.received.store(0, Ordering::Relaxed);
    }

    pub(crate) fn asked(&self, operation: &str) {
        let mut operations = self.0.operations.lock().unwrap_or_else(PoisonError::into_inner);
        match operations.get_mut(operation) {
            Some(count) => *count += 1,
            None => drop(operations.insert(operation.to_owned(), 1)),
        }
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.0.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.0.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
