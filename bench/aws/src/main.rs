//! AWS's engine, mounted in the foreground as their mount-s3 does it. Enters: bucket, directory and a few flags. Leaves: a mount. The
//! bench measures it beside mount-s3; no release contains it. Other settings are the defaults of AWS's library.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use mountpoint_s3_client::config::{AddressingStyle, S3ClientAuthConfig, TlsConfig};
use mountpoint_s3_client::user_agent::UserAgent;
use mountpoint_s3_fs::data_cache::{CacheLimit, DataCacheConfig, DiskDataCacheConfig, ManagedCacheDir};
use mountpoint_s3_fs::fs::{CacheConfig, TimeToLive};
use mountpoint_s3_fs::fuse::config::{FuseOptions, FuseSessionConfig, MountPoint};
use mountpoint_s3_fs::memory::{CandidateSize, MINIMUM_MEM_LIMIT, PagedPool, effective_total_memory};
use mountpoint_s3_fs::s3::config::{
    ClientConfig, MemoryLimitSetting, PartConfig, Region, TargetThroughputSetting,
};
use mountpoint_s3_fs::s3::{Bucket, Prefix, S3Path, S3Personality};
use mountpoint_s3_fs::{MountpointConfig, Runtime, S3FilesystemConfig, Superblock, SuperblockConfig};

/// Threads that take requests from the kernel, as their mount-s3 has them.
const THREADS: usize = 16;
/// Blocks of the disk cache, in bytes, as their mount-s3 has them.
const CACHE_BLOCK: u64 = 1 << 20;
/// The share of the machine's memory that their mount-s3 takes by default.
const MEMORY_SHARE: f64 = 0.95;

#[derive(Debug, Parser)]
struct Args {
    bucket: String,
    dir: PathBuf,
    #[arg(long)]
    endpoint: String,
    /// Size of requests and of parts, in MiB
    #[arg(long)]
    part_mib: usize,
    /// How long names and attributes are kept, in seconds
    #[arg(long)]
    ttl_s: Option<u64>,
    #[arg(long)]
    cache: Option<PathBuf>,
    /// Memory for data, in MiB; the library knows no less than 512
    #[arg(long)]
    memory_mib: Option<usize>,
    #[arg(long)]
    allow_delete: bool,
    /// The certificate to trust
    #[arg(long, env = "AWS_CA_BUNDLE")]
    ca_bundle: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let memory = match args.memory_mib {
        Some(mib) => MemoryLimitSetting::User((mib << 20).max(MINIMUM_MEM_LIMIT)),
        None => {
            let share = (effective_total_memory() as f64 * MEMORY_SHARE) as usize;
            MemoryLimitSetting::Default(share.max(MINIMUM_MEM_LIMIT))
        }
    };
    let parts = PartConfig::with_part_size(args.part_mib << 20).validate(memory)?;
    let pool = PagedPool::config()
        .with_candidate_sizes([
            CandidateSize::prunable(CACHE_BLOCK as usize),
            CandidateSize::prunable(parts.read_size_bytes),
            CandidateSize::new(parts.write_size_bytes),
        ])
        .with_memory_limit(memory.bytes())
        .with_maintenance_interval(Duration::from_secs(60))
        .build();

    let path = S3Path::new(Bucket::new(args.bucket)?, Prefix::new("")?);
    let client = ClientConfig {
        region: Region::new_user_specified("us-east-1".to_owned()),
        endpoint_url: Some(args.endpoint),
        addressing_style: AddressingStyle::Path,
        dual_stack: false,
        transfer_acceleration: false,
        auth_config: S3ClientAuthConfig::Default,
        requester_pays: false,
        expected_bucket_owner: None,
        throughput_target: TargetThroughputSetting::Default,
        bind: None,
        part_config: parts,
        user_agent: UserAgent::new(None),
        tls_config: args.ca_bundle.map(|file| TlsConfig::new().with_trust_store_path(file)),
    }
    .create_client(pool.clone(), Some(&path))
    .context("connect")?;
    let runtime = Runtime::new(client.event_loop_group());
    let personality = S3Personality::infer_from_bucket(&path.bucket, &client.endpoint_config());

    // With a disk cache their mount-s3 keeps names for a minute.
    let ttl = match args.ttl_s.or(args.cache.is_some().then_some(60)) {
        Some(seconds) => TimeToLive::Duration(Duration::from_secs(seconds)),
        None => TimeToLive::Minimal,
    };
    let filesystem = S3FilesystemConfig {
        cache_config: CacheConfig::new(ttl),
        allow_delete: args.allow_delete,
        s3_personality: personality,
        ..S3FilesystemConfig::default()
    };
    let cache = args.cache.map(|parent| ManagedCacheDir::new_from_parent_with_cache_key(parent, None, true));
    let cache = cache.transpose().context("make the cache's directory")?;
    let data_cache = DataCacheConfig {
        disk_cache_config: cache.as_ref().map(|dir| DiskDataCacheConfig {
            cache_directory: dir.as_path_buf(),
            block_size: CACHE_BLOCK,
            limit: CacheLimit::default(),
        }),
        express_cache_config: None,
    };
    let superblock = Superblock::new(
        client.clone(),
        path,
        SuperblockConfig { cache_config: filesystem.cache_config.clone(), s3_personality: personality },
    );
    let session = FuseSessionConfig::new(MountPoint::new(args.dir)?, FuseOptions::default(), THREADS)?;
    MountpointConfig::new(session, filesystem, data_cache)?
        .create_fuse_session(superblock, client, runtime, pool)
        .context("mount")?
        .join()
        .context("serve the mount")
}
