//! A key that any user may have put into the bucket. The mount shows the key under a path that leads back to it, or not at all; no
//! component of that path leads elsewhere.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mountpoint::listing::fuzzing::shown;

fuzz_target!(|input: (String, String)| {
    let (mut prefix, key) = input;
    if !prefix.is_empty() {
        prefix.push('/');
    }
    // Down from the prefix as a mount would, listing by listing.
    let mut directory = prefix;
    while let Some((name, is_directory)) = shown(&directory, &key) {
        assert!(!name.is_empty() && name != "." && name != "..", "a name that leads elsewhere: {name:?}");
        assert!(!name.contains(['/', '\0']) && name.len() <= 255, "no name: {name:?}");
        directory.push_str(name);
        if !is_directory {
            assert_eq!(directory, key, "a path that leads to another key");
            return;
        }
        directory.push('/');
        assert!(key.starts_with(&directory), "a directory that the key is not in");
    }
});
