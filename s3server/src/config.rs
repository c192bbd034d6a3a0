//! The configuration of a server.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::fault::FaultPlan;

/// The configuration of a server. Its Debug form does not show the secret.
#[derive(Clone)]
pub struct Config {
    /// The folder; the server creates it if it is missing. Each folder in it with a valid bucket name is a bucket.
    pub root: PathBuf,
    /// The address to listen on. With port 0 the kernel chooses a free one.
    pub listen: SocketAddr,
    /// The only access key that may sign.
    pub access_key: String,
    /// The secret key.
    pub secret_key: String,
    /// Buckets to create if they are missing.
    pub buckets: Vec<String>,
    /// The initial faults.
    pub faults: FaultPlan,
    /// The domain whose subdomains are buckets (`BUCKET.DOMAIN`); path style works either way.
    pub domain: Option<String>,
    /// Whether the server behaves as S3 where it is otherwise easier for clients: README, "Strict mode".
    pub strict: bool,
    /// Prefix of the only keys that are allowed; everything else is answered with 403: README, "Policy".
    pub policy_prefix: Option<String>,
    /// Whether buckets have tags. Without, operations on tags are answered with 501, as by stores without bucket tags.
    pub bucket_tagging: bool,
}

impl Config {
    /// A folder on a free loopback port, with access key `test`, secret `testsecret`, and no buckets to create.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            access_key: "test".to_owned(),
            secret_key: "testsecret".to_owned(),
            buckets: Vec::new(),
            faults: FaultPlan::new(),
            domain: None,
            strict: false,
            policy_prefix: None,
            bucket_tagging: true,
        }
    }

    /// Switches strict mode on.
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Adds a bucket to create if it is missing.
    pub fn bucket(mut self, name: &str) -> Self {
        self.buckets.push(name.to_owned());
        self
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("root", &self.root)
            .field("listen", &self.listen)
            .field("access_key", &self.access_key)
            .field("secret_key", &"[redacted]")
            .field("buckets", &self.buckets)
            .field("faults", &self.faults)
            .field("domain", &self.domain)
            .field("strict", &self.strict)
            .field("policy_prefix", &self.policy_prefix)
            .field("bucket_tagging", &self.bucket_tagging)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_not_printed() {
        assert!(!format!("{:?}", Config::new("x")).contains("testsecret"));
    }
}
