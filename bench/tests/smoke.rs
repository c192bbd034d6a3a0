//! The whole path once: server, mount, workload, checks, table, JSON.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use testkit::need::EXCUSED;
use testkit::{need, need_tool};

/// Runs one round of tiny workloads and gives the rows of its report.
fn rows(extra: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["run", "--rounds", "1", "--big-mib", "16", "--files", "10", "--names", "1100", "--tree", "30"])
        .args(["--created", "2", "--random-s", "1", "--check-all", "--json", json.to_str().unwrap()])
        .args(extra)
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("| workload |"), "{stdout}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    report["rows"].as_array().unwrap().clone()
}

fn has_fuse() -> bool {
    need("/dev/fuse", std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok())
}

/// The number of the user that Debian and others call nobody.
const NOBODY: u32 = 65534;

/// The needs of a user other than root for a bench: programs that he can reach, and a folder of his own.
struct Unprivileged {
    folder: tempfile::TempDir,
}

impl Unprivileged {
    /// A user without privileges; `None` if that user can't mount here.
    fn new() -> Option<Self> {
        if !has_fuse() {
            return None;
        }
        if !need_tool("fusermount3") || !need_tool("setpriv") {
            return None;
        }
        let bench = Path::new(env!("CARGO_BIN_EXE_bench"));
        let mount = mount_s3()?;
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for (program, name) in [(bench, "bench"), (&mount, "mount-s3")] {
            // Another process writes it: a neighbour's child would hold a file that this one writes until its exec, and what is held
            // for writing can't be started.
            let copied = Command::new("cp").arg("-p").arg(program).arg(folder.path().join(name)).status();
            assert!(copied.unwrap().success(), "{name}");
        }
        let own = folder.path().join("own");
        std::fs::create_dir(&own).unwrap();
        if is_root() {
            chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        Some(Self { folder })
    }

    /// The beginning of a command that a user other than root runs. If only root may open `/dev/fuse`, the user gets a copy that all may
    /// open, in a separate mount namespace: the helper opens the copy with the user's rights.
    fn become_him(&self) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        if !is_root() {
            return Vec::new();
        }
        let id = NOBODY.to_string();
        let mut command = words(&["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]);
        let mode = std::fs::metadata("/dev/fuse").unwrap().permissions().mode();
        if mode & 0o006 != 0o006 {
            let device = self.folder.path().join("device");
            std::fs::create_dir_all(&device).unwrap();
            let script = "mount -t tmpfs tmpfs \"$0\" && mknod -m 666 \"$0/fuse\" c 10 229 && \
                          mount --bind \"$0/fuse\" /dev/fuse && exec \"$@\"";
            let mut namespace =
                words(&["unshare", "--mount", "--propagation", "private", "sh", "-c", script]);
            namespace.push(device.to_str().unwrap().to_owned());
            namespace.append(&mut command);
            command = namespace;
        }
        command
    }

    /// The report of one tiny round with every byte checked, made inside this control group if there is one.
    fn report(&self, workloads: &[&str], group: Option<&Path>) -> Value {
        let (folder, own) = (self.folder.path(), self.folder.path().join("own"));
        let json = own.join("report.json");
        let enter =
            group.map_or_else(String::new, |path| format!("echo $$ > '{}/cgroup.procs' && ", path.display()));
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{enter}exec \"$@\""), "sh"])
            .args(self.become_him())
            .arg(folder.join("bench"))
            .args("run --rounds 1 --big-mib 16 --files 10 --tree 30 --created 2".split(' '))
            .args(["--random-s", "1", "--check-all", "--json"])
            .arg(&json)
            .arg("--mount")
            .arg(folder.join("mount-s3"))
            .args(workloads.iter().flat_map(|name| ["--workload", name]))
            .env("TMPDIR", &own)
            .env("HOME", &own)
            .current_dir(&own);
        let output = command.output().unwrap();
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{stdout}{stderr}");
        let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        let user = report["machine"]["user"].as_str().unwrap();
        assert!(user != "root" && stdout.contains(&format!("run by {user}")), "{stdout}");
        for row in report["rows"].as_array().unwrap() {
            assert_eq!(row["failure"], Value::Null, "{row:#}");
            assert_eq!(row["samples"].as_array().unwrap().len(), 1, "{row:#}");
            assert_ne!(row["samples"][0]["stored_at_close"], Value::Bool(false), "{row:#}");
        }
        std::fs::remove_file(json).unwrap();
        let left: Vec<_> = std::fs::read_dir(own).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "it left {left:?}");
        report
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn an_ordinary_user_can_measure_and_the_head_names_user_and_read_ahead() {
    let Some(user) = Unprivileged::new() else { return };
    let report = user.report(
        &["seq_read", "seq_read_direct", "small_files", "random_4k", "walk", "write_1g", "create_4k"],
        None,
    );
    let rows = report["rows"].as_array().unwrap();
    let of = |peer: &str| rows.iter().filter(|row| row["peer"] == peer).collect::<Vec<_>>();
    let null_fs = ["(null fs, dev)", "(null fs, fuser)"].map(|floor| of(floor).len());
    assert_eq!((of("mount-s3").len(), null_fs), (7, [2, 2]), "{rows:#?}");
    for row in of("mount-s3") {
        assert!(row["read_ahead_kb"].as_u64().unwrap() > 0, "{row:#}");
    }
}

/// A control group of version 2 below ours, owned by another user; removed when dropped.
struct Delegated(PathBuf);

impl Delegated {
    fn new() -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?.to_owned();
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        let group = Path::new(&mount).join(own).join(format!("bench-test-{}", std::process::id()));
        std::fs::create_dir(&group).ok()?;
        let group = Self(group);
        for file in ["", "cgroup.procs", "cgroup.subtree_control"] {
            chown(group.0.join(file), Some(NOBODY), Some(NOBODY)).ok()?;
        }
        Some(group)
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn in_a_control_group_that_was_delegated_cpu_is_counted_by_it() {
    let Some(user) = Unprivileged::new() else { return };
    if !need("root", is_root()) {
        return;
    }
    let group = Delegated::new();
    need(EXCUSED[0], group.is_some());
    let Some(group) = group else { return };
    let report = user.report(&["walk"], Some(&group.0));
    assert_eq!(report["cpu_counted_by"], "control group");
    assert!(report["rows"][0]["samples"][0]["daemon_cpu_s"].as_f64().unwrap() > 0.0, "{report:#}");
    let left: Vec<_> = std::fs::read_dir(&group.0).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!left.iter().any(|path| path.is_dir()), "it left groups: {left:?}");
}

#[test]
fn the_floors_are_measured_and_every_byte_is_right() {
    if !has_fuse() {
        return;
    }
    let rows =
        rows(&["--workload", "seq_read", "--workload", "seq_read_direct", "--workload", "seq_read_tls"]);
    let of = |workload| rows.iter().filter(|row| row["workload"] == workload).count();
    assert_eq!([of("seq_read"), of("seq_read_direct"), of("seq_read_tls")], [5, 3, 1], "{rows:#?}");
    for row in rows {
        assert_eq!(row["failure"], Value::Null, "{row:#}");
        assert_eq!(row["samples"].as_array().unwrap().len(), 1, "{row:#}");
        assert!(row["samples"][0]["seconds"].as_f64().unwrap() > 0.0, "{row:#}");
    }
}

/// mount-s3 beside this test, or where the environment says.
fn mount_s3() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_BIN_EXE_bench")).with_file_name("mount-s3");
    let mount = std::env::var_os("MOUNT_S3_BIN").map_or(beside, PathBuf::from);
    let there = need(&format!("mount-s3 at {} (cargo build -p mountpoint)", mount.display()), mount.exists());
    there.then_some(mount)
}

#[test]
fn foul_weather_is_a_table_with_a_line_for_each_file_system() {
    if !has_fuse() {
        return;
    }
    let Some(mount) = mount_s3() else { return };
    let broken = "broken=sh -c 'echo out of order {bucket} {dir} {endpoint} >&2; exit 3'";
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["weather", "--weather", "refused", "--weather", "resets", "--outage-s", "2", "--peer", broken])
        .arg("--mount")
        .arg(mount)
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    let has = |words: &[&str]| stdout.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(&["| refused, 2 s | mount-s3 | 0 of 37 | 0 |", " s | 0 |"]), "{stdout}{stderr}");
    assert!(has(&["| refused, 2 s | broken | failed: ", "out of order"]), "{stdout}{stderr}");
    assert!(
        has(&["reset after 1 MiB | mount-s3 | 0 of 1 | 0 |", "bytes passed for each"]),
        "{stdout}{stderr}"
    );
}

#[test]
fn a_measurement_of_starts_that_fails_leaves_no_mount_behind() {
    if !has_fuse() {
        return;
    }
    let Some(mount) = mount_s3() else { return };
    let dir = tempfile::tempdir().unwrap();
    // mount-s3-ctl is not beside this one. Another process writes it, as above: what a neighbour's child holds for writing can't be started.
    let alone = dir.path().join("mount-s3");
    assert!(Command::new("cp").arg("-p").arg(mount).arg(&alone).status().unwrap().success());
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["start", "--rounds", "1", "--mount", alone.to_str().unwrap()])
        .env("TMPDIR", dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("mount-s3-ctl"), "{said}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(dir.path().to_str().unwrap()), "{mounts}");
}

#[test]
fn a_daemon_that_does_not_mount_is_a_row_with_its_last_words() {
    let broken = "broken=sh -c 'echo out of order {bucket} {dir} {endpoint} >&2; exit 3'";
    let rows = rows(&["--no-floors", "--workload", "walk", "--peer", broken]);
    let failure = rows[0]["failure"].as_str().unwrap();
    assert!(failure.contains("out of order") && failure.contains("exit status: 3"), "{failure}");
    assert!(rows[0]["samples"].as_array().unwrap().is_empty());
}

/// Needs no FUSE: the one peer never mounts.
#[test]
fn a_run_is_kept_and_drawn_and_can_be_drawn_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let broken = "broken=sh -c 'echo out of order {bucket} {dir} {endpoint} >&2; exit 3'";
    rows(&["--no-floors", "--workload", "walk", "--peer", broken, "--html", &file("page.html")]);
    let page = std::fs::read_to_string(file("page.html")).unwrap();
    assert!(page.contains("<h2>walk</h2>") && page.contains("out of order"), "{page}");

    let run = ["run", "--rounds", "1", "--workload", "walk", "--no-floors", "--peer", broken];
    let bench = || Command::new(env!("CARGO_BIN_EXE_bench"));
    let kept = bench().args(run).args(["--json", &file("kept.json")]).output().unwrap();
    let shown = bench().args(["report", &file("kept.json")]).output().unwrap();
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), String::from_utf8(kept.stdout).unwrap());
    let drawn = bench().args(["report", &file("kept.json"), "--html", &file("again.html")]).status().unwrap();
    assert!(drawn.success());
    assert!(std::fs::read_to_string(file("again.html")).unwrap().contains("out of order"));
}

#[test]
fn the_server_says_where_it_serves_tls_and_writes_what_to_trust() {
    let dir = tempfile::tempdir().unwrap();
    let ca_file = dir.path().join("ca.pem");
    let mut server = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["serve", "--tls", ca_file.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines().take(2);
    let addresses: Vec<_> = lines.map(|line| line.unwrap()).collect();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(addresses.iter().all(|address| address.starts_with("127.0.0.1:")), "{addresses:?}");
    assert_ne!(addresses[0], addresses[1]);
    assert!(std::fs::read_to_string(ca_file).unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
}

#[test]
fn without_fio_the_message_says_how_to_get_it() {
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["fio", "--rclone"])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("apt-get install -y fio"), "{said}");
}
