//! The whole path once: server, mount, workload, checks, table, JSON.

use std::process::Command;

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
    assert_eq!([of("seq_read"), of("seq_read_direct"), of("seq_read_tls")], [4, 2, 1], "{rows:#?}");
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
