//! After a refused operation on a file during its writing, no later call reports success, and no half file is stored.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use s3server::{Effect, Fault};

use super::semantics::assert_errno;
use crate::common::{Pattern, Setup, TestMount, need_tool, python, until};

#[test]
fn fsync_and_close_repeat_the_error_of_a_refused_write() {
    let Some(mount) = TestMount::new(&[]) else { return };
    if !need_tool("python3") {
        return;
    }
    let script = "
for end in ['close', 'fsync']:
    file = os.open(sys.argv[1] + end, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    says('pwrite', lambda: os.pwrite(file, b'elsewhere', 50_000_000))
    if end == 'fsync':
        says('fsync', lambda: os.fsync(file))
        says('fsync', lambda: os.fsync(file))
    says('close', lambda: os.close(file))
";
    let said = python(script, &mount.path("file"), &[]);
    let said: Vec<_> = said.lines().collect();
    let one = ["pwrite EINVAL", "close EINVAL"];
    let other = ["pwrite EINVAL", "fsync EINVAL", "fsync EINVAL", "close EINVAL"];
    assert_eq!(said, [&one[..], &other[..]].concat());
    assert_eq!(mount.store().keys(), Vec::<String>::new());
}

#[test]
fn after_a_failed_close_the_name_is_gone_at_once() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let denied = Effect::Error { status: 403, code: "AccessDenied".to_owned() };
    mount.store().faults().add(Fault::on("PutObject", denied).key("file"));
    for i in 0..10 {
        let path = mount.path(&format!("file{i}"));
        let mut file = File::create_new(&path).unwrap();
        file.write_all(b"never stored").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 12, "the kernel hears of it");
        drop(file);
        let gone = fs::metadata(&path).expect_err("its name is still there");
        assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    }
    assert_eq!(fs::read_dir(mount.dir()).unwrap().count(), 0);
}

#[test]
fn a_longer_size_of_a_new_file_is_zeros_and_a_shorter_one_is_refused() {
    let Some(mount) = TestMount::new(&[]) else { return };
    let create = |name: &str| File::create_new(mount.path(name)).unwrap();
    let shown = |name: &str| fs::metadata(mount.path(name)).unwrap().len();
    let longer = create("longer");
    longer.set_len(10).unwrap();
    assert_eq!(shown("longer"), 10, "at once");
    longer.set_len(7).unwrap();
    assert_eq!(shown("longer"), 7);
    longer.sync_all().unwrap();
    drop(longer);
    assert_eq!(mount.store().get("longer").unwrap(), [0; 7]);

    // Programs that know how much they will write do this.
    let followed = create("followed");
    followed.set_len(10).unwrap();
    followed.write_all_at(b"meant", 0).unwrap();
    assert_eq!(shown("followed"), 10);
    assert_errno(followed.set_len(3), Errno::PERM);
    followed.set_len(5).expect("the size that is there");
    drop(followed);
    assert_eq!(mount.store().get("followed").unwrap(), b"meant");

    // `tar` does this with a file that ends in a hole, here one of several parts.
    const LEN: u64 = (20 << 20) + 1;
    for (name, len) in [("hole", 10), ("large", LEN)] {
        let file = create(name);
        file.write_all_at(b"bytes", 0).unwrap();
        file.set_len(len).unwrap();
        file.write_all_at(b" more", 5).unwrap();
        drop(file);
        let stored = mount.store().get(name).unwrap();
        assert_eq!((stored.len() as u64, &stored[..10]), (len, &b"bytes more"[..]), "{name}");
        assert!(stored[10..].iter().all(|byte| *byte == 0), "{name}");
    }
    let shorter = create("shorter");
    shorter.write_all_at(b"bytes", 0).unwrap();
    assert_errno(shorter.set_len(3), Errno::PERM);
    shorter.write_all_at(b"and more", 5).unwrap();
    assert_errno(shorter.sync_all(), Errno::PERM);
    drop(shorter);

    let empty = create("empty");
    empty.set_len(0).expect("the size that is there");
    empty.sync_all().unwrap();
    assert_eq!(mount.store().get("empty").unwrap(), b"");
    until("the refused one is gone", || fs::metadata(mount.path("shorter")).is_err());
    let store = std::sync::Arc::clone(mount.store());
    drop((empty, mount));
    assert_eq!(store.keys(), ["empty", "followed", "hole", "large", "longer"]);
    assert_eq!(store.pending_uploads(), 0);
}

#[test]
fn sizes_and_synced_writes_that_a_new_file_can_not_have_are_refused() {
    let Some(mount) = TestMount::new(&[]) else { return };
    if !need_tool("python3") {
        return;
    }
    let script = "
def truncate(path, size):
    says('%d' % size, lambda: os.truncate(path, size))
path = sys.argv[1]
file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
truncate(path, 0)
truncate(path, 9)
says('written', lambda: os.write(file, b'12345'))
truncate(path, 0)
truncate(path, 9)
truncate(path, 5)
says('close', lambda: os.close(file))
truncate(path, 5)
truncate(path, 0)
file = os.open(path + '-hole', os.O_WRONLY | os.O_CREAT | os.O_EXCL)
says('written', lambda: os.write(file, b'12345'))
says('hole', lambda: os.ftruncate(file, 9))
says('close', lambda: os.close(file))
file = os.open(path + '-synced', os.O_WRONLY | os.O_CREAT | os.O_EXCL)
for flag in [os.RWF_DSYNC, os.RWF_SYNC]:
    says('pwritev2', lambda: os.pwritev(file, [b'x'], 0, flag))
says('written', lambda: os.write(file, b'12345'))
says('close', lambda: os.close(file))
os.mknod(path + '-made')
truncate(path + '-made', 0)
truncate(path + '-made', 9)
file = os.open(path + '-zeros', os.O_WRONLY | os.O_CREAT | os.O_EXCL)
says('9', lambda: os.ftruncate(file, 9))
says('close', lambda: os.close(file))
file = os.open(path + '-emptied', os.O_WRONLY | os.O_CREAT | os.O_EXCL)
says('9', lambda: os.ftruncate(file, 9))
says('0', lambda: os.ftruncate(file, 0))
says('close', lambda: os.close(file))
";
    let said = python(script, &mount.path("file"), &[]);
    let while_written = ["0 ok", "9 EPERM", "written ok", "0 EPERM", "9 EPERM", "5 ok", "close ok"];
    let stored = ["5 ok", "0 EPERM"];
    let hole = ["written ok", "hole ok", "close ok"];
    let synced = ["pwritev2 EINVAL", "pwritev2 EINVAL", "written ok", "close ok"];
    let others = ["0 ok", "9 EPERM", "9 ok", "close ok", "9 ok", "0 ok", "close ok"];
    let all = [&while_written[..], &stored, &hole, &synced, &others].concat();
    assert_eq!(said.lines().collect::<Vec<_>>(), all);
    assert_eq!(mount.store().get("file").unwrap(), b"12345");
    assert_eq!(mount.store().get("file-hole").unwrap(), b"12345\0\0\0\0");
    assert_eq!(mount.store().get("file-zeros").unwrap(), [0; 9]);
    until("the empty one is stored", || mount.store().get("file-emptied").is_some());
    assert_eq!(mount.store().keys(), ["file", "file-emptied", "file-hole", "file-synced", "file-zeros"]);
}

/// The opener has left before the first byte, so the other process's close stores nothing, and its RELEASE decides.
#[test]
fn a_refused_size_of_a_file_that_another_process_closes_last_is_logged() {
    let Some(mount) = TestMount::new(&[]) else { return };
    if !need_tool("python3") {
        return;
    }
    let script = "
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
left, leaves = os.pipe()
if os.fork() == 0:
    os.close(leaves)
    os.read(left, 1)
    says('written', lambda: os.write(file, b'12345'))
    says('3', lambda: os.ftruncate(file, 3))
    says('close', lambda: os.close(file))
    sys.stdout.flush()
    os._exit(0)
os.close(file)
os.close(leaves)
os.wait()
";
    assert_eq!(python(script, &mount.path("file"), &[]), "written ok\n3 EPERM\nclose ok\n");
    until("the log says that it is not stored", || {
        mount.log().contains("\"file\" was closed, and has not the size")
    });
    until("its name is gone", || fs::metadata(mount.path("file")).is_err());
    assert_eq!(mount.store().keys(), Vec::<String>::new());
}

#[test]
fn a_refused_truncate_by_another_program_does_not_change_a_writers_file() {
    let Some(mount) = TestMount::new(&[]) else { return };
    if !need_tool("python3") {
        return;
    }
    let script = "
for path in sys.argv[1:]:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    if path.endswith('written'):
        os.write(file, b'written')
    for size in [3, 1000]:
        if os.fork() == 0:
            says('truncate', lambda: os.truncate(path, size))
            sys.stdout.flush()
            os._exit(0)
        os.wait()
    says('close', lambda: os.close(file))
    sys.stdout.flush()
";
    let empty = mount.path("empty");
    let said = python(script, &mount.path("written"), &[empty.to_str().unwrap()]);
    let each = "truncate EPERM\ntruncate EPERM\nclose ok\n";
    assert_eq!(said, each.repeat(2));
    assert_eq!(mount.store().get("written").unwrap(), b"written");
    until("the empty one is stored", || mount.store().get("empty").is_some());
}

#[test]
fn unlink_after_the_last_close_cancels_the_upload() {
    let Some(mount) = TestMount::with(&Setup::new(&["--allow-delete"])) else { return };
    let store = mount.store();
    store.faults().add(Fault::on("UploadPart", Effect::Hold).key("large"));
    store.faults().add(Fault::on("PutObject", Effect::Delay { for_ms: 1_500 }).key("small").times(1));
    for (name, len) in [("large", 20 << 20), ("small", 100)] {
        let fired = store.faults().fired();
        let path = mount.path(name);
        // Only the child has the file open: no program waits for the outcome.
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(File::create_new(&path).unwrap());
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&Pattern(1).bytes(0, len)).unwrap();
        until("it is written", || fs::metadata(&path).is_ok_and(|meta| meta.len() == len as u64));
        assert_errno(fs::remove_file(&path), Errno::PERM);
        drop(stdin);
        assert!(child.wait().unwrap().success(), "its writer lived, and was left alone");
        until("it is being stored", || store.faults().fired() > fired);
        fs::remove_file(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound, "{name}");
        fs::remove_file(&path).expect_err("it is gone already");
    }
    store.faults().clear();
    fs::write(mount.path("large"), b"anew").unwrap();
    assert_eq!((store.keys(), store.get("large").unwrap()), (vec!["large".to_owned()], b"anew".to_vec()));
    assert!(!mount.log().contains("NOT stored"), "its remover knows:\n{}", mount.log());
}
