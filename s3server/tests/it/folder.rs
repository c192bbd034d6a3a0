//! The folder itself: files put there by hand, restarts, crashes.

use std::fs;
use std::time::{Duration, SystemTime};

use testkit::until;

use crate::client::{BUCKET, Lab};

#[test]
fn a_restart_keeps_bytes_etag_and_metadata() {
    let mut lab = Lab::new();
    for key in ["plain", "odd//key"] {
        lab.object("PUT", key)
            .header("x-amz-meta-n", key)
            .header("cache-control", "no-store")
            .body(b"x")
            .send()
            .ok();
    }
    let heads = |lab: &Lab| {
        ["plain", "odd//key"].map(|key| {
            let head = lab.object("HEAD", key).send().ok();
            ["etag", "x-amz-meta-n", "cache-control", "last-modified"]
                .map(|name| head.header(name).to_owned())
        })
    };
    let before = heads(&lab);
    assert_eq!(before[1][1], "odd//key");
    lab.restart();
    assert_eq!(heads(&lab), before);
    lab.restart();
    assert_eq!(heads(&lab), before);
}

#[test]
fn a_file_put_there_by_hand_is_an_object() {
    let lab = Lab::new();
    lab.put("uploaded", b"1");
    fs::create_dir_all(lab.folder().join("by/hand")).unwrap();
    fs::write(lab.folder().join("by/hand/file"), b"hand").unwrap();
    let got = lab.get("by/hand/file").ok();
    assert_eq!(got.body, b"hand");
    assert!(!got.header("etag").is_empty());
    // A listing may look again only after the file system's clock has ticked.
    until("the file is listed", || lab.list("", "", 10).0 == ["by/hand/file", "uploaded"]);
    fs::write(lab.folder().join("second"), b"2").unwrap();
    let entries = (vec!["second".into(), "uploaded".into()], vec!["by/".into()]);
    until("the second file is listed", || lab.list("", "/", 10) == entries);
    fs::remove_dir_all(lab.folder().join("by")).unwrap();
    until("the folder is listed no more", || lab.list("", "/", 10).1.is_empty());
    lab.get("by/hand/file").fails(404, "NoSuchKey");
}

#[test]
fn metadata_of_a_file_that_was_replaced_by_hand_is_ignored() {
    let mut lab = Lab::new();
    let etag = lab
        .object("PUT", "k")
        .header("x-amz-meta-a", "b")
        .body(b"uploaded")
        .send()
        .ok()
        .header("etag")
        .to_owned();
    // Same size, another file: as after a crash between two renames, or an editor that saves by renaming.
    fs::write(lab.root.path().join("other"), b"replaced").unwrap();
    fs::rename(lab.root.path().join("other"), lab.folder().join("k")).unwrap();
    for _ in 0..2 {
        let got = lab.get("k").ok();
        assert_eq!(got.body, b"replaced");
        assert_ne!(got.header("etag"), etag);
        assert_eq!(got.header("x-amz-meta-a"), "");
        lab.restart();
    }
    lab.object("PUT", "k").header("if-match", &etag).body(b"x").send().fails(412, "PreconditionFailed");
}

#[test]
fn a_file_that_was_edited_in_place_gets_another_etag() {
    let lab = Lab::new();
    let etag = lab.put("k", b"uploaded").header("etag").to_owned();
    let file = fs::File::options().write(true).open(lab.folder().join("k")).unwrap();
    std::io::Write::write_all(&mut &file, b"EDITED!!").unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
    let got = lab.get("k").ok();
    assert_eq!(got.body, b"EDITED!!");
    assert_ne!(got.header("etag"), etag);
}

#[test]
fn a_reader_keeps_its_version_while_the_object_is_replaced() {
    let lab = Lab::new();
    let versions: Vec<Vec<u8>> = (0..20u8).map(|i| vec![i; 300_000]).collect();
    lab.put("k", &versions[0]);
    std::thread::scope(|scope| {
        scope.spawn(|| versions.iter().for_each(|v| drop(lab.put("k", v))));
        for _ in 0..40 {
            let body = lab.get("k").ok().body;
            assert!(versions.contains(&body), "a mix of versions");
        }
    });
}

#[test]
fn what_a_crash_left_half_received_is_removed_at_the_next_start() {
    let mut lab = Lab::new();
    fs::write(lab.root.path().join(".s3server/staged/left"), b"half").unwrap();
    lab.restart();
    assert_eq!(fs::read_dir(lab.root.path().join(".s3server/staged")).unwrap().count(), 0);
}

#[test]
fn links_are_not_followed_out_of_the_folder() {
    let lab = Lab::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), b"secret").unwrap();
    std::os::unix::fs::symlink(outside.path(), lab.folder().join("link")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("secret"), lab.folder().join("file")).unwrap();
    lab.get("link/secret").fails(404, "NoSuchKey");
    lab.get("file").fails(404, "NoSuchKey");
    assert!(lab.list("", "", 10).0.is_empty());
    lab.put("link/new", b"inside");
    assert!(!outside.path().join("new").exists());
    assert_eq!(lab.get("link/new").ok().body, b"inside");
}

#[test]
fn two_servers_do_not_share_a_folder() {
    let lab = Lab::new();
    let second = s3server::Server::start(s3server::Config::new(lab.root.path()));
    assert!(second.unwrap_err().to_string().contains("another server"));
}

#[test]
fn a_folder_made_by_hand_is_a_bucket() {
    let lab = Lab::new();
    fs::create_dir(lab.root.path().join("photos")).unwrap();
    fs::write(lab.root.path().join("photos/a.jpg"), b"jpg").unwrap();
    assert_eq!(lab.request("GET", "/photos/a.jpg").send().ok().body, b"jpg");
    assert_eq!(lab.request("GET", "/").send().ok().all("Name"), [BUCKET, "photos"]);
}

#[test]
fn a_listing_of_very_many_keys_comes_in_pages_that_each_cost_the_same() {
    let lab = Lab::new();
    for i in 0..100_000 {
        fs::write(lab.folder().join(format!("{i:06}")), b"").unwrap();
    }
    let (keys, _) = lab.list("", "", 1000);
    assert_eq!(keys.len(), 100_000);
    assert!(keys.is_sorted());
    let log = lab.server().requests();
    assert_eq!(log.count("ListObjectsV2"), 100);
}
