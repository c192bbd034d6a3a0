//! A port without a listener, which no other process can take while a test needs it.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

/// A bound socket that does not listen: connects are refused, and the kernel gives its port to no other process.
#[derive(Debug)]
pub struct DeadPort {
    _socket: OwnedFd,
    address: SocketAddr,
}

impl DeadPort {
    /// Reserves a port of 127.0.0.1.
    ///
    /// # Panics
    /// The kernel has no free port.
    pub fn reserve() -> Self {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let address = getsockname(&socket).expect("its number").try_into().expect("an IP address");
        Self { _socket: socket, address }
    }

    /// The address, at which nothing listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connects_are_refused_and_the_port_stays_taken() {
        let dead = DeadPort::reserve();
        let error = std::net::TcpStream::connect(dead.address()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        let error = std::net::TcpListener::bind(dead.address()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    }
}
