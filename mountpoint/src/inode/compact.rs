//! Compact forms of the facts kept for every name: while the kernel knows a million names, the engine keeps a million of them. Pure.

use std::num::NonZeroI64;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use crate::object::{ETag, ObjectMeta};

/// An instant in 8 bytes, in an `Option` too: nanoseconds from the first instant that was ever packed, for 292 years both ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moment(NonZeroI64);

static FIRST: OnceLock<Instant> = OnceLock::new();

impl Moment {
    pub(super) fn of(instant: Instant) -> Self {
        let first = *FIRST.get_or_init(|| instant);
        let nanos = |d: Duration| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX);
        let after =
            nanos(instant.saturating_duration_since(first)) - nanos(first.saturating_duration_since(instant));
        Self(NonZeroI64::new(after).unwrap_or(NonZeroI64::MIN))
    }

    pub(super) fn instant(self) -> Instant {
        let first = *FIRST.get().expect("a moment was packed, and so the first one");
        let nanos = if self.0 == NonZeroI64::MIN { 0 } else { self.0.get() };
        let distance = Duration::from_nanos(nanos.unsigned_abs());
        let moved = if nanos < 0 { first.checked_sub(distance) } else { first.checked_add(distance) };
        moved.unwrap_or(first)
    }
}

/// The object under a file's name, and until when a stat may rely on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stored {
    /// Bytes, and [`ARCHIVED`].
    size: u64,
    etag: PackedETag,
    /// Microseconds from 1970, as far as stat and stores go.
    modified: i64,
    until: Option<Moment>,
}

/// Set in the size of an object that can't be read. No object is so long that it would need this bit.
const ARCHIVED: u64 = 1 << 63;

/// A store may tell the time of an object in whole seconds in one answer and in parts of one in another, and a file that this mount stored has
/// the time of the store's answer first. Programs such as `tar` and `vim` take a time that moves for a change of the file. Doubling it hides that another client
/// stored the same bytes again so soon.
const ABOUT_THE_SAME: Duration = Duration::from_secs(2);

impl Stored {
    /// `until`: when what S3 said of it expires; `None`: not to be believed any more.
    pub(super) fn new(meta: &ObjectMeta, until: Option<Instant>) -> Self {
        Self {
            size: packed(meta.size, meta.readable),
            etag: PackedETag::new(meta.etag.as_str()),
            modified: micros(meta.last_modified),
            until: until.map(Moment::of),
        }
    }

    pub(super) fn meta(&self) -> ObjectMeta {
        let last_modified = self.modified();
        let (size, readable) = (self.size(), self.is_readable());
        ObjectMeta { size, etag: self.etag.unpack(), last_modified, readable }
    }

    pub(super) fn size(&self) -> u64 {
        self.size & !ARCHIVED
    }

    /// False in an archive tier.
    pub(super) fn is_readable(&self) -> bool {
        self.size & ARCHIVED == 0
    }

    pub(super) fn modified(&self) -> SystemTime {
        let distance = Duration::from_micros(self.modified.unsigned_abs());
        let moved = match self.modified < 0 {
            true => SystemTime::UNIX_EPOCH.checked_sub(distance),
            false => SystemTime::UNIX_EPOCH.checked_add(distance),
        };
        moved.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.until.map(Moment::instant)
    }

    /// Whether a stat may still say so.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.until().is_some_and(|until| now < until)
    }

    /// Not to be believed any more.
    pub(super) fn doubt(&mut self) {
        self.until = None;
    }

    /// Whether that is the version that is meant here: listings of some stores leave an ETag's quotes out.
    pub(super) fn is_version(&self, size: u64, etag: &str) -> bool {
        self.size() == size && self.etag.matches(etag)
    }

    /// S3 said the same again. The first spelling of the ETag stays: reads are pinned to it. So does a time that is about the same. The answer
    /// that holds longest counts.
    pub(super) fn confirm(&mut self, meta: &ObjectMeta, until: Instant) {
        let modified = micros(meta.last_modified);
        if self.modified.abs_diff(modified) > ABOUT_THE_SAME.as_micros() as u64 {
            self.modified = modified;
        }
        self.size = packed(self.size(), meta.readable);
        let until = self.until().map_or(until, |earlier| earlier.max(until));
        self.until = Some(Moment::of(until));
    }
}

fn packed(size: u64, readable: bool) -> u64 {
    let size = size.min(ARCHIVED - 1);
    if readable { size } else { size | ARCHIVED }
}

fn micros(time: SystemTime) -> i64 {
    let whole = |d: Duration| i64::try_from(d.as_micros()).unwrap_or(i64::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => whole(after),
        Err(before) => -whole(before.duration()),
    }
}

/// An ETag: MD5 in binary, as most stores make them, or whatever it is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum PackedETag {
    /// `parts`: of a multipart upload, behind a dash; 0 for none.
    Md5 {
        digest: [u8; 16],
        parts: u32,
        quoted: bool,
    },
    Text(Box<str>),
}

impl PackedETag {
    fn new(etag: &str) -> Self {
        Self::pack(etag).unwrap_or_else(|| Self::Text(etag.into()))
    }

    fn pack(etag: &str) -> Option<Self> {
        let inner = etag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let (hex, tail) = inner.unwrap_or(etag).split_at_checked(32)?;
        let parts = match tail.strip_prefix('-') {
            Some(number) if number.starts_with(|c: char| ('1'..='9').contains(&c)) => number.parse().ok()?,
            Some(_) => return None,
            None if tail.is_empty() => 0,
            None => return None,
        };
        let mut digest = [0; 16];
        base16ct::lower::decode(hex, &mut digest).ok()?;
        Some(Self::Md5 { digest, parts, quoted: inner.is_some() })
    }

    fn unpack(&self) -> ETag {
        let (digest, parts, quoted) = match self {
            Self::Text(text) => return ETag::new(text),
            Self::Md5 { digest, parts, quoted } => (digest, *parts, *quoted),
        };
        let mut text = String::with_capacity(34);
        let quote = if quoted { "\"" } else { "" };
        text.push_str(quote);
        let mut hex = [0; 32];
        text.push_str(base16ct::lower::encode_str(digest, &mut hex).unwrap_or_default());
        if parts > 0 {
            text.push('-');
            text.push_str(&parts.to_string());
        }
        text.push_str(quote);
        ETag::new(text)
    }

    fn matches(&self, other: &str) -> bool {
        match (self, Self::pack(other)) {
            (Self::Md5 { digest, parts, .. }, Some(Self::Md5 { digest: d, parts: p, .. })) => {
                (*digest, *parts) == (d, p)
            }
            _ => self.unpack().matches(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn moments_before_and_after_the_first_come_back() {
        let first = Moment::of(Instant::now()).instant();
        for offset in [0, 1, 999, 1_000_000_007, 86_400_000_000_000] {
            let offset = Duration::from_nanos(offset);
            let after = first + offset;
            assert_eq!(Moment::of(after).instant(), after);
            let Some(before) = first.checked_sub(offset) else { continue };
            assert_eq!(Moment::of(before).instant(), before);
        }
        assert_eq!(size_of::<Option<Moment>>(), 8);
    }

    #[test]
    fn what_is_stored_comes_back_whatever_its_time() {
        for seconds in [-1_i64, 0, 1_763_769_600, 253_402_300_799] {
            let distance = Duration::from_secs(seconds.unsigned_abs());
            let last_modified = match seconds < 0 {
                true => SystemTime::UNIX_EPOCH - distance,
                false => SystemTime::UNIX_EPOCH + distance + Duration::from_millis(123),
            };
            for readable in [true, false] {
                let meta = ObjectMeta { size: 7, etag: ETag::new("\"x\""), last_modified, readable };
                let mut stored = Stored::new(&meta, None);
                assert_eq!((stored.meta(), stored.until()), (meta.clone(), None));
                stored.confirm(&ObjectMeta { readable: !readable, ..meta.clone() }, Instant::now());
                assert_eq!(stored.meta(), ObjectMeta { readable: !readable, ..meta });
            }
        }
    }

    #[test]
    fn the_same_version_keeps_its_time_unless_the_store_says_clearly_another() {
        let at = |millis| ObjectMeta {
            size: 7,
            etag: ETag::new("\"x\""),
            last_modified: SystemTime::UNIX_EPOCH + Duration::from_millis(millis),
            readable: true,
        };
        for (first, then, shown) in [
            (10_243, 10_000, 10_243),
            (10_000, 11_999, 10_000),
            (10_000, 12_001, 12_001),
            (10_000, 7_999, 7_999),
        ] {
            let mut stored = Stored::new(&at(first), None);
            stored.confirm(&at(then), Instant::now());
            assert_eq!(stored.meta(), at(shown), "{first}, {then}");
        }
    }

    proptest! {
        #[test]
        fn an_etag_comes_back_byte_for_byte_and_matches_as_its_text_does(
            etag in prop_oneof![
                "\"[0-9a-f]{32}\"", "[0-9a-f]{32}", "\"[0-9a-f]{32}-[0-9]{1,11}\"", "\"[0-9a-fA-F]{32}\"", "\"?[0-9a-f-]{0,40}\"?", ".{0,40}",
            ],
            other in prop_oneof!["\"[0-9a-f]{32}\"", ".{0,40}"],
        ) {
            let packed = PackedETag::new(&etag);
            let unpacked = packed.unpack();
            prop_assert_eq!(unpacked.as_str(), &etag);
            for other in [etag.trim_matches('"').to_owned(), format!("\"{}\"", etag.trim_matches('"')), other] {
                prop_assert_eq!(packed.matches(&other), ETag::new(&etag).matches(&other), "{}", other);
            }
        }
    }
}
