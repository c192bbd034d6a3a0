//! Programs duplicate and inherit the descriptors of a file and close them one by one. Another open in the middle does no harm, and the
//! store gets every byte.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use s3server::{Effect, Fault};

use super::released::MANY;
use super::semantics::assert_errno;
use crate::common::{Pattern, Setup, Store, TestMount, need, need_tool, python, until};

/// Number of lines in one half of the file, and the bytes of one line.
const LINES: usize = 100;
const LINE: usize = 3072;
const HALF: usize = LINES * LINE;

/// Ways to write a file: each script copies its standard input, two halves, to `$0`. `@` is the bytes of a half. Some report on standard
/// error that the first half is written.
const WAYS: [(&str, &str); 10] = [
    ("redirection", "cat >\"$0\""),
    ("group", "( head -c @; echo half >&2; cat ) >\"$0\""),
    ("braces", "{ head -c @; echo half >&2; cat; } >\"$0\""),
    ("exec", "exec 3>\"$0\"; head -c @ >&3; echo half >&2; cat >&3; exec 3>&-"),
    ("dup", "exec 3>\"$0\" 4>&3; head -c @ >&3; exec 4>&-; echo half >&2; cat >&3; exec 3>&-"),
    ("builtin", "exec 3>\"$0\"; while IFS= read -r line; do echo \"$line\" >&3; done; exec 3>&-"),
    ("fork", "while IFS= read -r line; do echo \"$line\"; (:); done >\"$0\""),
    ("dd", "exec dd of=\"$0\" bs=3k iflag=fullblock status=none"),
    ("tee", "exec tee \"$0\" >/dev/null"),
    ("python", PYTHON),
];

/// Forks a child for every tenth line; the child writes the line and ends.
const PYTHON: &str = r#"exec python3 -c '
import os, sys
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
for number, line in enumerate(sys.stdin.buffer):
    if number % 10:
        os.write(out, line)
    elif os.fork() == 0:
        os.write(out, line)
        os._exit(0)
    else:
        os.wait()
os.close(out)
' "$0""#;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Newcomer {
    Nobody,
    Reader,
    Writer,
}

fn text(seed: u64) -> Vec<u8> {
    let mut bytes = Pattern(seed).bytes(0, 2 * HALF);
    for line in bytes.chunks_mut(LINE) {
        let (end, line) = line.split_last_mut().unwrap();
        line.iter_mut().for_each(|byte| *byte = b'a' + *byte % 26);
        *end = b'\n';
    }
    bytes
}

fn start(script: &str, path: &Path) -> Child {
    let mut command = Command::new("bash");
    command.args(["-c", &script.replace('@', &HALF.to_string())]).arg(path);
    command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn is_there(way: &str) -> bool {
    let program = match way {
        "python" => "python3",
        _ => return true,
    };
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Writes the file in one of these ways, and opens it in the middle.
fn write(mount: &TestMount, (way, script): (&str, &str), newcomer: Newcomer) {
    let what = format!("{way}, {newcomer:?}");
    let path = mount.path(&format!("{way}-{newcomer:?}"));
    let bytes = text(way.len() as u64);
    let mut child = start(script, &path);
    let (mut stdin, mut stderr) = (child.stdin.take().unwrap(), child.stderr.take().unwrap());
    stdin.write_all(&bytes[..HALF]).unwrap();
    until("half of it is written", || fs::metadata(&path).is_ok_and(|meta| meta.len() == HALF as u64));
    if script.contains("half") {
        let mut said = [0; 5];
        stderr.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"half\n", "{what}");
    }
    match newcomer {
        Newcomer::Nobody => {}
        Newcomer::Reader => assert_errno(File::open(&path), Errno::PERM),
        Newcomer::Writer => assert_errno(File::create(&path), Errno::PERM),
    }
    let went_on = stdin.write_all(&bytes[HALF..]);
    drop(stdin);
    let status = child.wait().unwrap();
    let mut said = String::new();
    stderr.read_to_string(&mut said).unwrap();
    assert!(went_on.is_ok() && status.success(), "{what}: {went_on:?}, {status}: {said}");
    let stored = mount.store().get(path.file_name().unwrap().to_str().unwrap());
    let stored = stored.unwrap_or_else(|| panic!("{what}: nothing is stored"));
    assert!(stored == bytes, "{what}: {} of {} bytes are stored", stored.len(), bytes.len());
    assert!(fs::read(&path).unwrap() == bytes, "{what}: not what was written");
}

#[test]
fn an_open_in_the_middle_is_refused_and_the_writer_loses_no_byte() {
    let Some(mount) = TestMount::new(&["--allow-overwrite"]) else { return };
    std::thread::scope(|scope| {
        for way in WAYS.into_iter().filter(|(way, _)| is_there(way)) {
            for newcomer in [Newcomer::Nobody, Newcomer::Reader, Newcomer::Writer] {
                let mount = &mount;
                scope.spawn(move || write(mount, way, newcomer));
            }
        }
    });
    assert_eq!(mount.store().pending_uploads(), 0);
}

#[test]
fn a_child_can_not_write_after_its_parents_close_and_the_file_is_stored() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let mut file = File::create_new(mount.path("file")).unwrap();
    file.write_all(b"promised\n").unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", "read go; echo late"]).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.stdout(file.try_clone().unwrap()).spawn().unwrap();
    drop(command);
    let closed = rustix::io::dup(&file).unwrap();
    drop(closed);
    assert_eq!(mount.store().get("file"), None, "its process has another descriptor of it");
    drop(file);
    assert_eq!(mount.store().get("file").unwrap(), b"promised\n");
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"promised\n", "it can be read beside the child");
    drop(child.stdin.take());
    assert!(!child.wait().unwrap().success(), "its write should have failed with EBADF");
    assert_eq!(mount.store().get("file").unwrap(), b"promised\n");
}

#[test]
fn a_child_that_has_written_goes_on_when_its_parent_closes_the_file() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let path = mount.path("file");
    let file = File::create_new(&path).unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", "echo first; read -r go; echo last"]).stdin(Stdio::piped());
    let mut child = command.stdout(file.try_clone().unwrap()).spawn().unwrap();
    drop(command);
    until("the child has written", || fs::metadata(&path).is_ok_and(|meta| meta.len() == 6));
    drop(file);
    assert_eq!(mount.store().get("file"), None, "the child writes it");
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read(&path).unwrap(), b"first\nlast\n");
    assert_eq!(mount.store().get("file").unwrap(), b"first\nlast\n");
}

/// A program that writes by a thread that has ended when its parent closes the file.
const THREADED: &str = "
import os, sys, threading
thread = threading.Thread(target=lambda: os.write(1, b'first '))
thread.start()
thread.join()
os.write(2, b'joined')
os.close(2)
sys.stdin.readline()
os.write(1, b'last')
";

#[test]
fn a_child_whose_writing_thread_ended_continues_after_its_parents_close() {
    let Some(mount) = TestMount::new(&[]) else { return };
    if !need_tool("python3") {
        return;
    }
    let path = mount.path("file");
    let file = File::create_new(&path).unwrap();
    let mut command = Command::new("python3");
    command.args(["-c", THREADED]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.stdout(file.try_clone().unwrap()).spawn().unwrap();
    drop(command);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "joined");
    drop(file);
    assert_eq!(mount.store().get("file"), None, "the child writes it");
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read(&path).unwrap(), b"first last");
    assert_eq!(mount.store().get("file").unwrap(), b"first last");
}

/// The opener ends before the first byte. Its heir writes, and starts children; one of them gets the number of the opener.
const SUCCESSOR: &str = "
import time
opened, opener = os.pipe(), os.fork()
if opener == 0:
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    number = os.getpid()
    if os.fork() == 0:
        while True:
            try:
                os.kill(number, 0)
            except ProcessLookupError:
                break
            time.sleep(0.01)
        says('first', lambda: os.write(file, b'first '))
        for _ in range(1000):
            with open('/proc/sys/kernel/ns_last_pid', 'w') as last:
                last.write(str(number - 1))
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            if child == number:
                break
        else:
            print('the number was never free')
        says('last', lambda: os.write(file, b'last'))
        says('close', lambda: os.close(file))
        sys.stdout.flush()
    os._exit(0)
os.waitpid(opener, 0)
os.close(opened[1])
os.read(opened[0], 1)
";

#[test]
fn a_process_with_a_reused_number_does_not_store_the_file_by_its_end() {
    const LAST: &str = "/proc/sys/kernel/ns_last_pid";
    let may = File::options().write(true).open(LAST).is_ok();
    if !need(&format!("{LAST}, to choose the number of a process"), may) || !need_tool("python3") {
        return;
    }
    let Some(mount) = TestMount::new(&[]) else { return };
    assert_eq!(python(SUCCESSOR, &mount.path("file"), &[]), "first ok\nlast ok\nclose ok\n");
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"first last");
    assert_eq!(mount.store().get("file").unwrap(), b"first last");
}

#[test]
fn a_close_beside_an_o_path_descriptor_says_that_it_was_not_stored() {
    let Some(mount) = TestMount::new(&[]) else { return };
    if !need_tool("python3") {
        return;
    }
    let denied = Effect::Error { status: 403, code: "AccessDenied".to_owned() };
    mount.store().faults().add(Fault::on("PutObject", denied).key("file"));
    let script = "
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
path = os.open(sys.argv[1], os.O_PATH)
os.write(file, b'never stored')
says('close', lambda: os.close(file))
";
    assert_eq!(python(script, &mount.path("file"), &[]), "close EACCES\n");
    assert_eq!(mount.store().get("file"), None);
}

/// Starts programs that inherit new files, as the only processes that have them open, write and end.
fn inheritors(mount: &TestMount, names: &[String]) {
    let children: Vec<_> = names
        .iter()
        .map(|name| {
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped()).stdout(File::create_new(mount.path(name)).unwrap());
            command.spawn().unwrap()
        })
        .collect();
    for mut child in children {
        child.stdin.take().unwrap().write_all(&text(7)).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_file_closed_last_by_another_process_is_stored_at_an_unmount() {
    let names: Vec<_> = (0..8).map(|i| format!("file{i}")).collect();
    let Some(mount) = TestMount::new(&[]) else { return };
    let store = std::sync::Arc::clone(mount.store());
    inheritors(&mount, &names);
    drop(mount);
    for name in &names {
        assert!(store.get(name).is_some_and(|stored| stored == text(7)), "{name} is not stored whole");
    }
}

/// The writer closed a duplicate after its last byte, as each redirected builtin of a shell does.
#[test]
fn a_forced_unmount_or_abort_of_a_half_written_file_keeps_the_old_object() {
    for how in ["umount -f", "umount -l -f", "abort"] {
        let store = Store::new();
        store.plant("old", &Pattern(1).bytes(0, 3_000_000));
        let Some(mut mount) = TestMount::of(&store, &Setup::new(&["--allow-overwrite"])) else { return };
        if !need("root, to unmount by force", rustix::process::geteuid().is_root()) {
            return;
        }
        let script = r#"exec 3>"$0"; head -c 1000000 /dev/zero >&3; echo; read -r _; exec 3>&-"#;
        let mut writer = Command::new("bash");
        writer.args(["-c", script]).arg(mount.path("old")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut writer = writer.spawn().unwrap();
        writer.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        match how {
            "abort" => assert!(mount.abort()),
            _ => {
                let words: Vec<_> = how.split(' ').collect();
                let status = Command::new(words[0]).args(&words[1..]).arg(mount.dir()).status().unwrap();
                assert_eq!(status.success(), how.contains("-l"), "{how}: {status}");
            }
        }
        let ended = mount.end();
        drop(writer.stdin.take());
        writer.wait().unwrap();
        assert!(ended.success(), "{how}: {ended}");
        let stored = store.get("old").map(|stored| stored.len());
        assert_eq!(stored, Some(3_000_000), "{how}:\n{}", mount.log());
        assert!(mount.log().contains("not stored: the file was still open"), "{how}:\n{}", mount.log());
    }
}

#[test]
fn a_file_last_closed_by_another_process_can_be_read_at_once() {
    let names: Vec<_> = (0..8).map(|i| format!("file{i}")).collect();
    let Some(mount) = TestMount::new(&[]) else { return };
    inheritors(&mount, &names);
    for name in &names {
        assert!(fs::read(mount.path(name)).unwrap() == text(7), "{name}");
    }
}

#[test]
fn an_open_of_a_file_that_is_being_stored_waits_for_it() {
    let Some(mount) = TestMount::new(&["--allow-overwrite"]) else { return };
    let path = mount.path("file");
    for newcomer in [Newcomer::Reader, Newcomer::Writer] {
        let late = Fault::on("PutObject", Effect::Delay { for_ms: 1_500 }).key("file").times(1);
        mount.store().faults().add(late);
        let fired = mount.store().faults().fired();
        let mut file = File::create(&path).unwrap();
        file.write_all(b"first").unwrap();
        let closing = std::thread::spawn(move || drop(file));
        until("it is being stored", || mount.store().faults().fired() > fired);
        match newcomer {
            Newcomer::Reader => assert_eq!(fs::read(&path).unwrap(), b"first"),
            _ => {
                let mut second = File::create(&path).unwrap();
                assert_eq!(mount.store().get("file").unwrap(), b"first");
                second.write_all(b"second").unwrap();
                drop(second);
                assert_eq!(mount.store().get("file").unwrap(), b"second");
            }
        }
        closing.join().unwrap();
    }
}

/// Makes files and reads them at once from another process.
fn are_read_at_once(mount: &TestMount, rounds: usize) {
    let source = mount.scratch("source");
    fs::write(&source, text(1)).unwrap();
    for i in 0..rounds {
        let script = "touch \"$0-empty\" && cat \"$0-empty\" && cp \"$1\" \"$0-full\" && cat \"$0-full\"";
        let mut command = Command::new("bash");
        command.args(["-c", script]).arg(mount.path(&format!("file{i}"))).arg(&source);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{i}: {}: {said}", output.status);
        assert!(output.stdout == text(1), "{i}: {} bytes", output.stdout.len());
        assert_eq!(mount.store().get(&format!("file{i}-empty")).unwrap(), b"");
    }
}

#[test]
fn another_process_can_read_a_file_at_once_after_its_last_close() {
    let Some(mount) = TestMount::new(&[]) else { return };
    are_read_at_once(&mount, 20);
}

#[test]
fn a_file_is_readable_right_after_close_while_many_readers_wait() {
    const STALLED: usize = 256 << 10;
    let store = Store::new();
    for i in 0..MANY {
        store.plant(&format!("stalled{i}"), &Pattern(1).bytes(0, STALLED));
    }
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    let files: Vec<_> = (0..MANY).map(|i| File::open(mount.path(&format!("stalled{i}"))).unwrap()).collect();
    store.faults().add(Fault::on("GetObject", Effect::Delay { for_ms: 5_000 }).key("stalled"));
    let threads = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for mut file in files {
            let threads = &threads;
            scope.spawn(move || {
                threads.lock().unwrap().push(rustix::thread::gettid());
                // Exactly its length: to read further the kernel would ask for the attributes first.
                let mut bytes = vec![0; STALLED];
                file.read_exact(&mut bytes).unwrap();
                assert!(Pattern(1).is(0, &bytes));
            });
        }
        until("each of them waits for a page, or has it on a slow machine", || {
            let threads = threads.lock().unwrap();
            let waits = |thread: &rustix::process::Pid| {
                let stat = fs::read_to_string(format!("/proc/self/task/{}/stat", thread.as_raw_nonzero()));
                stat.map_or(true, |stat| stat.contains(") D "))
            };
            threads.len() == MANY && threads.iter().all(waits)
        });
        are_read_at_once(&mount, 1);
    });
}
