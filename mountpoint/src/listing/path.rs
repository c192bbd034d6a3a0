//! Maps names to keys, and keys to names. Pure.
//!
//! A directory's key ends in `/` (the root's is the mount's prefix, which may be empty); a name is one component. One rule defines both
//! directions, so no two keys share a path, and no key of a directory's listing leads outside that directory.

use std::ffi::OsStr;
use std::fmt;

use crate::object::{FOLDER_MARK, ObjectKey};

/// Longest name, in bytes: what statfs promises and what tools expect (`NAME_MAX`).
pub(crate) const NAME_LEN_MAX: usize = 255;

/// The part of the bucket that is mounted: empty, or keys that begin so; ends in `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(ObjectKey);

impl Prefix {
    /// Checks what the user asked to mount. An error says in a sentence what is wrong with it.
    pub fn new(prefix: &str) -> std::result::Result<Self, String> {
        if !prefix.is_empty() && !prefix.ends_with('/') {
            return Err(format!("the prefix {prefix:?} must end in `/`"));
        }
        if prefix.len() >= ObjectKey::LEN_MAX {
            return Err(format!(
                "the prefix is {} bytes long; a key has room for {} and needs some for a name",
                prefix.len(),
                ObjectKey::LEN_MAX
            ));
        }
        Ok(Self(ObjectKey::new(prefix)))
    }

    /// The prefix as S3 spells it.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    pub(crate) fn key(&self) -> &ObjectKey {
        &self.0
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self(ObjectKey::new(""))
    }
}

/// Why a string can't be a file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadName {
    /// An empty name, as between the slashes of `a//b`.
    Empty,
    /// `.` or `..`: they mean something else to the kernel.
    Dots,
    /// A byte no name holds: NUL or `/`.
    Character,
    /// S3 keys are UTF-8.
    NotUtf8,
    /// Longer than [`NAME_LEN_MAX`].
    TooLong,
    /// A listing answered with a key that it was not asked for.
    Foreign,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "a component is empty",
            Self::Dots => "a component is `.` or `..`",
            Self::Character => "a name can't hold NUL or `/`",
            Self::NotUtf8 => "S3 keys are UTF-8, this is not",
            Self::TooLong => "a component is longer than 255 bytes",
            Self::Foreign => "the store listed a key that was not asked for",
        })
    }
}

/// Whether `name` can be one component of a path.
pub(crate) fn check(name: &str) -> Result<(), BadName> {
    match name {
        "" => Err(BadName::Empty),
        "." | ".." => Err(BadName::Dots),
        _ if name.bytes().any(|b| b == 0 || b == b'/') => Err(BadName::Character),
        _ if name.len() > NAME_LEN_MAX => Err(BadName::TooLong),
        _ => Ok(()),
    }
}

/// A name as the kernel sent it.
pub(crate) fn parse(name: &OsStr) -> Result<&str, BadName> {
    let name = name.to_str().ok_or(BadName::NotUtf8)?;
    check(name)?;
    Ok(name)
}

/// Whether the key of the file `name` in a directory is one that S3 stores.
pub(crate) fn file_key_fits(directory: &ObjectKey, name: &str) -> bool {
    directory.as_str().len() + name.len() <= ObjectKey::LEN_MAX
}

/// The key of the file `name` in a directory; `None` when it would be longer than S3 stores.
pub(crate) fn file_key(directory: &ObjectKey, name: &str) -> Option<ObjectKey> {
    file_key_fits(directory, name).then(|| ObjectKey::new([directory.as_str(), name].concat()))
}

/// The key of the directory `name` in a directory, with its `/`; `None` when no key could begin so.
pub(crate) fn directory_key(directory: &ObjectKey, name: &str) -> Option<ObjectKey> {
    let directory = directory.as_str();
    (directory.len() + name.len() < ObjectKey::LEN_MAX)
        .then(|| ObjectKey::new([directory, name, "/"].concat()))
}

/// The directory that an empty object of this name marks, as Hadoop and EMR do it. The ending alone marks none.
pub(crate) fn marked(name: &str) -> Option<&str> {
    name.strip_suffix(FOLDER_MARK).filter(|directory| check(directory).is_ok())
}

/// How one key of a directory's listing is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown<'a> {
    /// A file of this name.
    File(&'a str),
    /// A directory of this name: the key goes on behind a `/`.
    Directory(&'a str),
    /// The marker of the listed directory itself.
    Own,
    /// The key can't be shown.
    Hidden(BadName),
}

/// How `listed`, a key or common prefix, is shown in the directory with this key.
pub(crate) fn show<'a>(directory: &str, listed: &'a str) -> Shown<'a> {
    let Some(rest) = listed.strip_prefix(directory) else { return Shown::Hidden(BadName::Foreign) };
    if rest.is_empty() {
        return Shown::Own;
    }
    let (name, below) = rest.split_once('/').map_or((rest, false), |(name, _)| (name, true));
    match check(name) {
        Err(why) => Shown::Hidden(why),
        Ok(()) if below => Shown::Directory(name),
        Ok(()) => Shown::File(name),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Keys made of what hurts: slashes, dots, NUL, long runs, other scripts.
    fn keys() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            4 => "[a-c]{1,3}",
            3 => Just("/".to_string()),
            2 => Just("..".to_string()),
            1 => Just(".".to_string()),
            1 => Just("\0".to_string()),
            1 => Just("é\n\\".to_string()),
            1 => Just("x".repeat(256)),
        ];
        prop::collection::vec(piece, 0..8).prop_map(|p| p.concat())
    }

    /// Walks down from the prefix as a mount would, listing by listing; the path a key ends up at.
    fn path_of(prefix: &str, key: &str) -> Option<Vec<String>> {
        let mut directory = ObjectKey::new(prefix);
        let mut path = Vec::new();
        loop {
            match show(directory.as_str(), key) {
                Shown::File(name) => {
                    path.push(name.to_string());
                    return Some(path);
                }
                Shown::Directory(name) => {
                    path.push(name.to_string());
                    directory = directory_key(&directory, name)?;
                }
                Shown::Own => {
                    path.push("/".to_string());
                    return Some(path);
                }
                Shown::Hidden(_) => return None,
            }
        }
    }

    proptest! {
        #[test]
        fn a_path_leads_back_to_its_key_so_two_keys_never_share_one(key in keys(), prefix in prop_oneof![Just(""), Just("a/"), Just("../")]) {
            if let Some(path) = path_of(prefix, &key) {
                let mut back = prefix.to_string();
                let (last, directories) = path.split_last().unwrap();
                for name in directories {
                    back.push_str(name);
                    back.push('/');
                }
                if last != "/" {
                    back.push_str(last);
                }
                prop_assert_eq!(back, key);
            }
        }

        #[test]
        fn nothing_that_is_shown_can_lead_elsewhere(key in keys(), directory in prop_oneof![Just(""), Just("a/"), Just("a//"), Just("../")]) {
            match show(directory, &key) {
                Shown::File(name) | Shown::Directory(name) => {
                    prop_assert!(!name.is_empty() && name != "." && name != "..");
                    prop_assert!(!name.contains('/') && !name.contains('\0') && name.len() <= NAME_LEN_MAX);
                    prop_assert!(key.starts_with(directory));
                }
                Shown::Own => prop_assert_eq!(key, directory),
                Shown::Hidden(_) => {}
            }
        }
    }

    #[test]
    fn an_empty_component_hides_the_key_and_no_other() {
        assert_eq!(show("", "a//b"), Shown::Directory("a"));
        assert_eq!(show("a/", "a//b"), Shown::Hidden(BadName::Empty));
        assert_eq!(show("a/", "a/b"), Shown::File("b"));
        assert_eq!(show("a/", "a/"), Shown::Own);
        assert_eq!(show("a/", "b"), Shown::Hidden(BadName::Foreign));
        assert_eq!(show("", "/etc"), Shown::Hidden(BadName::Empty));
    }

    #[test]
    fn a_prefix_is_empty_or_ends_in_a_slash() {
        assert!(Prefix::new("").is_ok() && Prefix::new("a/b/").is_ok());
        assert!(Prefix::new("a").unwrap_err().contains('/'));
        assert!(Prefix::new(&"a/".repeat(512)).is_err());
    }

    #[test]
    fn keys_end_where_s3_ends_them() {
        let root = ObjectKey::new("d".repeat(1020) + "/");
        assert!(file_key(&root, "abc").is_some() && file_key(&root, "abcd").is_none());
        assert!(directory_key(&root, "ab").is_some() && directory_key(&root, "abc").is_none());
    }
}
