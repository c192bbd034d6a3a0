//! Maps names to keys, and keys to names. Pure.
//!
//! A directory's key ends in `/` (the root's is the mount's prefix, which may be empty); a name is one component. One rule defines both
//! directions, so no two keys share a path, and no key of a directory's listing leads outside that directory.

use std::ffi::OsStr;
use std::fmt;

use crate::object::{FOLDER_MARK, ObjectKey};

/// Longest name, in bytes: the limit that statfs reports and tools expect (`NAME_MAX`).
pub(crate) const NAME_LEN_MAX: usize = 255;

/// The mounted part of the bucket: empty, or the beginning of its keys, which ends in `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(ObjectKey);

impl Prefix {
    /// Checks the prefix from the user. An error is a sentence that says what is wrong.
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

/// The reason why a string can't be a file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadName {
    /// The name is empty, as between the slashes of `a//b`.
    Empty,
    /// The name is `.` or `..`, which mean something else to the kernel.
    Dots,
    /// The name contains NUL or `/`.
    Character,
    /// The name is not UTF-8, which S3 requires of keys.
    NotUtf8,
    /// The name is longer than [`NAME_LEN_MAX`].
    TooLong,
    /// The key lies outside the listed directory.
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

/// Parses a name from the kernel.
pub(crate) fn parse(name: &OsStr) -> Result<&str, BadName> {
    let name = name.to_str().ok_or(BadName::NotUtf8)?;
    check(name)?;
    Ok(name)
}

/// Whether S3 can store the key of the file `name` in a directory.
pub(crate) fn file_key_fits(directory: &ObjectKey, name: &str) -> bool {
    directory.as_str().len() + name.len() <= ObjectKey::LEN_MAX
}

/// The key of the file `name` in a directory; `None` if the key would be too long for S3.
pub(crate) fn file_key(directory: &ObjectKey, name: &str) -> Option<ObjectKey> {
    file_key_fits(directory, name).then(|| ObjectKey::new([directory.as_str(), name].concat()))
}

/// The key of the directory `name` in a directory, with its `/`; `None` if no key can begin that way.
pub(crate) fn directory_key(directory: &ObjectKey, name: &str) -> Option<ObjectKey> {
    let directory = directory.as_str();
    (directory.len() + name.len() < ObjectKey::LEN_MAX)
        .then(|| ObjectKey::new([directory, name, "/"].concat()))
}

/// The directory that an empty object of this name marks, as with Hadoop and EMR. A name that is only the ending marks none.
pub(crate) fn marked(name: &str) -> Option<&str> {
    name.strip_suffix(FOLDER_MARK).filter(|directory| check(directory).is_ok())
}

/// The form in which a listing shows one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown<'a> {
    /// A file of this name.
    File(&'a str),
    /// A directory of this name: the key continues after a `/`.
    Directory(&'a str),
    /// The marker of the listed directory itself.
    Own,
    /// The key can't be shown.
    Hidden(BadName),
}

/// The form in which the directory with this key shows `listed`, a key or common prefix.
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

    /// Keys of difficult parts: slashes, dots, NUL, long runs, other scripts.
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

    /// The path under which a mount shows a key: walks from the prefix down, listing by listing.
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
