//! The flags of the client: threads, memory, sizes of requests, timeouts, certificates.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

use super::MIB_MAX;
use crate::fuse::Transport;

/// Threads, memory, sizes of requests, timeouts, certificates.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Client options")]
pub(crate) struct ClientOptions {
    /// Target throughput in gigabits per second: sets the number of connections; not a limit [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) maximum_throughput_gbps: Option<u64>,
    /// Maximum number of threads that take requests from the kernel
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_threads: u64,
    /// Memory for data, in MiB, 128 or more [default: a quarter of the machine's memory or of the control group's limit, up to 4096]
    #[arg(long, value_name = "MiB", value_parser = clap::value_parser!(u64).range(128..=MIB_MAX))]
    pub(crate) memory_target: Option<u64>,
    /// Largest read request and size of the first parts of an upload, in bytes
    #[arg(long, value_name = "SIZE", default_value_t = PART_SIZE, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) part_size: u64,
    /// Largest read request, in bytes, from 1 MiB [default: as --part-size]
    #[arg(long, value_name = "SIZE", conflicts_with = "part_size", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) read_part_size: Option<u64>,
    /// Size of the first parts of an upload, in bytes, from 5 MiB to 5 GiB [default: as --part-size]
    #[arg(long, value_name = "SIZE", conflicts_with = "part_size", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) write_part_size: Option<u64>,
    /// Network interface for connections to the store; repeat the flag to use several in turn
    #[arg(long, value_name = "NETWORK_INTERFACE")]
    pub(crate) bind: Vec<String>,
    /// Certificate authorities to trust, instead of the system's
    #[arg(long, value_name = "PATH", env = "AWS_CA_BUNDLE", hide_env_values = true)]
    pub(crate) ca_bundle: Option<PathBuf>,
    /// More certificate authorities to trust; repeat the flag for several
    #[arg(long, value_name = "PATH")]
    pub(crate) extra_ca_bundle: Vec<PathBuf>,
    /// Text before the engine's name in the User-Agent header
    #[arg(long, value_name = "PREFIX")]
    pub(crate) user_agent_prefix: Option<String>,
    /// How long a request waits for a store that does not answer, in seconds, 1 to 3600: shorter outages fail nothing
    #[arg(long, value_name = "SECONDS", env = "MOUNT_S3_OPERATION_TIMEOUT", hide_env_values = true, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) operation_timeout: u32,
    /// Maximum number of attempts of one request [default: as many as fit into --operation-timeout]
    #[arg(long, value_name = "N", env = "AWS_MAX_ATTEMPTS", hide = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_attempts: Option<u32>,
    /// Code that exchanges requests with the kernel
    #[arg(long, value_enum, value_name = "TRANSPORT", default_value = "auto")]
    pub(crate) fuse_transport: TransportArg,
    /// Directory for parts of uploads that do not fit in memory [default: the cache directory]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) spill_dir: Option<PathBuf>,
    /// Directory for notes of uploads in progress: the next mount aborts the uploads of a killed process [default: $STATE_DIRECTORY, $XDG_STATE_HOME/mount-s3, /var/lib/mount-s3 of root, ~/.local/state/mount-s3]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// Valid sizes of a read request in bytes: from one block to 5 GiB.
const READ_PART: std::ops::RangeInclusive<u64> = 1 << 20..=5 << 30;
/// Valid sizes of an upload's part in bytes: S3's limits.
const WRITE_PART: std::ops::RangeInclusive<u64> = 5 << 20..=5 << 30;

/// Default size of a part, in bytes.
const PART_SIZE: u64 = 8 << 20;

impl ClientOptions {
    /// Whether a flag sets the size of upload parts. `--part-size` with its default value does not count.
    pub(crate) fn names_write_part(&self) -> bool {
        self.write_part_size.is_some() || self.part_size != PART_SIZE
    }

    /// Checks that the sizes are valid.
    ///
    /// # Errors
    /// A sentence with the size outside the limits, and its flag.
    pub(super) fn check(&self) -> Result<(), String> {
        let named =
            |size: Option<u64>, flag| size.map_or((self.part_size, "--part-size"), |size| (size, flag));
        let (read, read_flag) = named(self.read_part_size, "--read-part-size");
        let (write, write_flag) = named(self.write_part_size, "--write-part-size");
        if !WRITE_PART.contains(&write) {
            return Err(format!(
                "invalid value '{write}' for '{write_flag} <SIZE>': a part of an upload has 5 MiB (5242880) to 5 GiB (5368709120)"
            ));
        }
        if !READ_PART.contains(&read) {
            return Err(format!(
                "invalid value '{read}' for '{read_flag} <SIZE>': a request that reads takes 1 MiB (1048576) to 5 GiB (5368709120)"
            ));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TransportArg {
    /// The same as dev
    Auto,
    /// The engine's own loop over /dev/fuse
    Dev,
    /// Like dev, but over io_uring; falls back to dev where the kernel does not offer it
    IoUring,
    /// The loop of the crate fuser
    Fuser,
}

impl From<TransportArg> for Transport {
    fn from(arg: TransportArg) -> Self {
        match arg {
            // The measurements are in docs/decisions/measurements.md, "FUSE over io_uring".
            TransportArg::Auto | TransportArg::Dev => Self::Dev,
            TransportArg::IoUring => Self::IoUring,
            TransportArg::Fuser => Self::Fuser,
        }
    }
}
