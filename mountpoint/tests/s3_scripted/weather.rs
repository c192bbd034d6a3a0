//! A store that is busy or silent, and requests that must not wait for each other.

use std::time::{Duration, Instant, SystemTime};

use mountpoint::clock::Clock;
use mountpoint::object::ObjectKey;
use mountpoint::s3::{Config, ErrorKind, ObjectClient as _, S3Client, Timeouts};

use super::server::{EMPTY_LISTING, Scripted, Step, Then};
use super::{bench, config, fill, get_request, http_date};

fn found() -> Step {
    Step::answer(200, &[("etag", "e"), ("last-modified", &http_date(SystemTime::now()))], b"")
}

#[tokio::test]
async fn a_store_that_names_a_time_is_not_asked_before_it_in_either_form() {
    let date = http_date(SystemTime::now() + Duration::from_secs(3));
    for (after, least) in [("1", Duration::from_secs(1)), (&date, Duration::from_secs(1))] {
        let busy = Step::answer(503, &[("retry-after", after)], b"<Error><Code>SlowDown</Code></Error>");
        let bench = bench(vec![busy, found()]).await;
        let started = Instant::now();
        bench.client.head_object(&ObjectKey::new("k")).await.unwrap();
        assert!(started.elapsed() >= least, "{after}: asked again after {:?}", started.elapsed());
    }
}

async fn connect(server: &Scripted, config: Config) -> std::sync::Arc<S3Client> {
    let connected = S3Client::connect(config, Clock::machine(), std::sync::Arc::default()).await;
    connected.unwrap_or_else(|error| panic!("{}: {error}", server.url()))
}

#[tokio::test]
async fn without_a_number_of_tries_time_is_the_limit() {
    // Far more refusals than the ten tries that used to be the end.
    let script = std::iter::once(Step::answer(200, &[], EMPTY_LISTING));
    let script = script.chain((0..500).map(|_| Step::error(503, "SlowDown")));
    let server = Scripted::start(script.collect());
    let timeouts = Timeouts { operation: Duration::from_millis(1500), ..Timeouts::default() };
    let client = connect(&server, Config { attempts_max: None, timeouts, ..config(&server) }).await;
    let started = Instant::now();
    let error = client.head_object(&ObjectKey::new("k")).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Throttled, "{error}");
    assert!(started.elapsed() >= Duration::from_millis(1500), "the last try begins when the time is up");
}

#[tokio::test]
async fn what_is_small_is_answered_while_bulk_holds_its_connections() {
    const LEN: u64 = 1 << 20;
    let hung = || Step::silence(Then::Stall(60_000));
    let script = vec![Step::answer(200, &[], EMPTY_LISTING), hung(), hung(), found(), found()];
    let server = Scripted::start(script);
    // Four connections: two at most are for bulk.
    let timeouts = Timeouts::default();
    let client = connect(&server, Config { connections_max: 4, timeouts, ..config(&server) }).await;
    let bulk: Vec<_> = (0..6)
        .map(|_| {
            let client = std::sync::Arc::clone(&client);
            tokio::spawn(async move {
                let (mut into, _) = fill(LEN as usize);
                client.get_object(&get_request(LEN..2 * LEN, 2 * LEN), &mut into).await
            })
        })
        .collect();
    while server.requests().len() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..2 {
        client.head_object(&ObjectKey::new("k")).await.unwrap();
    }
    let lines: Vec<_> = server.requests().iter().map(|r| r.line[..4].to_owned()).collect();
    assert_eq!(lines, ["GET ", "GET ", "GET ", "HEAD", "HEAD"], "four more GETs stand in line");
    bulk.iter().for_each(tokio::task::JoinHandle::abort);
}
