//! Variables in place of flags.

use super::run::{ACCEPTED, command, end, run};

#[test]
fn an_empty_variable_counts_as_unset() {
    for name in [
        "AWS_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_CA_BUNDLE",
        "AWS_MAX_ATTEMPTS",
        "MOUNT_S3_OPERATION_TIMEOUT",
        "MOUNTPOINT_LOG",
    ] {
        let ended = run(&[], &[(name, "")]);
        assert!(ended.code == Some(1) && ended.stderr.contains(ACCEPTED), "{name}: {ended:?}");
        assert!(!ended.stdout.contains(" WARN "), "{name}: {ended:?}");
    }
}

#[test]
fn a_number_of_attempts_that_is_no_number_is_a_warning() {
    for value in ["many", "0", "-1"] {
        let ended = run(&[], &[("AWS_MAX_ATTEMPTS", value)]);
        assert!(ended.code == Some(1) && ended.stderr.contains(ACCEPTED), "{ended:?}");
        let warned = ended.stdout.lines().any(|l| l.contains(" WARN ") && l.contains("AWS_MAX_ATTEMPTS"));
        assert!(warned, "{value}: {ended:?}");
    }
    // A time that is none would change how long every request waits: it is refused.
    assert_eq!(run(&[], &[("MOUNT_S3_OPERATION_TIMEOUT", "a minute")]).code, Some(2));
    // The flag is not a variable: its user is there to mend it.
    assert_eq!(run(&["--max-attempts", "many"], &[("AWS_MAX_ATTEMPTS", "3")]).code, Some(2));
}

#[test]
fn the_flag_precedes_the_endpoint_of_s3_and_that_the_general_endpoint() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    // Nothing listens there: the error names the host that was asked.
    let named = |flag: Option<&str>, env: &[(&str, &str)]| {
        let mut command = command(home.path());
        command.arg("test-bucket").arg(&dir).args([
            "--foreground",
            "--no-sign-request",
            "--max-attempts",
            "1",
        ]);
        command.args(["--force-path-style", "--region", "us-east-1"]);
        command.args(flag.map(|url| format!("--endpoint-url={url}"))).envs(env.iter().copied());
        end(&mut command).stderr
    };
    let (all, s3) =
        (("AWS_ENDPOINT_URL", "http://127.0.0.1:1"), ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2"));
    for (flag, env, port) in [
        (None, &[all][..], "127.0.0.1:1"),
        (None, &[all, s3], "127.0.0.1:2"),
        (None, &[all, ("AWS_ENDPOINT_URL_S3", "")], "127.0.0.1:1"),
        (Some("http://127.0.0.1:3"), &[all, s3], "127.0.0.1:3"),
    ] {
        let said = named(flag, env);
        assert!(said.contains(port), "{env:?}: {said}");
    }
}
