//! The characters in the names of a directory, and positions between two names. Pure.
//!
//! The code reads a name as a number: each place where characters vary is a digit, and the characters seen there are its values, in their
//! order. This fits counters, dates and random digits. For other names the positions are less even, but still correct.

use std::borrow::Cow;
use std::fmt;

/// Characters seen in names, by their place in the name.
#[derive(Clone)]
pub(crate) struct Letters {
    places: [u128; Self::PLACES],
}

impl Letters {
    /// Most places of a name that count.
    const PLACES: usize = 64;
    /// Most digits in the measure of a distance.
    const DIGITS: usize = 8;

    pub(crate) fn new() -> Self {
        Self { places: [0; Self::PLACES] }
    }

    pub(crate) fn learn(&mut self, name: &str) {
        for (place, byte) in self.places.iter_mut().zip(name.bytes()) {
            if byte.is_ascii_graphic() && byte != b'/' {
                *place |= 1 << byte;
            }
        }
    }

    /// The first place at which names differ.
    pub(crate) fn first_varying(&self) -> Option<usize> {
        self.places.iter().position(|place| place.count_ones() > 1)
    }

    /// All characters at places where names differ: characters that vary at the end of names will vary at earlier places later.
    fn all(&self) -> Vec<u8> {
        let varying = self.places.iter().filter(|place| place.count_ones() > 1);
        let all = varying.fold(0, |all, place| all | place);
        (0..128).filter(|byte| all & (1 << byte) != 0).collect()
    }

    /// A name behind all names that have this name's beginning, up to a place where names differ.
    pub(crate) fn behind(&self, name: &str, place: usize) -> Option<String> {
        let next = char::from(self.all().last()? + 1);
        let begin = name.get(..place).filter(|_| next.is_ascii_graphic())?;
        Some(format!("{begin}{next}"))
    }

    /// The end of the names behind `last`. The end is `until`; or, if `until` differs from `last` at a place where names do not vary, the
    /// end of all names with the common beginning.
    pub(crate) fn end<'a>(&self, last: &str, until: &'a str) -> Cow<'a, str> {
        let Some(place) = self.first_varying() else { return until.into() };
        let same = common([last, until, until]);
        let end = self
            .behind(last, place)
            .filter(|end| same < place && last < end.as_str() && end.as_str() < until);
        end.map_or_else(|| until.into(), Cow::from)
    }

    /// The distances from `from` to `at` and from `from` to `until`, in one measure.
    pub(crate) fn way(&self, from: &str, at: &str, until: &str) -> Option<(f64, f64)> {
        let letters = self.all();
        let same = common([from, at, until]);
        let value = |name: &str| value(&letters, &name.as_bytes()[same.min(name.len())..]);
        let (from, at, until) = (value(from), value(at), value(until));
        (until > from).then(|| ((at - from).max(0.0), until - from))
    }

    /// Names at even distances between two names: at most `count`, none of them inside a directory.
    pub(crate) fn between(&self, low: &str, high: &str, count: usize) -> Vec<String> {
        let letters = self.all();
        let same = common([low, high, high]);
        if letters.len() < 2 || !low.is_char_boundary(same) {
            return Vec::new();
        }
        let value = |name: &str| value(&letters, &name.as_bytes()[same.min(name.len())..]);
        let (begin, end) = (value(low), value(high));
        let mut found: Vec<String> = Vec::new();
        for i in 1..=count {
            let at = begin + (end - begin) * i as f64 / (count + 1) as f64;
            let step = (end - begin) / (count + 1) as f64;
            let name = format!("{}{}", &low[..same], digits(&letters, at, step));
            if *name > *low && *name < *high && found.last().is_none_or(|last| *last < name) {
                found.push(name);
            }
        }
        found
    }
}

/// Length of the names' common beginning.
fn common(names: [&str; 3]) -> usize {
    let [a, b, c] = names.map(str::as_bytes);
    a.iter().zip(b).zip(c).take_while(|((a, b), c)| a == b && b == c).count()
}

/// A name as a fraction: its first character weighs most. A character that was not seen counts as between its neighbours.
fn value(letters: &[u8], name: &[u8]) -> f64 {
    let base = letters.len() as f64 + 1.0;
    let mut worth = 1.0;
    name.iter().take(Letters::DIGITS).fold(0.0, |value, byte| {
        worth /= base;
        value + worth * (letters.partition_point(|letter| letter < byte) as f64 + 1.0)
    })
}

/// The shortest name near a fraction, within `step`.
fn digits(letters: &[u8], mut value: f64, step: f64) -> String {
    let base = letters.len() as f64 + 1.0;
    let (mut name, mut worth) = (String::new(), 1.0);
    while name.len() < Letters::DIGITS && (name.is_empty() || worth > step * 1.001) {
        worth /= base;
        let digit = ((value / worth + 1e-6) as usize).clamp(1, letters.len());
        value = (value - digit as f64 * worth).max(0.0);
        name.push(char::from(letters[digit - 1]));
    }
    name
}

impl fmt::Debug for Letters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Letters").field(&String::from_utf8_lossy(&self.all())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(names: &[&str]) -> Letters {
        let mut letters = Letters::new();
        names.iter().for_each(|name| letters.learn(name));
        letters
    }

    #[test]
    fn names_end_where_the_part_that_all_begin_with_does() {
        let letters = letters(&["img-0199.jpg", "img-0287.jpg"]);
        assert_eq!(letters.end("img-0234.jpg", "img."), "img-0:");
        assert_eq!(letters.end("img-0234.jpg", "img-03"), "img-03");
        assert_eq!(letters.end("img-9999.jpg", "img."), "img-9:");
    }

    #[test]
    fn what_all_names_have_in_common_says_nothing() {
        let counter = letters(&["img-0000.jpg", "img-0379.jpg", "img-1825.jpg", "img-1946.jpg"]);
        assert_eq!(counter.first_varying(), Some(4));
        assert_eq!(format!("{counter:?}"), "Letters(\"01234567 89\")".replace(' ', ""));
    }

    #[test]
    fn places_between_two_names_are_even_and_in_order() {
        let hex = letters(&["0123456789abcdef", "fedcba9876543210"]);
        assert_eq!(hex.between("0", "8", 7), ["1", "2", "3", "4", "5", "6", "7"]);
        let finer = hex.between("00", "01", 3);
        assert!(
            finer.len() == 3 && finer.is_sorted() && finer.iter().all(|name| name.starts_with("00")),
            "{finer:?}"
        );
        assert!(hex.between("0", "0", 3).is_empty() && hex.between("8", "0", 3).is_empty());
    }

    #[test]
    fn the_way_through_a_counter_is_about_as_far_as_its_numbers_say() {
        let counter = letters(&["n0123", "n4567", "n8901"]);
        let (done, all) = counter.way("n0", "n25", "n5").unwrap();
        assert!((0.4..0.6).contains(&(done / all)), "{done} of {all}");
        assert_eq!(counter.way("n5", "n5", "n5"), None);
    }

    proptest::proptest! {
        #[test]
        fn whatever_names_there_are_places_lie_strictly_between(
            names in proptest::collection::vec("\\PC{0,12}", 0..8), low in "\\PC{0,12}", high in "\\PC{0,12}", count in 0usize..20
        ) {
            let letters = letters(&names.iter().map(String::as_str).collect::<Vec<_>>());
            let places = letters.between(&low, &high, count);
            proptest::prop_assert!(places.len() <= count && places.is_sorted());
            proptest::prop_assert!(places.iter().all(|place| low < *place && *place < high && !place.contains('/')) || low.contains('/'));
            let _ = letters.way(&low, &high, &high);
        }
    }
}
