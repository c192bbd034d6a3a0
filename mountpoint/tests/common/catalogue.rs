//! A store of names and nothing else: as many as a test asks for below `dir/`, out of thin air, so that a million cost no disk.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Answers listings and look-ups until the test ends; it serves no bytes.
#[derive(Debug)]
pub(crate) struct Catalogue {
    address: SocketAddr,
}

impl Catalogue {
    /// With so many names.
    pub(crate) fn of(names: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its number");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || serve(stream, names));
            }
        });
        Self { address }
    }

    /// `http://127.0.0.1:PORT`
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What the file with this number is called.
    pub(crate) fn name(number: usize) -> String {
        format!("{number:08}")
    }
}

/// Answers one connection's requests until it is closed.
fn serve(stream: TcpStream, names: usize) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut out = stream.try_clone().ok()?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut first = String::new();
        lines.read_line(&mut first).ok().filter(|n| *n > 0)?;
        let mut body = 0;
        loop {
            let mut line = String::new();
            lines.read_line(&mut line).ok().filter(|n| *n > 0)?;
            let line = line.trim_end().to_lowercase();
            body = line.strip_prefix("content-length:").map_or(body, |n| n.trim().parse().unwrap_or(0));
            if line.is_empty() {
                break;
            }
        }
        lines.read_exact(&mut vec![0; body]).ok()?;
        let query = first.split(' ').nth(1)?.split_once('?').map(|(_, query)| query);
        let answer = match query.filter(|query| query.contains("list-type=2")) {
            Some(query) => {
                let page = page(query, names);
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{page}", page.len())
            }
            // Whatever else is looked at is not there; a bucket that is looked at is.
            None if first.trim_end_matches(" HTTP/1.1\r\n").trim_end_matches('/').ends_with("/bucket") => {
                "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned()
            }
            None => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
        };
        out.write_all(answer.as_bytes()).ok()?;
    }
}

/// A page of the listing that a query asks for.
fn page(query: &str, names: usize) -> String {
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(n, _)| *n == name).map(|(_, value)| value.replace("%2F", "/"))
    };
    let prefix = value("prefix").unwrap_or_default();
    let keys = value("max-keys").and_then(|n| n.parse().ok()).unwrap_or(1000).min(1000);
    let from: usize = value("continuation-token").and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut lines = String::new();
    let mut truncated = String::from("<IsTruncated>false</IsTruncated>");
    if prefix == "dir/" {
        let end = names.min(from + keys);
        for number in from..end {
            let _ = write!(
                lines,
                "<Contents><Key>dir/{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;{number:032x}&quot;</ETag>\
                 <Size>1</Size><StorageClass>STANDARD</StorageClass></Contents>",
                Catalogue::name(number)
            );
        }
        if end < names {
            truncated = format!(
                "<IsTruncated>true</IsTruncated><NextContinuationToken>{end}</NextContinuationToken>"
            );
        }
    } else if "dir/".starts_with(&prefix) {
        lines.push_str("<CommonPrefixes><Prefix>dir/</Prefix></CommonPrefixes>");
    }
    format!(
        "<ListBucketResult><Name>bucket</Name><Prefix>{prefix}</Prefix><MaxKeys>{keys}</MaxKeys>{truncated}{lines}</ListBucketResult>"
    )
}
