//! Decides which requests use a proxy, and in which form. Pure, except for the few lines of the tunnel.
//!
//! Plain HTTP requests go to the proxy with their whole URL. TLS goes through a tunnel (CONNECT), so the proxy can't read it.

use std::io;
use std::net::IpAddr;

use base64::Engine as _;
use http::HeaderValue;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::net::authority::Authority;
use crate::net::broken::Broken;
use crate::net::{Error, ProxyVariables, Result};

/// Most bytes of the answer to CONNECT. A longer answer fails the connection.
const ANSWER_MAX: usize = 8 << 10;

/// The parsed proxy variables.
#[derive(Debug, Default)]
pub(crate) struct Proxies {
    http: Option<Proxy>,
    https: Option<Proxy>,
    direct: Vec<Direct>,
}

/// A proxy.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) authority: Authority,
    /// The value of the header Proxy-Authorization, if the URL has a user.
    pub(crate) authorization: Option<HeaderValue>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The password is left out.
        f.debug_tuple("Proxy").field(&self.authority.host_header()).finish()
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Direct {
    All,
    /// A domain and its subdomains, on one port or on all.
    Domain(String, Option<u16>),
    /// A network: an address, and the length of its prefix in bits.
    Network(IpAddr, u32),
}

/// The changes to a request that a proxy forwards.
pub(crate) struct Forward {
    /// Scheme and host, before the path.
    begin: String,
    authorization: Option<HeaderValue>,
}

impl Forward {
    pub(crate) fn new(proxy: &Proxy, host: &Authority) -> Self {
        Self { begin: format!("http://{}", host.host_header()), authorization: proxy.authorization.clone() }
    }

    /// Rewrites a request with the whole URL, and adds the credentials for the proxy.
    pub(crate) fn addressed<B>(
        &self,
        request: http::Request<B>,
    ) -> std::result::Result<http::Request<B>, Broken> {
        let (mut head, body) = request.into_parts();
        let target = head.uri.path_and_query().map_or("/", |p| p.as_str());
        head.uri = format!("{}{target}", self.begin)
            .parse::<http::Uri>()
            .map_err(|e| Broken::Malformed(format!("the URL for the proxy can't be written: {e}")))?;
        if let Some(authorization) = &self.authorization {
            head.headers.insert(http::header::PROXY_AUTHORIZATION, authorization.clone());
        }
        Ok(http::Request::from_parts(head, body))
    }
}

impl Proxies {
    pub(crate) fn new(variables: &ProxyVariables) -> Result<Self> {
        let read = |name: &str, value: &Option<String>| match value {
            Some(value) => {
                Proxy::parse(value).map(Some).map_err(|why| Error::new("proxy", format!("{name} {why}")))
            }
            None => Ok(None),
        };
        let direct = variables.no_proxy.as_deref().unwrap_or_default();
        let direct = direct.split(',').map(str::trim).filter(|item| !item.is_empty()).map(Direct::parse);
        Ok(Self {
            http: read("HTTP_PROXY", &variables.http)?,
            https: read("HTTPS_PROXY", &variables.https)?,
            direct: direct.collect(),
        })
    }

    /// The proxy for this host; `None` if it is reached directly.
    pub(crate) fn on_the_way_to(&self, host: &Authority) -> Option<&Proxy> {
        let proxy = if host.tls { &self.https } else { &self.http };
        proxy
            .as_ref()
            .filter(|_| !is_metadata(&host.host) && !self.direct.iter().any(|direct| direct.is(host)))
    }
}

/// Whether a host is a source of credentials of an instance or container: a link-local address, or one in AWS's fd00:ec2::/32. No proxy
/// reaches these addresses.
fn is_metadata(host: &str) -> bool {
    match host.parse() {
        Ok(IpAddr::V4(address)) => address.is_link_local(),
        Ok(IpAddr::V6(address)) => {
            address.segments()[..2] == [0xfd00, 0xec2] || address.is_unicast_link_local()
        }
        Err(_) => false,
    }
}

impl Proxy {
    /// Parses the URL of a proxy.
    ///
    /// # Errors
    /// The problem with the URL, without its password.
    fn parse(text: &str) -> std::result::Result<Self, &'static str> {
        const FORM: &str =
            "should look like http://proxy.example.com:3128 or http://user:password@proxy.example.com:3128";
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        if scheme != "http" {
            return Err("must begin with http://: https:// and SOCKS proxies are not supported");
        }
        let rest = rest.split('/').next().unwrap_or_default();
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, rest),
        };
        let uri: http::Uri = format!("http://{place}/").parse().map_err(|_| FORM)?;
        let authority = Authority::of_uri(&uri).filter(|a| !a.host.is_empty()).ok_or(FORM)?;
        let authorization = user.map(|user| {
            let user: Vec<u8> = percent_encoding::percent_decode_str(user).collect();
            let basic = base64::engine::general_purpose::STANDARD.encode(user);
            HeaderValue::try_from(format!("Basic {basic}")).map(|mut value| {
                value.set_sensitive(true);
                value
            })
        });
        Ok(Self { authority, authorization: authorization.transpose().map_err(|_| FORM)? })
    }

    /// Asks for a tunnel to `host`. All later bytes on the stream belong to that host.
    pub(crate) async fn tunnel<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        host: &Authority,
    ) -> io::Result<()> {
        let brackets = host.host.contains(':');
        let name = if brackets { format!("[{}]", host.host) } else { host.host.clone() };
        let place = format!("{name}:{}", host.port);
        let mut head = format!("CONNECT {place} HTTP/1.1\r\nhost: {place}\r\n").into_bytes();
        if let Some(authorization) = &self.authorization {
            head.extend_from_slice(b"proxy-authorization: ");
            head.extend_from_slice(authorization.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        stream.write_all(&head).await?;
        stream.flush().await?;
        let mut answer = Vec::with_capacity(256);
        while !answer.ends_with(b"\r\n\r\n") {
            // Read byte by byte, because the bytes behind the answer belong to the tunnel. This happens once per connection.
            answer.push(stream.read_u8().await?);
            if answer.len() > ANSWER_MAX {
                return Err(self.failed(&place, "its answer is too long"));
            }
        }
        let line =
            String::from_utf8_lossy(answer.split(|b| *b == b'\r').next().unwrap_or_default()).into_owned();
        let status = line.split(' ').nth(1).unwrap_or_default();
        match status.parse::<u16>() {
            Ok(200..=299) => Ok(()),
            Ok(407) => Err(self.failed(&place, "it answers 407: give user and password in HTTPS_PROXY")),
            _ => Err(self.failed(&place, &format!("it answers {line:?}"))),
        }
    }

    fn failed(&self, place: &str, why: &str) -> io::Error {
        io::Error::other(format!(
            "the proxy {} opens no tunnel to {place}: {why}",
            self.authority.host_header()
        ))
    }
}

impl Direct {
    fn parse(item: &str) -> Self {
        if item == "*" {
            return Self::All;
        }
        if let Ok(address) = item.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Self::Network(address, 128);
        }
        if let Some((address, bits)) = item.split_once('/')
            && let (Ok(address), Ok(bits)) = (address.parse(), bits.parse())
        {
            return Self::Network(address, bits);
        }
        let (name, port) = match item.rsplit_once(':') {
            Some((name, port)) if port.parse::<u16>().is_ok() => (name, port.parse().ok()),
            _ => (item, None),
        };
        Self::Domain(name.trim_start_matches("*").trim_matches('.').to_ascii_lowercase(), port)
    }

    fn is(&self, host: &Authority) -> bool {
        match self {
            Self::All => true,
            Self::Domain(domain, port) => {
                let name = host.host.trim_end_matches('.').to_ascii_lowercase();
                let below = name
                    .strip_suffix(domain.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
                !domain.is_empty() && below && port.is_none_or(|port| port == host.port)
            }
            Self::Network(network, bits) => match (network, host.host.parse()) {
                (IpAddr::V4(network), Ok(IpAddr::V4(address))) => {
                    let mask = u32::MAX.checked_shl(32 - (*bits).min(32)).unwrap_or(0);
                    network.to_bits() & mask == address.to_bits() & mask
                }
                (IpAddr::V6(network), Ok(IpAddr::V6(address))) => {
                    let mask = u128::MAX.checked_shl(128 - (*bits).min(128)).unwrap_or(0);
                    network.to_bits() & mask == address.to_bits() & mask
                }
                _ => false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(tls: bool, host: &str, port: u16) -> Authority {
        Authority { tls, host: host.into(), port }
    }

    fn proxies(no_proxy: &str) -> Proxies {
        Proxies::new(&ProxyVariables {
            http: Some("plain:3128".into()),
            https: Some("http://me:p%40ss@tunnel.example.com".into()),
            no_proxy: Some(no_proxy.into()),
        })
        .unwrap()
    }

    #[test]
    fn each_scheme_has_its_proxy() {
        let proxies = proxies("");
        let http = proxies.on_the_way_to(&host(false, "s3.example.com", 80)).unwrap();
        assert_eq!((http.authority.clone(), &http.authorization), (host(false, "plain", 3128), &None));
        let https = proxies.on_the_way_to(&host(true, "s3.example.com", 443)).unwrap();
        assert_eq!(https.authority, host(false, "tunnel.example.com", 80));
        // me:p@ss
        assert_eq!(https.authorization.as_ref().unwrap(), "Basic bWU6cEBzcw==");
        assert!(!format!("{proxies:?}").contains("bWU6"));
        assert!(Proxies::default().on_the_way_to(&host(true, "s3.example.com", 443)).is_none());
    }

    #[test]
    fn no_proxy_names_hosts_domains_addresses_and_networks() {
        for (no_proxy, name, direct) in [
            ("*", "anything", true),
            ("example.com", "example.com", true),
            ("example.com", "s3.Example.com", true),
            (".example.com", "s3.example.com", true),
            ("*.example.com", "s3.example.com", true),
            ("example.com", "badexample.com", false),
            ("a, b ,example.com", "example.com", true),
            ("example.com:443", "example.com", true),
            ("example.com:444", "example.com", false),
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("0.0.0.0/0", "11.1.2.3", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("fd00::/8", "fd12::1", true),
            ("::1", "::1", true),
            ("", "example.com", false),
            // The addresses that credentials of instances and containers come from.
            ("", "169.254.169.254", true),
            ("", "169.254.170.2", true),
            ("", "fd00:ec2::254", true),
            // The agent of EKS.
            ("", "fd00:ec2::23", true),
            ("", "fe80::1", true),
            ("", "fd00:ec3::23", false),
        ] {
            let found = proxies(no_proxy).on_the_way_to(&host(true, name, 443)).is_none();
            assert_eq!(found, direct, "{no_proxy:?} {name}");
        }
    }

    #[test]
    fn what_is_no_proxy_is_refused_without_its_password() {
        for text in [
            "https://me:secret@proxy",
            "socks5://me:secret@proxy",
            "http://me:secret@",
            "http://me:secret@a b",
        ] {
            let variables = ProxyVariables { https: Some(text.into()), ..ProxyVariables::default() };
            let error = Proxies::new(&variables).unwrap_err().to_string();
            assert!(error.contains("HTTPS_PROXY") && !error.contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_tunnel_is_asked_for_and_a_refusal_is_told() {
        for (answer, why) in [
            ("HTTP/1.1 200 Connection established\r\nvia: x\r\n\r\n", None),
            ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", Some("407")),
            ("HTTP/1.0 403 Forbidden\r\n\r\n", Some("403 Forbidden")),
        ] {
            let (mut ours, mut theirs) = tokio::io::duplex(4096);
            let proxies = proxies("");
            let target = host(true, "s3.example.com", 443);
            let proxy = proxies.on_the_way_to(&target).unwrap();
            theirs.write_all(answer.as_bytes()).await.unwrap();
            theirs.write_all(b"first byte of TLS").await.unwrap();
            let opened = proxy.tunnel(&mut ours, &target).await;
            let mut asked = vec![0; 4096];
            let n = theirs.read(&mut asked).await.unwrap();
            let asked = String::from_utf8_lossy(&asked[..n]).into_owned();
            assert!(
                asked.starts_with("CONNECT s3.example.com:443 HTTP/1.1\r\nhost: s3.example.com:443\r\n"),
                "{asked}"
            );
            assert!(asked.ends_with("proxy-authorization: Basic bWU6cEBzcw==\r\n\r\n"), "{asked}");
            match why {
                None => {
                    opened.unwrap();
                    assert_eq!(ours.read_u8().await.unwrap(), b'f', "nothing behind the answer is lost");
                }
                Some(why) => {
                    let said = opened.unwrap_err().to_string();
                    assert!(said.contains("tunnel.example.com") && said.contains(why), "{said}");
                }
            }
        }
    }
}
