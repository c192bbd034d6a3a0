//! Turns the flags into one configuration per room, and checks it before the program changes anything.

mod memory;
mod mount_point;
pub mod sandboxed;

use std::os::fd::{AsFd, FromRawFd, IntoRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Resource, getrlimit};

use crate::checksum::ChecksumAlgorithm;
use crate::cli::{self, Args, BucketOptions, ClientOptions, CredentialOptions, StoreOptions};
use crate::daemon::ReadyFile;
use crate::inode::Prefix;
use crate::net::ProxyVariables;
use crate::object::ObjectKey;
use crate::outlive::Journal;
use crate::{
    buffer, cache, daemon, fs, fuse, handover, inode, kept, moves, prefetch, s3, stage, telemetry, upload,
};

/// The configuration of a mount.
#[derive(Debug)]
pub struct Config {
    /// The bucket as the user named it, for messages.
    pub name: String,
    /// The FUSE device, or the directory on which to mount one.
    pub device: fuse::Device,
    /// The options of the FUSE mount.
    pub mount: fuse::MountOptions,
    /// Permissions and attributes of files.
    pub fs: fs::Config,
    /// Settings of names and their attributes.
    pub inode: inode::Config,
    /// Settings of reads.
    pub prefetch: prefetch::Config,
    /// Settings of renames, with `--allow-rename`.
    pub moves: Option<moves::Config>,
    /// Settings of the stage, the local disk in front of the bucket, with `--mode full`.
    pub stage: Option<stage::Config>,
    /// Settings of objects' attributes, with `--keep-metadata` or `--xattrs`.
    pub kept: Option<Kept>,
    /// Settings of writes.
    pub upload: upload::Config,
    /// Settings of the disk cache, if there is one.
    pub cache: Option<cache::Config>,
    /// Settings of memory for data.
    pub buffer: buffer::Config,
    /// Settings of the store's client.
    pub s3: s3::Config,
    /// The unset variable of the pair AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, if only the other one is set.
    pub missing_key: Option<&'static str>,
    /// Settings of metrics, log and control socket.
    pub telemetry: telemetry::Config,
    /// The descriptors and the service manager of a mount that outlives its engine (`--supervised`).
    pub supervised: Option<Supervised>,
    /// The sandbox of the process after the mount.
    pub sandbox: Option<sandboxed::Sandbox>,
}

/// Settings of the attributes in objects' metadata.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Whether objects keep modes, owners, times, links and extended attributes (`--keep-metadata`).
    pub keeps: bool,
    /// Whether extended attributes show the store's facts about an object (`--xattrs`).
    pub shows: bool,
    /// The file of known attributes, for the next mount.
    pub file: Option<kept::FileConfig>,
}

/// The descriptors that a service manager keeps for a mount that outlives its engine, and the connection to that manager.
#[derive(Debug)]
pub struct Supervised {
    /// The service manager; `None` without one.
    pub manager: Option<daemon::ServiceManager>,
    /// The exit status at which the service manager restarts the program; `None` if it does not say.
    pub restart_status: Option<u8>,
    /// The journal, if an earlier engine created it.
    pub journal: Option<OwnedFd>,
    /// The device of the mount, if an earlier engine mounted it.
    pub device: Option<OwnedFd>,
    /// Whether the file system is mounted already: with `device`, or with a mount point that is a device.
    pub is_mounted: bool,
}

/// Number of the first descriptor that a service manager passes.
const LISTEN_FDS_FIRST: i32 = 3;
/// Most descriptors from the service manager that are examined. The driver's unit passes two.
const LISTEN_FDS_MAX: usize = 16;

/// Read-ahead of the kernel that the mount requests, where it may: one block, so a sequential reader's requests are as large as possible.
const READ_AHEAD: u64 = buffer::BLOCK as u64;
/// Threads for the kernel's requests, per core. They never block, so more would not work in parallel.
const THREADS_PER_CORE: usize = 2;

impl Config {
    /// Makes the configuration from flags and environment.
    ///
    /// # Errors
    /// A sentence that names the wrong flag and the fix.
    pub fn from_args(args: &Args) -> anyhow::Result<Self> {
        let (bucket, prefix) = cli::bucket_and_prefix(&args.bucket, args.bucket_options.prefix.as_deref())
            .map_err(anyhow::Error::msg)?;
        let mut supervised = args.supervised.then(|| supervised(args)).transpose()?;
        let device = match &supervised {
            // The mount point needs no check: either its engine has ended, or this process will replace the present engine.
            Some(supervised) if supervised.device.is_some() || args.check_journal => {
                fuse::Device::Mount(std::path::absolute(&args.directory).context("the mount point")?)
            }
            _ => device(&args.directory, args)?,
        };
        if let (Some(supervised), fuse::Device::Adopted(fd)) = (&mut supervised, &device) {
            supervised.is_mounted = is_connected(fd);
        }
        let memory = match args.client.memory_target {
            Some(mib) => mib << 20,
            None => memory::default_target(),
        };
        let flags = StoreFlags {
            bucket: &args.bucket_options,
            credentials: &args.credentials,
            client: &args.client,
            proxies: &args.proxies,
            credential_files: &args.credential_files,
        };
        let cache_dir = absolute("--cache", args.cache.cache.as_deref())?;
        let spill_dir = absolute("--spill-dir", args.client.spill_dir.as_deref())?;
        let cached = cache_dir.as_ref().filter(|_| args.cache.max_cache_size != Some(0));
        let (memory, index_max) = memory::shares(memory, cached.is_some());
        let mut s3 = flags.s3(&bucket, &prefix, memory);
        s3.state_dir = state_dir(args)?;
        // Memory comes free when requests end, also those that an outage left without an answer: this limit lets them end first. A part on
        // a slow line may take longer; a writer waits as long as one is in flight.
        let memory_within = s3.timeouts.operation + s3.timeouts.tail();

        let cache = cached.map(|dir| {
            cache::Config {
                size_max: args.cache.max_cache_size.map(|mib| mib << 20),
                index_max,
                // Bytes that arrive faster than the disk can write them wait in memory, within this share, so read-ahead slows down before
                // the cache must drop blocks.
                queue_max: (memory / 4 / cache::CACHE_BLOCK) as usize,
                ..cache::Config::new(dir, "", &bucket)
            }
        });
        let is_full = args.staging.is_full();
        let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let mut prefetch = prefetch::Config { wait_max: memory_within, ..prefetch::Config::default() };
        prefetch.window.part = args.client.read_part_size.unwrap_or(args.client.part_size);
        let mount_point = match &device {
            fuse::Device::Mount(directory) => directory,
            fuse::Device::Adopted(_) | fuse::Device::Outliving(_) => &args.directory,
        };
        let telemetry = telemetry::Config {
            log: args.logging.log_metrics,
            listen: args.logging.metrics_listen.clone(),
            otlp: args.otlp.clone(),
            driver: absolute("--control-socket", args.logging.control_socket.as_deref())?,
            control: telemetry::places(args.runtime_dir.as_deref()),
            origin: telemetry::Origin {
                bucket: bucket.clone(),
                prefix: prefix.clone(),
                mount_point: mount_point.to_string_lossy().into_owned(),
                flags: args.flags.clone(),
                cache: cache_dir
                    .as_ref()
                    .filter(|_| cache.is_some())
                    .map(|dir| dir.to_string_lossy().into_owned()),
                pid: std::process::id(),
                uid: user,
                version: cli::VERSION.to_owned(),
            },
        };
        let stage_dir = absolute("--stage", args.staging.stage.as_deref())?.filter(|_| is_full);
        let written = [&spill_dir, &stage_dir, &s3.state_dir].map(Clone::clone);
        Ok(Self {
            sandbox: sandboxed::wished(args, cache_dir.clone(), written, telemetry.folders()),
            name: args.bucket.clone(),
            missing_key: missing_key(),
            supervised,
            device,
            mount: fuse::MountOptions {
                transport: args.client.fuse_transport.into(),
                read_only: args.mount.read_only,
                allow_other: args.mount.allow_other,
                allow_root: args.mount.allow_root,
                auto_unmount: args.mount.auto_unmount,
                no_exec: args.mount.no_exec,
                labels: labels(&args.mount.labels, Path::new(SELINUX)),
                threads: (cores * THREADS_PER_CORE)
                    .clamp(2, usize::try_from(args.client.max_threads).unwrap_or(usize::MAX).max(2)),
                reads_direct: args.cache.read_mode != cli::ReadModeArg::Buffered,
                passthrough: match is_full {
                    true => args.staging.lends(),
                    false => cache.is_some() && args.cache.cache_passthrough == cli::When::Auto,
                },
                registrar: None,
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
                allow_delete: args.mount.allow_delete || is_full,
                allow_overwrite: args.mount.allow_overwrite || is_full,
                allow_append: args.mount.allow_append,
                rename_errno: args.mount.rename_errno.into(),
                // Git does not recognise a repository whose empty directory `refs/` is missing.
                directory_markers: args.mount.directory_markers || is_full,
                attributes: match args.mount.ignore_attributes {
                    true => fs::Attributes::Ignored,
                    false => fs::Attributes::Refused,
                },
                read_mode: args.cache.read_mode.into(),
            },
            inode: inode::Config {
                prefix: Prefix::new(&prefix).map_err(|e| anyhow::anyhow!("--prefix: {e}"))?,
                ttl: args.cache.ttl(),
                // The flag is required, because each lookup of a missing name costs one more request.
                folder_marks: args.mount.directory_markers,
                brought: inode::BROUGHT,
                unasked: args.staging.unasked(args.cache.asks_for_absent()),
                ..inode::Config::default()
            },
            kept: match args.mount.keep_metadata || args.mount.xattrs {
                true => Some(Kept {
                    keeps: args.mount.keep_metadata,
                    shows: args.mount.xattrs,
                    file: attributes_dir(args)?.map(|dir| kept::FileConfig {
                        dir,
                        endpoint: String::new(),
                        bucket: bucket.clone(),
                    }),
                }),
                false => None,
            },
            moves: match args.mount.allow_rename || is_full {
                true => Some(moves::Config {
                    names_max: args.mount.rename_limit,
                    folder_marks: args.mount.directory_markers,
                    notes: state_dir(args)?.map(|dir| moves::NotesConfig {
                        dir,
                        endpoint: String::new(),
                        bucket: bucket.clone(),
                        prefix: prefix.clone(),
                    }),
                    ..moves::Config::default()
                }),
                false => None,
            },
            prefetch,
            stage: stage_dir.map(|dir| stage::Config {
                dir,
                size_max: args.staging.stage_size << 20,
                bucket: bucket.clone(),
                prefix: prefix.clone(),
                endpoint: String::new(),
                commit: args.staging.promise(),
                lends: args.staging.lends(),
                is_confined: false,
            }),
            upload: upload::Config {
                part_size: args.client.write_part_size.unwrap_or(args.client.part_size),
                part_size_named: args.client.names_write_part(),
                checksum: args.bucket_options.upload_checksum(&bucket),
                content_type: match args.bucket_options.infer_content_type {
                    true => type_by_extension,
                    false => |_| None,
                },
                spill_dir: spill_dir.or(cache_dir),
                // The other half is for the cache, which uses a quarter at most, for connections and the journal.
                spill_files_max: open_files / 2,
                wait_max: memory_within,
                journal: journal(args, &bucket, &prefix)?,
                ..upload::Config::default()
            },
            cache,
            buffer: buffer::Config { target: memory, network: s3.network_memory() },
            s3,
            telemetry,
        })
    }
}

/// The flags and variables about a store and the connections to it.
struct StoreFlags<'a> {
    bucket: &'a BucketOptions,
    credentials: &'a CredentialOptions,
    client: &'a ClientOptions,
    proxies: &'a ProxyVariables,
    credential_files: &'a [PathBuf],
}

impl StoreFlags<'_> {
    /// The store's settings for a memory target of `memory` bytes, without a file for learned facts.
    fn s3(&self, bucket: &str, prefix: &str, memory: u64) -> s3::Config {
        let mut s3 = s3::Config::for_memory(memory);
        bucket.clone_into(&mut s3.bucket);
        prefix.clone_into(&mut s3.prefix);
        s3.region.clone_from(&self.bucket.region);
        s3.endpoint_url.clone_from(&self.bucket.endpoint_url);
        s3.store = self.bucket.store.kind();
        s3.force_path_style = self.bucket.force_path_style;
        s3.transfer_acceleration = self.bucket.transfer_acceleration;
        s3.dual_stack = self.bucket.dual_stack;
        s3.interfaces.clone_from(&self.client.bind);
        s3.sign_requests = !self.credentials.no_sign_request;
        // Unsigned requests need no profile.
        s3.profile = self.credentials.profile.clone().filter(|_| s3.sign_requests);
        self.credential_files.clone_into(&mut s3.credential_files);
        s3.ca_bundle.clone_from(&self.client.ca_bundle);
        s3.extra_ca_bundles.clone_from(&self.client.extra_ca_bundle);
        s3.proxies.clone_from(self.proxies);
        s3.requester_pays = self.bucket.requester_pays;
        s3.expected_bucket_owner.clone_from(&self.bucket.expected_bucket_owner);
        s3.storage_class.clone_from(&self.bucket.storage_class);
        s3.sse.clone_from(&self.bucket.sse);
        s3.sse_kms_key_id.clone_from(&self.bucket.sse_kms_key_id);
        s3.user_agent_prefix.clone_from(&self.client.user_agent_prefix);
        s3.sign_payload = self.bucket.sign_payload;
        s3.attempts_max = self.client.max_attempts;
        s3.timeouts.patience(Duration::from_secs(self.client.operation_timeout.into()));
        if let Some(gbps) = self.client.maximum_throughput_gbps {
            s3.throughput_target = gbps.saturating_mul(1_000_000_000 / 8);
        }
        s3
    }
}

/// The settings of a command that uses a store without mounting it.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The store's settings, as for a mount.
    pub s3: s3::Config,
    /// The checksum of uploads; `None`: uploads have none.
    pub checksum: Option<ChecksumAlgorithm>,
    /// Largest read request, in bytes.
    pub part: u64,
}

/// The settings of a store, as for a mount with these flags. An operation waits at most `patience`.
///
/// # Errors
/// A sentence that names the wrong flag.
pub fn store(options: &StoreOptions, patience: Duration) -> Result<StoreConfig, String> {
    let (bucket, prefix) = cli::bucket_and_prefix(&options.bucket, options.bucket_options.prefix.as_deref())?;
    let flags = StoreFlags {
        bucket: &options.bucket_options,
        credentials: &options.credentials,
        client: &options.client,
        proxies: &options.proxies,
        credential_files: &options.credential_files,
    };
    let memory = options.client.memory_target.map_or_else(memory::default_target, |mib| mib << 20);
    let mut s3 = flags.s3(&bucket, &prefix, memory);
    s3.timeouts.patience(s3.timeouts.operation.min(patience));
    Ok(StoreConfig {
        s3,
        checksum: options.bucket_options.upload_checksum(&bucket),
        part: options.client.read_part_size.unwrap_or(options.client.part_size),
    })
}

/// Makes `path` absolute, so that it stays valid when this process changes its directory, as it does in the background.
fn absolute(named: &str, path: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    let absolute = |path: &Path| {
        std::path::absolute(path)
            .with_context(|| format!("{named} {}: the current directory", path.display()))
    };
    path.map(absolute).transpose()
}

/// Name of the missing variable, if only one of `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` is set. An empty variable counts as unset.
fn missing_key() -> Option<&'static str> {
    let names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    match names.map(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
        [true, false] => Some(names[1]),
        [false, true] => Some(names[0]),
        _ => None,
    }
}

/// A file that exists only while SELinux is enabled.
const SELINUX: &str = "/sys/fs/selinux/enforce";

/// The labels for the kernel: none if SELinux is off, as with mount(8), so one fstab works on all machines.
fn labels(asked: &[String], selinux: &Path) -> Vec<String> {
    if asked.is_empty() || selinux.exists() {
        return asked.to_vec();
    }
    tracing::warn!("SELinux is off: {} has no effect", asked.join(","));
    Vec::new()
}

/// The directory for the journal of uploads and notes of renames. A read-only mount has none: it writes nothing, and its credentials may
/// not allow aborts.
fn state_dir(args: &Args) -> anyhow::Result<Option<PathBuf>> {
    let dir = args.client.state_dir.as_deref().or(args.state_dir_default.as_deref());
    absolute("--state-dir", dir.filter(|_| !args.mount.read_only))
}

/// The directory for known attributes, with `--keep-metadata`. A read-only mount uses it, too.
fn attributes_dir(args: &Args) -> anyhow::Result<Option<PathBuf>> {
    let dir = args.client.state_dir.as_deref().or(args.state_dir_default.as_deref());
    absolute("--state-dir", dir.filter(|_| args.mount.keep_metadata))
}

fn journal(args: &Args, bucket: &str, prefix: &str) -> anyhow::Result<Option<upload::JournalConfig>> {
    Ok(state_dir(args)?.map(|dir| upload::JournalConfig {
        dir,
        asked: args.client.state_dir.is_some(),
        endpoint: String::new(),
        bucket: bucket.to_owned(),
        prefix: prefix.to_owned(),
    }))
}

/// The MIME type for the extension of a name, if it is known.
fn type_by_extension(key: &ObjectKey) -> Option<String> {
    mime_guess::from_path(key.as_str()).first_raw().map(str::to_owned)
}

/// Takes over the descriptors from the service manager: `LISTEN_FDS` of them from 3 on, with names in `LISTEN_FDNAMES`; or those of an
/// earlier engine.
fn supervised(args: &Args) -> anyhow::Result<Supervised> {
    if args.check_journal {
        let (manager, restart_status) = (None, None);
        return Ok(Supervised { manager, restart_status, journal: None, device: None, is_mounted: false });
    }
    let var = |name| std::env::var(name).ok();
    let manager = std::env::var_os(daemon::NOTIFY_ENV).and_then(|socket| daemon::ServiceManager::at(&socket));
    let is_ours = var("LISTEN_PID").is_none_or(|pid| pid == std::process::id().to_string());
    let count = var("LISTEN_FDS").filter(|_| is_ours).and_then(|count| count.parse().ok()).unwrap_or(0);
    let names = var("LISTEN_FDNAMES").unwrap_or_default();
    let is_adopted = args.directory.starts_with("/dev/fd");
    let listened = (LISTEN_FDS_FIRST..).zip(names.split(':')).take(LISTEN_FDS_MAX.min(count));
    let kept = var(handover::KEPT_ENV);
    let passed: Vec<(i32, &str)> = match &kept {
        Some(kept) => handed_over(kept).context(handover::KEPT_ENV)?,
        None => listened.collect(),
    };
    let (mut journal, mut device) = (None, None);
    for (number, name) in passed {
        let place = match name {
            "journal" => &mut journal,
            "fuse" if !is_adopted => &mut device,
            _ => continue,
        };
        if !Path::new(&format!("/proc/self/fd/{number}")).exists() {
            bail!("--supervised: descriptor {number}, which was passed as {name:?}, is not open");
        }
        let fd = adopt(number);
        rustix::io::fcntl_setfd(fd.as_fd(), rustix::io::FdFlags::CLOEXEC)?;
        *place = Some(fd);
    }
    if manager.is_none() && journal.is_none() {
        bail!(
            "--supervised: neither a service manager (NOTIFY_SOCKET) nor a journal (LISTEN_FDS) is there: start this command by a unit of \
             systemd with Type=notify and FileDescriptorStoreMax=2"
        );
    }
    let (restart_status, device) = (cli::restart_status(), device.filter(is_connected));
    Ok(Supervised { manager, restart_status, journal, is_mounted: device.is_some(), device })
}

/// Parses descriptors in the form `name=N:name=N`.
fn handed_over(words: &str) -> anyhow::Result<Vec<(i32, &str)>> {
    let passed = words.split(':').map(|word| {
        let (name, number) = word.split_once('=')?;
        Some((number.parse::<i32>().ok().filter(|number| *number > 2)?, name))
    });
    passed.collect::<Option<_>>().context("it has the form fuse=N:journal=N")
}

/// The ready file on which a guard waits for this engine; `None` without a guard. An error: the variable names no open descriptor.
pub fn guard_s_ready_file() -> anyhow::Result<Option<ReadyFile>> {
    let Some(number) = std::env::var(handover::READY_ENV).ok() else { return Ok(None) };
    let number = number
        .parse()
        .ok()
        .filter(|number: &i32| *number > 2 && Path::new(&format!("/proc/self/fd/{number}")).exists());
    let fd = adopt(number.with_context(|| format!("{}: no open descriptor", handover::READY_ENV))?);
    rustix::io::fcntl_setfd(fd.as_fd(), rustix::io::FdFlags::CLOEXEC)?;
    Ok(Some(ReadyFile::of(fd)))
}

/// Checks whether this program could take over the mount whose journal is on standard input, with these flags. The error says why not.
pub fn check_journal(args: &Args) -> anyhow::Result<()> {
    let config = Config::from_args(args)?;
    let journal = std::io::stdin().as_fd().try_clone_to_owned().context("standard input")?;
    let identity = Journal::examine(&journal).context("the mount's journal")?;
    // The endpoint is known only after a request to the store; this check makes none, and takes the journal's.
    identity.check(&config.s3.bucket, &config.s3.prefix, &identity.endpoint).context("the mount's journal")
}

/// Whether the mount of a FUSE device still exists in the kernel.
fn is_connected(device: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    poll(&mut [PollFd::new(device, PollFlags::empty())], Some(&Timespec::default()))
        .is_ok_and(|ready| ready == 0)
}

/// The directory on which to mount, checked; or the open device from another process.
fn device(directory: &Path, args: &Args) -> anyhow::Result<fuse::Device> {
    let number = directory.to_str().and_then(|d| d.strip_prefix("/dev/fd/"));
    let Some(number) = number else {
        // A service manager restarts this command after a crash, and the mount of the crashed process still exists.
        let supervised = std::env::var_os(daemon::NOTIFY_ENV).is_some();
        return Ok(fuse::Device::Mount(mount_point::fit(directory, supervised)?));
    };
    let shown = directory.display();
    if args.mount.auto_unmount {
        // Word for word the message of AWS's mount-s3, which lacks the same space.
        bail!(
            "Mount options: --auto-unmount are ignored with FUSE fd mount point.Mount options should be passed while performing `mount` syscall in the caller process."
        );
    }
    let number: Option<i32> = number.parse().ok().filter(|number| *number >= 0);
    let target = number.and_then(|number| std::fs::read_link(format!("/proc/self/fd/{number}")).ok());
    let (Some(number), Some(target)) = (number, target) else {
        bail!("mount point {shown} is not a valid file descriptor: the caller must pass one of /dev/fuse");
    };
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let opened = rustix::fs::open(format!("/proc/self/fd/{number}"), flags, rustix::fs::Mode::empty())?;
    if !fuse::is_device(&opened)? {
        bail!(
            "expected mount point {shown} to be a /dev/fuse device file descriptor but got {}",
            kind_of(&target)
        );
    }
    if number < 3 {
        bail!(
            "mount point {shown}: standard input, output and error can't be the device; pass another descriptor"
        );
    }
    let fd = adopt(number);
    let flags = rustix::fs::fcntl_getfl(fd.as_fd())?;
    if !flags.contains(rustix::fs::OFlags::RDWR) {
        bail!("{} must be open for reading and writing", directory.display());
    }
    // The loop waits in read(2), so the descriptor must be blocking.
    rustix::fs::fcntl_setfl(fd.as_fd(), flags - rustix::fs::OFlags::NONBLOCK)?;
    rustix::io::fcntl_setfd(fd.as_fd(), rustix::io::FdFlags::CLOEXEC)?;
    Ok(fuse::Device::Adopted(fd))
}

/// Sets CLOEXEC on a ready file that is `/dev/fd/N`: otherwise its reader would wait until the child processes have closed it, too.
/// Standard input, output and error are left as they are.
///
/// # Errors
/// The kernel refuses.
pub fn keep_from_children(ready_file: &Path) -> anyhow::Result<()> {
    let number = ready_file.to_str().and_then(|path| path.strip_prefix("/dev/fd/")?.parse::<i32>().ok());
    let Some(number) =
        number.filter(|&number| number > 2 && Path::new(&format!("/proc/self/fd/{number}")).exists())
    else {
        return Ok(());
    };
    let fd = adopt(number);
    let set = rustix::io::fcntl_setfd(fd.as_fd(), rustix::io::FdFlags::CLOEXEC);
    // The descriptor stays open in this process, which later opens the ready file by its path.
    let _ = fd.into_raw_fd();
    set.with_context(|| {
        format!("keeping the ready file {} from the background process", ready_file.display())
    })
}

/// The type of a descriptor's target, for messages.
fn kind_of(target: &Path) -> String {
    match target.to_str().and_then(|target| target.split_once(":[")) {
        Some(("pipe", _)) => "Pipe".to_owned(),
        Some(("socket", _)) => "Socket".to_owned(),
        _ => target.display().to_string(),
    }
}

#[expect(
    unsafe_code,
    reason = "a descriptor by its number can't be had otherwise: fence 2 of ci/tidy/fences.md"
)]
fn adopt(number: i32) -> OwnedFd {
    // SAFETY: the caller saw that the descriptor is open; the process that started this one handed it over by its number, on the command line,
    // among LISTEN_FDS, or in MOUNT_S3_KEPT or MOUNT_S3_READY, and nothing else in this process knows it. `device` saw that it is /dev/fuse,
    // `keep_from_children` leaves it open, and `supervised` and `guard_s_ready_file` adopt each number once.
    unsafe { OwnedFd::from_raw_fd(number) }
}

#[cfg(test)]
mod tests;
