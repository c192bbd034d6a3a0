//! The socket of `--control-socket`, for the CSI driver of the node. Enters: connections of root's processes. Leaves: answers to their
//! requests, one at a time per connection, and this engine's requests to the driver.
//!
//! Never here: a name of an object, a secret; an answer to another user; a wait that could delay a read of the mount.

use std::os::unix::net::UnixListener;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

use super::engine_lines::{
    Answer, CLOSE, HAND_OVER, Heard, Hello, Lines, OPEN, Request, USAGE, Usage, VERSION, read,
};
use super::handing::Handing;
use super::{cgroup, http};
use crate::broker::{Ask, Registrar, Serving};
use crate::clock::Clock;
use crate::supervise::Supervisor;
use crate::sync::Arc;

/// Most connections that are served at once; further ones wait. A node has one driver, or two during an upgrade of it.
const CONNECTIONS_MAX: usize = 4;
/// Longest wait for a peer's first line, and for a peer to take an answer; beyond it the connection ends. Doubling it keeps a connection
/// from others for twice as long.
const PEER_WITHIN: Duration = Duration::from_secs(10);
/// Pause before a busy driver gets the next request. Doubling it halves the requests to a driver whose disk hangs, and keeps space on the
/// disk occupied for up to twice as long.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// Pause after a failed accept(2), mostly for lack of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A bound socket. Connections wait in the kernel's queue until it is served.
#[derive(Debug)]
pub(super) struct Bound(UnixListener, PathBuf);

/// Hands the mount over to the next engine, or returns the reason why not.
pub(super) type HandOver = Arc<dyn Fn(Duration) -> BoxFuture<'static, String> + Send + Sync>;

/// The settings of the socket, and the functions behind its requests.
#[derive(Clone)]
pub(super) struct Served {
    /// The user whose processes get answers.
    pub(super) peer: u32,
    /// The directory that contains `proc` and the cgroups.
    pub(super) root: PathBuf,
    /// The queue of requests to the driver; `None` without one.
    pub(super) registrar: Option<Arc<Registrar>>,
    /// The function for the upgrade in place.
    pub(super) hand_over: HandOver,
}

impl Bound {
    /// Binds the path. Replaces a socket that an earlier engine left.
    pub(super) fn at(path: &FilePath) -> anyhow::Result<Self> {
        Ok(Self(http::bind_unix(path)?, path.to_owned()))
    }

    /// Serves until the runtime ends. Dropping the result removes the path.
    pub(super) fn serve(
        self,
        served: Served,
        supervisor: &Supervisor,
        runtime: &tokio::runtime::Handle,
    ) -> anyhow::Result<http::Path> {
        let Self(listener, path) = self;
        let _inside = runtime.enter();
        let context = || format!("serving {}", path.display());
        let listener = Arc::new(tokio::net::UnixListener::from_std(listener).with_context(context)?);
        let (places, clock) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), supervisor.clock.clone());
        supervisor.task(runtime, "serving the driver", move || {
            accept_for_ever(Arc::clone(&listener), served.clone(), Arc::clone(&places), clock.clone())
        });
        Ok(http::Path(path))
    }
}

async fn accept_for_ever(
    listener: Arc<tokio::net::UnixListener>,
    served: Served,
    places: Arc<Semaphore>,
    clock: Clock,
) {
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let accepted =
            listener.accept().await.and_then(|(stream, _)| Ok((stream.peer_cred()?.uid(), stream)));
        let stream = match accepted {
            Ok((peer, stream)) if peer == served.peer => stream,
            Ok((peer, _)) => {
                tracing::warn!(
                    "user {peer} connected to the socket of the driver and got no answer: only user {} does",
                    served.peer
                );
                continue;
            }
            Err(error) => {
                tracing::debug!("accepting a connection of the driver: {error}");
                clock.sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let (served, clock) = (served.clone(), clock.clone());
        tokio::spawn(async move {
            if let Err(error) = converse(Lines::new(Handing::new(stream)), &served, &clock).await {
                tracing::debug!("a connection of the driver has ended: {error}");
            }
            drop(place);
        });
    }
}

/// Serves one connection: answers requests, and sends requests to the driver, until the peer ends the connection or violates the protocol.
async fn converse(mut lines: Lines<Handing>, served: &Served, clock: &Clock) -> std::io::Result<()> {
    let late = || std::io::Error::from(std::io::ErrorKind::TimedOut);
    let ids = served.registrar.as_ref().map(|registrar| registrar.ids());
    lines.write(&Hello { version: VERSION, registers: false, ids }).await?;
    let first = clock.timeout(PEER_WITHIN, lines.read()).await.ok_or_else(late)?;
    let hello = first.and_then(|line| match line {
        Some(line) => read::<Hello>(&line).map(Some).map_err(std::io::Error::other),
        None => Ok(None),
    });
    let (registers, broken) = match hello {
        Ok(Some(Hello { version: 1.., registers, .. })) => (registers, None),
        Ok(Some(Hello { version, .. })) => (false, Some(format!("version {version} is not known"))),
        Ok(None) => return Ok(()),
        Err(error) => (false, Some(error.to_string())),
    };
    let mut serving =
        served.registrar.as_ref().filter(|_| registers && broken.is_none()).map(Registrar::serve);
    let mut asked = 0;
    let mut next = broken.map(|error| Err(std::io::Error::other(error)));
    loop {
        let heard = match next.take() {
            Some(heard) => heard,
            None => tokio::select! {
                heard = lines.read() => heard,
                request = next_of(&mut serving, asked + 1, clock) => {
                    let Some(device) = served.registrar.as_ref().and_then(|registrar| registrar.device()) else {
                        return Ok(());
                    };
                    asked += 1;
                    lines.stream().hand(device);
                    clock.timeout(PEER_WITHIN, lines.write(&request)).await.ok_or_else(late)??;
                    continue;
                }
            },
        };
        let (answer, is_last) = match heard {
            Ok(Some(line)) => match Heard::read(&line) {
                Ok(Heard::Request(request)) => (answer(request, served).await, false),
                Ok(Heard::Answer(answer)) if answer.number == Some(asked) => {
                    if let Some(serving) = &mut serving {
                        serving.answered(answer.id.ok_or_else(|| refused(answer.busy, answer.error)));
                    }
                    continue;
                }
                Ok(Heard::Answer(_)) => {
                    let error = "the answer has the number of no request under way".to_owned();
                    (Answer { error: Some(error), ..Answer::default() }, false)
                }
                Err(error) => (Answer { error: Some(error), ..Answer::default() }, false),
            },
            Ok(None) => return Ok(()),
            Err(error) => (Answer { error: Some(error.to_string()), ..Answer::default() }, true),
        };
        clock.timeout(PEER_WITHIN, lines.write(&answer)).await.ok_or_else(late)??;
        if is_last {
            return Ok(());
        }
    }
}

/// The next request to the driver, with this number. Pending forever without `serving`.
async fn next_of(serving: &mut Option<Serving>, number: u64, clock: &Clock) -> Request {
    match serving {
        Some(serving) => {
            if serving.rests() {
                clock.sleep(ASK_AGAIN).await;
                serving.go_on();
            }
            request(number, serving.next().await)
        }
        None => std::future::pending().await,
    }
}

fn request(number: u64, ask: &Ask) -> Request {
    let (request, file, id) = match ask {
        Ask::Open(file, _) => (OPEN, Some(file), None),
        Ask::Close(id, _) => (CLOSE, None, Some(*id)),
    };
    Request {
        number,
        request: request.to_owned(),
        name: file.map(|file| file.name.clone()),
        dev: file.map(|file| file.dev),
        ino: file.map(|file| file.ino),
        id,
        within: None,
    }
}

fn refused(busy: bool, error: Option<String>) -> std::io::Error {
    let kind = if busy { std::io::ErrorKind::ResourceBusy } else { std::io::ErrorKind::Other };
    std::io::Error::new(kind, error.unwrap_or_else(|| "the driver gives no number".to_owned()))
}

async fn answer(Request { number, request, within, .. }: Request, served: &Served) -> Answer {
    let answer = Answer { number: Some(number), ..Answer::default() };
    if request == HAND_OVER {
        let within = Duration::from_secs(within.unwrap_or_default().into());
        return Answer { error: Some((served.hand_over)(within).await), ..answer };
    }
    if request != USAGE {
        let error = format!("this engine answers only {USAGE:?} and {HAND_OVER:?}");
        return Answer { error: Some(error), ..answer };
    }
    let root = served.root.clone();
    let kernel_files = served.registrar.as_ref().map(|registrar| u64::from(registrar.ids()));
    // Blocking: the kernel may have to add up the counters of many CPUs.
    match tokio::task::spawn_blocking(move || cgroup::usage(&root)).await {
        Ok(usage) => Answer { usage: Some(Usage { kernel_files, ..usage }), ..answer },
        Err(error) => Answer { error: Some(error.to_string()), ..answer },
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;
    use crate::telemetry::engine_lines::LINE_MAX;

    /// A served socket, and the folder in place of `/`.
    fn socket(peer: u32) -> (tempfile::TempDir, http::Path, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/memory.current", "1000\n"),
        ] {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let path = root.path().join("engine.sock");
        let supervisor = Supervisor { metrics: Arc::default(), clock: Clock::machine() };
        let hand_over: HandOver =
            Arc::new(|within| Box::pin(async move { format!("not within {within:?}") }));
        let served = Served { peer, root: root.path().to_owned(), registrar: None, hand_over };
        let bound = Bound::at(&path).unwrap();
        let kept = bound.serve(served, &supervisor, &tokio::runtime::Handle::current()).unwrap();
        (root, kept, path)
    }

    fn me() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    async fn dial(path: &FilePath) -> Lines<UnixStream> {
        Lines::new(UnixStream::connect(path).await.unwrap())
    }

    async fn line(lines: &mut Lines<UnixStream>) -> String {
        String::from_utf8(lines.read().await.unwrap().expect("a line")).unwrap()
    }

    fn ask(number: u64, request: &str) -> serde_json::Value {
        serde_json::json!({ "number": number, "request": request, "of_a_later_release": [1] })
    }

    #[tokio::test]
    async fn the_driver_hears_the_version_and_then_the_usage_as_often_as_it_asks() {
        let (root, kept, path) = socket(me());
        let mut lines = dial(&path).await;
        assert_eq!(line(&mut lines).await, r#"{"version":1}"#);
        lines.write(&serde_json::json!({ "version": 7, "new": true })).await.unwrap();
        lines.write(&ask(1, USAGE)).await.unwrap();
        assert_eq!(line(&mut lines).await, r#"{"number":1,"usage":{"memory_bytes":1000}}"#);
        std::fs::write(root.path().join("sys/fs/cgroup/memory.current"), "2000\n").unwrap();
        lines.write(&ask(2, USAGE)).await.unwrap();
        let answer: Answer = serde_json::from_str(&line(&mut lines).await).unwrap();
        assert_eq!(answer.usage, Some(Usage { memory_bytes: Some(2000), ..Usage::default() }));
        drop(kept);
        assert!(!path.exists(), "removed with the mount");
    }

    #[tokio::test]
    async fn the_driver_hears_why_an_engine_keeps_its_mount() {
        let (_root, _kept, path) = socket(me());
        let mut lines = dial(&path).await;
        line(&mut lines).await;
        lines.write(&Hello { version: VERSION, registers: false, ids: None }).await.unwrap();
        lines.write(&serde_json::json!({ "number": 1, "request": HAND_OVER, "within": 7 })).await.unwrap();
        assert_eq!(line(&mut lines).await, r#"{"number":1,"error":"not within 7s"}"#);
        lines.write(&ask(2, USAGE)).await.unwrap();
        assert!(line(&mut lines).await.starts_with(r#"{"number":2,"usage""#));
    }

    #[tokio::test]
    async fn a_request_that_is_not_known_is_refused_and_the_next_is_answered() {
        let (_root, _kept, path) = socket(me());
        let mut lines = dial(&path).await;
        line(&mut lines).await;
        lines.write(&Hello { version: 1, registers: false, ids: None }).await.unwrap();
        lines.write(&ask(1, "open")).await.unwrap();
        let refused = line(&mut lines).await;
        assert!(refused.starts_with(r#"{"number":1,"error":"this engine answers only"#), "{refused}");
        lines.write(&"words").await.unwrap();
        let refused = line(&mut lines).await;
        assert!(refused.starts_with(r#"{"error":"the line can't be read"#), "{refused}");
        lines.write(&ask(2, USAGE)).await.unwrap();
        assert!(line(&mut lines).await.starts_with(r#"{"number":2,"usage""#));
    }

    #[tokio::test]
    async fn a_peer_that_breaks_the_protocol_hears_why_and_others_are_served() {
        let (_root, _kept, path) = socket(me());
        let mut others = dial(&path).await;
        let long = "x".repeat(LINE_MAX);
        for (first, why) in [
            (serde_json::json!({ "version": 0 }), "version 0 is not known"),
            (serde_json::json!(["hello"]), "the line can't be read"),
            (serde_json::json!(long), "a line is longer"),
        ] {
            let mut lines = dial(&path).await;
            line(&mut lines).await;
            lines.write(&first).await.unwrap();
            let refused = line(&mut lines).await;
            assert!(refused.contains(why), "{refused}");
            // The rest of a long line may be there unread, which resets the connection.
            assert!(!matches!(lines.read().await, Ok(Some(_))));
        }
        line(&mut others).await;
        others.write(&Hello { version: VERSION, registers: false, ids: None }).await.unwrap();
        others.write(&ask(1, USAGE)).await.unwrap();
        assert!(line(&mut others).await.contains("usage"));
    }

    #[tokio::test]
    async fn a_process_of_another_user_gets_no_line() {
        let (_root, _kept, path) = socket(me() + 1);
        let mut lines = dial(&path).await;
        assert!(!matches!(lines.read().await, Ok(Some(_))));
    }
}
