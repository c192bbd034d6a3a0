//! The policy, option by option.

use super::*;
use crate::error::ErrorKind;

/// The engine does not have these; volumes of release 2.2, or of AWS's driver, may.
const OF_OTHERS: [&str; 3] = ["aws-max-attempts", "cache-block-size", "o"];

/// Every flag of AWS's mount-s3 from 1.18 to 1.24, with a valid value; and the flags that their driver and release 2.2 accepted besides.
const OF_AWS: &[&str] = &[
    "allow-delete",
    "allow-other",
    "allow-overwrite",
    "allow-root",
    "auto-unmount",
    "aws-max-attempts 5",
    "bind eth0",
    "bucket-type general-purpose",
    "ca-bundle /etc/ca.pem",
    "cache /tmp/cache",
    "cache-block-size 512",
    "cache-xz express--use1-az1--x-s3",
    "debug",
    "debug-crt",
    "dir-mode 0755",
    "dual-stack",
    "endpoint-url https://s3.example.com",
    "expected-bucket-owner 111122223333",
    "file-mode 0644",
    "force-path-style",
    "foreground",
    "gid 1000",
    "help",
    "incremental-upload",
    "infer-content-type",
    "log-directory /var/log/mount-s3",
    "log-metrics",
    "max-cache-size 1024",
    "max-threads 16",
    "maximum-throughput-gbps 10",
    "memory-target 512",
    "metadata-ttl indefinite",
    "negative-metadata-ttl minimal",
    "no-log",
    "no-sign-request",
    "o ro",
    "otlp-endpoint http://collector:4318",
    "otlp-export-interval 60",
    "part-size 8388608",
    "prefix logs/",
    "profile mine",
    "read-only",
    "read-part-size 8388608",
    "region eu-west-1",
    "requester-pays",
    "sse aws:kms",
    "sse-kms-key-id arn:aws:kms:eu-west-1:111122223333:key/k",
    "storage-class STANDARD_IA",
    "transfer-acceleration",
    "uid 1000",
    "upload-checksums off",
    "user-agent-prefix mine",
    "version",
    "write-part-size 8388608",
];

fn inputs<'a>(options: &'a [String]) -> Inputs<'a> {
    Inputs {
        cache: None,
        no_stage: None,
        keeps_stages: false,
        volume: "pv-1",
        bucket: "bucket-1",
        options,
        inline: false,
        prefix: None,
        fs_group: None,
        read_only: false,
        source: AuthenticationSource::Driver,
        kubernetes: None,
    }
}

fn owned(options: &[&str]) -> Vec<String> {
    options.iter().map(|&it| it.to_owned()).collect()
}

fn make(options: &[&str]) -> Result<MountOptions> {
    MountOptions::new(&inputs(&owned(options)))
}

/// The arguments without the arguments of every mount.
fn args(made: &MountOptions) -> Vec<&str> {
    let always = |arg: &&str| *arg != "--force-path-style" && !arg.starts_with("--user-agent-prefix=");
    made.args.iter().map(String::as_str).filter(always).collect()
}

#[test]
fn the_table_is_sorted_and_has_exactly_the_engines_and_the_old_options() {
    assert!(TABLE.is_sorted_by(|(a, _), (b, _)| a < b));
    let mut command = Args::command();
    command.build();
    let mut of_engine: Vec<String> = command
        .get_arguments()
        .filter(|arg| !arg.is_positional())
        .map(|arg| arg.get_long().expect("every option of the engine has a long name").to_owned())
        .collect();
    assert!(of_engine.len() > 30, "the walk found only {of_engine:?}");
    for name in OF_OTHERS {
        assert!(!of_engine.iter().any(|known| known == name), "--{name} is the engine's: judge it anew");
        of_engine.push(name.to_owned());
    }
    of_engine.sort();
    let of_table: Vec<&str> = TABLE.iter().map(|(name, _)| *name).collect();
    assert_eq!(of_table, of_engine, "each option of the engine needs a row that says what becomes of it");
}

/// Goal: a user who brings volumes from AWS's driver has them mounted, learns from an Event which options have no effect, or reads in the
/// error why the volume is refused and what to do; no error says that a known option does not exist.
#[test]
fn every_flag_of_aws_mount_s3_is_used_reported_or_refused_with_a_way_out() {
    let mut refused = Vec::new();
    for option in OF_AWS {
        let name = option.split(' ').next().unwrap();
        // Other flags without which the flag is refused.
        let with: &[&str] = match name {
            "max-cache-size" => &["cache"],
            "otlp-export-interval" => &["otlp-endpoint http://collector:4318"],
            "sse-kms-key-id" => &["sse aws:kms"],
            _ => &[],
        };
        let made = match make(&[&[*option], with].concat()) {
            Ok(made) => made,
            Err(error) => {
                let text = error.to_string();
                assert_eq!(error.kind, ErrorKind::InvalidArgument);
                assert!(text.contains(&format!("mount option '{name}' is not allowed: ")), "{text}");
                assert!(text.contains("; "), "no way out is named: {text}");
                refused.push(name);
                continue;
            }
        };
        let flag = format!("--{name}");
        let passed = made.args.iter().any(|arg| *arg == flag || arg.starts_with(&format!("{flag}=")));
        let by_env = made.env.iter().any(|(variable, _)| variable == "AWS_MAX_ATTEMPTS");
        let named = |list: &[(String, &str)]| list.iter().any(|(known, _)| known == name);
        let told = named(&made.stripped) || named(&made.overruled);
        assert!(passed || by_env || told, "--{name} is lost without a word: {made:?}");
        let event = made.left_out("pv-1").unwrap_or_default();
        assert_eq!(event.contains(&format!("'{name}' (")), named(&made.stripped), "{event}");
    }
    assert_eq!(refused, ["bind"]);
}

#[test]
fn the_page_for_users_names_every_option_that_is_not_passed_on() {
    let page = include_str!("../../../../docs/static-provisioning.md");
    let table = page.split("\n## Mount options\n").nth(1).unwrap().split("\n## ").next().unwrap();
    for (name, rule) in TABLE {
        let dashed = if *name == "o" { "`-o`".to_owned() } else { format!("`{name}`") };
        assert_eq!(table.contains(&dashed), *rule != Pass, "--{name}: {rule:?}");
    }
}

#[test]
fn mode_full_gets_the_stage_of_its_pod_and_the_rest_is_refused() {
    let made = make(&["mode full", "commit=fsync", "stage-size 100"]).unwrap();
    let wanted = ["--allow-root", "--commit=fsync", "--mode=full", "--stage=/stage/data", "--stage-size=100"];
    assert_eq!(args(&made), wanted);
    assert_eq!(args(&make(&["mode=object"]).unwrap()), ["--allow-root", "--mode=object"]);
    for (options, words) in [
        (&["mode full", "commit disk"][..], "use 'commit fsync'"),
        (&["commit fsync"], "belongs to 'mode full'"),
        (&["mode full", "stage /x"], "the driver gives the engine a directory"),
        (&["mode full", "stage-passthrough auto"], "only root"),
        (&["mode full", "read-only"], "--read-only"),
        (&["mode full", "mode object"], "--mode"),
        (&["mode fulll"], "--mode"),
    ] {
        let error = make(options).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(words), "{options:?}: {error}");
    }
    let options = owned(&["mode full"]);
    let disk = owned(&["mode full", "commit disk"]);
    let of_node = MountOptions::new(&Inputs { keeps_stages: true, ..inputs(&disk) }).unwrap();
    assert!(args(&of_node).contains(&"--commit=disk"));
    let elsewhere = Inputs { no_stage: Some("it needs a Mountpoint Pod"), ..inputs(&options) };
    let error = MountOptions::new(&elsewhere).unwrap_err().to_string();
    assert!(error.contains("'mode full' is not allowed: it needs a Mountpoint Pod"), "{error}");
}

#[test]
fn short_names_of_the_engine_are_known() {
    let mut command = Args::command();
    command.build();
    for arg in command.get_arguments() {
        if let (Some(short), Some(long)) = (arg.get_short(), arg.get_long()) {
            assert_eq!(split(&format!("-{short}")), Some((long.to_owned(), None)), "-{short}");
        }
    }
}

#[test]
fn an_option_is_read_in_each_way_that_people_write_it() {
    for (item, name, value) in [
        ("allow-delete", "allow-delete", None),
        ("--allow-delete", "allow-delete", None),
        ("  --uid 1000 ", "uid", Some("1000")),
        ("uid=1000", "uid", Some("1000")),
        ("--prefix=a=b/", "prefix", Some("a=b/")),
        ("prefix a b/", "prefix", Some("a b/")),
        ("uid  1000", "uid", Some("1000")),
        ("-f", "foreground", None),
        ("-o ro", "o", Some("ro")),
        ("--d", "d", None),
    ] {
        assert_eq!(split(item), Some((name.to_owned(), value)), "{item}");
    }
    assert_eq!(split("  "), None);
}

#[test]
fn what_passes_is_sorted_and_said_once() {
    let made =
        make(&["uid 1000", "--allow-delete", "allow-delete", "metadata-ttl=60", "", "region us-east-1"]);
    assert_eq!(
        args(&made.unwrap()),
        ["--allow-delete", "--allow-root", "--metadata-ttl=60", "--region=us-east-1", "--uid=1000"]
    );
}

#[test]
fn every_mount_has_path_style_a_user_agent_and_a_rule_who_may_enter() {
    let made = make(&[]).unwrap();
    let agent = format!("--user-agent-prefix=s3-csi-driver/{VERSION} credential-source#driver");
    assert_eq!(made.args, ["--allow-root", "--force-path-style", &agent]);
    assert!(made.env.is_empty() && made.stripped.is_empty() && !made.read_only);
    let options = owned(&["force-path-style", "user-agent-prefix mine", "allow-other"]);
    let made = MountOptions::new(&Inputs {
        source: AuthenticationSource::Secret,
        kubernetes: Some("v1.34.4\n"),
        ..inputs(&options)
    });
    let agent = format!("--user-agent-prefix=s3-csi-driver/{VERSION} credential-source#secret k8s/v1.34.4");
    assert_eq!(made.unwrap().args, ["--allow-other", "--force-path-style", &agent]);
}

#[test]
fn what_release_2_2_left_out_is_left_out_and_said() {
    let made = make(&[
        "endpoint-url http://elsewhere",
        "--profile=mine",
        "cache-xz some-bucket",
        "incremental-upload",
        "storage-class GLACIER",
        "-o noatime",
    ]);
    let made = made.unwrap();
    assert_eq!(args(&made), ["--allow-root"]);
    let names: Vec<&str> = made.stripped.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["endpoint-url", "profile", "cache-xz", "incremental-upload", "storage-class", "o"]);
    let told = made.left_out("pv-1").unwrap();
    assert!(told.contains("'endpoint-url' (the driver serves one store; s3.endpointUrl"), "{told}");
    assert!(told.ends_with("Take them out of the mountOptions of PersistentVolume pv-1"), "{told}");
    assert!(!told.contains("elsewhere") && !told.contains("mine"), "a value may be a secret: {told}");
    let made = make(&["-f", "foreground", "--help", "-V", "-v", "version", "auto-unmount"]).unwrap();
    assert_eq!(args(&made), ["--allow-root"]);
    assert!(made.stripped.is_empty() && made.left_out("pv-1").is_none());
    let names: Vec<&str> = made.overruled.iter().map(|(name, _)| name.as_str()).collect();
    let own = ["foreground", "foreground", "help", "version", "version", "version", "auto-unmount"];
    assert_eq!(names, own);
}

#[test]
fn the_engine_is_told_how_much_of_its_cache_volume_it_may_use() {
    let options = ["cache /x".to_owned(), "max-cache-size 5000".to_owned()];
    let attribute = |key: &str| match key {
        volume::CACHE => Some("emptyDir"),
        volume::CACHE_SIZE_LIMIT => Some("5000Mi"),
        _ => None,
    };
    let cache = Cache::read(attribute, &options).unwrap().unwrap();
    for options in [&options[..], &[]] {
        let made = MountOptions::new(&Inputs { options, cache: Some(&cache), ..inputs(options) }).unwrap();
        assert_eq!(args(&made), ["--allow-root", "--cache=/local-cache", "--max-cache-size=4750"]);
    }
}

#[test]
fn the_cache_is_where_the_pod_has_it() {
    let made = make(&["cache /var/tmp/mine", "max-cache-size 100"]).unwrap();
    assert_eq!(args(&made), ["--allow-root", "--cache=/local-cache", "--max-cache-size=100"]);
    assert_eq!(made.overruled, [("cache".to_owned(), "/local-cache")]);
}

#[test]
fn attempts_go_by_the_environment() {
    let made = make(&["aws-max-attempts 5", "--aws-max-attempts=5"]).unwrap();
    assert_eq!(made.env, [("AWS_MAX_ATTEMPTS".to_owned(), "5".to_owned())]);
    assert_eq!(args(&made), ["--allow-root"]);
    for wrong in
        [&["aws-max-attempts"][..], &["aws-max-attempts 0"], &["aws-max-attempts 5", "aws-max-attempts 6"]]
    {
        let error = make(wrong).unwrap_err().to_string();
        assert!(error.contains("aws-max-attempts") && error.contains("PersistentVolume pv-1"), "{error}");
    }
}

#[test]
fn the_group_of_a_workload_may_read_and_write() {
    let with = |options: &[&str]| {
        let options = owned(options);
        MountOptions::new(&Inputs { fs_group: Some(2000), ..inputs(&options) }).unwrap()
    };
    let group = ["--allow-other", "--dir-mode=770", "--file-mode=660", "--gid=2000"];
    assert_eq!(args(&with(&[])), group);
    assert_eq!(args(&with(&["allow-root"])), group);
    assert_eq!(args(&with(&["allow-other"])), group);
    assert_eq!(
        args(&with(&["file-mode 0600"])),
        ["--allow-other", "--dir-mode=770", "--file-mode=0600", "--gid=2000"]
    );
    assert_eq!(args(&with(&["gid 3000"])), ["--allow-root", "--gid=3000"]);
}

#[test]
fn a_volume_is_read_only_by_its_access_mode_or_by_its_option() {
    let made = MountOptions::new(&Inputs { read_only: true, ..inputs(&[]) }).unwrap();
    assert!(made.read_only);
    assert_eq!(args(&made), ["--allow-root", "--read-only"]);
    let options = owned(&["read-only"]);
    let both = MountOptions::new(&Inputs { read_only: true, ..inputs(&options) }).unwrap();
    assert_eq!(both, made);
    assert_eq!(make(&["read-only"]).unwrap(), made);
}

#[test]
fn what_is_wrong_is_refused_with_its_name_and_the_place_to_fix_it() {
    for (options, words) in [
        (&["alow-delete"][..], "'alow-delete' is unknown, did you mean 'allow-delete'?"),
        (&["metadata-tll 60"], "did you mean 'metadata-ttl'?"),
        (&["xyzzy"], "'xyzzy' is unknown:"),
        (&["--d"], "'d' is unknown"),
        (&["spill-dir /var/spill"], "'spill-dir' is not allowed"),
        (&["spill-dir /tmp"], "'spill-dir' is not allowed"),
        (&["gid staff"], "--gid"),
        (&["gid"], "--gid"),
        (&["uid 1", "uid 2"], "--uid"),
        (&["file-mode 999"], "--file-mode"),
        (&["allow-delete=true"], "--allow-delete"),
        (&["allow-root", "allow-other"], "--allow-root"),
        (&["max-cache-size 5"], "cache"),
        (&["part-size 1"], "--part-size"),
        (&["prefix no-slash"], "prefix must end in '/'"),
        (&["allow-delete --log-directory=/etc"], "--allow-delete"),
    ] {
        let error = make(options).expect_err(&options.join(","));
        assert_eq!(error.kind, ErrorKind::InvalidArgument, "{options:?}");
        let text = error.to_string();
        assert!(text.contains(words), "{options:?}: {text}");
        assert!(text.ends_with(": fix the mountOptions of PersistentVolume pv-1"), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
}

#[test]
fn a_value_can_not_become_a_flag() {
    let made = make(&["prefix --log-directory=/etc/"]).unwrap();
    assert_eq!(args(&made), ["--allow-root", "--prefix=--log-directory=/etc/"]);
}

/// Goal: a developer who adds an option to the engine judges whether users who write pods may set it.
#[test]
fn an_inline_volume_may_set_what_takes_nothing_of_the_node() {
    let inline = |option: &str| {
        let options = owned(&[option]);
        MountOptions::new(&Inputs { inline: true, ..inputs(&options) })
    };
    let reaches_the_engine = |rule: &Rule| matches!(rule, Pass | Fixed(_) | Env(_));
    let (refused, allowed): (Vec<_>, Vec<_>) = TABLE
        .iter()
        .filter(|(_, rule)| reaches_the_engine(rule))
        .map(|(name, _)| *name)
        .partition(|name| inline(name).is_err_and(|error| error.to_string().contains("inline volume")));
    assert_eq!(refused, volume::NOT_INLINE);
    let judged = [
        "allow-append",
        "allow-delete",
        "allow-other",
        "allow-overwrite",
        "allow-rename",
        "allow-root",
        "aws-max-attempts",
        "cache-passthrough",
        "debug",
        "dir-mode",
        "directory-markers",
        "expected-bucket-owner",
        "file-mode",
        "force-path-style",
        "fuse-transport",
        "gid",
        "ignore-attributes",
        "infer-content-type",
        "keep-metadata",
        "log-filter",
        "log-format",
        "log-metrics",
        "max-attempts",
        "maximum-throughput-gbps",
        "metadata-ttl",
        "negative-metadata-ttl",
        "no-log",
        "no-sign-request",
        "operation-timeout",
        "part-size",
        "prefix",
        "read-mode",
        "read-only",
        "read-part-size",
        "region",
        "rename-errno",
        "rename-limit",
        "requester-pays",
        "sign-payload",
        "sse",
        "sse-kms-key-id",
        "store",
        "uid",
        "upload-checksums",
        "write-part-size",
        "xattrs",
    ];
    assert_eq!(allowed, judged);
    let error = inline("--max-cache-size 1000000").unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("the pod's manifest"), "{error}");
    assert!(inline("allow-delete").is_ok() && make(&["cache", "max-cache-size=100"]).is_ok());
}

#[test]
fn an_arn_is_reached_by_its_host_and_path_style_is_refused() {
    let arn = "arn:aws:s3:eu-west-1:123456789012:accesspoint/data";
    let options = owned(&["allow-delete"]);
    let made = MountOptions::new(&Inputs { bucket: arn, ..inputs(&options) }).unwrap();
    assert!(!made.args.iter().any(|arg| arg == "--force-path-style"), "{:?}", made.args);
    let options = owned(&["force-path-style"]);
    let error = MountOptions::new(&Inputs { bucket: arn, ..inputs(&options) }).unwrap_err();
    assert!(error.to_string().contains("force-path-style") && error.to_string().contains("ARN"), "{error}");
}
