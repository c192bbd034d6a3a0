//! Keys from services: a token exchanged for a role's keys (web identity), a container's agent, the instance's metadata, single sign-on.
//! Each service is a script on loopback that answers as AWS documents, and demands the same as AWS.

use std::fs;
use std::io::{BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;

use super::start::fails_with;
use crate::common::{Setup, Store, TestMount, command};

const TOKEN: &str = "the-session-token";

/// A request: method and target, head in small letters, body.
struct Asked {
    line: String,
    head: String,
    body: String,
}

/// A service, with its received requests.
struct Service {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Service {
    /// `answer`: status and body.
    fn start(answer: impl Fn(&Asked) -> (u16, String) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(answer));
        let log = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    while let Some(request) = read(&mut reader) {
                        log.lock().unwrap().push(request.line.clone());
                        let (status, body) = answer(&request);
                        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
                        if stream
                            .write_all(
                                format!("{head}x-aws-ec2-metadata-token-ttl-seconds: 600\r\n\r\n{body}")
                                    .as_bytes(),
                            )
                            .is_err()
                        {
                            return;
                        }
                    }
                });
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn read(reader: &mut impl std::io::BufRead) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && head != "\r\n" {
        reader.read_line(&mut head).ok().filter(|read| *read > 0)?;
    }
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |text| text.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { line, head, body: String::from_utf8(body).unwrap() })
}

/// An hour from now.
fn expiry() -> String {
    DateTime::from(SystemTime::now() + Duration::from_secs(3600)).fmt(Format::DateTime).unwrap()
}

/// The keys in the form of a container's agent and the instance's metadata.
fn keys() -> String {
    format!(
        r#"{{"Code":"Success","Type":"AWS-HMAC","AccessKeyId":"{}","SecretAccessKey":"{}","Token":"{TOKEN}","Expiration":"{}","LastUpdated":"2020-01-01T00:00:00Z"}}"#,
        Store::ACCESS_KEY,
        Store::SECRET_KEY,
        expiry()
    )
}

/// A mount without keys of its own reads and writes, and its requests carry the session token.
fn works(store: &Arc<Store>, setup: Setup) -> bool {
    let tap = crate::common::Tap::to(store);
    let setup = Setup { has_keys: false, endpoint: Some(tap.endpoint()), ..setup };
    let Some(mount) = TestMount::of(store, &setup) else { return false };
    store.plant("in", b"1");
    assert_eq!(fs::read(mount.path("in")).unwrap(), b"1");
    fs::write(mount.path("out"), b"2").unwrap();
    assert_eq!(store.get("out").unwrap(), b"2");
    let heads = tap.asked("GET /");
    assert!(!heads.is_empty());
    assert!(heads.iter().all(|head| head.contains(&format!("x-amz-security-token: {TOKEN}"))), "{heads:?}");
    assert!(!mount.log().contains(TOKEN), "a secret is in the log");
    true
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn a_web_identity_token_is_exchanged_for_the_keys_of_a_role() {
    let store = Store::new();
    let token = store.home().join("token");
    write(&token, "the-web-identity-token");
    let service = Service::start(|asked| {
        let has = |part: &str| asked.body.split('&').any(|it| it == part);
        let is_right = asked.line.starts_with("POST /")
            && has("Action=AssumeRoleWithWebIdentity")
            && has("WebIdentityToken=the-web-identity-token")
            && has("RoleArn=arn%3Aaws%3Aiam%3A%3A111122223333%3Arole%2Freader");
        if !is_right || asked.head.contains("authorization:") {
            return (400, String::new());
        }
        let body = format!(
            "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleWithWebIdentityResult>\
             <Credentials><AccessKeyId>{}</AccessKeyId><SecretAccessKey>{}</SecretAccessKey><SessionToken>{TOKEN}</SessionToken>\
             <Expiration>{}</Expiration></Credentials><AssumedRoleUser><AssumedRoleId>r:s</AssumedRoleId>\
             <Arn>arn:aws:sts::111122223333:assumed-role/reader/s</Arn></AssumedRoleUser>\
             </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
            Store::ACCESS_KEY,
            Store::SECRET_KEY,
            expiry()
        );
        (200, body)
    });
    let setup = Setup::new(&[])
        .env("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap())
        .env("AWS_ROLE_ARN", "arn:aws:iam::111122223333:role/reader")
        .env("AWS_ENDPOINT_URL_STS", &service.url);
    if works(&store, setup) {
        assert_eq!(service.asked().len(), 1, "{:?}", service.asked());
    }
}

/// MinIO's answer names no role.
#[test]
fn a_token_service_that_names_no_role_hands_out_keys_all_the_same() {
    for role in [
        "<AssumedRoleUser><Arn></Arn><AssumeRoleId></AssumeRoleId></AssumedRoleUser>",
        "<AssumedRoleUser><Arn>minio</Arn></AssumedRoleUser>",
    ] {
        let store = Store::new();
        let token = store.home().join("token");
        write(&token, "the-web-identity-token");
        let service = Service::start(move |_| {
            let body = format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
                 <AssumeRoleWithWebIdentityResult>{role}<Credentials><AccessKeyId>{}</AccessKeyId><SecretAccessKey>{}</SecretAccessKey>\
                 <Expiration>{}</Expiration><SessionToken>{TOKEN}</SessionToken></Credentials></AssumeRoleWithWebIdentityResult>\
                 </AssumeRoleWithWebIdentityResponse>",
                Store::ACCESS_KEY,
                Store::SECRET_KEY,
                expiry()
            );
            (200, body)
        });
        let setup = Setup::new(&[])
            .env("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap())
            .env("AWS_ROLE_ARN", "arn:minio:iam:::role/reader")
            .env("AWS_ENDPOINT_URL_STS", &service.url);
        if !works(&store, setup) {
            return;
        }
    }
}

#[test]
fn a_token_service_that_fails_differs_in_its_error_from_an_unconfigured() {
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    let token = store.home().join("token");
    write(&token, "HUSHHUSH");
    let service = Service::start(|_| (400, "<Error><Message>HUSHHUSH</Message></Error>".to_owned()));
    let refused = "a source that is configured, such as a role by web identity, gives none";
    for (url, words) in [
        (
            "http://127.0.0.1:1",
            "a source of credentials can't be reached: no connection to 127.0.0.1:1: Connection refused",
        ),
        (&service.url, refused),
    ] {
        let setup = Setup::new(&[])
            .env("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap())
            .env("AWS_ROLE_ARN", "arn:aws:iam::111122223333:role/reader")
            .env("AWS_ENDPOINT_URL_STS", url);
        let setup = Setup { has_keys: false, ..setup };
        let said = fails_with(dir.path(), &mut command(&store, dir.path(), &setup), &[words]);
        assert!(!said.contains("none found") && !said.contains("HUSHHUSH"), "{said}");
    }
}

#[test]
fn the_agent_of_a_container_is_asked_with_its_token() {
    let store = Store::new();
    let service = Service::start(|asked| match asked.head.contains("authorization: the-agents-token\r\n") {
        true if asked.line == "GET /v1/credentials" => (200, keys()),
        _ => (403, String::new()),
    });
    let token = store.home().join("agent");
    write(&token, "the-agents-token");
    let setup = Setup::new(&[])
        .env("AWS_CONTAINER_CREDENTIALS_FULL_URI", &format!("{}/v1/credentials", service.url))
        .env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.to_str().unwrap());
    if works(&store, setup) {
        assert_eq!(service.asked().len(), 1, "{:?}", service.asked());
    }
}

#[test]
fn keys_that_expire_at_a_time_with_an_offset_are_taken() {
    for form in ["+00:00", ""] {
        let store = Store::new();
        let service = Service::start(move |_| {
            (200, keys().replace("Z\",\"LastUpdated", &format!("{form}\",\"LastUpdated")))
        });
        let url = format!("{}/v1/credentials", service.url);
        if !works(&store, Setup::new(&[]).env("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url)) {
            return;
        }
    }
}

/// The line ends of a secret that was made from a file.
#[test]
fn keys_and_a_region_of_the_environment_that_end_in_a_line_end_work() {
    let store = Store::new();
    let setup = Setup::new(&[])
        .env("AWS_ACCESS_KEY_ID", &format!("{}\n", Store::ACCESS_KEY))
        .env("AWS_SECRET_ACCESS_KEY", &format!("{}\r\n", Store::SECRET_KEY))
        .env("AWS_SESSION_TOKEN", &format!("{TOKEN}\n"))
        .env("AWS_REGION", "us-east-1\n");
    works(&store, setup);
    let dir = tempfile::tempdir().unwrap();
    let broken = Setup { has_keys: false, ..Setup::new(&[]) }
        .env("AWS_ACCESS_KEY_ID", "HUSH\nHUSH")
        .env("AWS_SECRET_ACCESS_KEY", "secret");
    let said = fails_with(dir.path(), &mut command(&store, dir.path(), &broken), &["AWS_ACCESS_KEY_ID"]);
    assert!(!said.contains("HUSH"), "{said}");
}

#[test]
fn an_answer_of_more_than_16_mib_gives_no_keys() {
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    let service = Service::start(|_| (200, keys() + &" ".repeat(16 << 20)));
    let url = format!("{}/v1/credentials", service.url);
    let setup = Setup { has_keys: false, ..Setup::new(&[]).env("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url) };
    fails_with(dir.path(), &mut command(&store, dir.path(), &setup), &["credentials"]);
    assert_eq!(service.asked(), ["GET /v1/credentials"]);
}

#[test]
fn the_metadata_of_the_instance_are_asked_with_a_session() {
    let store = Store::new();
    let service = Service::start(|asked| {
        let in_session = asked.head.contains("x-aws-ec2-metadata-token: a-session\r\n");
        match asked.line.as_str() {
            "PUT /latest/api/token" if asked.head.contains("x-aws-ec2-metadata-token-ttl-seconds:") => {
                (200, "a-session".to_owned())
            }
            "GET /latest/meta-data/iam/security-credentials/" if in_session => (200, "a-role".to_owned()),
            "GET /latest/meta-data/iam/security-credentials/a-role" if in_session => (200, keys()),
            _ if in_session => (404, String::new()),
            _ => (401, String::new()),
        }
    });
    let setup = Setup::new(&[])
        .env("AWS_EC2_METADATA_DISABLED", "false")
        .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.url);
    if works(&store, setup) {
        let asked = service.asked();
        assert!(asked.iter().any(|line| line.ends_with("/security-credentials/a-role")), "{asked:?}");
    }
}

#[test]
fn a_sign_on_that_is_cached_is_exchanged_for_the_keys_of_a_role() {
    let store = Store::new();
    let service = Service::start(|asked| {
        let is_right = asked.line.starts_with("GET /federation/credentials?")
            && asked.line.contains("role_name=reader")
            && asked.line.contains("account_id=111122223333")
            && asked.head.contains("x-amz-sso_bearer_token: the-access-token\r\n");
        if !is_right {
            return (401, String::new());
        }
        let end = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() + 3_600_000;
        let body = format!(
            r#"{{"roleCredentials":{{"accessKeyId":"{}","secretAccessKey":"{}","sessionToken":"{TOKEN}","expiration":{end}}}}}"#,
            Store::ACCESS_KEY,
            Store::SECRET_KEY
        );
        (200, body)
    });
    let config = "[profile p]\nsso_session = s\nsso_account_id = 111122223333\nsso_role_name = reader\n\
                  [sso-session s]\nsso_region = us-east-1\nsso_start_url = https://example.com/start\n";
    write(&store.home().join(".aws/config"), config);
    // The name is the SHA-1 of the session's: s.
    let cached = format!(r#"{{"accessToken":"the-access-token","expiresAt":"{}"}}"#, expiry());
    write(&store.home().join(".aws/sso/cache/a0f1490a20d0211c997b44bc357e1972deab8ae3.json"), &cached);
    let setup = Setup::new(&["--profile", "p"]).env("AWS_ENDPOINT_URL_SSO", &service.url);
    if works(&store, setup) {
        assert_eq!(service.asked().len(), 1, "{:?}", service.asked());
    }
}
