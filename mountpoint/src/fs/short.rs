//! Reads of a file with fewer bytes than the kernel's size of it, because a store's listing was wrong: decides which of them get an answer.
//! Pure.
//!
//! The kernel fills the rest of a short answer with zeros, and takes its end for the end of the file. Among reads in flight at once, it
//! believes only the first short answer. So only the read in which the file ends gets a short answer, and only if it was not in flight
//! when the wrong size was found. All other reads behind the end fail. Where the kernel read ahead in vain, it requests a page again once
//! a program waits for it.

/// The end of a file that is shorter than the kernel's size of it, for one handle that reads through the page cache.
#[derive(Debug)]
pub(super) struct Short {
    size: u64,
    /// Whether reads were in flight when the size was found.
    amid_reads: bool,
}

impl Short {
    /// The end of a file whose right size was known at the open.
    pub(super) fn before_reads(size: u64) -> Self {
        Self { size, amid_reads: false }
    }

    /// The end of a file whose right size was found while reads of it were in flight.
    pub(super) fn amid_reads(size: u64) -> Self {
        Self { size, amid_reads: true }
    }

    /// Whether a read may be answered. `is_old` is true for the first read in which the file ends, on any handle: the second read was
    /// sent after the answer to the first, since both are about one page.
    pub(super) fn allows(&self, offset: u64, len: usize, is_old: impl FnOnce() -> bool) -> bool {
        let end = offset.saturating_add(len as u64);
        end <= self.size || offset <= self.size && !(self.amid_reads && is_old())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_reads_behind_the_end_only_the_one_in_which_it_lies_is_answered() {
        for size in [0, 1000, 4096, 300_000] {
            let short = Short::before_reads(size);
            let allows = |offset, len| short.allows(offset, len, || unreachable!("all are newer"));
            assert!(size == 0 || allows(0, size as usize), "all is there");
            assert!(allows(size / 4096 * 4096, 4096), "{size}: the last page");
            assert!(allows(0, 1 << 20), "{size}: in one request with all");
            assert!(!allows(size + 1, 4096) && !allows(u64::MAX, 4096), "{size}: behind it");
        }
    }

    #[test]
    fn a_read_of_the_last_page_that_may_be_old_fails_once() {
        let short = Short::amid_reads(5000);
        let mut is_old = true;
        let mut allows = |offset| short.allows(offset, 4096, || std::mem::take(&mut is_old));
        assert!(allows(0), "before the end");
        assert!(!allows(8192) && !allows(4096));
        assert!(allows(4096) && allows(4096));
        assert!(!allows(8192), "behind the end, for good");
    }
}
