//! `mount-s3-ctl upgrade`: another program goes on with the mount, or the one before does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::holder::Holder;
use crate::common::{Pattern, is_mounted, run, until};

/// Reads a file that stays open, and the file by its name, until the test says `stop`.
const READER: &str = "
right = expected('file')
held = os.open(f'{mount}/d/file', os.O_RDONLY)
os.chdir(f'{mount}/d')
rounds = 0
while not os.path.exists(f'{local}/stop'):
    for fd in held, os.open('file', os.O_RDONLY):
        drop(fd)
        at = random.randrange(len(right) - 5000)
        assert os.pread(fd, 5000, at) == right[at:at + 5000], at
        if fd != held:
            os.close(fd)
    assert sorted(os.listdir('.')) == ['file']
    rounds += 1
    with open(f'{local}/rounds.new', 'w') as note:
        note.write(str(rounds))
    os.rename(f'{local}/rounds.new', f'{local}/rounds')
print('read')
";

/// A holder whose engine runs from a path of its own, at which another program can be installed.
fn installed(options: &[&str]) -> Option<(Holder, PathBuf)> {
    installed_with(options, &[])
}

fn installed_with(options: &[&str], variables: &[(&'static str, &str)]) -> Option<(Holder, PathBuf)> {
    let mut holder = Holder::new(options)?;
    for (name, value) in variables {
        holder.setup = holder.setup.clone().env(name, value);
    }
    let program = holder.folder.path().join("bin-mount-s3");
    let bytes = Pattern(1).bytes(0, 2_000_000);
    holder.store.plant("d/file", &bytes);
    fs::create_dir(holder.folder.path().join("expected")).unwrap();
    fs::write(holder.folder.path().join("expected/file"), bytes).unwrap();
    install(&program, None);
    holder.program = Some(program.clone());
    holder.start();
    Some((holder, program))
}

/// Puts a script, or this build's engine, at the path: another file, as a package manager does.
fn install(program: &Path, script: Option<&str>) {
    let new = program.with_extension("new");
    let mut put = Command::new("sh");
    // A separate process writes the file, so that no other test's child has the file open for writing.
    let words = match script {
        Some(_) => r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod 755 "$0" && mv "$0" "$2""#,
        None => r#"cp "$1" "$0" && mv "$0" "$2""#,
    };
    put.args(["-c", words]).arg(new).arg(script.unwrap_or(env!("CARGO_BIN_EXE_mount-s3"))).arg(program);
    run(&mut put);
}

/// Exit code, output and error of an upgrade.
fn upgrade(holder: &Holder, within: &str) -> (Option<i32>, String, String) {
    let mut ctl = Command::new(env!("CARGO_BIN_EXE_mount-s3-ctl"));
    ctl.env("XDG_RUNTIME_DIR", holder.folder.path());
    let output = ctl.args(["upgrade", "--within", within]).arg(&holder.dir).output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn rounds(holder: &Holder) -> u64 {
    fs::read_to_string(holder.folder.path().join("rounds")).ok().and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn reads_on(holder: &Holder) {
    let before = rounds(holder);
    until("the reader gets on", || rounds(holder) > before + 1);
}

fn first_pid(holder: &Holder) -> u32 {
    holder.engine.as_ref().unwrap().id()
}

#[test]
fn an_upgrade_starts_the_installed_program_and_readers_go_on() {
    let Some((mut holder, program)) = installed(&["--read-mode", "buffered"]) else { return };
    let reader = holder.program(READER, &[]);
    reads_on(&holder);
    let mut before = Pid::from_child(holder.engine.as_ref().unwrap());
    for turn in 0..3 {
        install(&program, None);
        let (code, said, error) = upgrade(&holder, "5");
        assert_eq!((code, error.as_str()), (Some(0), ""), "{said}");
        // The holder's thread may hear of it a little later.
        until("a new main process is named", || holder.named().is_some_and(|now| now != before));
        let now = holder.named().unwrap();
        assert!(said.contains(&format!("(process {}) serves it now", now.as_raw_nonzero())), "{said}");
        if turn == 0 {
            // The engine has ended with success, after it named the next one.
            assert_eq!(holder.wait().code(), Some(0));
        }
        until("the process of before ends", || turn == 0 || test_kill_process(before).is_err());
        let file = fs::read_link(format!("/proc/{}/exe", now.as_raw_nonzero())).unwrap();
        assert_eq!(file, program, "the installed program");
        reads_on(&holder);
        before = now;
    }
    fs::write(holder.folder.path().join("stop"), b"").unwrap();
    assert_eq!(reader.output(), "read\n");
    assert_eq!(holder.kept(), 2, "the holder has device and journal for the next crash");
    kill_process(before, Signal::TERM).unwrap();
    until("it is unmounted", || !is_mounted(&holder.dir));
    until("the holder lets go", || holder.kept() == 0);
    assert!(!holder.log().contains(" ERROR "));
}

#[test]
fn an_upgrade_waits_for_writers_and_names_the_one_that_stays() {
    let Some((mut holder, _)) = installed(&[]) else { return };
    const WRITER: &str = "
fd = os.open(f'{mount}/new', os.O_WRONLY | os.O_CREAT)
os.write(fd, b'first ')
tells('written')
waits_for('refused')
os.write(fd, b'second')
tells('upgrading')
time.sleep(0.5)
os.close(fd)
print(open(f'{mount}/new').read())
";
    let program = holder.program(WRITER, &[]);
    until("the file is being written", || holder.folder.path().join("written").exists());
    let (code, _, error) = upgrade(&holder, "0");
    assert_eq!(code, Some(1));
    let wanted = "not within 0 s: open for writing: \"new\"; the mount goes on as before";
    assert!(error.contains(wanted), "{error}");
    assert!(holder.engine.as_mut().unwrap().try_wait().unwrap().is_none(), "it serves");
    fs::write(holder.folder.path().join("refused"), b"").unwrap();
    until("it is written on", || holder.folder.path().join("upgrading").exists());
    let (code, _, error) = upgrade(&holder, "60");
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert_eq!(program.output(), "first second\n");
    assert_eq!(holder.store.keys(), ["d/file", "new"]);
}

#[test]
fn a_program_that_refuses_the_journal_is_not_started() {
    let Some((mut holder, program)) = installed(&[]) else { return };
    install(&program, Some("echo 'mount-s3: format 7' >&2; exit 3"));
    let (code, _, error) = upgrade(&holder, "5");
    assert_eq!(code, Some(1));
    assert!(error.contains("can't go on with this mount (exit status: 3): mount-s3: format 7"), "{error}");
    assert!(holder.engine.as_mut().unwrap().try_wait().unwrap().is_none(), "it serves");
    assert_eq!(holder.runs("print(len(open(f'{mount}/d/file', 'rb').read()))"), "2000000\n");
    // Flags that it does not know are an error of usage, as a release before has it.
    install(&program, Some("exit 2"));
    assert!(upgrade(&holder, "5").2.contains("(exit status: 2): it said nothing"));
}

#[test]
fn the_program_of_before_serves_again_if_the_installed_one_does_not() {
    let Some((mut holder, program)) = installed(&["--read-mode", "buffered"]) else { return };
    let reader = holder.program(READER, &[]);
    reads_on(&holder);
    let pid = first_pid(&holder);
    for script in ["exit 7", "exec sleep 60"] {
        let passes = "case \"$*\" in *--check-journal*) exit 0;; esac";
        install(&program, Some(&format!("{passes}\n{script}")));
        let (code, _, error) = upgrade(&holder, "5");
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains(&format!("(process {pid}) serves it again")), "{error}");
        assert!(holder.engine.as_mut().unwrap().try_wait().unwrap().is_none(), "the same process");
        reads_on(&holder);
    }
    for reason in ["ended without a word", "does not serve after 10 s"] {
        assert!(holder.log().contains(reason), "{reason}: {}", holder.log());
    }
    // A sound program is taken then.
    install(&program, None);
    assert_eq!(upgrade(&holder, "5").0, Some(0));
    fs::write(holder.folder.path().join("stop"), b"").unwrap();
    assert_eq!(reader.output(), "read\n");
}

/// A confined engine executes nothing: it ends with the status that its unit names, and the service manager starts the program.
#[test]
fn a_confined_engine_ends_with_its_units_status_for_an_upgrade() {
    let options = ["--read-mode", "buffered", "--sandbox", "on"];
    let Some((mut holder, program)) = installed_with(&options, &[("MOUNT_S3_RESTART_STATUS", "75")]) else {
        return;
    };
    let reader = holder.program(READER, &[]);
    reads_on(&holder);
    install(&program, Some("echo 'mount-s3: format 7' >&2; exit 3"));
    let (code, _, error) = upgrade(&holder, "5");
    assert_eq!(code, Some(1));
    assert!(error.contains("can't go on with this mount (exit status: 3): mount-s3: format 7"), "{error}");
    reads_on(&holder);
    let before = first_pid(&holder);
    for _ in 0..2 {
        install(&program, None);
        let mut ctl = Command::new(env!("CARGO_BIN_EXE_mount-s3-ctl"));
        ctl.env("XDG_RUNTIME_DIR", holder.folder.path());
        let asked =
            ctl.args(["upgrade", "--within", "5"]).arg(&holder.dir).stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(holder.wait().code(), Some(75));
        holder.start();
        let said = asked.wait_with_output().unwrap();
        let said = (said.status.code(), String::from_utf8_lossy(&said.stdout).into_owned());
        assert!(
            said.0 == Some(0) && said.1.contains(&format!("(process {}) serves it now", first_pid(&holder))),
            "{said:?}"
        );
        reads_on(&holder);
    }
    assert_ne!(first_pid(&holder), before);
    let status = fs::read_to_string(format!("/proc/{}/status", first_pid(&holder))).unwrap();
    assert!(status.contains("Seccomp:\t2"), "{status}");
    fs::write(holder.folder.path().join("stop"), b"").unwrap();
    assert_eq!(reader.output(), "read\n");
}

#[test]
fn a_confined_engine_whose_unit_names_no_status_refuses_an_upgrade() {
    let Some((mut holder, program)) = installed(&["--sandbox", "on"]) else { return };
    install(&program, None);
    let (code, _, error) = upgrade(&holder, "5");
    assert!(code == Some(1) && error.contains("RestartForceExitStatus="), "{error}");
    assert!(holder.engine.as_mut().unwrap().try_wait().unwrap().is_none(), "it serves");
    assert_eq!(holder.runs("print(len(open(f'{mount}/d/file', 'rb').read()))"), "2000000\n");
}
