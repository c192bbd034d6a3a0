//! An amount of CPU or memory in Kubernetes' notation. Enters: text such as `100m`, `0.5`, `256Mi`, `1Gi`. Leaves: a number for
//! calculations, and text again.
//!
//! Nothing here decides which amounts make sense.

/// An amount of CPUs or of bytes, in thousandths, rounded up; never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    milli: u128,
}

/// Most digits of a number, and of its exponent; a longer text is refused. The API server accepts fewer.
const DIGITS_MAX: usize = 24;
/// The suffixes and their values: a power of 10, or of 1024.
const SUFFIXES: [(&str, Scale); 16] = [
    ("", Scale::Ten(0)),
    ("n", Scale::Ten(-9)),
    ("u", Scale::Ten(-6)),
    ("m", Scale::Ten(-3)),
    ("k", Scale::Ten(3)),
    ("M", Scale::Ten(6)),
    ("G", Scale::Ten(9)),
    ("T", Scale::Ten(12)),
    ("P", Scale::Ten(15)),
    ("E", Scale::Ten(18)),
    ("Ki", Scale::Kibi(1)),
    ("Mi", Scale::Kibi(2)),
    ("Gi", Scale::Kibi(3)),
    ("Ti", Scale::Kibi(4)),
    ("Pi", Scale::Kibi(5)),
    ("Ei", Scale::Kibi(6)),
];

#[derive(Clone, Copy)]
enum Scale {
    Ten(i32),
    Kibi(u32),
}

impl Quantity {
    /// A number of CPUs or bytes.
    #[must_use]
    pub const fn of(units: u64) -> Self {
        Self { milli: units as u128 * 1000 }
    }

    /// A number of thousandths of a CPU.
    #[must_use]
    pub const fn of_milli(milli: u64) -> Self {
        Self { milli: milli as u128 }
    }

    /// Parses digits with at most one point, then a suffix or an exponent; `None` for other text, and for more than 2^64 - 1 units.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = [whole, fraction].concat();
        if digits.is_empty() || digits.len() > DIGITS_MAX || fraction.contains('.') {
            return None;
        }
        let digits: u128 = digits.parse().ok()?;
        let scale = SUFFIXES.iter().find(|(known, _)| *known == suffix).map(|(_, scale)| *scale);
        let scale = scale.or_else(|| exponent(suffix).map(Scale::Ten))?;
        // The result is in thousandths.
        let (times, ten) = match scale {
            Scale::Ten(power) => (1, power + 3),
            Scale::Kibi(power) => (1024_u128.checked_pow(power)?, 3),
        };
        let ten = ten - i32::try_from(fraction.len()).ok()?;
        let power = 10_u128.checked_pow(ten.unsigned_abs())?;
        let product = digits.checked_mul(times)?;
        let milli = if ten < 0 { product.div_ceil(power) } else { product.checked_mul(power)? };
        (milli <= u128::from(u64::MAX) * 1000).then_some(Self { milli })
    }

    /// Whole bytes, rounded up.
    #[must_use]
    pub fn bytes(self) -> u64 {
        u64::try_from(self.milli.div_ceil(1000)).unwrap_or(u64::MAX)
    }

    /// This share of the quantity, in per cent, rounded up to a thousandth.
    #[must_use]
    pub fn percent(self, percent: u32) -> Self {
        Self { milli: (self.milli * u128::from(percent)).div_ceil(100) }
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { milli: self.milli + other.milli }
    }

    /// The quantity written as an amount of CPU: `250m`.
    #[must_use]
    pub fn as_cpu(self) -> String {
        format!("{}m", self.milli)
    }

    /// The quantity written as an amount of memory: `256Mi`, or bytes.
    #[must_use]
    pub fn as_memory(self) -> String {
        let bytes = self.bytes();
        if bytes > 0 && bytes.is_multiple_of(1 << 20) {
            format!("{}Mi", bytes >> 20)
        } else {
            bytes.to_string()
        }
    }
}

fn exponent(suffix: &str) -> Option<i32> {
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let good = !digits.is_empty() && digits.len() <= 3 && digits.bytes().all(|b| b.is_ascii_digit());
    good.then(|| exponent.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_what_kubernetes_says_it_is() {
        let thousandths = |text: &str| Quantity::parse(text).map(|it| it.milli);
        let rows: [(&str, u128); 14] = [
            ("1", 1000),
            ("0.5", 500),
            ("100m", 100),
            ("1u", 1),
            ("1500u", 2),
            ("256Mi", 268_435_456_000),
            ("1.5Ki", 1_536_000),
            ("1k", 1_000_000),
            ("1e3", 1_000_000),
            ("1E-3", 1),
            ("1E", 1_000_000_000_000_000_000_000),
            (".5", 500),
            ("2.", 2000),
            ("0", 0),
        ];
        for (text, milli) in rows {
            assert_eq!(thousandths(text), Some(milli), "{text}");
        }
    }

    #[test]
    fn what_is_none_is_refused_and_so_is_more_than_anybody_has() {
        let none = ["", "Mi", "1.2.3", "-1", "1 Gi", "1GiB", "1e", "a", ".", "1mi", "1e400", "16Ei", "1e99"];
        for text in none.into_iter().chain(["1".repeat(25).as_str()]) {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_written_reads_the_same() {
        for text in ["250m", "1500m"] {
            assert_eq!(Quantity::parse(text).unwrap().as_cpu(), text);
        }
        for text in ["256Mi", "1000", "0"] {
            assert_eq!(Quantity::parse(text).unwrap().as_memory(), text);
        }
        assert_eq!(Quantity::parse("1Gi").unwrap().percent(25).as_memory(), "256Mi");
        assert_eq!(Quantity::of_milli(10).plus(Quantity::of(1)).as_cpu(), "1010m");
    }
}
