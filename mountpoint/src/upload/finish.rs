//! Storing a file at its end: one PutObject, or the last part and CompleteMultipartUpload. This happens once, and every caller gets the
//! same result.

use super::Error;
use super::multipart::{Multipart, agrees, pieces};
use super::part::Part;
use super::stage::{Decision, Event, Stage};
use super::upload::{State, Upload};
use crate::checksum::Checksum;
use crate::object::ObjectMeta;
use crate::s3::{PutObject, Stored};
use crate::sync::Arc;

/// The requests that are left when no more bytes come.
struct Rest {
    /// The only part of a small file.
    part: Option<Part>,
    /// The multipart upload of a file of several parts.
    multipart: Option<Arc<Multipart>>,
    size: u64,
    /// Whether the object stays unchanged, because an append added no bytes.
    is_unchanged: bool,
}

impl Upload {
    /// Stores the file. Without a program that waits for it (`is_awaited`), it first waits in the queue of files to store.
    pub(super) async fn run_finish(self: Arc<Self>, is_awaited: bool) {
        let _fails = self.fails_on_panic("storing a file", Event::Lose);
        let _turn = if is_awaited { None } else { self.shared.unawaited.acquire().await.ok() };
        if let Err(error) = self.pad().await {
            return self.fail(error);
        }
        let Some(Rest { part, multipart, size, is_unchanged }) = self.take_rest().await else { return };
        if is_unchanged {
            let ground = self.ground.read().await;
            match ground.as_ref().and_then(|base| base.meta.clone()) {
                Some(meta) if self.commit().is_ok() => {
                    self.state.lock().on(Event::Keep);
                    self.outcome.send_if_modified(|outcome| outcome.replace(Ok(meta)).is_none());
                }
                _ => self.fail(Error::Aborted),
            }
            return;
        }
        let made = match multipart {
            Some(multipart) => self.complete(&multipart, size).await,
            None => self.put(part, size).await,
        };
        match made {
            Ok(stored) => {
                let meta = ObjectMeta {
                    size,
                    etag: stored.etag,
                    last_modified: stored.modified.unwrap_or_else(|| self.shared.clock.wall()),
                    readable: true,
                };
                self.state.lock().on(Event::Keep);
                self.outcome.send_if_modified(|outcome| outcome.replace(Ok(meta)).is_none());
            }
            Err(error) => {
                let remains = self.state.lock().fail_by(Event::Lose, error);
                self.clean_up(remains);
            }
        }
    }

    /// Takes the remaining work, once the pump and the spiller have released the turn; `None` if the upload has failed meanwhile.
    async fn take_rest(self: &Arc<Self>) -> Option<Rest> {
        loop {
            let changed = self.changed.notified();
            {
                // One lock covers the check and the taking: a failure in between would drop the last part.
                let mut state = self.state.lock();
                match state.stage {
                    Stage::Finishing { .. } if !state.is_busy => return Some(self.send_last(&mut state)),
                    Stage::Failed { .. } => return None,
                    _ => {}
                }
            }
            changed.await;
        }
    }

    /// Sends the last part of several, and returns the remaining work.
    fn send_last(self: &Arc<Self>, state: &mut State) -> Rest {
        let mut part = state.part.take();
        let behind = self.behind.as_ref();
        let is_unchanged = behind.is_some_and(|behind| behind.meta.size == state.size);
        let is_of_parts = state.multipart.is_some() || state.sealed > 0;
        if !is_unchanged
            && is_of_parts
            && let Some(last) = part.take()
            && !last.is_empty()
        {
            self.submit(state, last);
        }
        Rest { part, multipart: state.multipart.clone(), size: state.size, is_unchanged }
    }

    async fn complete(&self, multipart: &Arc<Multipart>, size: u64) -> Result<Stored, Error> {
        multipart.fewer_than(1).await;
        let _still = self.ground.read().await;
        let whole = self.commit()?.unwrap_or_else(|| Checksum::of(self.shared.algorithm(), &[]));
        multipart.complete(size, whole).await
    }

    async fn put(&self, part: Option<Part>, size: u64) -> Result<Stored, Error> {
        let empty = || Part::new(1, 0, self.shared.algorithm());
        let part = part.unwrap_or_else(empty).seal();
        if part.len != size {
            let key = self.key();
            tracing::error!(%key, size, held = part.len, "the bytes in memory differ from the file that was written: not stored");
            return Err(Error::Corrupt);
        }
        let mut outcome = self.outcome.subscribe();
        let (blocks, _sending) = tokio::select! {
            biased;
            _ = outcome.wait_for(Option::is_some) => return Err(Error::Aborted),
            loaded = self.shared.load(part.body, part.len, part.checksum) => loaded?,
        };
        let _still = self.ground.read().await;
        self.commit()?;
        // The key can't change from here on.
        let object = self.to_be(true);
        let algorithm = object.checksum;
        let checksum = algorithm.map(|_| part.checksum);
        let request = PutObject { object, body: pieces(blocks), checksum };
        let answer = self.shared.client.put_object(&request).await;
        drop(request);
        let answer = answer?;
        if !agrees(answer.checksum.as_deref(), algorithm, part.checksum, &[part.checksum]) {
            let key = self.key();
            tracing::error!(%key, answer = answer.checksum, "the store's checksum of the object differs from the engine's");
            return Err(Error::Corrupt);
        }
        Ok(answer)
    }

    /// Marks the start of the request that makes the object visible: from now on only the store's answer decides. Returns the checksum of
    /// the sent parts.
    fn commit(&self) -> Result<Option<Checksum>, Error> {
        let mut state = self.state.lock();
        match state.on(Event::Commit) {
            Decision::Done => Ok(state.whole),
            _ => Err(state.error.clone().unwrap_or(Error::Aborted)),
        }
    }
}
