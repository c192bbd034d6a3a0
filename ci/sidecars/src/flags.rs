//! Parses flag values in Go's notation. Enters: text. Leaves: values, or a sentence about the error.
//!
//! Never here: a flag's name or default.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Parses a socket's path, with or without `unix://` before it.
///
/// # Errors
/// The path is not absolute.
pub fn socket(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    if path.starts_with('/') { Ok(path.into()) } else { Err(format!("{text:?} is not a path of a socket")) }
}

/// Parses an address; `:PORT` means every address of the machine.
///
/// # Errors
/// The text is not HOST:PORT with numbers.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    full.parse().map_err(|_| format!("{text:?} is neither :PORT nor ADDRESS:PORT"))
}

/// Parses a number with one unit: `ms`, `s`, `m`.
///
/// # Errors
/// The text has another form.
pub fn duration(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return Err(format!("{text:?} is not a time such as 500ms, 3s or 2m")),
    };
    let number: u64 = number.parse().map_err(|_| format!("{text:?} has no number before its unit"))?;
    Ok(Duration::from_millis(number.saturating_mul(unit_ms)))
}

/// The address of `/healthz`: from `--http-endpoint`, or from the older `--health-port`.
///
/// # Errors
/// Both flags are given.
pub fn health_address(endpoint: Option<SocketAddr>, port: Option<u16>) -> anyhow::Result<Option<SocketAddr>> {
    match (endpoint, port) {
        (Some(_), Some(_)) => anyhow::bail!("only one of --health-port and --http-endpoint can be set"),
        (Some(address), None) => Ok(Some(address)),
        (None, Some(0) | None) => Ok(None),
        (None, Some(port)) => Ok(Some(SocketAddr::from(([0, 0, 0, 0], port)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_go_writes_them() {
        assert_eq!(socket("unix:///csi/csi.sock"), Ok("/csi/csi.sock".into()));
        assert_eq!(socket("/csi/csi.sock"), Ok("/csi/csi.sock".into()));
        assert_eq!(address(":9809"), Ok(SocketAddr::from(([0, 0, 0, 0], 9809))));
        assert_eq!(address("127.0.0.1:1"), Ok(SocketAddr::from(([127, 0, 0, 1], 1))));
        assert_eq!(duration("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("3s"), Ok(Duration::from_secs(3)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
    }

    #[test]
    fn what_is_no_value_is_named() {
        for text in ["", "s", "3", "-1s", "3h5"] {
            assert!(duration(text).is_err_and(|it| it.contains(text)), "{text}");
        }
        assert!(socket("csi.sock").is_err());
        assert!(address("localhost").is_err());
    }

    #[test]
    fn health_has_one_address() {
        let at = SocketAddr::from(([0, 0, 0, 0], 9810));
        assert_eq!(health_address(None, Some(9810)).unwrap(), Some(at));
        assert_eq!(health_address(Some(at), None).unwrap(), Some(at));
        assert_eq!(health_address(None, Some(0)).unwrap(), None);
        assert!(health_address(Some(at), Some(9810)).is_err());
    }
}
