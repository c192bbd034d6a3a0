//! `--sandbox on`: a confined engine does everything that an unconfined one does.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Pattern, Setup, Store, TestMount, command, is_mounted, need_tool, python, run, until};

/// Bytes of several parts.
const LARGE: usize = 20 << 20;

fn confined(store: &Arc<Store>, options: &[&str]) -> Option<TestMount> {
    let mount = TestMount::of(store, &setup(options))?;
    is_confined(&mount);
    Some(mount)
}

fn setup(options: &[&str]) -> Setup {
    Setup::new(&[&["--sandbox", "on"], options].concat())
}

/// Asserts that every thread of the engine is confined, by the kernel's own report.
fn is_confined(mount: &TestMount) {
    // The mount is there a moment before.
    until("it says that it is mounted", || mount.log().contains("is mounted at"));
    let threads = fs::read_dir(format!("/proc/{}/task", mount.pid())).unwrap();
    let mut seen = 0;
    for thread in threads.flatten() {
        // Threads come and go.
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
        if status.starts_with("Name:\tiou-") {
            continue;
        }
        seen += 1;
        let none = "0000000000000000";
        for line in
            ["NoNewPrivs:\t1", "Seccomp:\t2", &format!("CapEff:\t{none}"), &format!("CapPrm:\t{none}")]
        {
            assert!(status.contains(line), "{line}\n{status}");
        }
    }
    assert!(seen > 3, "{seen} threads");
    let limits = fs::read_to_string(format!("/proc/{}/limits", mount.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_ascii_whitespace().nth(4), Some("0"), "{core}");
}

/// Reads, writes, lists, renames and deletes.
fn works(mount: &TestMount) {
    let store = mount.store();
    store.plant("planted", &Pattern(1).bytes(0, LARGE));
    let bytes = fs::read(mount.path("planted")).unwrap();
    assert!(bytes.len() == LARGE && Pattern(1).is(0, &bytes));
    for (name, len) in [("small", 10), ("large", LARGE)] {
        fs::write(mount.path(name), Pattern(2).bytes(0, len)).unwrap();
        let stored = store.get(name).unwrap();
        assert!(stored.len() == len && Pattern(2).is(0, &stored), "{name}");
    }
    fs::create_dir(mount.path("dir")).unwrap();
    fs::rename(mount.path("small"), mount.path("dir/moved")).unwrap();
    assert_eq!(fs::read(mount.path("dir/moved")).unwrap(), Pattern(2).bytes(0, 10));
    assert_eq!(fs::read_dir(mount.dir()).unwrap().count(), 3);
    fs::remove_file(mount.path("large")).unwrap();
    assert_eq!(store.keys(), ["dir/moved", "planted"]);
}

#[test]
fn a_confined_engine_reads_writes_renames_and_is_unmounted_by_a_signal() {
    let options = ["--allow-delete", "--allow-rename", "--store", "aws"];
    let Some(mut mount) = confined(&Store::new(), &options) else { return };
    works(&mount);
    assert!(mount.end_by(Signal::TERM).success(), "{}", mount.log());
    assert!(!is_mounted(mount.dir()));
    assert_eq!(mount.complaints(), Vec::<String>::new());
}

#[test]
fn a_confined_engine_is_unmounted_by_umount_and_while_it_is_in_use() {
    let Some(mut mount) = confined(&Store::new(), &[]) else { return };
    fs::write(mount.path("file"), "1").unwrap();
    run(Command::new("umount").arg(mount.dir()));
    assert!(mount.end().success(), "{}", mount.log());
    let Some(mut mount) = confined(&Store::new(), &[]) else { return };
    fs::write(mount.path("file"), "1").unwrap();
    let open = File::open(mount.path("file")).unwrap();
    mount.signal(Signal::TERM);
    until("it is detached", || !is_mounted(mount.dir()));
    drop(open);
    assert!(mount.end().success(), "{}", mount.log());
}

#[test]
fn a_confined_engine_changes_files_in_full_mode() {
    let (store, stage) = (Store::new(), tempfile::tempdir().unwrap());
    store.plant("file", &Pattern(1).bytes(0, LARGE));
    let stage = stage.path().to_str().unwrap();
    let Some(mount) = confined(&store, &["--mode", "full", "--stage", stage, "--store", "aws"]) else {
        return;
    };
    let file = File::options().read(true).write(true).open(mount.path("file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"changed", 7).unwrap();
    drop(file);
    assert_eq!(&store.get("file").unwrap()[7..14], b"changed");
    fs::rename(mount.path("file"), mount.path("other")).unwrap();
    assert_eq!(store.keys(), ["other"]);
}

#[test]
fn a_confined_engine_keeps_cache_and_log_and_finds_a_store_by_name() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    let port = store.endpoint().rsplit_once(':').unwrap().1.to_owned();
    let [cache, log] = ["cache", "log"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let options = ["--cache", &cache, "--max-cache-size", "64", "--log-directory", &log, "--keep-metadata"];
    fs::create_dir(&cache).unwrap();
    // The endpoint has a name and no address: the resolver's files and libraries are out of reach.
    let setup = Setup { endpoint: Some(format!("http://localhost:{port}")), ..setup(&options) };
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    is_confined(&mount);
    store.plant("planted", &Pattern(1).bytes(0, LARGE));
    for _ in 0..2 {
        assert!(Pattern(1).is(0, &fs::read(mount.path("planted")).unwrap()));
    }
    until("the cache holds the file", || {
        let used = run(Command::new("du").args(["-s", "--block-size=1"]).arg(&cache)).stdout;
        String::from_utf8_lossy(&used).split('\t').next().unwrap().parse::<usize>().unwrap() > LARGE
    });
    fs::write(mount.path("new"), Pattern(2).bytes(0, LARGE)).unwrap();
    assert!(Pattern(2).is(0, &store.get("new").unwrap()));
}

#[test]
fn keys_of_a_confined_engine_are_renewed_by_a_rename_and_by_a_link() {
    for by_link in [false, true] {
        let (before, after) = (Store::new(), Store::signed_by("test2"));
        for store in [&before, &after] {
            store.plant("in", b"1");
        }
        let keys = before.home().join("keys");
        let text = |key: &str| {
            format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = {}\n", Store::SECRET_KEY)
        };
        fs::create_dir_all(keys.join("one")).unwrap();
        fs::write(keys.join("one/credentials"), text(Store::ACCESS_KEY)).unwrap();
        if by_link {
            // The kubelet lays the files of a volume out by such links.
            symlink("one", keys.join("..data")).unwrap();
            symlink("..data/credentials", keys.join("credentials")).unwrap();
        } else {
            fs::copy(keys.join("one/credentials"), keys.join("credentials")).unwrap();
        }
        let tap = crate::common::Tap::to(&before);
        let file = keys.join("credentials");
        let setup = Setup { endpoint: Some(tap.endpoint()), has_keys: false, ..setup(&[]) };
        let setup = setup.env("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap());
        let Some(mount) = TestMount::of(&before, &setup) else { return };
        is_confined(&mount);
        assert_eq!(fs::read(mount.path("in")).unwrap(), b"1");
        fs::create_dir(keys.join("two")).unwrap();
        fs::write(keys.join("two/credentials"), text("test2")).unwrap();
        if by_link {
            symlink("two", keys.join("..new")).unwrap();
            fs::rename(keys.join("..new"), keys.join("..data")).unwrap();
        } else {
            fs::rename(keys.join("two/credentials"), &file).unwrap();
        }
        tap.turn_to(&after);
        fs::write(mount.path("out"), b"2").unwrap();
        assert_eq!(after.get("out").unwrap(), b"2", "by link: {by_link}");
    }
}

#[test]
fn a_confined_engine_has_its_credential_process_run_again() {
    let (before, after) = (Store::new(), Store::signed_by("test2"));
    for store in [&before, &after] {
        store.plant("in", b"1");
    }
    let home = before.home();
    let printed = |key: &str| {
        let secret = Store::SECRET_KEY;
        format!("{{\"Version\": 1, \"AccessKeyId\": \"{key}\", \"SecretAccessKey\": \"{secret}\"}}")
    };
    fs::write(home.join("printed"), printed(Store::ACCESS_KEY)).unwrap();
    fs::create_dir(home.join(".aws")).unwrap();
    let script = "env >>\"$0/env\"; echo over >>\"$0/env\"; cat \"$0/printed\"";
    fs::write(home.join("script"), script).unwrap();
    let home_shown = home.display();
    let program = format!("sh -c '. {home_shown}/script' {home_shown}");
    let config = format!("[profile p]\ncredential_process = {program}\n");
    fs::write(home.join(".aws/config"), config).unwrap();
    let tap = crate::common::Tap::to(&before);
    let options = ["--sandbox", "on", "--profile", "p"];
    let setup = Setup { endpoint: Some(tap.endpoint()), has_keys: false, ..Setup::new(&options) };
    let setup = setup.env("AWS_SECRET_ACCESS_KEY", "canary-1").env("DATABASE_PASSWORD", "canary-2");
    let setup = setup.env("AWS_DEFAULT_REGION", "us-east-1");
    let Some(mount) = TestMount::of(&before, &setup) else { return };
    is_confined(&mount);
    assert_eq!(fs::read(mount.path("in")).unwrap(), b"1");
    fs::write(home.join("printed"), printed("test2")).unwrap();
    tap.turn_to(&after);
    fs::write(mount.path("out"), b"2").unwrap();
    assert_eq!(after.get("out").unwrap(), b"2");
    let environment = fs::read_to_string(home.join("env")).unwrap();
    assert!(environment.matches("over\n").count() > 1, "it ran again");
    assert!(environment.contains("AWS_DEFAULT_REGION=us-east-1\n") && environment.contains("PATH="));
    assert!(!environment.contains("canary"), "{environment}");
}

/// The engine looks in `/proc` for the process that closes a file. `/proc` shows a confined engine nothing of others: its helper looks.
#[test]
fn a_confined_engine_knows_programs_that_share_a_file() {
    if !need_tool("python3") {
        return;
    }
    let Some(mount) = confined(&Store::new(), &["--allow-delete"]) else { return };
    let script = "( echo a; echo b ) >\"$0\"; exec 3>\"$0.2\"; echo c >&3; echo d >&3; exec 3>&-";
    run(Command::new("bash").args(["-c", script]).arg(mount.path("shared")));
    assert_eq!(mount.store().get("shared").unwrap(), b"a\nb\n");
    assert_eq!(mount.store().get("shared.2").unwrap(), b"c\nd\n");
    const OPEN: &str = "
import os, sys
file = open(sys.argv[1], 'wb', buffering=0)
file.write(b'x' * 1000)
copy = os.dup(file.fileno())
os.close(copy)
file.write(b'y' * 1000)
file.close()
";
    python(OPEN, &mount.path("copied"), &[]);
    assert_eq!(mount.store().get("copied").unwrap().len(), 2000);
}

#[test]
fn the_kernel_reads_cached_files_of_a_confined_engine() {
    super::passthrough::is_the_kernel_s(&["--sandbox", "on"]);
}

#[test]
fn a_kernel_without_a_part_of_the_sandbox_mounts_unless_it_is_required() {
    const CREATE_RULESET: u32 = 444;
    let seccomp = if cfg!(target_arch = "x86_64") { 317 } else { 277 };
    if !need_tool("python3") {
        return;
    }
    for (call, part) in [(CREATE_RULESET, "landlock"), (seccomp, "seccomp")] {
        let without = Setup { refuses: Some(call), ..Setup::new(&[]) };
        let wished = without.clone().env("MOUNT_S3_SANDBOX", "1");
        let Some(mount) = TestMount::with(&wished) else { return };
        until("it says that it is mounted", || mount.log().contains("is mounted at"));
        let complaints = mount.complaints();
        assert!(complaints.len() == 1 && complaints[0].contains(part), "{complaints:?}");
        fs::write(mount.path("file"), "1").unwrap();
        assert_eq!(mount.store().get("file").unwrap(), b"1");
        let status = fs::read_to_string(format!("/proc/{}/status", mount.pid())).unwrap();
        assert!(status.contains("CapEff:\t0000000000000000"), "the rest holds:\n{status}");

        let folder = tempfile::tempdir().unwrap();
        let plain = command(mount.store(), folder.path(), &setup(&[]));
        let mut refused = crate::common::refused(call, &plain);
        let output = refused.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(part) && said.contains("--sandbox on"), "{said}");
        assert!(!is_mounted(folder.path()));
    }
}

#[test]
fn a_mount_is_confined_where_its_environment_asks_and_no_flag_forbids() {
    for (value, options, confined) in
        [("1", &[][..], true), ("0", &[], false), ("1", &["--sandbox", "off"], false)]
    {
        let Some(mount) = TestMount::with(&Setup::new(options).env("MOUNT_S3_SANDBOX", value)) else {
            return;
        };
        until("it says that it is mounted", || mount.log().contains("is mounted at"));
        let status = fs::read_to_string(format!("/proc/{}/status", mount.pid())).unwrap();
        assert_eq!(status.contains("Seccomp:\t2"), confined, "{value} {options:?}\n{status}");
    }
}

#[test]
fn a_mount_that_would_lose_its_keys_has_neither_sandbox_nor_helper() {
    let store = Store::new();
    store.print_keys("p");
    for (proxy, confined) in [("", true), ("http://127.0.0.1:1", false)] {
        let setup = Setup { has_keys: false, ..Setup::new(&["--profile", "p"]) };
        // The store is asked by HTTP.
        let setup = setup.env("MOUNT_S3_SANDBOX", "1").env("HTTPS_PROXY", proxy);
        let Some(mount) = TestMount::of(&store, &setup) else { return };
        until("it says that it is mounted", || mount.log().contains("is mounted at"));
        fs::write(mount.path(if confined { "one" } else { "two" }), "1").unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", mount.pid())).unwrap();
        assert_eq!(status.contains("Seccomp:\t2"), confined, "{status}");
        let of_mount = format!("PPid:\t{}\n", mount.pid());
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let statuses = processes.filter_map(|process| fs::read_to_string(process.path().join("status")).ok());
        let helpers = statuses.filter(|it| it.contains(&of_mount) && it.starts_with("Name:\ts3-helper\n"));
        assert_eq!(helpers.count(), usize::from(confined));
        let complaints = mount.complaints();
        assert_eq!(complaints.len(), usize::from(!confined), "{complaints:?}");
        assert!(confined || complaints[0].contains("credential_process"), "{complaints:?}");
    }
}

#[test]
fn mount_s3_ctl_finds_and_asks_a_confined_engine_which_removes_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let Some(mount) = TestMount::with(&setup(&[]).env("XDG_RUNTIME_DIR", place)) else { return };
    is_confined(&mount);
    fs::write(mount.path("file"), "1").unwrap();
    let mut ctl = Command::new(env!("CARGO_BIN_EXE_mount-s3-ctl"));
    ctl.args(["status", "--json"]).arg(mount.dir()).env_clear().env("XDG_RUNTIME_DIR", place);
    let said = run(&mut ctl).stdout;
    assert!(String::from_utf8_lossy(&said).contains(mount.dir().to_str().unwrap()));
    let socket = folder.path().join(format!("mount-s3/{}.sock", mount.pid()));
    assert!(socket.exists());
    drop(mount);
    assert!(!socket.exists());
}

#[test]
fn a_file_that_is_being_written_when_a_confined_engine_ends_is_given_up() {
    let Some(mut mount) = confined(&Store::new(), &[]) else { return };
    let mut file = File::create_new(mount.path("file")).unwrap();
    file.write_all(&Pattern(1).bytes(0, LARGE)).unwrap();
    mount.signal(Signal::TERM);
    until("it is detached", || !is_mounted(mount.dir()));
    drop(file);
    assert!(mount.end().success(), "{}", mount.log());
    assert_eq!(mount.store().pending_uploads(), 0);
}

#[test]
fn the_log_of_a_confined_engine_follows_its_name_after_a_rename() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--debug", "--log-directory", folder.path().to_str().unwrap()];
    let Some(mount) = TestMount::with(&setup(&options)) else { return };
    let file = || {
        fs::read_dir(folder.path())
            .unwrap()
            .flatten()
            .find(|file| file.path().extension() == Some("log".as_ref()))
    };
    until("it has a log", || {
        file().is_some_and(|file| fs::read_to_string(file.path()).unwrap().contains("is confined"))
    });
    let path = file().unwrap().path();
    fs::rename(&path, folder.path().join("rotated")).unwrap();
    until("a line is in a new file of that name", || {
        mount.signal(Signal::USR1);
        fs::read_to_string(&path).is_ok_and(|text| text.contains("is ignored"))
    });
}

/// The helper of a mount.
fn helper_of(mount: &TestMount) -> Pid {
    let is_helper = |status: &str| {
        status.starts_with("Name:\ts3-helper\n") && status.contains(&format!("\nPPid:\t{}\n", mount.pid()))
    };
    let mut pids =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let status = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/status"));
    Pid::from_raw(pids.find(|pid| status(pid).is_ok_and(|status| is_helper(&status))).unwrap()).unwrap()
}

/// Whether a process exists and runs.
fn lives(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

#[test]
fn a_confined_engine_whose_helper_died_serves_on_and_says_how_to_unmount() {
    let Some(mut mount) = confined(&Store::new(), &[]) else { return };
    let helper = helper_of(&mount);
    kill_process(helper, Signal::KILL).unwrap();
    until("the helper is gone", || !lives(helper));
    mount.signal(Signal::TERM);
    until("it says so", || mount.log().contains("unmounting failed"));
    assert!(mount.log().contains("by umount"), "{}", mount.log());
    fs::write(mount.path("file"), "1").unwrap();
    assert_eq!(mount.store().get("file").unwrap(), b"1");
    run(Command::new("umount").arg(mount.dir()));
    assert!(mount.end().success(), "{}", mount.log());
}

#[test]
fn a_helper_that_was_stopped_hangs_no_engine_and_ends_with_it() {
    let Some(mut mount) = confined(&Store::new(), &["--allow-delete"]) else { return };
    let helper = helper_of(&mount);
    kill_process(helper, Signal::STOP).unwrap();
    // The engine asks its helper at each close which process closes.
    fs::write(mount.path("file"), "1").unwrap();
    assert_eq!(mount.store().get("file").unwrap(), b"1");
    kill_process(helper, Signal::CONT).unwrap();
    mount.kill_9();
    until("the helper is gone", || !lives(helper));
}
