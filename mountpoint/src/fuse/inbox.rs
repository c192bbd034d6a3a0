//! Messages from other threads to the thread of a queue of `ring/`: answers to requests that it took, and the end of the connection.
//!
//! Only the thread that took a request may answer it: the kernel copies in the name of the submitting thread, and gives it the next
//! request.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;

use rustix::thread::futex;

use super::answer::Answer;
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use crate::sync::{Arc, Mutex};

/// An answer to be sent to the kernel.
#[derive(Debug)]
pub(super) struct Done {
    /// The entry of the ring that has the request.
    pub(super) entry: usize,
    pub(super) unique: u64,
    /// Errno of the answer; 0 is success.
    pub(super) errno: i32,
    pub(super) answer: Answer,
}

/// The inbox of one queue.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    done: Mutex<Vec<Done>>,
    is_over: AtomicBool,
    sleeps: AtomicBool,
    /// The futex of the sleeping thread. A change of its value wakes the thread.
    bell: AtomicU32,
}

/// The destination of one request's answer: its queue, and its entry there.
#[derive(Clone, Debug)]
pub(super) struct InboxSlot {
    pub(super) inbox: Arc<Inbox>,
    pub(super) entry: usize,
}

impl InboxSlot {
    /// Answers a request of this inbox's queue. Never waits.
    pub(super) fn answer(&self, unique: u64, errno: i32, answer: Answer) {
        // After the end no thread takes answers.
        if !self.inbox.is_over() {
            self.inbox.done.lock().push(Done { entry: self.entry, unique, errno, answer });
            self.inbox.wake();
        }
    }
}

impl Inbox {
    /// Ends the queue's thread because the connection is gone, and drops all answers.
    pub(super) fn close(&self) {
        self.is_over.store(true, SeqCst);
        self.wake();
        drop(std::mem::take(&mut *self.done.lock()));
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    /// Wakes the queue's thread, if it sleeps or is about to.
    fn wake(&self) {
        if self.sleeps.swap(false, SeqCst) {
            self.bell.fetch_add(1, SeqCst);
            // This can't fail: the word is there.
            let _ = futex::wake(&self.bell, futex::Flags::PRIVATE, 1);
        }
    }

    /// The futex and its value. A later change of the value wakes the queue's thread.
    pub(super) fn bell(&self) -> (&AtomicU32, u32) {
        (&self.bell, self.bell.load(SeqCst))
    }

    /// Notes that the thread is about to sleep: a message from now on wakes it. Call this before the last check of the inbox.
    pub(super) fn sleeps(&self) {
        self.sleeps.store(true, SeqCst);
    }

    /// Notes that the thread is awake and checks the inbox itself: a message need not wake it.
    pub(super) fn wakes(&self) {
        self.sleeps.store(false, SeqCst);
    }

    /// Moves the messages to `into`. False if `into` is empty afterwards.
    pub(super) fn take(&self, into: &mut VecDeque<Done>) -> bool {
        into.extend(self.done.lock().drain(..));
        !into.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_ring_the_bell_of_a_thread_that_sleeps_and_of_no_other() {
        let place = InboxSlot { inbox: Arc::default(), entry: 3 };
        let inbox = &place.inbox;
        place.answer(2, 0, Answer::Nothing);
        assert_eq!(inbox.bell().1, 0, "it is awake");
        inbox.sleeps();
        let mut done = VecDeque::new();
        assert!(inbox.take(&mut done));
        place.answer(4, 5, Answer::Short([7; 8]));
        place.answer(6, 0, Answer::Nothing);
        assert_eq!(inbox.bell().1, 1, "once is enough");
        assert!(inbox.take(&mut done));
        let seen: Vec<_> = done.iter().map(|done| (done.entry, done.unique, done.errno)).collect();
        assert_eq!(seen, [(3, 2, 0), (3, 4, 5), (3, 6, 0)]);
        inbox.wakes();
        place.answer(8, 0, Answer::Nothing);
        assert_eq!(inbox.bell().1, 1);
    }

    #[test]
    fn a_closed_inbox_wakes_its_thread_and_keeps_no_answer() {
        let place = InboxSlot { inbox: Arc::default(), entry: 0 };
        place.inbox.sleeps();
        place.answer(2, 0, Answer::Nothing);
        place.inbox.sleeps();
        place.inbox.close();
        assert_eq!(place.inbox.bell().1, 2);
        place.answer(4, 0, Answer::Nothing);
        assert!(place.inbox.is_over() && !place.inbox.take(&mut VecDeque::new()));
    }
}
