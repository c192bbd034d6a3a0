//! The command `scality-s3-csi-driver`, as a container starts it.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use csi::proto::csi::controller_client::ControllerClient;
use csi::proto::csi::identity_client::IdentityClient;
use csi::proto::csi::volume_capability::{AccessMode, AccessType, MountVolume, access_mode};
use csi::proto::csi::{CreateVolumeRequest, GetPluginInfoRequest, VolumeCapability};
use rustix::process::{Pid, Signal, kill_process};
use testkit::port::listens_on;
use testkit::settings::{self, unwrapped};
use testkit::{until, until_it_ends};

const DRIVER: &str = env!("CARGO_BIN_EXE_scality-s3-csi-driver");

fn driver(args: &[&str], environment: &[(&str, &str)]) -> Output {
    settings::run(DRIVER, args, environment)
}

#[test]
fn the_version_is_json_on_standard_output() {
    let said = driver(&["--version"], &[("NODE_MOUNTER", "no variable of the environment counts")]);
    assert!(said.status.success());
    let json: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!(json["driverVersion"], csi::contract::VERSION);
    for key in ["gitCommit", "buildDate", "platform"] {
        assert!(json[key].is_string(), "{key}: {json}");
    }
}

#[test]
fn a_driver_that_can_not_run_says_why_in_one_line_and_shows_no_key() {
    let keys = [("AWS_ACCESS_KEY_ID", "HUSHHUSH"), ("AWS_SECRET_ACCESS_KEY", "HUSHHUSH")];
    let url = ("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    let node = ("CSI_NODE_NAME", "worker-1");
    for (args, environment, words) in [
        (&[][..], &[node][..], "AWS_ENDPOINT_URL is missing"),
        (&["--v=5"], &[url], "CSI_NODE_NAME"),
        (&[], &[("CSI_CONTROLLER_ONLY", "true")], "AWS_ENDPOINT_URL is missing"),
        (&[], &[url, node, ("AWS_SESSION_TOKEN", "HUSHHUSH HUSHHUSH")], "AWS_SESSION_TOKEN"),
    ] {
        let environment: Vec<_> = environment.iter().chain(&keys).copied().collect();
        let said = driver(args, &environment);
        assert_eq!(said.status.code(), Some(1), "{words}");
        let log = String::from_utf8(said.stderr).expect("a log is text");
        let last = log.lines().last().unwrap_or_default();
        assert!(last.contains("the driver ends:") && last.contains(words), "{words}: {log}");
        assert!(!log.contains("HUSHHUSH"), "{log}");
    }
}

#[test]
fn an_invalid_setting_is_named_with_flag_and_variable_in_one_line() {
    let invalid = [
        ("--endpoint", "", "http://127.0.0.1:1", "is neither unix:///path/to.sock nor tcp://"),
        ("--health-address", "", "somewhere", "invalid socket address"),
        ("--v", "", "loud", "invalid digit"),
        ("--log", "RUST_LOG", "csi=loud=1", "is \"csi=loud=1\": error parsing level filter"),
        ("--log-format", "LOG_FORMAT", "xml", "neither text nor json"),
        ("--controller-only", "CSI_CONTROLLER_ONLY", "yes", "must be true or false"),
        ("--endpoint-url", "AWS_ENDPOINT_URL", "s3.HUSH.example.com", "s3.endpointUrl"),
        ("--endpoint-url", "AWS_ENDPOINT_URL", "http://a:HUSH@s3.example.com", "s3.endpointUrl"),
        (
            "--allowed-endpoints",
            "ALLOWED_ENDPOINTS",
            "https://b.test,http://a:HUSH@c.test",
            "s3.allowedEndpoints",
        ),
        ("--kubelet-path", "KUBELET_PATH", "kubelet", "node.kubeletPath"),
        ("--mounter", "NODE_MOUNTER", "docker", "node.mounter"),
        ("--degraded", "NODE_DEGRADED", "docker", "node.degraded"),
        ("--sts-endpoint-url", "AWS_ENDPOINT_URL_STS", "http://a:HUSH@c.test", "podIdentity.stsEndpointUrl"),
        ("--pod-identity-agent-url", "POD_IDENTITY_AGENT_URL", "http://HUSH@c.test", "podIdentity.agentUrl"),
    ];
    settings::each_is_refused_in_one_line(DRIVER, &invalid, &["--controller-only"]);
}

#[test]
fn a_variable_that_is_not_utf_8_is_named() {
    let said = Command::new(DRIVER)
        .env_clear()
        .env("AWS_REGION", std::ffi::OsStr::from_bytes(b"eu-\xff"))
        .output()
        .expect("the driver starts");
    assert_eq!(String::from_utf8_lossy(&said.stderr), "error: AWS_REGION is not UTF-8\n");
}

/// Goal: a key can't be an argument, so that it does not show in the list of processes; and the help shows no value of a variable with a secret.
#[test]
fn keys_and_proxies_come_from_the_environment_alone() {
    let mounter = env!("CARGO_BIN_EXE_scality-s3-csi-mounter");
    for (program, variables) in [
        (DRIVER, ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"]),
        (mounter, ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"]),
    ] {
        let run = |argument: &str| {
            let mut command = Command::new(program);
            command.env_clear().envs(variables.map(|name| (name, "HUSHHUSH"))).arg(argument);
            let said = command.output().expect("the program starts");
            (said.status.code(), unwrapped([said.stdout, said.stderr].concat()))
        };
        let (code, refusal) = run("KEYKEYKEY");
        assert_eq!(code, Some(2), "{refusal}");
        assert!(!refusal.contains("KEYKEYKEY") && refusal.contains("every argument is a flag"), "{refusal}");
        let (code, help) = run("--help");
        assert_eq!(code, Some(0), "{help}");
        assert!(!help.contains("HUSHHUSH"), "{help}");
        for name in variables {
            assert!(help.contains(&format!("[env: {name}]")), "{name}: {help}");
        }
    }
}

/// Goal: a program reads every variable that the chart sets for its container.
#[test]
fn each_variable_of_the_chart_is_in_the_help_of_its_program() {
    let templates =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../helm/scality-mountpoint-s3-csi-driver/templates");
    let help = |program: &str| {
        let said = Command::new(program).env_clear().arg("--help").output().expect("the program starts");
        unwrapped(said.stdout)
    };
    let of_driver = help(DRIVER);
    let of_install = help(env!("CARGO_BIN_EXE_install-mp"));
    let text = |name: &str| std::fs::read_to_string(templates.join(name)).expect("the chart is here");
    // The reconciler's container comes after the controller service's: the reconciler's crate has the test of its variables.
    let controller = text("controller.yaml");
    let (service, _) =
        controller.split_once("- name: s3-pod-reconciler").expect("the container of the reconciler");
    let mut seen = 0;
    for text in [text("node.yaml"), service.to_owned(), text("_helpers.tpl")] {
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("- name: "));
        for name in names.filter(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_')) {
            // A word for the chart's own arguments.
            if name != "CSI_ENDPOINT" {
                let listed = |help: &str| help.contains(&format!("[env: {name}"));
                assert!(listed(&of_driver) || listed(&of_install), "{name}");
                seen += 1;
            }
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn a_log_in_json_has_one_object_a_line() {
    let said = driver(&["--log-format=json"], &[("CSI_NODE_NAME", "worker-1")]);
    let log = String::from_utf8(said.stderr).expect("a log is text");
    let last: serde_json::Value = serde_json::from_str(log.lines().last().unwrap_or_default()).expect("JSON");
    assert_eq!(last["level"], "ERROR");
    let message = last["fields"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("AWS_ENDPOINT_URL is missing"), "{last}");
    let said = driver(&[], &[("LOG_FORMAT", "xml")]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("neither text nor json"));
}

/// Goal: no log line contains the keys of a call, at any log level.
#[tokio::test]
async fn the_controller_service_logs_calls_without_their_secrets() {
    const HUSH: &str = "HUSHHUSH";
    let folder = tempfile::tempdir().unwrap();
    let (kubeconfig, socket) = (folder.path().join("kubeconfig"), folder.path().join("csi.sock"));
    std::fs::write(&kubeconfig, kubeconfig_of("http://127.0.0.1:1")).unwrap();
    let mut driver = Command::new(DRIVER)
        .arg(format!("--endpoint=unix://{}", socket.display()))
        .args(["--health-address=127.0.0.1:0", "--v=5"])
        .env_clear()
        .env("KUBECONFIG", &kubeconfig)
        .env("RUST_LOG", "trace")
        .env("CSI_CONTROLLER_ONLY", "true")
        .env("CSI_CLUSTER_ID", "cluster")
        .env("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        .stderr(std::fs::File::create(folder.path().join("log")).unwrap())
        .spawn()
        .unwrap();
    // The socket shows a moment before it listens.
    until("the driver serves", || UnixStream::connect(&socket).is_ok());
    let endpoint = tonic::transport::Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let mut controller = ControllerClient::new(channel);
    let secrets =
        ["access_key_id", "secret_access_key", "session_token"].map(|key| (key.to_owned(), HUSH.to_owned()));
    let mode = AccessMode { mode: access_mode::Mode::MultiNodeMultiWriter.into() };
    let access_type = Some(AccessType::Mount(MountVolume::default()));
    let call = CreateVolumeRequest {
        name: "pvc-1".into(),
        volume_capabilities: vec![VolumeCapability { access_mode: Some(mode), access_type }],
        secrets: secrets.into(),
        ..Default::default()
    };
    let status = controller.create_volume(call).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
    kill_process(Pid::from_child(&driver), Signal::TERM).unwrap();
    driver.wait().unwrap();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains("CreateVolume") && log.contains("pvc-1"), "{log}");
    assert!(!log.contains(HUSH) && !format!("{status:?}").contains(HUSH), "{log}");
}

fn kubeconfig_of(server: &str) -> String {
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": server}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    });
    config.to_string()
}

/// Goal: SIGTERM ends the driver while it waits for an API server that never answers and for a client that never finishes. The limit here
/// is a loaded machine's; the driver's own is `csi::server::GRACE`.
#[test]
fn sigterm_ends_the_driver_whatever_it_waits_for() {
    let folder = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", silent.local_addr().unwrap());
    let (kubeconfig, socket) = (folder.path().join("kubeconfig"), folder.path().join("csi.sock"));
    std::fs::write(&kubeconfig, kubeconfig_of(&server)).unwrap();
    for is_serving in [false, true] {
        let driver = Command::new(DRIVER)
            .arg(format!("--endpoint=unix://{}", socket.display()))
            .arg("--health-address=127.0.0.1:0")
            .env_clear()
            .env("KUBECONFIG", &kubeconfig)
            .env("KUBELET_PATH", folder.path())
            .env("CSI_NODE_NAME", "worker-1")
            .env("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut clients = Vec::new();
        if is_serving {
            let mut port = None;
            until("the driver serves", || {
                port = listens_on(driver.id());
                port.is_some()
            });
            let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port.unwrap())).unwrap();
            client.write_all(b"GET /healthz HTTP/1.1\r\nHost: ").unwrap();
            clients.push(client);
        } else {
            // The driver asks the API server for its version.
            clients.push(silent.accept().unwrap().0);
        }
        kill_process(Pid::from_child(&driver), Signal::TERM).unwrap();
        let output = until_it_ends(driver, testkit::until::LIMIT);
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "serving: {is_serving}: {log}");
    }
}

/// The longest payload of a frame, unless both sides agree on another one.
const FRAME_MAX: usize = 16 << 10;
/// Bytes that a flood offers on one connection.
const FLOOD: usize = 64 << 20;
/// Bytes of a flood that may leave us: the sockets' buffers hold some that the driver never takes.
const TAKEN_MAX: usize = 2 << 20;
/// Connections that flood at the same time.
const FLOODS: usize = 8;
/// The growth of the driver's memory that is allowed meanwhile, in KiB: a fraction of one flood.
const GROWTH_MAX_KIB: u64 = 16 << 10;

/// A frame of HTTP/2 without flags, such as END_HEADERS.
fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&len[1..], &[kind, 0], &stream.to_be_bytes(), payload].concat()
}

/// Sends HEADERS, then CONTINUATION frames with this payload for as long as the driver takes them. Returns the number of bytes sent, and
/// the answer until the driver closes the connection.
fn flood(socket: &std::path::Path, first: &[u8], more: &[u8]) -> (usize, Vec<u8>) {
    const SETTINGS: u8 = 4;
    const HEADERS: u8 = 1;
    const CONTINUATION: u8 = 9;
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_write_timeout(Some(testkit::until::LIMIT)).unwrap();
    stream.set_read_timeout(Some(testkit::until::LIMIT)).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&frame(SETTINGS, 0, &[])).unwrap();
    stream.write_all(&frame(HEADERS, 1, first)).unwrap();
    let one = frame(CONTINUATION, 1, more);
    let mut sent = 0;
    while sent < FLOOD {
        match stream.write_all(&one) {
            Ok(()) => sent += one.len(),
            Err(error) => {
                let kinds = [std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::ConnectionReset];
                assert!(kinds.contains(&error.kind()), "neither taken nor closed: {error}");
                break;
            }
        }
    }
    let mut answer = Vec::new();
    // The last words of the driver, which may have closed the connection with bytes of ours unread.
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the connection stays: {error}");
    }
    (sent, answer)
}

/// Goal: a client of the socket that never ends its headers costs neither memory nor other clients' calls.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_continuation_frames_ends_its_connection_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (kubeconfig, socket) = (folder.path().join("kubeconfig"), folder.path().join("csi.sock"));
    std::fs::write(&kubeconfig, kubeconfig_of("http://127.0.0.1:1")).unwrap();
    let mut driver = Command::new(DRIVER)
        .arg(format!("--endpoint=unix://{}", socket.display()))
        .arg("--health-address=127.0.0.1:0")
        .env_clear()
        .env("KUBECONFIG", &kubeconfig)
        .env("KUBELET_PATH", folder.path())
        .env("CSI_NODE_NAME", "worker-1")
        .env("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        .spawn()
        .unwrap();
    until("the driver serves", || UnixStream::connect(&socket).is_ok());
    let peak_kib = |driver: &std::process::Child| -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", driver.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let endpoint = tonic::transport::Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    let mut other = IdentityClient::new(endpoint.connect().await.unwrap());
    other.get_plugin_info(GetPluginInfoRequest {}).await.unwrap();
    let at_first = peak_kib(&driver);
    // First a header that never ends: a literal name, and a value of 128 MiB. Then complete headers, and short ones.
    let endless = [&[0, 1, b'x'][..], &[0x7f, 0x81, 0xff, 0xff, 0x3f]].concat();
    let whole = [&[0, 1, b'x', 0x7f, 0x81, 0x7d][..], "y".repeat(16_128).as_bytes()].concat();
    let kinds = [
        (endless, vec![b'y'; FRAME_MAX]),
        (vec![], whole),
        (vec![], vec![0, 1, b'x', 1, b'y']),
        (vec![], vec![]),
    ];
    for (first, more) in kinds {
        let floods: Vec<_> = (0..FLOODS)
            .map(|_| {
                let (socket, first, more) = (socket.clone(), first.clone(), more.clone());
                tokio::task::spawn_blocking(move || flood(&socket, &first, &more))
            })
            .collect();
        other.get_plugin_info(GetPluginInfoRequest {}).await.expect("another client is served meanwhile");
        for flood in floods {
            let (sent, answer) = flood.await.unwrap();
            assert!(sent < TAKEN_MAX, "{sent} bytes of frames of {} bytes; it said {answer:x?}", more.len());
        }
        other.get_plugin_info(GetPluginInfoRequest {}).await.expect("its connection is still there");
    }
    let grown = peak_kib(&driver) - at_first;
    assert!(grown <= GROWTH_MAX_KIB, "{grown} KiB more than {at_first}");
    let mut last = IdentityClient::new(endpoint.connect().await.unwrap());
    last.get_plugin_info(GetPluginInfoRequest {}).await.expect("a new client is served");
    kill_process(Pid::from_child(&driver), Signal::TERM).unwrap();
    driver.wait().unwrap();
}
