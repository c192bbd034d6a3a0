//! TCP connections to an address, by the interfaces that `--bind` names.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpSocket, TcpStream};

use crate::net::{Error, Result};
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Network interfaces, taken in turn; none: the routes decide.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    names: Vec<String>,
    turn: AtomicUsize,
}

impl Interfaces {
    /// # Errors
    /// An interface that is not there, or that this process may not use.
    pub(crate) fn new(names: &[String]) -> Result<Self> {
        for name in names {
            let tried = TcpSocket::new_v4().and_then(|socket| socket.bind_device(Some(name.as_bytes())));
            tried.map_err(|error| {
                Error::new("--bind", format!(
                    "the network interface {name:?} can't be used: {error}; `ip link` lists interfaces, and before Linux 5.7 this needs root"
                ))
            })?;
        }
        Ok(Self { names: names.to_vec(), turn: AtomicUsize::new(0) })
    }

    /// Connects by the next interface. The caller limits the time.
    pub(crate) async fn dial(&self, address: SocketAddr) -> io::Result<TcpStream> {
        if self.names.is_empty() {
            return TcpStream::connect(address).await;
        }
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        socket.bind_device(Some(self.names[turn % self.names.len()].as_bytes()))?;
        socket.connect(address).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_leave_by_each_interface_in_turn() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let by_loopback = Interfaces::new(&["lo".to_owned()]).unwrap();
        let stream = by_loopback.dial(at).await.unwrap();
        assert_eq!(socket2::SockRef::from(&stream).device().unwrap().as_deref(), Some(&b"lo"[..]));
        assert_eq!(by_loopback.turn.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn an_interface_that_is_not_there_is_named_at_the_start() {
        let error = Interfaces::new(&["lo".to_owned(), "nowhere9".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("nowhere9"), "{error}");
    }
}
