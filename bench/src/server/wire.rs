//! The transport of a connection: a socket, or TLS over a socket. Without TLS the kernel drops and sends bodies; TLS
//! touches each byte, and that cost is the server's, not the client's.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::tls::Buffered;

/// Bytes of a file that are encrypted at a time.
const ENCRYPTED_CHUNK: usize = 256 << 10;

/// The transport of one connection.
#[derive(Debug)]
pub(crate) enum Wire {
    Plain(TcpStream),
    Tls(Box<Tls>),
}

/// A TLS session, and the buffer for bytes of files.
#[derive(Debug)]
pub(crate) struct Tls {
    stream: StreamOwned<ServerConnection, Buffered>,
    chunk: Vec<u8>,
}

impl Wire {
    /// A plain or TLS connection. The handshake is made at the first read.
    ///
    /// # Errors
    /// An option of the socket can't be set, or the session can't be created.
    pub(crate) fn new(socket: TcpStream, tls: Option<Arc<ServerConfig>>) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let Some(config) = tls else { return Ok(Self::Plain(socket)) };
        let mut session = ServerConnection::new(config).map_err(io::Error::other)?;
        session.set_buffer_limit(Some(2 * ENCRYPTED_CHUNK));
        let stream = StreamOwned::new(session, Buffered::new(socket));
        Ok(Self::Tls(Box::new(Tls { stream, chunk: Vec::new() })))
    }

    pub(crate) fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buf),
            Self::Tls(tls) => tls.stream.read(buf),
        }
    }

    pub(crate) fn read_exact(&mut self, buf: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.read_exact(buf),
            Self::Tls(tls) => tls.stream.read_exact(buf),
        }
    }

    /// Receives bytes and drops them. Returns their number.
    pub(crate) fn discard(&mut self, scratch: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => Ok(recv(socket, scratch, RecvFlags::TRUNC)?.1),
            Self::Tls(tls) => tls.stream.read(scratch),
        }
    }

    /// Sends bytes; with `more` the kernel waits for later bytes to fill the packet.
    pub(crate) fn send(&mut self, mut bytes: &[u8], more: bool) -> io::Result<()> {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => return tls.stream.write_all(bytes),
        };
        let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
        while !bytes.is_empty() {
            match send(&*socket, bytes, flags) {
                Ok(count) => bytes = &bytes[count..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends up to `count` bytes of a file from `at` on. Returns their number.
    pub(crate) fn send_file(&mut self, file: &OwnedFd, mut at: u64, count: usize) -> io::Result<usize> {
        let sent = match self {
            Self::Plain(socket) => match rustix::fs::sendfile(socket, file, Some(&mut at), count) {
                Ok(sent) => sent,
                Err(rustix::io::Errno::INTR) => return Ok(0),
                Err(error) => return Err(error.into()),
            },
            Self::Tls(tls) => {
                tls.chunk.resize(ENCRYPTED_CHUNK, 0);
                let count = rustix::io::pread(file, &mut tls.chunk[..count.min(ENCRYPTED_CHUNK)], at)?;
                tls.stream.write_all(&tls.chunk[..count])?;
                count
            }
        };
        if sent == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(sent) }
    }

    /// Closes the TLS session: without `close_notify`, a client must assume that bytes were cut off.
    pub(crate) fn finish(&mut self) {
        if let Self::Tls(tls) = self {
            tls.stream.conn.send_close_notify();
            // A client that has closed the connection needs no `close_notify`.
            let _ = tls.stream.flush();
        }
    }
}
