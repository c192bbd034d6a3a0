//! The first page of the journal: the identity of the mount, the agreements of INIT, the reserved numbers, and the repeated requests.
//! Pure.
//!
//! Each part has a place and a CRC32C of its own, so that a store changes one of them as a whole or not at all.

use crate::checksum::{Checksum, ChecksumAlgorithm};

/// The first bytes of a journal, and the version of its format.
pub(super) const MAGIC: &[u8; 8] = b"mnts3jnl";
pub(super) const VERSION: u32 = 1;

/// Places of the parts in the page; each ends where the next begins.
pub(super) const MARKS_AT: u64 = 16;
pub(super) const AGREED_AT: u64 = 64;
pub(super) const AGAIN_AT: u64 = 128;
pub(super) const SHELVES_AT: u64 = 1024;
pub(super) const IDENTITY_AT: u64 = 2048;
/// The end of the page.
pub(super) const PAGE: u64 = 4096;

/// Bits of the byte that tells what was wished. Earlier releases left it 0.
const IS_NOTED: u8 = 1;
const MAPPED_DIRECT: u8 = 2;
const PASSTHROUGH: u8 = 4;

/// The most repeated requests whose repetitions the header counts; beyond it the oldest is dropped.
pub(super) const AGAIN_MAX: usize = 32;

/// The mount that a journal belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The bucket.
    pub bucket: String,
    /// The mounted part of the bucket.
    pub prefix: String,
    /// URL of the store, if it is not AWS.
    pub endpoint: String,
    /// The region that the first engine found.
    pub region: String,
    /// Whether the bucket stands in the path of the URL, as the first engine found.
    pub path_style: bool,
    /// Microseconds from 1970 at which the bucket was mounted: the time of its directories.
    pub mounted_us: u64,
}

/// The agreement of INIT with the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// The progress of the greeting.
    pub greeting: Greeting,
    /// The number of the file system, from Linux 6.17 on; 0 if it is unknown.
    pub connection: u64,
    /// Whether the kernel may read files of the disk cache by itself.
    pub passthrough: bool,
    /// The wish of the engine that answered INIT; `None` if it was of a release that did not note it.
    pub wished: Option<Wished>,
}

/// The part of INIT's answer that the mount's flags decide. The kernel may offer less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wished {
    /// Whether files that are read past the page cache can be mapped.
    pub mapped_direct: bool,
    /// Whether the kernel reads and writes files by itself.
    pub passthrough: bool,
}

/// The progress of the kernel's greeting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Greeting {
    /// INIT is not answered.
    #[default]
    Before,
    /// The answer to INIT was about to be written.
    Answering,
    /// INIT is answered.
    Done,
    /// The mount was taken down: a new engine mounts anew.
    Ended,
}

/// Upper bounds of the numbers that the kernel may know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Bound of inode numbers: all that the kernel knows are smaller.
    pub inodes: u64,
    /// Bound of the numbers of open files and directories.
    pub handles: u64,
}

/// Requests that were sent again: number, how often, and second of the last time from 1970.
pub(super) type Again = Vec<(u64, u32, u64)>;

pub(super) fn encode_marks(marks: Marks) -> Vec<u8> {
    summed(&[marks.inodes.to_le_bytes(), marks.handles.to_le_bytes()].concat())
}

pub(super) fn decode_marks(page: &[u8]) -> Option<Marks> {
    let body = checked(page, MARKS_AT, 16)?;
    let marks = Marks { inodes: word(body, 0)?, handles: word(body, 8)? };
    // Larger numbers would soon not fit.
    (marks.inodes > 1 && marks.inodes < 1 << 62 && marks.handles > 0 && marks.handles < 1 << 62)
        .then_some(marks)
}

pub(super) fn encode_agreed(agreed: Agreed) -> Vec<u8> {
    let greeting: u8 = match agreed.greeting {
        Greeting::Before => 0,
        Greeting::Answering => 1,
        Greeting::Done => 2,
        Greeting::Ended => 3,
    };
    let mut body = agreed.connection.to_le_bytes().to_vec();
    let wished = agreed.wished.map_or(0, |wished| {
        IS_NOTED
            | (u8::from(wished.mapped_direct) * MAPPED_DIRECT)
            | (u8::from(wished.passthrough) * PASSTHROUGH)
    });
    body.extend([greeting, agreed.passthrough.into(), wished, 0, 0, 0, 0, 0]);
    summed(&body)
}

pub(super) fn decode_agreed(page: &[u8]) -> Option<Agreed> {
    let body = checked(page, AGREED_AT, 16)?;
    let greeting = match body[8] {
        0 => Greeting::Before,
        1 => Greeting::Answering,
        2 => Greeting::Done,
        3 => Greeting::Ended,
        _ => return None,
    };
    let wished = (body[10] & IS_NOTED != 0).then_some(Wished {
        mapped_direct: body[10] & MAPPED_DIRECT != 0,
        passthrough: body[10] & PASSTHROUGH != 0,
    });
    Some(Agreed { greeting, connection: word(body, 0)?, passthrough: body[9] == 1, wished })
}

pub(super) fn encode_again(again: &[(u64, u32, u64)]) -> Vec<u8> {
    let mut body = Vec::with_capacity(AGAIN_MAX * 20);
    for (unique, count, second) in again.iter().take(AGAIN_MAX) {
        body.extend(unique.to_le_bytes());
        body.extend(count.to_le_bytes());
        body.extend(second.to_le_bytes());
    }
    body.resize(AGAIN_MAX * 20, 0);
    summed(&body)
}

/// Decodes the repeated requests. A torn or wrong part counts as empty.
pub(super) fn decode_again(page: &[u8]) -> Again {
    let Some(body) = checked(page, AGAIN_AT, AGAIN_MAX * 20) else { return Vec::new() };
    let entry = |bytes: &[u8]| {
        let count = u32::from_le_bytes(bytes[8..12].try_into().ok()?);
        Some((word(bytes, 0)?, count, word(bytes, 12)?)).filter(|_| count > 0)
    };
    body.chunks_exact(20).filter_map(entry).collect()
}

/// Encodes the identity. `None` if the identity has no room there, which no real bucket, prefix and URL exceed.
pub(super) fn encode_identity(identity: &Identity) -> Option<Vec<u8>> {
    let mut body = identity.mounted_us.to_le_bytes().to_vec();
    body.push(identity.path_style.into());
    for text in [&identity.bucket, &identity.prefix, &identity.endpoint, &identity.region] {
        body.extend(u16::try_from(text.len()).ok()?.to_le_bytes());
        body.extend(text.as_bytes());
    }
    let room = (PAGE - IDENTITY_AT) as usize - 4;
    (body.len() <= room).then(|| {
        body.resize(room, 0);
        summed(&body)
    })
}

pub(super) fn decode_identity(page: &[u8]) -> Option<Identity> {
    let body = checked(page, IDENTITY_AT, (PAGE - IDENTITY_AT) as usize - 4)?;
    let mut left = &body[9..];
    let mut text = || {
        let (len, rest) = left.split_at_checked(2)?;
        let (text, rest) = rest.split_at_checked(u16::from_le_bytes(len.try_into().ok()?).into())?;
        left = rest;
        String::from_utf8(text.to_vec()).ok()
    };
    let (bucket, prefix, endpoint, region) = (text()?, text()?, text()?, text()?);
    Some(Identity { bucket, prefix, endpoint, region, path_style: body[8] == 1, mounted_us: word(body, 0)? })
}

fn crc(body: &[u8]) -> u32 {
    Checksum::of(ChecksumAlgorithm::Crc32c, body).value as u32
}

fn summed(body: &[u8]) -> Vec<u8> {
    [&crc(body).to_le_bytes(), body].concat()
}

fn checked(page: &[u8], at: u64, len: usize) -> Option<&[u8]> {
    let part = page.get(at as usize..)?.get(..4 + len)?;
    let (sum, body) = part.split_at(4);
    (u32::from_le_bytes(sum.try_into().ok()?) == crc(body)).then_some(body)
}

fn word(body: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_header_lie_apart() {
        let end = |at: u64, bytes: Vec<u8>| at + bytes.len() as u64;
        assert!(end(MARKS_AT, encode_marks(Marks { inodes: 2, handles: 1 })) <= AGREED_AT);
        assert!(end(AGREED_AT, encode_agreed(Agreed::default())) <= AGAIN_AT);
        assert!(end(AGAIN_AT, encode_again(&[])) <= SHELVES_AT);
        assert_eq!(end(IDENTITY_AT, encode_identity(&Identity::default()).unwrap()), PAGE);
    }

    #[test]
    fn a_part_is_read_back_and_no_bit_of_it_may_differ() {
        let mut page = vec![0; PAGE as usize];
        let (marks, agreed) = (
            Marks { inodes: 70_000, handles: 5 },
            Agreed {
                greeting: Greeting::Answering,
                connection: 44,
                passthrough: true,
                wished: Some(Wished { mapped_direct: false, passthrough: true }),
            },
        );
        let identity = Identity {
            bucket: "b".into(),
            prefix: "p/".into(),
            region: "us-east-1".into(),
            path_style: true,
            mounted_us: 9,
            ..Identity::default()
        };
        let again = vec![(7, 2, 1000), (1 << 40, 1, 5)];
        let put = |page: &mut [u8], at: u64, part: Vec<u8>| {
            page[at as usize..][..part.len()].copy_from_slice(&part)
        };
        put(&mut page, MARKS_AT, encode_marks(marks));
        put(&mut page, AGREED_AT, encode_agreed(agreed));
        put(&mut page, AGAIN_AT, encode_again(&again));
        put(&mut page, IDENTITY_AT, encode_identity(&identity).unwrap());
        assert_eq!(decode_marks(&page), Some(marks));
        assert_eq!(decode_agreed(&page), Some(agreed));
        assert_eq!(decode_again(&page), again);
        assert_eq!(decode_identity(&page), Some(identity));
        for at in [MARKS_AT, AGREED_AT, AGAIN_AT, IDENTITY_AT] {
            page[at as usize + 5] ^= 4;
        }
        assert!(decode_marks(&page).is_none() && decode_agreed(&page).is_none());
        assert!(decode_again(&page).is_empty() && decode_identity(&page).is_none());
    }
}
