//! Variables of the environment that clap would not read as AWS's tools do: an empty one counts as unset, and an invalid value causes a
//! warning.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::Command;
use clap::builder::Resettable;

use super::Remark;
use crate::net::ProxyVariables;
use crate::telemetry::otlp::Settings;

/// The variable that precedes `AWS_ENDPOINT_URL`, as in all AWS tools.
const ENDPOINT_URL_S3: &str = "AWS_ENDPOINT_URL_S3";

/// The command, set up to read this process's environment with the rules of AWS's tools; and remarks about variables for the log.
pub fn heeded(command: Command) -> (Command, Vec<Remark>) {
    with(command, |name| std::env::var_os(name))
}

/// The variables that name proxies. A name in lower case precedes, as in curl.
pub(super) fn proxies() -> ProxyVariables {
    let found = |names: [&str; 2]| {
        let mut values = names.into_iter().filter_map(|name| std::env::var(name).ok());
        values.find(|value| !value.is_empty())
    };
    ProxyVariables {
        http: found(["http_proxy", "HTTP_PROXY"]),
        https: found(["https_proxy", "HTTPS_PROXY"]),
        no_proxy: found(["no_proxy", "NO_PROXY"]),
    }
}

/// The two files of AWS tools that contain credentials or name their source.
pub(super) fn credential_files() -> Vec<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_home = |name: &str| Some(set("HOME")?.join(".aws").join(name));
    let named = [("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")];
    named.into_iter().filter_map(|(variable, usual)| set(variable).or_else(|| of_home(usual))).collect()
}

/// Variables that name files, which the SDK itself reads.
const FILES: [&str; 3] = ["AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"];

/// Variables that the helper of a sandboxed engine passes to the program of a `credential_process`. They lead the program to other
/// programs, the user's files, language, profile and region. None of them contains a secret. (The SDKs pass all variables.)
const OF_PROGRAMS: [&str; 27] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
    "TZ",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "LC_MESSAGES",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NO_PROXY",
    "no_proxy",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_CA_BUNDLE",
    "AWS_ENDPOINT_URL",
];

/// Whether the environment asks for a sandbox (`MOUNT_S3_SANDBOX=1`), for a command line without the flag.
pub(crate) fn wishes_sandbox() -> bool {
    std::env::var_os("MOUNT_S3_SANDBOX").is_some_and(|value| value == "1")
}

/// The exit status at which the service manager restarts this command. Statuses below 4 have other meanings.
pub(crate) fn restart_status() -> Option<u8> {
    let status = std::env::var("MOUNT_S3_RESTART_STATUS").ok()?;
    status.parse().ok().filter(|status| *status > 3)
}

/// The variables of [`OF_PROGRAMS`] that are set.
pub(crate) fn of_programs() -> Vec<(&'static str, OsString)> {
    OF_PROGRAMS.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))).collect()
}

/// The files that the chain of credentials reads at each request for credentials.
pub(crate) fn key_files() -> Vec<PathBuf> {
    let named = ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"];
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".aws/config"));
    credential_files().into_iter().chain(named.into_iter().filter_map(set)).chain(of_home).collect()
}

/// The variables with relative paths, which would break when the process changes its directory, and their absolute paths.
pub(crate) fn absolute_files() -> Vec<(&'static str, PathBuf)> {
    absolute_of(|name| std::env::var_os(name))
}

fn absolute_of(variable: impl Fn(&str) -> Option<OsString>) -> Vec<(&'static str, PathBuf)> {
    let absolute = |name| {
        let path = PathBuf::from(variable(name)?);
        // The SDK replaces a tilde with the home directory.
        let is_relative = path.is_relative() && !path.as_os_str().is_empty() && !path.starts_with("~");
        let path = std::path::absolute(path).ok().filter(|_| is_relative)?;
        Some((name, path))
    };
    FILES.into_iter().filter_map(absolute).collect()
}

/// The default directory for state: of this systemd unit, or of this user.
pub(super) fn state_dir() -> Option<PathBuf> {
    let is_root = rustix::process::geteuid().is_root();
    state_dir_of(is_root, |name| std::env::var_os(name))
}

fn state_dir_of(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // A unit may have several directories, separated by colons.
    let of_unit = || std::env::split_paths(&set("STATE_DIRECTORY")?).find(|path| path.is_absolute());
    let of_desktop = || Some(set("XDG_STATE_HOME")?.join("mount-s3"));
    let of_root = || is_root.then(|| PathBuf::from("/var/lib/mount-s3"));
    let of_home = || Some(set("HOME")?.join(".local/state/mount-s3"));
    of_unit().or_else(of_desktop).or_else(of_root).or_else(of_home)
}

/// The settings for exported metrics; `None`: no export.
///
/// # Errors
/// A sentence that names the wrong flag or variable.
pub(super) fn otlp(endpoint: Option<&str>, interval_s: Option<u64>) -> Result<Option<Settings>, String> {
    Settings::read(endpoint, interval_s, &|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

/// The user's runtime directory, for sockets.
pub(super) fn runtime_dir() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn with(command: Command, variable: impl Fn(&OsStr) -> Option<OsString>) -> (Command, Vec<Remark>) {
    let mut remarks = Vec::new();
    let is_set = |name: &OsStr| variable(name).is_some_and(|value| !value.is_empty());
    let has_endpoint = command.get_arguments().any(|arg| arg.get_id() == "endpoint_url");
    let command = match has_endpoint && is_set(OsStr::new(ENDPOINT_URL_S3)) {
        true => command.mut_arg("endpoint_url", |arg| arg.env(ENDPOINT_URL_S3)),
        false => command,
    };
    let command = command.mut_args(|arg| {
        let Some(name) = arg.get_env().map(OsStr::to_owned) else { return arg };
        let Some(value) = variable(&name) else { return arg };
        if value.is_empty() {
            return arg.env(Resettable::Reset);
        }
        if arg.get_id() == "max_attempts" && !is_count(&value) {
            remarks.push(Remark::Warning(format!(
                "{} is {value:?}, not a number from 1 on: the default is used",
                name.display()
            )));
            return arg.env(Resettable::Reset);
        }
        arg
    });
    (command, remarks)
}

fn is_count(value: &OsStr) -> bool {
    value.to_str().and_then(|text| text.parse::<u32>().ok()).is_some_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_name_of_a_key_file_becomes_absolute_and_others_stay() {
        let here = std::env::current_dir().unwrap();
        for (value, expected) in
            [("keys", Some(here.join("keys"))), ("/keys", None), ("", None), ("~/.aws/keys", None)]
        {
            let absolute = absolute_of(|name| (name == "AWS_CONFIG_FILE").then(|| value.into()));
            let expected: Vec<_> = expected.into_iter().map(|path| ("AWS_CONFIG_FILE", path)).collect();
            assert_eq!(absolute, expected, "{value:?}");
        }
    }

    #[test]
    fn state_is_kept_where_the_unit_the_user_or_root_keeps_it() {
        let dir = |is_root, variables: &[(&str, &str)]| {
            let value = |name: &str| variables.iter().find(|it| it.0 == name).map(|it| OsString::from(it.1));
            state_dir_of(is_root, value).map(|dir| dir.display().to_string())
        };
        let home = ("HOME", "/home/u");
        for (is_root, variables, expected) in [
            (false, &[home][..], Some("/home/u/.local/state/mount-s3")),
            (true, &[home], Some("/var/lib/mount-s3")),
            (true, &[], Some("/var/lib/mount-s3")),
            (false, &[], None),
            (false, &[home, ("XDG_STATE_HOME", "/s")], Some("/s/mount-s3")),
            (false, &[home, ("XDG_STATE_HOME", "")], Some("/home/u/.local/state/mount-s3")),
            (
                true,
                &[("XDG_STATE_HOME", "/s"), ("STATE_DIRECTORY", "/var/lib/a:/var/lib/b")],
                Some("/var/lib/a"),
            ),
        ] {
            assert_eq!(dir(is_root, variables).as_deref(), expected, "{is_root} {variables:?}");
        }
    }
}
