//! Entry points for fuzz targets: the parsers of a host's bytes.

use std::time::Duration;

use futures_util::FutureExt as _;

use crate::clock::Clock;
use crate::net::flow::watch::Watch;
use crate::net::http1::Http1;
use crate::net::tcp::Moved;
pub use crate::net::tls::conversation::{Conversation, NAME, Parties};

/// Parses these bytes as the answer to a GET (or a HEAD), on a connection that closes after them. Returns the status and the body.
///
/// # Errors
/// The reason why the bytes are not an answer.
pub fn answer(is_head: bool, bytes: &[u8]) -> Result<(u16, Vec<u8>), String> {
    let (clock, long) = (Clock::manual(), Duration::from_secs(60));
    let mut watch = Watch::new(&clock, &Moved::default(), long, clock.now() + long);
    let method = if is_head { http::Method::HEAD } else { http::Method::GET };
    let request = http::Request::builder()
        .method(method)
        .uri("/k")
        .body(bytes::Bytes::new())
        .map_err(|e| e.to_string())?;
    let mut http = Http1::new(tokio::io::join(bytes, tokio::io::sink()));
    let exchange = async {
        let head = http.send(request, &mut watch).await?;
        let (mut body, mut into) = (Vec::new(), [0; 64]);
        loop {
            match http.receive(&mut into, &mut watch).await? {
                0 => return Ok((head.status().as_u16(), body)),
                n => body.extend_from_slice(&into[..n]),
            }
        }
    };
    let ended = exchange.now_or_never().ok_or("it waits for more, though the connection is closed")?;
    ended.map_err(|broken: super::broken::Broken| broken.to_string())
}
