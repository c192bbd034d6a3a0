//! Compact forms of the facts kept for every name: while the kernel knows a million names, the engine keeps a million of them. Pure.

use std::num::NonZeroI64;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use crate::object::{ETag, ObjectMeta, Second};

/// An instant in 8 bytes, also as an `Option`: nanoseconds since the first instant that this process packed. The range is 292 years both
/// ways.
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

/// The object under a file's name, and the time until which a stat may rely on the facts about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stored {
    /// Size in bytes, with the flags [`ARCHIVED`], [`LISTED`] and [`UPLOADED`].
    size: u64,
    etag: PackedETag,
    /// The second that stat shows, from 1970, times 8. The low bits hold 4 plus the distance of the version's second from the shown one;
    /// 0 if that distance is unknown.
    modified: i64,
    until: Option<Moment>,
}

/// Flag in the size of an object that can't be read. No object is long enough to need one of these three bits.
const ARCHIVED: u64 = 1 << 63;
/// Flag of facts that come from a listing alone.
const LISTED: u64 = 1 << 62;
/// Flag of facts from the answer to an upload, whose time differs slightly from the object's time.
const UPLOADED: u64 = 1 << 61;
const FLAGS: u64 = ARCHIVED | LISTED | UPLOADED;

/// The source of an answer about an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Teller {
    /// The object itself, by HEAD or GET.
    Object,
    /// A listing. Some stores list an ETag or size that differs from the object's.
    Listing,
    /// The upload that made the object.
    Upload,
}

/// The meaning of an answer for the known facts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Judgement {
    /// The answer describes the same version.
    Same,
    /// The object corrects a listing about the same second.
    Better,
    /// A listing contradicts the object about the same second: the caller must ask the object.
    Doubtful,
    /// The answer describes another version.
    Other,
}

/// Most seconds between the time of an upload's answer and the object's own time, for one version. A file that this mount stored first
/// shows the time of the answer; programs such as `tar` and `vim` take a new time for a change of the file. Doubling the limit hides a
/// store of the same bytes by another client for longer.
const ABOUT_THE_SAME: u64 = 2;

impl Stored {
    /// Facts about an object. `until`: the instant at which S3's answer expires; `None`: the facts have expired already.
    pub(super) fn new(meta: &ObjectMeta, teller: Teller, until: Option<Instant>) -> Self {
        let second = Second::of(meta.last_modified).map_or(0, Second::get);
        let is_exact = second != 0 && teller != Teller::Upload;
        Self {
            size: packed(meta.size, meta.readable, teller),
            etag: PackedETag::new(meta.etag.as_str()),
            modified: packed_time(second, is_exact.then_some(0)),
            until: until.map(Moment::of),
        }
    }

    pub(super) fn meta(&self) -> ObjectMeta {
        let last_modified = self.modified();
        let (size, readable) = (self.size(), self.is_readable());
        ObjectMeta { size, etag: self.etag.unpack(), last_modified, readable }
    }

    pub(super) fn size(&self) -> u64 {
        self.size & !FLAGS
    }

    /// The source of these facts.
    pub(super) fn teller(&self) -> Teller {
        match self.size & (LISTED | UPLOADED) {
            0 => Teller::Object,
            LISTED => Teller::Listing,
            _ => Teller::Upload,
        }
    }

    /// The second of the version; `None` if it is unknown.
    pub(super) fn second(&self) -> Option<Second> {
        let ahead = (self.modified & 7).checked_sub(4).filter(|_| self.modified & 7 != 0)?;
        Second::of(time_of((self.modified >> 3) + ahead))
    }

    /// Whether the object can be read: false in an archive tier.
    pub(super) fn is_readable(&self) -> bool {
        self.size & ARCHIVED == 0
    }

    pub(super) fn modified(&self) -> SystemTime {
        time_of(self.modified >> 3)
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.until.map(Moment::instant)
    }

    /// Whether a stat may still rely on these facts.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.until().is_some_and(|until| now < until)
    }

    /// Notes that bytes of the version with these marks arrived. False: this is another version.
    pub(super) fn is_proven(&mut self, size: u64, etag: &ETag, modified: Option<Second>) -> bool {
        let is_it = self.is(size, etag, modified);
        if is_it && self.teller() == Teller::Listing {
            self.size = packed(self.size(), self.is_readable(), Teller::Object);
        }
        is_it
    }

    /// Whether this version has these marks.
    pub(super) fn is(&self, size: u64, etag: &ETag, modified: Option<Second>) -> bool {
        let is_then = modified.is_none() || modified == self.second();
        self.size() == size && is_then && self.etag.matches(etag.as_str())
    }

    /// Ends the trust in these facts.
    pub(super) fn doubt(&mut self) {
        self.until = None;
    }

    /// The meaning of an answer for this version. ETag, size and second identify a version, as far as an answer has them: some stores
    /// give one ETag to different bytes, or none at all.
    pub(super) fn judge(&self, size: u64, etag: &str, modified: SystemTime, teller: Teller) -> Judgement {
        let theirs = Second::of(modified);
        let apart = theirs.map_or(0, |theirs| theirs.get().abs_diff(self.modified >> 3));
        let is_then = match (self.second(), theirs) {
            (Some(ours), Some(theirs)) => ours == theirs,
            // The time of an upload's answer is near the object's time or that of the upload's beginning. An ETag is the better evidence.
            _ => self.teller() != Teller::Upload || apart <= ABOUT_THE_SAME || self.etag.says() && says(etag),
        };
        match (self.teller(), teller) {
            _ if is_then && self.size() == size && self.etag.may_be(etag) => Judgement::Same,
            (Teller::Listing, Teller::Object) if is_then => Judgement::Better,
            (Teller::Object, Teller::Listing) if is_then => Judgement::Doubtful,
            (Teller::Upload, Teller::Listing) if apart <= ABOUT_THE_SAME => Judgement::Doubtful,
            _ => Judgement::Other,
        }
    }

    /// Whether a listing and the object have equal marks: then a request may send the listing's ETag as If-Match.
    pub(super) fn agrees(&self, meta: &ObjectMeta) -> bool {
        let (ours, theirs) = (self.etag.unpack(), &meta.etag);
        let letters = ours.if_match().is_some() && ours.if_match() == theirs.if_match();
        letters
            && self.size() == meta.size
            && self.second().is_some_and(|ours| Some(ours) == Second::of(meta.last_modified))
    }

    /// Takes in another answer about the same version. A time that is about the same stays. The expiry that is later counts.
    pub(super) fn confirm(&mut self, meta: &ObjectMeta, teller: Teller, until: Instant) {
        if let (None, Some(theirs)) = (self.second(), Second::of(meta.last_modified)) {
            let (shown, theirs) = (self.modified >> 3, theirs.get());
            let is_exact = teller != Teller::Upload;
            self.modified = match theirs.abs_diff(shown) <= ABOUT_THE_SAME {
                true => packed_time(shown, is_exact.then_some(theirs - shown)),
                false => packed_time(theirs, is_exact.then_some(0)),
            };
        }
        let known = match (self.teller(), teller) {
            (Teller::Listing | Teller::Upload, Teller::Object) => {
                // The ETag as the object spells it, which the store accepts in conditions.
                if says(meta.etag.as_str()) {
                    self.etag = PackedETag::new(meta.etag.as_str());
                }
                Teller::Object
            }
            (known, _) => known,
        };
        // A listing names the storage class alone, and not that an archived object was restored.
        let is_outranked = self.teller() == Teller::Object && teller == Teller::Listing;
        let readable = if is_outranked { self.is_readable() } else { meta.readable };
        self.size = packed(self.size(), readable, known);
        let until = self.until().map_or(until, |earlier| earlier.max(until));
        self.until = Some(Moment::of(until));
    }
}

fn packed(size: u64, readable: bool, teller: Teller) -> u64 {
    let teller = match teller {
        Teller::Object => 0,
        Teller::Listing => LISTED,
        Teller::Upload => UPLOADED,
    };
    size.min(!FLAGS) | teller | if readable { 0 } else { ARCHIVED }
}

/// Packs the shown second and its distance from the version's second (at most 3, both ways).
fn packed_time(shown: i64, ahead: Option<i64>) -> i64 {
    const MAX: i64 = i64::MAX >> 4;
    shown.clamp(-MAX, MAX) * 8 + ahead.map_or(0, |ahead| ahead + 4)
}

fn time_of(second: i64) -> SystemTime {
    let distance = Duration::from_secs(second.unsigned_abs());
    let moved = match second < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(distance),
        false => SystemTime::UNIX_EPOCH.checked_add(distance),
    };
    moved.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Whether an ETag identifies anything.
fn says(etag: &str) -> bool {
    !ETag::new(etag).is_none()
}

/// Whether the store's listings have shown the same marks as its objects. Before that, and for a while after a listing contradicted an
/// object, an open of a listed file asks the object.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Agreement {
    is_shown: bool,
    distrusted_until: Option<Instant>,
}

/// How long the engine distrusts listings after one that contradicted an object. With the double, a replacement of a file during its
/// listing costs requests for longer.
const DISTRUST: Duration = Duration::from_secs(600);

impl Agreement {
    pub(super) fn shown(&mut self) {
        self.is_shown = true;
    }

    pub(super) fn broken(&mut self, now: Instant) {
        (self.is_shown, self.distrusted_until) = (false, now.checked_add(DISTRUST));
    }

    pub(super) fn holds(&self, now: Instant) -> bool {
        self.is_shown && self.distrusted_until.is_none_or(|until| now >= until)
    }
}

/// An ETag: an MD5 in binary, as most stores make it, or any other text.
#[derive(Clone, PartialEq, Eq, Debug)]
enum PackedETag {
    /// `parts`: the number behind the dash of a multipart upload's ETag; 0 for none.
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

    /// Whether the ETag identifies anything.
    fn says(&self) -> bool {
        match self {
            Self::Md5 { .. } => true,
            Self::Text(text) => says(text),
        }
    }

    /// Whether both ETags may belong to one version.
    fn may_be(&self, other: &str) -> bool {
        self.matches(other) || !self.says() || !says(other)
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
                false => SystemTime::UNIX_EPOCH + distance,
            };
            for readable in [true, false] {
                let meta = ObjectMeta { size: 7, etag: ETag::new("\"x\""), last_modified, readable };
                for teller in [Teller::Object, Teller::Listing, Teller::Upload] {
                    let mut stored = Stored::new(&meta, teller, None);
                    assert_eq!(
                        (stored.meta(), stored.until(), stored.teller()),
                        (meta.clone(), None, teller)
                    );
                    let exact = Second::of(last_modified).filter(|_| teller != Teller::Upload);
                    assert_eq!(stored.second(), exact);
                    let other = ObjectMeta { readable: !readable, ..meta.clone() };
                    stored.confirm(&other, Teller::Object, Instant::now());
                    assert_eq!((stored.meta(), stored.teller()), (other, Teller::Object));
                }
            }
        }
    }

    #[test]
    fn the_same_version_keeps_its_time_unless_the_store_says_clearly_another() {
        for (first, then, shown) in [
            (10_243, 10_000, 10_000),
            (10_000, 12_999, 10_000),
            (10_000, 13_001, 13_000),
            (10_000, 7_999, 7_000),
        ] {
            let mut stored = Stored::new(&at("\"x\"", 7, first), Teller::Upload, None);
            let then = at("\"x\"", 7, then);
            assert_eq!(stored.judge(7, "\"x\"", then.last_modified, Teller::Object), Judgement::Same);
            stored.confirm(&then, Teller::Object, Instant::now());
            assert_eq!(stored.meta(), at("\"x\"", 7, shown), "{first}, {then:?}");
            assert_eq!(stored.second(), Second::of(then.last_modified), "what reads are pinned to");
        }
    }

    fn at(etag: &str, size: u64, millis: u64) -> ObjectMeta {
        let last_modified = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        ObjectMeta { size, etag: ETag::new(etag), last_modified, readable: true }
    }

    #[test]
    fn a_version_is_judged_by_etag_size_and_second_and_by_who_says_it() {
        use Judgement::{Better, Doubtful, Other, Same};
        use Teller::{Listing, Object, Upload};
        const AT: u64 = 1_700_000_000_000;
        let known = at("\"x\"", 7, AT);
        for (etag, size, millis, by) in [
            // Columns: an answer of the object, of a listing and of an upload, to a fact from the object, then to a fact from a listing.
            ("\"x\"", 7, AT, [Same, Same, Same, Same, Same, Same]),
            ("x", 7, AT + 999, [Same, Same, Same, Same, Same, Same]),
            ("W/\"x\"", 7, AT, [Same, Same, Same, Same, Same, Same]),
            ("\"\"", 7, AT, [Same, Same, Same, Same, Same, Same]),
            ("\"x\"", 7, 0, [Same, Same, Same, Same, Same, Same]),
            // One ETag for all bytes. Some stores give another time in the answer to an upload.
            ("\"x\"", 7, AT + 1_000, [Other, Other, Other, Other, Same, Same]),
            ("\"\"", 7, AT + 9_000, [Other, Other, Other, Other, Other, Other]),
            // A listing that contradicts the object.
            ("\"y\"", 7, AT, [Other, Doubtful, Better, Other, Other, Doubtful]),
            ("\"x\"", 8, AT, [Other, Doubtful, Better, Other, Other, Doubtful]),
            ("\"y\"", 7, AT + 9_000, [Other, Other, Other, Other, Other, Other]),
        ] {
            let said = at(etag, size, millis);
            let judged = [Object, Listing, Upload].map(|first| {
                let stored = Stored::new(&known, first, None);
                [Object, Listing].map(|then| stored.judge(size, etag, said.last_modified, then))
            });
            assert_eq!(judged.concat(), by, "{said:?}");
        }
    }

    #[test]
    fn listings_are_believed_once_one_agreed_and_not_just_after_a_conflict() {
        let now = Instant::now();
        let mut agreement = Agreement::default();
        assert!(!agreement.holds(now));
        agreement.shown();
        assert!(agreement.holds(now));
        agreement.broken(now);
        agreement.shown();
        assert!(!agreement.holds(now) && agreement.holds(now + DISTRUST));
        let stored = Stored::new(&at("\"x\"", 7, 5_000), Teller::Listing, None);
        assert!(stored.agrees(&at("x", 7, 5_999)));
        for other in [
            at("\"X\"", 7, 5_000),
            at("W/\"x\"", 7, 5_000),
            at("", 7, 5_000),
            at("x", 7, 6_000),
            at("x", 7, 0),
        ] {
            assert!(!stored.agrees(&other), "{other:?}");
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
