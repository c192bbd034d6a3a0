//! Every flag, its help and its default; the only reader of the environment.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, ValueEnum};

use crate::checksum::ChecksumAlgorithm;
use crate::fuse::Transport;
use crate::inode::Ttl;

/// Mount an S3 bucket as a directory.
#[derive(Clone, Debug, Parser)]
#[command(name = "mount-s3", version, max_term_width = 100)]
#[command(
    after_help = "Credentials are found as by every AWS tool: environment, ~/.aws, web identity, container, instance."
)]
pub struct Args {
    /// Bucket, or s3://bucket/prefix/
    #[arg(value_name = "BUCKET")]
    pub bucket: String,

    /// Directory to mount on, or /dev/fd/N for a FUSE device that somebody else opened and mounted
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,

    #[command(flatten)]
    pub(crate) bucket_options: BucketOptions,
    #[command(flatten)]
    pub(crate) credentials: CredentialOptions,
    #[command(flatten)]
    pub(crate) mount: MountOptions,
    #[command(flatten)]
    pub(crate) client: ClientOptions,
    #[command(flatten)]
    pub(crate) cache: CacheOptions,
    #[command(flatten)]
    pub(crate) logging: LoggingOptions,

    /// Stay in the foreground, log to standard output
    #[arg(short, long)]
    pub foreground: bool,

    /// Write one line here when the mount can be used: 'ready', or what went wrong; a file, a pipe or /dev/fd/N
    #[arg(long, value_name = "PATH")]
    pub ready_file: Option<PathBuf>,
}

/// Which bucket, and what new objects are like.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Bucket options")]
pub(crate) struct BucketOptions {
    /// Only keys that begin with this prefix, which must end in '/'
    #[arg(long, value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,
    /// Region of the bucket [default: AWS_REGION, ~/.aws/config, else found out]
    #[arg(long, value_name = "REGION", env = "AWS_REGION", hide_env_values = true)]
    pub(crate) region: Option<String>,
    /// URL of an S3-compatible store
    #[arg(long, value_name = "URL", env = "AWS_ENDPOINT_URL", hide_env_values = true)]
    pub(crate) endpoint_url: Option<String>,
    /// Put the bucket into the path of URLs, not into the host name
    #[arg(long)]
    pub(crate) force_path_style: bool,
    /// Pay for requests to somebody else's bucket
    #[arg(long)]
    pub(crate) requester_pays: bool,
    /// Fail unless the bucket belongs to this account
    #[arg(long, value_name = "ACCOUNT")]
    pub(crate) expected_bucket_owner: Option<String>,
    /// Storage class of new objects
    #[arg(long, value_name = "CLASS")]
    pub(crate) storage_class: Option<String>,
    /// Server-side encryption of new objects
    #[arg(long, value_name = "TYPE", value_parser = ["aws:kms", "aws:kms:dsse", "AES256"])]
    pub(crate) sse: Option<String>,
    /// ARN of the key for --sse aws:kms
    #[arg(long, value_name = "ARN", requires = "sse")]
    pub(crate) sse_kms_key_id: Option<String>,
    /// Checksum that travels with uploads, so that the store refuses damaged bytes
    #[arg(long, value_enum, value_name = "ALGORITHM", default_value = "crc32c")]
    pub(crate) upload_checksums: UploadChecksums,
    /// Sign the bytes of uploads too: some stores insist; costs a SHA-256 of every byte
    #[arg(long)]
    pub(crate) sign_payload: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum UploadChecksums {
    Crc32c,
    Crc64nvme,
    Off,
}

impl UploadChecksums {
    pub(crate) fn algorithm(self) -> Option<ChecksumAlgorithm> {
        match self {
            Self::Crc32c => Some(ChecksumAlgorithm::Crc32c),
            Self::Crc64nvme => Some(ChecksumAlgorithm::Crc64Nvme),
            Self::Off => None,
        }
    }
}

/// Who asks.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Credential options")]
pub(crate) struct CredentialOptions {
    /// Send requests without a signature, for public buckets
    #[arg(long)]
    pub(crate) no_sign_request: bool,
    /// Use this profile of ~/.aws, and nothing else
    #[arg(long, value_name = "PROFILE", conflicts_with = "no_sign_request")]
    pub(crate) profile: Option<String>,
}

/// What the mount allows and shows.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Mount options")]
pub(crate) struct MountOptions {
    /// Nothing can be changed
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Files can be deleted
    #[arg(long)]
    pub(crate) allow_delete: bool,
    /// Files can be replaced
    #[arg(long)]
    pub(crate) allow_overwrite: bool,
    /// Unmount even if this process is killed (needs fusermount3)
    #[arg(long)]
    pub(crate) auto_unmount: bool,
    /// root may enter, too
    #[arg(long, conflicts_with = "allow_other")]
    pub(crate) allow_root: bool,
    /// Every user may enter
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Owner of all files and directories [default: the mounting user]
    #[arg(long, value_name = "UID")]
    pub(crate) uid: Option<u32>,
    /// Group of all files and directories [default: the mounting user's]
    #[arg(long, value_name = "GID")]
    pub(crate) gid: Option<u32>,
    /// Permissions of files, octal
    #[arg(long, value_name = "MODE", default_value = "0644", value_parser = parse_mode)]
    pub(crate) file_mode: u16,
    /// Permissions of directories, octal
    #[arg(long, value_name = "MODE", default_value = "0755", value_parser = parse_mode)]
    pub(crate) dir_mode: u16,
}

/// How hard it works.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Client options")]
pub(crate) struct ClientOptions {
    /// Threads that take requests from the kernel
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) max_threads: u16,
    /// Memory for data, in MiB, 128 or more [default: a quarter of what this machine or container has, up to 4096]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(128..))]
    pub(crate) memory_target: Option<u64>,
    /// Size of requests that read and of parts that are uploaded, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20, value_parser = part_size())]
    pub(crate) part_size: u64,
    /// Size of requests that read, in bytes
    #[arg(long, value_name = "BYTES", conflicts_with = "part_size", value_parser = part_size())]
    pub(crate) read_part_size: Option<u64>,
    /// Size of the first parts of an upload, in bytes
    #[arg(long, value_name = "BYTES", conflicts_with = "part_size", value_parser = part_size())]
    pub(crate) write_part_size: Option<u64>,
    /// Certificates to trust, instead of the system's
    #[arg(long, value_name = "FILE", env = "AWS_CA_BUNDLE", hide_env_values = true)]
    pub(crate) ca_bundle: Option<PathBuf>,
    /// Prefix of the User-Agent header
    #[arg(long, value_name = "TEXT")]
    pub(crate) user_agent_prefix: Option<String>,
    /// How often a request is tried
    #[arg(long, value_name = "N", env = "AWS_MAX_ATTEMPTS", default_value_t = 10, hide = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_attempts: u32,
    /// What carries requests between the kernel and this program
    #[arg(long, value_enum, value_name = "TRANSPORT", default_value = "dev")]
    pub(crate) fuse_transport: TransportArg,
    /// Directory for parts of uploads that memory has no room for [default: the cache directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) spill_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TransportArg {
    /// Our own loop over /dev/fuse
    Dev,
    /// The loop of the crate fuser
    Fuser,
}

impl From<TransportArg> for Transport {
    fn from(arg: TransportArg) -> Self {
        match arg {
            TransportArg::Dev => Self::Dev,
            TransportArg::Fuser => Self::Fuser,
        }
    }
}

/// What is remembered.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Caching options")]
pub(crate) struct CacheOptions {
    /// Keep what is read in this directory; also sets --metadata-ttl to 60
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Limit of the cache, in MiB [default: 5 % of its file system stay free]
    #[arg(long, value_name = "MIB", requires = "cache")]
    pub(crate) max_cache_size: Option<u64>,
    /// How long to trust what is known of names and attributes: seconds, 'indefinite' or 'minimal' [default: minimal]
    #[arg(long, value_name = "SECONDS", value_parser = parse_ttl)]
    pub(crate) metadata_ttl: Option<TtlArg>,
    /// The same for names that do not exist [default: as --metadata-ttl]
    #[arg(long, value_name = "SECONDS", value_parser = parse_ttl)]
    pub(crate) negative_metadata_ttl: Option<TtlArg>,
}

/// Where the log goes.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Logging options")]
pub(crate) struct LoggingOptions {
    /// Write the log to a file in this directory [default: syslog]
    #[arg(short, long, value_name = "DIR", conflicts_with = "no_log")]
    pub(crate) log_directory: Option<PathBuf>,
    /// Log every request
    #[arg(short, long, conflicts_with = "no_log")]
    pub(crate) debug: bool,
    /// No log at all
    #[arg(long)]
    pub(crate) no_log: bool,
    /// A tracing-subscriber filter in place of the flags above
    #[arg(long, env = "MOUNTPOINT_LOG", hide = true)]
    pub(crate) log_filter: Option<String>,
}

/// A TTL as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TtlArg {
    Minimal,
    Indefinite,
    Seconds(u64),
}

/// "Indefinite": a hundred years, which every clock can add.
const INDEFINITE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl CacheOptions {
    /// What the flags together mean.
    pub(crate) fn ttl(&self) -> Ttl {
        let default = if self.cache.is_some() { TtlArg::Seconds(60) } else { TtlArg::Minimal };
        let found = self.metadata_ttl.unwrap_or(default);
        let missing = self.negative_metadata_ttl.unwrap_or(found);
        let duration = |ttl| match ttl {
            TtlArg::Minimal | TtlArg::Seconds(0) => None,
            TtlArg::Indefinite => Some(INDEFINITE),
            TtlArg::Seconds(s) => Some(Duration::from_secs(s).min(INDEFINITE)),
        };
        match (duration(found), duration(missing)) {
            (None, _) => Ttl::Minimal,
            (Some(found), missing) => Ttl::For { found, missing: missing.unwrap_or_default() },
        }
    }
}

fn part_size() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range((5 << 20)..=(5 << 30))
}

fn parse_mode(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("permissions are octal, from 0000 to 0777".into()),
    }
}

fn parse_ttl(text: &str) -> Result<TtlArg, String> {
    match text {
        "minimal" => Ok(TtlArg::Minimal),
        "indefinite" => Ok(TtlArg::Indefinite),
        _ => text.parse().map(TtlArg::Seconds).map_err(|_| "seconds, 'indefinite' or 'minimal'".into()),
    }
}

/// Bucket and prefix out of `BUCKET`, `s3://BUCKET[/PREFIX/]` and `--prefix`.
///
/// # Errors
/// A sentence that says which of them is wrong and how it should look.
pub(crate) fn bucket_and_prefix(bucket: &str, prefix: Option<&str>) -> Result<(String, String), String> {
    let (bucket, prefix) = match (bucket.strip_prefix("s3://"), prefix) {
        (Some(_), Some(_)) => {
            return Err("a prefix stands in the s3:// URL or in --prefix, not in both".into());
        }
        (Some(rest), None) => rest.split_once('/').unwrap_or((rest, "")),
        (None, prefix) => (bucket, prefix.unwrap_or("")),
    };
    if bucket.is_empty() {
        return Err("the bucket's name is empty".into());
    }
    if bucket.contains(['/', '?', '#', '@', ' ']) || bucket.chars().any(char::is_control) {
        return Err(format!(
            "'{}' is no bucket's name; a prefix is given as s3://bucket/prefix/",
            bucket.escape_debug()
        ));
    }
    if !prefix.is_empty() && !prefix.ends_with('/') {
        return Err(format!("the prefix must end in '/': '{}/'", prefix.escape_debug()));
    }
    Ok((bucket.to_owned(), prefix.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(["mount-s3", "bucket", "/mnt"].iter().chain(args))
    }

    #[test]
    fn the_flags_are_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn a_bucket_may_be_a_name_or_a_url() {
        let ok = |b, p| bucket_and_prefix(b, p).unwrap();
        assert_eq!(ok("b", None), ("b".into(), String::new()));
        assert_eq!(ok("b", Some("a/b/")), ("b".into(), "a/b/".into()));
        assert_eq!(ok("s3://b", None), ("b".into(), String::new()));
        assert_eq!(ok("s3://b/a/b/", None), ("b".into(), "a/b/".into()));
        for (b, p) in
            [("s3://b/a", None), ("b", Some("a")), ("s3://b/", Some("a/")), ("b/a/", None), ("", None)]
        {
            assert!(bucket_and_prefix(b, p).is_err(), "{b} {p:?}");
        }
    }

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
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            &["--file-mode", "888"][..],
            &["--part-size", "1000"],
            &["--part-size", "8388608", "--read-part-size", "8388608"],
            &["--allow-root", "--allow-other"],
            &["--sse-kms-key-id", "x"],
            &["--memory-target", "100"],
            &["--metadata-ttl", "soon"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
