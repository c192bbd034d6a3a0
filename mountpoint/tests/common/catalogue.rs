//! A store of names and nothing else: as many as a test asks for below `dir/`, out of thin air, so that a million cost no disk.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// A store that answers listings and lookups until the test ends, and serves no bytes.
#[derive(Debug)]
pub(crate) struct Catalogue {
    address: SocketAddr,
}

/// The number of names, and how many of them share a folder.
#[derive(Clone, Copy, Debug)]
struct Shape {
    names: usize,
    a_folder: usize,
}

impl Shape {
    fn key(self, number: usize) -> String {
        match self.a_folder {
            0 => format!("dir/{number:08}"),
            a_folder => format!("dir/{:06}/{number:08}", number / a_folder),
        }
    }

    /// The first name that equals a key or comes behind it.
    fn first_from(self, key: &str) -> usize {
        let (mut low, mut high) = (0, self.names);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.key(middle).as_str() < key { low = middle + 1 } else { high = middle }
        }
        low
    }
}

impl Catalogue {
    /// A catalogue with `names` keys in `dir/`.
    pub(crate) fn of(names: usize) -> Self {
        Self::with(Shape { names, a_folder: 0 })
    }

    /// A catalogue with `names` keys in folders of `a_folder` keys below `dir/`.
    pub(crate) fn of_folders(names: usize, a_folder: usize) -> Self {
        Self::with(Shape { names, a_folder })
    }

    fn with(shape: Shape) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its number");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || serve(stream, shape));
            }
        });
        Self { address }
    }

    /// `http://127.0.0.1:PORT`
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Answers one connection's requests until its close.
fn serve(stream: TcpStream, shape: Shape) -> Option<()> {
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
                let page = page(query, shape);
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
fn page(query: &str, shape: Shape) -> String {
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let value = pairs.find(|(n, _)| *n == name).map(|(_, value)| value);
        value.map(|value| percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned())
    };
    let prefix = value("prefix").unwrap_or_default();
    let keys = value("max-keys").and_then(|n| n.parse().ok()).unwrap_or(1000).min(1000);
    let delimited = value("delimiter").is_some_and(|delimiter| delimiter == "/");
    // A token is the last line of the page before: a folder was given as a whole.
    let after = match value("continuation-token") {
        Some(token) if token.ends_with('/') => format!("{}0", token.trim_end_matches('/')),
        Some(token) => format!("{token}\0"),
        None => value("start-after").map_or_else(String::new, |after| format!("{after}\0")),
    };
    let mut number = shape.first_from(&after.max(prefix.clone()));
    let (mut lines, mut given, mut last) = (String::new(), 0, String::new());
    let below = |number: usize| {
        (number < shape.names).then(|| shape.key(number)).filter(|key| key.starts_with(&prefix))
    };
    while given < keys
        && let Some(key) = below(number)
    {
        given += 1;
        match key[prefix.len()..].find('/').filter(|_| delimited) {
            Some(at) => {
                last = key[..prefix.len() + at + 1].to_owned();
                let _ = write!(lines, "<CommonPrefixes><Prefix>{last}</Prefix></CommonPrefixes>");
                number = shape.first_from(&format!("{}0", last.trim_end_matches('/')));
            }
            None => {
                let _ = write!(
                    lines,
                    "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;{number:032x}&quot;</ETag>\
                     <Size>1</Size><StorageClass>STANDARD</StorageClass></Contents>",
                );
                last = key;
                number += 1;
            }
        }
    }
    let truncated = match below(number) {
        Some(_) => {
            format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>")
        }
        None => "<IsTruncated>false</IsTruncated>".to_owned(),
    };
    format!(
        "<ListBucketResult><Name>bucket</Name><Prefix>{prefix}</Prefix><MaxKeys>{keys}</MaxKeys>{truncated}{lines}</ListBucketResult>"
    )
}
