//! The slots of a journal with any content from a holder: the accepted records are consistent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mountpoint::outlive::fuzzing::records;

fuzz_target!(|input: (u64, u64, Vec<Vec<u8>>)| {
    let (inodes, handles, slots) = input;
    records(slots, inodes, handles);
});
