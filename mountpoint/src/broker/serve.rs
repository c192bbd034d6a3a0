//! The helper's end of the socket.

use std::os::fd::{AsFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::messages::{self, Answer, Question};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Most requests in progress that may wait; the helper refuses further ones. Doubling it lets more hosts resolve while a resolver hangs.
const WAITING_MAX: usize = 32;

/// Answers questions until the engine ends. Questions that wait for nothing are answered in turn, each of the others on a thread of its
/// own.
///
/// # Errors
/// The socket fails, or its other end is not an engine.
pub fn serve(
    socket: OwnedFd,
    desk: impl Fn(Question, Vec<OwnedFd>) -> Answer + Send + Sync + 'static,
) -> std::io::Result<()> {
    let (desk, waiting) = (Arc::new(desk), Arc::new(AtomicUsize::new(0)));
    while let Some((question, mut files)) = messages::receive::<Question>(socket.as_fd())? {
        if files.is_empty() {
            // The message has no socket for an answer.
            continue;
        }
        let reply_to = files.remove(0);
        if !question.may_wait() {
            answer(&*desk, question, files, &reply_to);
            continue;
        }
        if waiting.fetch_add(1, SeqCst) >= WAITING_MAX {
            waiting.fetch_sub(1, SeqCst);
            let why = format!("{WAITING_MAX} questions wait already");
            say(&Answer::Refused { errno: None, why }, &reply_to);
            continue;
        }
        let (desk, counted) = (Arc::clone(&desk), Arc::clone(&waiting));
        let started = std::thread::Builder::new().name("asked".to_owned()).spawn(move || {
            answer(&*desk, question, files, &reply_to);
            counted.fetch_sub(1, SeqCst);
        });
        if started.is_err() {
            // The socket for the answer closes, which the engine reads as an error.
            waiting.fetch_sub(1, SeqCst);
        }
    }
    Ok(())
}

fn answer(
    desk: &impl Fn(Question, Vec<OwnedFd>) -> Answer,
    question: Question,
    files: Vec<OwnedFd>,
    reply_to: &OwnedFd,
) {
    let answered = catch_unwind(AssertUnwindSafe(|| desk(question, files)));
    let panicked = |_| Answer::Refused { errno: None, why: "the helper of the sandbox panicked".to_owned() };
    say(&answered.unwrap_or_else(panicked), reply_to);
}

/// Sends the answer, unless the engine stopped waiting.
fn say(answer: &Answer, reply_to: &OwnedFd) {
    let _ = messages::send(reply_to.as_fd(), answer, &[]);
}
