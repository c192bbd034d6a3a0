//! All flags, with their help and their defaults. Also reads the environment, except the variables of supervisors, which `config.rs` and
//! `main.rs` read.
//!
//! Enters: a command line from a shell, systemd or mount(8). Leaves: a valid [`Asked`], or clap's error, which ends with exit code 2.

mod bucket;
mod caching;
mod client;
mod credentials;
mod environment;
mod fstab;
mod logging;
mod mounting;
#[cfg(feature = "commands")]
pub mod pages;
mod staging;
mod store;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};

pub use bucket::check_name;
pub(crate) use bucket::{BucketOptions, bucket_and_prefix};
pub(crate) use caching::{CacheOptions, ReadModeArg, When};
pub(crate) use client::{ClientOptions, TransportArg};
pub(crate) use credentials::CredentialOptions;
pub use environment::heeded;
pub(crate) use environment::{absolute_files, key_files, of_programs, restart_status, wishes_sandbox};
pub(crate) use logging::LogFormat;
pub use logging::LoggingOptions;
pub(crate) use mounting::{MountOptions, SandboxArg};
pub(crate) use staging::StagingOptions;
pub use store::StoreOptions;

use crate::net::ProxyVariables;
pub use crate::s3::without_password;

/// Version of this program, and the release of AWS's mount-s3 that it replaces. `docs/migrating.md` lists the differences.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "+aws.1.24");

/// Largest number of MiB whose bytes fit into 64 bits.
const MIB_MAX: u64 = u64::MAX >> 20;

const EXAMPLE: &str = "\
Example:
  mount-s3 my-bucket /mnt/data
  mount-s3 s3://my-bucket/photos/ /mnt/photos --read-only --cache /var/cache/mount-s3";

const AFTER: &str = "\
In /etc/fstab, with mount-s3 linked as /sbin/mount.mount-s3:
  s3://my-bucket/photos/ /mnt/photos mount-s3 _netdev,nosuid,nodev,ro,cache=/var/cache/mount-s3 0 0

  mount-s3 <BUCKET_NAME> <DIRECTORY> -o <OPTIONS> takes the same options: those above without '--', separated by commas.

mount-s3 --completions bash|elvish|fish|powershell|zsh prints completions, mount-s3 --man the manual page.

Credentials come from the same sources as for AWS tools: environment, ~/.aws, web identity, container, instance.";

/// Mount an S3 bucket as a directory; a drop-in for AWS's mount-s3 1.24
#[derive(Clone, Debug, Parser)]
#[command(name = "mount-s3", version = VERSION, max_term_width = 100, before_help = EXAMPLE, after_help = AFTER)]
pub struct Args {
    /// Bucket, or s3://bucket/prefix/
    #[arg(value_name = "BUCKET_NAME", value_parser = bucket::parse_bucket)]
    pub bucket: String,

    /// Directory to mount on, or /dev/fd/N for a FUSE device that another process opened and mounted
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,

    #[command(flatten)]
    pub(crate) bucket_options: BucketOptions,
    #[command(flatten)]
    pub(crate) credentials: CredentialOptions,
    #[command(flatten)]
    pub(crate) mount: MountOptions,
    #[command(flatten)]
    pub(crate) staging: StagingOptions,
    #[command(flatten)]
    pub(crate) client: ClientOptions,
    #[command(flatten)]
    pub(crate) cache: CacheOptions,
    /// Log and metrics
    #[command(flatten)]
    pub logging: LoggingOptions,

    /// Stay in the foreground, log to standard output
    #[arg(short, long)]
    pub foreground: bool,

    /// Let the mount outlive this process: systemd (FileDescriptorStoreMax=2, Type=notify) keeps it for the next one
    #[arg(long)]
    pub supervised: bool,

    /// Say whether this program could go on with the mount whose journal is on standard input, and mount nothing
    #[arg(long, hide = true, requires = "supervised")]
    pub check_journal: bool,

    /// Write one line here when the mount is ready: 'ready', or the error; a file, a pipe or /dev/fd/N
    #[arg(long, value_name = "PATH")]
    pub ready_file: Option<PathBuf>,

    /// Proxies for requests, from the environment
    #[arg(skip)]
    pub(crate) proxies: ProxyVariables,
    /// Files with credentials, as the environment names them
    #[arg(skip)]
    pub(crate) credential_files: Vec<PathBuf>,
    /// Default of --state-dir: the directory for notes of uploads in progress, from the environment
    #[arg(skip)]
    pub(crate) state_dir_default: Option<PathBuf>,

    /// The words of the command line except bucket and directory, without passwords
    #[arg(skip)]
    pub(crate) flags: Vec<String>,
    /// Export of metrics, from the flags and the environment
    #[arg(skip)]
    pub(crate) otlp: Option<crate::telemetry::otlp::Settings>,
    /// Folder for sockets of this user, from the environment
    #[arg(skip)]
    pub(crate) runtime_dir: Option<PathBuf>,

    /// Remarks on the command line for the log: values that the engine does not use as written
    #[arg(skip)]
    pub remarks: Vec<Remark>,
}

/// A line for the log about the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// A value that the engine does not use as written.
    Warning(String),
    /// A flag that has no effect, and needs none.
    Info(&'static str),
}

/// The program's task, by its command line.
#[derive(Debug)]
pub enum Asked {
    /// Mount a bucket.
    Mount(Box<Args>),
    /// Mount a bucket for mount(8).
    Fstab(Box<Args>, FromMount),
}

/// Arguments of mount(8) that are not mount options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FromMount {
    /// Whether to do everything except the mount (`-f`).
    pub fake: bool,
    /// The mount namespace in which to mount (`-N`).
    pub namespace: Option<PathBuf>,
}

/// Parses a command line and the environment. The grammar is that of mount(8) if the program's name is `mount.*` (a helper of mount(8)), or
/// if `-o` follows bucket and directory.
///
/// # Errors
/// The error of clap, with its exit code: 0 for help and version, 2 for bad usage.
pub fn asked(line: impl IntoIterator<Item = OsString>) -> Result<Asked, clap::Error> {
    let line: Vec<OsString> = line.into_iter().collect();
    if fstab::is_asked(&line) {
        let (line, from_mount) = fstab::read(line)?;
        let mut args = Args::read(line.args).map_err(fstab::explained)?;
        args.mount.no_exec = line.no_exec;
        args.mount.labels = line.labels;
        return Ok(Asked::Fstab(Box::new(args), from_mount));
    }
    Args::read(line).map(|args| Asked::Mount(Box::new(args)))
}

impl Args {
    /// Parses the flags in the grammar of `mount-s3`, and the environment.
    fn read(line: Vec<OsString>) -> Result<Self, clap::Error> {
        let (command, remarks) = environment::heeded(Self::command());
        let mut args = Self::from_arg_matches(&command.try_get_matches_from(line.clone())?)?;
        args.check().map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, error + "\n"))?;
        args.remarks = remarks;
        args.proxies = environment::proxies();
        args.credential_files = environment::credential_files();
        args.state_dir_default = environment::state_dir();
        args.runtime_dir = environment::runtime_dir();
        let (endpoint, interval) = (args.logging.otlp_endpoint.as_deref(), args.logging.otlp_export_interval);
        args.otlp = environment::otlp(endpoint, interval)
            .map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, error + "\n"))?;
        args.flags = args.shown_flags(&line);
        args.remark();
        Ok(args)
    }

    /// Checks combinations of flags. A program that passes these flags on can call this to find errors earlier.
    ///
    /// # Errors
    /// A sentence that names the wrong flag, and its right form.
    pub fn check(&self) -> Result<(), String> {
        bucket_and_prefix(&self.bucket, self.bucket_options.prefix.as_deref())?;
        self.client.check()?;
        self.bucket_options.check()?;
        self.check_supervised()?;
        self.logging.check()?;
        self.staging.check(&[
            (self.mount.read_only, "--read-only"),
            (self.supervised, "--supervised"),
            (self.mount.keep_metadata, "--keep-metadata"),
        ])?;
        if self.mount.incremental_upload {
            return Err("--incremental-upload is not supported: only directory buckets can append, and they can't be mounted here; leave it out, and files are stored whole when they are closed".into());
        }
        if self.cache.cache_xz.is_some() {
            return Err("--cache-xz is not supported: directory buckets (S3 Express One Zone) can't be used here; use --cache with a local directory".into());
        }
        Ok(())
    }

    fn check_supervised(&self) -> Result<(), String> {
        let refused =
            |flag: &str, why: &str| Err(format!("--supervised can't go together with {flag}: {why}"));
        match self.client.fuse_transport {
            _ if !self.supervised => Ok(()),
            TransportArg::IoUring => refused(
                "--fuse-transport io-uring",
                "the kernel sends requests of a ring to no other process",
            ),
            TransportArg::Fuser => refused("--fuse-transport fuser", "it can't take a mount over"),
            _ if self.mount.auto_unmount => refused(
                "--auto-unmount",
                "that unmounts when this process is killed, and the mount is to go on",
            ),
            _ if !self.foreground => {
                Err("--supervised needs --foreground: systemd starts this command again when it ends".into())
            }
            _ => Ok(()),
        }
    }

    /// The flags for `mount-s3-ctl status`, without passwords in URLs.
    fn shown_flags(&self, line: &[OsString]) -> Vec<String> {
        let words = line.iter().skip(1).filter(|word| **word != *self.bucket && **word != *self.directory);
        words.map(|word| without_password(&word.to_string_lossy())).collect()
    }

    fn remark(&mut self) {
        if self.cache.metadata_ttl == Some(caching::TtlArg::Seconds(0)) {
            self.remarks.push(Remark::Warning("--metadata-ttl 0 is taken as 'minimal'".into()));
        }
        let writes = [
            (self.mount.allow_delete, "--allow-delete"),
            (self.mount.allow_overwrite, "--allow-overwrite"),
            (self.mount.allow_append, "--allow-append"),
            (self.mount.allow_rename, "--allow-rename"),
        ];
        for (_, flag) in writes.iter().filter(|(is_given, _)| *is_given && self.mount.read_only) {
            self.remarks.push(Remark::Warning(format!(
                "{flag} has no effect with --read-only: leave one of them out"
            )));
        }
        if self.logging.debug_crt {
            self.remarks.push(Remark::Info(
                "--debug-crt has no effect: there is no AWS Common Runtime in this engine; --debug shows every request",
            ));
        }
    }

    /// Whether log lines are JSON objects.
    pub fn logs_json(&self) -> bool {
        self.logging.log_format == LogFormat::Json
    }

    /// The mounted bucket and prefix, as text.
    pub fn description(&self) -> String {
        match bucket_and_prefix(&self.bucket, self.bucket_options.prefix.as_deref()) {
            Ok((bucket, prefix)) if !prefix.is_empty() => format!("prefix {prefix} of bucket {bucket}"),
            Ok((bucket, _)) => format!("bucket {bucket}"),
            Err(_) => format!("bucket {}", self.bucket),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        let line = ["mount-s3", "bucket", "/mnt"].iter().chain(args).map(OsString::from);
        Args::read(line.collect())
    }

    #[test]
    fn the_flags_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn flags_are_shown_without_the_bucket_the_directory_and_passwords() {
        let args =
            parse(&["--read-only", "--endpoint-url", "https://me:key@store:9/x@y", "--cache=/c"]).unwrap();
        assert_eq!(args.flags, ["--read-only", "--endpoint-url", "https://store:9/x@y", "--cache=/c"]);
    }

    #[test]
    fn a_mount_that_is_to_outlive_its_engine_needs_the_transport_that_can() {
        let said = |flags: &[&str]| {
            let args = parse(&[&["--supervised"], flags].concat());
            args.err().map_or_else(String::new, |error| error.to_string())
        };
        assert_eq!(said(&["--foreground"]), "");
        assert_eq!(said(&["--foreground", "--fuse-transport", "dev"]), "");
        for (flags, named) in [
            (&["--foreground", "--auto-unmount"][..], "--auto-unmount"),
            (&["--foreground", "--fuse-transport", "io-uring"], "io-uring"),
            (&["--foreground", "--fuse-transport", "fuser"], "fuser"),
            (&[], "--foreground"),
        ] {
            assert!(said(flags).contains(named), "{flags:?}: {}", said(flags));
        }
    }

    const KEY: &str = "arn:aws:kms:eu-west-3:111122223333:key/1234-abcd";

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            &["--file-mode", "888"][..],
            &["--part-size", "1000"],
            &["--part-size", "8388608", "--read-part-size", "8388608"],
            &["--allow-root", "--allow-other"],
            &["--sse-kms-key-id", KEY],
            &["--sse", "aws:kms", "--sse-kms-key-id", "1234-abcd"],
            &["--sse", "aws:kms", "--sse-kms-key-id", "alias/mine"],
            &["--sse", "aws:kms", "--sse-kms-key-id", "arn:aws:kms:eu-west-3:111122223333:alias/mine"],
            &["--sse", "aws:kms", "--sse-kms-key-id", "arn:aws:kms:eu-west-3:111122223333:key/"],
            &["--sse", "aws:kms", "--sse-kms-key-id", "arn:aws:kms:eu-west-3:111122223333:key/1\n"],
            &["--memory-target", "100"],
            &["--memory-target", "17592186044416"],
            &["--cache", "/c", "--max-cache-size", "17592186044416"],
            &["--operation-timeout", "0"],
            &["--operation-timeout", "a minute"],
            &["--metadata-ttl", "soon"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
