//! A host to connect to, by name or address. Pure.

use std::net::Ipv6Addr;

/// A host to connect to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Authority {
    pub(crate) tls: bool,
    /// Name or address, IPv6 without its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Authority {
    /// The authority of a URI `scheme://host:port`; `None` for another scheme than `http` or `https`, or without a host.
    pub(crate) fn of_uri(uri: &http::Uri) -> Option<Self> {
        let tls = match uri.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let host = uri.host()?.trim_matches(['[', ']']).to_owned();
        Some(Self { tls, host, port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }) })
    }

    /// The value of the Host header: with the port only if it is not the scheme's default.
    pub(crate) fn host_header(&self) -> String {
        let host = if self.host.parse::<Ipv6Addr>().is_ok() {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}
