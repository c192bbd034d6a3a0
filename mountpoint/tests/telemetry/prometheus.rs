//! A real Prometheus scrapes a mount: every panel of the dashboard has values, every alert rule can be evaluated and none fires.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use s3server::{Effect, Fault};
use serde_json::Value;
use testkit::port::listens_on;

use crate::common::{Pattern, Setup, Store, TestMount, need_tool, until};

const DASHBOARD: &str = include_str!("../../../docs/monitoring/dashboard.json");
const LEN: usize = 3 << 20;

/// The Prometheus that `ci/prometheus` provides, or the installed one.
fn program() -> String {
    std::env::var("MOUNT_S3_PROMETHEUS").unwrap_or_else(|_| "prometheus".to_owned())
}

/// A Prometheus on loopback, ended with the test.
struct Prometheus {
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
    fn start(folder: &Path, target: &str) -> Self {
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/monitoring/alerts.yaml");
        let rules = rules.canonicalize().expect("the alert rules");
        let config = format!(
            "global: {{scrape_interval: 500ms, evaluation_interval: 1s}}
rule_files: ['{}']
scrape_configs:
  - job_name: mount-s3
    static_configs: [{{targets: ['{target}']}}]
",
            rules.display()
        );
        fs::write(folder.join("prometheus.yml"), config).unwrap();
        let log = fs::File::create(folder.join("log")).unwrap();
        let process = Command::new(program())
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut prometheus = Self { process, address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) };
        until("Prometheus listens", || {
            let ended = prometheus.process.try_wait().unwrap();
            assert!(ended.is_none(), "{}", fs::read_to_string(folder.join("log")).unwrap());
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

    /// The result of an instant query.
    fn query(&self, text: &str) -> Vec<Value> {
        let Some(answer) =
            self.get(&format!("/api/v1/query?query={}", utf8_percent_encode(text, NON_ALPHANUMERIC)))
        else {
            return Vec::new();
        };
        assert_eq!(answer["status"], "success", "{text}: {answer}");
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }
}

/// The queries of all panels, with Grafana's variables filled in as for "All".
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| {
        panel["targets"]
            .as_array()
            .unwrap()
            .iter()
            .map(move |target| (panel["title"].clone(), target["expr"].clone()))
    });
    let filled = targets.map(|(title, expr)| {
        let expr = expr.as_str().unwrap().replace("$__rate_interval", "20s");
        (title.as_str().unwrap().to_owned(), expr.replace("$bucket", ".*").replace("$mount_point", ".*"))
    });
    filled.collect()
}

#[test]
fn every_panel_has_values_and_no_alert_fires_at_a_mount_that_works() {
    if !need_tool(&program()) {
        return;
    }
    let (store, folder, cache) = (Store::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    store.plant("file", &Pattern(1).bytes(0, LEN));
    store.plant("refused", &Pattern(2).bytes(0, LEN));
    let options = [
        "--metrics-listen",
        "127.0.0.1:0",
        "--cache",
        cache.path().to_str().unwrap(),
        "--max-cache-size",
        "64",
    ];
    let Some(mount) = TestMount::of(&store, &Setup::new(&options)) else { return };
    let log = mount.log();
    let target = log.split_once("metrics are at http://").unwrap().1.split('/').next().unwrap().to_owned();
    let prometheus = Prometheus::start(folder.path(), &target);
    until("Prometheus has scraped the mount", || prometheus.query("up{job=\"mount-s3\"} == 1").len() == 1);

    // One request fails for good; the rest is everyday work, again and again, so that every rate has something to show.
    store
        .faults()
        .add(Fault::on("GetObject", Effect::Error { status: 403, code: "AccessDenied".to_owned() }));
    let _ = fs::read(mount.path("refused"));
    store.faults().clear();
    let open = fs::File::open(mount.path("file")).unwrap();
    let mut round = 0;
    let mut empty = queries();
    assert!(empty.len() >= 20, "{empty:?}");
    until("every panel has values", || {
        round += 1;
        fs::write(mount.path(&format!("new-{round}")), [1; 100]).unwrap();
        assert!(read_directly(&mount.path("file")).status().unwrap().success());
        assert!(fs::metadata(mount.path("missing")).is_err());
        store
            .faults()
            .add(Fault::on("GetObject", Effect::Error { status: 403, code: "AccessDenied".to_owned() }));
        let _ = fs::read(mount.path("refused"));
        store.faults().clear();
        // A panel draws nothing of NaN, which is what a quantile of a broken histogram is.
        let is_number = |series: &Value| series["value"][1].as_str().is_some_and(|number| number != "NaN");
        empty.retain(|(_, expr)| !prometheus.query(expr).iter().any(is_number));
        std::thread::sleep(std::time::Duration::from_millis(300));
        if round % 40 == 0 {
            eprintln!("without values still: {empty:?}");
        }
        empty.is_empty()
    });

    let rules = prometheus.get("/api/v1/rules").expect("the rules");
    let groups = rules["data"]["groups"].as_array().unwrap();
    let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert_eq!(rules.len(), 8);
    until("every rule was evaluated", || {
        let rules = prometheus.get("/api/v1/rules").unwrap();
        let text = rules.to_string();
        assert!(!text.contains("\"health\":\"err\""), "{text}");
        !text.contains("\"health\":\"unknown\"")
    });
    for rule in rules {
        assert_ne!(rule["state"], "firing", "{rule}");
    }
    // A mount in use does not end.
    drop(open);
    drop(mount);
    until("a mount that is gone is seen", || prometheus.query("up{job=\"mount-s3\"} == 0").len() == 1);
}

/// Reads past the page cache, so that the engine sees the read.
fn read_directly(path: &Path) -> Command {
    let mut dd = Command::new("dd");
    dd.arg(format!("if={}", path.display()))
        .args(["of=/dev/null", "bs=1M", "iflag=direct"])
        .stderr(Stdio::null());
    dd
}
