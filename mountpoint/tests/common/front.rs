//! TLS before a plain server: a proxy that answers in the place of any host for which a client requests a tunnel.
//!
//! So a host needs no entry in a name service, and `BUCKET.HOST` works on any machine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::certificates::Certificates;
use super::store::RUNTIME;

/// A front, which runs until the test ends.
#[derive(Debug)]
pub(crate) struct Front {
    address: SocketAddr,
    certificates: Certificates,
    hosts: Arc<Mutex<Vec<String>>>,
}

impl Front {
    /// A front in the place of these hosts.
    pub(crate) fn before(server: SocketAddr, hosts: &[&str]) -> Self {
        let certificates = Certificates::of(hosts);
        let acceptor = TlsAcceptor::from(certificates.server());
        let listener = RUNTIME.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("its number");
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let hosts = Arc::clone(&asked);
        RUNTIME.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // A connection ends in many ways; what matters of them the client tells.
                let (acceptor, hosts) = (acceptor.clone(), Arc::clone(&hosts));
                RUNTIME.spawn(async move { serve(client, acceptor, server, &hosts).await });
            }
        });
        Self { address, certificates, hosts: asked }
    }

    /// The address at which the front listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The certificate authority to trust.
    pub(crate) fn ca_bundle(&self) -> PathBuf {
        self.certificates.ca_bundle()
    }

    /// The hosts, with their ports, of the requested tunnels.
    pub(crate) fn hosts(&self) -> Vec<String> {
        self.hosts.lock().unwrap().clone()
    }
}

async fn serve(
    mut client: TcpStream,
    acceptor: TlsAcceptor,
    server: SocketAddr,
    hosts: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let Some(host) = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()) else {
        return client.write_all(b"HTTP/1.1 405 Tunnels Only\r\ncontent-length: 0\r\n\r\n").await;
    };
    hosts.lock().unwrap().push(host.to_owned());
    client.set_nodelay(true)?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    let mut client = acceptor.accept(client).await?;
    let mut server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}
