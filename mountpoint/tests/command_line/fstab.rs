//! `-o`, and the program under the name of a helper of mount(8).

use std::os::unix::fs::symlink;
use std::process::Command;

use super::run::{Ended, command, end};

/// `mount-s3 BUCKET missing/dir -o OPTIONS`.
fn with_options(bucket: &str, options: &str) -> Ended {
    let home = tempfile::tempdir().unwrap();
    end(command(home.path()).args([bucket, "missing/dir", "-o", options]))
}

#[test]
fn options_after_o_are_flags_and_what_is_meant_for_others_is_left_out() {
    for options in [
        "",
        "_netdev",
        "rw",
        "ro",
        "uid=2,gid=4,debug",
        "prefix=foo/bar\\,baz/,auto,nofail,x-systemd.automount",
    ] {
        let ended = with_options("test-bucket", options);
        assert_eq!(ended.code, Some(1), "{options:?}: {ended:?}");
        assert_eq!(ended.stdout, "Using 'fstab' style options as detected use of `-o` argument.\n");
        assert!(ended.stderr.contains("mount point missing/dir does not exist"), "{options:?}: {ended:?}");
    }
}

#[test]
fn options_that_no_line_of_fstab_may_have_are_refused_with_2() {
    for (bucket, options, why) in [
        ("test-bucket", "ro,rw", "Cannot use 'ro' flag combined with 'rw' flag"),
        ("test-bucket", "foreground", "Cannot use 'foreground' flag when using fstab style arguments"),
        ("test-bucket", "read-only", "Cannot use 'read-only' flag when using fstab style arguments"),
        (
            "test-bucket",
            "debug,--uid=2",
            "Cannot prefix arguments with `--` when using fstab style arguments",
        ),
        ("test-bucket", "cache-xz=b--use1-az4--x-s3", "--cache-xz is not supported"),
        ("test-bucket", "typo", "unexpected argument '--typo' found"),
        ("test-bucket", "a\\b", "Unexpected character after backslash escape"),
        ("s3://test-bucket/prefix/", "prefix=foo/", "explicit prefix option not allowed with S3 URI"),
        ("test-bucket", "--", "a value is required for '-o <OPTIONS>' but none was supplied"),
        ("####", "ro", "the bucket must have a valid name"),
    ] {
        let ended = with_options(bucket, options);
        assert_eq!(ended.code, Some(2), "{options:?}: {ended:?}");
        assert!(ended.stderr.contains(why), "{options:?}: {why:?} is not in {}", ended.stderr);
    }
}

#[test]
fn as_a_helper_of_mount_8_it_takes_all_its_words_and_f_does_not_mount() {
    let home = tempfile::tempdir().unwrap();
    let helper = home.path().join("mount.mount-s3");
    symlink(env!("CARGO_BIN_EXE_mount-s3"), &helper).unwrap();
    let run = |words: &[&str]| {
        end(Command::new(&helper).args(["test-bucket", "missing/dir"]).args(words).env_clear())
    };
    let fake = run(&["-s", "-f", "-n", "-v", "-o", "rw,_netdev,not-an-option", "-t", "fuse.mount-s3"]);
    assert_eq!((fake.code, fake.stderr.as_str()), (Some(0), ""));
    let strict = run(&["-f", "-o", "rw,not-an-option"]);
    assert_eq!(strict.code, Some(2), "{strict:?}");
    let real = run(&[]);
    assert!(real.code == Some(1) && real.stderr.contains("does not exist"), "{real:?}");
    let elsewhere = run(&["-N", "/no/such/namespace", "-o", "rw"]);
    assert!(elsewhere.code == Some(1) && elsewhere.stderr.contains("/no/such/namespace"), "{elsewhere:?}");
}
