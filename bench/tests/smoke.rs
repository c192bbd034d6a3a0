//! The whole path once: server, mount, workload, checks, table, JSON.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

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
    let there = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !there {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "/dev/fuse is missing, and in CI nothing is skipped"
        );
        eprintln!("SKIPPED: /dev/fuse can't be opened, so nothing can be mounted");
    }
    there
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

#[test]
fn fio_s_jobs_run_on_mount_s3() {
    let Some(binary) = std::env::var_os("MOUNT_S3_BIN") else {
        eprintln!("SKIPPED: MOUNT_S3_BIN names no mount-s3 to measure");
        return;
    };
    if Command::new("fio").arg("--version").output().is_err() {
        eprintln!("SKIPPED: fio is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["fio", "--rounds", "1", "--runtime-s", "1", "--job", "mix_1r4w", "--job", "ttfb_small"])
        .args(["--mount", binary.to_str().unwrap(), "--json", json.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    for row in report["rows"].as_array().unwrap() {
        assert_eq!(row["failure"], Value::Null, "{row:#}");
        assert!(row["samples"][0]["bytes"].as_u64().unwrap() > 0, "{row:#}");
    }
}

#[test]
fn mount_s3_does_every_workload() {
    let Some(binary) = std::env::var_os("MOUNT_S3_BIN") else {
        eprintln!("SKIPPED: MOUNT_S3_BIN names no mount-s3 to measure");
        return;
    };
    assert!(has_fuse(), "MOUNT_S3_BIN is set, so a mount is wanted");
    for row in rows(&["--no-floors", "--mount", binary.to_str().unwrap()]) {
        assert_eq!(row["failure"], Value::Null, "{row:#}");
        assert_ne!(row["samples"][0]["stored_at_close"], Value::Bool(false), "{row:#}");
    }
}
