//! The configuration of the network: plain data, without a word of S3.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Limits of connections, and the settings for reaching a host. `s3::Config` says what doubling each limit does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    /// Connections open at once to one host.
    pub(crate) connections: usize,
    /// Time limit of the TCP (and TLS) handshake with one address.
    pub(crate) connect: Duration,
    /// Age at which an idle connection is closed.
    pub(crate) idle: Duration,
    /// Time for which the addresses of a name count as current. After it, the next connection asks DNS again.
    pub(crate) resolve: Duration,
    /// Time limit of waiting for a free connection while no byte moves on any connection.
    pub(crate) queue: Duration,
    /// Network interfaces for outgoing connections, used in turn. If empty, the routing table decides.
    pub(crate) interfaces: Vec<String>,
    /// A PEM file of certificates to trust instead of the system's.
    pub(crate) ca_bundle: Option<PathBuf>,
    /// PEM files of further certificates to trust.
    pub(crate) extra_ca_bundles: Vec<PathBuf>,
    /// Proxies between this machine and its hosts.
    pub(crate) proxies: ProxyVariables,
}

/// The variables `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, unparsed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ProxyVariables {
    /// The proxy for `http://`.
    pub http: Option<String>,
    /// The proxy for `https://`.
    pub https: Option<String>,
    /// Names, domains, addresses and networks that are reached directly; `*` means all.
    pub no_proxy: Option<String>,
}

impl fmt::Debug for ProxyVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URLs are left out, because they may contain passwords.
        f.debug_struct("ProxyVariables").field("no_proxy", &self.no_proxy).finish_non_exhaustive()
    }
}
