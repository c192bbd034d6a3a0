//! `mount-s3-ctl warm`: the disk cache has the bytes afterwards, and a second run makes no request to the store.

use std::fs;

use crate::common::{Pattern, Store, until};
use crate::{ctl, end, mount, valid};

const LEN: usize = (2 << 20) + 999;

#[test]
fn warm_fills_the_cache_and_goes_on_where_it_stopped() {
    let (store, here, cache) = (Store::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["a/1", "a/deep/2", "b"] {
        store.plant(name, &Pattern(1).bytes(0, LEN));
    }
    let options = ["--cache", cache.path().to_str().unwrap(), "--max-cache-size", "64"];
    let Some(mount) = mount(&store, here.path(), &options) else { return };
    // The directory shows as mounted a moment before the socket is there.
    let dir = mount.dir().to_str().unwrap();
    until("it can be asked", || super::ctl::is_served(here.path(), dir));
    // The state of an earlier run that ended in the middle.
    let (code, out, error) = end(&mut ctl(here.path(), &["warm", mount.path("a/1").to_str().unwrap()]));
    assert_eq!((code, out.as_str()), (Some(0), "1 files with 2.00 MiB were read\n"), "{error}");
    let gets = |words: &[&str]| {
        store.requests().reset();
        let (code, out, error) = end(&mut ctl(here.path(), words));
        assert_eq!(code, Some(0), "{out}{error}");
        store.requests().count("GetObject")
    };
    let (a, b) = (mount.path("a"), mount.path("b"));
    let all = ["warm", a.to_str().unwrap(), b.to_str().unwrap()];
    store.requests().reset();
    let (first, second) = (gets(&all), gets(&all));
    assert!(first > 0, "two files were not there yet");
    assert_eq!(second, 0, "all is in the cache");
    store.requests().reset();
    for name in ["a/1", "a/deep/2", "b"] {
        let bytes = fs::read(mount.path(name)).unwrap();
        assert!(bytes.len() == LEN && Pattern(1).is(0, &bytes), "{name}");
    }
    assert_eq!(store.requests().count("GetObject"), 0);
    let missing = mount.path("missing");
    let words = ["warm", "--json", a.to_str().unwrap(), missing.to_str().unwrap()];
    let (code, out, error) = end(&mut ctl(here.path(), &words));
    assert_eq!((code, error.as_str()), (Some(1), ""));
    let report = serde_json::from_str(&out).unwrap();
    valid("warm", &report);
    assert_eq!((&report["files"], &report["bytes"]), (&2.into(), &(2 * LEN).into()));
    assert!(report["failed"][0].as_str().unwrap().contains("missing"), "{report}");
}

#[test]
fn warm_says_what_it_cannot_do() {
    let (store, here) = (Store::new(), tempfile::tempdir().unwrap());
    store.plant("file", &[1]);
    let Some(mount) = mount(&store, here.path(), &[]) else { return };
    let (mut code, mut error) = (None, String::new());
    // A mount on a busy machine may take longer than it is given.
    until("it answers", || {
        (code, _, error) = end(&mut ctl(here.path(), &["warm", mount.dir().to_str().unwrap()]));
        !error.contains("does not answer")
    });
    assert_eq!(code, Some(1));
    assert!(error.contains("has no disk cache") && error.contains("--cache DIRECTORY"), "{error}");
    let (code, _, error) = end(&mut ctl(here.path(), &["warm", "/etc/hostname"]));
    assert_eq!(code, Some(1));
    assert!(error.contains("/etc/hostname is in no mount"), "{error}");
}
