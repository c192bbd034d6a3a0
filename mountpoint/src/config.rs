//! What the flags mean: one configuration per room, checked before anything is touched.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::cli::{self, Args};
use crate::inode::Prefix;
use crate::{buffer, cache, fs, fuse, inode, logging, prefetch, s3, upload};

/// A mount, ready to be made.
#[derive(Debug)]
pub struct Config {
    /// The bucket as the user named it, for messages.
    pub name: String,
    /// Where the kernel's requests come from.
    pub device: fuse::Device,
    /// How it is mounted.
    pub mount: fuse::MountOptions,
    /// What is allowed and shown.
    pub fs: fs::Config,
    /// Names.
    pub inode: inode::Config,
    /// Reading.
    pub prefetch: prefetch::Config,
    /// Writing.
    pub upload: upload::Config,
    /// The disk cache, if there is one.
    pub cache: Option<cache::Config>,
    /// Memory.
    pub buffer: buffer::Config,
    /// The store.
    pub s3: s3::Config,
}

/// Read-ahead we ask of the kernel where we may: one block, so that a sequential reader's requests are as large as can be.
const READ_AHEAD: u64 = buffer::BLOCK as u64;
/// Threads that take requests, per core: they never wait, so that more of them only take turns.
const THREADS_PER_CORE: usize = 2;

impl Config {
    /// # Errors
    /// A sentence that names the flag that is wrong, and the fix.
    pub fn from_args(args: &Args) -> anyhow::Result<Self> {
        let (bucket, prefix) = cli::bucket_and_prefix(&args.bucket, args.bucket_options.prefix.as_deref())
            .map_err(anyhow::Error::msg)?;
        let device = device(&args.directory, args)?;
        let memory = match args.client.memory_target {
            Some(mib) => mib << 20,
            None => default_memory_target(memory_of_this_machine()),
        };
        let mut s3 = s3::Config::for_memory(memory);
        s3.bucket.clone_from(&bucket);
        s3.prefix.clone_from(&prefix);
        s3.region.clone_from(&args.bucket_options.region);
        s3.endpoint_url.clone_from(&args.bucket_options.endpoint_url);
        s3.force_path_style = args.bucket_options.force_path_style;
        s3.sign_requests = !args.credentials.no_sign_request;
        s3.profile.clone_from(&args.credentials.profile);
        s3.ca_bundle.clone_from(&args.client.ca_bundle);
        s3.requester_pays = args.bucket_options.requester_pays;
        s3.expected_bucket_owner.clone_from(&args.bucket_options.expected_bucket_owner);
        s3.storage_class.clone_from(&args.bucket_options.storage_class);
        s3.sse.clone_from(&args.bucket_options.sse);
        s3.sse_kms_key_id.clone_from(&args.bucket_options.sse_kms_key_id);
        s3.user_agent_prefix.clone_from(&args.client.user_agent_prefix);
        s3.sign_payload = args.bucket_options.sign_payload;
        s3.attempts_max = args.client.max_attempts;

        let cache = args.cache.cache.as_ref().filter(|_| args.cache.max_cache_size != Some(0)).map(|dir| {
            let endpoint = s3.endpoint_url.clone().unwrap_or_default();
            cache::Config {
                size_max: args.cache.max_cache_size.map(|mib| mib << 20),
                // What a network brings faster than the disk takes waits in memory, and holds its share of it: so
                // read-ahead slows down before blocks have to be dropped.
                queue_max: (memory / 4 / cache::CACHE_BLOCK) as usize,
                ..cache::Config::new(dir, endpoint, &bucket)
            }
        });
        let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let mut prefetch = prefetch::Config::default();
        prefetch.window.part = args.client.read_part_size.unwrap_or(args.client.part_size);
        Ok(Self {
            name: args.bucket.clone(),
            device,
            mount: fuse::MountOptions {
                transport: args.client.fuse_transport.into(),
                read_only: args.mount.read_only,
                allow_other: args.mount.allow_other,
                allow_root: args.mount.allow_root,
                auto_unmount: args.mount.auto_unmount,
                threads: (cores * THREADS_PER_CORE).clamp(2, args.client.max_threads.max(2).into()),
                read_ahead: Some(READ_AHEAD),
            },
            fs: fs::Config {
                ownership: fs::Ownership {
                    uid: args.mount.uid.unwrap_or(user),
                    gid: args.mount.gid.unwrap_or(group),
                    file_mode: args.mount.file_mode,
                    dir_mode: args.mount.dir_mode,
                },
                read_only: args.mount.read_only,
                allow_delete: args.mount.allow_delete,
                allow_overwrite: args.mount.allow_overwrite,
            },
            inode: inode::Config {
                prefix: Prefix::new(&prefix).map_err(|e| anyhow::anyhow!("--prefix: {e}"))?,
                ttl: args.cache.ttl(),
                ..inode::Config::default()
            },
            prefetch,
            upload: upload::Config {
                part_size: args.client.write_part_size.unwrap_or(args.client.part_size),
                checksum: args.bucket_options.upload_checksums.algorithm(),
                spill_dir: args.client.spill_dir.clone().or_else(|| args.cache.cache.clone()),
                ..upload::Config::default()
            },
            cache,
            buffer: buffer::Config { target: memory, network: s3.network_memory() },
            s3,
        })
    }
}

/// What the flags say of the log.
pub fn logging(args: &Args) -> logging::Config {
    logging::Config {
        stdout: args.foreground,
        directory: args.logging.log_directory.clone(),
        off: args.logging.no_log,
        debug: args.logging.debug,
        filter: args.logging.log_filter.clone(),
    }
}

/// A directory to mount on, or a device that was handed to us.
fn device(directory: &Path, args: &Args) -> anyhow::Result<fuse::Device> {
    let number = directory.to_str().and_then(|d| d.strip_prefix("/dev/fd/"));
    let Some(number) = number else { return Ok(fuse::Device::Mount(mount_directory(directory)?)) };
    if args.mount.read_only || args.mount.auto_unmount {
        bail!(
            "--read-only and --auto-unmount belong to whoever mounted {}: give them to mount(2) there",
            directory.display()
        );
    }
    let number: i32 = number.parse().ok().filter(|n| *n > 2).with_context(|| {
        format!("{}: give /dev/fd/N with the number, above 2, of an open /dev/fuse", directory.display())
    })?;
    let target = std::fs::read_link(format!("/proc/self/fd/{number}")).with_context(|| {
        format!("{}: no such file descriptor was handed to this process", directory.display())
    })?;
    if target != Path::new("/dev/fuse") {
        bail!("{} is {}, not /dev/fuse", directory.display(), target.display());
    }
    let fd = adopt(number);
    let flags = rustix::fs::fcntl_getfl(fd.as_fd())?;
    if !flags.contains(rustix::fs::OFlags::RDWR) {
        bail!("{} must be open for reading and writing", directory.display());
    }
    // The loop waits in read(2).
    rustix::fs::fcntl_setfl(fd.as_fd(), flags - rustix::fs::OFlags::NONBLOCK)?;
    rustix::io::fcntl_setfd(fd.as_fd(), rustix::io::FdFlags::CLOEXEC)?;
    Ok(fuse::Device::Adopted(fd))
}

#[expect(
    unsafe_code,
    reason = "a descriptor by its number can't be had otherwise: fence 2 of ARCHITECTURE.md"
)]
fn adopt(number: i32) -> OwnedFd {
    // SAFETY: the caller saw that the descriptor is open and is /dev/fuse; whoever started us gave it to us by putting
    // its number on the command line, and nothing else in this process knows it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// The directory, absolute, and fit to be mounted on.
fn mount_directory(directory: &Path) -> anyhow::Result<PathBuf> {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let absolute = std::fs::canonicalize(directory).map_err(|error| {
        let dead = error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error());
        match dead {
            true => anyhow::anyhow!(
                "{}: a mount whose process is gone is still there; remove it with: umount -l {}",
                directory.display(),
                directory.display()
            ),
            false => anyhow::Error::new(error).context(format!("mount directory {}", directory.display())),
        }
    })?;
    if !absolute.is_dir() {
        bail!("mount directory {}: not a directory", directory.display());
    }
    let stat = statx(CWD, &absolute, AtFlags::empty(), StatxFlags::BASIC_STATS)?;
    let is_mounted = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    let autofs = rustix::fs::statfs(&absolute).is_ok_and(|s| s.f_type == 0x0187);
    if is_mounted && !autofs {
        bail!("mount directory {}: something is mounted there already", directory.display());
    }
    Ok(absolute)
}

/// A quarter of the machine: no less than all make progress with, no more than sixteen read windows of the largest size.
fn default_memory_target(memory: u64) -> u64 {
    (memory / 4).clamp(buffer::Config::TARGET_MIN, 4 << 30)
}

/// Bytes that this process may have: the machine's, or its control group's limit.
fn memory_of_this_machine() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let total = read("/proc/meminfo")
        .and_then(|text| {
            text.lines()
                .find_map(|l| l.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok())
        })
        .map_or(4 << 30, |kib| kib << 10);
    let limit = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .filter_map(|path| read(path)?.trim().parse::<u64>().ok())
        .min()
        .unwrap_or(u64::MAX);
    total.min(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn config(args: &[&str]) -> anyhow::Result<Config> {
        Config::from_args(&Args::try_parse_from(["mount-s3"].iter().chain(args)).unwrap())
    }

    #[test]
    fn the_memory_target_is_a_quarter_of_the_machine_within_limits() {
        assert_eq!(default_memory_target(8 << 30), 2 << 30);
        assert_eq!(default_memory_target(256 << 20), 128 << 20);
        assert_eq!(default_memory_target(1 << 40), 4 << 30);
    }

    #[test]
    fn a_directory_that_cannot_be_mounted_on_is_named() {
        let error = |dir| format!("{:#}", config(&["b", dir]).unwrap_err());
        assert!(error("/no/such/dir").contains("/no/such/dir"));
        assert!(error("/proc").contains("mounted there already"));
        assert!(error("/etc/passwd").contains("not a directory"));
        assert!(error("/dev/fd/999").contains("/dev/fd/999"));
        assert!(error("/dev/fd/1").contains("above 2"));
    }
}
