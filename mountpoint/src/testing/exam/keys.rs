//! Any key that S3 allows goes in and comes out as it is.

use std::collections::{BTreeMap, BTreeSet};

use super::Exam;
use crate::object::ObjectKey;

/// Keys that have broken other people's code: relative paths, empty names, control bytes, escapes, twins.
pub fn hostile_keys() -> Vec<String> {
    let plain = [
        "../x",
        "../../etc/passwd",
        "a/../b",
        "a/..",
        "a/.",
        "./y",
        ".",
        "..",
        "...",
        ".hidden",
        "a//b",
        "a///",
        "/lead",
        "//lead",
        "/",
        "//",
        "trail/",
        "trail//",
        "twin",
        "twin/x",
        "twin/x/y",
        "twin/",
        "back\\slash",
        "\\",
        "C:\\x",
        "new\nline",
        "tab\t",
        "cr\rlf\r\n",
        "\n",
        "del\u{7f}",
        " ",
        " lead",
        "trail ",
        "two  spaces",
        "a b/c d",
        "+",
        "a+b",
        "%",
        "%2F",
        "%2f",
        "a%2Fb",
        "%00",
        "%%",
        "%zz",
        "?",
        "a?b=c",
        "#",
        "a#b",
        "&amp;",
        "<x>",
        "]]>",
        "\"",
        "'",
        "a=b&c=d",
        "*",
        "{}",
        "$(x)",
        "`x`",
        "|",
        "~",
        ";",
        ":",
        "-rf",
        "--",
        "@",
        "!",
        "^",
        ",",
        "=",
        "ünïcödé",
        "日本語",
        "🦀",
        "\u{e9}",
        "e\u{301}",
        "\u{feff}bom",
        "\u{200b}",
        "\u{202e}rtl",
        "\u{85}",
        "\u{2028}",
        "\u{fffd}",
        "\u{ffff}",
        "\u{10ffff}",
        "İ",
        "ß",
        "CASE",
        "case",
        "con",
        "nul",
        "lost+found",
        ".s3server",
        ".sgwtmp",
        ".git/config",
    ];
    let mut keys: Vec<String> = plain.map(String::from).to_vec();
    keys.extend((1..=0x1f_u8).map(|byte| format!("control {byte:02x} {}", char::from(byte))));
    keys.push("n".repeat(255));
    keys.push("n".repeat(256));
    keys.push("long".repeat(256));
    keys.push(format!("{}{}", "d/".repeat(500), "f".repeat(24)));
    keys.push("é".repeat(512));
    keys
}

pub(super) async fn every_key_comes_back_as_it_went(exam: &Exam) {
    let mut stored = BTreeMap::new();
    for (salt, key) in hostile_keys().into_iter().enumerate() {
        if let Some(reason) = (exam.traits.refuses_key)(&key) {
            eprintln!("SKIPPED: {}: key {:?}: {reason}", exam.traits.store, key.escape_debug().to_string());
            continue;
        }
        assert!(key.len() <= ObjectKey::LEN_MAX);
        let bytes = exam.bytes(salt as u64, 10 + salt);
        exam.put(&ObjectKey::new(&key), &bytes).await;
        stored.insert(ObjectKey::new(&key), bytes);
    }
    // All were stored before the first is read: one may have taken another's place.
    let listed = exam.keys_under("").await;
    let unique: BTreeSet<_> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len(), "a key is listed twice");
    for key in stored.keys() {
        assert!(unique.contains(key), "{key} is not listed");
    }
    assert_eq!(unique.len(), stored.len(), "keys are listed that nobody stored: {listed:?}");
    for (key, bytes) in &stored {
        exam.assert_object(key, bytes).await;
    }
    for key in stored.keys() {
        exam.client.delete_object(key).await.unwrap_or_else(|error| panic!("delete {key}: {error}"));
        exam.assert_missing(key).await;
    }
    assert_eq!(exam.keys_under("").await, []);
}

pub(super) async fn twins_are_two_objects(exam: &Exam) {
    let pairs = [("e\u{301}", "\u{e9}"), ("Case", "case"), ("a b", "a+b"), ("x%2Fy", "x/y"), ("p/", "p//")];
    for (one, two) in pairs {
        let pair = [one, two].map(|name| exam.key(name));
        if let Some(reason) = pair.iter().find_map(|key| (exam.traits.refuses_key)(key.as_str())) {
            eprintln!("SKIPPED: {}: twins {one:?} and {two:?}: {reason}", exam.traits.store);
            continue;
        }
        for (salt, key) in pair.iter().enumerate() {
            exam.put(key, &exam.bytes(salt as u64, 10)).await;
        }
        for (salt, key) in pair.iter().enumerate() {
            exam.assert_object(key, &exam.bytes(salt as u64, 10)).await;
        }
        exam.client.delete_object(&pair[0]).await.expect("delete");
        exam.assert_missing(&pair[0]).await;
        exam.assert_object(&pair[1], &exam.bytes(1, 10)).await;
    }
}
