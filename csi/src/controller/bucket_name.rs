//! Names of buckets. Enters: a text. Leaves: whether S3 accepts it as a bucket's name, and a name that is short enough. Pure.

use super::cluster::Cluster;

/// The least length that S3 allows, in characters.
pub const NAME_MIN: usize = 3;
/// The greatest length, in characters.
pub const NAME_MAX: usize = 63;
/// Number of hexadecimal digits of the digest at the end of a shortened name.
pub const DIGITS: usize = 12;

/// Beginnings that S3 reserves; the constant below has the reserved ends.
const RESERVED_HEADS: [&str; 3] = ["xn--", "sthree-", "amzn-s3-demo-"];
const RESERVED_TAILS: [&str; 5] = ["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"];

/// Whether S3 accepts this name.
#[must_use]
pub fn is_valid(name: &str) -> bool {
    fault(name).is_none()
}

/// The problem with a name, as the end of a sentence.
#[must_use]
pub fn fault(name: &str) -> Option<&'static str> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !(NAME_MIN..=NAME_MAX).contains(&name.len()) {
        Some("must have 3 to 63 characters")
    } else if !name.chars().all(|c| is_plain(c) || c == '-' || c == '.') {
        Some("may hold only small letters, digits, '-' and '.'")
    } else if !name.starts_with(is_plain) || !name.ends_with(is_plain) {
        Some("must begin and end with a letter or a digit")
    } else if name.contains("..") || name.contains(".-") || name.contains("-.") {
        Some("may not hold '.' beside another '.' or a '-'")
    } else if name.parse::<std::net::Ipv4Addr>().is_ok() {
        Some("may not look like an IP address")
    } else if RESERVED_HEADS.iter().any(|it| name.starts_with(it))
        || RESERVED_TAILS.iter().any(|it| name.ends_with(it))
    {
        Some("begins or ends with text that S3 reserves")
    } else {
        None
    }
}

/// The bucket name of a request without a template: `csi-s3-` and a UUID, as in release 2.2, but always the same for one request.
#[must_use]
pub fn of_request(cluster: &Cluster, request: &str) -> String {
    let hex = cluster.digest(&["name", request], 32);
    let groups = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("csi-s3-{}", groups.join("-"))
}

/// Shortens a text to `max` bytes. A longer text is cut, and ends in a digest of the text and the request. Returns whether it was cut.
#[must_use]
pub fn shortened(cluster: &Cluster, request: &str, text: &str, max: usize) -> (String, bool) {
    if text.len() <= max {
        return (text.to_owned(), false);
    }
    let digest = cluster.digest(&["long", request, text], DIGITS);
    let mut end = max.saturating_sub(DIGITS + 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let stem = text[..end].trim_end_matches(['-', '.', '/']);
    (format!("{stem}-{digest}"), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_s3_s() {
        for good in ["abc", "a.b-c", "0ab", &"a".repeat(63)] {
            assert_eq!(fault(good), None, "{good}");
        }
        for bad in [
            "ab",
            "",
            &"a".repeat(64),
            "Abc",
            "a_b",
            "-abc",
            "abc-",
            ".abc",
            "a..b",
            "a.-b",
            "192.168.5.4",
            "xn--abc",
            "abc-s3alias",
            "käse",
            "a/b",
            "abc\n",
            "arn:aws:s3:eu-west-1:123456789012:accesspoint/ap",
        ] {
            assert!(fault(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn a_request_has_one_name_which_looks_like_release_2_2_s() {
        let cluster = Cluster::new("uid-1");
        let name = of_request(&cluster, "pvc-1");
        assert_eq!(name, of_request(&cluster, "pvc-1"));
        assert_ne!(name, of_request(&cluster, "pvc-2"));
        assert_ne!(name, of_request(&Cluster::new("uid-2"), "pvc-1"));
        assert!(
            is_valid(&name) && name.len() == "csi-s3-01234567-89ab-cdef-0123-456789abcdef".len(),
            "{name}"
        );
    }

    #[test]
    fn a_long_name_is_cut_and_stays_its_own() {
        let cluster = Cluster::new("uid-1");
        let short = |text: &str| shortened(&cluster, "pvc-1", text, NAME_MAX);
        assert_eq!(short("short"), ("short".to_owned(), false));
        let (one, other) = (short(&format!("{}a", "n".repeat(80))), short(&format!("{}b", "n".repeat(80))));
        assert!(one.1 && is_valid(&one.0) && one.0.len() == NAME_MAX, "{one:?}");
        assert_ne!(one, other);
        // The cut may be after a character that must not precede the dash of the digest.
        let (dotted, _) = short(&format!("{}.{}", "n".repeat(49), "m".repeat(40)));
        assert!(is_valid(&dotted), "{dotted}");
        let (tiny, _) = shortened(&cluster, "pvc-1", &"ü".repeat(20), 20);
        assert!(tiny.len() <= 20, "{tiny}");
    }
}
