//! The memory of the index: estimates the size of allocations, and keeps their account. Pure but for the account, a number.

use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Estimated memory of one allocation of `len` bytes: an allocator's sizes lie up to a quarter apart.
pub(super) fn heap(len: usize) -> u64 {
    let len = len as u64;
    len.next_multiple_of(16) + len / 8
}

/// A share of an account. Dropping it subtracts its bytes.
#[derive(Debug)]
pub(super) struct Share {
    account: Arc<AtomicU64>,
    bytes: u64,
}

impl Share {
    /// Adds a share of `bytes` to the account.
    pub(super) fn new(account: &Arc<AtomicU64>, bytes: u64) -> Self {
        account.fetch_add(bytes, Relaxed);
        Self { account: Arc::clone(account), bytes }
    }

    /// The bytes of the share.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the share to `bytes`.
    pub(super) fn set(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.account.fetch_add(bytes - self.bytes, Relaxed);
        } else {
            self.account.fetch_sub(self.bytes - bytes, Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.account.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_the_sum_of_the_shares_that_live() {
        let account = Arc::default();
        let (mut one, two) = (Share::new(&account, 10), Share::new(&account, 7));
        one.set(30);
        assert_eq!((one.bytes(), account.load(Relaxed)), (30, 37));
        one.set(3);
        drop(two);
        assert_eq!(account.load(Relaxed), 3);
        drop(one);
        assert_eq!(account.load(Relaxed), 0);
    }
}
