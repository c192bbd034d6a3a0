//! The program: its start, its errors, its end.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

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
