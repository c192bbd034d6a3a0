//! A listing, or a document about uploads, from a hostile or broken store: no panic, no more entries than were sent, and no entry
//! outside the request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mountpoint::s3::ListObjects;
use mountpoint::s3::fuzzing::{completed, list_page, upload_id, uploads};

fuzz_target!(|input: (String, bool, Vec<u8>)| {
    let (prefix, delimited, document) = input;
    about_uploads(&document);
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

fn about_uploads(document: &[u8]) {
    assert_ne!(upload_id(document).as_deref(), Ok(""), "an upload without a name");
    if let Ok(Some(stored)) = completed(document) {
        assert!(!stored.etag.as_str().is_empty(), "an object without a version");
    }
    if let Ok(uploads) = uploads(document) {
        assert!(uploads.len() <= document.len(), "more uploads than bytes");
        assert!(uploads.iter().all(|u| !u.upload.id.is_empty()), "an upload without a name");
    }
}
