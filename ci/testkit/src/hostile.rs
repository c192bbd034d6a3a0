//! Keys that S3 allows and that break programs.

/// Keys that have broken programs: relative paths, empty names, control bytes, escapes, similar keys. Each has 1 to 1024 bytes, and no
/// two are equal.
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
        "nul\0",
        "\0",
        "a+/b",
        "語/キー",
        ".s3server/lock",
        "..s3server",
        "..a",
        "a..",
        "dot.",
        "a/./b",
        "trail/.",
        "\u{fffe}",
        "%252e%252e%252f",
        "100%",
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
    keys.push("/".repeat(1024));
    keys.push(format!("{}/{}", "d".repeat(300), "f".repeat(300)));
    keys
}

/// Whether a key can be the path of a file. The lengths of its names are not checked.
pub fn is_path(key: &str) -> bool {
    key.split('/').all(|name| !matches!(name, "" | "." | "..") && !name.contains('\0'))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_hostile_key_is_one_that_s3_allows_and_stands_there_once() {
        let keys = hostile_keys();
        assert!(keys.iter().all(|key| (1..=1024).contains(&key.len())));
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        assert!(keys.iter().any(|key| is_path(key)) && keys.iter().any(|key| !is_path(key)));
    }
}
