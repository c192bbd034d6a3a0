//! A bit that flips between the engine and its store, over plain HTTP: TCP's own checksum missed it.

use std::fs::{self, File};
use std::io::{self, Read as _};

use s3server::{Effect, Fault};
use testkit::proxy::{Proxy, Weather};

use super::cache::open_direct;
use crate::common::{Pattern, Setup, Store, TestMount};

const MIB: usize = 1 << 20;

fn write(mount: &TestMount, name: &str, len: usize) -> io::Result<()> {
    let mut file = File::create_new(mount.path(name))?;
    Pattern(len as u64).write_to(&mut file, len as u64, MIB)?;
    file.sync_all()
}

#[test]
fn a_bit_that_flips_in_what_is_written_is_refused_by_the_store_and_sent_again() {
    let store = Store::new();
    let proxy = Proxy::start(store.address());
    let Some(mount) = TestMount::of(&store, &Setup::new(&[]).through(&proxy)) else { return };
    for (operation, len, at) in [("PutObject", MIB, 500_000), ("UploadPart", 20 * MIB, 3_000_000)] {
        store.requests().reset();
        let before = proxy.counts().bits_flipped;
        proxy.set(Weather::clear().flip_request_byte(at));
        write(&mount, operation, len).unwrap_or_else(|error| panic!("{operation}: {error}"));
        assert_eq!(proxy.counts().bits_flipped, before + 1, "{operation}");
        let sent = store.requests().count(operation);
        let parts = if operation == "UploadPart" { len.div_ceil(8 * MIB) } else { 1 };
        assert_eq!(sent, parts as u64 + 1, "{operation}: one was sent again");
        let stored = store.get(operation).unwrap();
        assert!(
            stored.len() == len && Pattern(len as u64).is(0, &stored),
            "{operation}: wrong bytes were stored"
        );
    }
    assert_eq!(store.pending_uploads(), 0);
}

/// What `docs/durability.md` says of plain HTTP: no checksum covers a range, so such a byte is not noticed. It is that byte alone, and
/// nothing keeps it.
#[test]
fn a_bit_that_flips_in_an_answer_over_plain_http_is_one_wrong_byte_and_the_next_read_is_right() {
    const LEN: usize = 3 * MIB;
    let store = Store::new();
    let bytes = Pattern(1).bytes(0, LEN);
    store.plant("file", &bytes);
    let Some(mount) = TestMount::of(&store, &Setup::new(&[])) else { return };
    // A byte of the first answer, whose length depends on how far is read ahead: behind its end nothing flips.
    store.faults().add(Fault::on("GetObject", Effect::FlipBit { at_byte: 77_777 }).nth(1));
    let read = fs::read(mount.path("file")).unwrap();
    assert_eq!(store.faults().fired(), 1);
    let wrong: Vec<_> = (0..LEN).filter(|&at| read[at] != bytes[at]).collect();
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert_eq!((read[wrong[0]] ^ bytes[wrong[0]]).count_ones(), 1);
    // The kernel keeps what it was given; the engine does not.
    let mut again = Vec::new();
    open_direct(&mount.path("file")).read_to_end(&mut again).unwrap();
    assert!(again == bytes, "it was on the way, not in the store");
}
