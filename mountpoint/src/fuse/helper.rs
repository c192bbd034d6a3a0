//! Processes that the engine starts beside itself: `fusermount3`, the watcher of `--auto-unmount`, the helper of a sandbox. None of them
//! needs a secret, so none gets one: other tools can read the environment of a process as long as it lives.

use std::ffi::OsStr;
use std::process::Command;

/// Variables that have a secret, or may: of credentials, of proxies, of exporters.
const SECRETS: [&str; 12] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
];

/// A command without the secrets of this process's environment.
#[must_use]
pub fn helper(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in SECRETS {
        command.env_remove(name);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_gets_no_variable_that_holds_a_secret() {
        let command = helper("true");
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).collect();
        assert_eq!(removed.len(), SECRETS.len());
        assert!(removed.iter().any(|(name, _)| *name == "AWS_SECRET_ACCESS_KEY"));
    }
}
