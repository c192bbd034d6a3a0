//! A call of the kubelet, from its attributes, mount options and Secret to the arguments of the engine: a plan that holds nothing but what the
//! driver allows, or an error without a secret.
//!
//! The input is text, one field of the call a line ([`Words::read`]); `seeds/volume_context/` has calls to begin with.
#![no_main]

use std::path::Path;

// The files of csi/ name them.
use base16ct as _;
use clap as _;
use libfuzzer_sys::fuzz_target;
use mountpoint::cli::{Asked, asked};
use sha2 as _;
use strsim as _;

// The files alone: the rest of their crate speaks to Kubernetes, and would be built with the sanitizer.
#[expect(dead_code, reason = "the driver and the reconciler use the rest")]
#[path = "../../csi/src/node"]
mod node {
    pub mod credentials;
    pub mod options;
    pub mod publish;
    pub mod target;
}

#[expect(dead_code, reason = "the driver and the reconciler use the rest")]
#[path = "../../csi/src/contract"]
mod contract {
    pub mod cache;
    pub mod quantity;
    pub mod stage;
    pub mod target;
    pub mod volume;

    pub const DRIVER: &str = "s3.csi.scality.com";
    pub const VERSION: &str = "3.0.0";

    /// A stand-in for a hash: a digest never says what it is made of.
    pub fn digest(parts: &[&str]) -> String {
        format!("{:016x}", parts.concat().len())
    }
}

/// The part of the crate's errors that the files need.
mod error {
    pub type Result<T> = std::result::Result<T, Error>;

    #[derive(Debug, PartialEq, Eq)]
    pub enum ErrorKind {
        InvalidArgument,
        FailedPrecondition,
    }

    #[derive(Debug)]
    pub struct Error {
        pub kind: ErrorKind,
        pub message: String,
    }

    impl Error {
        pub fn new(kind: ErrorKind, message: impl std::fmt::Display) -> Self {
            Self { kind, message: message.to_string() }
        }

        pub fn invalid(message: impl std::fmt::Display) -> Self {
            Self::new(ErrorKind::InvalidArgument, message)
        }
    }
}

/// The types of the crate that the files fill.
#[expect(dead_code, reason = "Events are not written here")]
mod events {
    pub struct WorkloadRef {
        pub namespace: String,
        pub name: String,
        pub uid: String,
    }
}

mod mounter {
    pub struct Credentials {
        pub access_key_id: String,
        pub secret_access_key: String,
        pub session_token: Option<String>,
    }

    pub struct Token(pub String);
}

/// The messages as `csi.proto` makes them.
#[expect(dead_code, reason = "some fields are not asked for")]
mod proto {
    pub mod csi {
        use std::collections::HashMap;

        #[derive(Default)]
        pub struct NodePublishVolumeRequest {
            pub volume_id: String,
            pub publish_context: HashMap<String, String>,
            pub staging_target_path: String,
            pub target_path: String,
            pub volume_capability: Option<VolumeCapability>,
            pub readonly: bool,
            pub secrets: HashMap<String, String>,
            pub volume_context: HashMap<String, String>,
        }

        #[derive(Default)]
        pub struct VolumeCapability {
            pub access_type: Option<volume_capability::AccessType>,
            pub access_mode: Option<volume_capability::AccessMode>,
        }

        pub mod volume_capability {
            pub enum AccessType {
                Block(()),
                Mount(MountVolume),
            }

            #[derive(Default)]
            pub struct MountVolume {
                pub mount_flags: Vec<String>,
                pub volume_mount_group: String,
            }

            pub struct AccessMode(pub i32);

            impl AccessMode {
                pub fn mode(&self) -> access_mode::Mode {
                    use access_mode::Mode;
                    match self.0 {
                        1 => Mode::SingleNodeWriter,
                        2 => Mode::SingleNodeReaderOnly,
                        3 => Mode::MultiNodeReaderOnly,
                        4 => Mode::MultiNodeSingleWriter,
                        5 => Mode::MultiNodeMultiWriter,
                        6 => Mode::SingleNodeSingleWriter,
                        7 => Mode::SingleNodeMultiWriter,
                        _ => Mode::Unknown,
                    }
                }
            }

            pub mod access_mode {
                pub enum Mode {
                    Unknown,
                    SingleNodeWriter,
                    SingleNodeReaderOnly,
                    MultiNodeReaderOnly,
                    MultiNodeSingleWriter,
                    MultiNodeMultiWriter,
                    SingleNodeSingleWriter,
                    SingleNodeMultiWriter,
                }
            }
        }
    }
}

use contract::cache::{self, Cache};
use contract::{stage, volume};
use error::{Error, ErrorKind};
use node::credentials::{AuthenticationSource, resolve, token};
use node::options::{Inputs, MountOptions, Rule, TABLE};
use node::publish::{PublishRequest, is_arn};
use proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use proto::csi::{NodePublishVolumeRequest, VolumeCapability};

const KUBELET: &str = "/var/lib/kubelet";
const AUDIENCE: &str = "sts.amazonaws.com";
/// A part of each secret. An input that says it elsewhere is not tried.
const CANARY: &str = "CANARY";

/// The words of an input.
#[derive(Default)]
struct Words {
    call: NodePublishVolumeRequest,
    mount: MountVolume,
    is_block: bool,
    mode: i32,
    kubernetes: Option<String>,
}

impl Words {
    /// Reads lines: a letter for the field, a space, and the rest, in which `\n` and `\0` stand for those characters.
    fn read(text: &str) -> Self {
        let mut words = Self::default();
        words.call.volume_id = "pv-1".to_owned();
        words.call.target_path = format!("{KUBELET}/pods/8f2c0f0e-1/volumes/kubernetes.io~csi/pv-1/mount");
        words.mode = 5;
        for line in text.lines() {
            let (field, rest) = line.split_once(' ').unwrap_or((line, ""));
            let rest = rest.replace("\\n", "\n").replace("\\0", "\0");
            let (key, value) = rest.split_once('=').unwrap_or((&rest, ""));
            let (key, value) = (key.to_owned(), value.to_owned());
            match field {
                "a" => drop(words.call.volume_context.insert(key, value)),
                // Tokens of the service account, where the kubelet puts them: into the attributes, or into the secrets.
                "at" => {
                    drop(words.call.volume_context.insert(volume::CONTEXT_TOKENS.to_owned(), tokens(&rest)))
                }
                "st" => drop(words.call.secrets.insert(volume::CONTEXT_TOKENS.to_owned(), tokens(&rest))),
                // A proxy's address may hold a password.
                "p" => drop(
                    words.call.volume_context.insert(format!("{}{key}", volume::ENGINE_ENV), secret(&value)),
                ),
                "s" => drop(words.call.secrets.insert(key, secret(&value))),
                "o" => words.mount.mount_flags.push(rest),
                "g" => words.mount.volume_mount_group = rest,
                "h" => words.call.volume_id = rest,
                "t" => words.call.target_path = rest,
                "m" => words.mode = rest.parse().unwrap_or_default(),
                "b" => words.is_block = true,
                "r" => words.call.readonly = true,
                "k" => words.kubernetes = Some(rest),
                _ => {}
            }
        }
        words
    }

    fn call(self) -> NodePublishVolumeRequest {
        let access_type = Some(match self.is_block {
            true => AccessType::Block(()),
            false => AccessType::Mount(self.mount),
        });
        let access_mode = Some(AccessMode(self.mode));
        NodePublishVolumeRequest {
            volume_capability: Some(VolumeCapability { access_type, access_mode }),
            ..self.call
        }
    }
}

fn secret(value: &str) -> String {
    match value {
        // An empty one has nothing to tell.
        "" => String::new(),
        value => format!("{CANARY}{value}"),
    }
}

fn tokens(value: &str) -> String {
    match value.strip_prefix('!') {
        Some(junk) => secret(junk),
        None => serde_json::json!({ AUDIENCE: { "token": secret(value) } }).to_string(),
    }
}

fn says_no_secret(what: &str) {
    assert!(!what.contains(CANARY), "a secret: {what}");
}

/// Plans a mount as `NodeService::publish` does, without what only a node knows.
fn plan(call: NodePublishVolumeRequest, kubernetes: Option<&str>) -> error::Result<()> {
    let is_inline = call.volume_context.get(volume::CONTEXT_EPHEMERAL).is_some_and(|it| it == "true");
    let has_secret = call.secrets.keys().any(|key| !key.starts_with(volume::OF_KUBELET));
    let own_prefix = call.volume_context.get(volume::PREFIX).filter(|it| !it.is_empty()).cloned();
    let request = PublishRequest::parse(call, Path::new(KUBELET))?;
    says_no_secret(&format!("{request:?}"));
    assert_eq!(request.inline, is_inline);
    assert!(!is_inline || has_secret, "an inline volume with the driver's keys");
    assert!(request.target.path.starts_with(KUBELET) && !request.handle.is_empty());
    assert_eq!(request.prefix, own_prefix);
    let is_of_folder = request.prefix.as_deref().is_none_or(|it| it.ends_with('/'));
    assert!(is_of_folder && !request.bucket.starts_with('-'), "{request:?}");
    for (name, value) in &request.engine_env {
        assert!(volume::ENGINE_VARIABLES.contains(&name.as_str()), "{name}");
        assert!(!value.chars().any(char::is_control), "a line more in the engine's environment: {name}");
    }
    for region in [&request.region, &request.sts_region].into_iter().flatten() {
        assert!(volume::is_region(region), "{region:?} becomes a part of a host's name");
    }

    let (source, keys) = resolve(&request.secrets, || Ok(None))?;
    assert_eq!(source == AuthenticationSource::Secret, has_secret, "whose keys");
    if let Some(keys) = keys {
        let mut all = vec![keys.access_key_id, keys.secret_access_key];
        all.extend(keys.session_token);
        // Each becomes a line of a file, and a header.
        assert!(all.iter().all(|it| !it.is_empty() && it.chars().all(|c| c.is_ascii_graphic())), "keys");
    }
    if request.authentication_source == AuthenticationSource::Pod && source != AuthenticationSource::Secret {
        let token = token(&request.secrets, &request.tokens, AUDIENCE)?;
        assert!(token.0.is_empty() || token.0.starts_with(CANARY), "another token than the workload's");
    }

    let cache = Cache::read(|key| request.cache.get(key).map(String::as_str), &request.mount_options)
        .map_err(Error::invalid)?;
    let made = MountOptions::new(&Inputs {
        volume: &request.volume,
        bucket: &request.bucket,
        prefix: request.prefix.as_deref(),
        options: &request.mount_options,
        inline: request.inline,
        cache: cache.as_ref(),
        no_stage: None,
        keeps_stages: true,
        fs_group: request.fs_group,
        read_only: request.volume_read_only,
        source,
        kubernetes,
    })?;
    says_no_secret(&format!("{made:?} {:?}", made.left_out(&request.volume)));
    check_plan(&request, &made, cache.is_some());
    Ok(())
}

/// Whether an argument is this flag, with a value or without.
fn is_flag(arg: &str, name: &str) -> bool {
    arg.strip_prefix("--")
        .and_then(|it| it.strip_prefix(name))
        .is_some_and(|it| it.is_empty() || it.starts_with('='))
}

/// Compares what the engine understands of the arguments with what the driver meant: nothing of the volume stands in place of the driver's own.
fn check_plan(request: &PublishRequest, made: &MountOptions, has_cache: bool) {
    let given = |name: &str| made.args.iter().filter(|arg| is_flag(arg, name)).collect::<Vec<_>>();
    let ours = ["user-agent-prefix", "cache", "stage"];
    for &(name, rule) in TABLE {
        let is_the_drivers = matches!(rule, Rule::Own | Rule::Strip(_) | Rule::Refuse(_) | Rule::Env(_));
        assert!(
            ours.contains(&name) || !is_the_drivers || given(name).is_empty(),
            "{name} in {:?}",
            made.args
        );
    }
    let agent = given("user-agent-prefix");
    assert!(agent.len() == 1 && agent[0].starts_with("--user-agent-prefix=s3-csi-driver/"), "{agent:?}");
    assert!(given("cache").iter().all(|it| **it == format!("--cache={}", cache::DIRECTORY)));
    assert!(given("stage").iter().all(|it| **it == format!("--stage={}", stage::DIRECTORY)));
    assert_eq!(
        given("cache").len(),
        usize::from(has_cache),
        "a cache without a volume for it, or none for a volume"
    );
    if let Some(prefix) = &request.prefix {
        assert_eq!(given("prefix"), [&format!("--prefix={prefix}")], "another part of the bucket");
    }
    assert!(!request.volume_read_only || !given("read-only").is_empty(), "a read-only volume can be written");
    if request.inline {
        let first = volume::NOT_INLINE.iter().find(|it| !given(it).is_empty());
        assert_eq!(first, None, "an option that a pod's author may not set");
    }
    assert!(!is_arn(&request.bucket) || given("force-path-style").is_empty());
    for (name, value) in &made.env {
        let is_count = value.parse::<u32>().is_ok_and(|it| it > 0);
        assert!(name == "AWS_MAX_ATTEMPTS" && is_count, "{name}={value}");
    }
    let line =
        ["mount-s3", &request.bucket, "/dev/fd/3"].into_iter().chain(made.args.iter().map(String::as_str));
    match asked(line.map(Into::into)) {
        Ok(Asked::Mount(args)) => {
            assert_eq!(args.bucket, request.bucket);
            assert_eq!(args.directory, Path::new("/dev/fd/3"));
            assert_eq!(args.check(), Ok(()));
        }
        _ => panic!("the engine reads another thing out of {:?}", made.args),
    }
}

fuzz_target!(|input: &[u8]| {
    let text = String::from_utf8_lossy(input);
    if text.contains(CANARY) {
        return;
    }
    let words = Words::read(&text);
    let kubernetes = words.kubernetes.clone();
    if let Err(Error { kind, message }) = plan(words.call(), kubernetes.as_deref()) {
        says_no_secret(&message);
        assert!(
            !message.is_empty()
                && [ErrorKind::InvalidArgument, ErrorKind::FailedPrecondition].contains(&kind)
        );
    }
});
