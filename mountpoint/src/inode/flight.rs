//! Single flight: identical questions to S3 that are under way share one request.
//!
//! A question stays on the list until its answer arrives, or until no operation waits for it. The list itself keeps no request alive. The
//! next page of an open listing has no place here: only the readers of that listing share it (`readdir/pass.rs`).

use std::fmt;
use std::hash::Hash;

use foldhash::HashMap;
use futures_util::FutureExt;
use futures_util::future::{Shared, WeakShared};

use crate::s3::BoxFuture;
use crate::sync::Arc;

/// Questions in flight, by their subject `K`. `Q` describes a question, `A` is its answer.
pub(super) struct Flights<K, Q, A>(HashMap<K, Vec<Entry<Q, A>>>);

struct Entry<Q, A> {
    question: Arc<Q>,
    answer: WeakShared<BoxFuture<'static, A>>,
}

/// A place among those that wait for an answer.
pub(super) struct Seat<Q, A> {
    pub(super) question: Arc<Q>,
    pub(super) answer: Shared<BoxFuture<'static, A>>,
}

impl<K, Q, A> Default for Flights<K, Q, A> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<K, Q, A> Flights<K, Q, A>
where
    K: Eq + Hash + Clone + Send + 'static,
    Q: Send + Sync + 'static,
    A: Clone + Send + Sync + 'static,
{
    /// A seat in the latest question about a subject that `fits`.
    pub(super) fn join(&self, subject: &K, fits: impl Fn(&Q) -> bool) -> Option<Seat<Q, A>> {
        let entry = self.0.get(subject)?.iter().rev().find(|entry| fits(&entry.question))?;
        Some(Seat { question: Arc::clone(&entry.question), answer: entry.answer.upgrade()? })
    }

    /// The questions about a subject.
    pub(super) fn about(&self, subject: &K) -> impl Iterator<Item = &Arc<Q>> {
        self.0.get(subject).into_iter().flatten().map(|entry| &entry.question)
    }

    /// The subjects of all questions.
    pub(super) fn subjects(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    /// Puts a question on the list. `ask` makes the request. `landed` runs once, when the answer arrives or no seat is left; it takes the
    /// question off the list by [`Flights::land`].
    pub(super) fn start(
        &mut self,
        subject: K,
        question: Q,
        ask: impl FnOnce(&Arc<Q>) -> BoxFuture<'static, A>,
        landed: impl FnOnce(&K, &Arc<Q>) + Send + 'static,
    ) -> Seat<Q, A> {
        let question = Arc::new(question);
        let request = ask(&question);
        let landing = Landing(Some((subject.clone(), Arc::clone(&question), landed)));
        let answer: BoxFuture<'static, A> = Box::pin(async move {
            let _landing = landing;
            request.await
        });
        let answer = answer.shared();
        let weak = answer.downgrade().expect("not polled yet");
        let entry = Entry { question: Arc::clone(&question), answer: weak };
        self.0.entry(subject).or_default().push(entry);
        Seat { question, answer }
    }

    /// Takes a question off the list.
    pub(super) fn land(&mut self, subject: &K, question: &Arc<Q>) {
        let Some(entries) = self.0.get_mut(subject) else { return };
        entries.retain(|entry| !Arc::ptr_eq(&entry.question, question));
        if entries.is_empty() {
            self.0.remove(subject);
        }
    }

    /// Takes all questions about a subject off the list, so that no later operation joins them.
    pub(super) fn leave(&mut self, subject: &K) -> impl Iterator<Item = Arc<Q>> {
        self.0.remove(subject).into_iter().flatten().map(|entry| entry.question)
    }

    /// Takes all questions about matching subjects off the list.
    pub(super) fn leave_all(&mut self, is_meant: impl Fn(&K) -> bool) -> Vec<Arc<Q>> {
        let left = self.0.extract_if(|subject, _| is_meant(subject)).flat_map(|(_, entries)| entries);
        left.map(|entry| entry.question).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Runs its closure when the future that holds it is done or dropped.
struct Landing<K, Q, F: FnOnce(&K, &Arc<Q>)>(Option<(K, Arc<Q>, F)>);

impl<K, Q, F: FnOnce(&K, &Arc<Q>)> Drop for Landing<K, Q, F> {
    fn drop(&mut self) {
        if let Some((subject, question, landed)) = self.0.take() {
            landed(&subject, &question);
        }
    }
}

impl<K: fmt::Debug, Q, A> fmt::Debug for Flights<K, Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Mutex;

    type Board = Arc<Mutex<Flights<&'static str, u32, u32>>>;

    fn start(board: &Board, subject: &'static str, question: u32) -> Seat<u32, u32> {
        let landing = Arc::clone(board);
        let ask = |question: &Arc<u32>| -> BoxFuture<'static, u32> {
            let answer = 10 * **question;
            Box::pin(async move { answer })
        };
        board.lock().start(subject, question, ask, move |subject, question| {
            landing.lock().land(subject, question);
        })
    }

    #[test]
    fn a_question_that_fits_is_joined_until_its_answer_is_here() {
        let board = Board::default();
        let first = start(&board, "a", 1);
        let second = start(&board, "a", 2);
        let join =
            |subject, fits: fn(&u32) -> bool| board.lock().join(&subject, fits).map(|seat| *seat.question);
        assert_eq!(join("a", |_| true), Some(2));
        assert_eq!(join("a", |question| *question < 2), Some(1));
        assert_eq!(join("a", |question| *question > 2), None);
        assert_eq!(join("b", |_| true), None);
        let seat = board.lock().join(&"a", |question| *question == 2).unwrap();
        assert_eq!((seat.answer.now_or_never(), second.answer.now_or_never()), (Some(20), Some(20)));
        assert_eq!(join("a", |_| true), Some(1), "the second has landed");
        drop(first);
        assert!(board.lock().is_empty(), "nobody waits for the first");
    }

    #[test]
    fn a_subject_that_is_left_is_joined_no_more_and_still_answers_its_seats() {
        let board = Board::default();
        let seat = start(&board, "a", 1);
        assert_eq!(board.lock().leave(&"a").map(|question| *question).collect::<Vec<_>>(), [1]);
        assert!(board.lock().join(&"a", |_| true).is_none());
        let again = start(&board, "a", 2);
        assert_eq!(seat.answer.now_or_never(), Some(10));
        assert_eq!(board.lock().about(&"a").map(|question| **question).collect::<Vec<_>>(), [2]);
        drop(again);
    }
}
