//! Host names, resolved as on any machine: a name that contains the bucket, a name with two addresses.
//!
//! Each test starts itself again in a separate mount namespace with its own `/etc/hosts`. The tests replace no part of the resolver,
//! and no other process on the machine sees their names.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::Arc;

use futures_util::future::join_all;
use mountpoint::metrics::Metrics;
use mountpoint::object::ObjectKey;
use mountpoint::s3::{Config, NewObject, ObjectClient as _, PutObject, S3Client};

use super::server::{EMPTY_LISTING, Scripted, Step, Then};
use super::{config, http_date};

const INSIDE: &str = "MOUNT_S3_TEST_HAS_ITS_OWN_NAMES";
const ONE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// Runs the test of this name again where these lines are `/etc/hosts`. `true`: this is that run.
pub(crate) fn with_hosts(test: &str, hosts: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let unshare = |program: &str| {
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", program]);
        command
    };
    if !testkit::need("a mount namespace", unshare("true").output().is_ok_and(|ran| ran.status.success())) {
        return false;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), hosts).unwrap();
    let mut inside = unshare("sh");
    inside.args(["-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""]).arg(file.path());
    inside.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    let ran = inside.output().unwrap();
    let said = [ran.stdout, ran.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    false
}

fn found() -> Step {
    Step::answer(200, &[("etag", "e"), ("last-modified", &http_date(std::time::SystemTime::now()))], b"")
}

async fn connect(server: &Scripted, config: Config) -> (Arc<S3Client>, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::default());
    let client = S3Client::connect(config, server.clock(), Arc::clone(&metrics)).await.unwrap();
    (client, metrics)
}

#[tokio::test]
async fn the_bucket_stands_in_the_host_or_in_the_path_of_every_request() {
    let test = "names::the_bucket_stands_in_the_host_or_in_the_path_of_every_request";
    if !with_hosts(test, "127.0.0.1 s3.test bucket.s3.test\n") {
        return;
    }
    let created = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
    for (force_path_style, host, base) in [(false, "bucket.s3.test", ""), (true, "s3.test", "/bucket")] {
        let server = Scripted::start(vec![
            Step::answer(200, &[], EMPTY_LISTING),
            found(),
            Step::answer(200, &[("etag", "e")], b""),
            Step::answer(200, &[], created),
        ]);
        let endpoint_url = Some(format!("http://s3.test:{}", server.port()));
        let (client, _) =
            connect(&server, Config { endpoint_url, force_path_style, ..config(&server) }).await;
        let key = ObjectKey::new("dir/k ü");
        client.head_object(&key).await.unwrap();
        let object = NewObject::new(key);
        client.put_object(&PutObject { object: object.clone(), body: vec![], checksum: None }).await.unwrap();
        client.create_multipart_upload(&object).await.unwrap();

        let asked = server.requests();
        let lines: Vec<_> = asked.iter().map(|r| r.line.strip_suffix(" HTTP/1.1").unwrap()).collect();
        let list = if base.is_empty() { "/" } else { base };
        assert!(lines[0].starts_with(&format!("GET {list}?encoding-type=url&list-type=2&")), "{lines:?}");
        assert_eq!(lines[1], format!("HEAD {base}/dir/k%20%C3%BC"));
        assert_eq!(lines[2], format!("PUT {base}/dir/k%20%C3%BC"));
        assert_eq!(lines[3], format!("POST {base}/dir/k%20%C3%BC?uploads="));
        for request in &asked {
            assert_eq!(request.header("host"), Some(&*format!("{host}:{}", server.port())), "{request:?}");
            let signed = request.header("authorization").unwrap();
            assert!(signed.contains("host;") || signed.contains(";host"), "{signed}");
            assert_eq!(request.connection, 0, "one host, one connection: {request:?}");
        }
    }
}

#[tokio::test]
async fn connections_spread_over_both_addresses_of_a_name() {
    if !with_hosts(
        "names::connections_spread_over_both_addresses_of_a_name",
        &format!("{ONE} s3.test\n{OTHER} s3.test\n"),
    ) {
        return;
    }
    const AT_ONCE: usize = 8;
    let script = [vec![Step::answer(200, &[], EMPTY_LISTING)], vec![found(); AT_ONCE]].concat();
    let server = Scripted::start_at(&[ONE, OTHER], script);
    let endpoint_url = Some(format!("http://s3.test:{}", server.port()));
    let (client, metrics) =
        connect(&server, Config { endpoint_url, force_path_style: true, ..config(&server) }).await;
    let key = ObjectKey::new("k");
    // All objects are asked for before the first answer can be read, so each request needs a separate connection.
    for answer in join_all((0..AT_ONCE).map(|_| client.head_object(&key))).await {
        answer.unwrap();
    }
    let mut connections: BTreeMap<usize, IpAddr> = BTreeMap::new();
    for request in server.requests() {
        connections.insert(request.connection, request.address);
    }
    assert_eq!(connections.len() as u64, metrics.s3_connections.get());
    let at = |address: Ipv4Addr| connections.values().filter(|at| **at == address).count();
    assert!(at(ONE).abs_diff(at(OTHER)) <= 1 && at(ONE) > 0 && at(OTHER) > 0, "{connections:?}");
    assert_eq!(metrics.s3_retries.get(), 0);
}

#[tokio::test]
async fn a_dead_address_beside_a_live_one_fails_no_request() {
    if !with_hosts(
        "names::a_dead_address_beside_a_live_one_fails_no_request",
        &format!("{ONE} s3.test\n{OTHER} s3.test\n"),
    ) {
        return;
    }
    for alive in [ONE, OTHER] {
        const REQUESTS: usize = 8;
        let once = |step: Step| step.then(Then::Close);
        let script =
            [vec![once(Step::answer(200, &[], EMPTY_LISTING))], vec![once(found()); REQUESTS]].concat();
        // The store closes after each answer, so that every request needs a new connection, and nothing listens on
        // the other address.
        let server = Scripted::start_at(&[alive], script);
        let endpoint_url = Some(format!("http://s3.test:{}", server.port()));
        let config =
            Config { endpoint_url, force_path_style: true, attempts_max: Some(1), ..config(&server) };
        let (client, metrics) = connect(&server, config).await;
        for _ in 0..REQUESTS {
            client.head_object(&ObjectKey::new("k")).await.unwrap();
        }
        assert_eq!((server.left(), metrics.s3_errors.get()), (0, 0));
        assert!(server.requests().iter().all(|r| r.address == alive));
    }
}
