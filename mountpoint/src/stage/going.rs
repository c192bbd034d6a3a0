//! An upload that began while programs write its file, as a part of the file's state.

use std::ops::Range;

use super::parts::Parts;
use crate::object::{ObjectKey, ObjectMeta};
use crate::s3::Replaces;
use crate::sync::Arc;
use crate::upload;

/// The early upload of a file.
#[derive(Debug, Default)]
pub(super) enum Ahead {
    /// No upload has begun.
    #[default]
    Not,
    /// An upload has some parts.
    Going { parts: Parts, going: Arc<Going> },
    /// The file goes out as a whole, or in the places that changed.
    Over,
}

/// An early upload.
#[derive(Debug)]
pub(super) struct Going {
    pub(super) upload: upload::Ahead,
    pub(super) key: ObjectKey,
    replaces: Replaces,
    /// Held by the task or the close: from the choice of a part until it is read, and during the last request.
    turn: tokio::sync::Mutex<()>,
}

/// The right to send parts of an early upload.
pub(super) type Sender<'a> = tokio::sync::MutexGuard<'a, ()>;

impl Ahead {
    /// Notes that some bytes change.
    pub(super) fn touched(&mut self, range: &Range<u64>) {
        if let Self::Going { parts, .. } = self {
            parts.touched(range);
        }
    }

    /// Notes a new size.
    pub(super) fn resized(&mut self, size: u64) {
        if let Self::Going { parts, .. } = self
            && size < parts.end()
        {
            self.end();
        }
    }

    /// Gives the upload up, for good.
    pub(super) fn end(&mut self) {
        if let Self::Going { going, .. } = std::mem::replace(self, Self::Over) {
            going.upload.give_up();
        }
    }

    /// Whether this upload has a file of this size as it is now.
    pub(super) fn has_all(&self, of: &Arc<Going>, size: u64) -> bool {
        matches!(self, Self::Going { parts, going } if Arc::ptr_eq(going, of) && parts.are_all(size))
    }

    /// Whether this upload is under way.
    pub(super) fn is(&self, of: &Arc<Going>) -> bool {
        matches!(self, Self::Going { going, .. } if Arc::ptr_eq(going, of))
    }
}

impl Going {
    pub(super) fn new(upload: upload::Ahead, key: ObjectKey, replaces: Replaces) -> Self {
        Self { upload, key, replaces, turn: tokio::sync::Mutex::default() }
    }

    /// Whether the upload makes an object under this key, in place of this version.
    pub(super) fn makes(&self, key: &ObjectKey, replaces: &Replaces) -> bool {
        (&self.key, &self.replaces) == (key, replaces)
    }

    /// Waits until no part is being read.
    pub(super) async fn turn(&self) -> Sender<'_> {
        self.turn.lock().await
    }

    /// Completes the upload. A caller that is dropped does not stop the request.
    pub(super) async fn finish(
        self: &Arc<Self>,
        runtime: &tokio::runtime::Handle,
        size: u64,
    ) -> Result<ObjectMeta, upload::Error> {
        let this = Arc::clone(self);
        let made = runtime.spawn(async move { this.upload.finish(size).await });
        made.await.unwrap_or(Err(upload::Error::Panicked))
    }
}
