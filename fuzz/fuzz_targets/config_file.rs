//! `~/.aws/config` and `~/.aws/credentials` with any content: every value that a mount takes stands in the file, and a sound file is read
//! completely.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mountpoint::s3::fuzzing::settings;

/// Beginnings that lead past the first line.
const BEGINNINGS: [&str; 5] = [
    "",
    "[default]\nendpoint_url = ",
    "[profile own]\nuse_fips_endpoint = true\nuse_dualstack_endpoint = ",
    "[default]\nservices = mine\n[services mine]\ns3 =\n  endpoint_url = ",
    "[default]\nignore_configured_endpoint_urls = true\nendpoint_url = http://a\n",
];

/// The letters of a word in a URL.
const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-";

fuzz_target!(|input: (u8, Option<String>, Vec<u8>, Vec<u8>, Vec<u8>, bool)| {
    let (beginning, name, config, credentials, word, fips) = input;
    let beginning = BEGINNINGS[usize::from(beginning) % BEGINNINGS.len()];
    let config = [beginning.as_bytes(), &config].concat();
    let (url, uses_fips, uses_dual_stack) = settings(&config, &credentials, name.as_deref());
    let said = [config, b"\n".to_vec(), credentials].concat();
    let said = String::from_utf8_lossy(&said).to_lowercase();
    if let Some(url) = url {
        assert!(said.contains("endpoint_url"), "an endpoint that no file names: {url:?}");
        for line in url.lines() {
            assert!(said.contains(line.trim().to_lowercase().as_str()), "{line:?} stands in no file");
        }
    }
    assert!(!uses_fips || said.contains("use_fips_endpoint"), "nobody asked for FIPS");
    assert!(!uses_dual_stack || said.contains("use_dualstack_endpoint"), "nobody asked for dual stack");

    let word: String = word.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % 64])).collect();
    let url = format!("https://{word}:9000/x");
    let sound = format!(
        "[default]\nregion = us-east-1\n[profile p-{word}]\nendpoint_url = {url}\nuse_fips_endpoint={fips}\n"
    );
    let named = format!("p-{word}");
    let read = settings(sound.as_bytes(), b"[default]\naws_access_key_id = A\n", Some(&named));
    assert_eq!(read, (Some(url), fips, false));
});
