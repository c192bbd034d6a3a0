//! Makes the requests of a listing by ranges, and gives its pages to the pass in order.

use tokio::sync::Notify;

use super::pass::{Next, Pages, Pass};
use crate::inode::{InodeNo, InodeTable, Result};
use crate::listing::page::Asked;
use crate::listing::ranges::{RangeRequest, Turn};
use crate::object::ObjectKey;
use crate::s3::{ListObjects, ListPage};
use crate::sync::{Arc, Weak};

/// The pass and the table, for each request of the pass.
#[derive(Clone)]
pub(super) struct Stream {
    pub(super) table: InodeTable,
    pub(super) directory: InodeNo,
    pub(super) key: ObjectKey,
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) pass: Weak<Pass>,
    pub(super) arrived: Arc<Notify>,
}

impl Stream {
    /// Waits for the next page in order, and takes it in.
    pub(super) async fn advance(self) -> Result<()> {
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            // From here on no notification is missed.
            arrived.as_mut().enable();
            // The pass is gone if the directory was closed or rewound.
            let Some(pass) = self.pass.upgrade() else { return Ok(()) };
            if self.is_renamed() {
                pass.0.lock().next = Next::Ask(None);
                return Ok(());
            }
            let turn = {
                let mut pages = pass.0.lock();
                self.ask(&mut pages);
                pages.ranges.as_mut().map(|ranges| (ranges.turn(), ranges.is_over()))
            };
            let (answer, asked) = match turn {
                Some((Turn::Wait, _)) => {
                    drop(pass);
                    arrived.await;
                    continue;
                }
                Some((Turn::Page(came), is_over)) => {
                    // Any token says that more pages exist: the ranges know where they begin.
                    let next_token = (!is_over).then(String::new);
                    let asked = Asked { event: came.event, since: came.since, arrived: came.arrived };
                    (Ok(ListPage { next_token, ..came.page }), asked)
                }
                Some((Turn::Failed(error), _)) => (Err(error), self.now()),
                Some((Turn::End, _)) => (Ok(ListPage::default()), self.now()),
                None => {
                    // The listing begins anew, one page after another. Requests in flight finish unused.
                    let asked = self.now();
                    let request = self.request(None);
                    let answer = self.table.0.client.list_objects(&request).await;
                    (answer, Asked { arrived: self.table.0.clock.now(), ..asked })
                }
            };
            return pass.take_in(&self.table, self.directory, &self.key, None, asked, answer);
        }
    }

    /// Whether the directory has another key by now: then the listing begins anew, with other ranges. See `Pages::is_of`.
    fn is_renamed(&self) -> bool {
        self.table.key_of(self.directory).is_some_and(|now| now != self.key)
    }

    fn now(&self) -> Asked {
        let now = self.table.0.clock.now();
        Asked { event: self.table.0.tree.lock().event(), since: now, arrived: now }
    }

    fn request(&self, question: Option<&RangeRequest>) -> ListObjects {
        ListObjects {
            prefix: self.key.as_str().to_string(),
            delimited: true,
            max_keys: question.map_or(self.table.0.config.list_page, |question| question.max_keys),
            start_after: question.and_then(|question| question.start_after.clone()),
            continuation_token: question.and_then(|question| question.token.clone()),
        }
    }

    /// Makes the requests that are due.
    fn ask(&self, pages: &mut Pages) {
        let Some(ranges) = &mut pages.ranges else { return };
        for question in ranges.questions() {
            let (stream, request, asked) = (self.clone(), self.request(Some(&question)), self.now());
            self.runtime.spawn(async move {
                let answer = stream.table.0.client.list_objects(&request).await;
                let Some(pass) = stream.pass.upgrade() else { return };
                if stream.is_renamed() {
                    return stream.arrived.notify_waiters();
                }
                let mut pages = pass.0.lock();
                let times = [asked.since, stream.table.0.clock.now()];
                let sound = match &mut pages.ranges {
                    Some(ranges) => ranges.arrives(&question, answer, asked.event, times).is_ok(),
                    None => true,
                };
                if !sound {
                    let key = &stream.key;
                    tracing::debug!(
                        "listing \"{key}\" after {:?}: names out of order; listed from the beginning",
                        request.start_after
                    );
                    pages.ranges = None;
                    stream.table.0.tree.lock().pages_begin_anywhere = false;
                }
                stream.ask(&mut pages);
                drop(pages);
                stream.arrived.notify_waiters();
            });
        }
    }
}
