//! A real Prometheus scrapes a mount: every panel of the dashboard has values, every alert rule can be evaluated and none fires.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use s3server::{Effect, Fault};
use testkit::{Prometheus, prometheus};

use crate::common::{Pattern, Setup, Store, TestMount, need_tool, until};

const DASHBOARD: &str = include_str!("../../../docs/monitoring/dashboard.json");
const LEN: usize = 3 << 20;

/// The queries of all panels, with the dashboard's variables filled in as for "All".
fn queries() -> Vec<(String, String)> {
    let all = |expr: String| expr.replace("$bucket", ".*").replace("$mount_point", ".*");
    prometheus::queries(DASHBOARD).into_iter().map(|(title, expr)| (title, all(expr))).collect()
}

#[test]
fn every_panel_has_values_and_no_alert_fires_at_a_mount_that_works() {
    if !need_tool(&Prometheus::program()) {
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
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/monitoring/alerts.yaml");
    let prometheus = Prometheus::start(folder.path(), "mount-s3", &target, &rules);
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
        empty.retain(|(_, expr)| !prometheus.has_values(expr));
        std::thread::sleep(std::time::Duration::from_millis(300));
        if round % 40 == 0 {
            eprintln!("without values still: {empty:?}");
        }
        empty.is_empty()
    });

    assert_eq!(prometheus.rules().len(), 8);
    until("every rule was evaluated", || {
        let rules = prometheus.rules();
        assert!(rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");
        !rules.is_empty() && rules.iter().all(|rule| rule["health"] == "ok")
    });
    for rule in prometheus.rules() {
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
