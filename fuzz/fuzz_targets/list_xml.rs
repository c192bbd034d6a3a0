//! A listing as a hostile or broken store may send it. Whatever comes: no panic, no more than was sent, and nothing
//! that was not asked for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mountpoint::s3::{ListObjects, fuzzing::list_page};

fuzz_target!(|input: (String, bool, Vec<u8>)| {
    let (prefix, delimited, document) = input;
    let request = ListObjects { prefix, delimited, max_keys: 1000, ..ListObjects::default() };
    let Ok(page) = list_page(&document, &request) else { return };
    assert!(page.objects.len() + page.common_prefixes.len() <= document.len(), "more entries than bytes");
    for object in &page.objects {
        assert!(object.key.as_str().starts_with(&request.prefix), "a key outside of the prefix");
    }
    for prefix in &page.common_prefixes {
        assert!(prefix.starts_with(&request.prefix), "a common prefix outside of the prefix");
    }
    assert_ne!(page.next_token.as_deref(), Some(""), "a token that leads back to the first page");
    // The same document says the same again.
    assert_eq!(list_page(&document, &request).as_ref(), Ok(&page));
});
