//! The policy, option by option.

use super::*;
use crate::error::ErrorKind;

/// The engine does not have these; volumes of release 2.2 may.
const OF_OTHERS: [&str; 4] = ["aws-max-attempts", "cache-xz", "incremental-upload", "o"];

fn inputs<'a>(options: &'a [String]) -> Inputs<'a> {
    Inputs {
        volume: "pv-1",
        bucket: "bucket-1",
        options,
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

/// Without what every mount has, unless it is asked for.
fn args(made: &MountOptions) -> Vec<&str> {
    let always = |arg: &&str| *arg != "--force-path-style" && !arg.starts_with("--user-agent-prefix=");
    made.args.iter().map(String::as_str).filter(always).collect()
}

#[test]
fn the_table_is_sorted_and_has_exactly_the_engine_s_options_and_the_old_ones() {
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
    let made = make(&["-f", "foreground", "--help", "-V", "-v", "version", "auto-unmount"]).unwrap();
    assert_eq!(args(&made), ["--allow-root"]);
    assert!(made.stripped.is_empty());
}

#[test]
fn the_cache_is_where_the_pod_has_it() {
    let made = make(&["cache /var/tmp/mine", "max-cache-size 100"]).unwrap();
    assert_eq!(args(&made), ["--allow-root", "--cache=/local-cache", "--max-cache-size=100"]);
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
        (&["ca-bundle /etc/ca.pem"], "'ca-bundle' is not allowed"),
        (&["-l /var/log"], "'log-directory' is not allowed"),
        (&["log-directory=/var/log"], "'log-directory' is not allowed"),
        (&["spill-dir /tmp"], "'spill-dir' is not allowed"),
        (&["gid staff"], "--gid"),
        (&["gid"], "--gid"),
        (&["uid 1", "uid 2"], "--uid"),
        (&["file-mode 999"], "--file-mode"),
        (&["allow-delete=true"], "--allow-delete"),
        (&["allow-root", "allow-other"], "--allow-root"),
        (&["max-cache-size 5"], "cache"),
        (&["part-size 1"], "--part-size"),
        (&["prefix no-slash"], "the prefix must end in '/'"),
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
