//! The command `scality-s3-csi-driver`, as a container starts it.

use std::process::{Command, Output};

fn driver(args: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scality-s3-csi-driver"))
        .args(args)
        .env_clear()
        .envs(environment.iter().copied())
        .output()
        .expect("the driver starts")
}

#[test]
fn the_version_is_json_on_standard_output() {
    let said = driver(&["--version"], &[]);
    assert!(said.status.success());
    let json: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!(json["driverVersion"], csi::contract::VERSION);
    for key in ["gitCommit", "buildDate", "platform"] {
        assert!(json[key].is_string(), "{key}: {json}");
    }
}

#[test]
fn a_driver_that_can_not_run_says_why_in_one_line_and_shows_no_key() {
    let keys = [("AWS_ACCESS_KEY_ID", "HUSHHUSH"), ("AWS_SECRET_ACCESS_KEY", "HUSHHUSH")];
    let url = ("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    let node = ("CSI_NODE_NAME", "worker-1");
    for (args, environment, words) in [
        (&[][..], &[node][..], "AWS_ENDPOINT_URL is missing"),
        (&["--v=5"], &[url], "CSI_NODE_NAME"),
        (&[], &[url, node, ("CSI_CONTROLLER_ONLY", "true")], "CSI_CONTROLLER_ONLY=true"),
        (&["--endpoint=http://127.0.0.1:1"], &[url, node], "--endpoint"),
        (&[], &[url, node, ("AWS_SESSION_TOKEN", "HUSHHUSH HUSHHUSH")], "AWS_SESSION_TOKEN"),
    ] {
        let environment: Vec<_> = environment.iter().chain(&keys).copied().collect();
        let said = driver(args, &environment);
        assert_eq!(said.status.code(), Some(1), "{words}");
        let log = String::from_utf8(said.stderr).expect("a log is text");
        let last = log.lines().last().unwrap_or_default();
        assert!(last.contains("the driver ends:") && last.contains(words), "{words}: {log}");
        assert!(!log.contains("HUSHHUSH"), "{log}");
    }
}
