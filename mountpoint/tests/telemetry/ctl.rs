//! `mount-s3-ctl status` and `top`: of a mount that serves, hangs, is gone, or belongs to another user.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use s3server::{Effect, Fault};
use serde_json::Value;

use crate::common::{BUCKET, Pattern, Store, need, need_tool, run, until};
use crate::{ctl, end, get, mount, valid};

const LEN: usize = 1 << 20;
/// A Python that every user may run, whatever the search path finds first.
const PYTHON: &str = "/usr/bin/python3";

fn json(runtime_dir: &Path, words: &[&str]) -> (Option<i32>, Value) {
    let (code, out, error) = end(&mut ctl(runtime_dir, words));
    let report = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{words:?}: {out}{error}"));
    valid("status", &report);
    (code, report)
}

fn socket(runtime_dir: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(runtime_dir.join("mount-s3")).into_iter().flatten();
    files.map(|file| file.unwrap().path()).find(|path| path.extension().is_some_and(|e| e == "sock"))
}

/// Whether the mount answers by its socket. Before it has one, its state is `SILENT`, and it answers only the kernel.
pub(super) fn is_served(runtime_dir: &Path, dir: &str) -> bool {
    let (code, text, _) = end(&mut ctl(runtime_dir, &["status", dir]));
    code == Some(0) && !text.contains("SILENT")
}

#[test]
fn status_says_what_is_mounted_what_is_open_and_what_went_wrong() {
    let (store, here, cache) = (Store::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    store.plant("file", &Pattern(1).bytes(0, LEN));
    let cache_dir = cache.path().to_str().unwrap();
    let Some(mount) = mount(&store, here.path(), &["--cache", cache_dir, "--allow-delete"]) else { return };
    let dir = mount.dir().to_str().unwrap();
    assert_eq!(fs::read(mount.path("file")).unwrap().len(), LEN);
    let reading = fs::File::open(mount.path("file")).unwrap();
    let mut writing = fs::File::create(mount.path("new")).unwrap();
    writing.write_all(&[7; 1000]).unwrap();

    // The kernel releases what was closed a moment later.
    let open = serde_json::json!({ "read": 1, "write": 1 });
    let (mut code, mut report) = (None, Value::Null);
    until("two files are open", || {
        (code, report) = json(here.path(), &["status", "--json", dir]);
        report["mounts"][0]["open_files"] == open
    });
    let one = &report["mounts"][0];
    assert_eq!((code, report["mounts"].as_array().unwrap().len()), (Some(0), 1));
    assert_eq!((&one["state"], &one["bucket"]), (&"serving".into(), &BUCKET.into()));
    assert_eq!((&one["mount_point"], &one["prefix"]), (&dir.into(), &"".into()));
    assert_eq!(one["uploads"], serde_json::json!([{ "key": "new", "bytes": 1000, "state": "writing" }]));
    assert!(one["flags"].as_array().unwrap().contains(&"--allow-delete".into()), "{one}");
    assert_eq!(one["disk_cache"]["directory"], cache_dir);
    assert!(one["requests"]["fuse"].as_u64() > Some(3) && one["requests"]["s3"].as_u64() > Some(1), "{one}");
    assert!(one["memory"]["rss_bytes"].as_u64() > Some(1 << 20), "{one}");
    assert!(
        !report.to_string().contains(Store::SECRET_KEY) && !report.to_string().contains(Store::ACCESS_KEY)
    );
    drop(writing);
    drop(reading);

    // A mount on a busy machine may take longer than it is given.
    let (below, mut text) = (mount.path("a/b/c"), String::new());
    until("a path below is in the mount, too", || {
        (code, text, _) = end(&mut ctl(here.path(), &["status", below.to_str().unwrap()]));
        code == Some(0)
    });
    assert!(text.starts_with(&format!("{BUCKET} at {dir}\n")), "{text}");
    let (code, all) = json(here.path(), &["status", "--json"]);
    let mounts = all["mounts"].as_array().unwrap();
    assert!(code.is_some() && mounts.iter().any(|mount| mount["mount_point"] == dir), "{all}");

    // A request that fails for good is among the last errors.
    store.put("gone-wrong", b"bytes".to_vec());
    let denied = Effect::Error { status: 403, code: "AccessDenied".to_owned() };
    store.faults().add(Fault::on("GetObject", denied));
    assert!(fs::read(mount.path("gone-wrong")).is_err());
    until("the error is reported", || {
        json(here.path(), &["status", "--json", dir]).1["mounts"][0]["errors"]
            .to_string()
            .contains("gone-wrong")
    });

    let path = socket(here.path()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(get(&path, "/status").contains(BUCKET));
    drop(mount);
    assert_eq!(socket(here.path()), None, "the socket goes with the mount");
}

#[test]
fn an_empty_runtime_dir_counts_as_unset() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path().to_str().unwrap();
    // The store's variable is of no command but `doctor`.
    let mut command = ctl(Path::new(""), &["status", dir]);
    let (code, _, error) = end(command.env("AWS_ENDPOINT_URL_S3", "http://store"));
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("is in no mount of mount-s3"), "{error}");
}

#[test]
fn a_mount_that_hangs_is_said_to_hang_and_nothing_waits_for_it() {
    let (store, here) = (Store::new(), tempfile::tempdir().unwrap());
    let Some(mount) = mount(&store, here.path(), &[]) else { return };
    let dir = mount.dir().to_str().unwrap();
    // The socket is there a moment before the file beside it, which names the mount.
    until("it can be asked", || is_served(here.path(), dir));
    mount.signal(Signal::STOP);
    // On a busy machine a thread of it may answer once more.
    until("it is stopped", || end(&mut ctl(here.path(), &["status", dir])).0 == Some(1));
    let (code, text, _) = end(&mut ctl(here.path(), &["status", dir]));
    let (_, report) = json(here.path(), &["status", "--json", dir]);
    mount.signal(Signal::CONT);
    assert_eq!(code, Some(1));
    assert!(text.contains("HANGS") && text.contains("does not answer") && text.contains(BUCKET), "{text}");
    assert_eq!(report["mounts"][0]["state"], "hangs");
    until("it serves again", || end(&mut ctl(here.path(), &["status", dir])).0 == Some(0));
}

#[test]
fn a_hung_mount_without_a_socket_is_named_and_nothing_waits_for_it() {
    let (store, here) = (Store::new(), tempfile::tempdir().unwrap());
    let Some(mount) = mount(&store, here.path(), &[]) else { return };
    let dir = mount.dir().to_str().unwrap();
    until("it can be asked", || is_served(here.path(), dir));
    let folder = here.path().join("mount-s3");
    fs::remove_dir_all(&folder).unwrap();
    // Another process looks, and a busy machine may take longer for both than they are given.
    until("it answers", || {
        let (code, report) = json(here.path(), &["status", "--json", dir]);
        (code, &report["mounts"][0]["answers"]) == (Some(0), &true.into())
    });
    mount.signal(Signal::STOP);
    // On a busy machine a thread of it may answer once more.
    until("it is stopped", || end(&mut ctl(here.path(), &["status", dir])).0 == Some(1));
    let (_, report) = json(here.path(), &["status", "--json", dir]);
    mount.signal(Signal::CONT);
    let state = serde_json::json!({ "state": "silent", "mount_point": dir, "answers": false });
    assert_eq!(report["mounts"][0], state);
    until("it serves again", || end(&mut ctl(here.path(), &["status", dir])).0 == Some(0));
}

#[test]
fn a_mount_without_a_process_is_named_and_its_socket_is_removed() {
    let (store, here) = (Store::new(), tempfile::tempdir().unwrap());
    let Some(mut mount) = mount(&store, here.path(), &[]) else { return };
    let dir = mount.dir().to_str().unwrap().to_owned();
    // The directory shows as mounted a moment before the socket is there.
    until("it can be asked", || is_served(here.path(), &dir));
    mount.kill_9();
    assert!(socket(here.path()).is_some(), "a killed process leaves it");
    let status = || end(&mut ctl(here.path(), &["status", &dir]));
    let is_gone = |text: &str| text.contains("GONE") && text.contains(&format!("umount -l {dir}"));
    let (code, text, _) = status();
    assert_eq!(code, Some(1));
    assert!(is_gone(&text), "{text}");
    assert_eq!(socket(here.path()), None);
    // Without its socket another process looks, and a busy machine may take longer for that than it is given.
    until("it is gone without its socket, too", || {
        let (code, text, _) = status();
        code == Some(1) && is_gone(&text)
    });
    until("it is gone in JSON, too", || {
        json(here.path(), &["status", "--json", &dir]).1["mounts"][0]["state"] == "gone"
    });
    run(Command::new("umount").arg("-l").arg(&dir));
    let (code, _, error) = end(&mut ctl(here.path(), &["status", &dir]));
    assert_eq!(code, Some(1));
    assert!(error.contains("is in no mount of mount-s3"), "{error}");
}

#[test]
fn another_users_mount_is_named_without_its_state_despite_allow_other() {
    if !need("root", rustix::process::geteuid().is_root()) || !need_tool("setpriv") || !need_tool(PYTHON) {
        return;
    }
    let (store, here) = (Store::new(), tempfile::tempdir().unwrap());
    let Some(mount) = mount(&store, here.path(), &["--allow-other"]) else { return };
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    open(here.path());
    open(mount.dir().parent().unwrap());
    let dir = mount.dir().to_str().unwrap();
    // The directory shows as mounted a moment before the socket is there.
    until("root can ask it", || end(&mut ctl(here.path(), &["status", dir])).0 == Some(0));
    let nobody = |program: &std::ffi::OsStr| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
        command
    };
    // This user may run it there. Another process writes it: a neighbour's child would hold a file that this one writes until its exec,
    // and what is held for writing can't be started.
    let copied = here.path().join("mount-s3-ctl");
    run(Command::new("cp").args(["-p", env!("CARGO_BIN_EXE_mount-s3-ctl")]).arg(&copied));
    let (code, text, error) =
        end(nobody(copied.as_os_str()).args(["status", dir]).env("XDG_RUNTIME_DIR", here.path()));
    assert_eq!(code, Some(1), "{text}{error}");
    assert!(
        text.contains("NOT YOURS") && text.contains("user 0 mounted it") && !text.contains(BUCKET),
        "{text}"
    );

    // Even if the mode let others in, the kernel names the user that asks.
    let socket = socket(here.path()).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let script = "
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
answer = b''
try:
    s.sendall(b'GET /status HTTP/1.0\\r\\n\\r\\n')
    answer = s.recv(10)
except OSError:
    pass
print(len(answer))
";
    let asked = run(nobody(PYTHON.as_ref()).args(["-c", script]).arg(&socket));
    assert_eq!(String::from_utf8(asked.stdout).unwrap(), "0\n", "an answer came");
    assert!(get(&socket, "/status").contains(BUCKET), "root is answered");
}

#[test]
fn top_draws_the_state_in_a_terminal_and_ends_by_a_key() {
    if !need_tool("script") {
        return;
    }
    let (store, here) = (Store::new(), tempfile::tempdir().unwrap());
    store.plant("file", &Pattern(1).bytes(0, LEN));
    let Some(mount) = mount(&store, here.path(), &[]) else { return };
    assert_eq!(fs::read(mount.path("file")).unwrap().len(), LEN);
    let dir = mount.dir().to_str().unwrap();
    // The directory shows as mounted a moment before the socket is there.
    until("it can be asked", || is_served(here.path(), dir));
    let (code, _, error) = end(&mut ctl(here.path(), &["top", dir]));
    assert_eq!(code, Some(1));
    assert!(error.contains("top needs a terminal"), "{error}");

    let line = format!("stty cols 90 rows 40; exec {} top {dir}", env!("CARGO_BIN_EXE_mount-s3-ctl"));
    let mut terminal = Command::new("script")
        .args(["-qefc", &line, "/dev/null"])
        .env("XDG_RUNTIME_DIR", here.path())
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keys, mut screen) = (terminal.stdin.take(), terminal.stdout.take().unwrap());
    let drawn = std::thread::spawn(move || {
        let (mut drawn, begun) = (Vec::new(), Instant::now());
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = screen.read(&mut piece) {
            drawn.extend_from_slice(&piece[..n]);
            let text = String::from_utf8_lossy(&drawn);
            // A busy mount may answer too late for the first picture, and count the request a moment after its bytes were read.
            let is_whole = text.split_once("GetObject").is_some_and(|(_, rest)| rest.contains("q ends"));
            let is_late = text.contains("q ends") && begun.elapsed() > testkit::until::LIMIT;
            // The end is closed with it: `script` may wait for more keys after its command ended.
            if (is_whole || is_late)
                && let Some(mut keys) = keys.take()
            {
                let _ = keys.write_all(b"q").and_then(|()| keys.flush());
            }
        }
        String::from_utf8_lossy(&drawn).into_owned()
    });
    let ended = terminal.wait().unwrap();
    let drawn = drawn.join().unwrap();
    assert!(ended.success(), "{drawn}");
    for part in [BUCKET, "programs read", "p99 <= ms", "GetObject", "\x1b[?25h"] {
        assert!(drawn.contains(part), "{part:?} is not in {drawn:?}");
    }
}
