//! The keys that sign: from the same sources as for AWS tools, and read again when they change while the bucket is mounted.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::common::{Pattern, Setup, Store, Tap, TestMount, need_large, until};

const LARGE: usize = 20 << 20;
/// The key after the change.
const NEW_KEY: &str = "test2";

/// A section of a credentials file.
fn section(profile: &str, access_key: &str, secret: &str) -> String {
    format!("[{profile}]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret}\n")
}

/// The output of a credential process.
fn printed(access_key: &str) -> String {
    format!(
        "{{\"Version\": 1, \"AccessKeyId\": \"{access_key}\", \"SecretAccessKey\": \"{}\"}}",
        Store::SECRET_KEY
    )
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Mounts with the missing settings in the environment, reads, and writes by one request and by several.
fn works(store: &std::sync::Arc<Store>, setup: Setup) -> Option<()> {
    let setup = Setup { has_keys: false, ..setup };
    let mount = TestMount::of(store, &setup)?;
    store.plant("in", b"1");
    assert_eq!(fs::read(mount.path("in")).unwrap(), b"1");
    for (name, len) in [("small", 10), ("large", LARGE)] {
        fs::write(mount.path(name), Pattern(len as u64).bytes(0, len)).unwrap();
        let stored = store.get(name).unwrap();
        assert!(stored.len() == len && Pattern(len as u64).is(0, &stored), "{name}");
        store.remove(name);
    }
    Some(())
}

#[test]
fn keys_in_the_home_directory_are_found() {
    let store = Store::new();
    let (right, wrong) =
        (section("default", Store::ACCESS_KEY, Store::SECRET_KEY), section("other", "WRONG", "wrong"));
    write(&store.home().join(".aws/credentials"), &(right + &wrong));
    works(&store, Setup::new(&[]));
}

#[test]
fn aws_profile_names_the_profile_and_aws_shared_credentials_file_the_file() {
    let store = Store::new();
    let file = store.home().join("elsewhere/keys");
    let text = section("default", "WRONG", "wrong") + &section("work", Store::ACCESS_KEY, Store::SECRET_KEY);
    write(&file, &text);
    let setup = Setup::new(&[]).env("AWS_PROFILE", "work");
    works(&store, setup.env("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap()));
}

#[test]
fn the_profile_flag_goes_before_keys_in_the_environment() {
    let store = Store::new();
    let text = section("work", Store::ACCESS_KEY, Store::SECRET_KEY);
    write(&store.home().join(".aws/credentials"), &text);
    let setup = Setup::new(&["--profile", "work"]).env("AWS_ACCESS_KEY_ID", "WRONG");
    works(&store, setup.env("AWS_SECRET_ACCESS_KEY", "wrong").env("AWS_PROFILE", "other"));
}

#[test]
fn a_credential_process_is_asked() {
    let store = Store::new();
    let keys = store.home().join("printed");
    write(&keys, &printed(Store::ACCESS_KEY));
    let config = store.home().join("elsewhere/config");
    write(&config, &format!("[profile asks]\ncredential_process = cat {}\n", keys.display()));
    let setup = Setup::new(&["--profile", "asks"]);
    works(&store, setup.env("AWS_CONFIG_FILE", config.to_str().unwrap()));
}

/// A mount whose store accepts the old key, until [`Rotation::turn`], and then the new one only.
struct Rotation {
    mount: TestMount,
    tap: Tap,
    after: std::sync::Arc<Store>,
    keys: PathBuf,
    changed: String,
}

impl Rotation {
    /// Starts a mount that reads its keys from a file or from a process.
    fn start(by_process: bool) -> Option<Self> {
        let (before, after) = (Store::new(), Store::signed_by(NEW_KEY));
        for store in [&before, &after] {
            store.plant("in", b"1");
        }
        let home = before.home();
        let text = |key: &str| if by_process { printed(key) } else { section("p", key, Store::SECRET_KEY) };
        let keys = home.join(if by_process { "printed" } else { ".aws/credentials" });
        write(&keys, &text(Store::ACCESS_KEY));
        if by_process {
            let config = format!("[profile p]\ncredential_process = cat {}\n", keys.display());
            write(&home.join(".aws/config"), &config);
        }
        let tap = Tap::to(&before);
        let setup = Setup {
            endpoint: Some(tap.endpoint()),
            has_keys: false,
            ..Setup::new(&["--profile", "p", "--allow-overwrite"])
        };
        let mount = TestMount::of(&before, &setup)?;
        Some(Self { mount, tap, after, keys, changed: text(NEW_KEY) })
    }

    fn turn(&self) {
        write(&self.keys, &self.changed);
        self.tap.turn_to(&self.after);
    }
}

#[test]
fn keys_that_change_while_it_is_mounted_are_found_by_the_next_request() {
    for by_process in [false, true] {
        let Some(rotation) = Rotation::start(by_process) else { return };
        let mount = &rotation.mount;
        assert_eq!(fs::read(mount.path("in")).unwrap(), b"1");
        rotation.turn();
        assert_eq!(fs::read(mount.path("in")).unwrap(), b"1", "by process: {by_process}");
        fs::write(mount.path("out"), b"2").unwrap();
        assert_eq!(rotation.after.get("out").unwrap(), b"2");
    }
}

/// Old keys that are still valid when new ones are written are never refused: administrators withdraw the old ones later.
#[test]
fn keys_that_change_in_a_file_are_used_before_the_old_ones_are_refused() {
    let Some(rotation) = Rotation::start(false) else { return };
    let mount = &rotation.mount;
    assert_eq!(fs::read(mount.path("in")).unwrap(), b"1");
    let signed_by_old = || {
        let begins = ["GET ", "HEAD ", "PUT ", "POST "].into_iter();
        let heads = begins.flat_map(|begin| rotation.tap.asked(begin));
        let credential = format!("Credential={}/", Store::ACCESS_KEY);
        heads.filter(|head| head.contains(&credential)).count()
    };
    let before = signed_by_old();
    assert!(before > 0);
    // From then on the next request looks at the file.
    std::thread::sleep(std::time::Duration::from_secs(6));
    rotation.turn();
    fs::write(mount.path("out"), b"2").unwrap();
    assert_eq!(rotation.after.get("out").unwrap(), b"2");
    // The HEAD and the LIST of a lookup go out together: while the one looks, the other waits.
    assert_eq!(signed_by_old() - before, 0, "requests that were signed with the old key");
}

/// An editor, or `cat >`, writes a file in pieces.
#[test]
fn a_file_of_keys_that_is_half_written_changes_nothing_until_it_is_whole() {
    if !need_large() {
        return;
    }
    let Some(rotation) = Rotation::start(false) else { return };
    let mount = &rotation.mount;
    let old = section("p", Store::ACCESS_KEY, Store::SECRET_KEY);
    let new = rotation.changed.clone();
    for half in ["", "[p]\n", &new[..new.len() / 2], &new[..new.find("aws_secret").unwrap()], "[p\n=\n\u{0}"]
    {
        // From now on the next request looks at the file.
        std::thread::sleep(std::time::Duration::from_secs(6));
        write(&rotation.keys, half);
        assert!(
            fs::metadata(mount.path("none")).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound),
            "{half:?}"
        );
    }
    // Half a secret looks like a whole one, and is refused. The file that is whole a moment later serves at once.
    std::thread::sleep(std::time::Duration::from_secs(6));
    for text in [&old[..old.len() - 4], &old] {
        write(&rotation.keys, text);
        let error = fs::metadata(mount.path("none")).unwrap_err();
        let refused = if text.len() < old.len() {
            std::io::ErrorKind::PermissionDenied
        } else {
            std::io::ErrorKind::NotFound
        };
        assert_eq!(error.kind(), refused, "{error}");
    }
    std::thread::sleep(std::time::Duration::from_secs(6));
    rotation.turn();
    assert_eq!(fs::read(mount.path("in")).unwrap(), b"1");
    assert!(!mount.log().contains(Store::SECRET_KEY));
}

#[test]
fn keys_changed_within_a_file_are_found_by_the_request_that_uploads() {
    const SENT_LATER: usize = 4 << 20;
    let Some(rotation) = Rotation::start(false) else { return };
    let mut file = File::create_new(rotation.mount.path("out")).unwrap();
    // Less than a part: nothing is sent yet.
    file.write_all(&Pattern(1).bytes(0, SENT_LATER)).unwrap();
    rotation.turn();
    file.write_all(&Pattern(1).bytes(SENT_LATER as u64, LARGE - SENT_LATER)).unwrap();
    file.sync_all().unwrap();
    let stored = rotation.after.get("out").unwrap();
    assert!(stored.len() == LARGE && Pattern(1).is(0, &stored));
}

#[test]
fn everybody_hears_of_a_source_that_does_not_answer_from_one_question() {
    const MANY: usize = 64;
    let store = Store::new();
    let (questions, dead) = (store.home().join("questions"), store.home().join("dead"));
    // Keys in their last moments: each request asks for others.
    let keys = format!(
        "{{\"Version\": 1, \"AccessKeyId\": \"{}\", \"SecretAccessKey\": \"{}\", \"Expiration\": \"'\"$(date -u -d '+5 sec' +%FT%TZ)\"'\"}}",
        Store::ACCESS_KEY,
        Store::SECRET_KEY
    );
    let script = format!(
        "echo asked >> {}\n[ -e {} ] && exec sleep 20\nprintf '%s' '{keys}'\n",
        questions.display(),
        dead.display()
    );
    let process = store.home().join("process");
    write(&process, &script);
    let config = format!("[profile p]\ncredential_process = sh {}\n", process.display());
    write(&store.home().join(".aws/config"), &config);
    let setup = Setup { has_keys: false, ..Setup::new(&["--profile", "p"]) };
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    assert!(fs::metadata(mount.path("none")).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound));
    let asked = || fs::read_to_string(&questions).unwrap().lines().count();
    write(&dead, "");
    let before = asked();
    std::thread::scope(|scope| {
        for i in 0..MANY {
            let path = mount.path(&format!("none-{i}"));
            scope.spawn(move || {
                let error = fs::metadata(path).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
            });
        }
    });
    // A question is given up after 10 s, and its answer holds for 10 s: so all hear of it within 15 s of the first one on an idle machine.
    assert!(asked() - before <= 3, "{} questions for {MANY} requests", asked() - before);
    fs::remove_file(&dead).unwrap();
    until("a source that is back is asked again", || {
        fs::metadata(mount.path("none")).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    });
}
