//! A sidecar of the cache, damaged by a disk, a crash or another program: the cache believes only what its bytes say, and nothing behind
//! the object's end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mountpoint::cache::fuzzing::{sectors, sidecar};

fuzz_target!(|input: (u64, i64, [u8; 3], u8, Vec<u8>)| {
    let (size, modified, lengths, flags, rest) = input;
    sectors(&rest);
    sectors(&sidecar(size, modified, lengths, flags, &rest));
});
