//! Connections to engines that answer, say nonsense, die or are others than they seem.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::*;
use crate::mounter::testing::{dirs, processes};

const UID: &str = "pod-uid";

/// A comm directory whose processes are those of the pod.
struct Home {
    comm: Comm,
    processes: Processes,
    _folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let ([kubelet, proc], folder) = dirs();
        let comm = Comm::on_host(&kubelet, UID);
        std::fs::create_dir_all(comm.directory()).unwrap();
        Self { comm, processes: processes(&proc, &[UID]), _folder: folder }
    }

    fn listen(&self) -> tokio::net::UnixListener {
        let path: PathBuf = self.comm.engine_socket();
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        tokio::net::UnixListener::from_std(listener).unwrap()
    }

    /// An engine that says these lines on each connection, one after each line that it hears. It ends with the task.
    fn engine(&self, says: &'static [&'static str]) -> tokio::task::JoinHandle<()> {
        let listener = self.listen();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = BufReader::new(stream);
                for line in says {
                    let mut heard = String::new();
                    if stream.read_line(&mut heard).await.unwrap() == 0 {
                        break;
                    }
                    stream.write_all(line.as_bytes()).await.unwrap();
                }
            }
        })
    }

    async fn usage(&self, engines: &Engines) -> Result<Usage> {
        engines.usage(&self.peer(UID)).await
    }

    fn peer<'a>(&'a self, uid: &'a str) -> Peer<'a> {
        let processes = &self.processes;
        Peer { slot: uid, uid, cache: None, comm: &self.comm, processes, source: None, opens: true }
    }
}

const HELLO: &str = "{\"version\":1}\n";

fn of_memory(memory_bytes: u64) -> Usage {
    Usage { memory_bytes: Some(memory_bytes), ..Usage::default() }
}

#[tokio::test]
async fn an_engine_is_asked_again_on_the_connection_that_was_dialled_ahead() {
    let (home, engines) = (Home::new(), Engines::default());
    let _engine = home.engine(&[
        HELLO,
        "{\"number\":1,\"usage\":{\"memory_bytes\":5},\"new\":1}\n",
        "{\"number\":2,\"usage\":{\"memory_bytes\":6}}\n",
    ]);
    engines.dial(&home.peer(UID)).await;
    assert_eq!(home.usage(&engines).await.unwrap(), of_memory(5));
    // A connection of its own would hear number 1 again.
    assert_eq!(home.usage(&engines).await.unwrap(), of_memory(6));
}

#[tokio::test]
async fn the_next_engine_of_a_pod_is_dialled_when_it_is_asked() {
    let (home, engines) = (Home::new(), Engines::default());
    let engine = home.engine(&[HELLO, "{\"number\":1,\"usage\":{\"memory_bytes\":5}}\n"]);
    assert_eq!(home.usage(&engines).await.unwrap(), of_memory(5));
    engine.abort();
    let _ = engine.await;
    let _next = home.engine(&["{\"version\":2}\n", "{\"number\":1,\"usage\":{\"memory_bytes\":7}}\n"]);
    assert_eq!(home.usage(&engines).await.unwrap(), of_memory(7));
}

#[tokio::test]
async fn an_engine_without_a_socket_or_with_another_in_its_place_says_nothing() {
    let (home, engines) = (Home::new(), Engines::default());
    let error = home.usage(&engines).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "an earlier release: {error}");
    std::fs::write(home.comm.engine_socket(), "").unwrap();
    home.usage(&engines).await.unwrap_err();
    let _engine = home.engine(&[HELLO, "{\"number\":1,\"usage\":{}}\n"]);
    let error = engines.usage(&home.peer("another-pod")).await.unwrap_err();
    assert!(error.to_string().contains("engine.sock"), "{error}");
    assert_eq!(home.usage(&engines).await.unwrap(), Usage::default());
}

#[tokio::test]
async fn an_answer_that_is_none_is_an_error_and_ends_the_connection() {
    static LONG: std::sync::LazyLock<[&str; 1]> =
        std::sync::LazyLock::new(|| [&*Box::leak("x".repeat(9 << 10).into_boxed_str())]);
    let cases: [&'static [&'static str]; 7] = [
        &["{\"version\":0}\n"],
        &["no JSON\n"],
        &["{\"version\":1}"],
        &*LONG,
        &[HELLO, "{\"number\":2,\"usage\":{}}\n"],
        &[HELLO, "{\"number\":1,\"error\":\"no such request\"}\n"],
        &[HELLO, "{\"number\":1,\"usage\":{\"memory_bytes\":-1}}\n"],
    ];
    for says in cases {
        let (home, engines) = (Home::new(), Engines::default());
        let _engine = home.engine(says);
        let error = home.usage(&engines).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        assert!(engines.slot(UID).lock().await.line.is_none());
    }
}

#[tokio::test]
async fn an_engine_that_never_answers_leaves_no_connection() {
    let (home, engines) = (Home::new(), Engines::default());
    let silent = home.listen();
    let asked = home.usage(&engines);
    // The kernel takes the connection; nobody reads it.
    assert!(timeout(Duration::from_millis(1), asked).await.is_err());
    assert!(engines.slot(UID).lock().await.line.is_none());
    drop(silent);
    let _engine = home.engine(&[HELLO, "{\"number\":1,\"usage\":{\"memory_bytes\":8}}\n"]);
    assert_eq!(home.usage(&engines).await.unwrap(), of_memory(8));
    engines.keep(|_| false, |_| false);
    assert!(engines.slots.lock().is_empty());
}
