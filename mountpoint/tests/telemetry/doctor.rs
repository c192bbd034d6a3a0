//! `mount-s3-ctl doctor`: tests of a sound store, of stores that lie, and of obstacles on the way to one.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use s3server::{Effect, EtagForm, Fault};
use serde_json::Value;
use testkit::{DeadPort, Versitygw};

use crate::common::certificates::Certificates;
use crate::common::front::Front;
use crate::common::{BUCKET, Pattern, Store, need_tool, until};
use crate::{ctl, end, valid};

const LARGE: usize = 3 << 20;
/// The requests of a run that writes, beyond reads.
const WRITES: [&str; 6] = [
    "PutObject",
    "CopyObject",
    "CreateMultipartUpload",
    "DeleteObject",
    "AbortMultipartUpload",
    "CompleteMultipartUpload",
];

/// `mount-s3-ctl doctor`, with nothing of this machine's settings.
fn doctor(home: &Path, keys: Option<[&str; 2]>, words: &[&str]) -> Command {
    let mut command = ctl(home, &["doctor"]);
    command.args(words).env("HOME", home).env("AWS_EC2_METADATA_DISABLED", "true");
    if let Some([access, secret]) = keys {
        command.env("AWS_ACCESS_KEY_ID", access).env("AWS_SECRET_ACCESS_KEY", secret);
    }
    command
}

/// A doctor's command for a store of ours, with `words` added.
fn of(store: &Store, words: &[&str]) -> Command {
    let endpoint = store.endpoint();
    let mut line = vec![BUCKET, "--endpoint-url", &endpoint, "--force-path-style"];
    line.extend(words);
    doctor(store.home(), Some([Store::ACCESS_KEY, Store::SECRET_KEY]), &line)
}

/// The exit code and the report, which follows the schema and has no secret.
fn report(command: &mut Command) -> (Option<i32>, Value) {
    let (code, out, error) = end(command.arg("--json"));
    assert!(!out.contains(Store::SECRET_KEY) && !error.contains(Store::SECRET_KEY), "{out}{error}");
    let report = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{error}"));
    valid("doctor", &report);
    (code, report)
}

/// The verdict on a probe, with the finding and its meaning.
fn finding(report: &Value, probe: &str) -> (String, String) {
    let all = report["findings"].as_array().unwrap();
    let one = all.iter().find(|finding| finding["probe"] == probe);
    let one = one.unwrap_or_else(|| panic!("no {probe:?} in {report:#}"));
    let text = format!("{} {}", one["found"].as_str().unwrap(), one["means"].as_str().unwrap_or_default());
    (one["verdict"].as_str().unwrap().to_owned(), text)
}

fn assert_finding(report: &Value, probe: &str, verdict: &str, words: &str) {
    let (is, text) = finding(report, probe);
    assert_eq!(is, verdict, "{probe}: {text}");
    assert!(text.contains(words), "{probe}: {words:?} is not in {text:?}");
}

/// Asserts that one of a probe's findings is this note.
fn assert_note(report: &Value, probe: &str, words: &str) {
    let all = report["findings"].as_array().unwrap();
    let is_it = |it: &&Value| {
        it["probe"] == probe && it["verdict"] == "note" && it["found"].as_str().unwrap().contains(words)
    };
    let note = all.iter().find(is_it).unwrap_or_else(|| panic!("no note of {probe}, {words:?}: {report:#}"));
    assert!(!note["means"].as_str().unwrap().is_empty(), "{note}");
}

fn flags(report: &Value) -> String {
    let words: Vec<_> = report["flags"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    words.join(" ")
}

#[test]
fn a_store_as_it_should_be_is_examined_without_a_write() {
    let store = Store::new();
    store.plant("small", b"bytes");
    store.plant("large", &Pattern(1).bytes(0, LARGE));
    store.requests().reset();
    let (code, report) = report(&mut of(&store, &[]));
    assert_eq!(code, Some(0), "{report:#}");
    for (probe, verdict, words) in [
        ("credentials", "fine", "from the environment"),
        ("tls", "note", "plain HTTP"),
        ("bucket", "fine", "it exists"),
        ("addressing", "fine", "in the path, as --force-path-style says"),
        ("region", "fine", "us-east-1"),
        ("clock", "fine", "the store's clock is"),
        ("listing", "fine", "2 keys on the first page, in order"),
        ("versions", "fine", "versioning off"),
        ("unfinished uploads", "fine", "none"),
        ("reading", "fine", "ranges"),
        ("read conditions", "fine", "If-Match is kept, If-None-Match is kept"),
        ("metadata", "fine", "an object comes with"),
        ("encryption", "fine", ""),
        ("writing", "skipped", "--write-probes"),
    ] {
        assert_finding(&report, probe, verdict, words);
    }
    assert_eq!(report["latency"]["request"], "HeadObject");
    let connections: Vec<_> =
        report["throughput"].as_array().unwrap().iter().map(|it| &it["connections"]).collect();
    assert_eq!(connections, [1, 16]);
    assert!(
        report["throughput"].as_array().unwrap().iter().all(|it| it["bytes"].as_u64() >= Some(LARGE as u64)),
        "{report:#}"
    );
    assert_eq!(report["will_not_work"].as_array().unwrap().len(), 0);
    assert_eq!(flags(&report), format!("--endpoint-url {} --force-path-style", store.endpoint()));
    for write in WRITES {
        assert_eq!(store.requests().count(write), 0, "{write}");
    }
}

/// Each oddity of `docs/stores.md` that a store shows without being written to.
#[test]
fn each_oddity_that_reading_shows_is_a_note_with_its_effect() {
    let header = |name: &str, value: Option<&str>| Effect::Header {
        name: name.to_owned(),
        value: value.map(str::to_owned),
    };
    let entry = |element: &str, text: Option<&str>| Effect::Entry {
        key: Some("file".to_owned()),
        element: element.to_owned(),
        text: text.map(str::to_owned),
    };
    let all_entries = |element: &str, text: &str| Effect::Entry {
        key: None,
        element: element.to_owned(),
        text: Some(text.to_owned()),
    };
    let root = Effect::Root { name: "ListBucketV2Result".to_owned() };
    let unknown = || Effect::Error { status: 501, code: "NotImplemented".to_owned() };
    let (list, head, get) = ("ListObjectsV2", "HeadObject", "GetObject");
    for (operation, effect, probe, words) in [
        (head, header("etag", None), "metadata", "an object has no ETag"),
        (head, header("etag", Some("\"\"")), "metadata", "an object has no ETag"),
        (list, all_entries("ETag", "&quot;one&quot;"), "listing", "objects of different sizes have one ETag"),
        (head, Effect::Etag { form: EtagForm::Weak }, "metadata", "a weak ETag"),
        (head, header("content-length", None), "metadata", "does not say how long"),
        (head, header("last-modified", None), "metadata", "no date that can be read"),
        (
            head,
            header("last-modified", Some("1994-11-06T08:49:37Z")),
            "metadata",
            "spells its date otherwise",
        ),
        (head, Effect::MoreHeaders { count: 150 }, "metadata", "more than 100 headers"),
        (list, entry("ETag", None), "metadata", "a listing has no ETag"),
        (list, entry("ETag", Some("&quot;other&quot;")), "metadata", "its ETag in the listing differs"),
        (list, entry("LastModified", None), "metadata", "a listing has no date"),
        (list, entry("Size", Some("99")), "metadata", "the size of an object in a listing differs"),
        (list, entry("Key", Some("%FF")), "listing", "entries without a key or a size that can be read"),
        (list, root, "listing", "the root element of a listing is"),
        (get, Effect::RefuseIfMatch, "read conditions", "refused with the object's own ETag"),
        (head, unknown(), "metadata", "x-amz-checksum-mode is refused"),
    ] {
        let store = Store::new();
        store.plant("file", b"some bytes");
        store.plant("other", b"more");
        // The date is a part of the version: a GET has to say the same.
        if words.contains("spells its date") {
            store.faults().add(Fault::on(get, effect.clone()));
        }
        let once = matches!(effect, Effect::Error { .. });
        let fault = Fault::on(operation, effect);
        store.faults().add(if once { fault.times(1) } else { fault });
        let (code, seen) = report(&mut of(&store, &[]));
        assert_eq!(code, Some(0), "{words}: {seen:#}");
        assert_note(&seen, probe, words);
        for write in WRITES {
            assert_eq!(store.requests().count(write), 0, "{write}");
        }
    }
}

#[test]
fn write_probes_try_what_a_mount_does_and_leave_nothing() {
    let store = Store::new();
    store.plant("team/small", b"bytes");
    let (code, report) = report(&mut of(&store, &["--write-probes", "--prefix", "team/", "--sse", "AES256"]));
    assert_eq!(code, Some(0), "{report:#}");
    for (probe, verdict, words) in [
        ("writing", "fine", "stored, and read back"),
        ("names", "fine", "odd characters"),
        ("checksums", "fine", "CRC32C of uploads is verified, and returned"),
        ("large files", "fine", "completed"),
        ("write conditions", "fine", "PutObject is kept, on CompleteMultipartUpload kept"),
        ("encryption of new objects", "fine", "\"AES256\""),
        ("copy", "fine", "works; mounts use it with --allow-rename"),
        ("copy conditions", "fine", "on CopyObject is kept, If-Match kept, x-amz-copy-source-if-match kept"),
        ("copy conditions", "fine", "on DeleteObject kept"),
        ("conditions", "note", "CopyObject: If-None-Match ignored, If-Match ignored"),
        ("append", "fine", "refused (501 NotImplemented)"),
        ("rename", "fine", "refused (501 NotImplemented)"),
        ("deleting", "fine", "gone"),
        ("cleaning up", "fine", "team/mount-s3-doctor-"),
    ] {
        assert_finding(&report, probe, verdict, words);
    }
    // Measured with an object of its own: the bucket's is too short.
    assert_eq!(report["throughput"].as_array().unwrap().len(), 2, "{report:#}");
    assert_eq!((store.keys(), store.pending_uploads()), (vec!["team/small".to_owned()], 0));
    assert_eq!(
        flags(&report),
        format!("--endpoint-url {} --force-path-style --prefix team/ --sse AES256", store.endpoint())
    );
}

#[test]
fn a_store_that_lies_is_found_out() {
    let store = Store::new();
    store.plant("large", &Pattern(1).bytes(0, LARGE));
    let all = |effect| Fault { operation: None, key: None, skip: 0, times: None, effect };
    store.faults().add(Fault::on("GetObject", Effect::IgnoreIfMatch));
    for effect in [Effect::IgnoreConditions, Effect::IgnoreUnknown, Effect::Date { ahead_s: 3600 }] {
        store.faults().add(all(effect));
    }
    store.faults().add(Fault::on("PutObject", Effect::IgnoreChecksums));
    let (code, report) = report(&mut of(&store, &["--write-probes"]));
    assert_eq!(code, Some(1), "{report:#}");
    for (probe, verdict, words) in [
        ("clock", "note", "ahead"),
        ("read conditions", "note", "If-Match is ignored"),
        ("checksums", "note", "is not verified: wrong ones are accepted; it is not returned"),
        ("write conditions", "fails", "PutObject is ignored, on CompleteMultipartUpload ignored"),
        (
            "copy conditions",
            "note",
            "on CopyObject is ignored, If-Match ignored, x-amz-copy-source-if-match ignored",
        ),
        ("copy conditions", "note", "on DeleteObject ignored"),
        ("append", "note", "a trap: answered 200, and 1 bytes are there"),
        ("rename", "note", "a trap: answered 200, and 0 bytes are there"),
        ("cleaning up", "fine", "nothing is left"),
    ] {
        assert_finding(&report, probe, verdict, words);
    }
    assert!(report["will_not_work"][0].as_str().unwrap().starts_with("exclusive creation"), "{report:#}");
    assert!(flags(&report).ends_with("--store scality"), "{report:#}");
    assert_eq!(store.keys(), ["large"]);
    let (_, quick) = self::report(&mut of(&store, &["--store", "scality"]));
    assert_eq!(quick["store"], "scality");
}

#[test]
fn a_store_without_ranges_checksums_or_writes_gets_the_flags_that_help() {
    let store = Store::new();
    store.plant("file", b"some bytes");
    store.faults().add(Fault::on("GetObject", Effect::IgnoreRange));
    let (code, seen) = report(&mut of(&store, &[]));
    assert_eq!(code, Some(1));
    assert_finding(&seen, "reading", "fails", "ranges of objects are not answered");
    store.faults().clear();

    let denied = || Effect::Error { status: 403, code: "AccessDenied".to_owned() };
    store.faults().add(Fault::on("PutObject", denied()));
    let (code, seen) = report(&mut of(&store, &["--write-probes"]));
    assert_eq!(code, Some(1));
    assert_finding(&seen, "writing", "fails", "may not put objects");
    assert!(flags(&seen).ends_with("--read-only"), "{seen:#}");
    store.faults().clear();

    // Refused in words that do not name the header: a mount could not know what to leave out.
    let odd = Effect::Error { status: 400, code: "OddRequest".to_owned() };
    store.faults().add(Fault::on("PutObject", odd).times(1));
    let (code, seen) = report(&mut of(&store, &["--write-probes"]));
    assert_eq!(code, Some(1));
    assert_finding(&seen, "writing", "fails", "OddRequest");
    assert!(flags(&seen).ends_with("--upload-checksums off"), "{seen:#}");
    assert_eq!(store.keys(), ["file"]);

    store.faults().add(Fault::on("DeleteObject", denied()));
    let (code, seen) = report(&mut of(&store, &["--write-probes"]));
    assert_eq!(code, Some(1));
    assert_finding(&seen, "deleting", "fails", "can't delete");
    let kept = seen["kept"].as_array().unwrap();
    let left = store.keys().into_iter().filter(|key| key != "file").collect::<Vec<_>>();
    assert!(!left.is_empty());
    for key in left {
        assert!(
            kept.iter().any(|it| it["key"] == *key && it["why"].as_str().unwrap().contains("AccessDenied")),
            "{key} {kept:?}"
        );
    }
}

#[test]
fn what_stands_in_the_way_to_a_bucket_is_said_with_what_to_look_at() {
    let store = Store::new();
    let (endpoint, keys) = (store.endpoint(), Some([Store::ACCESS_KEY, Store::SECRET_KEY]));
    let here = ["--endpoint-url", &endpoint, "--force-path-style"];
    let home = tempfile::tempdir().unwrap();
    let asked = |bucket: &str, keys: Option<[&str; 2]>, flags: &[&str]| {
        let mut line = vec![bucket];
        line.extend(flags);
        report(&mut doctor(home.path(), keys, &line))
    };
    let (code, missing) = asked("missing", keys, &here);
    assert_eq!(code, Some(1));
    assert_finding(&missing, "bucket", "fails", "NoSuchBucket");
    assert_finding(&missing, "clock", "fine", "");

    let (code, wrong) = asked(BUCKET, Some([Store::ACCESS_KEY, "not-the-secret"]), &here);
    assert_eq!(code, Some(1));
    assert_finding(&wrong, "bucket", "fails", "SignatureDoesNotMatch");
    assert!(!wrong.to_string().contains("not-the-secret"));
    let (_, unknown) = asked(BUCKET, Some(["nobody", "not-the-secret"]), &here);
    assert_finding(&unknown, "bucket", "fails", "InvalidAccessKeyId");
    let (code, none) = asked(BUCKET, None, &here);
    assert_eq!(code, Some(1));
    assert_finding(&none, "credentials", "fails", "AWS_ACCESS_KEY_ID");

    let dead = DeadPort::reserve();
    let nowhere = format!("http://{}", dead.address());
    let (code, away) = asked(BUCKET, keys, &["--endpoint-url", &nowhere, "--force-path-style"]);
    assert_eq!(code, Some(1));
    assert_finding(&away, "bucket", "fails", "refused");
    assert_finding(&away, "bucket", "fails", "look at the network");

    store.faults().add(Fault::on("ListObjectsV2", Effect::Redirect { region: "eu-west-3".to_owned() }));
    let (code, elsewhere) = asked(BUCKET, keys, &[&here[..], &["--region", "us-east-1"]].concat());
    assert_eq!(code, Some(1));
    assert_finding(&elsewhere, "bucket", "fails", "eu-west-3");
    assert!(
        flags(&elsewhere).ends_with("--region eu-west-3") && !flags(&elsewhere).contains("us-east-1"),
        "{elsewhere:#}"
    );
}

#[test]
fn bad_usage_ends_with_2_and_names_the_flag() {
    let home = tempfile::tempdir().unwrap();
    for (words, named) in [
        (&[][..], "BUCKET_NAME"),
        (&["b"], "3-255 characters"),
        (&["bucket", "--prefix", "a"], "must end in '/'"),
        (&["bucket", "--connections", "0"], "--connections"),
        (&["bucket", "--bucket-type", "directory"], "not supported"),
        (&["bucket", "--no-such-flag"], "--no-such-flag"),
    ] {
        let (code, out, error) = end(&mut doctor(home.path(), None, words));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{words:?}");
        assert!(error.contains(named), "{words:?}: {error}");
    }
}

#[test]
fn the_manual_pages_and_the_completions_of_the_command_have_its_flags() {
    let home = tempfile::tempdir().unwrap();
    let printed = |words: &[&str]| {
        let (code, out, error) = end(&mut ctl(home.path(), words));
        assert_eq!((code, error.as_str()), (Some(0), ""), "{words:?}");
        out.replace("\\-", "-")
    };
    assert!(printed(&["--man"]).contains(".TH mount-s3-ctl 1"));
    let man = printed(&["--man", "doctor"]);
    assert!(man.contains(".TH mount-s3-ctl-doctor 1"), "{man}");
    let pages = ["bash", "zsh", "fish"].map(|shell| printed(&["--completions", shell]));
    for flag in ["endpoint-url", "no-sign-request", "ca-bundle", "write-probes", "connections"] {
        assert!(man.contains(flag), "{flag} is not in {man}");
        assert!(pages.iter().all(|page| page.contains(flag)), "{flag}");
    }
    let (code, _, error) = end(&mut ctl(home.path(), &["--man", "nurse"]));
    assert!(code == Some(2) && error.contains("doctor"), "{error}");
}

#[test]
fn over_tls_version_and_certificate_show_and_an_unknown_issuer_is_refused() {
    let store = Store::new();
    let front = Front::before(store.address(), &["s3.test"]);
    let (ca, proxy) = (front.ca_bundle(), format!("http://{}", front.address()));
    let line = |words: &[&str]| {
        let mut line = vec![BUCKET, "--endpoint-url", "https://s3.test", "--force-path-style"];
        line.extend(words);
        let mut command = doctor(store.home(), Some([Store::ACCESS_KEY, Store::SECRET_KEY]), &line);
        command.env("HTTPS_PROXY", &proxy);
        report(&mut command)
    };
    let (code, trusted) = line(&["--ca-bundle", ca.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{trusted:#}");
    assert_finding(&trusted, "tls", "fine", "TLS 1.3, TLS13_AES_");
    assert_finding(&trusted, "tls", "fine", "ends in");
    let (code, unknown) = line(&[]);
    assert_eq!(code, Some(1));
    assert_finding(&unknown, "bucket", "fails", "UnknownIssuer");
}

#[test]
fn in_a_terminal_the_report_is_a_table_with_the_command_to_mount_with() {
    if !need_tool("script") {
        return;
    }
    let store = Store::new();
    store.plant("large", &Pattern(1).bytes(0, LARGE));
    let line = format!(
        "stty cols 90 rows 60; exec {} doctor {BUCKET} --endpoint-url {} --force-path-style --connections 2",
        env!("CARGO_BIN_EXE_mount-s3-ctl"),
        store.endpoint()
    );
    let mut terminal = Command::new("script")
        .args(["-qefc", &line, "/dev/null"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", store.home())
        .env("TERM", "xterm")
        .env("AWS_ACCESS_KEY_ID", Store::ACCESS_KEY)
        .env("AWS_SECRET_ACCESS_KEY", Store::SECRET_KEY)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut drawn = String::new();
    terminal.stdout.take().unwrap().read_to_string(&mut drawn).unwrap();
    assert!(terminal.wait().unwrap().success(), "{drawn}");
    let plain = console::strip_ansi_codes(&drawn).into_owned();
    for part in [
        "ok     bucket",
        "note   tls",
        "-      writing",
        "2 connections: ",
        "Mount it with:",
        "mount-s3 bucket DIRECTORY --endpoint-url",
    ] {
        assert!(plain.contains(part), "{part:?} is not in {plain}");
    }
    assert!(drawn.contains("\x1b[32m"), "without colours: {drawn:?}");
    let report =
        plain.rsplit_once("bucket at ").unwrap().1.split("Mount it with:").next().unwrap().to_owned();
    assert!(report.lines().all(|line| line.trim_end().chars().count() <= 90), "{report}");
}

#[test]
fn ctrl_c_in_the_middle_of_write_probes_removes_what_they_made() {
    let store = Store::new();
    store.faults().add(Fault::on("CopyObject", Effect::Hold));
    let mut command = of(&store, &["--write-probes", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    until("it copies", || store.requests().count("CopyObject") == 1);
    assert!(!store.keys().is_empty());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    store.faults().clear();
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{out}");
    assert_eq!((store.keys(), store.pending_uploads()), (Vec::new(), 0));
}

#[test]
fn versitygw_is_examined_over_https_and_nothing_is_left() {
    let Some(binary) = Versitygw::binary() else { return };
    let root = tempfile::tempdir().unwrap();
    let certificates = Certificates::of(&["127.0.0.1"]);
    let (certificate, key) = certificates.files();
    let keys = [Store::ACCESS_KEY, Store::SECRET_KEY];
    let gateway = Versitygw::start(&binary, root.path(), BUCKET, keys, Some([&certificate, &key]));
    let (endpoint, ca) = (format!("https://{}", gateway.address()), certificates.ca_bundle());
    let words = [BUCKET, "--endpoint-url", &endpoint, "--ca-bundle", ca.to_str().unwrap(), "--write-probes"];
    let (code, report) = report(&mut doctor(root.path(), Some(keys), &words));
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["store"], "versitygw");
    for (probe, verdict) in [
        ("tls", "fine"),
        ("writing", "fine"),
        ("large files", "fine"),
        ("write conditions", "fine"),
        ("cleaning up", "fine"),
    ] {
        assert_finding(&report, probe, verdict, "");
    }
    assert!(flags(&report).contains("--force-path-style"), "{report:#}");
    let left = std::fs::read_dir(root.path().join("data").join(BUCKET)).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    // The gateway's own folder for parts stays, without any.
    assert!(left.iter().all(|name| name == ".sgwtmp"), "{left:?}");
}
