//! Programs that check each block which they read, while engines are killed.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::BETWEEN;
use super::holder::Holder;
use crate::common::{need_tool, until};

/// Programs that read in rounds while engines are killed: fio compares the checksum in each block.
#[test]
fn fio_verifies_a_file_across_killed_engines() {
    if !need_tool("fio") {
        return;
    }
    let Some(mut holder) = Holder::new(&["--read-mode", "buffered"]) else { return };
    let folder = holder.folder.path().to_owned();
    let fio = |file: &Path, options: &[&str]| {
        let mut fio = Command::new("fio");
        fio.args(["--name=v", "--size=4m", "--bs=4k", "--verify=crc32c", "--verify_state_save=0"]);
        fio.arg(format!("--filename={}", file.display())).args(options).current_dir(&folder);
        fio.output().unwrap()
    };
    let local = folder.join("fio");
    assert!(fio(&local, &["--rw=write", "--do_verify=0"]).status.success());
    let mut bytes = fs::read(&local).unwrap();
    holder.store.plant("fio", &bytes);
    bytes[3_000_000] ^= 1;
    fs::write(&local, &bytes).unwrap();
    const READS: [&str; 3] = ["--readonly", "--rw=randread", "--verify_fatal=1"];
    assert!(!fio(&local, &READS).status.success(), "fio must find a wrong bit");
    holder.start();
    const FIO: &str = "
import subprocess
rounds = 0
while not os.path.exists(f'{local}/stop'):
    ended = subprocess.run(['fio', '--name=v', '--size=4m', '--bs=4k', '--verify=crc32c', '--verify_state_save=0',
        f'--filename={mount}/fio', *arguments], cwd=local, stdout=subprocess.DEVNULL)
    assert ended.returncode == 0, ended
    rounds += 1
    tells(f'round-{arguments[-1]}-{rounds}')
print(rounds, 'rounds')
";
    let ways = ["--direct=0", "--direct=1"];
    let programs = ways.map(|way| holder.program(FIO, &[&READS[..], &[way]].concat()));
    for turn in 1..=10 {
        // A kill after the end of a round falls into the next one, which reads for longer than this.
        until("fio reads", || ways.iter().all(|way| folder.join(format!("round-{way}-{turn}")).exists()));
        std::thread::sleep(BETWEEN);
        holder.kill();
        holder.start();
    }
    fs::write(folder.join("stop"), b"").unwrap();
    for program in programs {
        let said = program.output();
        assert!(said.contains("rounds"), "{said}");
    }
}
