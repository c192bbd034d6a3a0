//! A Prometheus that scrapes a program under test and evaluates rules.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::port::listens_on;
use crate::until;

/// A Prometheus on loopback. Dropping it ends it.
#[derive(Debug)]
pub struct Prometheus {
    process: Child,
    address: SocketAddr,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Prometheus {
    /// The program: the one that `ci/prometheus` provides, or the installed one.
    pub fn program() -> String {
        std::env::var("MOUNT_S3_PROMETHEUS").unwrap_or_else(|_| "prometheus".to_owned())
    }

    /// Starts Prometheus with its files in `folder`. It scrapes `target` twice a second and evaluates the file `rules`.
    ///
    /// # Panics
    /// Prometheus does not start.
    pub fn start(folder: &Path, job: &str, target: &str, rules: &Path) -> Self {
        let rules = rules.canonicalize().expect("the alert rules");
        let config = format!(
            "global: {{scrape_interval: 500ms, evaluation_interval: 1s}}
rule_files: ['{}']
scrape_configs:
  - job_name: {job}
    static_configs: [{{targets: ['{target}']}}]
",
            rules.display()
        );
        fs::write(folder.join("prometheus.yml"), config).expect("its configuration");
        let log = fs::File::create(folder.join("log")).expect("its log");
        let process = Command::new(Self::program())
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("its log"))
            .stderr(log)
            .spawn()
            .expect("Prometheus starts");
        let mut prometheus = Self { process, address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) };
        until("Prometheus listens", || {
            let ended = prometheus.process.try_wait().expect("its state");
            assert!(ended.is_none(), "{}", fs::read_to_string(folder.join("log")).expect("its log"));
            let port = listens_on(prometheus.process.id());
            prometheus.address.set_port(port.unwrap_or(0));
            port.is_some()
        });
        prometheus
    }

    fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nhost: x\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// The result of an instant query; empty while Prometheus does not answer.
    ///
    /// # Panics
    /// The query is not valid.
    pub fn query(&self, text: &str) -> Vec<Value> {
        let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let Some(answer) = self.get(&format!("/api/v1/query?query={encoded}")) else { return Vec::new() };
        assert_eq!(answer["status"], "success", "{text}: {answer}");
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }

    /// Whether a query has a number. A quantile of no values, or of a broken histogram, is NaN.
    pub fn has_values(&self, text: &str) -> bool {
        let is_number = |series: &Value| series["value"][1].as_str().is_some_and(|number| number != "NaN");
        self.query(text).iter().any(is_number)
    }

    /// The rules of all groups, each with `name`, `query`, `health` and `state`; empty while Prometheus does not answer.
    pub fn rules(&self) -> Vec<Value> {
        let Some(answer) = self.get("/api/v1/rules") else { return Vec::new() };
        let groups = answer["data"]["groups"].as_array().cloned().unwrap_or_default();
        groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect()
    }
}

/// Titles and queries of a dashboard's panels, with Grafana's `$__rate_interval` filled in.
///
/// # Panics
/// The text is not a dashboard.
pub fn queries(dashboard: &str) -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(dashboard).expect("the dashboard is JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let of_panel = |panel: &Value| {
        let targets = panel["targets"].as_array().expect("its queries").iter();
        let query = |target: &Value| text(&target["expr"]).replace("$__rate_interval", "20s");
        targets.map(|target| (text(&panel["title"]), query(target))).collect::<Vec<_>>()
    };
    dashboard["panels"].as_array().expect("its panels").iter().flat_map(of_panel).collect()
}
