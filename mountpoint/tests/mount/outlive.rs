//! A mount that outlives its engine: a holder keeps device and journal, the engine is killed, and the next one goes on.

mod fio;
mod holder;
mod unanswered;
mod upgrade;
mod writing;

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use holder::Holder;
use mountpoint::outlive::{Agreed, Greeting, Journal, Restored};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use s3server::{Effect, Fault};

use crate::common::front::Front;
use crate::common::{Pattern, Setup, Store, command, is_mounted, need, until};

/// Kills of one test. `MOUNT_S3_KILLS` names another number, for a longer look by hand.
const KILLS: usize = 50;
/// The least time between two kills.
const BETWEEN: Duration = Duration::from_millis(150);

fn kills() -> usize {
    std::env::var("MOUNT_S3_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number"))
}

/// Works in rounds until the test says `stop`, and notes each round.
const READER: &str = r#"
kind = arguments[0]
names = sorted(os.listdir(f'{local}/expected'))
right = {name: expected(name) for name in names}
listed = sorted(os.listdir(f'{local}/names'))
def check(name, at, got, what):
    want = right[name][at:at + len(got)]
    assert got and got == want, f'{what}: wrong bytes of {name} at {at}'
def whole(path, name, flags=0):
    fd = os.open(path, os.O_RDONLY | flags)
    drop(fd)
    got = b''
    while piece := os.read(fd, 70000):
        got += piece
    os.close(fd)
    assert got == right[name], f'wrong bytes of {name}: {len(got)}'
os.chdir(f'{mount}/d' if kind == 'cwd' else local)
held = {name: os.open(f'{mount}/d/{name}', os.O_RDONLY) for name in names} if kind == 'held' else {}
def mapped(name):
    fd = os.open(f'{mount}/d/{name}', os.O_RDONLY)
    drop(fd)
    mapping = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    at = random.randrange(len(right[name]) - 5000)
    check(name, at, mapping[at:at + 5000], 'mmap')
    mapping.close()
    os.close(fd)
def direct(name):
    fd = os.open(f'{mount}/d/{name}', os.O_RDONLY | os.O_DIRECT)
    room = mmap.mmap(-1, 1 << 16)
    at = random.randrange(len(right[name]) >> 12) << 12
    n = os.preadv(fd, [room], at)
    check(name, at, room[:n], 'O_DIRECT')
    os.close(fd)
def one_of_held(name):
    drop(held[name])
    at = random.randrange(len(right[name]) - 5000)
    check(name, at, os.pread(held[name], 5000, at), 'held')
    assert os.fstat(held[name]).st_size == len(right[name])
def walk():
    seen = [len(files) for _, _, files in os.walk(f'{mount}/d')]
    assert seen == [len(names)], seen
def listing():
    entries = os.scandir(f'{mount}/many')
    got = []
    for entry in entries:
        got.append(entry.name)
        if len(got) % 100 == 0:
            time.sleep(0.004)
            step()
    assert sorted(got) == listed, f'a listing of {len(got)} names, {len(set(got))} of them different'
rounds = 0
def step():
    global rounds
    rounds += 1
    with open(f'{local}/round.{kind}.new', 'w') as note:
        note.write(str(rounds))
    os.rename(f'{local}/round.{kind}.new', f'{local}/round.{kind}')
while not os.path.exists(f'{local}/stop'):
    name = random.choice(names)
    if kind in ('whole', 'cwd', 'bound'):
        whole({'whole': f'{mount}/d/{name}', 'cwd': name, 'bound': f'{local}/bound/{name}'}[kind], name)
    elif kind == 'walk':
        walk()
        assert os.stat(f'{mount}/d/{name}').st_size == len(right[name])
    elif kind == 'listing':
        listing()
    else:
        {'mapped': mapped, 'direct': direct, 'held': one_of_held}[kind](name)
    step()
print(rounds, 'rounds')
"#;

const KINDS: [&str; 8] = ["whole", "cwd", "bound", "walk", "listing", "mapped", "direct", "held"];

/// Kills engines under readers of every kind. Every reader gets on between two kills.
fn kills_under_readers(options: &[&str]) {
    let Some(mut holder) = Holder::new(options) else { return };
    let folder = holder.folder.path().to_owned();
    let at = |name: &str| folder.join(name);
    fs::create_dir_all(at("expected")).unwrap();
    fs::create_dir_all(at("names")).unwrap();
    for i in 0..6 {
        let bytes = Pattern(i).bytes(0, 1_500_000 + i as usize * 300_001);
        holder.store.plant(&format!("d/file-{i}"), &bytes);
        fs::write(at(&format!("expected/file-{i}")), bytes).unwrap();
    }
    for i in 0..1500 {
        holder.store.plant(&format!("many/name-{i}"), b"1");
        fs::write(at(&format!("names/name-{i}")), b"").unwrap();
    }
    let bound = at("bound");
    fs::create_dir(&bound).unwrap();
    holder.start();
    let mut bind = Command::new("mount");
    assert!(bind.arg("--bind").arg(holder.dir.join("d")).arg(&bound).status().unwrap().success());
    let unbind = Unbind(bound);
    let mut programs = KINDS.map(|kind| (kind, holder.program(READER, &[kind])));
    let round = |kind: &str| {
        let note = fs::read_to_string(at(&format!("round.{kind}")));
        note.ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    let mut before: Vec<u64> = KINDS.iter().map(|_| 0).collect();
    let mut pauses = Vec::new();
    let kills = kills();
    let mut get_on = |before: &mut Vec<u64>| {
        until("every reader gets on", || {
            for (kind, program) in &mut programs {
                let ended = program.ended();
                assert!(ended.is_none(), "the reader {kind} ended early: {ended:?}");
            }
            KINDS.iter().zip(before.iter()).all(|(kind, before)| round(kind) > *before)
        });
        *before = KINDS.map(round).to_vec();
    };
    get_on(&mut before);
    let used = usage(&holder);
    for _ in 0..kills {
        let since = Instant::now();
        holder.kill();
        holder.start();
        pauses.push(since.elapsed());
        get_on(&mut before);
        std::thread::sleep(BETWEEN.saturating_sub(since.elapsed()));
    }
    fs::write(at("stop"), b"").unwrap();
    for (kind, program) in programs {
        let said = program.output();
        assert!(said.contains("rounds"), "{kind}: {said}");
    }
    pauses.sort_unstable();
    eprintln!(
        "{kills} kills: ready after {:?} in the median, {:?} at worst",
        pauses[kills / 2],
        pauses[kills - 1]
    );
    drop(unbind);
    // The kernel may remember the two directories, and knows no handle any more.
    until("the journal is as small as before", || {
        let left = records(&holder);
        left.is_some_and(|it| it.files.is_empty() && it.listings.is_empty() && it.directories.len() <= 2)
    });
    eprintln!("the engine at the first kill: {used}, at the end: {}", usage(&holder));
    holder.signal(Signal::TERM);
    assert_eq!(holder.wait().code(), Some(0));
    let complaints = holder.log().lines().filter(|line| line.contains(" ERROR ")).count();
    assert_eq!(complaints, 0);
}

#[test]
fn other_flags_than_at_the_mount_are_a_warning_and_the_mount_goes_on() {
    let Some(mut holder) = Holder::new(&["--read-mode", "buffered"]) else { return };
    holder.store.put("file", "1");
    holder.start();
    let same = holder.setup.options.clone();
    for (mode, warnings) in [("buffered", 0), ("direct", 1), ("buffered", 1)] {
        holder.kill();
        holder.setup.options = same.iter().map(|it| it.replace("buffered", mode)).collect();
        holder.start();
        assert_eq!(holder.runs("print(open(f'{mount}/file').read())"), "1\n");
        let log = holder.log();
        let told = log.lines().filter(|line| line.contains("other flags than at the mount")).count();
        assert_eq!(told, warnings, "after {mode}: {log}");
    }
    assert!(holder.log().lines().any(|line| line.contains(" WARN ") && line.contains("other flags than")));
}

/// The journal's records while an engine serves. `None` while it changes.
fn records(holder: &Holder) -> Option<Restored> {
    let shared = fs::File::from(holder.kept.lock().unwrap()["journal"].try_clone().unwrap());
    let mut bytes = vec![0; usize::try_from(shared.metadata().unwrap().len()).unwrap()];
    shared.read_exact_at(&mut bytes, 0).unwrap();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let copy = fs::File::from(memfd_create("copy", flags).unwrap());
    copy.write_all_at(&bytes, 0).unwrap();
    fcntl_add_seals(&copy, SealFlags::SHRINK).unwrap();
    Journal::adopt(copy.into()).ok().map(|(_, records)| records)
}

/// Descriptors and memory of the engine, in words.
fn usage(holder: &Holder) -> String {
    let of = format!("/proc/{}", holder.engine.as_ref().unwrap().id());
    let descriptors = fs::read_dir(format!("{of}/fd")).unwrap().count();
    let status = fs::read_to_string(format!("{of}/status")).unwrap();
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    format!("{descriptors} descriptors, {}", memory.trim())
}

/// Removes a bind mount.
struct Unbind(PathBuf);

impl Drop for Unbind {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn readers_of_every_kind_see_no_error_over_fifty_killed_engines() {
    kills_under_readers(&["--read-mode", "buffered"]);
}

#[test]
fn readers_of_cached_files_see_no_error_over_fifty_killed_engines() {
    let cache = tempfile::tempdir().unwrap();
    kills_under_readers(&["--read-mode", "buffered", "--cache", cache.path().to_str().unwrap()]);
}

/// The next engine makes no request before its confinement: its first handshake comes after.
#[test]
fn a_confined_engine_after_a_killed_one_trusts_the_systems_roots() {
    let Some(mut holder) = Holder::new(&["--read-mode", "buffered", "--sandbox", "on"]) else { return };
    let front = Front::before(holder.store.address(), &["s3.test"]);
    holder.setup.endpoint = Some("https://s3.test".to_owned());
    for (name, value) in [
        ("HTTPS_PROXY", format!("http://{}", front.address())),
        ("SSL_CERT_FILE", front.ca_bundle().to_str().unwrap().to_owned()),
    ] {
        holder.setup.env.push((name, value));
    }
    reads_in_each_engine(&mut holder);
    assert!(front.hosts().iter().all(|host| host == "s3.test:443"));
}

#[test]
fn a_confined_engine_after_a_killed_one_has_its_credential_process_run() {
    let options = ["--read-mode", "buffered", "--sandbox", "on", "--profile", "p"];
    let Some(mut holder) = Holder::new(&options) else { return };
    holder.store.print_keys("p");
    holder.setup.has_keys = false;
    reads_in_each_engine(&mut holder);
}

/// Has an engine, and the next one after its kill, read a file that neither has read before.
fn reads_in_each_engine(holder: &mut Holder) {
    for name in ["one", "two"] {
        holder.store.put(name, name);
        holder.start();
        let read = format!("print(open(f'{{mount}}/{name}').read())");
        assert_eq!(holder.runs(&read), format!("{name}\n"));
        holder.kill();
    }
    assert_eq!(holder.log().matches("is confined").count(), 2);
}

#[test]
fn a_file_that_is_written_fails_after_a_kill_and_is_stored_nowhere() {
    let Some(mut holder) = Holder::new(&[]) else { return };
    holder.start();
    const WRITER: &str = "
fd = os.open(f'{mount}/new', os.O_WRONLY | os.O_CREAT)
os.write(fd, b'x' * (20 << 20))
other = os.dup(fd)
tells('written')
waits_for('killed')
print(says(lambda: os.write(fd, b'y')), says(lambda: os.fsync(fd)), says(lambda: os.close(other)), says(lambda: os.close(fd)))
print(says(lambda: os.stat(f'{mount}/new')))
fd = os.open(f'{mount}/again', os.O_WRONLY | os.O_CREAT)
os.write(fd, b'again')
os.close(fd)
";
    let program = holder.program(WRITER, &[]);
    until("the file is being written", || holder.folder.path().join("written").exists());
    // The journal has the upload before its first part goes out.
    until("a part goes out", || holder.store.requests().count("UploadPart") > 0);
    holder.kill();
    holder.start();
    fs::write(holder.folder.path().join("killed"), b"").unwrap();
    assert_eq!(program.output(), "EIO EIO EIO EIO\nENOENT\n");
    until("the upload is aborted", || holder.store.pending_uploads() == 0);
    assert_eq!(holder.store.keys(), ["again"]);
}

#[test]
fn an_object_replaced_while_no_engine_serves_is_stale_and_never_mixed() {
    let Some(mut holder) = Holder::new(&["--read-mode", "buffered"]) else { return };
    holder.store.put("file", Pattern(1).bytes(0, 3_000_000));
    holder.start();
    const READER: &str = "
fd = os.open(f'{mount}/file', os.O_RDONLY)
first = os.pread(fd, 4096, 0)
tells('open')
waits_for('replaced')
drop(fd)
print(says(lambda: os.pread(fd, 4096, 2 << 20)), os.fstat(fd).st_size)
os.close(fd)
print(os.stat(f'{mount}/file').st_size, hashlib.md5(open(f'{mount}/file', 'rb').read()).hexdigest() == hashlib.md5(open(f'{local}/right', 'rb').read()).hexdigest())
";
    let program = holder.program(READER, &[]);
    until("the file is open", || holder.folder.path().join("open").exists());
    holder.kill();
    let newer = Pattern(2).bytes(0, 3_000_001);
    holder.store.put("file", newer.clone());
    fs::write(holder.folder.path().join("right"), newer).unwrap();
    holder.start();
    fs::write(holder.folder.path().join("replaced"), b"").unwrap();
    assert_eq!(program.output(), "ESTALE 3000000\n3000001 True\n");
}

#[test]
fn directories_made_here_and_handles_keep_their_numbers_across_engines() {
    let Some(mut holder) = Holder::new(&["--allow-delete"]) else { return };
    holder.store.put("d/file", "1");
    holder.start();
    const PROGRAM: &str = "
os.mkdir(f'{mount}/made')
os.mkdir(f'{mount}/made/below')
os.chdir(f'{mount}/made/below')
d = os.open(f'{mount}/d', os.O_RDONLY)
fd = os.open('file', os.O_RDONLY, dir_fd=d)
os.mkdir(f'{mount}/gone')
os.rmdir(f'{mount}/gone')
numbers = lambda: [os.stat('.').st_ino, os.stat('..').st_ino, os.fstat(d).st_ino, os.fstat(fd).st_ino, os.stat('.').st_mtime_ns]
before = numbers()
for turn in range(3):
    tells(f'turn-{turn}')
    waits_for(f'next-{turn}')
    assert numbers() == before, (numbers(), before)
    assert says(lambda: os.stat(f'{mount}/gone')) == 'ENOENT'
    assert os.listdir(f'{mount}/made') == ['below'] and os.read(os.open('file', os.O_RDONLY, dir_fd=d), 9) == b'1'
    with open(f'new-{turn}', 'w') as file:
        file.write('stored')
print(sorted(os.listdir('.')))
";
    let program = holder.program(PROGRAM, &[]);
    for turn in 0..3 {
        until("a turn begins", || holder.folder.path().join(format!("turn-{turn}")).exists());
        holder.kill();
        holder.start();
        fs::write(holder.folder.path().join(format!("next-{turn}")), b"").unwrap();
    }
    assert_eq!(program.output(), "['new-0', 'new-1', 'new-2']\n");
    let keys = ["d/file", "made/below/new-0", "made/below/new-1", "made/below/new-2"];
    assert_eq!(holder.store.keys(), keys);
}

#[test]
fn a_removal_that_was_done_when_the_engine_died_is_not_told_as_a_failure() {
    let Some(mut holder) = Holder::new(&["--allow-delete"]) else { return };
    holder.store.put("file", "1");
    holder.start();
    holder.store.faults().add(Fault::on("DeleteObject", Effect::Hold));
    let removes = holder.program("print(says(lambda: os.unlink(f'{mount}/file')))", &[]);
    until("the object is gone", || holder.store.keys().is_empty());
    holder.kill();
    holder.start();
    assert_eq!(removes.output(), "None\n");
    holder.store.faults().clear();
    assert_eq!(holder.runs("print(says(lambda: os.unlink(f'{mount}/file')))"), "ENOENT\n");
}

#[test]
fn a_request_that_three_engines_ended_with_is_answered_with_an_error() {
    let Some(mut holder) = Holder::new(&["--read-mode", "buffered"]) else { return };
    holder.store.put("file", Pattern(1).bytes(0, 20_000_000));
    holder.start();
    const READER: &str = "
fd = os.open(f'{mount}/file', os.O_RDONLY | os.O_DIRECT)
room = mmap.mmap(-1, 4096)
tells('open')
waits_for('go')
print(says(lambda: os.preadv(fd, [room], 15 << 20)))
";
    let program = holder.program(READER, &[]);
    until("the file is open", || holder.folder.path().join("open").exists());
    let before = holder.store.faults().fired();
    holder.store.faults().add(Fault::on("GetObject", Effect::Hold));
    fs::write(holder.folder.path().join("go"), b"").unwrap();
    for turn in 1..=3 {
        until("an engine asks for the bytes", || holder.store.faults().fired() >= before + turn);
        holder.kill();
        holder.start();
    }
    assert_eq!(program.output(), "EIO\n");
    assert!(holder.log().contains("three engines"), "{}", holder.log());
    holder.store.faults().clear();
    let said = holder.runs("print(len(open(f'{mount}/file', 'rb').read()))");
    assert_eq!(said, "20000000\n");
}

#[test]
fn a_second_engine_is_refused_while_the_first_one_lives_or_is_stopped() {
    let Some(mut holder) = Holder::new(&[]) else { return };
    holder.store.put("file", "1");
    holder.start();
    for stop in [false, true] {
        if stop {
            holder.signal(Signal::STOP);
        }
        let second = holder.command().status().unwrap();
        assert_eq!(second.code(), Some(3));
        assert!(holder.log().contains("another engine serves this mount"), "{}", holder.log());
    }
    holder.signal(Signal::CONT);
    assert_eq!(holder.runs("print(open(f'{mount}/file').read())"), "1\n");
}

#[test]
fn flags_of_another_mount_are_refused_and_the_right_ones_go_on() {
    let Some(mut holder) = Holder::new(&[]) else { return };
    holder.store.put("file", "1");
    holder.start();
    holder.kill();
    let right = holder.setup.clone();
    holder.setup.options.extend(["--prefix".to_owned(), "other/".to_owned()]);
    assert_eq!(holder.command().status().unwrap().code(), Some(3));
    assert!(holder.log().contains("prefix \\\"other/\\\"") || holder.log().contains("prefix \"other/\""));
    holder.setup = right;
    holder.start();
    assert_eq!(holder.runs("print(open(f'{mount}/file').read())"), "1\n");
}

#[test]
fn a_device_of_another_mount_is_refused_and_the_right_one_goes_on() {
    let (Some(mut one), Some(mut other)) = (Holder::new(&[]), Holder::new(&[])) else { return };
    for (holder, content) in [(&mut one, "1"), (&mut other, "2")] {
        holder.store.put("file", content);
        holder.start();
        holder.kill();
    }
    let kept = |holder: &Holder| holder.kept.lock().unwrap()["fuse"].try_clone().unwrap();
    let (own, foreign) = (kept(&one), kept(&other));
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", own.as_raw_fd())).unwrap();
    if !need("Linux 6.17, which tells the connection of a device", facts.contains("fuse_connection:")) {
        return;
    }
    one.kept.lock().unwrap().insert("fuse".to_owned(), foreign);
    assert_eq!(one.command().status().unwrap().code(), Some(3));
    assert!(one.log().contains("belongs to another mount"), "{}", one.log());
    for (mut holder, device, content) in [(one, Some(own), "1\n"), (other, None, "2\n")] {
        device.into_iter().for_each(|it| drop(holder.kept.lock().unwrap().insert("fuse".to_owned(), it)));
        holder.start();
        assert_eq!(holder.runs("print(open(f'{mount}/file').read())"), content);
    }
}

#[test]
fn an_engine_killed_around_init_leaves_a_mount_that_the_next_one_greets() {
    let Some(mut holder) = Holder::new(&[]) else { return };
    holder.store.put("file", "1");
    // The state before INIT: the engine waits for the answer that its device is kept.
    *holder.silent.lock().unwrap() = true;
    holder.engine = Some(holder.command().spawn().unwrap());
    until("the device is kept", || holder.kept() == 2);
    holder.kill();
    *holder.silent.lock().unwrap() = false;
    let reads = holder.program("print(open(f'{mount}/file').read())", &[]);
    holder.start();
    assert_eq!(reads.output(), "1\n");
    // Just behind the answer: the journal does not know that it was sent.
    for busy in [false, true] {
        holder.kill();
        let reads = busy.then(|| holder.program("print(open(f'{mount}/file').read())", &[]));
        if busy {
            std::thread::sleep(Duration::from_millis(300));
        }
        let shared = holder.kept.lock().unwrap()["journal"].try_clone().unwrap();
        let (journal, _) = Journal::adopt(shared).unwrap();
        journal.agree(Agreed { greeting: Greeting::Answering, ..journal.agreed() }).unwrap();
        drop(journal);
        holder.start();
        if let Some(reads) = reads {
            assert_eq!(reads.output(), "1\n");
        }
        assert_eq!(holder.runs("print(open(f'{mount}/file').read())"), "1\n");
    }
}

#[test]
fn a_mount_goes_on_without_store_and_keys_and_reads_once_they_are_back() {
    let Some(mut holder) = Holder::new(&["--read-mode", "buffered"]) else { return };
    holder.store.put("file", Pattern(1).bytes(0, 100_000));
    holder.start();
    const READER: &str = "
fd = os.open(f'{mount}/file', os.O_RDONLY)
got = os.pread(fd, 4096, 0)
tells('open')
waits_for('without')
print(os.fstat(fd).st_size, os.pread(fd, 4096, 0) == got)
tells('read')
waits_for('with')
drop(fd)
print(len(os.pread(fd, 200000, 0)))
";
    let program = holder.program(READER, &[]);
    until("the file is open", || holder.folder.path().join("open").exists());
    holder.kill();
    holder.setup.has_keys = false;
    holder.start();
    fs::write(holder.folder.path().join("without"), b"").unwrap();
    until("it reads on", || holder.folder.path().join("read").exists());
    holder.kill();
    holder.setup.has_keys = true;
    holder.start();
    fs::write(holder.folder.path().join("with"), b"").unwrap();
    assert_eq!(program.output(), "100000 True\n100000\n");
}

#[test]
fn a_mount_that_is_unmounted_is_let_go_and_the_next_start_mounts_anew() {
    let Some(mut holder) = Holder::new(&[]) else { return };
    holder.store.put("file", "1");
    holder.start();
    assert_eq!(holder.kept(), 2);
    holder.signal(Signal::TERM);
    assert_eq!(holder.wait().code(), Some(0));
    until("the holder lets go", || holder.kept() == 0);
    assert!(!is_mounted(&holder.dir));
    holder.start();
    assert_eq!(holder.runs("print(open(f'{mount}/file').read())"), "1\n");
    // Another process unmounts while no engine serves.
    holder.kill();
    unmount(&holder.dir, UnmountFlags::empty()).unwrap();
    holder.start();
    assert!(is_mounted(&holder.dir));
    assert_eq!(holder.runs("print(open(f'{mount}/file').read())"), "1\n");
}

#[test]
fn programs_get_an_error_at_once_when_the_holder_gives_up() {
    let Some(mut holder) = Holder::new(&[]) else { return };
    holder.store.put("file", "1");
    holder.start();
    const READER: &str = "
fd = os.open(f'{mount}/file', os.O_RDONLY)
tells('open')
waits_for('killed')
drop(fd)
tells('reads')
print(says(lambda: os.pread(fd, 1, 0)))
";
    let program = holder.program(READER, &[]);
    until("the file is open", || holder.folder.path().join("open").exists());
    holder.kill();
    fs::write(holder.folder.path().join("killed"), b"").unwrap();
    until("it reads", || holder.folder.path().join("reads").exists());
    holder.kept.lock().unwrap().clear();
    let said = program.output();
    assert!(["ENOTCONN\n", "ECONNABORTED\n"].contains(&said.as_str()), "{said}");
}

#[test]
fn without_a_holder_the_flag_is_refused_with_the_unit_that_it_needs() {
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    let output = command(&store, dir.path(), &Setup::new(&["--supervised"])).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("FileDescriptorStoreMax=2"), "{said}");
    assert!(!is_mounted(Path::new(dir.path())));
}
