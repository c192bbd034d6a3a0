//! Lines of the kernel's table of mounts, `/proc/PID/mountinfo` (proc_pid_mountinfo(5)). Enters: the bytes of a table. Leaves: the fields
//! of each line, borrowed, and their text without the kernel's escapes.
//!
//! A driver reads the table for each volume of its node, so a line costs no memory here. `procfs` copies every field into strings and
//! maps, and leaves the escapes.
//!
//! Nothing here reads a file or asks a mount.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// The table of the mount namespace of this process. `/proc/thread-self` would be the calling thread's; ours share one.
pub const OWN: &str = "/proc/self/mountinfo";

/// A line of the table: one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The number of the mount, as `mnt_id` in `/proc/PID/fdinfo`.
    pub id: u32,
    /// `major:minor` of the file system: bind mounts of one another have the same.
    pub device: &'a str,
    /// The directory of the file system that is mounted.
    pub top: Escaped<'a>,
    /// The mount point.
    pub point: Escaped<'a>,
    /// Options of this mount alone: `rw,noatime`.
    pub options: Options<'a>,
    /// The type of the file system, `ext4`, `fuse.mount-s3`.
    pub kind: Escaped<'a>,
    /// The source in the call of mount(2), which may be empty.
    pub source: Escaped<'a>,
    /// Options of the whole file system: `rw,user_id=0`.
    pub system_options: Options<'a>,
}

/// The mounts of a table, in its order: a later one covers an earlier one. A line of an unknown form is left out, because a kind of mount
/// that only newer kernels have must not hide others.
pub fn lines(table: &[u8]) -> impl DoubleEndedIterator<Item = Line<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(Line::parse)
}

impl<'a> Line<'a> {
    /// Parses a line such as `36 35 98:0 /top /point rw,noatime shared:1 - fuse.mount-s3 source rw,user_id=0`. Before the dash there may be
    /// any number of optional words, most often none.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut words = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let device = words.nth(1).filter(|it| it.contains(&b':'))?;
        let (top, point) = (words.next()?, words.next().filter(|point| point.starts_with(b"/"))?);
        let options = words.next()?;
        words.find(|word| *word == b"-")?;
        let (kind, source, system_options) = (words.next()?, words.next()?, words.next()?);
        Some(Self {
            id,
            device: std::str::from_utf8(device).ok()?,
            top: Escaped(top),
            point: Escaped(point),
            options: Options(options),
            kind: Escaped(kind),
            source: Escaped(source),
            system_options: Options(system_options),
        })
    }
}

/// A word in which the kernel writes white space, backslashes and some other bytes as a backslash and three octal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escaped<'a>(&'a [u8]);

impl<'a> Escaped<'a> {
    /// The text without escapes; a copy only if it had some.
    #[must_use]
    pub fn plain(self) -> Cow<'a, OsStr> {
        let bytes = self.0;
        if !bytes.contains(&b'\\') {
            return Cow::Borrowed(OsStr::from_bytes(bytes));
        }
        let mut plain = Vec::with_capacity(bytes.len());
        let mut rest = bytes;
        while let Some((first, after)) = rest.split_first() {
            let code = after.first_chunk().filter(|_| *first == b'\\').and_then(octal);
            plain.push(code.unwrap_or(*first));
            rest = if code.is_some() { &after[3..] } else { after };
        }
        Cow::Owned(OsString::from_vec(plain))
    }

    /// The value as a path.
    #[must_use]
    pub fn path(self) -> PathBuf {
        PathBuf::from(self.plain().into_owned())
    }

    /// Whether the field equals this path.
    #[must_use]
    pub fn is(self, path: &Path) -> bool {
        *self.plain() == *path
    }

    /// The value as text; invalid UTF-8 is replaced.
    #[must_use]
    pub fn text(self) -> String {
        self.plain().to_string_lossy().into_owned()
    }
}

/// The byte of three octal digits.
fn octal(digits: &[u8; 3]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |code, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        code.checked_mul(8)?.checked_add(digit)
    })
}

/// Options, separated by commas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options<'a>(&'a [u8]);

impl<'a> Options<'a> {
    /// Whether this option is set.
    #[must_use]
    pub fn has(self, option: &str) -> bool {
        self.words().any(|word| word == option.as_bytes())
    }

    /// The value of `NAME=value`.
    #[must_use]
    pub fn value(self, name: &str) -> Option<&'a str> {
        let value = self.words().find_map(|word| word.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        std::str::from_utf8(value).ok()
    }

    fn words(self) -> impl Iterator<Item = &'a [u8]> {
        self.0.split(|byte| *byte == b',')
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn only(line: &str) -> Line<'_> {
        let [line] = lines(line.as_bytes()).collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        line
    }

    #[test]
    fn every_field_of_a_line_is_read_whatever_words_stand_before_the_dash() {
        for words in ["", "master:1 ", "shared:7 master:2 propagate_from:3 unbindable "] {
            let text =
                format!("36 35 98:0 /a /mnt/b rw,noatime {words}- fuse.mount-s3 dev ro,user_id=1000\n");
            let line = only(&text);
            assert_eq!((line.id, line.device), (36, "98:0"));
            let words = [line.top, line.point, line.kind, line.source].map(Escaped::text);
            assert_eq!(words, ["/a", "/mnt/b", "fuse.mount-s3", "dev"]);
            assert!(line.options.has("rw") && line.options.has("noatime") && !line.options.has("ro"));
            assert!(line.system_options.has("ro"), "the mount is writable, its file system is not");
            assert_eq!(line.system_options.value("user_id"), Some("1000"));
            assert_eq!(line.system_options.value("user"), None);
            assert_eq!(line.options.value("noatime"), None);
        }
    }

    #[test]
    fn an_empty_source_and_a_dash_in_a_name_move_no_field() {
        let line = only("1 2 0:5 - /- rw - fuse  rw,user_id=7");
        assert_eq!([line.top, line.point, line.source].map(Escaped::text), ["-", "/-", ""]);
        assert_eq!(line.system_options.value("user_id"), Some("7"));
    }

    #[test]
    fn a_line_with_a_field_missing_is_left_out_and_the_others_stay() {
        let whole = "1 2 0:5 / /a rw shared:1 - fuse dev rw";
        let words: Vec<_> = whole.split(' ').collect();
        // Fields 5 and 6 may be missing: without the options the next word is taken for them, and the optional words may be absent.
        for missing in (0..words.len()).filter(|at| ![5, 6].contains(at)) {
            let mut few = words.clone();
            few.remove(missing);
            let table = format!("\n{}\n{whole}\nodd\n", few.join(" "));
            assert_eq!(lines(table.as_bytes()).count(), 1, "without {:?}", words[missing]);
        }
        let names = |table| lines(table).map(|line| line.id).collect::<Vec<_>>();
        assert_eq!(names(b"-1 2 0:5 / /a rw - fuse dev rw\n3 2 \xff:1 / /a rw - fuse dev rw\n"), [0; 0]);
        assert_eq!(
            names(b"4 2 0:5 / /\xff rw - f\xff d\xff rw\n5 2 0:5 / /a rw - fuse dev rw tomorrow"),
            [4, 5]
        );
    }

    #[test]
    fn escapes_become_bytes_and_what_is_none_stays() {
        let plain = |text: &str| Escaped(text.as_bytes()).text();
        assert_eq!(plain(r"/a\040b\011c\012d\134e\043"), "/a b\tc\nd\\e#");
        assert_eq!(plain(r"\134040"), r"\040", "decoded once");
        for odd in [r"/a\04", r"/a\", r"/a\999", r"/a\+12", r"/a\400", r"/a\0 4"] {
            assert_eq!(plain(odd), odd);
        }
        assert_eq!(Escaped(br"\377").path(), Path::new(OsStr::from_bytes(b"\xff")));
        assert!(Escaped(br"/a\040b").is(Path::new("/a b")) && !Escaped(b"/a").is(Path::new("/a/b")));
        assert!(matches!(Escaped(b"/plain").plain(), Cow::Borrowed(_)));
    }

    /// Writes a path as the kernel's `seq_path` does.
    fn escaped(path: &[u8]) -> Vec<u8> {
        let of = |byte: &u8| match byte {
            b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
            _ => vec![*byte],
        };
        path.iter().flat_map(of).collect()
    }

    proptest! {
        #[test]
        fn any_path_that_the_kernel_writes_is_read_back(path: Vec<u8>) {
            let table = [b"7 1 0:9 / /", &escaped(&path)[..], b" ro - tmpfs none rw\n"].concat();
            let found: Vec<_> = lines(&table).map(|line| line.point.path()).collect();
            let path = [b"/", &path[..]].concat();
            prop_assert_eq!(found, [PathBuf::from(OsString::from_vec(path))]);
        }

        #[test]
        fn no_bytes_make_it_panic(table: Vec<u8>, line in "([0-9]{1,3} ){2}0:[0-9] [ -~]{0,40} - [ -~]{0,20}") {
            for line in lines(&table).chain(lines(line.as_bytes())) {
                let _ = (line.point.path(), line.options.value("ro"));
            }
        }
    }

    #[test]
    fn the_table_of_this_process_is_read_line_by_line() {
        let table = std::fs::read(OWN).unwrap();
        assert_eq!(lines(&table).count(), table.iter().filter(|byte| **byte == b'\n').count());
        assert!(lines(&table).any(|line| line.point.is(Path::new("/"))));
    }
}
