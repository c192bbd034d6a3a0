//! Errors of operations, and the one table from kinds to errno.

use std::fmt;
use std::io::ErrorKind;

use rustix::io::Errno;

use crate::object::ObjectKey;
use crate::s3::ErrorKind as S3;
use crate::{inode, moves, prefetch, s3, stage, upload};

/// An error of an operation: its errno, and the sentence for the log.
#[derive(Clone, Debug)]
pub struct Error {
    errno: Errno,
    message: String,
    /// Whether the room that failed has written its line in the log.
    logged: bool,
}

/// Result of an operation on files.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with a sentence that names the attempt, its object, and the next thing to check.
    pub fn new(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, message: message.into(), logged: false }
    }

    /// Marks the error as already logged.
    pub(super) fn already_logged(self) -> Self {
        Self { logged: true, ..self }
    }

    /// The errno that the application sees.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// Whether an upload that failed with this error may have left an object: a request that makes an object visible may have been sent and
    /// its result is unknown, or the store's object differs from the written bytes.
    pub(super) fn leaves_doubt(error: &upload::Error) -> bool {
        match error {
            upload::Error::Corrupt | upload::Error::Panicked => true,
            upload::Error::Remote(error) => error.may_have_stored(),
            _ => false,
        }
    }

    /// Whether the error needs a line in the log: it is not an everyday answer (a missing name), and has no line yet.
    pub fn is_news(&self) -> bool {
        !self.logged && !matches!(self.errno, Errno::NOENT | Errno::NOSYS | Errno::EXIST)
    }

    /// An error of a request to the store, which logs its failures itself.
    fn of_store(errno: Errno, error: &s3::Error, message: String) -> Self {
        Self { errno, message, logged: error.is_logged() }
    }
}

impl Error {
    /// A failure of the store during a rename. A 404 about the old name itself is not an error of this kind.
    pub(super) fn of_rename(error: &s3::Error, message: String) -> Self {
        let errno = match errno_of_store(error) {
            Errno::NOENT => Errno::IO,
            errno => errno,
        };
        Self::of_store(errno, error, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.message, self.errno)
    }
}

impl std::error::Error for Error {}

/// The errno for a failure of the store. ENOENT only for a 404 of the store: a program that takes a 503 for "gone" may delete or recreate
/// files.
fn errno_of_store(error: &s3::Error) -> Errno {
    match error.kind() {
        S3::NotFound => Errno::NOENT,
        S3::Denied | S3::NoCredentials | S3::Archived => Errno::ACCESS,
        S3::Changed => Errno::STALE,
        S3::Exists => Errno::EXIST,
        S3::TooLarge => Errno::FBIG,
        S3::Unsupported => Errno::OPNOTSUPP,
        S3::NoSuchBucket
        | S3::WrongRegion(_)
        | S3::Throttled
        | S3::Timeout
        | S3::Network
        | S3::ServerError
        | S3::Corrupt
        | S3::BadAnswer
        | S3::NotEncrypted
        | S3::Unknown
        | S3::InvalidRequest => Errno::IO,
    }
}

impl From<&s3::Error> for Error {
    fn from(error: &s3::Error) -> Self {
        Self::of_store(errno_of_store(error), error, error.to_string())
    }
}

impl From<prefetch::Error> for Error {
    fn from(error: prefetch::Error) -> Self {
        // The object is gone while the file is open: the handle is stale, but the name may be there again.
        let errno = match error.kind() {
            S3::NotFound => Errno::STALE,
            _ => errno_of_store(&error),
        };
        Self::of_store(errno, &error, error.to_string())
    }
}

impl From<inode::Error> for Error {
    fn from(error: inode::Error) -> Self {
        use inode::ErrorKind as Inode;
        let errno = match error.kind() {
            Inode::NotFound => Errno::NOENT,
            Inode::NotADirectory => Errno::NOTDIR,
            Inode::IsADirectory => Errno::ISDIR,
            Inode::Exists => Errno::EXIST,
            Inode::NotEmpty => Errno::NOTEMPTY,
            Inode::NotPermitted(_) => Errno::PERM,
            Inode::InvalidName(_) => Errno::INVAL,
            Inode::NameTooLong => Errno::NAMETOOLONG,
            Inode::Archived => Errno::ACCESS,
            Inode::Stale => Errno::STALE,
            Inode::Remote(error) => match errno_of_store(error) {
                // A 404 about this name comes as `NotFound`; a 404 that comes as an error is not "no such file".
                Errno::NOENT => Errno::IO,
                errno => errno,
            },
        };
        match error.kind() {
            Inode::Remote(remote) => Self::of_store(errno, remote, error.to_string()),
            _ => Self::new(errno, error.to_string()),
        }
    }
}

impl Error {
    /// The error of an object that could not be moved.
    pub(super) fn of_move(error: &moves::Error, from: &ObjectKey, to: &ObjectKey) -> Self {
        use moves::Error as Move;
        let why = format!("rename of \"{from}\" to \"{to}\": {error}");
        match error {
            Move::Gone => Self::new(Errno::NOENT, why),
            Move::Changing | Move::Taken => Self::new(Errno::STALE, why),
            Move::TooMany(_) => Self::new(Errno::XDEV, why),
            Move::NotEmpty => Self::new(Errno::NOTEMPTY, why),
            Move::NameTooLong(_) => Self::new(Errno::NAMETOOLONG, why),
            Move::Note(error)
                if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
            {
                Self::new(Errno::NOSPC, why)
            }
            Move::Different(_) | Move::Partial { .. } | Move::Note(_) => Self::new(Errno::IO, why),
            Move::Remote(remote) | Move::Undecided(remote) => Self::of_rename(remote, why),
        }
    }

    /// The error of a staged file that failed.
    pub(super) fn of_stage(error: stage::Error) -> Self {
        use stage::Error as Stage;
        let message = error.to_string();
        let is_full =
            |disk: &std::io::Error| matches!(disk.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        match error {
            Stage::Full { .. } | Stage::KeptFull { .. } => Self::new(Errno::NOSPC, message),
            Stage::Restless { .. } => Self::new(Errno::BUSY, message),
            Stage::Disk(disk) if is_full(&disk) => Self::new(Errno::NOSPC, message),
            Stage::Disk(disk) if disk.kind() == ErrorKind::FileTooLarge => Self::new(Errno::FBIG, message),
            Stage::Disk(_) => Self::new(Errno::IO, message),
            // The line that names the kept file is in the log.
            Stage::Conflict { .. } => Self::new(Errno::STALE, message).already_logged(),
            Stage::Kept { .. } => Self::new(Errno::IO, message).already_logged(),
            Stage::Read(error) => error.into(),
            Stage::Send(error) => error.into(),
        }
    }
}

impl From<upload::Error> for Error {
    fn from(error: upload::Error) -> Self {
        use upload::Error as Upload;
        let errno = match &error {
            Upload::OutOfOrder { .. } => Errno::INVAL,
            Upload::TooLarge => Errno::FBIG,
            Upload::NoMemory => Errno::NOSPC,
            Upload::Spill(disk)
                if matches!(disk.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
            {
                Errno::NOSPC
            }
            Upload::Finished => Errno::BADF,
            Upload::Unmeant => Errno::PERM,
            Upload::Spill(_) | Upload::Corrupt | Upload::Aborted | Upload::Panicked => Errno::IO,
            Upload::Remote(error) => match errno_of_store(error) {
                // The bucket or the upload went away: that is not "no such file" to a writer.
                Errno::NOENT => Errno::IO,
                errno => errno,
            },
        };
        match &error {
            Upload::Remote(remote) => Self::of_store(errno, remote, error.to_string()),
            _ => Self::new(errno, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::first::Asker;
    use crate::inode::InodeTable;
    use crate::sync::Arc;
    use crate::testing::{FaultPlan, MemoryClient, Op};

    fn store_says(kind: S3) -> s3::Error {
        s3::Error::new(kind, "GetObject").message("the store's words")
    }

    /// The errno of a lookup.
    fn looked_up(kind: &S3) -> inode::Error {
        let client = MemoryClient::new();
        let table = InodeTable::new(
            Asker::of_attributes(client.arc()),
            inode::Config::default(),
            Clock::manual(),
            Arc::default(),
        );
        client.inject(FaultPlan::on(Op::ListObjects).fail(kind.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(table.lookup(inode::ROOT, "name".as_ref())).unwrap_err()
    }

    /// The errno of each kind of failure: of a request by name, a read through an open handle, a lookup, a write.
    fn table() -> Vec<(S3, [Errno; 4])> {
        let same = |kind, errno| (kind, [errno; 4]);
        vec![
            // Only an answer is "no such file": an open file whose object is gone is stale, and a look-up or a writer
            // that meets a 404 as an error (the bucket, the upload) did not learn that the name is free.
            (S3::NotFound, [Errno::NOENT, Errno::STALE, Errno::IO, Errno::IO]),
            same(S3::Denied, Errno::ACCESS),
            same(S3::NoCredentials, Errno::ACCESS),
            same(S3::Archived, Errno::ACCESS),
            same(S3::Changed, Errno::STALE),
            same(S3::Exists, Errno::EXIST),
            same(S3::TooLarge, Errno::FBIG),
            same(S3::Unsupported, Errno::OPNOTSUPP),
            same(S3::NoSuchBucket, Errno::IO),
            same(S3::WrongRegion(Some("eu-west-3".into())), Errno::IO),
            same(S3::Throttled, Errno::IO),
            same(S3::Timeout, Errno::IO),
            same(S3::Network, Errno::IO),
            same(S3::ServerError, Errno::IO),
            same(S3::Corrupt, Errno::IO),
            same(S3::BadAnswer, Errno::IO),
            same(S3::Unknown, Errno::IO),
            same(S3::InvalidRequest, Errno::IO),
        ]
    }

    #[test]
    fn each_kind_has_one_errno_and_keeps_its_words() {
        for (kind, errnos) in table() {
            let answers = [
                Error::from(&store_says(kind.clone())),
                Error::from(Arc::new(store_says(kind.clone()))),
                Error::from(looked_up(&kind)),
                Error::from(upload::Error::Remote(Arc::new(store_says(kind.clone())))),
            ];
            let ways = ["by name", "through a handle", "looked up", "written"];
            for ((answer, errno), way) in answers.iter().zip(errnos).zip(ways) {
                assert_eq!(answer.errno(), errno, "{kind:?} {way}");
                let words = if way == "looked up" { "\"name\"" } else { "the store's words" };
                assert!(answer.to_string().contains(words), "{kind:?} {way}: {answer}");
            }
        }
    }

    #[test]
    fn a_writer_that_breaks_a_rule_is_told_which() {
        for (error, errno) in [
            (upload::Error::TooLarge, Errno::FBIG),
            (upload::Error::NoMemory, Errno::NOSPC),
            (upload::Error::from(std::io::Error::from(ErrorKind::StorageFull)), Errno::NOSPC),
            (upload::Error::from(std::io::Error::other("broken")), Errno::IO),
            (upload::Error::Finished, Errno::BADF),
            (upload::Error::Unmeant, Errno::PERM),
            (upload::Error::Corrupt, Errno::IO),
            (upload::Error::Panicked, Errno::IO),
            (upload::Error::Aborted, Errno::IO),
        ] {
            assert_eq!(Error::from(error.clone()).errno(), errno, "{error}");
        }
    }
}
