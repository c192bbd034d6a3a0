//! The stream of a TLS connection whose handshake is over: bytes are opened straight into the reader's memory, and sealed straight from the
//! writer's.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::{AlertDescription, ContentType, HandshakeType, ProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::net::tcp::Moved;
use crate::net::tls::record::{CONTENT_MAX, Fatal, Frame, Keys, OVERHEAD, RECORD_MAX};
use crate::net::tls::session::{Agreed, Session};

/// Bytes received at once.
pub(super) const RECEIVE: usize = 64 << 10;
/// Bytes sealed at once: four full records, and a short one before them.
const SEND: usize = 4 * (CONTENT_MAX + OVERHEAD) + (2 << 10);
/// Records without content for the reader that may come one after another.
const SILENT_MAX: usize = 32;
/// Bytes of a message of the handshake at most.
const MESSAGE_MAX: usize = 64 << 10;
/// Level and description of an alert are two bytes.
const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// A stream that is encrypted on the wire.
pub(in crate::net) struct TlsStream<S> {
    wire: S,
    /// Counts what passes `wire`.
    moved: Moved,
    session: Session,
    agreed: Agreed,
    received: Received,
    to_send: ToSend,
    was_asked_to_renegotiate: bool,
    /// We said that we send no more.
    is_closed: bool,
    /// Nothing more comes: how it ended.
    end: Option<End>,
}

/// How the bytes of the store ended.
#[derive(Clone, Debug)]
enum End {
    /// It said so.
    Said,
    Failed(Fatal),
}

/// Without the bytes: these are files.
impl<S> std::fmt::Debug for TlsStream<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream")
            .field("session", &self.session)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// What came and was not read yet.
struct Received {
    bytes: Vec<u8>,
    /// Where in `bytes` the records are that were not opened.
    records: Range<usize>,
    /// Where in `bytes` content is that was opened there: it lies before the records.
    content: Range<usize>,
    /// The front of a message of the handshake, whose rest comes in the next record.
    message: Vec<u8>,
    /// Records without content for the reader since the last one with some.
    silent: usize,
}

/// Sealed records that the kernel did not take yet.
#[derive(Default)]
struct ToSend {
    bytes: Vec<u8>,
    range: Range<usize>,
}

impl<S> TlsStream<S> {
    /// Over `wire`, of which these records came already behind the handshake.
    pub(super) fn new(wire: S, session: Session, agreed: Agreed, records: &[u8], moved: Moved) -> Self {
        // Not `resize`: so the pages of a connection that receives little stay untouched.
        let mut bytes = vec![0; (RECEIVE + RECORD_MAX).max(records.len())];
        bytes[..records.len()].copy_from_slice(records);
        let received =
            Received { bytes, records: 0..records.len(), content: 0..0, message: Vec::new(), silent: 0 };
        Self {
            wire,
            moved,
            session,
            agreed,
            received,
            to_send: ToSend::default(),
            was_asked_to_renegotiate: false,
            is_closed: false,
            end: None,
        }
    }

    /// What the handshake agreed on.
    pub(in crate::net) fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Whether all that came was read, down to the parts of records, and the keys last for another request. What came and was not read is
    /// no answer to that request. A connection of TLS 1.2 ends with its keys: it is given up before, between two requests.
    pub(in crate::net) fn is_at_rest(&self) -> bool {
        let Received { records, content, message, .. } = &self.received;
        let is_worn =
            self.agreed.version == ProtocolVersion::TLSv1_2 && self.session.seals.are_half_used_up();
        self.end.is_none() && records.is_empty() && content.is_empty() && message.is_empty() && !is_worn
    }

    #[cfg(feature = "testing")]
    pub(super) fn wire(&mut self) -> &mut S {
        &mut self.wire
    }

    /// Bytes of memory that it holds.
    #[cfg(feature = "testing")]
    pub(super) fn memory(&self) -> usize {
        let Received { bytes, message, .. } = &self.received;
        bytes.capacity() + message.capacity() + self.to_send.bytes.capacity()
    }

    #[cfg(test)]
    pub(super) fn use_up_the_key_after(&mut self, records: u64) {
        self.session.seals.use_up_after(records);
    }

    #[cfg(test)]
    pub(super) fn opens_with(&mut self, keys: Keys) {
        self.session.opens = keys;
    }
}

impl Received {
    /// Gives content that was opened here to `buf`.
    fn give(&mut self, buf: &mut ReadBuf<'_>) {
        let n = self.content.len().min(buf.remaining());
        buf.put_slice(&self.bytes[self.content.start..self.content.start + n]); // copy: the reader's memory is shorter than the record
        self.content.start += n;
    }

    /// The memory behind what came, with room for one record at least. Nothing opened is in the way.
    fn spare(&mut self) -> &mut [u8] {
        if self.records.is_empty() {
            self.records = 0..0;
        } else if self.records.start > 0 {
            self.bytes.copy_within(self.records.clone(), 0); // copy: the front of a record, to join its rest
            self.records = 0..self.records.len();
        }
        &mut self.bytes[self.records.end..]
    }
}

impl ToSend {
    /// Seals `content` as one record behind what waits: its length.
    fn seal(&mut self, keys: &mut Keys, kind: ContentType, content: &[u8]) -> io::Result<usize> {
        let room = content.len() + OVERHEAD;
        if self.bytes.len() - self.range.end < room {
            // Else the memory would grow for as long as something is left, however little that is. As much was sent as is copied.
            if self.range.start > self.range.len() {
                self.bytes.copy_within(self.range.clone(), 0); // copy: records that the kernel does not take
                self.range = 0..self.range.len();
            }
            self.bytes.resize(self.bytes.len().max(self.range.end + room), 0);
        }
        let len = keys.seal(kind, content, &mut self.bytes[self.range.end..])?;
        self.range.end += len;
        Ok(len)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream<S> {
    /// Sends what was sealed.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.to_send.range.is_empty() {
            let bytes = &self.to_send.bytes[self.to_send.range.clone()];
            match ready!(Pin::new(&mut self.wire).poll_write(cx, bytes))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.to_send.range.start += n,
            }
        }
        self.to_send.range = 0..0;
        Poll::Ready(Ok(()))
    }

    /// Opens the next record that is whole: false if there is none. Its content goes into `buf`, or waits in `received`.
    fn open(&mut self, buf: &mut ReadBuf<'_>) -> Result<bool, Fatal> {
        let Received { bytes, records, .. } = &mut self.received;
        let Some(frame) = Frame::of(&bytes[records.clone()])? else { return Ok(false) };
        let record = records.start..records.start + frame.len;
        records.start = record.end;
        let room = self.session.opens.room(&bytes[record.clone()])?;
        if room <= buf.remaining() {
            let out = buf.initialize_unfilled_to(room);
            let (kind, len) = self.session.opens.open_into(&bytes[record], out)?;
            self.count(frame, kind, len)?;
            if kind == ContentType::ApplicationData {
                buf.advance(len);
            } else {
                let content = out[..len].to_vec();
                self.handle(kind, &content)?;
            }
        } else {
            let (kind, content) = self.session.opens.open_in_place(&mut bytes[record.clone()])?;
            let content = record.start + content.start..record.start + content.end;
            self.count(frame, kind, content.len())?;
            if kind == ContentType::ApplicationData {
                self.received.content = content;
                self.received.give(buf);
            } else {
                let content = self.received.bytes[content].to_vec();
                self.handle(kind, &content)?;
            }
        }
        Ok(true)
    }

    /// Counts records that bring the reader nothing. Content does not stand between the parts of a message of the handshake.
    fn count(&mut self, frame: Frame, kind: ContentType, opened: usize) -> Result<(), Fatal> {
        let content = if kind == ContentType::ApplicationData { opened } else { 0 };
        self.moved.received_beside(frame.len - content);
        if content > 0 && !self.received.message.is_empty() {
            let why = "the store sent content in the middle of a message of the TLS handshake";
            return Err(Fatal::unexpected(why));
        }
        self.received.silent = if content > 0 { 0 } else { self.received.silent + 1 };
        match self.received.silent {
            0..=SILENT_MAX => Ok(()),
            _ => {
                let why =
                    format!("the store sent more than {SILENT_MAX} TLS records in a row that bring nothing");
                Err(Fatal::unexpected(why))
            }
        }
    }

    /// A record that is not for the reader.
    fn handle(&mut self, kind: ContentType, content: &[u8]) -> Result<(), Fatal> {
        match kind {
            ContentType::Alert => self.alert(content),
            ContentType::Handshake => {
                self.received.message.extend_from_slice(content);
                let messages = std::mem::take(&mut self.received.message);
                let mut rest = &messages[..];
                while let Some(len) = first_message(rest)? {
                    let (message, behind) = rest.split_at(len);
                    self.message(message, behind.is_empty())?;
                    rest = behind;
                }
                self.received.message = rest.to_vec(); // copy: the front of a message, and seldom any
                Ok(())
            }
            other => {
                let why = format!("the store sent a TLS record of type {other:?} behind the handshake");
                Err(Fatal::unexpected(why))
            }
        }
    }

    fn alert(&mut self, content: &[u8]) -> Result<(), Fatal> {
        let &[level, description] = content else {
            return Err(Fatal::new(AlertDescription::DecodeError, "the store sent a TLS alert that is none"));
        };
        match AlertDescription::from(description) {
            AlertDescription::CloseNotify => self.end = Some(End::Said),
            AlertDescription::UserCanceled => {}
            _ if level == WARNING && self.agreed.version == ProtocolVersion::TLSv1_2 => {}
            other => {
                let why = format!("the store ended TLS with the alert {other:?}");
                return Err(Fatal { kind: io::ErrorKind::ConnectionAborted, ..Fatal::new(other, why) });
            }
        }
        Ok(())
    }

    /// A message of the handshake behind the handshake; whether it is the last in its record.
    fn message(&mut self, message: &[u8], is_last: bool) -> Result<(), Fatal> {
        let (header, payload) = message.split_at(4);
        match HandshakeType::from(header[0]) {
            HandshakeType::NewSessionTicket => self.session.keep_ticket(payload),
            HandshakeType::KeyUpdate if is_last => self.update(payload),
            HandshakeType::HelloRequest
                if payload.is_empty() && self.agreed.version == ProtocolVersion::TLSv1_2 =>
            {
                if std::mem::replace(&mut self.was_asked_to_renegotiate, true) {
                    let why = "the store asked a second time for another TLS handshake";
                    return Err(Fatal::unexpected(why));
                }
                let no = [WARNING, AlertDescription::NoRenegotiation.into()];
                self.seal(ContentType::Alert, &no).map_err(|e| internal(&e))
            }
            other => {
                let why = format!("the store sent {other:?} behind the TLS handshake");
                Err(Fatal::unexpected(why))
            }
        }
    }

    /// The store seals with new keys from its next record on, and may ask the same of us.
    fn update(&mut self, payload: &[u8]) -> Result<(), Fatal> {
        let asks = match payload {
            [0] => false,
            [1] => true,
            _ => {
                return Err(Fatal::new(
                    AlertDescription::IllegalParameter,
                    "the store sent a TLS key update that is none",
                ));
            }
        };
        self.session.renew_opens()?;
        if self.to_send.range.len() > 2 * SEND {
            let why = "the store asks for TLS keys and does not take the answers";
            return Err(Fatal::unexpected(why));
        }
        if asks { self.renew().map_err(|e| internal(&e)) } else { Ok(()) }
    }

    /// Seals with new keys from the next record on, and says so.
    fn renew(&mut self) -> io::Result<()> {
        let message = [HandshakeType::KeyUpdate.into(), 0, 0, 1, 0];
        self.seal_now(ContentType::Handshake, &message)?;
        self.session.renew_seals()
    }

    /// Seals a record behind those that wait, with new keys if these have sealed as many as they may.
    fn seal(&mut self, kind: ContentType, content: &[u8]) -> io::Result<()> {
        if self.session.seals.are_used_up() {
            if self.agreed.version == ProtocolVersion::TLSv1_2 {
                return Err(io::Error::other(
                    "this TLS 1.2 connection has sent as much as one key may protect",
                ));
            }
            self.renew()?;
        }
        self.seal_now(kind, content)
    }

    /// The same with the keys that there are.
    fn seal_now(&mut self, kind: ContentType, content: &[u8]) -> io::Result<()> {
        let record = self.to_send.seal(&mut self.session.seals, kind, content)?;
        let is_content = kind == ContentType::ApplicationData;
        self.moved.sends_beside(if is_content { record - content.len() } else { record });
        Ok(())
    }

    /// Nothing more is read, and the store is told why.
    fn fail(&mut self, fatal: Fatal) -> io::Error {
        let error = io::Error::from(&fatal);
        if fatal.kind == io::ErrorKind::InvalidData {
            // Without room for the alert the connection ends without it.
            let _ = self.seal(ContentType::Alert, &[FATAL, fatal.alert.into()]);
        }
        self.end = Some(End::Failed(fatal));
        error
    }

    /// Opens records into `buf`, until it is full or no record is whole; receives while it got nothing.
    fn poll_fill(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        self.received.give(buf);
        loop {
            let is_done = buf.filled().len() > before;
            if buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            match &self.end {
                None => {}
                Some(End::Failed(fatal)) if !is_done => return Poll::Ready(Err(fatal.into())),
                Some(_) => return Poll::Ready(Ok(())),
            }
            match self.open(buf) {
                Ok(true) => continue,
                Ok(false) if is_done => return Poll::Ready(Ok(())),
                Ok(false) => {}
                Err(fatal) => {
                    let error = self.fail(fatal);
                    return Poll::Ready(if is_done { Ok(()) } else { Err(error) });
                }
            }
            let mut spare = ReadBuf::new(self.received.spare());
            ready!(Pin::new(&mut self.wire).poll_read(cx, &mut spare))?;
            let n = spare.filled().len();
            self.received.records.end += n;
            if n == 0 {
                let why = "the connection ended, and the store did not say that it would (TLS close_notify)";
                let fatal = Fatal::new(AlertDescription::CloseNotify, why);
                return Poll::Ready(Err(self.fail(Fatal { kind: io::ErrorKind::UnexpectedEof, ..fatal })));
            }
        }
    }
}

/// The length of the message of the handshake that `bytes` begin with, its header included; `None` while it is not whole.
fn first_message(bytes: &[u8]) -> Result<Option<usize>, Fatal> {
    let Some(&[_, a, b, c]) = bytes.first_chunk() else { return Ok(None) };
    let len = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
    if len > MESSAGE_MAX {
        let why = format!("the store sent a message of the TLS handshake of {len} bytes");
        return Err(Fatal::new(AlertDescription::DecodeError, why));
    }
    Ok((bytes.len() >= len).then_some(len))
}

fn internal(error: &io::Error) -> Fatal {
    Fatal::new(AlertDescription::InternalError, error.to_string())
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.poll_fill(cx, buf);
        // Answers to key updates, and alerts. What does not go now, and an error, are the next write's.
        let _ = self.poll_send(cx);
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &self.end {
            Some(End::Failed(fatal)) => return Poll::Ready(Err(fatal.into())),
            _ if self.is_closed => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            _ => {}
        }
        ready!(self.poll_send(cx))?;
        let mut sealed = 0;
        for piece in bufs.iter().flat_map(|buf| buf.chunks(CONTENT_MAX)) {
            if self.to_send.range.end + piece.len() + OVERHEAD > SEND {
                break;
            }
            self.seal(ContentType::ApplicationData, piece)?;
            sealed += piece.len();
        }
        match self.poll_send(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // What the kernel did not take goes with the next call: a flush, or more bytes.
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(sealed)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let has_failed = matches!(self.end, Some(End::Failed(_)));
        if !std::mem::replace(&mut self.is_closed, true) && !has_failed {
            self.seal(ContentType::Alert, &[WARNING, AlertDescription::CloseNotify.into()])?;
        }
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }
}
