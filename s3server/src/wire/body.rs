//! Bodies that end early, stall or have wrong bytes, for faults.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use s3s::StdError;
use tokio::time::Sleep;

use super::line::{Cut, Line};
use super::{Exchange, HungUp};
use crate::fault::Effect;

/// A request's body. A fault may cut it.
pub(super) struct Inbound {
    inner: Incoming,
    exchange: Exchange,
    seen: u64,
}

impl Inbound {
    pub(super) fn new(inner: Incoming, exchange: Exchange) -> Self {
        Self { inner, exchange, seen: 0 }
    }
}

impl Body for Inbound {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx)?);
        if let Some(data) = frame.as_ref().and_then(Frame::data_ref) {
            self.seen += data.len() as u64;
        }
        let cut = self.exchange.effects().iter().any(|effect| match effect {
            Effect::ResetUpload { after_bytes } => self.seen > *after_bytes,
            _ => false,
        });
        if cut {
            self.exchange.hang_up();
            return Poll::Ready(Some(Err(Box::new(HungUp))));
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Whether an effect changes an answer's body.
pub(super) fn concerns(effect: &Effect) -> bool {
    at(effect).is_some()
}

/// The offset in the body at which an effect strikes.
fn at(effect: &Effect) -> Option<u64> {
    match effect {
        Effect::Reset { after_bytes } => *after_bytes,
        Effect::Truncate { after_bytes } | Effect::Stall { after_bytes, .. } => Some(*after_bytes),
        Effect::FlipBit { at_byte } => Some(*at_byte),
        _ => None,
    }
}

/// An answer's body. Faults may change it.
pub(super) struct Outbound {
    inner: s3s::Body,
    /// The remaining effects, the next one last.
    effects: Vec<Effect>,
    line: Arc<Line>,
    /// Bytes handed to hyper.
    sent: u64,
    /// Bytes from the inner body that were not handed to hyper yet.
    held: Bytes,
    stalled: Option<Pin<Box<Sleep>>>,
    length: u64,
}

impl Outbound {
    pub(super) fn new(inner: s3s::Body, mut effects: Vec<Effect>, line: Arc<Line>) -> Self {
        let length = inner.size_hint().exact().unwrap_or(u64::MAX);
        effects.retain(|effect| at(effect).is_some_and(|at| at < length));
        effects.sort_by_key(|effect| std::cmp::Reverse(at(effect)));
        Self { inner, effects, line, sent: 0, held: Bytes::new(), stalled: None, length }
    }

    /// Applies the effects at the present offset. `Ready(true)` if the body goes on.
    fn poll_effect(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if let Some(stalled) = &mut self.stalled {
            ready!(stalled.as_mut().poll(cx));
            self.stalled = None;
            self.effects.pop();
        }
        while let Some(effect) = self.effects.last().filter(|e| at(e) == Some(self.sent)) {
            match effect {
                Effect::Stall { for_ms, .. } => {
                    let mut sleep = Box::pin(tokio::time::sleep(Duration::from_millis(*for_ms)));
                    let polled = sleep.as_mut().poll(cx);
                    self.stalled = Some(sleep);
                    ready!(polled);
                    self.stalled = None;
                }
                Effect::FlipBit { .. } => {
                    // copy: the bytes may be shared, and one of them must differ.
                    let mut changed = BytesMut::from(&self.held[..]);
                    if let Some(byte) = changed.first_mut() {
                        *byte ^= 1;
                    }
                    self.held = changed.freeze();
                }
                other => {
                    let cut = if matches!(other, Effect::Reset { .. }) { Cut::Reset } else { Cut::Close };
                    ready!(self.line.poll_flushed(cx));
                    self.line.cut(cut);
                    return Poll::Ready(false);
                }
            }
            self.effects.pop();
        }
        Poll::Ready(true)
    }
}

impl Body for Outbound {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = &mut *self;
        if this.held.is_empty() {
            match ready!(Pin::new(&mut this.inner).poll_frame(cx)?).map(Frame::into_data) {
                Some(Ok(data)) => this.held = data,
                Some(Err(trailers)) => return Poll::Ready(Some(Ok(trailers))),
                None => return Poll::Ready(None),
            }
        }
        if !ready!(this.poll_effect(cx)) {
            return Poll::Ready(Some(Err(Box::new(HungUp))));
        }
        let until_next = this.effects.last().and_then(at).map_or(u64::MAX, |at| at - this.sent);
        let give = usize::try_from(until_next).map_or(this.held.len(), |n| n.min(this.held.len()));
        let data = this.held.split_to(give);
        this.sent += data.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn size_hint(&self) -> SizeHint {
        match self.length {
            u64::MAX => SizeHint::default(),
            length => SizeHint::with_exact(length - self.sent),
        }
    }
}
