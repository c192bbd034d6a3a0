//! Mounts through a proxy: the store's name means nothing here, and only the proxy knows the way.

use std::fs;

use crate::common::{Setup, Store, Tap, TestMount, command, is_mounted};

const NOBODY: &str = "http://store.invalid:9000";

#[test]
fn a_store_behind_an_http_proxy_is_mounted_read_and_written() {
    let store = Store::new();
    store.plant("in", b"1");
    // The proxy passes requests with whole URLs on to the store; servers must accept whole URLs.
    let proxy = Tap::to(&store);
    for name in ["HTTP_PROXY", "http_proxy"] {
        let address = proxy.endpoint().replace("http://", "http://me:p%40ss@");
        let setup = Setup { endpoint: Some(NOBODY.into()), ..Setup::new(&["--allow-overwrite"]) };
        let setup = setup.env(name, &address).env("NO_PROXY", "example.com");
        let Some(mount) = TestMount::of(&store, &setup) else { return };
        assert_eq!(fs::read(mount.path("in")).unwrap(), b"1");
        fs::write(mount.path("out"), name).unwrap();
        drop(mount);
        assert_eq!(store.get("out").unwrap(), name.as_bytes());
    }
    for begin in ["GET http://store.invalid:9000/bucket?", "PUT http://store.invalid:9000/bucket/out "] {
        let heads = proxy.asked(begin);
        assert!(!heads.is_empty(), "{begin}");
        for head in heads {
            assert!(head.contains("proxy-authorization: Basic bWU6cEBzcw=="), "{head}");
            assert!(head.contains("host: store.invalid:9000"), "{head}");
        }
    }
}

#[test]
fn a_host_of_no_proxy_is_asked_directly() {
    let store = Store::new();
    store.plant("in", b"1");
    // Nothing listens on port 1.
    for env in [
        [("HTTP_PROXY", "http://127.0.0.1:1"), ("NO_PROXY", "127.0.0.0/8")],
        [("HTTP_PROXY", ""), ("NO_PROXY", "")],
    ] {
        let setup = env.iter().fold(Setup::new(&[]), |setup, (name, value)| setup.env(name, value));
        let Some(mount) = TestMount::of(&store, &setup) else { return };
        assert_eq!(fs::read(mount.path("in")).unwrap(), b"1");
    }
}

#[test]
fn a_proxy_of_another_kind_is_refused_at_the_start_without_its_password() {
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    for (name, proxy) in [
        ("HTTP_PROXY", "https://me:hidden@proxy.example.com:3128"),
        ("HTTPS_PROXY", "https://me:hidden@proxy.example.com"),
        ("HTTP_PROXY", "socks5://me:hidden@proxy.example.com:1080"),
        ("HTTPS_PROXY", "socks5h://proxy.example.com"),
        ("http_proxy", "socks4://proxy.example.com"),
        ("https_proxy", "not a proxy"),
    ] {
        let setup = Setup::new(&[]).env(name, proxy);
        let ended = command(&store, dir.path(), &setup).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{name}={proxy}: {said}");
        assert_eq!(said.trim().lines().count(), 1, "one clear line: {said}");
        let words = [name.to_uppercase().as_str(), "http://"].map(str::to_owned);
        assert!(words.iter().all(|word| said.contains(word.as_str())), "{name}={proxy}: {said}");
        let log = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(!said.contains("hidden") && !log.contains("hidden"), "{said}{log}");
        assert!(!is_mounted(dir.path()));
    }
}
