//! The driver at rest, as a container starts it: tests of the wake-ups without work.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpListener;
use tokio::time::sleep;

/// Length of a window: work that recurs every 10 s or faster falls into each window several times.
const WINDOW: Duration = Duration::from_secs(11);
/// A busy machine may need the first windows for the start.
const WINDOWS_MAX: usize = 20;

/// An API server that has nothing, and has no news: watches stay open.
async fn empty_api_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = |uri: Uri| async move {
        let watches = uri.query().unwrap_or_default().split('&').any(|it| it == "watch=true");
        let body = if watches {
            Body::from_stream(futures_util::stream::pending::<Result<String, std::io::Error>>())
        } else if uri.path() == "/version" {
            let version = serde_json::json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4", "gitCommit": "", "gitTreeState": "",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
            Body::from(version.to_string())
        } else {
            let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [], "metadata": {"resourceVersion": "1"}});
            Body::from(list.to_string())
        };
        ([(CONTENT_TYPE, "application/json")], body).into_response()
    };
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    url
}

/// A driver that is killed with the test.
struct Driver(Child);

impl Driver {
    fn start(folder: &Path, api_server: &str, environment: &[(&str, &str)]) -> Self {
        let kubeconfig = folder.join("kubeconfig");
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": api_server}}],
            "users": [{"name": "x", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let driver = Command::new(env!("CARGO_BIN_EXE_scality-s3-csi-driver"))
            .arg(format!("--endpoint=unix://{}", folder.join("csi.sock").display()))
            .arg("--health-address=127.0.0.1:0")
            .env_clear()
            .env("KUBECONFIG", &kubeconfig)
            .env("KUBELET_PATH", folder)
            .env("CSI_NODE_NAME", "worker-1")
            .env("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
            .envs(environment.iter().copied())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(driver)
    }

    /// How often the driver's threads went to sleep, which a thread does after each wake-up. A thread that ends takes its count along, so
    /// the number of threads is compared, too.
    fn sleeps(&self) -> (usize, u64) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).expect("the driver runs");
        let of = |status: String| {
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            line.trim().parse::<u64>().ok()
        };
        let counts: Vec<_> = tasks
            .filter_map(|it| of(std::fs::read_to_string(it.ok()?.path().join("status")).ok()?))
            .collect();
        (counts.len(), counts.iter().sum())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Goal: no periodic wake-up below 10 s, of the node driver and of the controller service.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_at_rest_is_not_woken_for_ten_seconds() {
    let url = empty_api_server().await;
    let kinds: [&[(&str, &str)]; 2] = [
        &[],
        &[
            ("CSI_CONTROLLER_ONLY", "true"),
            ("CSI_CLUSTER_ID", "cluster"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ],
    ];
    let folders = kinds.map(|_| tempfile::tempdir().unwrap());
    let drivers: Vec<_> =
        kinds.iter().zip(&folders).map(|(kind, folder)| Driver::start(folder.path(), &url, kind)).collect();
    for folder in &folders {
        while !folder.path().join("csi.sock").exists() {
            sleep(Duration::from_millis(5)).await;
        }
    }
    let mut slept_through = [false; 2];
    let mut seen = Vec::new();
    for _ in 0..WINDOWS_MAX {
        let before: Vec<_> = drivers.iter().map(Driver::sleeps).collect();
        sleep(WINDOW).await;
        let after: Vec<_> = drivers.iter().map(Driver::sleeps).collect();
        for (slept, (before, after)) in slept_through.iter_mut().zip(before.iter().zip(&after)) {
            *slept |= before == after;
        }
        seen.push((before, after));
        if slept_through == [true; 2] {
            return;
        }
    }
    panic!(
        "of node driver and controller service, these slept through a window: {slept_through:?}; threads and sleeps: {seen:?}"
    );
}
