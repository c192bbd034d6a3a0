//! A sidecar of the cache, damaged by a disk, a crash or another program: the cache believes only what its bytes say, and nothing behind
//! the object's end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mountpoint::cache::fuzzing::{seal, sectors};

/// Magic, version 2, blocks of 1 MiB.
const BEGINNING: &[u8] = b"MS3CACHE\x02\0\0\0\0\0\x10\0";

fuzz_target!(|input: (u64, [u8; 3], Vec<u8>)| {
    let (size, lengths, rest) = input;
    sectors(&rest);
    let lengths = lengths.map(|len| u16::from(len).to_le_bytes()).concat();
    let mut sidecar = [BEGINNING, &size.to_le_bytes(), &lengths, &[0; 2], &rest].concat();
    seal(&mut sidecar);
    sectors(&sidecar);
});
