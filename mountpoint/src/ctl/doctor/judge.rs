//! Turns the answers of an examination into findings. Pure.

use std::time::{Duration, SystemTime};

use mountpoint::net::Handshake;
use mountpoint::s3::PartLimits;

use super::advice::Advice;
use super::report::{Finding, Verdict};

/// Largest skew with which a clock counts as right, in seconds.
const CLOCK_FINE: i64 = 60;
/// Skew beyond which S3 refuses signatures, in seconds.
const CLOCK_REFUSED: i64 = 15 * 60;
/// Time before a certificate's expiry from which the report warns.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// The store's treatment of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Kept,
    Ignored,
    /// The store answers 501.
    Unknown,
}

/// The finding about the skew between the store's clock and this machine's.
pub(super) fn clock(ahead_s: Option<i64>) -> Finding {
    let fine = |found: String| Finding::new("clock", Verdict::Fine, found);
    let Some(ahead) = ahead_s else {
        return Finding::new("clock", Verdict::Note, "the answers have no Date header")
            .meaning("a wrong clock of this machine would not be noticed before requests are refused");
    };
    let apart = match ahead {
        0.. => format!("the store's clock is {ahead} s ahead of this machine's"),
        _ => format!("the store's clock is {} s behind this machine's", -ahead),
    };
    match ahead.abs() {
        seconds if seconds <= CLOCK_FINE => fine(apart),
        seconds if seconds <= CLOCK_REFUSED => Finding::new("clock", Verdict::Note, apart)
            .meaning("set this machine's clock (NTP): from 15 minutes on S3 refuses signatures"),
        _ => Finding::new("clock", Verdict::Note, apart).meaning(
            "set this machine's clock (NTP): other programs are refused (RequestTimeTooSkewed), mounts sign by the store's clock",
        ),
    }
}

/// The finding about the TLS connection.
pub(super) fn tls(shaken: Option<&Handshake>, own_roots: bool, now: SystemTime) -> Finding {
    let Some(shaken) = shaken else {
        return Finding::new("tls", Verdict::Note, "plain HTTP")
            .meaning("names, bytes and temporary tokens are readable on the way; secret keys are not sent");
    };
    let agreed = format!("{}, {}", shaken.version, shaken.cipher);
    let Some(certificate) = &shaken.certificate else {
        return Finding::new("tls", Verdict::Fine, format!("{agreed}; its certificate could not be read"));
    };
    let by = match (certificate.is_self_signed(), own_roots) {
        (true, _) => "self-signed".to_owned(),
        (false, true) => {
            format!("issued by {:?}, checked with --ca-bundle or --extra-ca-bundle", certificate.issuer)
        }
        (false, false) => format!("issued by {:?}, which the system trusts", certificate.issuer),
    };
    let left = certificate.expires.duration_since(now).unwrap_or_default();
    let days = left.as_secs() / (24 * 3600);
    let found = format!("{agreed}; certificate {by}, ends in {days} days");
    if left < EXPIRES_SOON {
        return Finding::new("tls", Verdict::Note, found)
            .meaning("renew the store's certificate: mounts fail once it has ended");
    }
    Finding::new("tls", Verdict::Fine, found)
}

/// The finding about the URL style. `other`: whether the other style works; `None` if it was not tried.
pub(super) fn addressing(in_host: bool, is_asked_by_path: bool, other: Option<bool>) -> Finding {
    let (this, that) = match in_host {
        true => ("in the host name", "in the path"),
        false => ("in the path", "in the host name"),
    };
    let other = match other {
        Some(true) => format!("{that} it works too"),
        Some(false) => format!("{that} it is not found"),
        None => format!("{that} it can't be"),
    };
    let why = if is_asked_by_path { ", as --force-path-style says" } else { "" };
    Finding::new("addressing", Verdict::Fine, format!("the bucket is named {this}{why}; {other}"))
}

/// The finding about versioning and object lock. `None`: the store does not say.
pub(super) fn history(versions: Option<bool>, lock: Option<bool>) -> Finding {
    let word = |it: Option<bool>| match it {
        Some(true) => "on",
        Some(false) => "off",
        None => "unknown",
    };
    let found = format!("versioning {}, object lock {}", word(versions), word(lock));
    let means = match (versions, lock) {
        (_, Some(true)) => {
            Some("what is replaced or deleted stays and is paid for, and some of it can't be removed")
        }
        (Some(true), _) => Some(
            "what is replaced or deleted stays and is paid for: a lifecycle rule for noncurrent versions ends it",
        ),
        _ => None,
    };
    match means {
        Some(means) => Finding::new("versions", Verdict::Note, found).meaning(means),
        None => Finding::new("versions", Verdict::Fine, found),
    }
}

/// The finding about If-Match and If-None-Match on a GET.
pub(super) fn read_conditions(if_match: bool, if_none_match: bool) -> Finding {
    let word = |kept| if kept { "kept" } else { "ignored" };
    let found = format!("If-Match is {}, If-None-Match is {}", word(if_match), word(if_none_match));
    match if_match {
        true => Finding::new("read conditions", Verdict::Fine, found),
        false => Finding::new("read conditions", Verdict::Note, found)
            .meaning("a mount notices a changed object by the ETag of the answer, so nothing is mixed"),
    }
}

/// The finding about the store's limits on parts, by its kind and the refusals of this run.
pub(super) fn parts(limits: PartLimits) -> Finding {
    let most = limits.parts_max;
    let found = match limits.are_equal {
        true => format!("{most} of an object at most; all but the last of one size"),
        false => format!("{most} of an object at most"),
    };
    if limits == PartLimits::default() {
        return Finding::new("parts", Verdict::Fine, found);
    }
    let means = match limits.are_equal {
        true => format!("a mount cuts files so; --write-part-size times {most} is the limit of files"),
        false => "a mount has its parts grow sooner, so that large files fit".to_owned(),
    };
    Finding::new("parts", Verdict::Note, found).meaning(means)
}

/// The finding about the condition of writes that must not replace an object, and a `--store` kind that makes a mount check first.
/// `is_generic`: the kind of the store is not known.
pub(super) fn write_conditions(
    put: Condition,
    complete: Condition,
    is_generic: bool,
) -> (Finding, Option<Advice>) {
    use Condition::Ignored;
    let word = |it| match it {
        Condition::Kept => "kept",
        Condition::Ignored => "ignored",
        Condition::Unknown => "refused with 501",
    };
    let found =
        format!("If-None-Match on PutObject is {}, on CompleteMultipartUpload {}", word(put), word(complete));
    if put != Ignored && complete != Ignored {
        let finding = match (put, complete) {
            (Condition::Kept, Condition::Kept) => Finding::new("write conditions", Verdict::Fine, found),
            _ => Finding::new("write conditions", Verdict::Note, found)
                .meaning("a mount asks for the name before it stores a new file"),
        };
        return (finding, None);
    }
    let kind = match (put, complete) {
        (Ignored, _) => "scality",
        _ => "ceph",
    };
    let finding = Finding::new("write conditions", Verdict::Fails, found).meaning(
        "exclusive creation between machines: a new file may replace one that another client stores at the same moment; one writer for each name",
    );
    (finding, is_generic.then(|| Advice::Set("--store", kind.to_owned())))
}

/// The finding about the conditions that the engine sends, by the declared behaviour of the store's kind.
pub(super) fn declared_conditions(
    kind: &str,
    conditions: &[(&'static str, &'static str, &'static str)],
) -> Finding {
    let mut found = format!("as declared for stores of the kind {kind:?}:");
    let mut last = "";
    for (request, header, fate) in conditions {
        if *request == last {
            found += &format!(", {header} {fate}");
        } else {
            found += &format!("{} {request}: {header} {fate}", if last.is_empty() { "" } else { ";" });
        }
        last = request;
    }
    if conditions.iter().all(|(.., fate)| *fate == "kept") {
        return Finding::new("conditions", Verdict::Fine, found);
    }
    Finding::new("conditions", Verdict::Note, found).meaning(
        "before such a request a mount asks what is there (HEAD): a change by another client between the two can be lost",
    )
}

/// The finding about the conditions of renames and appends: on the target and source of a copy, and on a delete.
pub(super) fn copy_conditions(
    absent: Condition,
    version: Condition,
    source: Condition,
    delete: Condition,
) -> Finding {
    let all = [
        ("If-None-Match on CopyObject is", absent),
        ("If-Match", version),
        ("x-amz-copy-source-if-match", source),
        ("If-Match on DeleteObject", delete),
    ];
    let word = |it| match it {
        Condition::Kept => "kept",
        Condition::Ignored => "ignored",
        Condition::Unknown => "refused with 501",
    };
    let words: Vec<_> = all.iter().map(|(what, fate)| format!("{what} {}", word(*fate))).collect();
    let found = words.join(", ");
    if all.iter().all(|(_, fate)| *fate == Condition::Kept) {
        return Finding::new("copy conditions", Verdict::Fine, found);
    }
    Finding::new("copy conditions", Verdict::Note, found).meaning(
        "a rename (--allow-rename) asks what is there just before: a change by another client between the two requests can be lost",
    )
}

/// The finding about checksums of uploads. `verified`: whether the store refused a wrong checksum; `None` if unknown.
pub(super) fn checksums(name: Option<&str>, verified: Option<bool>, echoed: bool) -> Finding {
    let Some(name) = name else {
        return Finding::new("checksums", Verdict::Note, "uploads carry none (--upload-checksums off)")
            .meaning("bytes that are damaged on the way are not noticed");
    };
    let echo = if echoed { "returned" } else { "not returned" };
    match verified {
        Some(true) => {
            Finding::new("checksums", Verdict::Fine, format!("{name} of uploads is verified, and {echo}"))
        }
        Some(false) => Finding::new(
            "checksums",
            Verdict::Note,
            format!("{name} of uploads is not verified: wrong ones are accepted; it is {echo}"),
        )
        .meaning(match echoed {
            true => "a mount compares what is returned",
            false => "bytes that are damaged on the way are not noticed, except by TLS",
        }),
        None => {
            Finding::new("checksums", Verdict::Note, format!("{name} of uploads is accepted, and {echo}"))
                .meaning("whether a wrong one is refused is not known")
        }
    }
}

/// The result of a request that some stores do not know, and may execute as a PUT of an empty object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trap {
    /// The store executed the request.
    Works,
    /// The store refused the request, and nothing changed.
    Refused(String),
    /// The store answered with success, but did something else.
    Sprung(String),
}

/// The finding about such a request. `flags`: the flags with which mounts use it, if they do.
pub(super) fn trap(probe: &'static str, flags: Option<&str>, trap: Trap) -> Finding {
    let users = match flags {
        Some(flags) => format!("mounts use it with {flags}"),
        None => "mounts do not use it".to_owned(),
    };
    match trap {
        Trap::Works => Finding::new(probe, Verdict::Fine, format!("works; {users}")),
        Trap::Refused(word) => Finding::new(probe, Verdict::Fine, format!("refused ({word}); {users}")),
        Trap::Sprung(what) => Finding::new(probe, Verdict::Note, format!("a trap: {what}"))
            .meaning(format!("{users}; programs that use it lose data on this store")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mountpoint::net::Certificate;

    #[test]
    fn a_clock_is_worth_a_word_from_a_minute_on() {
        for (ahead, verdict, word) in [
            (Some(0), Verdict::Fine, "0 s ahead"),
            (Some(-60), Verdict::Fine, "60 s behind"),
            (Some(61), Verdict::Note, "61 s ahead"),
            (Some(-86_400), Verdict::Note, "86400 s behind"),
            (None, Verdict::Note, "no Date"),
        ] {
            let finding = clock(ahead);
            assert_eq!(finding.verdict, verdict, "{ahead:?}");
            assert!(finding.found.contains(word), "{finding:?}");
        }
        assert!(clock(Some(901)).means.unwrap().contains("RequestTimeTooSkewed"));
    }

    #[test]
    fn limits_of_parts_are_told_with_the_largest_file() {
        assert_eq!(parts(PartLimits::default()).verdict, Verdict::Fine);
        let equal = parts(PartLimits { are_equal: true, ..PartLimits::default() });
        assert!(
            equal.verdict == Verdict::Note && equal.means.unwrap().contains("--write-part-size times 10000")
        );
        let few = parts(PartLimits { parts_max: 1000, are_equal: false });
        assert!(few.verdict == Verdict::Note && few.found.starts_with("1000 of an object"));
    }

    #[test]
    fn conditions_that_are_ignored_name_the_kind_that_asks_before() {
        use Condition::{Ignored, Kept, Unknown};
        for (put, complete, verdict, kind) in [
            (Kept, Kept, Verdict::Fine, None),
            (Unknown, Unknown, Verdict::Note, None),
            (Ignored, Ignored, Verdict::Fails, Some("scality")),
            (Kept, Ignored, Verdict::Fails, Some("ceph")),
        ] {
            let (finding, advice) = write_conditions(put, complete, true);
            assert_eq!(finding.verdict, verdict, "{put:?} {complete:?}");
            assert_eq!(advice, kind.map(|kind| Advice::Set("--store", kind.to_owned())));
            assert_eq!(write_conditions(put, complete, false).1, None, "the kind is known");
        }
    }

    #[test]
    fn a_certificate_that_ends_soon_is_worth_a_word() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let of = |days: u64, issuer: &str| Handshake {
            version: "TLS 1.3".into(),
            cipher: "C".into(),
            certificate: Some(Certificate {
                issuer: issuer.into(),
                subject: "CN=store".into(),
                expires: now + Duration::from_secs(days * 24 * 3600),
            }),
        };
        let finding = tls(Some(&of(100, "CN=us")), false, now);
        assert_eq!(finding.verdict, Verdict::Fine);
        assert!(finding.found.contains("TLS 1.3") && finding.found.contains("100 days"), "{finding:?}");
        assert!(finding.found.contains("which the system trusts"), "{finding:?}");
        assert!(tls(Some(&of(100, "CN=store")), true, now).found.contains("self-signed"));
        assert_eq!(tls(Some(&of(13, "CN=us")), true, now).verdict, Verdict::Note);
        assert_eq!(tls(None, false, now).verdict, Verdict::Note, "plain HTTP");
    }

    #[test]
    fn versions_and_locks_are_worth_a_word_where_they_are_on() {
        assert_eq!(history(Some(false), None).verdict, Verdict::Fine);
        assert_eq!(history(None, None).verdict, Verdict::Fine);
        assert!(history(Some(true), Some(false)).means.unwrap().contains("lifecycle"));
        assert!(history(Some(true), Some(true)).means.unwrap().contains("can't be removed"));
    }

    #[test]
    fn a_checksum_that_is_not_verified_helps_only_where_it_is_returned() {
        assert_eq!(checksums(Some("CRC32C"), Some(true), true).verdict, Verdict::Fine);
        assert!(checksums(Some("CRC32C"), Some(false), true).means.unwrap().contains("compares"));
        assert!(checksums(Some("CRC32C"), Some(false), false).means.unwrap().contains("not noticed"));
        assert_eq!(checksums(None, None, false).verdict, Verdict::Note);
    }
}
