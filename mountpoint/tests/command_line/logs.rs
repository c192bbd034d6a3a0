//! The destinations of log lines, and the form of the lines there.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use testkit::{need, need_tool};

use super::run::{ACCEPTED, command, run};

#[test]
fn a_line_has_time_level_thread_and_target() {
    let ended = run(&[], &[]);
    let line = ended.stdout.lines().find(|line| line.contains(ACCEPTED)).expect("the error is in the log");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert!(words[0].ends_with('Z') && words[1] == "ERROR" && words[2].starts_with("ThreadId("), "{line}");
    assert_eq!(words[3], "mount_s3:", "{line}");
}

#[test]
fn in_json_each_line_is_an_object() {
    let ended = run(&["--log-format", "json", "--debug-crt"], &[]);
    let lines: Vec<serde_json::Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(lines.len() >= 3, "{}", ended.stdout);
    let last = lines.last().unwrap();
    for (name, value) in [("level", "ERROR"), ("message", ACCEPTED), ("target", "mount_s3")] {
        assert_eq!(last[name], value, "{last}");
    }
    assert!(last["timestamp"].is_string() && last["threadId"].is_string(), "{last}");
}

#[test]
fn a_filter_may_name_targets_of_aws() {
    for (filter, is_logged) in [
        ("off,mountpoint_s3=info", true),
        ("mountpoint_s3=off", false),
        ("off,mount_s3=info", true),
        ("off,awscrt=debug", false),
    ] {
        let ended = run(&[], &[("MOUNTPOINT_LOG", filter)]);
        assert_eq!(ended.stdout.contains(ACCEPTED), is_logged, "{filter}: {}", ended.stdout);
    }
    let ended = run(&[], &[("MOUNTPOINT_LOG", "a=b=c")]);
    assert!(ended.code == Some(1) && ended.stderr.contains("MOUNTPOINT_LOG"), "{ended:?}");
}

/// /dev of a mount namespace of its own, with the socket of this test as its /dev/log.
const SCRIPT: &str = r#"
set -e
mkdir "$FOLDER/dev"
mount -t tmpfs none "$FOLDER/dev"
touch "$FOLDER/dev/null" "$FOLDER/dev/log"
mount --bind /dev/null "$FOLDER/dev/null"
mount --bind "$FOLDER/log" "$FOLDER/dev/log"
mount --move "$FOLDER/dev" /dev
exec "$BINARY" test-bucket missing/dir
"#;

#[test]
fn in_the_background_lines_go_to_syslog_with_level_and_thread() {
    let is_root = rustix::process::geteuid().is_root();
    if !need("root", is_root) || !need_tool("unshare") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let daemon = UnixDatagram::bind(folder.path().join("log")).unwrap();
    daemon.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", SCRIPT]).current_dir(folder.path());
    let env = command(folder.path());
    unshare.env_clear().envs(env.get_envs().filter_map(|(name, value)| Some((name, value?))));
    unshare.env("FOLDER", folder.path()).env("BINARY", env!("CARGO_BIN_EXE_mount-s3"));
    let output = unshare.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let mut lines = String::new();
    while !lines.contains(ACCEPTED) {
        let mut buffer = [0; 16 << 10];
        let n = daemon.recv(&mut buffer).unwrap_or_else(|error| panic!("{error}: {lines}"));
        lines.push_str(&String::from_utf8_lossy(&buffer[..n]));
        lines.push('\n');
    }
    let line = lines.lines().last().unwrap();
    assert!(line.starts_with("<11>mount-s3[") && line.contains("]: [ERROR] ThreadId("), "{lines}");
    assert!(line.ends_with(&format!(" mount_s3: {ACCEPTED}")), "{lines}");
}
