//! The measured file systems, and the commands that start them over the same bucket. This room starts nothing.

mod known;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::floor::Floor;
use crate::null_fs::Transport;

/// Value of `{memory}` in MiB, for commands that always need one, if the workload sets no limit.
const MEMORY_MIB: u32 = 1024;

/// The smallest memory limit of AWS's engine, in MiB.
const AWS_MEMORY_MIB: u32 = 512;

/// A file system to measure.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) name: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    MountS3(PathBuf),
    /// The bench's supervisor, mount-s3, and the pause before the next engine.
    Supervised(PathBuf, PathBuf, Duration),
    S3fs,
    Rclone,
    Geesefs(PathBuf),
    /// AWS's engine, as the program of `bench/aws`.
    Aws(PathBuf),
    /// A null file system over memory: the cost of the kernel's FUSE.
    NullFs(PathBuf, Transport),
    /// A file on the disk of the caches: the cost of a cached read without a file system.
    PlainFile(PathBuf),
    Command(String),
}

/// The settings of a mount for one run of a workload.
#[derive(Debug, Clone)]
pub(crate) struct Plan<'a> {
    pub(crate) bucket: &'a str,
    pub(crate) endpoint: &'a str,
    /// The certificate to trust for an endpoint over TLS. It is in the environment, too.
    pub(crate) ca_file: &'a Path,
    pub(crate) dir: &'a Path,
    /// The directory of the disk cache, if the workload has one.
    pub(crate) cache: Option<&'a Path>,
    /// TTL of names and attributes in seconds, if the workload sets one.
    pub(crate) ttl_s: Option<u32>,
    /// The daemon's memory limit for data in MiB, if the workload sets one.
    pub(crate) memory_mib: Option<u32>,
    /// Whether files may be removed.
    pub(crate) deletes: bool,
    /// Whether files may be renamed and appended to; the store then checks conditions.
    pub(crate) renames: bool,
    /// Whether stored files may be replaced.
    pub(crate) overwrites: bool,
    /// The directory of `--stage`, for a mount that accepts every write.
    pub(crate) stage: Option<&'a Path>,
    /// A private directory of this mount, for credentials.
    pub(crate) work: &'a Path,
    /// Size of the objects in `bucket`, for the null file system.
    pub(crate) object_bytes: u64,
}

impl Peer {
    pub(crate) fn mount_s3(binary: PathBuf) -> Self {
        Self { name: "mount-s3".to_owned(), kind: Kind::MountS3(binary) }
    }

    /// An earlier mount-s3.
    pub(crate) fn before(binary: PathBuf) -> Self {
        Self { name: "before".to_owned(), kind: Kind::MountS3(binary) }
    }

    /// A mount-s3 whose mount outlives its engine, below the supervisor of this program.
    ///
    /// # Errors
    /// The path of this program is unknown.
    pub(crate) fn supervised(binary: PathBuf, restart_after: Duration) -> anyhow::Result<Self> {
        let kind = Kind::Supervised(std::env::current_exe()?, binary, restart_after);
        Ok(Self { name: "supervised".to_owned(), kind })
    }

    pub(crate) fn s3fs() -> Self {
        Self { name: "s3fs".to_owned(), kind: Kind::S3fs }
    }

    pub(crate) fn rclone() -> Self {
        Self { name: "rclone".to_owned(), kind: Kind::Rclone }
    }

    pub(crate) fn geesefs(binary: PathBuf) -> Self {
        Self { name: "geesefs".to_owned(), kind: Kind::Geesefs(binary) }
    }

    pub(crate) fn aws(binary: PathBuf) -> Self {
        Self { name: "aws".to_owned(), kind: Kind::Aws(binary) }
    }

    /// The floors that are mounted like file systems; this program serves them. The plain file needs root, which may bind a directory.
    pub(crate) fn floors() -> anyhow::Result<Vec<Self>> {
        let program = std::env::current_exe()?;
        let mut kinds = Vec::from(Transport::ALL.map(|transport| Kind::NullFs(program.clone(), transport)));
        if rustix::process::geteuid().is_root() {
            kinds.push(Kind::PlainFile(program));
        }
        let named = |kind: Kind| Some(Self { name: kind.floor()?.name().to_owned(), kind });
        Ok(kinds.into_iter().filter_map(named).collect())
    }

    /// Parses `NAME=COMMAND`.
    ///
    /// # Errors
    /// The text has no `=`, or the command does not use bucket, directory or endpoint.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let (name, command) = text.split_once('=').context("a peer is NAME=COMMAND")?;
        for needed in ["{bucket}", "{dir}", "{endpoint}"] {
            anyhow::ensure!(command.contains(needed), "the command of peer {name} has no {needed}");
        }
        Ok(Self { name: name.to_owned(), kind: Kind::Command(command.to_owned()) })
    }

    /// The floor, if this peer is one; `None` for a file system.
    pub(crate) fn floor(&self) -> Option<Floor> {
        self.kind.floor()
    }

    /// The shell command that mounts and stays in the foreground.
    ///
    /// # Errors
    /// The peer does not support the plan.
    pub(crate) fn command(&self, plan: &Plan<'_>) -> anyhow::Result<String> {
        match &self.kind {
            Kind::MountS3(binary) => Ok(known::mount_s3(binary, plan)),
            Kind::Supervised(bench, binary, after) => {
                Ok(known::supervised(bench, &known::mount_s3(binary, plan), *after))
            }
            Kind::S3fs => known::s3fs(plan),
            Kind::Rclone => Ok(known::rclone(plan)),
            Kind::Geesefs(binary) => Ok(known::geesefs(binary, plan)),
            Kind::Aws(binary) => Ok(known::aws(binary, plan)),
            Kind::NullFs(program, transport) => known::null_fs(program, *transport, plan),
            Kind::PlainFile(program) => known::plain_file(program, plan),
            Kind::Command(template) => filled(template, plan),
        }
    }

    /// A remark for the table about how this peer was started.
    pub(crate) fn remark(&self, plan: &Plan<'_>) -> Option<String> {
        let memory_mib = plan.memory_mib?;
        let has_limit = match &self.kind {
            Kind::Aws(_) if memory_mib < AWS_MEMORY_MIB => {
                return Some(format!("knows no limit of memory below {AWS_MEMORY_MIB} MiB: has that"));
            }
            Kind::MountS3(_) | Kind::Supervised(..) | Kind::Geesefs(_) | Kind::Aws(_) => true,
            Kind::S3fs | Kind::Rclone | Kind::NullFs(..) | Kind::PlainFile(_) => false,
            Kind::Command(template) => template.contains("{memory}"),
        };
        (!has_limit).then(|| "has no flag for memory: its default".to_owned())
    }
}

impl Kind {
    fn floor(&self) -> Option<Floor> {
        match self {
            Self::NullFs(_, transport) => Some(Floor::NullFs(*transport)),
            Self::PlainFile(_) => Some(Floor::PlainFile),
            _ => None,
        }
    }
}

/// The user's command with the plan's values in place of the placeholders.
fn filled(template: &str, plan: &Plan<'_>) -> anyhow::Result<String> {
    let mut command = template
        .replace("{bucket}", plan.bucket)
        .replace("{endpoint}", plan.endpoint)
        .replace("{region}", "us-east-1")
        .replace("{ca}", &plan.ca_file.display().to_string())
        .replace("{memory}", &plan.memory_mib.unwrap_or(MEMORY_MIB).to_string())
        .replace("{dir}", &plan.dir.display().to_string());
    for (placeholder, value) in [
        ("{cache}", plan.cache.map(|cache| cache.display().to_string())),
        ("{ttl}", plan.ttl_s.map(|ttl| ttl.to_string())),
    ] {
        match value {
            Some(_) if !template.contains(placeholder) => bail!("its command has no {placeholder}"),
            Some(value) => command = command.replace(placeholder, &value),
            None if template.contains(placeholder) => bail!("its command always wants {placeholder}"),
            None => {}
        }
    }
    Ok(command)
}

/// Instructions to install the peers.
pub(crate) const INSTALL: &str = "\
s3fs, rclone  apt-get install -y s3fs rclone fuse3
geesefs       --geesefs PROGRAM; build it yourself, no package has it
aws           AWS's engine as its published library: cargo build --release --manifest-path bench/aws/Cargo.toml
              (4 minutes on 2 cores; apt-get install -y cmake clang pkg-config libfuse-dev), then --aws bench/aws/target/release/aws-engine
anything else --peer 'NAME=COMMAND', a daemon in the foreground, with {bucket} {endpoint} {dir} and, for the workloads
              that want them, {cache} (a directory), {ttl} (seconds), {region}, {memory} (MiB; 1024 where a
              workload names no limit), {ca} (a certificate to trust over TLS; AWS_CA_BUNDLE, CURL_CA_BUNDLE and
              SSL_CERT_FILE name it too). Keys are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. For example
              --peer 'other=other-fs --endpoint {endpoint} {bucket} {dir}'";

#[cfg(test)]
mod tests {
    use super::*;

    fn plan<'a>(cache: Option<&'a Path>, ttl_s: Option<u32>) -> Plan<'a> {
        let (dir, work) = (Path::new("/mnt"), Path::new("/nowhere"));
        let ca_file = Path::new("/ca.pem");
        Plan {
            bucket: "b",
            endpoint: "http://127.0.0.1:9",
            ca_file,
            dir,
            cache,
            ttl_s,
            memory_mib: None,
            deletes: false,
            renames: false,
            overwrites: false,
            stage: None,
            work,
            object_bytes: 1,
        }
    }

    #[test]
    fn a_peer_that_cannot_do_what_is_asked_says_so() {
        let plain = Peer::parse("x=fs {bucket} {dir} {endpoint}").unwrap();
        assert_eq!(plain.command(&plan(None, None)).unwrap(), "fs b /mnt http://127.0.0.1:9");
        assert!(plain.command(&plan(Some(Path::new("/c")), None)).is_err());
        assert!(plain.command(&plan(None, Some(60))).is_err());
        let trusting = Peer::parse("x=fs {bucket} {dir} {endpoint} --ca {ca}").unwrap();
        assert!(trusting.command(&plan(None, None)).unwrap().ends_with("--ca /ca.pem"));
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

    #[test]
    fn a_limit_of_memory_is_a_flag_or_a_remark() {
        let plan = Plan { memory_mib: Some(128), ..plan(None, None) };
        let binary = || PathBuf::from("/bin/x");
        for (peer, flag) in [
            (Peer::mount_s3(binary()), "--memory-target 128"),
            (Peer::geesefs(binary()), "--memory-limit 128"),
            (Peer::parse("x=fs {bucket} {dir} {endpoint} -m {memory}").unwrap(), "-m 128"),
        ] {
            let command = peer.command(&plan).unwrap();
            assert!(command.contains(flag), "{command}");
            assert_eq!(peer.remark(&plan), None);
        }
        assert!(Peer::aws(binary()).command(&plan).unwrap().contains("--memory-mib 128"));
        assert!(Peer::aws(binary()).remark(&plan).unwrap().contains("512 MiB"));
        for peer in [Peer::rclone(), Peer::parse("x=fs {bucket} {dir} {endpoint}").unwrap()] {
            peer.command(&plan).unwrap();
            assert!(peer.remark(&plan).unwrap().contains("its default"));
        }
    }
}
