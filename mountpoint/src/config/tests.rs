//! The way from flags to a configuration: paths, labels, dead mounts, and refusals.

use clap::Parser;

use super::mount_point::dead_mount;
use super::*;

#[test]
fn labels_go_to_the_kernel_only_where_selinux_is_on() {
    let asked = ["context=\"a:b:c\"".to_owned()];
    let on = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(labels(&asked, on.path()), asked);
    assert!(labels(&asked, Path::new("/nowhere/enforce")).is_empty());
}

#[test]
fn a_dead_mount_is_found_behind_links_and_by_a_name_alone() {
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().canonicalize().unwrap();
    let at = |name: &str| real.join(name);
    std::fs::create_dir_all(at("a/point")).unwrap();
    std::os::unix::fs::symlink("a", at("b")).unwrap();
    std::os::unix::fs::symlink("../b/point", at("a/near")).unwrap();
    std::os::unix::fs::symlink(at("b/near"), at("far")).unwrap();
    std::os::unix::fs::symlink("round", at("round")).unwrap();
    for name in ["a/point", "b/point", "a/near", "far", "a/../b/near"] {
        assert_eq!(dead_mount(&at(name)).unwrap(), Some(at("a/point")), "{name}");
    }
    assert_eq!(dead_mount(&at("round")).unwrap(), None);
    let here = std::env::current_dir().unwrap().canonicalize().unwrap();
    assert_eq!(dead_mount(Path::new("name")).unwrap(), Some(here.join("name")));
}

fn config(args: &[&str]) -> anyhow::Result<Config> {
    Config::from_args(&Args::try_parse_from(["mount-s3"].iter().chain(args)).unwrap())
}

#[test]
fn a_directory_that_cannot_be_mounted_on_is_named() {
    let error = |dir| format!("{:#}", config(&["bucket", dir]).unwrap_err());
    assert!(error("/no/such/dir").contains("/no/such/dir"));
    assert!(error("/proc").contains("is already mounted"));
    assert!(error("/etc/passwd").contains("is not a directory"));
}

#[test]
fn directories_are_absolute_in_the_configuration() {
    let (here, dir) = (std::env::current_dir().unwrap(), tempfile::tempdir().unwrap());
    let dir = dir.path().to_str().unwrap();
    let config =
        config(&["bucket", dir, "--cache", "c", "--spill-dir", "../s", "--state-dir", "t/u"]).unwrap();
    assert_eq!(config.cache.unwrap().dir, here.join("c"));
    assert_eq!(config.telemetry.origin.cache.as_deref(), here.join("c").to_str());
    assert_eq!(config.upload.spill_dir, Some(here.join("../s")));
    assert_eq!(config.upload.journal.unwrap().dir, here.join("t/u"));
    assert_eq!(config.s3.state_dir, Some(here.join("t/u")));
}

#[test]
fn a_descriptor_that_is_no_fuse_device_is_named_with_what_it_is() {
    let error = |dir: &str| format!("{:#}", config(&["bucket", dir]).unwrap_err());
    for dir in ["/dev/fd/999", "/dev/fd/-1", "/dev/fd/x", "/dev/fd/"] {
        let said = error(dir);
        assert!(said.contains(&format!("mount point {dir} is not a valid file descriptor")), "{said}");
    }
    use std::os::fd::AsRawFd as _;
    let (reader, _writer) = std::io::pipe().unwrap();
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let file = std::fs::File::open("/etc/passwd").unwrap();
    for (number, kind) in
        [(reader.as_raw_fd(), "Pipe"), (socket.as_raw_fd(), "Socket"), (file.as_raw_fd(), "/etc/passwd")]
    {
        let dir = format!("/dev/fd/{number}");
        let wanted =
            format!("expected mount point {dir} to be a /dev/fuse device file descriptor but got {kind}");
        assert_eq!(error(&dir), wanted);
    }
    for (flags, named) in
        [(&["--auto-unmount"][..], "--auto-unmount"), (&["--auto-unmount", "--read-only"], "--auto-unmount")]
    {
        let said = format!("{:#}", config(&[&["bucket", "/dev/fd/9"], flags].concat()).unwrap_err());
        assert!(said.starts_with(&format!("Mount options: {named} are ignored with FUSE fd")), "{said}");
    }
}
