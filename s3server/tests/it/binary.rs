//! The program: its start, its errors, its end.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::client::{BUCKET, Lab};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_s3server"));
    command.env_remove("S3SERVER_SECRET_KEY").stderr(Stdio::piped());
    command
}

fn one_line_error(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    text
}

#[test]
fn it_listens_writes_its_port_and_ends_in_order_at_sigterm() {
    let root = tempfile::tempdir().unwrap();
    let port_file = root.path().join("port");
    let mut server = program()
        .arg(root.path().join("data"))
        .args(["--listen", "127.0.0.1:0", "--bucket", "photos", "--port-file"])
        .arg(&port_file)
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    let port: u16 = fs::read_to_string(&port_file).unwrap().trim().parse().unwrap();
    assert_eq!(line, format!("s3server: listening on http://127.0.0.1:{port}\n"));
    assert!(root.path().join("data/photos").is_dir());
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn what_can_not_work_is_one_line_and_exit_status_1() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "[{\"effect\": \"explode\"}]").unwrap();
    let listen = ["--listen", "127.0.0.1:0"];
    assert!(one_line_error(program().arg(&file).args(listen)).contains("can't make the folder"));
    let bad_bucket = one_line_error(program().arg(root.path()).args(listen).args(["--bucket", "No_Bucket"]));
    assert!(bad_bucket.contains("No_Bucket"));
    assert!(
        one_line_error(program().arg(root.path()).args(listen).arg("--faults").arg(&file))
            .contains("explode")
    );
    assert!(
        one_line_error(program().arg(root.path()).args(["--listen", "0.0.0.0:0"])).contains("not loopback")
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert!(one_line_error(program().arg(root.path()).args(["--listen", &address])).contains("can't listen"));
}

#[test]
fn a_secret_comes_from_a_file_and_is_never_printed() {
    let root = tempfile::tempdir().unwrap();
    let secret = root.path().join("secret");
    fs::write(&secret, "\n").unwrap();
    let empty = one_line_error(program().arg(root.path()).arg("--secret-key-file").arg(&secret));
    assert!(empty.contains("is empty"));
    fs::write(&secret, "very-secret-value\n").unwrap();
    let mut command = program();
    command.arg(root.path()).arg("--secret-key-file").arg(&secret).args(["--bucket", "No_Bucket"]);
    assert!(!one_line_error(&mut command).contains("very-secret-value"));
}

/// Goal: bytes and metadata of an object belong to one version whenever the server dies. Method: one key is overwritten again and again,
/// and each version's metadata describe its bytes; the server is killed in between; a new one over the same folder must find a whole
/// version. Repeated, since the moment matters.
#[test]
fn a_killed_server_leaves_whole_versions() {
    let mut lab = Lab::new();
    lab.server.take().unwrap().stop();
    for round in 0..10u64 {
        let port_file = lab.root.path().join("port");
        let _ = fs::remove_file(&port_file);
        let mut server = program()
            .arg(lab.root.path())
            .args(["--listen", "127.0.0.1:0", "--bucket", BUCKET, "--port-file"])
            .arg(&port_file)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
        lab.address =
            ([127, 0, 0, 1], fs::read_to_string(&port_file).unwrap().trim().parse().unwrap()).into();
        lab.object("PUT", "k").header("x-amz-meta-mark", "7").body(&[7; 10]).send().ok();
        std::thread::scope(|scope| {
            let killer = scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(20 + 7 * round));
                server.kill().unwrap();
                server.wait().unwrap();
            });
            for version in 0u64.. {
                let (mark, size) = ((round * 31 + version) as u8, 1000 + (version % 7) as usize);
                let request = lab.object("PUT", "k").header("x-amz-meta-mark", &mark.to_string());
                if request.body(&vec![mark; size]).try_send().is_err() {
                    break;
                }
            }
            killer.join().unwrap();
        });
        lab.start();
        let got = lab.get("k").ok();
        let mark: u8 = got.header("x-amz-meta-mark").parse().expect("the metadata of a whole version");
        assert!(!got.body.is_empty() && got.body.iter().all(|&byte| byte == mark));
        lab.server.take().unwrap().stop();
    }
}
