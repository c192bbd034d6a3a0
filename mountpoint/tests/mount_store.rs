//! Reading, writing, semantics and tools once more, on a store that `ci/stores NAME` installs and starts; then a large file, and the doctor.

#[expect(dead_code, unused_imports, reason = "the modules that are left out use the rest")]
mod common;

/// The transport of requests.
const TRANSPORT: &str = "dev";

/// Whether reads go through the page cache.
const READ_MODE: &str = "auto";

/// The store of the mounts.
const STORE: common::Kind = common::Kind::Real;

/// The other modules of `mount/` need a store that counts requests or makes faults.
#[path = "mount"]
mod on_a_real_store {
    mod reading;
    mod semantics;
    mod tools;
    mod writing;

    use std::fs::File;
    use std::process::Command;
    use std::time::Duration;

    use crate::common::{Pattern, Setup, Store, TestMount, hash_file, need_large};

    /// More parts than those of the first size.
    #[test]
    fn nine_gibibytes_come_back_with_the_same_checksum() {
        const LEN: u64 = (9 << 30) + 12_345;
        if !need_large() {
            return;
        }
        let setup = Setup::new(&["--memory-target", "512"]).limit(Duration::from_secs(3600));
        let Some(mount) = TestMount::with(&setup) else { return };
        let mut file = File::create_new(mount.path("large")).unwrap();
        let written = Pattern(9).write_to(&mut file, LEN, 1 << 20).unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(hash_file(&mount.path("large"), 1 << 20).unwrap(), (LEN, written));
    }

    #[test]
    fn the_doctor_examines_the_store_and_says_how_to_mount_it() {
        let store = Store::new();
        // Nothing is examined if no store is named.
        if store.stands_in() {
            return;
        }
        let (options, _) = store.way(None);
        let output = Command::new(env!("CARGO_BIN_EXE_mount-s3-ctl"))
            .args(["doctor", "bucket", "--write-probes", "--region", "us-east-1"])
            .args(&options)
            .env_clear()
            .env("HOME", store.home())
            .envs([("AWS_ACCESS_KEY_ID", Store::ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", Store::SECRET_KEY)])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        eprintln!("{said}");
        // A store may well lack something: then the report says what, and the exit code is 1.
        assert!(said.contains("Mount it with:"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    }
}
