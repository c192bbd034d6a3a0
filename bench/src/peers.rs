//! Whom we measure: how each file system is started over the same bucket.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// Part size that every peer is told, in MiB.
const PART_MIB: u32 = 8;

/// A file system to measure.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) name: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    MountS3(PathBuf),
    S3fs,
    Rclone,
    /// A null file system over memory: what the kernel's FUSE costs by itself.
    NullFs(PathBuf),
    Command(String),
}

/// What a mount is wanted for.
#[derive(Debug, Clone)]
pub(crate) struct Plan<'a> {
    pub(crate) bucket: &'a str,
    pub(crate) endpoint: &'a str,
    pub(crate) dir: &'a Path,
    /// A directory for a disk cache, if the workload wants one.
    pub(crate) cache: Option<&'a Path>,
    /// Seconds that names and attributes may be kept, if the workload says so.
    pub(crate) ttl_s: Option<u32>,
    /// A private directory of this mount, for credentials.
    pub(crate) work: &'a Path,
    /// Size of the objects in `bucket`, for the null file system.
    pub(crate) object_bytes: u64,
}

impl Peer {
    pub(crate) fn mount_s3(binary: PathBuf) -> Self {
        Self { name: "mount-s3".to_owned(), kind: Kind::MountS3(binary) }
    }

    pub(crate) fn s3fs() -> Self {
        Self { name: "s3fs".to_owned(), kind: Kind::S3fs }
    }

    pub(crate) fn rclone() -> Self {
        Self { name: "rclone".to_owned(), kind: Kind::Rclone }
    }

    /// The null file system that this program serves.
    pub(crate) fn null_fs() -> anyhow::Result<Self> {
        Ok(Self { name: "(null fs)".to_owned(), kind: Kind::NullFs(std::env::current_exe()?) })
    }

    /// From `NAME=COMMAND`.
    ///
    /// # Errors
    /// No name, or a command that does not say where to mount.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let (name, command) = text.split_once('=').context("a peer is NAME=COMMAND")?;
        for needed in ["{bucket}", "{dir}", "{endpoint}"] {
            anyhow::ensure!(command.contains(needed), "the command of peer {name} has no {needed}");
        }
        Ok(Self { name: name.to_owned(), kind: Kind::Command(command.to_owned()) })
    }

    /// A floor answers some workloads only, and is no rival.
    pub(crate) fn is_floor(&self) -> bool {
        matches!(self.kind, Kind::NullFs(_))
    }

    /// The shell command that mounts, in the foreground.
    ///
    /// # Errors
    /// This peer can't do what the plan asks for.
    pub(crate) fn command(&self, plan: &Plan<'_>) -> anyhow::Result<String> {
        let Plan { bucket, endpoint, .. } = plan;
        let dir = plan.dir.display();
        let cache = plan.cache.map(|cache| cache.display().to_string());
        Ok(match &self.kind {
            Kind::MountS3(binary) => {
                let mut command = format!(
                    "'{}' {bucket} '{dir}' --endpoint-url {endpoint} --region us-east-1 --force-path-style --foreground",
                    binary.display()
                );
                if let Some(ttl) = plan.ttl_s {
                    command += &format!(" --metadata-ttl {ttl}");
                }
                if let Some(cache) = cache {
                    command += &format!(" --cache '{cache}'");
                }
                command
            }
            Kind::S3fs => {
                let password = plan.work.join("passwd-s3fs");
                write_private(&password, "bench:bench-secret\n")?;
                let mut command = format!(
                    "s3fs {bucket} '{dir}' -f -o url={endpoint},use_path_request_style,endpoint=us-east-1,\
                     passwd_file='{}',multipart_size={PART_MIB}",
                    password.display()
                );
                if let Some(ttl) = plan.ttl_s {
                    command += &format!(",stat_cache_expire={ttl}");
                }
                if let Some(cache) = cache {
                    command += &format!(",use_cache='{cache}'");
                }
                command
            }
            Kind::Rclone => {
                // The colon-form remote reads its keys from the environment that the mount is given.
                let mut command = format!(
                    "rclone mount :s3:{bucket} '{dir}' --config /dev/null --s3-provider Other --s3-env-auth \
                     --s3-endpoint {endpoint} --s3-region us-east-1 --s3-force-path-style --s3-no-check-bucket \
                     --s3-chunk-size {PART_MIB}M"
                );
                if let Some(ttl) = plan.ttl_s {
                    command += &format!(" --dir-cache-time {ttl}s --attr-timeout {ttl}s");
                }
                if let Some(cache) = cache {
                    command += &format!(" --vfs-cache-mode full --cache-dir '{cache}'");
                }
                command
            }
            Kind::NullFs(program) => {
                if plan.cache.is_some() || plan.ttl_s.is_some() {
                    bail!("a floor");
                }
                // The allocator then asks for huge pages, as an engine that cares does.
                format!(
                    "env GLIBC_TUNABLES=glibc.malloc.hugetlb=1 '{}' null-fs '{dir}' {}",
                    program.display(),
                    plan.object_bytes
                )
            }
            Kind::Command(template) => {
                let mut command = template
                    .replace("{bucket}", bucket)
                    .replace("{endpoint}", endpoint)
                    .replace("{region}", "us-east-1")
                    .replace("{dir}", &dir.to_string());
                for (placeholder, value) in
                    [("{cache}", cache.clone()), ("{ttl}", plan.ttl_s.map(|ttl| ttl.to_string()))]
                {
                    match value {
                        Some(_) if !template.contains(placeholder) => {
                            bail!("its command has no {placeholder}")
                        }
                        Some(value) => command = command.replace(placeholder, &value),
                        None if template.contains(placeholder) => {
                            bail!("its command always wants {placeholder}")
                        }
                        None => {}
                    }
                }
                command
            }
        })
    }
}

fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    Ok(())
}

/// How to get the peers.
pub(crate) const INSTALL: &str = "\
s3fs, rclone  apt-get install -y s3fs rclone fuse3
anything else --peer 'NAME=COMMAND', a daemon in the foreground, with {bucket} {endpoint} {dir} and, for the workloads
              that want them, {cache} (a directory), {ttl} (seconds), {region}. Keys are in AWS_ACCESS_KEY_ID and
              AWS_SECRET_ACCESS_KEY. For example
              --peer 'other=other-fs --endpoint {endpoint} {bucket} {dir}'";

#[cfg(test)]
mod tests {
    use super::*;

    fn plan<'a>(cache: Option<&'a Path>, ttl_s: Option<u32>) -> Plan<'a> {
        let (dir, work) = (Path::new("/mnt"), Path::new("/nowhere"));
        Plan { bucket: "b", endpoint: "http://127.0.0.1:9", dir, cache, ttl_s, work, object_bytes: 1 }
    }

    #[test]
    fn a_peer_that_cannot_do_what_is_asked_says_so() {
        let plain = Peer::parse("x=fs {bucket} {dir} {endpoint}").unwrap();
        assert_eq!(plain.command(&plan(None, None)).unwrap(), "fs b /mnt http://127.0.0.1:9");
        assert!(plain.command(&plan(Some(Path::new("/c")), None)).is_err());
        assert!(plain.command(&plan(None, Some(60))).is_err());
        let cached = Peer::parse("x=fs {bucket} {dir} {endpoint} -c {cache}").unwrap();
        assert!(cached.command(&plan(Some(Path::new("/c")), None)).unwrap().ends_with("-c /c"));
        assert!(cached.command(&plan(None, None)).is_err());
        assert!(Peer::parse("x=fs {bucket} {dir}").is_err());
    }

    #[test]
    fn mount_s3_gets_only_the_flags_that_the_workload_names() {
        let peer = Peer::mount_s3(PathBuf::from("/bin/mount-s3"));
        let plain = peer.command(&plan(None, None)).unwrap();
        assert!(!plain.contains("--cache") && !plain.contains("--metadata-ttl"), "{plain}");
        let both = peer.command(&plan(Some(Path::new("/c")), Some(60))).unwrap();
        assert!(both.contains("--cache '/c'") && both.contains("--metadata-ttl 60"), "{both}");
    }
}
