//! First contact: the messages for a start that can't work. One line: the attempt, the reason, and the flag or the command that helps.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use s3server::{Effect, Fault};
use testkit::DeadPort;

use super::start::fails_with;
use crate::common::certificates::Certificates;
use crate::common::{Setup, Store, TestMount, command, until};

/// Answers each connection with `talk`, until the test ends.
fn serve(talk: impl Fn(std::net::TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(talk));
    address
}

/// A server that says this to each request.
fn says(answer: &'static str) -> SocketAddr {
    serve(move |mut stream| {
        let mut request = [0; 4096];
        let _ = stream.read(&mut request);
        let _ = stream.write_all(answer.as_bytes());
    })
}

/// A server that answers the first bytes of TLS with these.
fn greets(answer: &'static [u8]) -> SocketAddr {
    serve(move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(answer);
        // Closed with bytes unread, it would be reset before the answer is read.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {}
    })
}

/// OpenSSL's server of TLS 1.1 to a client of 1.2: an alert, protocol_version.
const OF_TLS_1_1: &[u8] = b"\x15\x03\x03\x00\x02\x02\x46";

/// A store that goes on by TLS 1.1, as if the client had offered it: a server's hello of that version.
const BY_TLS_1_1: &[u8] =
    b"\x16\x03\x02\x00\x2a\x02\x00\x00\x26\x03\x020123456789abcdef0123456789abcdef\x00\x00\x2f\x00";

/// A server that shakes hands, and no more.
fn shakes_hands(config: Arc<ServerConfig>) -> SocketAddr {
    serve(move |stream| {
        let tls = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
        let _ = rustls::StreamOwned::new(tls, stream).read(&mut [0; 4096]);
    })
}

/// The configuration of a server whose own certificate is signed by itself; and that certificate as a file.
fn signed_by_itself(
    change: impl FnOnce(&mut CertificateParams),
    folder: &Path,
) -> (Arc<ServerConfig>, String) {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let path = folder.join("own.pem");
    fs::write(&path, certificate.pem()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = tls.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
    (Arc::new(config), path.to_str().unwrap().to_owned())
}

/// One start that can't work.
struct Case {
    name: &'static str,
    setup: Setup,
    /// Variables of the environment that are taken away.
    without: &'static [&'static str],
    /// Words in the line, including the flag or command that helps.
    words: &'static [&'static str],
}

fn case(name: &'static str, setup: Setup, words: &'static [&'static str]) -> Case {
    Case { name, setup, without: &[], words }
}

fn at(endpoint: String) -> Setup {
    Setup { endpoint: Some(endpoint), ..Setup::new(&[]) }
}

fn of_bucket(bucket: &str) -> Setup {
    Setup { bucket: bucket.to_owned(), ..Setup::new(&[]) }
}

const KEY: &str = "AWS_ACCESS_KEY_ID";
const SECRET: &str = "AWS_SECRET_ACCESS_KEY";

/// The cases of a store that answers, up to its refusals.
fn by_credentials_and_names() -> Vec<Case> {
    vec![
        Case {
            without: &[KEY, SECRET],
            ..case("no credentials", Setup::new(&[]), &[KEY, "--profile", "--no-sign-request", "--debug"])
        },
        Case {
            without: &[SECRET],
            ..case("an access key alone", Setup::new(&[]), &["AWS_SECRET_ACCESS_KEY is not set", "set both"])
        },
        Case {
            without: &[KEY],
            ..case("a secret alone", Setup::new(&[]), &["AWS_ACCESS_KEY_ID is not set", "set both"])
        },
        case(
            "a profile that is not there",
            Setup::new(&["--profile", "nobody"]),
            &["nobody", "aws configure list"],
        ),
        case(
            "a wrong secret",
            Setup::new(&[]).env(SECRET, "wrong"),
            &["SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY or --profile"],
        ),
        case(
            "an unknown access key",
            Setup::new(&[]).env(KEY, "unknown"),
            &["InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID or --profile", "--endpoint-url"],
        ),
        case(
            "a bucket that is not public",
            Setup::new(&["--no-sign-request"]),
            &["403", "leave --no-sign-request out"],
        ),
        case(
            "a bucket that is not there",
            of_bucket("missing"),
            &["missing", "NoSuchBucket", "--endpoint-url"],
        ),
        case("an upper-case bucket", of_bucket("Missing"), &["lower-case", "did you mean missing?"]),
        case(
            "an authority whose file is missing",
            Setup::new(&["--ca-bundle", "/nowhere.pem"]),
            &["--ca-bundle", "/nowhere.pem"],
        ),
    ]
}

/// The cases of other servers than a store, or of TLS.
fn by_server(folder: &Path, store: &Store, dead: &DeadPort, other: &Certificates) -> Vec<Case> {
    let named = Certificates::of(&["127.0.0.1"]);
    let trusting = |address: SocketAddr, bundle: &str| Setup {
        endpoint: Some(format!("https://{address}")),
        ..Setup::new(&["--ca-bundle", bundle])
    };
    let authority = |params: &mut CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let folders = ["authority", "expired"].map(|name| folder.join(name));
    folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let (as_authority, its_file) = signed_by_itself(authority, &folders[0]);
    let past = |params: &mut CertificateParams| params.not_after = date_time_ymd(2020, 1, 1);
    let (expired, expired_file) = signed_by_itself(past, &folders[1]);
    let other_file = other.ca_bundle().to_str().unwrap().to_owned();
    let page = "HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n<html>console</html>";
    let absent = "HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nnot found";
    // The answer of Go's servers.
    let expects_tls = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
    let elsewhere =
        "HTTP/1.1 301 X\r\nx-amz-bucket-region: eu-west-3\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let strange = shakes_hands(named.server());
    vec![
        case(
            "https to a port without TLS",
            at(format!("https://{}", store.address())),
            &["speaks no TLS", "--endpoint-url http://127.0.0.1"],
        ),
        case(
            "http to a port with TLS",
            at(format!("http://{}", shakes_hands(named.server()))),
            &["TLS", "--endpoint-url https://127.0.0.1"],
        ),
        case(
            "http to a server that says so",
            at(format!("http://{}", says(expects_tls))),
            &["TLS", "--endpoint-url https://127.0.0.1"],
        ),
        case(
            "an unknown authority",
            at(format!("https://{strange}")),
            &["UnknownIssuer", "--ca-bundle FILE", "--extra-ca-bundle"],
        ),
        case(
            "an authority's certificate as that of the store",
            trusting(shakes_hands(as_authority), &its_file),
            &["the certificate of an authority as its own", "--ca-bundle"],
        ),
        case(
            "a certificate for another name",
            trusting(shakes_hands(other.server()), &other_file),
            &["127.0.0.1", "--endpoint-url that stands in the certificate"],
        ),
        case(
            "a certificate that has ended",
            trusting(shakes_hands(expired), &expired_file),
            &["renew the certificate", "timedatectl"],
        ),
        case("TLS 1.1", at(format!("https://{}", greets(OF_TLS_1_1))), &["TLS 1.2", "--endpoint-url"]),
        case(
            "TLS 1.1 whatever was asked",
            at(format!("https://{}", greets(BY_TLS_1_1))),
            &["TLS 1.2", "--endpoint-url"],
        ),
        case("a dead port", at(format!("http://{}", dead.address())), &["refused", "check --endpoint-url"]),
        case("a console", at(format!("http://{}", says(page))), &["no S3 store answers", "--endpoint-url"]),
        case("another web server", at(format!("http://{}", says(absent))), &["404", "--endpoint-url"]),
        case(
            "another region",
            at(format!("http://{}", says(elsewhere))),
            &["not us-east-1", "give --region eu-west-3"],
        ),
    ]
}

#[test]
fn each_failed_start_names_the_flag_or_the_command_that_helps() {
    let (store, folder, dead) = (Store::new(), tempfile::tempdir().unwrap(), DeadPort::reserve());
    let mut cases = by_credentials_and_names();
    let other = Certificates::of(&["s3.example.org"]);
    cases.extend(by_server(folder.path(), &store, &dead, &other));
    let dir = folder.path().join("mount");
    fs::create_dir(&dir).unwrap();
    let fails = |dir: &Path, case: &Case| {
        eprintln!("{}:", case.name);
        let mut command = command(&store, dir, &case.setup);
        case.without.iter().for_each(|name| _ = command.env_remove(name));
        eprint!("{}", fails_with(dir, &mut command, case.words));
    };
    cases.iter().for_each(|case| fails(&dir, case));

    // Refusals of a store that knows the keys.
    let denied = Effect::Error { status: 403, code: "AccessDenied".to_owned() };
    store.faults().add(Fault::on("ListObjectsV2", denied));
    let doctor = &["AccessDenied", "s3:ListBucket", "--prefix", "mount-s3-ctl doctor bucket"];
    fails(&dir, &case("a bucket that may not be listed", Setup::new(&[]), doctor));
    fails(&dir, &case("a prefix that may not be listed", Setup::new(&["--prefix", "a/"]), doctor));
    store.faults().clear();

    // Directories that are missing, or are files.
    let (missing, file) = (folder.path().join("missing"), folder.path().join("file"));
    fs::write(&file, b"").unwrap();
    fails(&missing, &case("a directory that is not there", Setup::new(&[]), &["does not exist", "mkdir -p"]));
    fails(&file, &case("a file", Setup::new(&[]), &["is not a directory", "mkdir -p"]));

    assert!(cases.len() + 4 >= 25, "{} cases", cases.len() + 4);
}

#[test]
fn an_option_of_fstab_that_is_not_known_is_named_with_where_to_look() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mount-s3"));
    let output = command.args(["bucket", "/nowhere", "-o", "ro,typo"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for word in ["'--typo'", "mount-s3 --help", "without '--'"] {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
}

#[test]
fn over_a_mount_and_over_a_dead_one_the_command_to_unmount_is_named() {
    let Some(mut mount) = TestMount::new(&[]) else { return };
    let words = ["already mounted", "umount"];
    let again = |mount: &TestMount| {
        let output = command(mount.store(), mount.dir(), &Setup::new(&[])).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = again(&mount);
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    mount.kill_9();
    until("the engine is gone", || fs::metadata(mount.dir()).is_err());
    let said = again(&mount);
    let command = format!("umount -l {}", mount.dir().display());
    assert!(said.contains("whose process has ended") && said.contains(&command), "{said}");
}

#[test]
fn a_directory_with_files_and_flags_that_do_nothing_are_warnings() {
    let Some(mount) = TestMount::new(&["--read-only", "--allow-delete"]) else { return };
    let said = |words: &str| mount.complaints().iter().any(|line| line.contains(words));
    assert!(said("--allow-delete has no effect with --read-only"), "{}", mount.log());
    assert!(!said("is not empty"), "{}", mount.log());
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("file"), b"").unwrap();
    let mut command = command(
        &store,
        dir.path(),
        &Setup { endpoint: Some("http://127.0.0.1:1".to_owned()), ..Setup::new(&[]) },
    );
    let output = command.output().unwrap();
    let log = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(log.contains("is not empty: what is in it is hidden"), "{log}");
}
