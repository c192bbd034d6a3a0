//! Any key S3 allows: stored, listed in order, read, deleted.

use testkit::hostile_keys;

use crate::client::Lab;

#[test]
fn hostile_keys_round_trip_through_put_list_get_and_delete() {
    let mut lab = Lab::new();
    let keys = hostile_keys();
    for key in &keys {
        lab.put(key, key.as_bytes());
    }
    let mut sorted = keys.clone();
    sorted.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    for page in [7, 1000] {
        assert_eq!(lab.list("", "", page).0, sorted, "pages of {page}");
    }
    lab.restart();
    assert_eq!(lab.list("", "", 1000).0, sorted, "after a restart");
    for key in &keys {
        assert_eq!(lab.get(key).ok().body, key.as_bytes(), "{key:?}");
    }
    let outside = std::fs::read_dir(lab.root.path()).unwrap().count();
    assert_eq!(outside, 2, "the bucket and the server's own folder");
    for key in &keys {
        lab.object("DELETE", key).send().ok();
    }
    assert!(lab.list("", "", 1000).0.is_empty());
    lab.bucket("DELETE").send().ok();
}

#[test]
fn a_file_and_a_folder_of_one_name_live_beside_each_other_in_either_order() {
    let mut lab = Lab::new();
    lab.put("first", b"file");
    lab.put("first/below", b"below");
    lab.put("second/below", b"below");
    lab.put("second", b"file");
    for _ in 0..2 {
        assert_eq!(lab.list("", "", 10).0, ["first", "first/below", "second", "second/below"]);
        for key in ["first", "second"] {
            assert_eq!(lab.get(key).ok().body, b"file");
            assert_eq!(lab.get(&format!("{key}/below")).ok().body, b"below");
        }
        lab.restart();
    }
    lab.object("DELETE", "first").send().ok();
    lab.put("first/below", b"new");
    assert_eq!(lab.get("first/below").ok().body, b"new");
    assert_eq!(lab.list("first", "", 10).0, ["first/below"]);
}

#[test]
fn a_key_of_no_bytes_or_too_many_is_refused() {
    let lab = Lab::new();
    lab.object("PUT", &"x".repeat(1025)).body(b"x").send().fails(400, "KeyTooLongError");
}

#[test]
fn keys_are_deleted_by_the_list_whatever_characters_they_have() {
    let lab = Lab::new();
    for key in ["a&b", " lead", "trail ", "x<y>", "plain"] {
        lab.put(key, b"1");
    }
    let body = "<Delete><Object><Key>a&amp;b</Key></Object><Object><Key> lead</Key></Object>\
                <Object><Key>trail </Key></Object><Object><Key>x&lt;y&gt;</Key></Object>\
                <Object><Key>absent</Key></Object></Delete>";
    let answer = lab.bucket("POST").query("delete", "").body(body.as_bytes()).send().ok();
    assert_eq!(answer.all("Key").len(), 5, "{}", answer.text());
    assert_eq!(lab.list("", "", 10).0, ["plain"]);
}
