//! The end of a file: one PutObject, or the last part and Complete. It happens once, and every caller gets the same result.

use super::Error;
use super::multipart::{Multipart, agrees, pieces};
use super::part::Part;
use super::stage::{Event, Reply, Stage};
use super::upload::Upload;
use crate::checksum::Checksum;
use crate::object::ObjectMeta;
use crate::s3::{PutObject, Stored};
use crate::sync::Arc;

impl Upload {
    pub(super) async fn run_finish(self: Arc<Self>) {
        if !self.take_turn().await {
            return;
        }
        let (part, multipart, size) = {
            let mut state = self.state.lock();
            let mut part = state.part.take();
            if state.multipart.is_some()
                && let Some(last) = part.take()
                && !last.is_empty()
            {
                self.submit(&mut state, last);
            }
            (part, state.multipart.clone(), state.size)
        };
        let made = match multipart {
            Some(multipart) => self.complete(&multipart, size).await,
            None => self.put(part, size).await,
        };
        match made {
            Ok(stored) => {
                let meta = ObjectMeta {
                    size,
                    etag: stored.etag,
                    last_modified: self.shared.clock.wall(),
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

    /// Waits until the pump and the spiller have freed the turn; false when the upload has failed meanwhile.
    async fn take_turn(&self) -> bool {
        loop {
            let changed = self.changed.notified();
            match self.state.lock().stage {
                Stage::Finishing { busy: false, .. } => return true,
                Stage::Failed { .. } => return false,
                _ => {}
            }
            changed.await;
        }
    }

    async fn complete(&self, multipart: &Arc<Multipart>, size: u64) -> Result<Stored, Error> {
        multipart.fewer_than(1).await;
        let whole = self.commit()?.unwrap_or_else(|| Checksum::of(self.shared.algorithm(), &[]));
        multipart.complete(size, whole).await
    }

    async fn put(&self, part: Option<Part>, size: u64) -> Result<Stored, Error> {
        let empty = || Part::new(1, 0, self.shared.algorithm());
        let part = part.unwrap_or_else(empty).seal();
        if part.len != size {
            let key = &self.object.key;
            tracing::error!(%key, size, held = part.len, "the bytes at hand are not the file that was written: not stored");
            return Err(Error::Corrupt);
        }
        let mut outcome = self.outcome.subscribe();
        let (blocks, _sending) = tokio::select! {
            biased;
            _ = outcome.wait_for(Option::is_some) => return Err(Error::Aborted),
            loaded = self.shared.load(part.body, part.len, part.checksum) => loaded?,
        };
        self.commit()?;
        let algorithm = self.object.checksum;
        let checksum = algorithm.map(|_| part.checksum);
        let request = PutObject { object: self.object.clone(), body: pieces(blocks), checksum };
        let answer = self.shared.client.put_object(&request).await;
        drop(request);
        let answer = answer?;
        if !agrees(answer.checksum.as_deref(), algorithm, part.checksum, &[part.checksum]) {
            let key = &self.object.key;
            tracing::error!(%key, answer = answer.checksum, "the store's checksum of the object is not ours");
            return Err(Error::Corrupt);
        }
        Ok(answer)
    }

    /// From here on the object may become visible: nothing but the store's answer decides. Gives the whole checksum.
    fn commit(&self) -> Result<Option<Checksum>, Error> {
        let mut state = self.state.lock();
        match state.on(Event::Commit) {
            Reply::Done => Ok(state.whole),
            _ => Err(state.error.clone().unwrap_or(Error::Aborted)),
        }
    }
}
