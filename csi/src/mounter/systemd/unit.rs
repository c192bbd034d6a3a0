//! A unit of systemd that runs one engine. Enters: a request, and the paths of this node. Leaves: the unit's name and properties.
//!
//! Never here: a call to systemd; a secret, because every user of the node may read a unit's properties; a property that gives the
//! unit its own mounts (such as `ProtectSystem`): the host would not see the bucket then.

use std::path::{Path, PathBuf};
use std::time::Duration;

use zbus::wire::Variant;

use super::super::MountRequest;
use super::super::host_files;
use crate::contract::restart::can_outlive;

/// Most restarts of a crashed engine by systemd. After them the next publish of the target starts the engine, and removes all dead mounts
/// but the lowest.
const RESTARTS_MAX: u32 = 5;
/// The time in which restarts are counted, if the next engine goes on with the mount. Doubled, a mount whose engines die slowly is given
/// up; halved, an engine that can't live is started more often. If the mount ends with the engine, all restarts count, because each leaves
/// a dead mount below the new one.
const RESTARTS_WITHIN: Duration = Duration::from_secs(60);
/// Time from a crash to the restart. Doubled, readers of the mount wait twice as long; halved, a store that makes engines crash gets
/// twice the requests.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// Time from a crash to the restart if the next engine goes on with the mount, so readers wait.
const GO_ON_AFTER: Duration = Duration::from_millis(100);
/// Number of descriptors that systemd keeps of a mount whose engine is dead: its device and its journal.
const KEPT_DESCRIPTORS: u32 = 2;
/// Time from systemd's SIGTERM to its SIGKILL. The engine completes uploads of closed files for ten seconds.
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// Most open files: the engine's connections and the files of its cache.
const OPEN_FILES_MAX: u64 = 65_536;

/// The name of the unit for a target.
pub(super) fn name(target: &Path) -> String {
    format!("mount-s3-{}.service", host_files::key(target))
}

/// The unit of one engine.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// The path of the engine on the host.
    pub(super) engine: PathBuf,
    /// The target of the mount.
    pub(super) target: PathBuf,
    /// The engine's environment, without secrets.
    pub(super) env: Vec<(String, String)>,
    /// The directory of the cache, if the volume requests one.
    pub(super) cache: Option<PathBuf>,
    /// The directory for records of uploads in progress.
    pub(super) state: PathBuf,
    /// A file with certificates to trust besides the host's.
    pub(super) extra_ca_bundle: Option<PathBuf>,
    /// Time limit of the start, until the engine has mounted.
    pub(super) start_within: Duration,
}

/// Properties by name.
pub(super) type Properties = Vec<(&'static str, Variant<'static>)>;

impl Unit {
    /// The properties for StartTransientUnit.
    pub(super) fn properties(&self, request: &MountRequest) -> Properties {
        let engine = self.engine.to_string_lossy().into_owned();
        let mut line = vec![engine.clone()];
        line.extend(self.arguments(request));
        // systemd expands `$NAME` in the words of a command, and takes `$$` for one `$`.
        let line: Vec<_> = line.iter().map(|word| word.replace('$', "$$")).collect();
        let environment: Vec<_> = self.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let text = |text: &str| Variant::from(text.to_owned());
        let micros = |time: Duration| Variant::from(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let outlives = can_outlive(&request.args);
        let (after, within) = match outlives {
            true => (micros(GO_ON_AFTER), micros(RESTARTS_WITHIN)),
            false => (micros(RESTART_AFTER), Variant::from(u64::MAX)),
        };
        let description = format!("bucket {} of volume {}", request.bucket, request.volume);
        vec![
            ("Description", text(&description)),
            // The engine reports when the bucket is mounted, or why it is not. systemd shows this text as the unit's status.
            ("Type", text("notify")),
            ("NotifyAccess", text("main")),
            // The value `false` means that a failure of this command is a failure of the unit.
            ("ExecStart", Variant::from(vec![(engine, line, false)])),
            ("Environment", Variant::from(environment)),
            ("StandardOutput", text("journal")),
            ("StandardError", text("journal")),
            ("SyslogIdentifier", text("mount-s3")),
            ("LimitNOFILE", Variant::from(OPEN_FILES_MAX)),
            ("TimeoutStartUSec", micros(self.start_within)),
            ("TimeoutStopUSec", micros(STOP_WITHIN)),
            // systemd restarts an engine that ended by a signal or a panic, but not one that reported an error: then the next publish of
            // the target tries again.
            ("Restart", text("on-abnormal")),
            ("RestartUSec", after),
            ("StartLimitIntervalUSec", within),
            ("StartLimitBurst", Variant::from(RESTARTS_MAX + 1)),
            ("FileDescriptorStoreMax", Variant::from(if outlives { KEPT_DESCRIPTORS } else { 0 })),
        ]
    }

    /// The engine's arguments: flags, bucket, target.
    fn arguments(&self, request: &MountRequest) -> Vec<String> {
        let is_cache = |arg: &str| arg == "--cache" || arg.starts_with("--cache=");
        let mut args: Vec<_> = request.args.iter().filter(|arg| !is_cache(arg)).cloned().collect();
        if let Some(cache) = &self.cache {
            args.push(format!("--cache={}", cache.display()));
        }
        if let Some(bundle) = &self.extra_ca_bundle {
            args.push(format!("--extra-ca-bundle={}", bundle.display()));
        }
        // Only this target uses the mount, so the target's access is the mount's.
        if (request.read_only || request.source_read_only) && !args.iter().any(|arg| arg == "--read-only") {
            args.push("--read-only".to_owned());
        }
        args.push(format!("--state-dir={}", self.state.display()));
        args.push("--foreground".to_owned());
        if can_outlive(&request.args) {
            args.push("--supervised".to_owned());
        }
        args.extend([request.bucket.clone(), self.target.display().to_string()]);
        args
    }
}

/// Whether the volume requests a cache.
pub(super) fn wants_cache(request: &MountRequest) -> bool {
    request.args.iter().any(|arg| arg == "--cache" || arg.starts_with("--cache="))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(args: &[&str]) -> MountRequest {
        MountRequest {
            volume: "pv-1".into(),
            handle: "handle".into(),
            workload_uid: "u".into(),
            workload: None,
            target: "/k/t".into(),
            read_only: false,
            source_read_only: false,
            bucket: "bucket".into(),
            place: "place".into(),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            env: Vec::new(),
            unusable: None,
            credentials: None,
            of_secret: false,
            token: None,
            agent: None,
        }
    }

    fn unit() -> Unit {
        Unit {
            engine: "/opt/bin/mount-s3".into(),
            target: "/k/t".into(),
            env: vec![("AWS_REGION".into(), "r".into())],
            cache: None,
            state: "/k/state".into(),
            extra_ca_bundle: None,
            start_within: crate::mounter::MOUNT_WITHIN,
        }
    }

    fn arguments(unit: &Unit, request: &MountRequest) -> String {
        unit.arguments(request).join(" ")
    }

    #[test]
    fn a_unit_is_exactly_this() {
        let properties = unit().properties(&request(&["--allow-delete"]));
        let shown: Vec<_> = properties.iter().map(|(name, value)| format!("{name} {value}")).collect();
        assert_eq!(
            shown,
            [
                r#"Description "bucket bucket of volume pv-1""#,
                r#"Type "notify""#,
                r#"NotifyAccess "main""#,
                r#"ExecStart [("/opt/bin/mount-s3", ["/opt/bin/mount-s3", "--allow-delete", "--state-dir=/k/state", "--foreground", "--supervised", "bucket", "/k/t"], false)]"#,
                r#"Environment ["AWS_REGION=r"]"#,
                r#"StandardOutput "journal""#,
                r#"StandardError "journal""#,
                r#"SyslogIdentifier "mount-s3""#,
                "LimitNOFILE uint64 65536",
                "TimeoutStartUSec uint64 110000000",
                "TimeoutStopUSec uint64 20000000",
                r#"Restart "on-abnormal""#,
                "RestartUSec uint64 100000",
                "StartLimitIntervalUSec uint64 60000000",
                "StartLimitBurst uint32 6",
                "FileDescriptorStoreMax uint32 2",
            ]
        );
    }

    #[test]
    fn an_engine_that_ends_with_its_mount_is_not_supervised() {
        let request = request(&["--fuse-transport=fuser"]);
        let properties = unit().properties(&request);
        let shown: Vec<_> = properties.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let wanted = [
            "RestartUSec uint64 1000000",
            "StartLimitIntervalUSec uint64 18446744073709551615",
            "StartLimitBurst uint32 6",
            "FileDescriptorStoreMax uint32 0",
        ];
        assert!(shown.ends_with(&wanted.map(str::to_owned)), "{shown:?}");
        assert!(!arguments(&unit(), &request).contains("--supervised"));
    }

    #[test]
    fn a_dollar_in_an_option_is_no_variable_of_systemds() {
        let properties = unit().properties(&request(&["--prefix=a$HOME/${USER}$/"]));
        let (_, command) = properties.iter().find(|(name, _)| *name == "ExecStart").unwrap();
        assert!(command.to_string().contains(r#""--prefix=a$$HOME/$${USER}$$/""#), "{command}");
    }

    #[test]
    fn the_cache_is_the_nodes_whatever_the_volume_says() {
        let asked = request(&["--allow-other", "--cache=/local-cache"]);
        assert!(wants_cache(&asked) && !wants_cache(&request(&["--cached"])));
        let with = Unit { cache: Some("/k/cache/1".into()), ..unit() };
        assert_eq!(
            arguments(&with, &asked),
            "--allow-other --cache=/k/cache/1 --state-dir=/k/state --foreground --supervised bucket /k/t"
        );
    }

    #[test]
    fn a_target_that_only_reads_has_a_read_only_mount() {
        let reads = MountRequest { read_only: true, ..request(&[]) };
        assert_eq!(
            arguments(&unit(), &reads),
            "--read-only --state-dir=/k/state --foreground --supervised bucket /k/t"
        );
        let both = MountRequest { source_read_only: true, ..request(&["--read-only"]) };
        assert_eq!(
            arguments(&unit(), &both),
            "--read-only --state-dir=/k/state --foreground --supervised bucket /k/t"
        );
    }

    #[test]
    fn certificates_are_added_to_the_hosts() {
        let with = Unit { extra_ca_bundle: Some("/k/ca.crt".into()), ..unit() };
        assert_eq!(
            arguments(&with, &request(&[])),
            "--extra-ca-bundle=/k/ca.crt --state-dir=/k/state --foreground --supervised bucket /k/t"
        );
    }

    #[test]
    fn each_target_has_a_unit_of_its_own_under_the_same_name_each_time() {
        let (a, b) = (name(Path::new("/k/a")), name(Path::new("/k/b")));
        assert!(a != b && a == name(Path::new("/k/a")));
        assert!(a.starts_with("mount-s3-") && a.ends_with(".service") && a.len() < 64, "{a}");
    }
}
