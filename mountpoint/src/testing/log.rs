//! The log of a piece of work, as text.

use std::io;
use std::sync::LazyLock;

use tracing::Dispatch;

use crate::sync::{Arc, Mutex};

/// A second subscriber. With one alive, tracing asks the subscriber of the thread that first reaches a line of code about that line,
/// and keeps the answer. Tests run side by side, and the thread of another test has no subscriber. With two alive, tracing asks both.
static SECOND: LazyLock<Dispatch> =
    LazyLock::new(|| Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish()));

#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl io::Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `work` and returns the lines that this thread logged meanwhile, INFO and above.
pub fn log_of(work: impl FnOnce()) -> String {
    LazyLock::force(&SECOND);
    let bytes = Bytes::default();
    let to = bytes.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to.clone()).finish();
    tracing::subscriber::with_default(subscriber, work);
    let lines = bytes.0.lock().clone();
    String::from_utf8(lines).expect("the log is text")
}
