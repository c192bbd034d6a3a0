//! TCP connections to an address, over the interfaces of `--bind`.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_user_timeout};
use tokio::net::{TcpSocket, TcpStream};

use crate::net::{Error, Result};
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Time after which the kernel ends a connection whose sent bytes, or keep-alive probes, are not acknowledged: the host is gone. A slow
/// store's kernel acknowledges at once; its answers have the longer limits of `Watch`. Doubling it finds dead hosts later.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(20);
/// The interval of the kernel's keep-alive probes on a silent connection.
const ASKS_EVERY: Duration = Duration::from_secs(5);

fn find_dead_ends(stream: &TcpStream) -> io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, ASKS_EVERY)?;
    set_tcp_keepintvl(stream, ASKS_EVERY)?;
    set_tcp_user_timeout(stream, UNACKNOWLEDGED_MAX.as_millis() as u32)?;
    Ok(())
}

/// Network interfaces, used in turn. Without any, the routing table decides.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    names: Vec<String>,
    turn: AtomicUsize,
}

impl Interfaces {
    /// # Errors
    /// An interface does not exist, or this process may not use it.
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

    /// Connects over the next interface. The caller limits the time.
    pub(crate) async fn dial(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.connect(address).await?;
        if let Err(error) = find_dead_ends(&stream) {
            tracing::debug!(%error, "the kernel does not look whether the other end is still there");
        }
        Ok(stream)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
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
    async fn a_connection_whose_host_acknowledges_nothing_is_ended_by_the_kernel() {
        use rustix::net::sockopt::{socket_keepalive, tcp_keepidle, tcp_user_timeout};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = Interfaces::default().dial(listener.local_addr().unwrap()).await.unwrap();
        assert_eq!(tcp_user_timeout(&stream).unwrap(), 20_000);
        assert!(socket_keepalive(&stream).unwrap());
        assert_eq!(tcp_keepidle(&stream).unwrap(), ASKS_EVERY);
    }

    #[tokio::test]
    async fn an_interface_that_is_not_there_is_named_at_the_start() {
        let error = Interfaces::new(&["lo".to_owned(), "nowhere9".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("nowhere9"), "{error}");
    }
}
