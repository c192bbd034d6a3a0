//! The fate of a volume's data at its deletion. Enters: the value of a StorageClass's parameter, of a bucket's tag or of an attribute of
//! the PersistentVolume. Leaves: the fate, and its text. Pure.

use std::fmt;

/// The fate of a volume's data when the volume is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDelete {
    /// The bucket or the prefix stays, and the volume is deleted. As in release 2.2.
    #[default]
    Keep,
    /// The call fails until the data is gone.
    Fail,
    /// The data is deleted, too: all versions, delete markers and multipart uploads in progress.
    Purge,
}

impl OnDelete {
    /// Parses a parameter, a tag or an attribute.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Keep, Self::Fail, Self::Purge].into_iter().find(|it| it.to_string() == text)
    }
}

impl fmt::Display for OnDelete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Keep => "keep",
            Self::Fail => "fail",
            Self::Purge => "purge",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fate_is_read_as_it_was_written_and_nothing_else_is_one() {
        for fate in [OnDelete::Keep, OnDelete::Fail, OnDelete::Purge] {
            assert_eq!(OnDelete::parse(&fate.to_string()), Some(fate));
        }
        assert_eq!(["", "Keep", "delete"].map(OnDelete::parse), [None; 3]);
    }
}
