//! Programs that are killed while they wait for a store that hangs, and the files that they were closing.
//!
//! For the engine's own loop only: fuser answers INTERRUPT with ENOSYS.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use s3server::{Effect, Fault};

use super::released::{Cached, MANY};
use crate::common::{Pattern, Setup, Store, TestMount, is_mounted, until};

/// Longer than any test runs: a program that is not interrupted waits until its engine is killed, and the test's next step fails.
const WAITS: [&str; 2] = ["--operation-timeout", "3600"];

/// Longer than the store's answer about a name is valid.
const BELIEVED: Duration = Duration::from_millis(200);

/// The signals by which users end programs; each has its default action, whatever the tests were started with.
const DEADLY: [Signal; 4] = [Signal::KILL, Signal::INT, Signal::TERM, Signal::QUIT];

fn program(words: &[&str], file: &Path) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,TERM,QUIT").args(words).arg(file);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts a program and returns once it waits for a request that a fault struck.
fn start_waiting(store: &Store, command: &mut Command) -> Child {
    let fired = store.faults().fired();
    let mut child = command.spawn().unwrap();
    until("a fault strikes", || {
        let is_struck = store.faults().fired() > fired;
        // An answer that came late on a busy machine is believed still: the program ends, and has asked nothing.
        if !is_struck && child.try_wait().unwrap().is_some() {
            child = command.spawn().unwrap();
        }
        is_struck
    });
    child
}

/// Waits until the thread of this `/proc/.../stat` sleeps for a while: its only reason to sleep is the request.
fn until_it_waits(what: &str, stat: &str) {
    let mut asleep = 0;
    until(what, || {
        let sleeps = fs::read_to_string(stat).is_ok_and(|stat| stat.contains(") S "));
        asleep = if sleeps { asleep + 1 } else { 0 };
        asleep == 40
    });
}

/// Sends a signal that ends the program. The next steps show that it did not wait for the store.
fn ends_by(signal: Signal, mut child: Child) {
    kill_process(Pid::from_child(&child), signal).unwrap();
    let status = child.wait().unwrap();
    let by = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(by, Some(signal.as_raw()), "{signal:?}: it ended by itself: {status}");
}

/// A store that does not answer until its release. It holds repeated requests, too, so that no limit of the engine changes the fate of
/// the request.
fn hold(operation: &str, key: &str) -> Fault {
    Fault::on(operation, Effect::Hold).key(key)
}

#[test]
fn a_killed_program_does_not_wait_for_a_store_that_hangs() {
    let store = Store::new();
    for signal in DEADLY {
        let n = signal.as_raw();
        for name in ["read", "stat", "open"] {
            store.plant(&format!("{name}{n}"), &Pattern(1).bytes(0, 1 << 20));
        }
        store.plant(&format!("dir{n}/file"), b"");
    }
    store.plant("after/file", b"after");
    let Some(mount) = TestMount::of(&store, &Setup::new(&WAITS)) else { return };
    for signal in DEADLY {
        let path = |name: &str| mount.path(&format!("{name}{}", signal.as_raw()));
        // A read through the page cache waits for the page, and there the kernel does not look for a signal that dumps core.
        if signal != Signal::QUIT {
            store.faults().add(hold("GetObject", "read"));
            ends_by(signal, start_waiting(&store, &mut program(&["cat"], &path("read"))));
        }

        // A listing for another look-up is believed for a moment.
        std::thread::sleep(BELIEVED);
        // A mount that has seen look-ups lead to reads asks with the GET of the read, and one that has seen several of a folder lists it.
        store.faults().add(hold("HeadObject", "stat"));
        store.faults().add(hold("GetObject", "stat"));
        store.faults().add(Fault::on("ListObjectsV2", Effect::Hold));
        ends_by(signal, start_waiting(&store, &mut program(&["stat"], &path("stat"))));
        store.faults().clear();

        // An open without a look-up before it: of a file that is open already.
        let script = "exec 3<\"$0\"; read go; exec cat /proc/self/fd/3";
        let mut command = program(&["sh", "-c", script], &path("open"));
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        until("it has the file open", || {
            let link = fs::read_link(format!("/proc/{}/fd/3", child.id()));
            link.is_ok_and(|target| target == path("open"))
        });
        // The mount believes what it knows of a file for a moment; the open must ask, by HEAD where opens came late on a busy machine.
        std::thread::sleep(BELIEVED);
        store.faults().add(hold("GetObject", "open"));
        store.faults().add(hold("HeadObject", "open"));
        let fired = store.faults().fired();
        drop(child.stdin.take());
        until("the open asks the store", || store.faults().fired() > fired);
        ends_by(signal, child);

        fs::metadata(path("dir")).unwrap();
        store.faults().add(Fault::on("ListObjectsV2", Effect::Hold));
        ends_by(signal, start_waiting(&store, &mut program(&["ls"], &path("dir"))));
        store.faults().clear();
    }
    let names: Vec<_> = fs::read_dir(mount.path("after")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["file"], "the mount goes on");
    assert_eq!(fs::read(mount.path("after/file")).unwrap(), b"after");
}

/// The lines of the log about the interrupted storing of this key.
fn lines(mount: &TestMount, key: &str) -> Vec<String> {
    let about = format!("of \"{key}\" was interrupted");
    mount.log().lines().filter(|line| line.contains(&about)).map(str::to_owned).collect()
}

/// A file is written and its program killed in `close` or `fsync`, or on its way out; the store answers long after.
struct Case {
    key: &'static str,
    signal: Signal,
    /// Words of the program before the file.
    words: Vec<String>,
    /// The operation that the store delays.
    operation: &'static str,
    /// The store's answer in the end.
    end: End,
    /// The name of the operation in the log.
    called: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Stores,
    Refuses,
    /// Stores, loses its answer, and refuses the repeated request.
    LosesItsAnswer,
}

#[test]
fn an_interrupted_close_returns_and_the_log_names_the_objects_fate() {
    const SMALL: usize = 1 << 20;
    const LARGE: usize = 20 << 20;
    let Some(mount) = TestMount::with(&Setup::new(&[])) else { return };
    let store = mount.store();
    let source = |len: usize| {
        let path = mount.scratch(&len.to_string());
        fs::write(&path, Pattern(3).bytes(0, len)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cp = |len| vec!["cp".to_owned(), source(len)];
    // dd handles SIGINT, but not SIGQUIT.
    let sync = "exec dd if=\"$0\" of=\"$1\" bs=1M conv=fsync".to_owned();
    let dd = |len| vec!["sh".to_owned(), "-c".to_owned(), sync.clone(), source(len)];
    let (put, complete) = ("PutObject", "CompleteMultipartUpload");
    let case =
        |key, signal, words, operation, end, called| Case { key, signal, words, operation, end, called };
    let (stores, refuses, loses) = (End::Stores, End::Refuses, End::LosesItsAnswer);
    let cases = [
        case("stored/close-kill", Signal::KILL, cp(SMALL), put, stores, "close"),
        case("stored/close-int", Signal::INT, cp(SMALL), put, stores, "close"),
        case("stored/fsync-quit", Signal::QUIT, dd(SMALL), put, stores, "fsync"),
        case("stored/parts-kill", Signal::KILL, cp(LARGE), complete, stores, "close"),
        case("refused/close-kill", Signal::KILL, cp(SMALL), put, refuses, "close"),
        case("refused/parts-int", Signal::INT, cp(LARGE), complete, refuses, "close"),
        case("unclear/close-kill", Signal::KILL, cp(SMALL), put, loses, "close"),
    ];
    fs::create_dir(mount.path("stored")).unwrap();
    fs::create_dir(mount.path("refused")).unwrap();
    fs::create_dir(mount.path("unclear")).unwrap();
    for case in &cases {
        store.faults().add(hold(case.operation, case.key));
        let denied = Effect::Error { status: 403, code: "AccessDenied".to_owned() };
        let denied = Fault::on(case.operation, denied).key(case.key);
        match case.end {
            End::Stores => {}
            End::Refuses => store.faults().add(denied),
            End::LosesItsAnswer => {
                store.faults().add(Fault::on(case.operation, Effect::DropAnswer).key(case.key).times(1));
                store.faults().add(Fault { skip: 1, ..denied });
            }
        }
        let words: Vec<&str> = case.words.iter().map(String::as_str).collect();
        let child = start_waiting(store, &mut program(&words, &mount.path(case.key)));
        ends_by(case.signal, child);
        assert!(lines(&mount, case.key).is_empty(), "it ended with the store, not before: {}", mount.log());
    }

    // A program that closes nothing: a signal kills it with the file open, and the kernel closes the file.
    let left_open = "stored/left-open";
    store.faults().add(hold(put, left_open));
    let mut command = program(&["sh", "-c", "exec cat >\"$0\""], &mount.path(left_open));
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"so far").unwrap();
    until("it has written", || fs::metadata(mount.path(left_open)).is_ok_and(|meta| meta.len() == 6));
    ends_by(Signal::INT, child);
    assert!(lines(&mount, left_open).is_empty(), "it ended with the store, not before: {}", mount.log());

    // An open of the file meanwhile waits for its end, and a read gets all of it.
    let under_way = mount.path("stored/close-kill");
    let (say, said) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        say.send(rustix::thread::gettid()).unwrap();
        fs::read(under_way)
    });
    let reader_stat = format!("/proc/self/task/{}/stat", said.recv().unwrap().as_raw_nonzero());
    until_it_waits("the reader waits in open", &reader_stat);
    store.faults().release();
    for case in &cases {
        until("the log says what became of it", || !lines(&mount, case.key).is_empty());
    }
    until("the log says what became of it", || !lines(&mount, left_open).is_empty());
    let read = reader.join().unwrap().unwrap();
    assert!(read.len() == SMALL && Pattern(3).is(0, &read), "the reader that waited");

    store.faults().clear();
    for case in &cases {
        let said = lines(&mount, case.key);
        let Case { key, called, .. } = *case;
        let what = match case.end {
            End::Stores => "the object was stored (ETag \"",
            End::Refuses => "the object was NOT stored: ",
            End::LosesItsAnswer => "whether the object was stored is not known, ",
        };
        let expected = format!("{called} of \"{key}\" was interrupted; {what}");
        assert!(said.len() == 1 && said[0].contains(&expected), "{expected}: {said:?}");
        if case.end == End::Refuses {
            assert_eq!(store.get(key), None);
            let gone = fs::read(mount.path(key)).unwrap_err();
            assert_eq!(gone.kind(), std::io::ErrorKind::NotFound, "{key}: {gone}");
            fs::write(mount.path(key), b"again").unwrap();
            assert_eq!(store.get(key).unwrap(), b"again", "its name is free again");
        } else {
            let stored = store.get(key).expect("the log says that it is stored");
            assert!(Pattern(3).is(0, &stored), "{key}");
            assert_eq!(fs::read(mount.path(key)).unwrap(), stored, "{key}");
        }
    }
    assert_eq!(lines(&mount, left_open).len(), 1);
    assert_eq!(store.get(left_open).unwrap(), b"so far", "as a local disk would have it");
    assert_eq!(store.pending_uploads(), 0);
}

#[test]
fn many_interrupted_closes_do_not_hold_up_the_reading_of_another_file() {
    let Some(mut cached) = Cached::new() else { return };
    let paths: Vec<_> = (0..MANY).map(|i| cached.mount.path(&format!("of-one-program{i}"))).collect();
    let mut command = program(&["tee"], &paths[0]);
    let mut child = command.args(&paths[1..]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"so far").unwrap();
    until("it has written", || paths.iter().all(|path| fs::metadata(path).is_ok_and(|meta| meta.len() == 6)));
    cached.hang();
    ends_by(Signal::KILL, child);
    cached.is_read();
}

#[test]
fn a_mount_that_ends_waits_for_a_file_whose_close_was_interrupted() {
    let Some(mut mount) = TestMount::with(&Setup::new(&[])) else { return };
    mount.store().faults().add(hold("PutObject", "file"));
    let path = mount.path("file");
    ends_by(
        Signal::KILL,
        start_waiting(mount.store(), &mut program(&["sh", "-c", "echo all >\"$0\""], &path)),
    );
    mount.signal(Signal::TERM);
    until("it is unmounted", || !is_mounted(mount.dir()));
    mount.store().faults().release();
    assert!(mount.end().success());
    let said = lines(&mount, "file");
    assert!(said.len() == 1 && said[0].contains("the object was stored"), "{}", mount.log());
    assert_eq!(mount.store().get("file").unwrap(), b"all\n");
}

#[test]
fn a_killed_program_that_writes_to_a_hanging_store_ends_at_once() {
    let Some(mount) = TestMount::with(&Setup::new(&["--memory-target", "128"])) else { return };
    let store = mount.store();
    store.faults().add(hold("UploadPart", "file"));
    let script = "exec head -c 1G /dev/zero >\"$0\"";
    let child = start_waiting(store, &mut program(&["sh", "-c", script], &mount.path("file")));
    let (mut size, mut since) = (0, Instant::now());
    until("it waits for room", || {
        let now = fs::metadata(mount.path("file")).unwrap().len();
        if now != size {
            (size, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_millis(500)
    });
    ends_by(Signal::INT, child);
    assert!(lines(&mount, "file").is_empty(), "it ended with the store, not before: {}", mount.log());
    store.faults().release();
    until("the log says what became of it", || !lines(&mount, "file").is_empty());
    let said = lines(&mount, "file");
    assert!(said.len() == 1 && said[0].contains("the object was stored"), "{said:?}");
    let stored = fs::read(mount.path("file")).unwrap();
    assert!(stored.len() < 1024 << 20 && stored.iter().all(|byte| *byte == 0), "what was written so far");
}

/// Both programs share one position in the file; the kernel moves it by the result of a write.
#[test]
fn the_next_program_writes_on_behind_one_that_was_killed_while_it_wrote() {
    let Some(mount) = TestMount::with(&Setup::new(&["--memory-target", "128"])) else { return };
    let store = mount.store();
    for (name, redirect) in [("new", ">"), ("appended", ">>")] {
        store.faults().add(hold("UploadPart", name));
        let fired = store.faults().fired();
        let script = format!("(head -c 1G /dev/zero & echo $! >&2; wait $!; echo end) {redirect}\"$0\"");
        let mut command = program(&["sh", "-c", &script], &mount.path(name));
        let mut shell = command.stderr(Stdio::piped()).spawn().unwrap();
        let (mut killed, mut said) = (String::new(), BufReader::new(shell.stderr.take().unwrap()));
        said.read_line(&mut killed).unwrap();
        let killed = killed.trim();
        until("its part is on its way", || store.faults().fired() > fired);
        let waits = Path::new("/proc").join(killed).join("stat");
        until_it_waits("it waits for room", waits.to_str().unwrap());
        kill_process(Pid::from_raw(killed.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
        until("it is gone", || !waits.exists());
        store.faults().release();
        store.faults().clear();
        assert!(shell.wait().unwrap().success(), "{redirect}: {}", mount.log());
        drop(said); // not earlier: the shell writes there that its child was killed
        let stored = fs::read(mount.path(name)).unwrap();
        let (zeros, end) = stored.split_at(stored.len() - 4);
        assert_eq!(end, b"end\n", "{redirect}");
        assert!(zeros.len() > 1 << 20 && zeros.iter().all(|byte| *byte == 0), "{redirect}: {}", zeros.len());
    }
}

/// The case: a look at the file tells the kernel its size, so the program appends behind it.
#[test]
fn a_program_appends_behind_a_killed_writer_after_a_look_at_the_file() {
    let Some(mount) = TestMount::with(&Setup::new(&["--memory-target", "128"])) else { return };
    let store = mount.store();
    store.faults().add(hold("UploadPart", "file"));
    let script = "(head -c 1G /dev/zero & echo $! >&2; wait $!; stat \"$0\" >/dev/null; echo looked >&2; echo end) >>\"$0\"";
    let mut command = program(&["bash", "-c", script], &mount.path("file"));
    let mut shell = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(shell.stderr.take().unwrap()).lines();
    let killed = said.next().unwrap().unwrap();
    until("its part is on its way", || store.faults().fired() > 0);
    let waits = Path::new("/proc").join(&killed).join("stat");
    until_it_waits("it waits for room", waits.to_str().unwrap());
    kill_process(Pid::from_raw(killed.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    // Between them stands that the program was killed.
    assert!(said.by_ref().map(Result::unwrap).any(|line| line == "looked"));
    store.faults().release();
    store.faults().clear();
    assert!(shell.wait().unwrap().success(), "{}", mount.log());
    drop(said);
    let stored = fs::read(mount.path("file")).unwrap();
    let (zeros, end) = stored.split_at(stored.len() - 4);
    assert_eq!(end, b"end\n");
    assert!(zeros.len() > 1 << 20 && zeros.iter().all(|byte| *byte == 0), "{}", zeros.len());
}

#[test]
fn an_open_killed_while_it_waits_leaves_the_file_free_for_the_next() {
    let Some(mount) = TestMount::with(&Setup::new(&["--allow-overwrite"])) else { return };
    let store = mount.store();
    store.faults().add(hold("PutObject", "file"));
    let path = mount.path("file");
    ends_by(Signal::KILL, start_waiting(store, &mut program(&["sh", "-c", "echo first >\"$0\""], &path)));
    // Both programs find a file that is being stored, and wait for the end. (Shells handle SIGINT.)
    for words in [["sh", "-c", "echo second >\"$0\""], ["sh", "-c", "read line <\"$0\""]] {
        let child = program(&words, &path).spawn().unwrap();
        until_it_waits("it waits in open", &format!("/proc/{}/stat", child.id()));
        ends_by(Signal::TERM, child);
    }
    assert!(lines(&mount, "file").is_empty(), "they ended with the store, not before: {}", mount.log());
    store.faults().release();
    until("the log says what became of it", || !lines(&mount, "file").is_empty());
    // The kernel tells of its last descriptor a moment later.
    until("it can be read", || fs::read(&path).is_ok_and(|bytes| bytes == b"first\n"));
    assert_eq!(store.get("file").unwrap(), b"first\n", "the open that was killed stored nothing");
    fs::write(&path, b"third").unwrap();
    assert_eq!(store.get("file").unwrap(), b"third", "and holds no lock");
}

#[test]
fn a_signal_that_a_program_handles_does_not_interrupt_its_file_operations() {
    let store = Store::new();
    store.plant("file", b"1");
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    store.faults().add(hold("HeadObject", "file"));
    let script = "trap 'caught=yes' USR1; test -e \"$0\" && test -n \"$caught\"";
    let mut child = start_waiting(&store, &mut program(&["sh", "-c", script], &mount.path("file")));
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    // The kernel has sent INTERRUPT once the program sleeps so that only deadly signals wake it; the engine reads that before other requests.
    let stat = format!("/proc/{}/stat", child.id());
    until("the request is interrupted", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") D ")));
    fs::read_dir(mount.dir()).unwrap();
    store.faults().release();
    let status = child.wait().unwrap();
    assert!(status.success(), "stat heard EINTR, or the signal never came: {status}");
}
