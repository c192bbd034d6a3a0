//! Maps a key to its path in the folder, and back.
//!
//! A key that is a safe path is its own path in the bucket's folder. Every key also has one escaped path, in the server's hidden
//! folder. The server uses it for keys that are not safe paths, and for keys whose plain path another key's folder or file has
//! (`a` beside `a/b`). Both maps are injective and reversible, and can't collide because they lead into different folders.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Longest file name that Linux file systems store, in bytes.
const NAME_MAX: usize = 255;
/// Length of one piece of an escaped name, in bytes: with its mark it is below [`NAME_MAX`].
const PIECE: usize = 200;
/// The bytes that an escaped name escapes.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
/// The mark at the end of the last piece, the file. Escaped names do not contain it.
const FILE_MARK: char = '=';
/// The mark at the end of every other piece, a folder. Escaped names do not contain it.
const FOLDER_MARK: char = '+';
/// Longest key, in bytes of UTF-8.
pub(crate) const KEY_MAX: usize = 1024;

const _: () = assert!(PIECE < NAME_MAX);

/// The key's path in the bucket's folder; `None` if the key is not a safe path.
///
/// A path is safe if no component is empty, `.` or `..`, has more than 255 bytes, or has control characters (with which a key could write
/// to the terminal of a user who lists the folder).
pub(crate) fn plain_path(key: &str) -> Option<&str> {
    let safe = key.split('/').all(|name| {
        !matches!(name, "" | "." | "..") && name.len() <= NAME_MAX && !name.chars().any(char::is_control)
    });
    safe.then_some(key)
}

/// The key's path in the folder of escaped names.
///
/// Letters, digits, `-`, `_` and `.` are not escaped, every other byte is `%XX`; the result is cut into pieces of
/// 200 characters. All pieces but the last are folders and end in `+`; the last is the file and ends in `=`. So a
/// folder and a file never have the same name.
pub(crate) fn escaped_path(key: &str) -> String {
    let escaped = utf8_percent_encode(key, ESCAPED).to_string();
    let mut path = String::with_capacity(escaped.len() + escaped.len() / PIECE * 2 + 2);
    let mut rest = escaped.as_str();
    while rest.len() > PIECE {
        let (piece, behind) = rest.split_at(PIECE);
        path.push_str(piece);
        path.push(FOLDER_MARK);
        path.push('/');
        rest = behind;
    }
    path.push_str(rest);
    path.push(FILE_MARK);
    path
}

/// The key of an escaped path; `None` if it is not the result of [`escaped_path`] for any key.
pub(crate) fn key_of_escaped(path: &str) -> Option<String> {
    let mut escaped = String::with_capacity(path.len());
    let (folders, file) = path.rsplit_once('/').map_or((None, path), |(folders, file)| (Some(folders), file));
    for folder in folders.iter().flat_map(|f| f.split('/')) {
        escaped.push_str(folder.strip_suffix(FOLDER_MARK)?);
    }
    escaped.push_str(file.strip_suffix(FILE_MARK)?);

    let key = percent_decode_str(&escaped).decode_utf8().ok()?.into_owned();
    // A key has only one escaped path. The server did not create files with other names in this folder.
    (key.len() <= KEY_MAX && escaped_path(&key) == path).then_some(key)
}

/// Whether S3 accepts this key: it has 1 to 1024 bytes.
pub(crate) fn is_valid(key: &str) -> bool {
    (1..=KEY_MAX).contains(&key.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_key() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("/".to_owned()),
            Just("..".to_owned()),
            Just(".".to_owned()),
            Just("\0".to_owned()),
            Just("\n".to_owned()),
            Just("%2F".to_owned()),
            Just("=".to_owned()),
            Just("+".to_owned()),
            Just("é".repeat(40)),
            Just("x".repeat(256)),
            "[a-cA-C]{1,3}",
            "\\PC{1,8}",
        ];
        prop::collection::vec(piece, 1..8).prop_map(|pieces| {
            let mut key = pieces.concat();
            while key.len() > KEY_MAX {
                key.pop();
            }
            key
        })
    }

    proptest! {
        #[test]
        fn an_escaped_path_leads_back_to_its_key(key in any_key()) {
            prop_assert_eq!(key_of_escaped(&escaped_path(&key)), Some(key));
        }

        #[test]
        fn two_keys_never_share_a_path_nor_stand_in_each_others_way(a in any_key(), b in any_key()) {
            prop_assume!(a != b);
            let (a, b) = (escaped_path(&a), escaped_path(&b));
            prop_assert_ne!(&a, &b);
            let below = format!("{a}/");
            prop_assert!(!b.starts_with(&below), "{} would be a folder and a file", a);
        }

        #[test]
        fn every_path_fits_the_file_system_and_stays_inside(key in any_key()) {
            let escaped = escaped_path(&key);
            for path in plain_path(&key).into_iter().chain([escaped.as_str()]) {
                for name in path.split('/') {
                    prop_assert!(!matches!(name, "" | "." | ".."));
                    prop_assert!(name.len() <= NAME_MAX);
                    prop_assert!(!name.contains('\0'));
                }
            }
        }

        #[test]
        fn what_is_no_escaped_path_is_refused(path in "[a-z%=+/0-9A-F]{1,12}") {
            if let Some(key) = key_of_escaped(&path) {
                prop_assert_eq!(escaped_path(&key), path);
            }
        }
    }

    #[test]
    fn ordinary_keys_are_ordinary_files() {
        for key in ["a", "photos/2024/sea side.jpg", "Ärger/ñ.txt", ".hidden", "a..b/...", "x=+%41"] {
            assert_eq!(plain_path(key), Some(key));
        }
        for key in ["/a", "a/", "a//b", "../x", "a/./b", "nul\0", "new\nline"] {
            assert_eq!(plain_path(key), None, "{key:?}");
        }
        assert_eq!(plain_path(&"x".repeat(255)).map(str::len), Some(255));
        assert_eq!(plain_path(&"x".repeat(256)), None);
    }

    #[test]
    fn the_longest_key_of_the_costliest_bytes_round_trips() {
        let key = "/".repeat(KEY_MAX);
        assert_eq!(key_of_escaped(&escaped_path(&key)), Some(key));
    }
}
