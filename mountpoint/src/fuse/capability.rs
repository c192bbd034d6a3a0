//! The capabilities that the engine requests from the kernel at INIT. Pure: the kernel's offer in, the answer out.
//!
//! Both transports request the same. `docs/decisions/0051-capabilities-at-init.md` shows the table; a test here compares the two.

use std::fmt;

use super::{BACKGROUND_MAX, CONGESTED_AT, RING_WRITE_MAX, TRANSFER_MAX};

/// The oldest protocol of a kernel that works: 7.31 is Linux 5.4.
pub(super) const PROTOCOL_MIN: (u32, u32) = (7, 31);
/// The protocol of this file system; a newer kernel falls back to it.
pub(super) const PROTOCOL: (u32, u32) = (7, 40);

/// One flag of INIT.
#[derive(Debug)]
pub(super) struct Capability {
    bit: u32,
    /// The name in `linux/fuse.h`, behind `FUSE_`.
    name: &'static str,
    /// The reason for the request.
    why: &'static str,
}

impl Capability {
    const fn new(bit: u32, name: &'static str, why: &'static str) -> Self {
        Self { bit, name, why }
    }

    /// The flag's bit in INIT.
    pub(super) const fn flag(&self) -> u64 {
        1 << self.bit
    }
}

/// Capabilities that INIT requests if the kernel offers them.
pub(super) const CAPABILITIES: [Capability; 8] = [
    Capability::new(0, "ASYNC_READ", "several reads of one handle at once"),
    Capability::new(3, "ATOMIC_O_TRUNC", "replacing a file is one decision, at open"),
    Capability::new(5, "BIG_WRITES", "writes above a page"),
    Capability::new(
        13,
        "DO_READDIRPLUS",
        "attributes in listings save lookups; always, because S3 sends them anyway",
    ),
    Capability::new(18, "PARALLEL_DIROPS", "lookups in one directory at once"),
    Capability::new(22, "MAX_PAGES", "requests of a whole block"),
    Capability::new(30, "INIT_EXT", "the upper half of these flags"),
    Capability::new(38, "NO_EXPORT_SUPPORT", "no file handles by inode number, so no NFS re-export"),
];

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.why)
    }
}

/// The flag for mmap of files that bypass the page cache. Requested only if the mount opens such files for reading (`--read-mode auto` or
/// `direct`). Other mounts go without: a file with a writer bypasses the page cache too, and a program that maps it would end by SIGBUS
/// instead of getting ENODEV.
pub(super) const MAPPED_DIRECT: Capability =
    Capability::new(36, "DIRECT_IO_ALLOW_MMAP", "mmap of a file that is read past the page cache");

/// The flag for files that the kernel reads itself. Requested only if the mount has a disk cache with such files. The mount then counts as
/// one more level of stacked file systems: one overlayfs may lie on it, but not two.
pub(super) const PASSTHROUGH: Capability =
    Capability::new(37, "PASSTHROUGH", "the kernel reads whole files of the disk cache by itself, for root");

/// The flag for requests through rings. Requested only by that transport, once it has its rings: after the answer to INIT, the kernel holds
/// requests back until it has the rings.
const OVER_IO_URING: Capability =
    Capability::new(41, "OVER_IO_URING", "requests and answers through memory shared with the kernel");

/// Capabilities that INIT requests only if the mount can use them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Besides {
    /// Whether files that are read past the page cache can be mapped.
    pub(super) mapped_direct: bool,
    /// Whether the kernel may read whole files of the disk cache itself.
    pub(super) passthrough: bool,
    /// Whether requests come through rings of io_uring.
    pub(super) ring: bool,
}

/// Whether the kernel can repeat requests for an engine that succeeds another one (FUSE_HAS_RESEND, Linux 6.9).
pub(super) fn can_resend(offered: u64) -> bool {
    offered & (1 << 39) != 0
}

/// The release of this kernel, from `/proc`; empty if it can't be read.
pub(super) fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()
}

/// The first three numbers of a release; 0 for a missing one.
pub(super) fn version(release: &str) -> [u32; 3] {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

/// Whether the kernel learns a file's end from a short answer to a read, whatever else changed in the mount since the request (5.17), and
/// drops attributes that were in flight when a notification came (5.10).
pub(super) fn learns_sizes(release: &str) -> bool {
    version(release) >= [5, 17, 0]
}

/// Levels of stacked file systems that a mount with passthrough counts for.
const STACK_DEPTH: u32 = 1;

/// Whether the kernel has passthrough.
pub(super) fn has_passthrough(offered: u64) -> bool {
    offered & PASSTHROUGH.flag() != 0
}

/// Whether the kernel has FUSE over io_uring, and had it enabled at the mount.
pub(super) fn has_ring(offered: u64) -> bool {
    offered & OVER_IO_URING.flag() != 0
}

/// The offered capabilities that the engine requests.
pub(super) fn asked(offered: u64) -> u64 {
    CAPABILITIES.iter().map(|capability| capability.flag() & offered).sum()
}

/// Capabilities that the engine would request, but the kernel does not offer.
pub(super) fn missing(offered: u64) -> impl Iterator<Item = &'static Capability> {
    CAPABILITIES.iter().filter(move |capability| capability.flag() & offered == 0)
}

/// The answer to INIT: `struct fuse_init_out`, 64 bytes.
pub(super) fn init_out(offered: u64, max_readahead: u32, besides: Besides) -> Vec<u8> {
    let Besides { mapped_direct, passthrough, ring } = besides;
    let flags = asked(offered)
        | if mapped_direct { MAPPED_DIRECT.flag() & offered } else { 0 }
        | if passthrough { PASSTHROUGH.flag() } else { 0 }
        | if ring { OVER_IO_URING.flag() } else { 0 };
    let mut out = Vec::with_capacity(64);
    for field in [PROTOCOL.0, PROTOCOL.1, max_readahead.max(TRANSFER_MAX), flags as u32] {
        out.extend(field.to_ne_bytes());
    }
    out.extend(BACKGROUND_MAX.to_ne_bytes());
    out.extend(CONGESTED_AT.to_ne_bytes());
    out.extend(if ring { RING_WRITE_MAX } else { TRANSFER_MAX }.to_ne_bytes());
    out.extend(1u32.to_ne_bytes()); // times to the nanosecond
    out.extend(((TRANSFER_MAX / 4096) as u16).to_ne_bytes());
    out.extend(0u16.to_ne_bytes());
    out.extend(((flags >> 32) as u32).to_ne_bytes());
    out.extend(if passthrough { STACK_DEPTH } else { 0 }.to_ne_bytes());
    out.resize(64, 0);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_kernel_learns_sizes_from_5_17_on() {
        for learns in ["5.17.0", "6.18.44-fc-v669", "6.1.0-18-amd64", "10.0"] {
            assert!(learns_sizes(learns), "{learns}");
        }
        for forgets in ["5.16.20", "5.4.0-150-generic", "5.14.0-503.el9.x86_64", "4.18", ""] {
            assert!(!learns_sizes(forgets), "{forgets}");
        }
    }

    #[test]
    fn each_capability_has_a_reason_and_the_page_has_the_same_table() {
        let page = include_str!("../../../docs/decisions/0051-capabilities-at-init.md");
        for Capability { bit, name, why } in &CAPABILITIES {
            assert!(!why.is_empty(), "{name}");
            let row = format!("| {bit} | `{name}` | {why} |");
            assert!(page.contains(&row), "the page has no row {row}");
        }
        let rows = page.lines().filter(|l| l.contains("| `")).count();
        assert_eq!(rows, CAPABILITIES.len(), "the page has a row too many");
        assert!(CAPABILITIES.is_sorted_by(|a, b| a.bit < b.bit), "sorted, and none twice");
    }

    #[test]
    fn the_upper_half_stands_where_the_kernel_looks_for_it() {
        let out = init_out(u64::MAX, 4096, Besides::default());
        let field = |at: usize| u32::from_ne_bytes(out[at..at + 4].try_into().unwrap());
        assert_eq!(out.len(), 64);
        assert_eq!((field(0), field(4)), PROTOCOL);
        assert_eq!(u64::from(field(32)) << 32 | u64::from(field(12)), asked(u64::MAX));
        assert_eq!((field(8), field(20)), (TRANSFER_MAX, TRANSFER_MAX));
        let by_ring = init_out(u64::MAX, 4096, Besides { ring: true, ..Besides::default() });
        assert_eq!(by_ring[20..24], RING_WRITE_MAX.to_ne_bytes());
        assert_eq!(by_ring[28..30], out[28..30], "pages of a READ");
        let mapped =
            |offered| init_out(offered, 4096, Besides { mapped_direct: true, ..Besides::default() })[32] & 16;
        assert_eq!((out[32] & 16, mapped(u64::MAX), mapped(0)), (0, 16, 0));
    }

    proptest! {
        #[test]
        fn nothing_is_asked_that_is_not_offered(offered: u64) {
            prop_assert_eq!(asked(offered) & !offered, 0);
            prop_assert_eq!(asked(offered), asked(u64::MAX) & offered);
            let missing: u64 = missing(offered).map(Capability::flag).sum();
            prop_assert_eq!(asked(offered) | missing, asked(u64::MAX));
        }
    }
}
