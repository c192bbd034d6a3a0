//! Tests of the page, the state, the lines and the socket of a mount with known numbers.

use super::*;
use crate::metrics::{Kind, Unit};

struct Nothing;

impl Mount for Nothing {
    fn measure(&self, metrics: &Metrics) {
        metrics.memory_target.set(128 << 20);
        metrics.open_files.of("read").set(3);
    }

    fn uploads(&self) -> Vec<Upload> {
        vec![Upload { key: "a/b".into(), bytes: 7, state: "writing".into() }]
    }

    fn stage(&self) -> Option<Stage> {
        Some(Stage { directory: "/var/stage".into(), kept_files: 2, ..Stage::default() })
    }

    fn errors(&self) -> Vec<ErrorLine> {
        Vec::new()
    }

    fn hand_over(&self, within: Duration) -> BoxFuture<'static, String> {
        Box::pin(async move { format!("not within {} s", within.as_secs()) })
    }

    fn sync(&self, _below: PathBuf, _within: Duration) -> BoxFuture<'static, Result<Synced, String>> {
        Box::pin(async { Err("there is no stage".to_owned()) })
    }
}

pub(super) fn telemetry() -> Telemetry {
    let clock = Clock::manual();
    Telemetry {
        origin: Origin {
            bucket: "photos".into(),
            prefix: "a\"b\\c\n/".into(),
            mount_point: "/mnt/p".into(),
            cache: Some("/var/cache".into()),
            pid: 7,
            ..Origin::default()
        },
        metrics: Arc::default(),
        mount: Box::new(Nothing),
        rates: Rates::default(),
        started: clock.wall(),
        clock,
    }
}

#[test]
fn the_page_has_names_units_and_the_mount_as_prometheus_wants_them() {
    let told = telemetry();
    told.metrics.s3_bytes_received.add(5);
    told.metrics.s3_requests.of("GetObject").inc();
    told.metrics.fuse_latency.of("read").took(Duration::from_micros(40));
    told.metrics.fuse_io.of("read").record(4096);
    told.metrics.s3_errors.of("GetObject").of("503").inc();
    let page = told.page();
    let mount = r#"bucket="photos",prefix="a\"b\\c\n/",mount_point="/mnt/p""#;
    for line in [
        format!("s3_bytes_received_total{{{mount}}} 5\n"),
        format!("s3_request_count_total{{{mount},s3_request=\"GetObject\"}} 1\n"),
        format!("s3_request_count_total{{{mount},s3_request=\"PutObject\"}} 0\n"),
        format!("s3_request_errors_total{{{mount},s3_request=\"GetObject\",http_status=\"503\"}} 1\n"),
        format!("fuse_request_latency_microseconds_bucket{{{mount},le=\"50.0\",fuse_request=\"read\"}} 1\n"),
        format!("fuse_request_latency_microseconds_bucket{{{mount},le=\"25.0\",fuse_request=\"read\"}} 0\n"),
        // Without a bucket of this name Prometheus knows no quantile.
        format!("fuse_request_latency_microseconds_bucket{{{mount},le=\"+Inf\",fuse_request=\"read\"}} 1\n"),
        format!("fuse_request_latency_microseconds_sum{{{mount},fuse_request=\"read\"}} 40.0\n"),
        format!("fuse_io_size_bytes_count{{{mount},fuse_request=\"read\"}} 1\n"),
        format!("memory_target_bytes{{{mount}}} 134217728\n"),
        format!("fs_open_files{{{mount},mode=\"read\"}} 3\n"),
        "# TYPE fuse_request_latency_microseconds histogram\n".to_owned(),
        "# UNIT fuse_request_latency_microseconds microseconds\n".to_owned(),
    ] {
        assert!(page.contains(&line), "{line} is not in:\n{page}");
    }
    assert!(page.ends_with("# EOF\n"));
    assert!(!page.contains("le=\"50.0\",fuse_request=\"mkdir\""), "an empty histogram says nothing:\n{page}");
}

#[test]
fn the_state_has_what_was_measured_counted_and_is_open() {
    let told = telemetry();
    told.metrics.fuse_reads_ready.add(3);
    told.metrics.fuse_reads_waited.inc();
    told.metrics.fuse_latency.of("read").took(Duration::from_micros(40));
    told.clock.advance(Duration::from_secs(61));
    let status = told.status();
    assert_eq!((status.uptime_s, status.hits.reads, status.hits.disk_cache), (61, Some(0.75), None));
    assert_eq!((status.open_files.read, status.memory.target_bytes), (3, 128 << 20));
    assert_eq!(status.disk_cache.as_ref().map(|cache| cache.directory.as_str()), Some("/var/cache"));
    assert_eq!(status.stage.as_ref().map(|stage| stage.kept_files), Some(2));
    assert_eq!((status.latencies.len(), status.latencies[0].p50_us), (1, 50));
    let json = serde_json::to_string(&status).unwrap();
    assert!(json.contains(r#""bucket":"photos""#) && json.contains(r#""key":"a/b""#), "{json}");
    assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
}

#[test]
fn lines_of_the_log_say_what_moved_since_the_lines_before() {
    let metrics = Metrics::default();
    metrics.s3_bytes_received.add(10);
    metrics.fuse_latency.of("read").took(Duration::from_micros(40));
    let before = metrics.snapshot();
    let first = log::lines(&[], &before);
    assert!(first.contains(&"s3.bytes_received: +10 = 10".to_owned()), "{first:?}");
    assert!(!first.iter().any(|line| line.contains("PutObject")), "{first:?}");
    metrics.s3_bytes_received.add(5);
    metrics.s3_requests.of("GetObject").inc();
    metrics.fuse_latency.of("read").took(Duration::from_micros(900));
    metrics.memory_target.set(9);
    let lines = log::lines(&before, &metrics.snapshot());
    assert!(lines.contains(&"s3.bytes_received: +5 = 15".to_owned()), "{lines:?}");
    assert!(lines.contains(&"s3.request_count[s3_request=GetObject]: +1 = 1".to_owned()), "{lines:?}");
    let latency =
        "fuse.request_latency[fuse_request=read]: n=1 mean=900 p50<=1000 p90<=1000 p99<=1000 max<=1000 us";
    assert!(lines.contains(&latency.to_owned()), "{lines:?}");
    assert!(lines.contains(&"memory.target: 9".to_owned()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("PutObject")), "{lines:?}");
}

#[test]
fn latencies_are_histograms_and_processor_time_is_a_counter() {
    for metric in Metrics::default().snapshot() {
        let kind = match metric.name {
            name if name.ends_with("latency") => Some(Kind::Histogram),
            name if name.ends_with("cpu_time") => Some(Kind::Counter),
            _ => None,
        };
        let of_time = (metric.unit == Unit::Micros).then_some(metric.kind);
        assert_eq!(of_time, kind, "{}", metric.name);
    }
}

#[test]
fn a_runtime_directory_of_another_user_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(places(Some(dir.path())).len(), 2);
    let of_another = match std::os::unix::fs::chown(dir.path(), Some(65_534), None) {
        Ok(()) => dir.path(),
        // Without root: root's.
        Err(_) => std::path::Path::new("/"),
    };
    assert_eq!(places(Some(of_another)), places(None));
}

#[tokio::test]
async fn a_socket_is_for_its_user_names_the_mount_and_goes_with_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let runtime_dir = tempfile::tempdir().unwrap();
    let place = places(Some(runtime_dir.path())).remove(0);
    let folder = &place.folder;
    let told = Arc::new(telemetry());
    let supervisor = Supervisor { metrics: Arc::default(), clock: Clock::machine() };
    std::fs::create_dir(folder).unwrap();
    std::fs::write(folder.join("1.json"), serde_json::to_vec(&told.origin).unwrap()).unwrap();
    let ended = std::os::unix::net::UnixListener::bind(folder.join("1.sock")).unwrap();
    // Shut down explicitly: the child of another test inherits the socket until it calls exec.
    rustix::net::shutdown(&ended, rustix::net::Shutdown::Both).unwrap();
    drop(ended);
    let handle = tokio::runtime::Handle::current();
    let registered =
        control::Registered::serve(std::slice::from_ref(&place), &told, &supervisor, &handle).unwrap();
    let entries = read_entries(&place);
    assert_eq!(
        entries.iter().map(|entry| &entry.origin).collect::<Vec<_>>(),
        [&told.origin],
        "the dead one is gone"
    );
    assert!(!entries[0].is_gone());
    for file in std::fs::read_dir(folder).unwrap() {
        assert_eq!(file.unwrap().metadata().unwrap().permissions().mode() & 0o777, PERMITTED);
    }
    drop(registered);
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
}

#[test]
fn of_two_mounts_the_newer_comes_first_whatever_the_process_ids() {
    let folder = tempfile::tempdir().unwrap();
    let uid = rustix::process::geteuid().as_raw();
    for (pid, age_s) in [(1, 10), (2, 30), (3, 20)] {
        let path = folder.path().join(format!("{pid}.json"));
        std::fs::write(&path, serde_json::to_vec(&Origin { pid, uid, ..Origin::default() }).unwrap())
            .unwrap();
        let file = std::fs::File::options().append(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(age_s)).unwrap();
    }
    let place = SocketFolder { folder: folder.path().to_owned(), owner: Some(uid) };
    let pids: Vec<_> = read_entries(&place).iter().map(|entry| entry.origin.pid).collect();
    assert_eq!(pids, [1, 3, 2]);
}

#[tokio::test]
async fn a_folder_that_others_may_write_to_is_not_used() {
    use std::os::unix::fs::PermissionsExt as _;
    let runtime_dir = tempfile::tempdir().unwrap();
    let folder = runtime_dir.path().join("mount-s3");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let supervisor = Supervisor { metrics: Arc::default(), clock: Clock::machine() };
    let handle = tokio::runtime::Handle::current();
    let told = Arc::new(telemetry());
    let place = SocketFolder { folder: folder.clone(), owner: None };
    let refused = control::Registered::serve(std::slice::from_ref(&place), &told, &supervisor, &handle);
    assert!(refused.unwrap_err().to_string().contains("only this user may write"));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_mount_without_a_folder_for_its_socket_says_so_and_does_not_warn() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let supervisor = Supervisor { metrics: Arc::default(), clock: Clock::machine() };
    let told = Arc::new(telemetry());
    let dir = tempfile::tempdir().unwrap();
    // Nothing can be made below a file.
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let log = crate::testing::log_of(|| {
        let places = [SocketFolder::below(&file, None)];
        let handle = runtime.handle();
        assert!(control::Registered::serve_or_say(&places, &told, &supervisor, handle).is_none());
    });
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains(" INFO ") && log.contains("mount-s3-ctl will not find this mount"), "{log}");
}
