//! Hostile keys and archive tiers, on moto: a store that keeps any key, knows storage classes, and shares no line with ours.

#[expect(dead_code, unused_imports, reason = "the modules that are left out use the rest")]
mod common;

/// The transport of requests.
const TRANSPORT: &str = "dev";

/// Whether reads go through the page cache.
const READ_MODE: &str = "auto";

/// The store that the tests mount.
const STORE: common::Kind = common::Kind::Moto;

mod on_moto {
    use std::collections::BTreeMap;
    use std::fs;
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::path::Path;
    use std::process::Command;

    use testkit::{Moto, hostile_keys, is_path};

    use crate::common::{Setup, Store, TestMount};

    /// All files beneath a directory by their path in the mount.
    fn files(dir: &Path, below: &str, into: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{below}{}", entry.file_name().to_str().expect("keys are UTF-8"));
            if entry.file_type().unwrap().is_dir() {
                files(&entry.path(), &format!("{path}/"), into);
            } else {
                into.insert(path, fs::read(entry.path()).unwrap());
            }
        }
    }

    #[test]
    fn a_hostile_key_that_is_a_path_is_a_file_and_others_are_counted() {
        let hostile = hostile_keys();
        let is_shown = |key: &String| {
            let shadowed = hostile.iter().any(|other| other.starts_with(&format!("{key}/")));
            is_path(key) && !shadowed && key.split('/').all(|name| name.len() <= 255)
        };
        let paths: Vec<_> = hostile.iter().filter(|key| is_shown(key)).map(String::as_str).collect();
        let others = ["../up", "./here", "a/../b", "a/./b", "/lead", "dir//x", "trail/.", &"y".repeat(256)];
        let store = Store::new();
        for key in paths.iter().chain(&others) {
            store.put(key, key.as_bytes().to_vec());
        }
        let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
        let mut found = BTreeMap::new();
        files(mount.dir(), "", &mut found);
        let expected: BTreeMap<_, _> =
            paths.iter().map(|path| ((*path).to_owned(), path.as_bytes().to_vec())).collect();
        assert_eq!(found, expected);
        // "a/" and "dir/" and "trail/" are directories of what can't be shown.
        let log = mount.log();
        for (listing, count) in [("\"\"", 4), ("\"a/\"", 2), ("\"dir/\"", 1), ("\"trail/\"", 1)] {
            let said = format!("listing {listing}: {count} names can't be shown as files, for example");
            assert!(log.contains(&said), "{said}:\n{log}");
        }
    }

    #[test]
    fn an_object_in_an_archive_tier_is_eacces_and_the_log_says_to_restore_it() {
        let store = Store::new();
        for (class, archived) in
            [("GLACIER", true), ("DEEP_ARCHIVE", true), ("GLACIER_IR", false), ("STANDARD_IA", false)]
        {
            let Some(mount) = TestMount::of(&store, &Setup::new(&["--storage-class", class])) else { return };
            let path = mount.path(&format!("{class}.txt"));
            fs::write(&path, class).unwrap();
            drop(mount);
            // A mount that did not write it.
            let mount = TestMount::of(&store, &Setup::new(&[])).expect("FUSE was there a moment ago");
            let path = mount.path(path.file_name().unwrap().to_str().unwrap());
            assert_eq!(fs::metadata(&path).unwrap().len(), class.len() as u64);
            let read = fs::read(&path);
            if archived {
                assert_eq!(read.unwrap_err().kind(), ErrorKind::PermissionDenied, "{class}");
                let said =
                    format!("\"{class}.txt\": is in an archive tier; restore the object before reading it");
                assert!(mount.log().contains(&said), "{}", mount.log());
            } else {
                assert_eq!(read.unwrap(), class.as_bytes());
            }
        }
    }

    /// A request that needs no signature there.
    fn send(to: std::net::SocketAddr, method: &str, path: &str, headers: &str, body: &str) {
        let mut stream = std::net::TcpStream::connect(to).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {to}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{method} {path}: {answer}");
    }

    #[test]
    fn the_doctor_names_what_a_locked_bucket_keeps_of_its_probes() {
        let Some(binary) = Moto::binary() else { return };
        let root = tempfile::tempdir().unwrap();
        let moto = Moto::start(&binary, root.path(), "plain");
        send(moto.address(), "PUT", "/locked", "x-amz-bucket-object-lock-enabled: true\r\n", "");
        let lock = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>\
                    <Mode>COMPLIANCE</Mode><Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>";
        send(moto.address(), "PUT", "/locked?object-lock", "", lock);
        let endpoint = format!("http://{}", moto.address());
        let output = Command::new(env!("CARGO_BIN_EXE_mount-s3-ctl"))
            .args(["doctor", "locked", "--endpoint-url", &endpoint, "--force-path-style"])
            .args(["--write-probes", "--json"])
            .env_clear()
            .envs([("HOME", root.path().to_str().unwrap()), ("AWS_ACCESS_KEY_ID", "key")])
            .env("AWS_SECRET_ACCESS_KEY", Store::SECRET_KEY)
            .output()
            .unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = |probe: &str| {
            let all = report["findings"].as_array().unwrap().iter();
            all.filter(|it| it["probe"] == probe).map(|it| it["found"].as_str().unwrap()).collect::<String>()
        };
        assert_eq!(found("versions"), "versioning on, object lock on", "{report:#}");
        assert!(found("cleaning up").contains("still below"), "{report:#}");
        let kept = report["kept"].as_array().unwrap();
        let named = |it: &serde_json::Value| {
            it["version"].is_string() && it["key"].as_str().unwrap().starts_with("mount-s3-doctor-")
        };
        assert!(kept.iter().all(named), "{report:#}");
        assert!(kept.iter().any(|it| it["key"].as_str().unwrap().ends_with("/small")), "{report:#}");
    }
}
