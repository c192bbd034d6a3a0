//! The slots of a journal, with whatever a holder passed: what is believed hangs together.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mountpoint::outlive::fuzzing::records;

fuzz_target!(|input: (u64, u64, Vec<Vec<u8>>)| {
    let (inodes, handles, slots) = input;
    records(slots, inodes, handles);
});
