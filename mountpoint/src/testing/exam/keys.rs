//! Tests that any key that S3 allows comes back unchanged.

use std::collections::{BTreeMap, BTreeSet};

use super::Exam;
use crate::object::ObjectKey;

pub(super) async fn every_key_comes_back_as_it_went(exam: &Exam) {
    let mut stored = BTreeMap::new();
    for (salt, key) in exam.hostile.iter().enumerate() {
        if let Some(reason) = (exam.traits.refuses_key)(key) {
            eprintln!("SKIPPED: {}: key {:?}: {reason}", exam.traits.store, key.escape_debug().to_string());
            continue;
        }
        assert!(key.len() <= ObjectKey::LEN_MAX);
        let bytes = exam.bytes(salt as u64, 10 + salt);
        exam.put(&ObjectKey::new(key), &bytes).await;
        stored.insert(ObjectKey::new(key), bytes);
    }
    // All keys are stored before the first is read: one object may have taken another's place.
    let listed = exam.keys_under("").await;
    let mut unique = BTreeSet::new();
    for key in &listed {
        assert!(unique.insert(key), "{key} is listed twice");
        assert!(stored.contains_key(key), "{key} is listed, and nobody stored it");
    }
    for key in stored.keys() {
        assert!(unique.contains(key), "{key} is not listed");
    }
    for (key, bytes) in &stored {
        exam.assert_object(key, bytes).await;
    }
    for key in stored.keys() {
        exam.client.delete_object(key).await.unwrap_or_else(|error| panic!("delete {key}: {error}"));
        exam.assert_missing(key).await;
    }
    assert_eq!(exam.keys_under("").await, []);
}

pub(super) async fn twins_are_two_objects(exam: &Exam) {
    let pairs = [("e\u{301}", "\u{e9}"), ("Case", "case"), ("a b", "a+b"), ("x%2Fy", "x/y"), ("p/", "p//")];
    for (one, two) in pairs {
        let pair = [one, two].map(|name| exam.key(name));
        if let Some(reason) = pair.iter().find_map(|key| (exam.traits.refuses_key)(key.as_str())) {
            eprintln!("SKIPPED: {}: twins {one:?} and {two:?}: {reason}", exam.traits.store);
            continue;
        }
        for (salt, key) in pair.iter().enumerate() {
            exam.put(key, &exam.bytes(salt as u64, 10)).await;
        }
        for (salt, key) in pair.iter().enumerate() {
            exam.assert_object(key, &exam.bytes(salt as u64, 10)).await;
        }
        exam.client.delete_object(&pair[0]).await.expect("delete");
        exam.assert_missing(&pair[0]).await;
        exam.assert_object(&pair[1], &exam.bytes(1, 10)).await;
    }
}
