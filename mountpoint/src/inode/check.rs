//! Asks S3 whether a file is still the version that its inode means, by one request for all operations that ask at once (`board.rs`).

use std::time::Duration;

use super::board::{Answer, FileSeat, OfFile, Wish};
use super::compact::{Judgement, Teller};
use super::error::{Error, ErrorKind, Result};
use super::state::{Node, Place};
use super::tree::{Tree, stale};
use super::{InodeNo, InodeTable};
use crate::first::{Cause, First};
use crate::object::ObjectMeta;
use crate::s3::{self, BoxFuture};
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;

/// Longest wait for the answer of another open's request, so that a broken connection delays only its own open for longer.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(200);

impl InodeTable {
    /// Asks S3 by one request whether a stored file is still the version of this inode. Returns bytes that came along, for an open.
    pub(super) async fn revalidate(&self, ino: InodeNo, wish: Wish) -> Result<Option<First>> {
        let seat = self.take_seat(&mut self.0.tree.lock(), ino, wish);
        let meta = seat.answer.await?;
        let first = if wish == Wish::Stat { None } else { seat.question.first.lock().take() };
        let asked = seat.question.asked.load(Relaxed);
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let said = tree.ttl.said(asked, now);
        let key = tree.key(ino).ok_or_else(|| stale(ino))?;
        let inode = tree.inode(ino).ok_or_else(|| stale(ino))?;
        let (local, stored) = match &inode.node {
            Node::File(file) => (file.is_local(), file.stored.as_ref()),
            Node::Directory(_) => (false, None),
        };
        // Also an older answer proves that a doubted version is gone.
        let is_gone = stored.is_some_and(|stored| {
            let is_it = |meta: &ObjectMeta| {
                let judged = stored.judge(meta.size, meta.etag.as_str(), meta.last_modified, Teller::Object);
                judged != Judgement::Other
            };
            stored.until().is_none() && !meta.as_ref().is_some_and(is_it)
        });
        if inode.place == Place::Nowhere {
            return Err(Error::new(ErrorKind::Stale, key.as_str()));
        }
        // Changes that this mount made after the question stay.
        if local || inode.learned > asked && !is_gone {
            return Ok(first);
        }
        match meta {
            Some(meta) if tree.confirm(ino, &meta, Teller::Object, false, said) => {
                if let Some((parent, name)) = tree.inode(ino).map(|inode| (inode.parent, inode.name.clone()))
                {
                    tree.is_seen(parent, &name, asked);
                }
                Ok(first)
            }
            // S3 has another object under the name, or none. The next lookup asks what the name is now, perhaps a directory.
            _ => {
                tree.detach(ino);
                Err(Error::new(ErrorKind::Stale, key.as_str()))
            }
        }
    }

    /// A seat in a matching question about this file, or in a new question if none matches.
    fn take_seat(&self, tree: &mut Tree, ino: InodeNo, wish: Wish) -> FileSeat {
        if let Some(seat) = tree.board.join_file(ino, wish) {
            return seat;
        }
        let question = tree.board.of_file(ino, wish);
        let table = self.clone();
        let ask = |question: &Arc<OfFile>| -> BoxFuture<'static, Answer> {
            let question = Arc::clone(question);
            Box::pin(async move {
                let gate = Arc::clone(&question.gate);
                let _permit = match question.opens {
                    true => table.0.clock.timeout(WAIT_MAX, gate.acquire_owned()).await,
                    false => None,
                };
                table.ask_check(ino, &question).await
            })
        };
        tree.board.files.start(ino, question, ask, self.landed(|board| &mut board.files))
    }

    /// Makes the request. No open that begins after this call uses the answer.
    async fn ask_check(&self, ino: InodeNo, check: &OfFile) -> Answer {
        let (key, known) = {
            let mut tree = self.0.tree.lock();
            check.asked.store(tree.event(), Relaxed);
            let key = tree.key(ino).ok_or_else(|| stale(ino))?;
            let known = if check.opens { tree.known(ino) } else { None };
            (key, known)
        };
        let answer = match &known {
            Some(known) => {
                let asked = self.0.asker.ask(&key, Cause::Open, Some(known)).await;
                asked.map(|(meta, first)| {
                    *check.first.lock() = Some(first);
                    meta
                })
            }
            None => self.0.client.head_object(&key).await,
        };
        match answer {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if matches!(error.kind(), s3::ErrorKind::NotFound | s3::ErrorKind::Changed) => {
                Ok(None)
            }
            Err(error) => Err(Error::new(ErrorKind::Remote(Arc::new(error)), key.as_str())),
        }
    }
}
