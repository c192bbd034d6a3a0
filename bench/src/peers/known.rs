//! The commands of known file systems. All get the same part size, and TTL, cache and memory if the workload sets them. All else
//! has the defaults of each file system.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::Plan;
use crate::null_fs::Transport;

/// Part size of every peer, in MiB.
const PART_MIB: u32 = 8;

/// The flags whose value is set, each followed by its value.
fn flags<const N: usize>(flags: [(&str, Option<String>); N]) -> String {
    let set = flags.into_iter().filter_map(|(flag, value)| Some(format!(" {flag}{}", value?)));
    set.collect()
}

fn quoted(path: Option<&Path>) -> Option<String> {
    path.map(|path| format!("'{}'", path.display()))
}

pub(super) fn mount_s3(binary: &Path, plan: &Plan<'_>) -> String {
    format!(
        "'{}' {} '{}' --endpoint-url {} --region us-east-1 --force-path-style --foreground --part-size {}{}",
        binary.display(),
        plan.bucket,
        plan.dir.display(),
        plan.endpoint,
        PART_MIB << 20,
        flags([
            ("--metadata-ttl ", plan.ttl_s.map(|ttl| ttl.to_string())),
            ("--cache ", quoted(plan.cache)),
            ("--memory-target ", plan.memory_mib.map(|memory| memory.to_string())),
            ("--allow-delete", plan.deletes.then(String::new)),
            ("--allow-overwrite", plan.overwrites.then(String::new)),
            ("--allow-rename --allow-append --store aws", plan.renames.then(String::new)),
            ("--mode full --stage ", quoted(plan.stage)),
        ])
    )
}

/// The command of a mount that outlives its engine: `bench supervise` before the command of mount-s3.
pub(super) fn supervised(bench: &Path, mount_s3: &str, restart_after: Duration) -> String {
    let pause = restart_after.as_millis();
    format!("'{}' supervise --restart-after-ms {pause} -- {mount_s3} --supervised", bench.display())
}

/// The command of s3fs, with a file of credentials.
///
/// # Errors
/// The file of credentials can't be written.
pub(super) fn s3fs(plan: &Plan<'_>) -> anyhow::Result<String> {
    let password = plan.work.join("passwd-s3fs");
    write_private(&password, "bench:bench-secret\n")?;
    Ok(format!(
        "s3fs {} '{}' -f -o url={},use_path_request_style,endpoint=us-east-1,passwd_file='{}',multipart_size={PART_MIB}{}",
        plan.bucket,
        plan.dir.display(),
        plan.endpoint,
        password.display(),
        flags([
            ("-o stat_cache_expire=", plan.ttl_s.map(|ttl| ttl.to_string())),
            ("-o use_cache=", quoted(plan.cache)),
        ])
    ))
}

/// The command of rclone. The remote in colon form reads its credentials from the environment. rclone's SDK does not start with
/// `AWS_CA_BUNDLE`; `SSL_CERT_FILE` names the trusted certificate.
pub(super) fn rclone(plan: &Plan<'_>) -> String {
    format!(
        "env -u AWS_CA_BUNDLE rclone mount :s3:{} '{}' --config /dev/null --s3-provider Other --s3-env-auth --s3-endpoint {} \
         --s3-region us-east-1 --s3-force-path-style --s3-no-check-bucket --s3-chunk-size {PART_MIB}M{}",
        plan.bucket,
        plan.dir.display(),
        plan.endpoint,
        flags([
            ("--dir-cache-time ", plan.ttl_s.map(|ttl| format!("{ttl}s --attr-timeout {ttl}s"))),
            ("--vfs-cache-mode full --cache-dir ", quoted(plan.cache)),
        ])
    )
}

/// The command of geesefs. The flags make it store at close; by default it stores some time later. It then stores in RELEASE, for which
/// close does not wait.
pub(super) fn geesefs(binary: &Path, plan: &Plan<'_>) -> String {
    format!(
        "'{}' -f --endpoint {} --region us-east-1 --list-type 2 --single-part {PART_MIB} --part-sizes {PART_MIB} \
         --fsync-on-close{} {} '{}'",
        binary.display(),
        plan.endpoint,
        flags([
            ("--stat-cache-ttl ", plan.ttl_s.map(|ttl| format!("{ttl}s"))),
            ("--cache ", quoted(plan.cache)),
            ("--memory-limit ", plan.memory_mib.map(|memory| memory.to_string())),
        ]),
        plan.bucket,
        plan.dir.display(),
    )
}

/// The command of AWS's engine, with the flags of the program in `bench/aws`.
pub(super) fn aws(binary: &Path, plan: &Plan<'_>) -> String {
    format!(
        "'{}' {} '{}' --endpoint {} --part-mib {PART_MIB}{}",
        binary.display(),
        plan.bucket,
        plan.dir.display(),
        plan.endpoint,
        flags([
            ("--ttl-s ", plan.ttl_s.map(|ttl| ttl.to_string())),
            ("--cache ", quoted(plan.cache)),
            ("--memory-mib ", plan.memory_mib.map(|memory| memory.to_string())),
            ("--allow-delete", plan.deletes.then(String::new)),
        ])
    )
}

/// The command of a null file system, which is a floor.
///
/// # Errors
/// The workload has a cache or a TTL, so a null file system is not its floor.
pub(super) fn null_fs(program: &Path, transport: Transport, plan: &Plan<'_>) -> anyhow::Result<String> {
    if plan.cache.is_some() || plan.ttl_s.is_some() {
        bail!("a floor");
    }
    // With this setting the allocator asks for huge pages, as an engine would.
    Ok(format!(
        "env GLIBC_TUNABLES=glibc.malloc.hugetlb=1 '{}' null-fs {} '{}' {}",
        program.display(),
        transport.word(),
        plan.dir.display(),
        plan.object_bytes
    ))
}

/// The command of the plain file on the disk of the caches.
///
/// # Errors
/// The workload has no cache, so there is no file to read.
pub(super) fn plain_file(program: &Path, plan: &Plan<'_>) -> anyhow::Result<String> {
    let cache = plan.cache.context("a floor of the disk cache")?;
    Ok(format!(
        "'{}' plain-file '{}' '{}' {}",
        program.display(),
        cache.display(),
        plan.dir.display(),
        plan.object_bytes
    ))
}

fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    Ok(())
}
