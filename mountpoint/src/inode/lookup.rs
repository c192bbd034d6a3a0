//! Lookup and getattr: from memory while the facts are valid, otherwise by one request to S3 for all identical lookups.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use super::board::{NameSeat, OfName, PageSeat, Wish};
use super::error::{Error, ErrorKind, Result};
use super::remote::{self, Ask, Lister, Remote};
use super::state::{Node, Place};
use super::tree::{Recall, Settled, Tree, stale};
use super::{FRESH, Found, InodeNo, InodeTable, Stat};
use crate::first::First;
use crate::listing::expiry::PAGE;
use crate::listing::path::{self, BadName};
use crate::s3::BoxFuture;
use crate::sync::Arc;

/// Most times that a lookup asks again because the name changed here meanwhile. Only a name that programs create and remove without end
/// reaches the limit; the error is `Stale` then.
const ATTEMPTS_MAX: usize = 16;

/// Pages that a lookup waits for before it asks for its own name: the one in flight when it began proves no name absent to it, the next
/// one does. Doubling it spares no request.
const PAGES_MAX: usize = 2;

/// The request that a lookup waits for.
enum Step {
    /// A page that may contain the name, and how long the lookup waits for it.
    Page(PageSeat, Duration),
    /// S3's answer about the name alone.
    Name(NameSeat),
}

/// An inode that this room itself references while it works on it.
pub(super) struct Held<'a> {
    table: &'a InodeTable,
    pub(super) ino: InodeNo,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.table.forget(self.ino, 1);
    }
}

impl InodeTable {
    /// Answers a lookup from memory; `None` if S3 must be asked. Counts one kernel reference when `Ok`.
    pub fn try_lookup(&self, parent: InodeNo, name: &OsStr) -> Option<Result<Found>> {
        let name = match parse(name) {
            Ok(name) => name,
            Err(error) => return Some(Err(error)),
        };
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        match tree.recall(parent, name, now) {
            Err(error) => Some(Err(error)),
            Ok(Recall::Ask(_)) => None,
            Ok(Recall::Missing) => Some(Err(Error::new(ErrorKind::NotFound, name))),
            Ok(Recall::Found(ino)) => {
                Some(tree.take(ino, None).and_then(|()| tree.found(ino, now).ok_or_else(|| stale(ino))))
            }
        }
    }

    /// Looks a name up. Counts one kernel reference when `Ok`.
    ///
    /// # Errors
    /// `NotFound`; `InvalidName`, `NameTooLong`: no key can have the name; `NotADirectory`: the parent is a file; `Stale`: the
    /// parent is gone; `Remote`: S3 did not answer.
    pub async fn lookup(&self, parent: InodeNo, name: &OsStr) -> Result<Found> {
        let ino = self.resolve(parent, parse(name)?, true).await?;
        self.0.tree.lock().found(ino, self.0.clock.now()).ok_or_else(|| stale(ino))
    }

    /// Looks a name up for this room itself: the inode lives until the result is dropped.
    pub(super) async fn hold(&self, parent: InodeNo, name: &str) -> Result<Held<'_>> {
        let ino = self.resolve(parent, name, false).await?;
        Ok(Held { table: self, ino })
    }

    /// Finds a name and counts one reference to it.
    async fn resolve(&self, parent: InodeNo, name: &str, for_kernel: bool) -> Result<InodeNo> {
        let mut pages = if for_kernel { 0 } else { PAGES_MAX };
        let mut began = None;
        for _ in 0..ATTEMPTS_MAX {
            let step = {
                let (mut tree, now) = (self.0.tree.lock(), self.0.clock.now());
                let began = *began.get_or_insert_with(|| tree.last_event());
                match tree.recall(parent, name, now)? {
                    Recall::Missing => return Err(Error::new(ErrorKind::NotFound, name)),
                    Recall::Found(ino) => return tree.take(ino, None).map(|()| ino),
                    Recall::Ask(ask) => {
                        if ask == Ask::Both
                            && let Some(asked) = tree.lacked_after(parent, name, began, now)
                        {
                            tree.settle(parent, name, Remote::Missing, asked, now)?;
                            return Err(Error::new(ErrorKind::NotFound, name));
                        }
                        let page = match pages {
                            0 => self.page(&mut tree, parent, name, ask),
                            1 => self.page_again(&mut tree, parent, name, ask, began),
                            _ => None,
                        };
                        match page {
                            Some(page) => {
                                let aged = now.saturating_duration_since(*page.question);
                                let wait = tree.prices.wait(self.0.config.list_page);
                                Step::Page(page, wait.saturating_sub(aged))
                            }
                            None => Step::Name(self.seat(&mut tree, parent, name, ask, for_kernel)?),
                        }
                    }
                }
            };
            let seat = match step {
                Step::Name(seat) => seat,
                Step::Page(page, wait) => {
                    pages += 1;
                    // The tree takes in a page that arrives later, too.
                    self.0.clock.timeout(wait, page.answer).await;
                    continue;
                }
            };
            let since = self.0.clock.now();
            let remote = seat.answer.await;
            let mut tree = self.0.tree.lock();
            if remote.is_ok() && seat.question.is_alone() {
                tree.prices.looked(self.0.clock.now().saturating_duration_since(since));
            }
            if seat.question.is_overtaken() {
                continue;
            }
            let now = self.0.clock.now();
            let is_new = tree.child(parent, name).is_none() && tree.local(parent, name).is_none();
            return match tree.settle(parent, name, remote?, seat.question.asked, now)? {
                Settled::Missing => Err(Error::new(ErrorKind::NotFound, name)),
                Settled::Found(ino) => {
                    if let Some(page) = seat.question.take_listing().filter(|_| is_new) {
                        self.take_along(&mut tree, ino, page, &seat.question, now);
                    }
                    let alone = for_kernel && seat.question.is_alone();
                    tree.take(ino, alone.then_some(now))?;
                    if let Some(first) = seat.question.take_first().filter(|_| alone) {
                        self.keep_first(&mut tree, ino, first, now);
                    }
                    Ok(ino)
                }
            };
        }
        Err(Error::new(ErrorKind::Stale, name))
    }

    /// A seat in a question that makes the same requests, or in a new question if there is none.
    fn seat(
        &self,
        tree: &mut Tree,
        parent: InodeNo,
        name: &str,
        ask: Ask,
        for_kernel: bool,
    ) -> Result<NameSeat> {
        let subject = (parent, name.into());
        if let Some(seat) = tree.board.join_name(&subject, ask) {
            return Ok(seat);
        }
        let directory = tree.directory(parent)?.0.clone();
        let question = OfName::new(ask, tree.event(), self.0.clock.now());
        let asker = self.0.asker.clone();
        let (keys, folder_marks) = (self.0.config.lookup_page, self.0.config.folder_marks);
        // A TTL below a second is an explicit wish for requests.
        let brought = if tree.ttl.directory() < PAGE { 0 } else { self.0.config.brought };
        let name = name.to_string();
        let request = move |question: &Arc<OfName>| -> BoxFuture<'static, _> {
            let slot = for_kernel.then(|| Arc::clone(&question.first));
            let lister = Lister { keys, brought, slot: Arc::clone(&question.listing) };
            Box::pin(async move {
                let answer = remote::ask(&asker, &directory, &name, ask, lister, slot).await?;
                match folder_marks {
                    true => remote::with_folder_marks(&asker, &directory, &name, answer).await,
                    false => Ok(answer),
                }
            })
        };
        Ok(tree.board.names.start(subject, question, request, self.landed(|board| &mut board.names)))
    }

    /// Keeps the first bytes that came with a lookup, for the open after it.
    fn keep_first(&self, tree: &mut Tree, ino: InodeNo, first: First, now: Instant) {
        let holds_memory = first.has_bytes();
        tree.firsts.put(ino, first, now);
        if holds_memory {
            let (table, clock) = (Arc::downgrade(&self.0), self.0.clock.clone());
            tokio::spawn(async move {
                clock.sleep(FRESH).await;
                if let Some(table) = table.upgrade() {
                    table.tree.lock().firsts.expire(clock.now());
                }
            });
        }
    }

    /// The attributes of an inode from memory; `None` if S3 must be asked.
    pub fn try_getattr(&self, ino: InodeNo) -> Option<Result<Stat>> {
        let now = self.0.clock.now();
        let mut tree = self.0.tree.lock();
        let Some(inode) = tree.inode(ino) else { return Some(Err(stale(ino))) };
        let stat = tree.stat(inode, now);
        let current = match &inode.node {
            // A directory's attributes never change. Whether it exists is a question of its entry.
            Node::Directory(_) => true,
            // An open handle sees its version until it closes.
            Node::File(file) => file.is_local() || file.readers > 0 || inode.place == Place::Nowhere,
        };
        if current || !stat.valid_for.is_zero() {
            return Some(Ok(stat));
        }
        // A page decides about the name: this version, or another inode.
        let (parent, name) = (inode.parent, inode.name.clone());
        match tree.recall(parent, &name, now) {
            Ok(Recall::Found(named)) if named == ino => Some(Ok(tree.stat(tree.inode(ino)?, now))),
            Ok(Recall::Found(other)) => {
                tree.drop_if_idle(other);
                Some(Err(stale(ino)))
            }
            _ => None,
        }
    }

    /// The attributes of an inode. A file whose TTL is over costs one HEAD.
    ///
    /// # Errors
    /// `Stale`: S3 has another version or none, look the name up again; `Remote`.
    pub async fn getattr(&self, ino: InodeNo) -> Result<Stat> {
        if let Some(answer) = self.try_getattr(ino) {
            return answer;
        }
        self.revalidate(ino, Wish::Stat).await?;
        let tree = self.0.tree.lock();
        let inode = tree.inode(ino).ok_or_else(|| stale(ino))?;
        Ok(tree.stat(inode, self.0.clock.now()))
    }
}

/// Parses a name from the kernel.
pub(super) fn parse(name: &OsStr) -> Result<&str> {
    path::parse(name).map_err(|bad| {
        let kind = match bad {
            BadName::TooLong => ErrorKind::NameTooLong,
            other => ErrorKind::InvalidName(other.to_string()),
        };
        Error::new(kind, name.to_string_lossy())
    })
}
