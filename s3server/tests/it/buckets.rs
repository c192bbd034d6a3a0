//! Buckets as a whole: made, tagged, emptied, removed.

use crate::client::Lab;

const TAGS: &str = "<Tagging><TagSet><Tag><Key>a.b/c:d</Key><Value>e f</Value></Tag><Tag><Key>z</Key><Value></Value></Tag>\
    </TagSet></Tagging>";

#[test]
fn a_bucket_that_is_there_is_yours_already_and_goes_only_when_it_is_empty() {
    let lab = Lab::new();
    lab.request("PUT", "/another").send().ok();
    lab.request("PUT", "/another").send().fails(409, "BucketAlreadyOwnedByYou");
    lab.put("key", b"x");
    lab.bucket("DELETE").send().fails(409, "BucketNotEmpty");
    lab.object("DELETE", "key").send().ok();
    lab.bucket("DELETE").send().ok();
    lab.bucket("DELETE").send().fails(404, "NoSuchBucket");
    assert_eq!(lab.bucket("HEAD").send().status, 404);
}

#[test]
fn tags_stay_with_their_bucket_and_go_with_it() {
    let mut lab = Lab::new();
    lab.bucket("GET").query("tagging", "").send().fails(404, "NoSuchTagSet");
    lab.bucket("PUT").query("tagging", "").body(TAGS.as_bytes()).send().ok();
    lab.restart();
    let found = lab.bucket("GET").query("tagging", "").send().ok();
    assert_eq!(found.all("Key"), ["a.b/c:d", "z"]);
    assert_eq!(found.first("Value"), "e f");
    lab.bucket("DELETE").query("tagging", "").send().ok();
    lab.bucket("GET").query("tagging", "").send().fails(404, "NoSuchTagSet");
    lab.bucket("PUT").query("tagging", "").body(TAGS.as_bytes()).send().ok();
    lab.bucket("DELETE").send().ok();
    lab.bucket("GET").query("tagging", "").send().fails(404, "NoSuchBucket");
    lab.bucket("PUT").send().ok();
    lab.bucket("GET").query("tagging", "").send().fails(404, "NoSuchTagSet");
}

#[test]
fn tags_that_s3_does_not_take_are_refused() {
    let lab = Lab::new();
    let one = |key: &str| format!("<Tag><Key>{key}</Key><Value>v</Value></Tag>");
    for tags in [one("a&amp;b"), one("aws:x"), one("a").repeat(2), one(&"k".repeat(129))] {
        let document = format!("<Tagging><TagSet>{tags}</TagSet></Tagging>");
        lab.bucket("PUT").query("tagging", "").body(document.as_bytes()).send().fails(400, "InvalidTag");
    }
}

#[test]
fn without_tags_the_operations_on_them_are_not_implemented() {
    let lab = Lab::with(|config| s3server::Config { bucket_tagging: false, ..config });
    lab.bucket("GET").query("tagging", "").send().fails(501, "NotImplemented");
    lab.bucket("PUT").query("tagging", "").body(TAGS.as_bytes()).send().fails(501, "NotImplemented");
    lab.put("key", b"x");
}

#[test]
fn every_object_is_listed_as_one_version_page_by_page() {
    let lab = Lab::new();
    let keys = ["a", "b c", "d/e", "d/f", "g"];
    keys.iter().for_each(|key| drop(lab.put(key, b"x")));
    let (mut found, mut marker) = (Vec::new(), String::new());
    loop {
        let page = lab.bucket("GET").query("versions", "").query("max-keys", "2");
        let page = page.query("key-marker", &marker).send().ok();
        found.extend(page.all("Key"));
        assert!(page.all("VersionId").iter().all(|id| id == "null"));
        if page.first("IsTruncated") == "false" {
            break;
        }
        marker = page.first("NextKeyMarker");
    }
    assert_eq!(found, keys);
    let below = lab.bucket("GET").query("versions", "").query("prefix", "d/").send().ok();
    assert_eq!(below.all("Key"), ["d/e", "d/f"]);
    lab.object("DELETE", "d/e").query("versionId", "null").send().ok();
    lab.get("d/e").fails(404, "NoSuchKey");
}
