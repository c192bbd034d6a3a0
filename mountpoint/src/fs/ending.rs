//! Reports the result of storing a file: to the thread that waits for it or, if that thread was killed meanwhile, to the log.
//!
//! Enters: the outcome of an upload, and the news that no thread waits for it. Leaves: one line for the log, once both have come.

use std::fmt;

use super::Error;
use crate::object::{ETag, ObjectKey};
use crate::sync::Mutex;
use crate::upload;

/// The end of one file's upload: its outcome, and whether an interrupted operation misses it.
#[derive(Debug, Default)]
pub(super) struct Ending(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The interrupted operation: close or fsync.
    unheard: Option<&'static str>,
    fate: Option<Fate>,
    told: bool,
    /// Whether the log has a line about an upload that ended after the file's last close.
    told_closed: bool,
}

/// The outcome for the object.
#[derive(Clone, Debug)]
enum Fate {
    Stored(ETag),
    NotStored(String),
    /// The store may have the object: its answer was lost, or its bytes are doubtful.
    Unknown(String),
}

impl Ending {
    /// Notes that the upload has ended. Returns a line for the log, if the operation that waited for it was interrupted.
    pub(super) fn ended(&self, key: &ObjectKey, outcome: Result<&ETag, &upload::Error>) -> Option<String> {
        let mut state = self.0.lock();
        state.fate.get_or_insert_with(|| Fate::of(outcome));
        state.tell(key)
    }

    /// The log line about the end of an upload after the file's last close: no application receives it. Returned once.
    pub(super) fn closed(&self, key: &ObjectKey, outcome: Result<&ETag, &upload::Error>) -> Option<String> {
        let told = std::mem::replace(&mut self.0.lock().told_closed, true);
        (!told).then(|| format!("\"{key}\" was closed; {}", Fate::of(outcome)))
    }

    /// Notes that the wait in `operation` was interrupted. Returns a line for the log, if the upload has ended already.
    pub(super) fn unheard(&self, key: &ObjectKey, operation: &'static str) -> Option<String> {
        let mut state = self.0.lock();
        state.unheard.get_or_insert(operation);
        state.tell(key)
    }
}

impl State {
    fn tell(&mut self, key: &ObjectKey) -> Option<String> {
        let (operation, fate) = self.unheard.zip(self.fate.as_ref())?;
        if std::mem::replace(&mut self.told, true) {
            return None;
        }
        Some(format!("{operation} of \"{key}\" was interrupted; {fate}"))
    }
}

impl Fate {
    fn of(outcome: Result<&ETag, &upload::Error>) -> Self {
        match outcome {
            Ok(etag) => Self::Stored(etag.clone()),
            Err(error) if Error::leaves_doubt(error) => Self::Unknown(error.to_string()),
            Err(error) => Self::NotStored(error.to_string()),
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored(etag) => write!(f, "the object was stored (ETag {etag:?})"),
            Self::NotStored(why) => write!(f, "the object was NOT stored: {why}"),
            Self::Unknown(why) => {
                write!(f, "whether the object was stored is not known, check it before you rely on it: {why}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::{self, ErrorKind};
    use crate::upload::Error as Upload;

    fn line(outcome: Result<&ETag, &Upload>) -> String {
        let (ending, key) = (Ending::default(), ObjectKey::new("a/b"));
        assert_eq!(ending.unheard(&key, "close"), None);
        ending.ended(&key, outcome).expect("a line")
    }

    fn remote(kind: ErrorKind) -> Upload {
        s3::Error::new(kind, "PutObject").into()
    }

    #[test]
    fn the_log_reports_the_outcome_of_an_interrupted_close_once() {
        let (etag, key) = (ETag::new("\"1\""), ObjectKey::new("a\nb"));
        let ending = Ending::default();
        assert_eq!(ending.ended(&key, Ok(&etag)), None, "somebody hears it");
        let line = ending.unheard(&key, "close").expect("a line");
        assert_eq!(line, "close of \"a\\nb\" was interrupted; the object was stored (ETag \"1\")");
        assert_eq!(ending.unheard(&key, "fsync"), None);
        assert_eq!(ending.ended(&key, Err(&Upload::Aborted)), None);
    }

    #[test]
    fn not_stored_is_said_only_where_nothing_can_be_in_the_store() {
        assert!(line(Ok(&ETag::new("1"))).contains("the object was stored"));
        for (error, is_certain) in [
            (remote(ErrorKind::Denied), true),
            (remote(ErrorKind::InvalidRequest), true),
            (Upload::NoMemory, true),
            (Upload::Aborted, true),
            (remote(ErrorKind::Timeout), false),
            (remote(ErrorKind::Network), false),
            (remote(ErrorKind::ServerError), false),
            (remote(ErrorKind::Unknown), false),
            // A part is not an object, and what can't be begun stores nothing.
            (s3::Error::new(ErrorKind::Timeout, "UploadPart").unsettled().into(), true),
            (s3::Error::new(ErrorKind::Throttled, "CreateMultipartUpload").unsettled().into(), true),
            // The last attempt was refused, one before it had no answer.
            (s3::Error::new(ErrorKind::Denied, "PutObject").unsettled().into(), false),
            (s3::Error::new(ErrorKind::InvalidRequest, "CompleteMultipartUpload").unsettled().into(), false),
            (Upload::Corrupt, false),
        ] {
            let line = line(Err(&error));
            assert_eq!(line.contains("was NOT stored"), is_certain, "{line}");
            assert_eq!(line.contains("not known"), !is_certain, "{line}");
        }
    }
}
