//! A store that is busy or silent, and requests that must not wait for each other.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mountpoint::clock::Clock;
use mountpoint::metrics::Metrics;
use mountpoint::object::ObjectKey;
use mountpoint::s3::{Config, ErrorKind, ListObjects, ObjectClient as _, S3Client, Timeouts};

use super::server::{EMPTY_LISTING, Scripted, Step, Then};
use super::{config, fill, get_request, http_date, pattern, timeouts};

fn found() -> Step {
    Step::answer(200, &[("etag", "e"), ("last-modified", &http_date(SystemTime::now()))], b"")
}

#[tokio::test]
async fn a_store_that_names_a_time_is_not_asked_before_it_in_either_form() {
    const LATER: Duration = Duration::from_secs(30);
    // The store's clock is an hour ahead, or as much behind, or its answers do not say.
    const HOUR: i64 = 3600;
    for (as_date, ahead_s) in [(false, None), (true, None), (true, Some(HOUR)), (true, Some(-HOUR))] {
        let server = Scripted::start(vec![Step::answer(200, &[], EMPTY_LISTING)]);
        let clock = server.clock();
        let client = connect(&server, config(&server)).await;
        let at = clock.now();
        let theirs = match ahead_s {
            Some(ahead @ 0..) => clock.wall() + Duration::from_secs(ahead.unsigned_abs()),
            Some(behind) => clock.wall() - Duration::from_secs(behind.unsigned_abs()),
            None => clock.wall(),
        };
        let after = if as_date { http_date(theirs + LATER) } else { LATER.as_secs().to_string() };
        let date = http_date(theirs);
        let mut headers = vec![("retry-after", &*after)];
        headers.extend(ahead_s.map(|_| ("date", &*date)));
        let busy = Step::answer(503, &headers, b"<Error><Code>SlowDown</Code></Error>");
        server.append([busy, found()]);
        client.head_object(&ObjectKey::new("k")).await.unwrap();
        // A date has no fractions of a second.
        let waited = clock.now() - at + Duration::from_secs(u64::from(as_date));
        assert!(waited >= LATER, "{after}: asked again after {waited:?}");
        assert!(waited < LATER * 3, "{after}: asked again after {waited:?}");
    }
}

async fn connect(server: &Scripted, config: Config) -> std::sync::Arc<S3Client> {
    let connected = S3Client::connect(config, server.clock(), std::sync::Arc::default()).await;
    connected.unwrap_or_else(|error| panic!("{}: {error}", server.url()))
}

#[tokio::test]
async fn without_a_number_of_tries_time_is_the_limit() {
    const LIMIT: Duration = Duration::from_secs(600);
    /// No pause between two tries is longer.
    const PAUSE: Duration = Duration::from_secs(5);
    // Far more refusals than the ten tries that used to be the end.
    let script = std::iter::once(Step::answer(200, &[], EMPTY_LISTING));
    let script = script.chain((0..2_000).map(|_| Step::error(503, "SlowDown")));
    let server = Scripted::still(script.collect());
    let timeouts = Timeouts { operation: LIMIT, ..timeouts() };
    let config = Config { attempts_max: None, timeouts, ..config(&server) };
    let (clock, metrics) = (server.clock(), Arc::new(Metrics::default()));
    let client = S3Client::connect(config, clock.clone(), Arc::clone(&metrics)).await.unwrap();
    let started = clock.now();
    // A try takes no time, however busy the machine is: only a client that pauses, which it counts first, has the clock turned.
    let turns = async {
        let mut pauses = 0;
        loop {
            while pauses < metrics.s3_retries.get() {
                clock.advance(PAUSE);
                pauses += 1;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let key = ObjectKey::new("k");
    let error = tokio::select! {
        answer = client.head_object(&key) => answer.unwrap_err(),
        () = turns => unreachable!("the clock is turned until the client gives up"),
    };
    assert_eq!(*error.kind(), ErrorKind::Throttled, "{error}");
    let took = clock.now() - started;
    assert!(took + PAUSE >= LIMIT && took <= LIMIT + PAUSE, "{took:?}");
    assert!(
        server.requests().len() as u64 > LIMIT.as_secs() / PAUSE.as_secs(),
        "{}",
        server.requests().len()
    );
}

#[tokio::test]
async fn an_answer_after_24_seconds_is_awaited_and_asked_for_once() {
    const LATE: Duration = Duration::from_secs(24);
    let etag = [("etag", "\"v1\""), ("content-range", "bytes 0-9/10")];
    let listing = || Step::answer(200, &[], EMPTY_LISTING).after(LATE);
    // The proof of the bucket is a listing, too. Nothing but the rests moves the clock.
    let server = Scripted::still(vec![
        listing(),
        listing(),
        Step::answer(206, &etag, &[7; 10]).after(LATE),
        found().after(LATE),
    ]);
    let mut timeouts = Timeouts::default();
    timeouts.patience(Duration::from_secs(60));
    let client = connect(&server, Config { timeouts, attempts_max: None, ..config(&server) }).await;
    client.list_objects(&ListObjects { max_keys: 1000, ..ListObjects::default() }).await.unwrap();
    let (mut into, _) = fill(10);
    client.get_object(&get_request(0..10, 10), &mut into).await.unwrap();
    client.head_object(&ObjectKey::new("k")).await.unwrap();
    assert_eq!((server.requests().len(), server.left()), (4, 0), "each is asked for once");
}

#[tokio::test]
async fn a_call_to_a_silent_store_ends_when_the_operations_time_is_over() {
    const LIMIT: Duration = Duration::from_secs(60);
    const TURN: Duration = Duration::from_millis(10);
    // A store that stays silent, and one that answers the last request alone.
    for answers in [false, true] {
        let silence = || Step::silence(Then::KeepAlive);
        let last = if answers { found() } else { silence() };
        let script = vec![Step::answer(200, &[], EMPTY_LISTING), silence(), silence(), last];
        let (asked, server) = (script.len(), Scripted::still(script));
        let mut timeouts = Timeouts::default();
        timeouts.patience(LIMIT);
        let config = Config { timeouts, attempts_max: None, ..config(&server) };
        let (clock, metrics) = (server.clock(), Arc::new(Metrics::default()));
        let client = S3Client::connect(config, clock.clone(), Arc::clone(&metrics)).await.unwrap();
        let (started, key) = (clock.now(), ObjectKey::new("k"));
        // Sending takes no time, however busy the machine is: the clock stands while a request or an answer is on its way.
        let turns = async {
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let (sent, received) =
                    (metrics.s3_requests.of("HeadObject").get() + 1, server.requests().len());
                if sent == received as u64 && !(answers && received == asked) {
                    clock.advance(TURN);
                }
            }
        };
        let answer = tokio::select! {
            answer = client.head_object(&key) => answer,
            () = turns => unreachable!("the clock is turned until the client gives up"),
        };
        let took = clock.now() - started;
        assert_eq!(server.requests().len(), asked, "three tries, the last with time for an answer");
        match answer {
            Ok(_) => assert!(answers && took < LIMIT, "{took:?}"),
            Err(error) => {
                assert!(!answers, "{error}");
                assert_eq!(*error.kind(), ErrorKind::Timeout, "{error}");
                assert!(took + TURN * 10 >= LIMIT && took <= LIMIT + TURN * 10, "{took:?}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn a_body_has_time_at_the_minimal_rate_and_below_it_ends_in_an_error() {
    const LEN: usize = 100_000;
    const LIMIT: Duration = Duration::from_secs(200);
    let etag = [("etag", "\"v1\""), ("content-range", "bytes 0-99999/100000")];
    let body = pattern(LEN);
    // Each 5 s this many bytes; 100 bytes/s are asked for, so 1000 s for the body, beside the 200 of any request.
    let drip = |bytes| Step::answer(206, &etag, &body).drip(LEN, bytes, Duration::from_secs(5));
    for (bytes, in_time) in [(700, true), (300, false)] {
        let server = Scripted::start(vec![Step::answer(200, &[], EMPTY_LISTING), drip(bytes)]);
        let timeouts = Timeouts { operation: LIMIT, rate_min: 100, ..timeouts() };
        let client = connect(&server, Config { timeouts, ..config(&server) }).await;
        let (mut into, received) = fill(LEN);
        let started = server.clock().now();
        let got = client.get_object(&get_request(0..LEN as u64, LEN as u64), &mut into).await;
        let took = server.clock().now() - started;
        match got {
            Ok(()) => assert!(in_time && took > LIMIT && received.bytes() == body, "{took:?}"),
            Err(error) => {
                assert!(!in_time, "{bytes} bytes each 5 s: {error}");
                assert_eq!(*error.kind(), ErrorKind::Timeout, "{error}");
                assert!(error.to_string().contains("the time for the whole operation is up"), "{error}");
                assert!(took >= LIMIT + Duration::from_secs(1000), "{took:?}");
                assert_eq!(server.requests().len(), 2, "it had all the time there is: {error}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_small_is_answered_while_bulk_holds_its_connections() {
    const LEN: u64 = 1 << 20;
    let hung = || Step::silence(Then::Stall);
    let script = vec![Step::answer(200, &[], EMPTY_LISTING), hung(), hung(), found(), found()];
    let server = Scripted::start(script);
    // Four connections: two at most are for bulk. On a clock that stands still nothing ends what hangs.
    let config = Config { connections_max: 4, ..config(&server) };
    let client = S3Client::connect(config, Clock::manual(), std::sync::Arc::default()).await.unwrap();
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

#[tokio::test]
async fn a_request_that_queued_for_long_is_signed_when_it_has_its_connection() {
    const LEN: usize = 60;
    const EVERY: Duration = Duration::from_secs(20);
    // All of 20 minutes on a slow line, by the server's clock; then the one connection is free.
    let slow = Step::answer(206, &[("etag", "\"v1\""), ("content-range", "bytes 0-59/60")], &pattern(LEN));
    let script = vec![Step::answer(200, &[], EMPTY_LISTING), slow.drip(LEN, 1, EVERY), found()];
    let server = Scripted::still(script);
    let config = Config { connections_max: 1, ..config(&server) };
    let client = connect(&server, config).await;
    let (mut into, _) = fill(LEN);
    let (request, key) = (get_request(0..LEN as u64, LEN as u64), ObjectKey::new("k"));
    // The second is polled once the first is on its way.
    let (got, looked) = tokio::join!(client.get_object(&request, &mut into), client.head_object(&key));
    got.unwrap();
    looked.unwrap();
    let dates: Vec<_> = server.requests()[1..].iter().map(signed_at).collect();
    let apart = dates[1].duration_since(dates[0]).unwrap();
    assert!(apart >= EVERY * LEN as u32 - Duration::from_secs(1), "{apart:?}");
}

/// The time of a request's signature.
fn signed_at(request: &super::server::Request) -> SystemTime {
    let stamp = request.header("x-amz-date").unwrap();
    let iso = format!(
        "{}-{}-{}T{}:{}:{}Z",
        &stamp[..4],
        &stamp[4..6],
        &stamp[6..8],
        &stamp[9..11],
        &stamp[11..13],
        &stamp[13..15]
    );
    let at =
        aws_smithy_types::DateTime::from_str(&iso, aws_smithy_types::date_time::Format::DateTime).unwrap();
    SystemTime::try_from(at).unwrap()
}
