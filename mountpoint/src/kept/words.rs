//! Attributes in the user metadata of objects: written in the form of s3fs, and read in the forms of rclone, AWS's services and s3fs. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The user metadata of an object, with names without `x-amz-meta-`.
pub type Words = BTreeMap<String, String>;

/// Most bytes of an object's user metadata on S3, names and values together.
pub(super) const WORDS_MAX: usize = 2048;

/// The file type bits of a mode, and their values for a regular file, a symbolic link and a directory.
const KIND: u32 = 0o170_000;
const PLAIN: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const DIRECTORY: u32 = 0o040_000;
const PERMISSIONS: u32 = 0o7777;

/// The metadata names that the engine writes, the same as s3fs.
const MODE: &str = "mode";
const OWNER: &str = "uid";
const GROUP: &str = "gid";
const MODIFIED: &str = "mtime";
const XATTRS: &str = "xattr";

/// The metadata names of AWS's services for the same attributes.
const AWS: [&str; 4] = ["file-permissions", "file-owner", "file-group", "file-mtime"];

/// The attributes in an object's metadata. Missing ones come from the mount's flags and from the object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Whether the object contains the target of a symbolic link.
    pub is_link: bool,
    /// Number of the owner.
    pub uid: Option<u32>,
    /// Number of the group.
    pub gid: Option<u32>,
    /// Modification time.
    pub modified: Option<SystemTime>,
    /// Extended attributes; the names include `user.`.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

impl Kept {
    /// Parses the attributes from metadata. Invalid values are ignored.
    pub fn of(words: &Words) -> Self {
        let word = |name: &str| words.get(name).map(|value| value.trim());
        let number = |name: &str| word(name)?.parse::<u32>().ok();
        let octal = |name: &str| u32::from_str_radix(word(name)?.trim_start_matches("0o"), 8).ok();
        let mode = number(MODE).or_else(|| octal("file-permissions"));
        Self {
            mode: mode.map(|mode| mode & PERMISSIONS),
            is_link: mode.is_some_and(|mode| mode & KIND == LINK),
            uid: number(OWNER).or_else(|| number("file-owner")),
            gid: number(GROUP).or_else(|| number("file-group")),
            modified: word(MODIFIED).and_then(time).or_else(|| word("file-mtime").and_then(time)),
            xattrs: word(XATTRS).map(xattrs).unwrap_or_default(),
        }
    }

    /// Writes these attributes into the metadata. Other metadata stays, but AWS's names for the same attributes are removed, because a
    /// reader could not choose between two values.
    pub fn say(&self, words: &mut Words) {
        words.retain(|name, _| !AWS.contains(&name.as_str()));
        let mut set = |name: &str, value: Option<String>| match value {
            Some(value) => drop(words.insert(name.to_owned(), value)),
            None => drop(words.remove(name)),
        };
        let kind = if self.is_link { LINK } else { PLAIN };
        set(MODE, self.mode.map(|mode| (kind | mode & PERMISSIONS).to_string()));
        set(OWNER, self.uid.map(|uid| uid.to_string()));
        set(GROUP, self.gid.map(|gid| gid.to_string()));
        set(MODIFIED, self.modified.map(spelled));
        set(XATTRS, (!self.xattrs.is_empty()).then(|| spelled_xattrs(&self.xattrs)));
    }

    /// Writes the attributes of a directory into the metadata of its marker, with the file type of a directory.
    pub fn say_of_directory(&self, words: &mut Words) {
        self.say(words);
        if let Some(mode) = self.mode {
            words.insert(MODE.to_owned(), (DIRECTORY | mode & PERMISSIONS).to_string());
        }
    }

    /// Whether these attributes, together with the other metadata in `words`, are within S3's limit.
    pub fn fits(&self, words: &Words) -> bool {
        let mut words = words.clone();
        self.say(&mut words);
        words.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() <= WORDS_MAX
    }
}

/// Parses a time: seconds since 1970, perhaps with a fraction (s3fs, rclone), or nanoseconds with the suffix `ns` (AWS).
fn time(word: &str) -> Option<SystemTime> {
    if let Some(nanos) = word.strip_suffix("ns") {
        return since_1970(false, Duration::from_nanos(nanos.parse().ok()?));
    }
    let (is_before, word) = match word.strip_prefix('-') {
        Some(word) => (true, word),
        None => (false, word),
    };
    let (seconds, fraction) = word.split_once('.').unwrap_or((word, ""));
    let seconds: u64 = seconds.parse().ok().filter(|&s| s <= i64::MAX as u64)?;
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    since_1970(is_before, Duration::new(seconds, digits.parse().ok()?))
}

fn since_1970(is_before: bool, distance: Duration) -> Option<SystemTime> {
    match is_before {
        true => SystemTime::UNIX_EPOCH.checked_sub(distance),
        false => SystemTime::UNIX_EPOCH.checked_add(distance),
    }
}

fn spelled(time: SystemTime) -> String {
    let (sign, distance) = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => ("", after),
        Err(before) => ("-", before.duration()),
    };
    format!("{sign}{}.{:09}", distance.as_secs(), distance.subsec_nanos())
}

/// Parses extended attributes in the form of s3fs: a JSON object with values in base64, URL-encoded.
fn xattrs(word: &str) -> BTreeMap<String, Vec<u8>> {
    let text = percent_decode_str(word).decode_utf8_lossy();
    let named: BTreeMap<String, String> = serde_json::from_str(&text).unwrap_or_default();
    let value = |(name, value): (String, String)| Some((name, STANDARD.decode(value).ok()?));
    named.into_iter().filter_map(value).collect()
}

fn spelled_xattrs(xattrs: &BTreeMap<String, Vec<u8>>) -> String {
    let named: BTreeMap<&str, String> =
        xattrs.iter().map(|(name, value)| (name.as_str(), STANDARD.encode(value))).collect();
    let text = serde_json::to_string(&named).expect("a map of strings has a JSON form");
    utf8_percent_encode(&text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(pairs: &[(&str, &str)]) -> Words {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn at(seconds: u64, nanos: u32) -> Option<SystemTime> {
        Some(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos))
    }

    #[test]
    fn words_of_s3fs_rclone_and_aws_are_read() {
        let s3fs = words(&[
            ("mode", "33261"),
            ("uid", "1000"),
            ("gid", "1001"),
            ("mtime", "1354040105.123456789"),
            ("ctime", "1354040105.123456789"),
            ("xattr", "%7B%22user.name%22%3A%22dmFsdWU%3D%22%7D"),
        ]);
        let read = Kept::of(&s3fs);
        assert_eq!((read.mode, read.uid, read.gid), (Some(0o755), Some(1000), Some(1001)));
        assert_eq!(read.modified, at(1_354_040_105, 123_456_789));
        assert_eq!(read.xattrs, [("user.name".to_owned(), b"value".to_vec())].into());
        assert!(!read.is_link && Kept::of(&words(&[("mode", "41471")])).is_link);
        assert_eq!(Kept::of(&words(&[("mtime", "1354040105")])).modified, at(1_354_040_105, 0));
        assert_eq!(Kept::of(&words(&[("mtime", "7.5")])).modified, at(7, 500_000_000));
        let aws = words(&[
            ("file-permissions", "0100640"),
            ("file-owner", "3"),
            ("file-group", "4"),
            ("file-mtime", "1595002920000000001ns"),
        ]);
        let read = Kept::of(&aws);
        assert_eq!((read.mode, read.uid, read.gid), (Some(0o640), Some(3), Some(4)));
        assert_eq!(read.modified, at(1_595_002_920, 1));
    }

    #[test]
    fn words_that_make_no_sense_say_nothing_and_fail_nothing() {
        for (name, value) in [
            ("mode", "rwx"),
            ("uid", "-1"),
            ("gid", "99999999999"),
            ("mtime", "99999999999999999999"),
            ("mtime", "1.x"),
            ("mtime", "ns"),
            ("xattr", "%7B%22user.a%22"),
            ("xattr", "%ff"),
            ("file-mtime", "-1ns"),
        ] {
            assert_eq!(Kept::of(&words(&[(name, value)])), Kept::default(), "{name} {value}");
        }
    }

    #[test]
    fn other_words_stay_and_those_of_other_programs_go() {
        let mut said = words(&[("colour", "red"), ("file-permissions", "0100600"), ("mtime", "1")]);
        Kept { mode: Some(0o644), ..Kept::of(&said) }.say(&mut said);
        assert_eq!(said, words(&[("colour", "red"), ("mode", "33188"), ("mtime", "1.000000000")]));
        let much = Kept { xattrs: [("user.a".to_owned(), vec![0; 2000])].into(), ..Kept::default() };
        assert!(!much.fits(&said) && Kept::default().fits(&said));
    }

    proptest! {
        #[test]
        fn attributes_come_back_as_they_were_said(
            mode in prop::option::of(0u32..0o10000),
            is_link: bool,
            ids in any::<[Option<u32>; 2]>(),
            time in prop::option::of((-10_000_000_000i64..10_000_000_000, 0u32..1_000_000_000)),
            xattrs in prop::collection::btree_map("user\\.\\PC{1,20}", prop::collection::vec(any::<u8>(), 0..50), 0..4),
        ) {
            let modified = time.and_then(|(seconds, nanos)| {
                since_1970(seconds < 0, Duration::new(seconds.unsigned_abs(), nanos))
            });
            let kept =
                Kept { mode, is_link: is_link && mode.is_some(), uid: ids[0], gid: ids[1], modified, xattrs };
            let mut words = Words::new();
            kept.say(&mut words);
            prop_assert!(words.values().all(|value| value.bytes().all(|byte| byte.is_ascii_graphic())));
            prop_assert_eq!(Kept::of(&words), kept);
        }
    }
}
