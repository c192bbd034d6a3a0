//! Metrics leave the process: a page for Prometheus, lines in the log.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::common::{Pattern, Setup, Store, TestMount, command, until};
use crate::get;

const LEN: usize = (3 << 20) + 77;

/// The value of a series whose name and labels contain these words.
fn value(page: &str, words: &[&str]) -> f64 {
    let line = page.lines().find(|line| words.iter().all(|word| line.contains(word)));
    let line = line.unwrap_or_else(|| panic!("{words:?} is not in:\n{page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_scrape_has_what_programs_read_and_wrote_and_what_the_store_was_asked() {
    let (store, folder) = (Store::new(), tempfile::tempdir().unwrap());
    store.plant("file", &Pattern(1).bytes(0, LEN));
    let socket = folder.path().join("metrics.sock");
    let listen = format!("unix:{}", socket.display());
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--metrics-listen", &listen])) else { return };
    assert_eq!(fs::read(mount.path("file")).unwrap().len(), LEN);
    fs::write(mount.path("new"), vec![1; 5000]).unwrap();
    assert!(fs::read(mount.path("missing")).is_err());

    // A reader has its last byte a moment before the request that brought it has ended.
    until("each request has ended", || {
        let page = get(&socket, "/metrics");
        let of = |series, operation| value(&page, &[series, operation]);
        ["\"GetObject\"", "\"PutObject\""].iter().all(|operation| {
            of("s3_request_total_latency_microseconds_count", operation)
                == of("s3_request_count_total", operation)
        })
    });
    let answer = get(&socket, "/metrics");
    assert!(answer.contains(" 200 OK\r\n") && answer.contains("application/openmetrics-text"), "{answer}");
    let mounted =
        format!("bucket=\"{}\",prefix=\"\",mount_point=\"{}\"", crate::common::BUCKET, mount.dir().display());
    let of = |words: &[&str]| value(&answer, &[words, &[mounted.as_str()]].concat());
    assert!(of(&["s3_bytes_received_total"]) >= LEN as f64);
    assert!(of(&["s3_request_count_total", "\"GetObject\""]) >= 1.0);
    assert_eq!(of(&["s3_request_count_total", "\"PutObject\""]), 1.0);
    assert_eq!(of(&["s3_request_first_byte_latency_microseconds_count", "\"PutObject\""]), 1.0);
    assert_eq!(of(&["s3_request_total_latency_microseconds_count", "\"PutObject\""]), 1.0);
    assert!(of(&["s3_request_total_latency_microseconds_sum", "\"GetObject\""]) > 0.0);
    assert_eq!(of(&["fuse_io_size_bytes_sum", "\"read\""]), LEN as f64);
    assert_eq!(of(&["fuse_io_size_bytes_sum", "\"write\""]), 5000.0);
    assert!(of(&["fuse_request_latency_microseconds_count", "\"lookup\""]) >= 3.0);
    assert!(of(&["fuse_request_errors_total", "\"lookup\""]) >= 1.0);
    assert!(of(&["process_memory_usage_bytes"]) > 1e6);
    // The clock ticks a hundred times a second; each scrape is work.
    until("the engine's processor time is counted", || {
        value(&get(&socket, "/metrics"), &["process_cpu_time_microseconds_total{", &mounted]) > 0.0
    });
    assert!(of(&["process_start_time_seconds"]) > 1.7e9);
    let (all, idle) = (of(&["experimental_fuse_total_threads"]), of(&["experimental_fuse_idle_threads"]));
    assert!(all >= 2.0 && idle <= all, "{idle} of {all}");
    until("all threads wait for the next request", || {
        value(&get(&socket, "/metrics"), &["experimental_fuse_idle_threads{", &mounted]) == all
    });
    // Two threads may take two reads of the kernel in the other order.
    assert!(of(&["experimental_prefetch_reset_state_total"]) <= 1.0);

    assert!(get(&socket, "/healthz").ends_with("\r\n\r\nok\n"));
    assert!(
        get(&socket, "/status").contains(" 404 Not Found\r\n"),
        "names of objects are for the control socket"
    );
    assert!(!get(&socket, "/metrics").contains(Store::SECRET_KEY));
    drop(mount);
    assert!(!socket.exists(), "the socket goes with the mount");
}

#[test]
fn an_address_is_listened_on_and_one_that_is_taken_is_named() {
    let (store, taken) = (Store::new(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let address = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let refused = command(&store, dir.path(), &Setup::new(&["--metrics-listen", &address])).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("--metrics-listen") && said.contains(&address), "{said}");

    let Some(mount) = TestMount::of(&store, &Setup::new(&["--metrics-listen", "127.0.0.1:0"])) else {
        return;
    };
    let log = mount.log();
    let (_, rest) = log.split_once("metrics are at http://").expect("the log says where");
    let mut stream = TcpStream::connect(rest.split('/').next().unwrap()).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 OK\r\n") && answer.ends_with("ok\n"), "{answer}");
}

#[test]
fn the_log_says_every_few_seconds_what_the_metrics_did() {
    let store = Store::new();
    store.plant("file", &Pattern(1).bytes(0, LEN));
    let Some(mount) = TestMount::of(&store, &Setup::new(&["--log-metrics"])) else { return };
    assert_eq!(fs::read(mount.path("file")).unwrap().len(), LEN);
    // The test waits for each line: a request is counted a moment after its bytes were read.
    for line in [
        "fuse.request_latency[fuse_request=read]: n=",
        "mountpoint::metrics: s3.request_count[s3_request=GetObject]: +",
        "process.memory_usage: ",
    ] {
        until(&format!("the log has {line}"), || mount.log().contains(line));
    }
}
