//! Each option in one row: its default in the help, and its variable. Then each variable: its effect, its refusals, and the precedence of
//! the flag.
//!
//! Limits, conflicts and messages of the options are in `options.rs`.

use super::run::{Ended, command, end};

/// Option, default, variable. An option without a default has the behaviour without it in that column: nothing, or the bucket's own.
const ROWS: &[(&str, &str, &str)] = &[
    ("--allow-append", "", ""),
    ("--allow-delete", "", ""),
    ("--allow-other", "", ""),
    ("--allow-overwrite", "", ""),
    ("--allow-rename", "", ""),
    ("--allow-root", "", ""),
    ("--auto-unmount", "", ""),
    ("--bind", "", ""),
    ("--bucket-type", "from the name", ""),
    ("--ca-bundle", "", "AWS_CA_BUNDLE"),
    ("--cache", "", ""),
    ("--cache-passthrough", "auto", ""),
    ("--commit", "close", ""),
    ("--control-socket", "", ""),
    ("--debug", "", ""),
    ("--dir-mode", "0755", ""),
    ("--directory-markers", "", ""),
    ("--dual-stack", "", ""),
    ("--endpoint-url", "", "AWS_ENDPOINT_URL"),
    ("--expected-bucket-owner", "", ""),
    ("--extra-ca-bundle", "", ""),
    ("--file-mode", "0644", ""),
    ("--force-path-style", "", ""),
    ("--foreground", "", ""),
    ("--fuse-transport", "auto", ""),
    ("--gid", "the mounting user's", ""),
    ("--help", "", ""),
    ("--ignore-attributes", "", ""),
    ("--infer-content-type", "", ""),
    ("--keep-metadata", "", ""),
    ("--log-directory", "syslog", ""),
    ("--log-format", "text", ""),
    ("--log-metrics", "", ""),
    ("--max-cache-size", "leaves 5 % of its file system free", ""),
    ("--max-threads", "16", ""),
    ("--maximum-throughput-gbps", "10", ""),
    ("--memory-target", "a quarter of the machine's memory or of the control group's limit, up to 4096", ""),
    ("--metadata-ttl", "minimal, or 60 with --cache", ""),
    ("--metrics-listen", "", ""),
    ("--mode", "object", ""),
    ("--negative-metadata-ttl", "as --metadata-ttl", ""),
    ("--no-log", "", ""),
    ("--no-sign-request", "", ""),
    ("--operation-timeout", "60", "MOUNT_S3_OPERATION_TIMEOUT"),
    ("--otlp-endpoint", "", ""),
    ("--otlp-export-interval", "60", ""),
    ("--part-size", "8388608", ""),
    ("--prefix", "the whole bucket", ""),
    ("--profile", "", ""),
    ("--read-mode", "buffered", ""),
    ("--read-only", "", ""),
    ("--read-part-size", "as --part-size", ""),
    ("--ready-file", "", ""),
    ("--region", "AWS_REGION, ~/.aws/config, on AWS the instance, else us-east-1", "AWS_REGION"),
    ("--rename-errno", "enosys", ""),
    ("--rename-limit", "100000", ""),
    ("--requester-pays", "", ""),
    ("--sandbox", "auto", ""),
    ("--sign-payload", "", ""),
    ("--spill-dir", "the cache directory", ""),
    ("--sse", "", ""),
    ("--sse-kms-key-id", "", ""),
    ("--stage", "", ""),
    ("--stage-passthrough", "off", ""),
    ("--stage-size", "10240", ""),
    (
        "--state-dir",
        "$STATE_DIRECTORY, $XDG_STATE_HOME/mount-s3, /var/lib/mount-s3 of root, ~/.local/state/mount-s3",
        "",
    ),
    ("--storage-class", "", ""),
    ("--store", "from its endpoint and its answers", ""),
    ("--supervised", "", ""),
    ("--transfer-acceleration", "", ""),
    ("--uid", "the mounting user", ""),
    ("--upload-checksums", "crc32c; off for S3 on Outposts, which refuses it", ""),
    ("--user-agent-prefix", "", ""),
    ("--version", "", ""),
    ("--write-part-size", "as --part-size", ""),
    ("--xattrs", "", ""),
];

/// Options of AWS's mount-s3 1.24. Those that the help does not list are refused, or accepted for scripts (`options.rs`).
const OF_AWS: &[&str] = &[
    "prefix",
    "region",
    "endpoint-url",
    "force-path-style",
    "transfer-acceleration",
    "dual-stack",
    "requester-pays",
    "bucket-type",
    "expected-bucket-owner",
    "storage-class",
    "sse",
    "sse-kms-key-id",
    "upload-checksums",
    "infer-content-type",
    "no-sign-request",
    "profile",
    "read-only",
    "allow-delete",
    "allow-overwrite",
    "incremental-upload",
    "auto-unmount",
    "allow-root",
    "allow-other",
    "uid",
    "gid",
    "file-mode",
    "dir-mode",
    "maximum-throughput-gbps",
    "max-threads",
    "memory-target",
    "part-size",
    "read-part-size",
    "write-part-size",
    "bind",
    "ca-bundle",
    "log-directory",
    "log-metrics",
    "otlp-endpoint",
    "otlp-export-interval",
    "debug",
    "debug-crt",
    "no-log",
    "cache",
    "max-cache-size",
    "metadata-ttl",
    "negative-metadata-ttl",
    "cache-xz",
    "user-agent-prefix",
    "foreground",
    "version",
    "help",
];

/// Options of the help, each with its words in one line.
fn helped() -> Vec<(String, String)> {
    let home = tempfile::tempdir().unwrap();
    let help = end(command(home.path()).arg("--help")).stdout;
    let mut options: Vec<(String, String)> = Vec::new();
    for line in help.lines() {
        let words = line.trim();
        let is_option = line.starts_with("  -") || line.starts_with("      --");
        match options.last_mut() {
            _ if is_option => {
                let long = words.split_whitespace().find(|word| word.starts_with("--")).unwrap();
                options.push((long.trim_end_matches(',').to_owned(), String::new()));
            }
            Some((_, text)) if line.starts_with("          ") && !words.is_empty() => {
                text.push(' ');
                text.push_str(words);
            }
            _ => {}
        }
    }
    options
}

/// The text in `[NAME: ...]`.
fn bracketed<'a>(text: &'a str, name: &str) -> &'a str {
    let Some((_, rest)) = text.split_once(&format!("[{name}: ")) else { return "" };
    rest.split_once(']').expect("a closing bracket").0
}

#[test]
fn every_option_has_the_default_and_the_variable_of_its_row() {
    let mut found: Vec<_> = helped();
    found.sort();
    let found: Vec<_> = found
        .iter()
        .map(|(option, text)| (option.as_str(), bracketed(text, "default"), bracketed(text, "env")))
        .collect();
    for (row, found) in ROWS.iter().zip(&found) {
        assert_eq!(row, found);
    }
    assert_eq!(found.len(), ROWS.len());
}

#[test]
fn every_option_of_aws_is_known() {
    let home = tempfile::tempdir().unwrap();
    for option in OF_AWS {
        let said = end(command(home.path()).arg(format!("--{option}"))).stderr;
        assert!(!said.contains("unexpected argument"), "--{option}: {said}");
    }
    // This line shows that the assertion above can fail.
    assert!(end(command(home.path()).arg("--cache-block-size")).stderr.contains("unexpected argument"));
}

/// An address without a listener.
const NOBODY: &str = "127.0.0.1:1";

/// Runs `mount-s3 test-bucket DIR` with one try at an endpoint without a listener: an error that names the endpoint shows that everything
/// else was accepted.
fn tried(flags: &[&str], variable: (&str, &str)) -> Ended {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let mut command = command(home.path());
    command.arg("test-bucket").arg(&dir).args(["--foreground", "--no-sign-request"]).args(flags);
    // Hosts of AWS are not looked for.
    command.env("AWS_MAX_ATTEMPTS", "1").env(variable.0, variable.1);
    end(&mut command)
}

/// The effect of a variable beside flags.
struct Variable {
    name: &'static str,
    value: &'static str,
    flags: &'static [&'static str],
    code: i32,
    /// The words on stderr, or in the log.
    says: &'static str,
}

const fn row(
    name: &'static str,
    value: &'static str,
    flags: &'static [&'static str],
    code: i32,
    says: &'static str,
) -> Variable {
    Variable { name, value, flags, code, says }
}

const URL: &str = "--endpoint-url=http://127.0.0.1:1";
const REGION: &str = "--region=us-east-1";
const THERE: &[&str] = &[URL, REGION];
const CERTIFICATES: &str = "--ca-bundle=/etc/ssl/certs/ca-certificates.crt";

const VARIABLES: &[Variable] = &[
    row("AWS_REGION", "eu-test-9", &[], 1, "test-bucket.s3.eu-test-9.amazonaws.com"),
    row("AWS_REGION", "eu-test-9", &["--region=eu-test-8"], 1, "test-bucket.s3.eu-test-8.amazonaws.com"),
    row(
        "AWS_USE_DUALSTACK_ENDPOINT",
        "true",
        &["--region=eu-test-8"],
        1,
        "s3.dualstack.eu-test-8.amazonaws.com",
    ),
    row("AWS_USE_FIPS_ENDPOINT", "true", &["--region=eu-test-8"], 1, "s3-fips.eu-test-8.amazonaws.com"),
    row("AWS_ENDPOINT_URL", "http://127.0.0.1:1", &["--region=us-east-1"], 1, NOBODY),
    row("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1", &["--region=us-east-1"], 1, NOBODY),
    row("AWS_ENDPOINT_URL", "http://127.0.0.1:2", THERE, 1, NOBODY),
    row("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2", THERE, 1, NOBODY),
    row("AWS_ENDPOINT_URL", "no url", &["--region=us-east-1"], 1, "the endpoint URL \"no url\" is not a URL"),
    row("AWS_CA_BUNDLE", "/no/such/bundle", THERE, 1, "the CA bundle /no/such/bundle can't be read"),
    row("AWS_CA_BUNDLE", "/etc/passwd", THERE, 1, "the CA bundle /etc/passwd holds no certificate"),
    row("AWS_CA_BUNDLE", "/no/such/bundle", &[URL, REGION, CERTIFICATES], 1, NOBODY),
    row("MOUNT_S3_OPERATION_TIMEOUT", "2", THERE, 1, NOBODY),
    row("MOUNT_S3_OPERATION_TIMEOUT", "0", THERE, 2, "'--operation-timeout <SECONDS>'"),
    row("MOUNT_S3_OPERATION_TIMEOUT", "0", &[URL, REGION, "--operation-timeout=2"], 1, NOBODY),
    row("AWS_MAX_ATTEMPTS", "1", THERE, 1, NOBODY),
    row("AWS_MAX_ATTEMPTS", "many", &[URL, REGION, "--max-attempts=1"], 1, NOBODY),
    row("AWS_PROFILE", "nobody", THERE, 1, NOBODY),
    row("MOUNTPOINT_LOG", "warn", THERE, 1, NOBODY),
    row("MOUNTPOINT_LOG", "a=b=c", THERE, 1, "MOUNTPOINT_LOG='a=b=c' is not a log filter"),
    row("MOUNTPOINT_LOG", "a=b=c", &[URL, REGION, "--log-filter=warn"], 1, NOBODY),
    row("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", THERE, 1, NOBODY),
    row(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "127.0.0.1:1",
        THERE,
        2,
        "OTEL_EXPORTER_OTLP_ENDPOINT: give an http://",
    ),
    row(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "127.0.0.1:1",
        &[URL, REGION, "--otlp-endpoint=http://127.0.0.1:1"],
        1,
        NOBODY,
    ),
    row(
        "OTEL_METRIC_EXPORT_INTERVAL",
        "often",
        &[URL, REGION, "--otlp-endpoint=http://127.0.0.1:1"],
        2,
        "OTEL_METRIC_EXPORT_INTERVAL is 'often': give milliseconds",
    ),
    row("HTTP_PROXY", "http://127.0.0.1:3", THERE, 1, "127.0.0.1:3"),
    row("HTTP_PROXY", "socks5://127.0.0.1:3", THERE, 1, "HTTP_PROXY must begin with http://"),
];

#[test]
fn every_variable_does_what_its_flag_does_and_the_flag_wins() {
    for Variable { name, value, flags, code, says } in VARIABLES {
        let ended = tried(flags, (name, value));
        assert_eq!(ended.code, Some(*code), "{name}={value} {flags:?}: {ended:?}");
        assert!(ended.stderr.contains(says), "{name}={value} {flags:?}: {says:?} is not in {}", ended.stderr);
    }
    let of_options = ROWS.iter().map(|(_, _, variable)| *variable).filter(|variable| !variable.is_empty());
    for name in of_options {
        assert!(VARIABLES.iter().any(|variable| variable.name == name), "{name} was never tried");
    }
}
