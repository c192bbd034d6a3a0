//! A small receiver of OpenTelemetry's protocol: decodes a real mount's messages by the published protocol's own types.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::{metric::Data, number_data_point};
use prost::Message as _;

use crate::common::{BUCKET, Setup, Store, TestMount};

/// One received request.
struct Posted {
    head: String,
    message: ExportMetricsServiceRequest,
}

/// Receives until the test ends.
fn receiver() -> (String, mpsc::Receiver<Posted>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (send, posted) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let send = send.clone();
            std::thread::spawn(move || {
                while let Some(one) = receive(&stream) {
                    if send.send(one).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, posted)
}

fn receive(mut stream: &TcpStream) -> Option<Posted> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    loop {
        let before = head.len();
        reader.read_line(&mut head).ok().filter(|n| *n > 0)?;
        if head[before..].trim().is_empty() {
            break;
        }
    }
    let len = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; len?];
    reader.read_exact(&mut body).ok()?;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    Some(Posted {
        head,
        message: ExportMetricsServiceRequest::decode(body.as_slice()).expect("the published message"),
    })
}

/// The sum of the counter's points that have this attribute.
fn sum(posted: &Posted, name: &str, attribute: &str) -> i64 {
    let metrics =
        posted.message.resource_metrics.iter().flat_map(|r| &r.scope_metrics).flat_map(|s| &s.metrics);
    let points = metrics.filter(|metric| metric.name == name).flat_map(|metric| match &metric.data {
        Some(Data::Sum(sum)) => sum.data_points.clone(),
        other => panic!("{name}: {other:?}"),
    });
    let wanted = Value::StringValue(attribute.to_owned());
    let of_it = points.filter(|point| {
        point.attributes.iter().any(|a| a.value.as_ref().and_then(|v| v.value.as_ref()) == Some(&wanted))
    });
    of_it
        .map(|point| match point.value {
            Some(number_data_point::Value::AsInt(value)) => value,
            other => panic!("{other:?}"),
        })
        .sum()
}

#[test]
fn a_mount_exports_every_interval_and_once_more_when_it_ends() {
    let (store, (url, posted)) = (Store::new(), receiver());
    let setup = Setup::new(&["--otlp-endpoint", &url, "--otlp-export-interval", "3600"])
        .env("OTEL_SERVICE_NAME", "photos")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=hush");
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    fs::write(mount.path("new"), b"bytes").unwrap();
    drop(mount);
    let last = posted.recv_timeout(Duration::from_secs(60)).expect("the last export");
    assert!(last.head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{}", last.head);
    let head = last.head.to_ascii_lowercase();
    assert!(
        head.contains("content-type: application/x-protobuf\r\n") && head.contains("x-key: hush\r\n"),
        "{head}"
    );
    assert_eq!((sum(&last, "s3.request_count", "PutObject"), sum(&last, "s3.bytes_sent", BUCKET)), (1, 5));
    let service = &last.message.resource_metrics[0].resource.as_ref().unwrap().attributes[0];
    assert_eq!(service.key, "service.name");

    let setup = Setup::new(&["--otlp-export-interval", "1", "--otlp-endpoint", &url]);
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    fs::write(mount.path("second"), b"bytes").unwrap();
    let mut puts = 0;
    // Changes since the export before: together they are all there was.
    while puts == 0 {
        let one = posted.recv_timeout(Duration::from_secs(60)).expect("an export");
        puts += sum(&one, "s3.request_count", "PutObject");
    }
    drop(mount);
    puts += posted.try_iter().map(|one| sum(&one, "s3.request_count", "PutObject")).sum::<i64>();
    assert_eq!(puts, 1);
}

#[test]
fn a_receiver_that_is_away_is_said_once_and_delays_no_end() {
    let store = Store::new();
    let away = testkit::DeadPort::reserve();
    let url = format!("http://{}", away.address());
    let setup = Setup::new(&["--otlp-endpoint", &url, "--otlp-export-interval", "1"])
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=hush");
    let Some(mut mount) = TestMount::of(&store, &setup) else { return };
    fs::write(mount.path("new"), b"bytes").unwrap();
    crate::common::until("the log says it", || mount.log().contains("metrics can't be exported to"));
    assert!(mount.end_by(rustix::process::Signal::TERM).success());
    let log = mount.log();
    assert!(log.matches("metrics can't be exported to").count() == 1 && !log.contains("hush"), "{log}");
}
