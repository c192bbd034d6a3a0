//! Memory that a virtual machine gave back to its host is expensive for the process that touches it next: up to four times the whole
//! cost of a read was measured. The bench therefore touches and frees memory before each run: no peer pays for another.

use std::fs::File;
use std::io::{self, Write as _};

use rustix::fs::{MemfdFlags, memfd_create};

/// Touches up to `bytes` of free memory, and frees them again. The next program gets this memory if it starts within seconds; later the
/// host may have taken it back.
///
/// # Errors
/// The kernel can't create a memory file.
pub(crate) fn warm(bytes: u64) -> io::Result<()> {
    let mut file = File::from(memfd_create("bench-warm", MemfdFlags::CLOEXEC)?);
    let zeros = vec![0; 1 << 20];
    for _ in 0..bytes.min(available()? / 2) >> 20 {
        file.write_all(&zeros)?;
    }
    Ok(())
}

fn available() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    Ok(parse_available(&text).unwrap_or(0))
}

/// `MemAvailable` of `/proc/meminfo` in bytes.
fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_touched_than_half_of_what_is_free() {
        assert_eq!(parse_available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(parse_available("MemTotal: 9 kB\n"), None);
        assert!(available().unwrap() > 1 << 20);
        warm(3 << 20).unwrap();
    }
}
