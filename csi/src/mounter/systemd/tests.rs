//! Whole mounts by a real systemd: each test has a node of its own, with the real engine and a real S3 server.

mod layers;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::{Child, Command, Stdio};

use futures_util::future::join_all;
use testkit::{in_systemd_node, need, until};

use super::manager::State;
use super::*;
use crate::mounter::Credentials;
use crate::mounter::mountinfo::Mounts;
use crate::mounter::pod::{self, PodMounter};
use crate::mounter::sys::Busy;
use crate::mounter::testing::api::{Server, attachment, lease, mountpoint_pod};
use crate::mounter::testing::runtime;
use crate::mountpoint_pod::kernel_resends;

const SECRET: &str = "canary-of-the-secret-key";
const LONG: Duration = Duration::from_secs(60);

/// A command of the workspace.
fn built(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().parent().and_then(Path::parent).unwrap().join(name)
}

/// Runs the body in a node with systemd, and looks for the secret in all that was said.
fn in_node(body: impl Fn()) {
    let fresh = |name: &str, package: &str| {
        let stale = testkit::built::stale(&built(name), package);
        need(&format!("target/debug/{name} (cargo build --workspace): {stale:?}"), stale.is_none())
    };
    if fresh("mount-s3", "mountpoint") && fresh("s3server", "s3server") {
        let said = in_systemd_node(body).unwrap_or_default();
        assert!(!said.contains(SECRET), "the secret is in a log:\n{said}");
    }
}

/// A store with a bucket, and a node's directories.
struct Home {
    root: PathBuf,
    kubelet: PathBuf,
    endpoint: String,
    store: Child,
    _folder: tempfile::TempDir,
}

impl Drop for Home {
    fn drop(&mut self) {
        // A folder can't be removed through a mount whose store is gone.
        for point in Mounts::read().iter().flat_map(Mounts::buckets).filter(|it| it.starts_with(&self.root)) {
            let _ = sys::unmount(point, Busy::Detach);
        }
        let _ = self.store.kill();
        let _ = self.store.wait();
    }
}

impl Home {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (bucket, kubelet) = (root.join("store/bucket"), root.join("kubelet"));
        for directory in [&bucket, &comm::plugin_directory(&kubelet)] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write(bucket.join("hello"), "from the bucket").unwrap();
        let (secret, port) = (root.join("secret"), root.join("port"));
        fs::write(&secret, SECRET).unwrap();
        let mut server = Command::new(built("s3server"));
        server.arg(root.join("store")).args(["--listen", "127.0.0.1:0", "--access-key", "test"]);
        server.arg("--secret-key-file").arg(&secret).arg("--port-file").arg(&port);
        let store = server.stdin(Stdio::null()).spawn().unwrap();
        let number = || fs::read_to_string(&port).ok().and_then(|text| text.trim().parse::<u16>().ok());
        until("the store listens", || number().is_some());
        let endpoint = format!("http://127.0.0.1:{}", number().unwrap());
        Self { root, kubelet, endpoint, store, _folder: folder }
    }

    fn config(&self) -> Config {
        let engine = built("mount-s3");
        Config { engine, mount_within: LONG, end_within: LONG, ..Config::new(&self.kubelet) }
    }

    fn driver(&self) -> SystemdMounter {
        SystemdMounter::new(self.config()).unwrap()
    }

    fn target(&self, uid: &str) -> PathBuf {
        self.kubelet.join("pods").join(uid).join("volumes/kubernetes.io~csi/pv/mount")
    }

    fn request(&self, uid: &str) -> MountRequest {
        MountRequest {
            volume: "pv".into(),
            handle: "handle".into(),
            workload_uid: uid.into(),
            workload: None,
            target: self.target(uid),
            read_only: false,
            source_read_only: false,
            bucket: "bucket".into(),
            place: "place".into(),
            args: ["--allow-delete", "--force-path-style", "--cache=/local-cache"].map(str::to_owned).into(),
            env: vec![
                ("AWS_ENDPOINT_URL".into(), self.endpoint.clone()),
                ("AWS_REGION".into(), "us-east-1".into()),
            ],
            unusable: None,
            credentials: Some(Credentials {
                access_key_id: "test".into(),
                secret_access_key: SECRET.into(),
                session_token: None,
            }),
            of_secret: false,
            token: None,
            agent: None,
        }
    }

    /// The files of the driver's directory, without the directories of caches and of notes of uploads, and those in that of caches.
    fn files(&self) -> Vec<String> {
        let plugin = comm::plugin_directory(&self.kubelet);
        let names = |directory: PathBuf| {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            entries
                .map(|entry| entry.file_name().into_string().unwrap())
                .filter(|name| name != "cache" && name != "state")
        };
        let mut files: Vec<_> = names(plugin.join("cache")).chain(names(plugin)).collect();
        files.sort();
        files
    }

    fn assert_nothing_is_left(&self, uid: &str) {
        let target = self.target(uid);
        assert!(Mounts::read().unwrap().at(&target).is_none() && !target.exists());
        assert_eq!(self.files(), Vec::<String>::new());
        assert_eq!(units(), "");
    }
}

fn systemctl(arguments: &[&str]) -> String {
    let output = Command::new("systemctl").args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Names of all units of engines, running or failed.
fn units() -> String {
    systemctl(&["list-units", "--all", "--plain", "--no-legend", "mount-s3-*"])
}

fn property(target: &Path, name: &str) -> String {
    systemctl(&["show", "--value", "--property", name, &unit::name(target)])
}

fn pid(target: &Path) -> u32 {
    property(target, "MainPID").parse().unwrap()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn hello(target: &Path) -> std::io::Result<String> {
    fs::read_to_string(target.join("hello"))
}

#[test]
fn a_mount_outlives_its_driver_and_the_next_driver_refreshes_it() {
    in_node(|| {
        runtime().block_on(async {
            let home = Home::new();
            let target = home.target("u1");
            let driver = home.driver();
            assert_eq!(driver.fault(), None);
            driver.mount(home.request("u1")).await.unwrap();
            assert_eq!(hello(&target).unwrap(), "from the bucket");
            fs::write(target.join("written"), "1").unwrap();
            let shown = systemctl(&["show", &unit::name(&target)]);
            assert!(shown.contains("ActiveState=active") && shown.contains("StatusText=mounted"), "{shown}");
            assert!(!shown.contains(SECRET) && shown.contains("AWS_SHARED_CREDENTIALS_FILE="), "{shown}");
            let engine = pid(&target);
            let keys = comm::plugin_directory(&home.kubelet).join("u1-handle-s3-csi-credentials");
            assert_eq!(keys.metadata().unwrap().mode() & 0o7777, 0o640);
            drop(driver);

            let anew = home.driver();
            assert_eq!(hello(&target).unwrap(), "from the bucket");
            let mut rotated = home.request("u1");
            rotated.credentials.as_mut().unwrap().access_key_id = "rotated".into();
            // Options that a new mount may not have do not keep new keys from a mount that exists.
            rotated.unusable = Some("a typo".into());
            anew.mount(rotated).await.unwrap();
            assert!(fs::read_to_string(&keys).unwrap().contains("rotated"));
            assert_eq!(pid(&target), engine, "the same engine goes on");
            anew.mount(home.request("u1")).await.unwrap();

            anew.unmount(&target).await.unwrap();
            home.assert_nothing_is_left("u1");
            anew.unmount(&target).await.unwrap();
            let journal = Command::new("journalctl").args(["--identifier", "mount-s3"]).output().unwrap();
            let journal = String::from_utf8_lossy(&journal.stdout).into_owned();
            assert!(journal.contains("successfully mounted"), "the engine's words are kept: {journal}");
            assert!(!journal.contains(SECRET), "{journal}");
        });
    });
}

#[test]
fn programs_read_on_when_systemd_starts_the_next_engine_on_the_same_mount() {
    if !need("Linux 6.9, which sends requests again", kernel_resends()) {
        return;
    }
    in_node(|| {
        runtime().block_on(async {
            let home = Home::new();
            let (driver, target) = (home.driver(), home.target("u1"));
            let big = vec![7; 3 << 20];
            fs::write(home.root.join("store/bucket/big"), &big).unwrap();
            driver.mount(home.request("u1")).await.unwrap();
            let device = Mounts::read().unwrap().at(&target).unwrap().device.clone();
            let inside = home.root.join("container");
            fs::create_dir(&inside).unwrap();
            rustix::mount::mount_bind(&target, &inside).unwrap();
            rustix::mount::mount_change(&inside, rustix::mount::MountPropagationFlags::PRIVATE).unwrap();
            let mut open = fs::File::open(inside.join("big")).unwrap();
            let mut written = fs::File::create(target.join("written")).unwrap();
            written.write_all(b"half").unwrap();
            for _ in 0..3 {
                let killed = pid(&target);
                kill(killed);
                let mut part = vec![0; 1 << 20];
                open.read_exact(&mut part).unwrap();
                assert!(part.iter().all(|byte| *byte == 7));
                assert_eq!(hello(&inside).unwrap(), "from the bucket");
                until("systemd knows the next engine", || ![killed, 0].contains(&pid(&target)));
            }
            assert!(written.sync_all().is_err());
            drop((open, written));
            assert!(!home.root.join("store/bucket/written").exists());
            let mounts = Mounts::read().unwrap();
            assert!(mounts.layers(&target).count() == 1 && mounts.at(&target).unwrap().device == device);
            driver.mount(home.request("u1")).await.unwrap();
            sys::unmount(&inside, Busy::Detach).unwrap();
            driver.unmount(&target).await.unwrap();
            home.assert_nothing_is_left("u1");
        });
    });
}

#[test]
fn a_prefix_with_dollars_is_mounted_as_it_is_written() {
    in_node(|| {
        runtime().block_on(async {
            let home = Home::new();
            let (driver, target) = (home.driver(), home.target("u1"));
            let prefix = "a$HOME-${HOME}-$$-$/";
            let folder = home.root.join("store/bucket").join(prefix);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("hello"), "below the prefix").unwrap();
            let mut request = home.request("u1");
            request.args.push(format!("--prefix={prefix}"));
            driver.mount(request).await.unwrap();
            assert_eq!(hello(&target).unwrap(), "below the prefix");
            let line = fs::read_to_string(format!("/proc/{}/cmdline", pid(&target))).unwrap();
            assert!(line.split('\0').any(|word| word == format!("--prefix={prefix}")), "{line:?}");
            driver.unmount(&target).await.unwrap();
            home.assert_nothing_is_left("u1");
        });
    });
}

#[test]
fn what_the_engine_says_is_the_error_and_nothing_is_left() {
    in_node(|| {
        runtime().block_on(async {
            let home = Home::new();
            let driver = home.driver();
            let missing = MountRequest { bucket: "no-such-bucket".into(), ..home.request("u1") };
            for _ in 0..2 {
                let error = driver.mount(missing.clone()).await.unwrap_err();
                assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error}");
                let text = error.to_string();
                assert!(text.contains("NoSuchBucket") && text.contains("journalctl -u mount-s3-"), "{text}");
                home.assert_nothing_is_left("u1");
            }
            driver.mount(home.request("u1")).await.unwrap();
            driver.unmount(&home.target("u1")).await.unwrap();

            let nowhere = Config { engine: "/no/such/mount-s3".into(), ..home.config() };
            let error = SystemdMounter::new(nowhere).unwrap().mount(home.request("u1")).await.unwrap_err();
            assert!(error.to_string().contains("volume pv: the engine could not mount"), "{error}");
            home.assert_nothing_is_left("u1");

            let request = home.request("u1");
            let token =
                MountRequest { token: Some(super::super::Token("t".into())), credentials: None, ..request };
            let error = driver.mount(token).await.unwrap_err();
            assert!(error.to_string().contains("node.mounter: pod"), "{error}");

            // An engine that never mounts: one that does may be sooner than the look at the clock.
            let asleep = home.root.join("asleep");
            fs::write(&asleep, "#!/bin/sh\nexec sleep 600\n").unwrap();
            fs::set_permissions(&asleep, fs::Permissions::from_mode(0o755)).unwrap();
            let late = Config { engine: asleep, mount_within: Duration::from_millis(200), ..home.config() };
            let error = SystemdMounter::new(late).unwrap().mount(home.request("u1")).await.unwrap_err();
            assert!(
                matches!(error.kind, ErrorKind::DeadlineExceeded | ErrorKind::FailedPrecondition),
                "{error}"
            );
            home.assert_nothing_is_left("u1");

            let deaf = Config { socket: home.root.join("private"), ..home.config() };
            let deaf = SystemdMounter::new(deaf).unwrap();
            assert!(deaf.fault().unwrap().contains("the system bus does not listen at "));
            let error = deaf.mount(home.request("u1")).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
            assert!(!home.target("u1").exists());
        });
    });
}

#[test]
fn a_failed_mount_leaves_the_keys_of_a_volume_that_is_being_mounted() {
    in_node(|| {
        runtime().block_on(async {
            let home = Home::new();
            let driver = home.driver();
            // A volume of the same pod whose unit is about to start: its keys are written, and no mount shows them.
            let target = home.kubelet.join("pods/u1/volumes/kubernetes.io~csi/beside/mount");
            let beside =
                MountRequest { handle: "beside".into(), target: target.clone(), ..home.request("u1") };
            driver.files().write_keys(&beside).unwrap();
            let missing = MountRequest { bucket: "no-such-bucket".into(), ..home.request("u1") };
            driver.mount(missing).await.unwrap_err();
            assert_eq!(home.files(), ["u1-beside-s3-csi-config", "u1-beside-s3-csi-credentials"]);
            driver.mount(beside).await.unwrap();
            assert_eq!(hello(&target).unwrap(), "from the bucket");
            driver.unmount(&target).await.unwrap();
            home.assert_nothing_is_left("u1");
        });
    });
}

#[test]
fn twenty_are_mounted_and_unmounted_at_once() {
    in_node(|| {
        runtime().block_on(async {
            let home = Home::new();
            let driver = home.driver();
            let uids: Vec<_> = (0..20).map(|number| format!("u{number}")).collect();
            let requests = uids.iter().map(|uid| MountRequest { args: Vec::new(), ..home.request(uid) });
            for mounted in join_all(requests.map(|request| driver.mount(request))).await {
                mounted.unwrap();
            }
            for uid in &uids {
                assert_eq!(hello(&home.target(uid)).unwrap(), "from the bucket");
            }
            assert_eq!(units().lines().count(), 20);
            let targets: Vec<_> = uids.iter().map(|uid| home.target(uid)).collect();
            for unmounted in join_all(targets.iter().map(|target| driver.unmount(target))).await {
                unmounted.unwrap();
            }
            for uid in &uids {
                home.assert_nothing_is_left(uid);
            }
        });
    });
}

#[test]
fn a_systemd_that_starts_anew_is_connected_to_again_and_its_mounts_stay() {
    in_node(|| {
        runtime().block_on(async {
            let home = Home::new();
            let driver = home.driver();
            driver.mount(home.request("u1")).await.unwrap();
            systemctl(&["daemon-reexec"]);
            assert_eq!(hello(&home.target("u1")).unwrap(), "from the bucket");
            driver.mount(home.request("u2")).await.unwrap();
            let state = driver.0.manager.state(&unit::name(&home.target("u1"))).await.unwrap();
            assert_eq!(state, State::Active);
            for uid in ["u1", "u2"] {
                driver.unmount(&home.target(uid)).await.unwrap();
            }
            home.assert_nothing_is_left("u1");
        });
    });
}

#[test]
fn a_target_that_reads_only_is_read_only_and_a_foreign_mount_is_left() {
    in_node(|| {
        runtime().block_on(async {
            let home = Home::new();
            let driver = home.driver();
            let (reader, writer) = (home.target("u1"), home.target("u2"));
            driver.mount(MountRequest { read_only: true, ..home.request("u1") }).await.unwrap();
            driver.mount(home.request("u2")).await.unwrap();
            let refused = fs::write(reader.join("a"), "1").unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
            fs::write(writer.join("a"), "1").unwrap();
            let foreign = home.target("u3");
            fs::create_dir_all(&foreign).unwrap();
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("tmpfs", &foreign, "tmpfs", flags, None).unwrap();
            let error = driver.mount(home.request("u3")).await.unwrap_err();
            assert!(error.to_string().contains("tmpfs of tmpfs is mounted at"), "{error}");
        });
    });
}

/// A mount as release 1.2 leaves it: a forking unit under another name, and keys where that release wrote them.
fn mounted_by_release_1_2(home: &Home, uid: &str) -> PathBuf {
    let target = home.target(uid);
    fs::create_dir_all(&target).unwrap();
    let plugin = comm::plugin_directory(&home.kubelet);
    let name = format!("{uid}-handle-s3-csi");
    fs::write(plugin.join(format!("{name}-config")), format!("[profile {name}]\n")).unwrap();
    let keys = format!("[{name}]\naws_access_key_id = test\naws_secret_access_key = {SECRET}\n");
    fs::write(plugin.join(format!("{name}-credentials")), keys).unwrap();
    let variables = [
        format!("AWS_CONFIG_FILE={}/{name}-config", plugin.display()),
        format!("AWS_PROFILE={name}"),
        format!("AWS_SHARED_CREDENTIALS_FILE={}/{name}-credentials", plugin.display()),
        format!("AWS_ENDPOINT_URL={}", home.endpoint),
        "AWS_REGION=us-east-1".to_owned(),
    ];
    let mut run = Command::new("systemd-run");
    run.args(["--unit=mount-s3-1.2.0-5f0c.service", "--property=Type=forking", "--quiet"]);
    run.args(variables.iter().map(|it| format!("--setenv={it}")));
    run.arg(built("mount-s3")).args(["--allow-delete", "--force-path-style", "bucket"]).arg(&target);
    assert!(run.status().unwrap().success());
    until("release 1.2's engine serves", || hello(&target).is_ok());
    target
}

#[test]
fn a_mount_of_release_1_2_is_refreshed_and_unmounted() {
    in_node(|| {
        runtime().block_on(async {
            let home = Home::new();
            let target = mounted_by_release_1_2(&home, "u1");
            let driver = home.driver();
            let mut rotated = home.request("u1");
            rotated.credentials.as_mut().unwrap().access_key_id = "rotated".into();
            driver.mount(rotated).await.unwrap();
            let keys = comm::plugin_directory(&home.kubelet).join("u1-handle-s3-csi-credentials");
            assert!(fs::read_to_string(keys).unwrap().contains("rotated"));
            assert_eq!(units().lines().count(), 1, "no second engine: {}", units());
            driver.unmount(&target).await.unwrap();
            until("release 1.2's engine has ended", || units().is_empty());
            home.assert_nothing_is_left("u1");
        });
    });
}

#[test]
fn a_systemd_mount_outlives_the_upgrade_to_mountpoint_pods_until_its_pod() {
    in_node(|| {
        runtime().block_on(async {
            let home = Home::new();
            let old = home.driver();
            old.mount(home.request("u1")).await.unwrap();
            drop(old);
            let target = home.target("u1");
            let reader = fs::File::open(target.join("hello")).unwrap();

            let server = Server::start();
            let sweep_every = Duration::from_millis(100);
            let config = pod::Config { kubelet: home.kubelet.clone(), sweep_every, ..pod::Config::new("n") };
            let upgraded = PodMounter::new(server.client(), config).unwrap();
            let mut rotated = home.request("u1");
            rotated.credentials.as_mut().unwrap().access_key_id = "rotated".into();
            upgraded.mount(rotated).await.unwrap();
            let keys = comm::plugin_directory(&home.kubelet).join("u1-handle-s3-csi-credentials");
            assert!(fs::read_to_string(&keys).unwrap().contains("rotated"), "it is refreshed");
            assert_eq!(std::io::read_to_string(&reader).unwrap(), "from the bucket", "a reader goes on");
            upgraded.mount(home.request("u1")).await.unwrap();
            // After a crash, systemd still starts the engine again.
            drop(reader);
            kill(pid(&target));
            until("systemd starts the engine again", || hello(&target).is_ok());
            assert!(keys.exists(), "no sweep takes the keys of a mount");

            // The pod ends, and with the pod the unit.
            upgraded.unmount(&target).await.unwrap();
            until("its engine, keys and cache are gone", || units().is_empty() && home.files().is_empty());
            assert!(!target.exists());
        });
    });
}

/// Goal: with node.degraded: systemd a pod that starts while no reconciler works gets its volume, and keeps it when one is back.
#[test]
fn without_a_reconciler_systemd_mounts_and_a_later_pod_takes_nothing() {
    in_node(|| {
        runtime().block_on(async {
            let home = Home::new();
            let server = Server::start();
            server.leases().put("scality-csi-controller", lease("2025-06-01T10:00:00.000000Z"));
            let sweep_every = Duration::from_millis(100);
            let config = pod::Config { kubelet: home.kubelet.clone(), sweep_every, ..pod::Config::new("n") };
            let driver = PodMounter::with_fallback(server.client(), config, Some(home.driver())).unwrap();
            let target = home.target("u1");
            let made = driver.mount(home.request("u1")).await.unwrap();
            assert!(
                matches!(&made, Made::BySystemdInstead(why) if why.contains("no reconciler works")),
                "{made:?}"
            );
            assert_eq!(hello(&target).unwrap(), "from the bucket");
            assert_eq!(driver.mount(home.request("u1")).await.unwrap(), Made::AsUsual, "said once");
            let engine = pid(&target);

            let token = MountRequest {
                token: Some(super::super::Token("t".into())),
                credentials: None,
                ..home.request("u2")
            };
            let error = driver.mount(token).await.unwrap_err();
            assert!(error.to_string().contains("authenticationSource: pod"), "what it can't honour: {error}");

            // The reconciler is back, and knows nothing of this mount.
            server.leases().put("scality-csi-controller", lease("2025-06-01T11:00:00.000000Z"));
            server.pods().put("mp-1", mountpoint_pod("mp-1", "pod-uid", "n", "Running"));
            server.attachments().put("a", attachment("a", "n", "pv", &[("mp-1", "u1")]));
            server.watched(2).await;
            driver.mount(home.request("u1")).await.unwrap();
            assert_eq!((hello(&target).unwrap().as_str(), pid(&target)), ("from the bucket", engine));
            driver.unmount(&target).await.unwrap();
            until("its engine, keys and cache are gone", || units().is_empty() && home.files().is_empty());
        });
    });
}

#[test]
fn certificates_of_the_chart_are_copied_to_the_host() {
    in_node(|| {
        runtime().block_on(async {
            let home = Home::new();
            let given = PathBuf::from("/etc/ssl/certs/ca-certificates.crt");
            if !need("ca-certificates", given.exists()) {
                return;
            }
            let config = Config { extra_ca_bundle: Some(given), ..home.config() };
            let driver = SystemdMounter::new(config).unwrap();
            driver.mount(home.request("u1")).await.unwrap();
            let copied = comm::plugin_directory(&home.kubelet).join(CA_BUNDLE);
            assert!(property(&home.target("u1"), "ExecStart").contains(copied.to_str().unwrap()));
        });
    });
}
