//! The client's configuration: plain data. `cli/environment.rs` reads the environment.

use std::path::PathBuf;
use std::time::Duration;

use aws_credential_types::Credentials;

use crate::net::{self, ProxyVariables};
use crate::s3::StoreKind;

/// The address of the bucket, and the limits of requests. Each field says what setting or doubling it does.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix of the mount's keys. The first request lists it, so credentials limited to it suffice.
    pub prefix: String,
    /// Region to sign for. `None` asks the profile, then (on AWS) the instance, then takes the default of the store's kind (AWS:
    /// `us-east-1`), and changes once to the bucket's region if the store names another one.
    pub region: Option<String>,
    /// URL of the store (`http://127.0.0.1:9000`); `None` for AWS in the region.
    pub endpoint_url: Option<String>,
    /// Kind of the store; `None`: derived from the endpoint's name and the answers.
    pub store: Option<StoreKind>,
    /// Directory that keeps facts about the store, learned from uploads, for the next mount; `None`: the facts are not saved.
    pub state_dir: Option<PathBuf>,
    /// Always put the bucket into the path, never into the host name.
    pub force_path_style: bool,
    /// Use the endpoints of S3 Transfer Acceleration.
    pub transfer_acceleration: bool,
    /// Use endpoints that have IPv6 addresses too.
    pub dual_stack: bool,
    /// Use endpoints with validated cryptography.
    pub fips: bool,
    /// Network interfaces for connections to the store, used in turn. If empty, the routing table decides.
    pub interfaces: Vec<String>,
    /// Sign requests; `false` for public buckets.
    pub sign_requests: bool,
    /// Take credentials from this profile and nowhere else.
    pub profile: Option<String>,
    /// Sign with these credentials, and ask no other source.
    pub credentials: Option<Credentials>,
    /// Files that may contain the credentials. A changed file is read again at a later request.
    pub credential_files: Vec<PathBuf>,
    /// Trust the certificates of this PEM file instead of the system's.
    pub ca_bundle: Option<PathBuf>,
    /// Trust the certificates of these PEM files, too.
    pub extra_ca_bundles: Vec<PathBuf>,
    /// The proxies between the engine and the store, and between the engine and the sources of credentials.
    pub proxies: ProxyVariables,
    /// Agree to pay for requests and traffic (requester pays).
    pub requester_pays: bool,
    /// Account that must own the bucket; if another one does, the store denies the requests.
    pub expected_bucket_owner: Option<String>,
    /// Storage class of new objects; `None` for the bucket's default.
    pub storage_class: Option<String>,
    /// Encryption of new objects (`AES256`, `aws:kms`, `aws:kms:dsse`); `None` for the bucket's default.
    pub sse: Option<String>,
    /// Key of that encryption, by ARN.
    pub sse_kms_key_id: Option<String>,
    /// Text before the engine's name in the User-Agent header.
    pub user_agent_prefix: Option<String>,
    /// Hash each body with SHA-256 and sign the hash, for stores that demand it. Costs about 0.5 CPU-s more per GiB sent.
    pub sign_payload: bool,
    /// Most attempts of one request; the error of the last one is final. `None`: only the time is limited (`timeouts.operation`).
    pub attempts_max: Option<u32>,
    /// Most open connections; further requests wait in a queue. Doubling it lets twice as many requests run side by side, for twice the
    /// memory in the network's buffers.
    pub connections_max: usize,
    /// Throughput to aim for, in bytes per second. It decides the number of connections. Doubling it doubles them, up to `connections_max`.
    pub throughput_target: u64,
    /// The time limits.
    pub timeouts: Timeouts,
}

/// Time limits of connections and requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Time limit of one TCP (and TLS) handshake with one address. Doubling it finds farther hosts, and dead ones later.
    pub connect: Duration,
    /// Longest silence before the first byte of an answer, in every attempt. Beyond it, the request is sent again. Doubling it spares slow
    /// stores a retry, and finds hung ones later.
    pub first_byte: Duration,
    /// Time limit of CompleteMultipartUpload after its last byte is sent, up to the last byte of the answer. A store may join ten thousand
    /// parts in this time, and be silent meanwhile. Doubling it spares slow stores a second request, and makes close(2) wait longer for a
    /// lost answer.
    pub complete: Duration,
    /// Longest silence during a body. Doubling it tolerates longer pauses, and finds dead connections later.
    pub stall: Duration,
    /// Time after which a call fails if the store does not answer (`--operation-timeout`). An outage that ends a few seconds earlier causes
    /// no error. One exchange on a connection has the same time limit, plus the time of its body at `rate_min`. On a line shared with other
    /// transfers, the exchange may go on while it gets its share (`share.rs`). The wait in the queue for a connection does not count while
    /// bytes move on others. Doubling it bridges longer outages, and makes programs wait longer.
    pub operation: Duration,
    /// Idle time after which a connection is closed. Doubling it saves handshakes, if the store keeps its side open.
    pub idle: Duration,
    /// Time for which the addresses of a name are valid. Doubling it halves the DNS queries, and finds new addresses later.
    pub resolve: Duration,
    /// Least average rate of a body in bytes per second, alone or together with all bodies that share the line. Below it, the transfer
    /// fails. Doubling it finds a trickling store sooner, and requires a line that is twice as fast.
    pub rate_min: u64,
}

impl Timeouts {
    /// Shortest silence of a store that ends an attempt.
    const SILENCE_MIN: Duration = Duration::from_secs(5);
    /// Longest silence of a store that is tolerated. After this time, the limit of CompleteMultipartUpload, the store is not working on the
    /// request.
    const SILENCE_MAX: Duration = Duration::from_secs(300);

    /// Sets `operation`, and `first_byte` to half of it, so a silent store gets a second request before the time is up.
    pub fn patience(&mut self, operation: Duration) {
        self.operation = operation;
        self.first_byte = (operation / 2).clamp(Self::SILENCE_MIN, Self::SILENCE_MAX);
    }

    /// Longest time after `operation` until a failing call ends. A body in flight has a time limit of its own; waits for a connection do
    /// not count.
    pub fn tail(&self) -> Duration {
        (2 * self.first_byte).max(Duration::from_secs(30))
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(3),
            first_byte: Duration::from_secs(30),
            complete: Duration::from_secs(300),
            stall: Duration::from_secs(10),
            operation: Duration::from_secs(60),
            idle: Duration::from_secs(15),
            resolve: Duration::from_secs(60),
            rate_min: 64 << 10,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bucket: String::new(),
            prefix: String::new(),
            region: None,
            endpoint_url: None,
            store: None,
            state_dir: None,
            force_path_style: false,
            transfer_acceleration: false,
            dual_stack: false,
            fips: false,
            interfaces: Vec::new(),
            sign_requests: true,
            profile: None,
            credentials: None,
            credential_files: Vec::new(),
            ca_bundle: None,
            extra_ca_bundles: Vec::new(),
            proxies: ProxyVariables::default(),
            requester_pays: false,
            expected_bucket_owner: None,
            storage_class: None,
            sse: None,
            sse_kms_key_id: None,
            user_agent_prefix: None,
            sign_payload: false,
            attempts_max: None,
            connections_max: Self::CONNECTIONS,
            throughput_target: 10_000_000_000 / 8,
            timeouts: Timeouts::default(),
        }
    }
}

impl Config {
    /// Default number of connections: enough for the parts of a fast reader, and for the small requests of a walk through a tree.
    const CONNECTIONS: usize = 64;
    /// The network's buffers may use at most one part in this many of the memory target.
    const MEMORY_SHARE: u64 = 16;
    /// Memory charged for one connection in bytes, besides the blocks for bodies: heads, and the records of TLS. A page of a listing may
    /// take more while it is received.
    const MEMORY: u64 = 128 << 10;
    /// Throughput of one connection in bytes per second, for the number of connections. Measured with requests of 1 MiB at 20 ms: 30 MB/s,
    /// less on a busy store.
    const RATE_PER_CONNECTION: u64 = 20_000_000;

    /// The defaults, with a number of connections that fits a memory target of this many bytes.
    pub fn for_memory(target: u64) -> Self {
        let connections = (target / Self::MEMORY_SHARE / Self::MEMORY).clamp(8, Self::CONNECTIONS as u64);
        Self { connections_max: connections as usize, ..Self::default() }
    }

    /// Most memory of the network's buffers, in bytes: that of all connections.
    pub fn network_memory(&self) -> u64 {
        self.connections() as u64 * Self::MEMORY
    }

    /// The part of the configuration that the network needs.
    pub(crate) fn net(&self) -> net::Config {
        net::Config {
            connections: self.connections(),
            connect: self.timeouts.connect,
            idle: self.timeouts.idle,
            resolve: self.timeouts.resolve,
            queue: self.timeouts.operation,
            interfaces: self.interfaces.clone(),
            ca_bundle: self.ca_bundle.clone(),
            extra_ca_bundles: self.extra_ca_bundles.clone(),
            proxies: self.proxies.clone(),
        }
    }

    /// Number of connections: enough for the throughput target, within `connections_max`.
    pub fn connections(&self) -> usize {
        let worth = self.throughput_target / Self::RATE_PER_CONNECTION;
        (worth as usize).clamp(self.connections_max.min(16), self.connections_max.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_networks_buffers_stay_a_small_share_of_the_memory_target() {
        for mib in [64u64, 128, 512, 1024, 16 << 10] {
            let target = mib << 20;
            let config = Config::for_memory(target);
            assert!(config.network_memory() <= target / 8, "{mib} MiB: {}", config.network_memory());
            assert!(config.connections() >= 8);
        }
        assert_eq!(Config::for_memory(128 << 20).connections_max, 64);
    }

    #[test]
    fn a_silent_store_is_asked_twice_in_time_unless_the_time_is_very_short() {
        for (patience, first_byte) in
            [(1, 5), (5, 5), (10, 5), (12, 6), (30, 15), (60, 30), (120, 60), (3600, 300)]
        {
            let mut timeouts = Timeouts::default();
            timeouts.patience(Duration::from_secs(patience));
            assert_eq!(timeouts.operation, Duration::from_secs(patience));
            assert_eq!(timeouts.first_byte, Duration::from_secs(first_byte), "{patience}");
        }
    }

    #[test]
    fn a_small_limit_of_connections_is_kept_whatever_the_throughput() {
        let config = Config { connections_max: 2, throughput_target: u64::MAX, ..Config::default() };
        assert_eq!(config.connections(), 2);
    }
}
