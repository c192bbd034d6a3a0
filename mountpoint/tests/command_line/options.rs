//! Tests of every option: its valid values, its refusals and their reasons.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::run::{ACCEPTED, command, end, run};

const KEY: &str =
    "--sse-kms-key-id=arn:aws:kms:eu-west-1:151381207180:key/dabe1478-fe48-47ca-b6f8-ca044b643a82";

/// Accepted: the run ends with 1 as there is no directory to mount on, and not before.
const TAKEN: &[&[&str]] = &[
    &[],
    &["--prefix="],
    &["--prefix", "a/b/"],
    &["--region", "eu-west-3"],
    &["--endpoint-url", "http://127.0.0.1:9000"],
    &["--force-path-style"],
    &["--transfer-acceleration"],
    &["--dual-stack"],
    &["--bind", "lo", "--bind", "eth0"],
    &["--requester-pays"],
    &["--bucket-type", "general-purpose"],
    &["--expected-bucket-owner", "111122223333"],
    &["--storage-class", "STANDARD_IA"],
    &["--sse", "AES256"],
    &["--sse=aws:kms:dsse", KEY],
    &["--sse=aws:kms"],
    &["--upload-checksums", "crc32c"],
    &["--upload-checksums", "crc64nvme"],
    &["--upload-checksums", "off"],
    &["--store", "auto"],
    &["--store", "aws"],
    &["--store", "scality"],
    &["--store", "minio"],
    &["--store", "ceph"],
    &["--store", "garage"],
    &["--store", "versitygw"],
    &["--store", "generic"],
    &["--infer-content-type"],
    &["--sign-payload"],
    &["--no-sign-request"],
    &["--profile", "somebody"],
    &["--no-sign-request", "--profile", "somebody"],
    &["--read-only"],
    &["--allow-append"],
    &["--mode", "full", "--stage", "/stage", "--stage-size", "100", "--commit", "close"],
    &["--mode", "full", "--stage", "/stage", "--commit", "disk", "--stage-passthrough", "auto"],
    &["--allow-rename"],
    &["--rename-errno", "exdev"],
    &["--sandbox", "on"],
    &["--allow-rename", "--rename-limit", "10"],
    &["--directory-markers"],
    &["--ignore-attributes"],
    &["--keep-metadata", "--xattrs"],
    &["--allow-delete"],
    &["--allow-overwrite"],
    &["--auto-unmount"],
    &["--allow-root"],
    &["--allow-other"],
    &["--uid", "0", "--gid", "0"],
    &["--file-mode", "777", "--dir-mode", "0000"],
    &["--maximum-throughput-gbps", "1"],
    &["--maximum-throughput-gbps", "18446744073709551615"],
    &["--max-threads", "1"],
    &["--max-threads", "100000"],
    &["--memory-target", "128"],
    &["--part-size", "5242880"],
    &["--part-size", "5368709120"],
    &["--read-part-size", "1048576"],
    &["--read-part-size", "1500000", "--write-part-size", "5242881"],
    &["--ca-bundle", "/etc/ssl/certs/ca-certificates.crt"],
    &["--extra-ca-bundle", "/etc/ssl/certs/ca-certificates.crt"],
    &["--user-agent-prefix", "a/1.0"],
    &["--operation-timeout", "1"],
    &["--operation-timeout", "3600"],
    &["--max-attempts", "1"],
    &["--fuse-transport", "auto"],
    &["--fuse-transport", "dev"],
    &["--fuse-transport", "io-uring"],
    &["--fuse-transport", "fuser"],
    &["--spill-dir", "spill"],
    &["--state-dir", "state"],
    &["--cache", "cache"],
    &["--cache", "cache", "--max-cache-size", "0"],
    &["--cache", "cache", "--cache-passthrough", "off"],
    &["--read-mode", "auto"],
    &["--read-mode", "buffered"],
    &["--read-mode", "direct"],
    &["--metadata-ttl", "0"],
    &["--metadata-ttl", "minimal", "--negative-metadata-ttl", "indefinite"],
    &["--metadata-ttl", "3153600000"],
    &["--negative-metadata-ttl", "3153600000"],
    &["--debug", "--debug-crt"],
    &["-d"],
    &["--no-log"],
    &["--log-directory", "logs"],
    &["-l", "logs"],
    &["--log-format", "text"],
    &["--log-format", "json", "-l", "logs"],
    &["--log-filter", "warn"],
    &["--ready-file", "ready"],
    &["--log-metrics"],
    &["--otlp-endpoint", "http://localhost:4318", "--otlp-export-interval", "1"],
    &["--metrics-listen", "127.0.0.1:0"],
    &["--metrics-listen", "unix:/tmp/metrics.sock"],
    &["--control-socket", "/tmp/engine.sock"],
];

/// Refused with exit code 2, and these words.
const REFUSED: &[(&[&str], &str)] = &[
    (&["--no-such-option"], "unexpected argument '--no-such-option' found"),
    (&["--supervised", "--auto-unmount"], "--supervised can't go together with --auto-unmount"),
    (
        &["--supervised", "--fuse-transport", "fuser"],
        "--supervised can't go together with --fuse-transport fuser",
    ),
    (&["--prefix=foo"], "error: invalid value 'foo' for '--prefix <PREFIX>': prefix must end in '/'"),
    (&["--prefix"], "a value is required for '--prefix <PREFIX>' but none was supplied"),
    (&["--region="], "a value is required for '--region <REGION>' but none was supplied"),
    (&["--region", "a", "--region", "b"], "the argument '--region <REGION>' cannot be used multiple times"),
    (&["--endpoint-url"], "a value is required for '--endpoint-url <ENDPOINT_URL>'"),
    (&["--bucket-type", "directory"], "--bucket-type directory is not supported"),
    (&["--stage-passthrough", "on"], "[possible values: auto, off]"),
    (&["--bucket-type", "table"], "[possible values: general-purpose, directory]"),
    (&["--expected-bucket-owner"], "'--expected-bucket-owner <AWS_ACCOUNT_ID>'"),
    (&["--storage-class"], "'--storage-class <STORAGE_CLASS>'"),
    (&["--sse="], "a value is required for '--sse <SSE>' but none was supplied"),
    (&["--sse=aes"], "invalid value 'aes' for '--sse <SSE>'"),
    (&[KEY], "the following required arguments were not provided:\n  --sse <SSE>"),
    (&["--sse=AES256", KEY], "--sse-kms-key-id can not be used with --sse AES256"),
    (
        &["--sse=aws:kms", "--sse-kms-key-id="],
        "invalid value '' for '--sse-kms-key-id <AWS_KMS_KEY_ARN>': KMS Key ARN is only accepted as a key identifier, Key Alias ARN is not accepted",
    ),
    (&["--sse=aws:kms", "--sse-kms-key-id=alias/ExampleAlias"], "Key Alias ARN is not accepted"),
    (&["--upload-checksums", "md5"], "[possible values: crc32c, crc64nvme, off]"),
    (
        &["--store", "s3"],
        "[possible values: auto, aws, scality, minio, ceph, garage, versitygw, r2, scaleway, gcs, generic]",
    ),
    (&["--profile"], "'--profile <PROFILE>'"),
    (&["--incremental-upload"], "--incremental-upload is not supported"),
    (&["--allow-other", "--allow-root"], "the argument '--allow-other' cannot be used with '--allow-root'"),
    (&["--uid", "-1"], "unexpected argument '-1' found"),
    (&["--uid", "4294967296"], "'--uid <UID>'"),
    (&["--gid", "users"], "'--gid <GID>'"),
    (&["--dir-mode=7755"], "'--dir-mode <DIR_MODE>': only user/group/other permissions are supported"),
    (&["--dir-mode=800"], "'--dir-mode <DIR_MODE>': must be a valid octal number"),
    (&["--file-mode=7644"], "'--file-mode <FILE_MODE>': only user/group/other permissions are supported"),
    (&["--file-mode=900"], "'--file-mode <FILE_MODE>': must be a valid octal number"),
    (&["--maximum-throughput-gbps", "0"], "'--maximum-throughput-gbps <N>'"),
    (&["--max-threads", "0"], "'--max-threads <N>'"),
    (&["--memory-target", "127"], "'--memory-target <MiB>'"),
    (&["--memory-target", "much"], "'--memory-target <MiB>'"),
    (&["--part-size", "5242879"], "invalid value '5242879' for '--part-size <SIZE>'"),
    (&["--part-size", "5368709121"], "invalid value '5368709121' for '--part-size <SIZE>'"),
    (&["--part-size", "0"], "'--part-size <SIZE>'"),
    (&["--read-part-size", "1048575"], "invalid value '1048575' for '--read-part-size <SIZE>'"),
    (&["--write-part-size", "5242879"], "invalid value '5242879' for '--write-part-size <SIZE>'"),
    (&["--part-size=1024", "--read-part-size=1024"], "cannot be used with"),
    (&["--part-size=1024", "--write-part-size=1024"], "cannot be used with"),
    (&["--part-size=1024", "--read-part-size=1024", "--write-part-size=1024"], "cannot be used with"),
    (&["--ca-bundle"], "'--ca-bundle <PATH>'"),
    (&["--extra-ca-bundle"], "'--extra-ca-bundle <PATH>'"),
    (&["--operation-timeout", "0"], "'--operation-timeout <SECONDS>'"),
    (&["--operation-timeout", "3601"], "'--operation-timeout <SECONDS>'"),
    (&["--max-attempts", "0"], "'--max-attempts <N>'"),
    (&["--fuse-transport", "x"], "[possible values: auto, dev, io-uring, fuser]"),
    (&["--state-dir"], "'--state-dir <DIRECTORY>'"),
    (&["--max-cache-size", "1"], "--cache <DIRECTORY>"),
    (&["--cache-passthrough", "off"], "--cache <DIRECTORY>"),
    (&["--cache-xz", "b--use1-az4--x-s3"], "--cache-xz is not supported"),
    (
        &["--metadata-ttl", "4730400000"],
        "'--metadata-ttl <SECONDS|indefinite|minimal>': TTL must not be greater than 3153600000s (~100 years)",
    ),
    (
        &["--metadata-ttl", "20000000000000000000"],
        "'--metadata-ttl <SECONDS|indefinite|minimal>': TTL must be a valid number of seconds, or",
    ),
    (
        &["--negative-metadata-ttl", "infinite"],
        "'--negative-metadata-ttl <SECONDS|indefinite|minimal>': TTL must be a valid number of seconds, or",
    ),
    (&["--log-format", "xml"], "[possible values: text, json]"),
    (&["--metrics-listen", "9464"], "give an address with a port"),
    (&["--metrics-listen", "unix:relative.sock"], "the path of a socket begins with '/'"),
    (&["--no-log", "--log-metrics"], "cannot be used with"),
    (&["--otlp-endpoint", "localhost:4318"], "--otlp-endpoint: give an http:// or https:// URL"),
    (&["--otlp-export-interval", "60"], "--otlp-endpoint <URL>"),
    (&["--otlp-endpoint", "http://c", "--otlp-export-interval", "0"], "'--otlp-export-interval <SECONDS>'"),
    (&["--no-log", "--debug"], "cannot be used with"),
    (&["--no-log", "--debug-crt"], "cannot be used with"),
    (&["--no-log", "--log-directory", "logs"], "cannot be used with"),
];

/// Buckets and directories that are refused with exit code 2.
const REFUSED_BUCKETS: &[(&[&str], &str)] = &[
    (
        &["test/dir", "my-bucket-name"],
        "the bucket must have a valid name (only letters, numbers, . and -) or a valid ARN",
    ),
    (&["bu", "dir"], "bucket names must be 3-255 characters long"),
    (&["s3://bucket/prefix", "dir"], "invalid bucket prefix: prefix must end in '/'"),
    (&["s3://bucket/prefix/", "dir", "--prefix", "x/"], "explicit prefix option not allowed with S3 URI"),
    (
        &["arn:aws:s3:eu-west-3:123456789012:bucket/x", "dir"],
        "names no access point; a mountable ARN is one of",
    ),
    (&["s3://arn:aws:s3:::bucket", "dir"], "ARNs are not supported in s3:// URIs"),
    (&["bucket--eun1-az1--x-s3", "dir"], "directory buckets (S3 Express One Zone) are not supported"),
    (&["bucket"], "the following required arguments were not provided:\n  <DIRECTORY>"),
];

#[test]
fn every_option_takes_its_values() {
    for words in TAKEN {
        let ended = run(words, &[]);
        assert_eq!(ended.code, Some(1), "{words:?}: {ended:?}");
        assert!(ended.stderr.contains(ACCEPTED), "{words:?}: {ended:?}");
        assert_eq!(ended.stderr.trim().lines().count(), 1, "one clear line: {ended:?}");
    }
}

#[test]
fn every_option_refuses_other_values_with_2_and_says_why() {
    for (words, why) in REFUSED {
        let ended = run(words, &[]);
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
        assert!(ended.stderr.contains(why), "{words:?}: {why:?} is not in {}", ended.stderr);
    }
    let home = tempfile::tempdir().unwrap();
    for (words, why) in REFUSED_BUCKETS {
        let ended = end(command(home.path()).args(*words));
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
        assert!(ended.stderr.contains(why), "{words:?}: {why:?} is not in {}", ended.stderr);
    }
}

#[test]
fn what_this_engine_cannot_do_is_refused_in_one_line_with_a_way_out() {
    for words in
        [&["--incremental-upload"][..], &["--cache-xz", "b--use1-az4--x-s3"], &["--bucket-type", "directory"]]
    {
        let ended = run(words, &[]);
        assert_eq!((ended.code, ended.stderr.trim().lines().count()), (Some(2), 1), "{ended:?}");
        assert!(ended.stderr.contains("; "), "no way out is named: {}", ended.stderr);
    }
}

/// The case: every flag stands in the tables above, so that its limits are tested.
#[test]
fn the_tables_above_know_every_option_of_the_help() {
    let home = tempfile::tempdir().unwrap();
    let help = end(command(home.path()).arg("--help"));
    assert_eq!(help.code, Some(0));
    let tried: Vec<&str> =
        TAKEN.iter().copied().chain(REFUSED.iter().map(|(words, _)| *words)).flatten().copied().collect();
    for line in help.stdout.lines().filter(|line| line.starts_with("  -") || line.starts_with("      --")) {
        let option = line.split_whitespace().find(|word| word.starts_with("--")).expect("a long name");
        let option = option.trim_end_matches(',');
        let known = tried.iter().any(|word| *word == option || word.starts_with(&format!("{option}=")));
        assert!(
            known || ["--help", "--version", "--foreground"].contains(&option),
            "{option} was never tried"
        );
    }
    assert!(
        help.stdout.trim_start().starts_with("Example:\n  mount-s3 my-bucket /mnt/data\n"),
        "{}",
        help.stdout
    );
    for group in ["Bucket", "AWS credentials", "Mount", "Client", "Caching", "Logging"] {
        assert!(help.stdout.contains(&format!("\n{group} options:\n")), "{group}");
    }
}

#[test]
fn the_version_names_the_release_of_aws_that_it_stands_for() {
    let home = tempfile::tempdir().unwrap();
    for flag in ["--version", "-V"] {
        let ended = end(command(home.path()).arg(flag));
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(0), concat!("mount-s3 ", env!("CARGO_PKG_VERSION"), "+aws.1.24\n"))
        );
    }
}

#[test]
fn a_mount_point_that_is_a_file_is_named() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file.txt");
    fs::write(&file, b"hello").unwrap();
    // In the background: the message comes from the second process.
    let ended = end(command(home.path()).arg("test-bucket").arg(&file));
    assert_eq!(ended.code, Some(1));
    let why = format!("mount point {} is not a directory", file.display());
    assert!(ended.stderr.contains(&why), "{ended:?}");
}

#[test]
fn a_log_directory_of_a_mount_that_fails_is_for_its_owner_and_group() {
    let home = tempfile::tempdir().unwrap();
    let logs = home.path().join("logs");
    let ended = end(command(home.path()).args(["test-bucket", "missing/dir", "-l"]).arg(&logs));
    assert_eq!(ended.code, Some(1));
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let files: Vec<_> = fs::read_dir(&logs).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!((mode(&logs), files.len()), (0o750, 1));
    assert_eq!(mode(&files[0]), 0o640);
    assert!(fs::read_to_string(&files[0]).unwrap().contains(ACCEPTED));
}
