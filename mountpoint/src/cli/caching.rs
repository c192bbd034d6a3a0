//! The flags of caches: what they keep, and for how long.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::MIB_MAX;
use crate::fs::ReadMode;
use crate::inode::Ttl;

/// The caches.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Caching options")]
pub(crate) struct CacheOptions {
    /// Keep read data in this directory; also sets --metadata-ttl to 60
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) cache: Option<PathBuf>,
    /// Limit of the cache, in MiB [default: leaves 5 % of its file system free]
    #[arg(long, value_name = "MiB", requires = "cache", value_parser = clap::value_parser!(u64).range(..=MIB_MAX))]
    pub(crate) max_cache_size: Option<u64>,
    /// Let the kernel read cached files directly (FUSE passthrough); auto: if root mounts, on Linux 6.9 or later
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", requires = "cache")]
    pub(crate) cache_passthrough: When,
    /// Whether reads use the kernel's page cache; auto: a program that reads large files only once bypasses it
    #[arg(long, value_enum, value_name = "MODE", default_value = "buffered")]
    pub(crate) read_mode: ReadModeArg,
    /// How long to trust names and attributes [default: minimal, or 60 with --cache]
    #[arg(long, value_name = "SECONDS|indefinite|minimal", value_parser = parse_ttl)]
    pub(crate) metadata_ttl: Option<TtlArg>,
    /// How long to remember that a name does not exist [default: as --metadata-ttl]
    #[arg(long, value_name = "SECONDS|indefinite|minimal", value_parser = parse_ttl)]
    pub(crate) negative_metadata_ttl: Option<TtlArg>,
    /// Refused: a cache in a directory bucket
    #[arg(long, value_name = "BUCKET", hide = true)]
    pub(crate) cache_xz: Option<String>,
}

/// The ways to open files for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReadModeArg {
    /// Depends on how earlier files were read.
    Auto,
    /// Read through the page cache.
    Buffered,
    /// Bypasses the page cache.
    Direct,
}

impl From<ReadModeArg> for ReadMode {
    fn from(mode: ReadModeArg) -> Self {
        match mode {
            ReadModeArg::Auto => Self::Auto,
            ReadModeArg::Buffered => Self::Buffered,
            ReadModeArg::Direct => Self::Direct,
        }
    }
}

/// Whether to use a feature that some machines lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// Use it if the machine supports it.
    Auto,
    /// Never.
    Off,
}

/// The value of a TTL flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TtlArg {
    Minimal,
    Indefinite,
    Seconds(u64),
}

/// Longest valid TTL: a hundred years, which every clock can add. "indefinite" has the same effect.
const TTL_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl CacheOptions {
    /// The TTL that results from all flags.
    pub(crate) fn ttl(&self) -> Ttl {
        let default = if self.cache.is_some() { TtlArg::Seconds(60) } else { TtlArg::Minimal };
        let found = self.metadata_ttl.unwrap_or(default);
        let missing = self.negative_metadata_ttl.unwrap_or(found);
        let duration = |ttl| match ttl {
            TtlArg::Minimal | TtlArg::Seconds(0) => None,
            TtlArg::Indefinite => Some(TTL_MAX),
            TtlArg::Seconds(s) => Some(Duration::from_secs(s)),
        };
        match (duration(found), duration(missing)) {
            (None, _) => Ttl::Minimal,
            (Some(found), missing) => Ttl::For { found, missing: missing.unwrap_or_default() },
        }
    }

    /// Whether a flag wants each absent name asked for, also in full mode.
    pub(crate) fn asks_for_absent(&self) -> bool {
        let named = [self.metadata_ttl, self.negative_metadata_ttl];
        named.into_iter().flatten().any(|ttl| matches!(ttl, TtlArg::Minimal | TtlArg::Seconds(0)))
    }
}

fn parse_ttl(text: &str) -> Result<TtlArg, String> {
    match text {
        "minimal" => Ok(TtlArg::Minimal),
        "indefinite" => Ok(TtlArg::Indefinite),
        _ => match text.parse() {
            Ok(seconds) if seconds <= TTL_MAX.as_secs() => Ok(TtlArg::Seconds(seconds)),
            Ok(_) => Err(format!(
                "TTL must not be greater than {}s (~100 years), or be 'indefinite', or 'minimal'",
                TTL_MAX.as_secs()
            )),
            Err(_) => Err("TTL must be a valid number of seconds, or 'indefinite', or 'minimal'".into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn a_cache_sets_the_ttl_to_a_minute_unless_it_is_named() {
        assert_eq!(parse(&[]).unwrap().cache.ttl(), Ttl::Minimal);
        let minute = Duration::from_secs(60);
        assert_eq!(
            parse(&["--cache", "/c"]).unwrap().cache.ttl(),
            Ttl::For { found: minute, missing: minute }
        );
        let named = parse(&["--cache", "/c", "--metadata-ttl", "minimal"]).unwrap();
        assert_eq!(named.cache.ttl(), Ttl::Minimal);
        let split = parse(&["--metadata-ttl", "60", "--negative-metadata-ttl", "0"]).unwrap();
        assert_eq!(split.cache.ttl(), Ttl::For { found: minute, missing: Duration::ZERO });
        assert!(named.cache.asks_for_absent() && split.cache.asks_for_absent());
        let minute_named = parse(&["--metadata-ttl", "60"]).unwrap();
        assert!(!parse(&[]).unwrap().cache.asks_for_absent() && !minute_named.cache.asks_for_absent());
        let years = parse(&["--metadata-ttl", "3153600000"]).unwrap();
        assert_eq!(years.cache.ttl(), Ttl::For { found: TTL_MAX, missing: TTL_MAX });
    }
}
