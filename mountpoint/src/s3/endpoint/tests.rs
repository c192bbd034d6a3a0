//! The URL and the scope of signatures, by hand and as the SDK has them.

use super::*;
use crate::s3::url::without_password;

fn endpoint(bucket: &str, url: Option<&str>) -> Endpoint {
    let config = Config { bucket: bucket.into(), endpoint_url: url.map(Into::into), ..Config::default() };
    Endpoint::new(&config, "eu-west-3").unwrap()
}

#[test]
fn the_bucket_stands_in_the_host_where_dns_and_certificates_allow_it() {
    for (bucket, url, host, path) in [
        ("my-bucket", None, "my-bucket.s3.eu-west-3.amazonaws.com", "/k"),
        ("my.bucket", None, "s3.eu-west-3.amazonaws.com", "/my.bucket/k"),
        ("MyBucket", None, "s3.eu-west-3.amazonaws.com", "/MyBucket/k"),
        ("b_c", None, "s3.eu-west-3.amazonaws.com", "/b_c/k"),
        ("bucket", Some("http://127.0.0.1:9000"), "127.0.0.1:9000", "/bucket/k"),
        ("bucket", Some("http://[::1]:9000/"), "[::1]:9000", "/bucket/k"),
        ("bucket", Some("http://localhost"), "localhost", "/bucket/k"),
        ("bucket", Some("https://s3.example.com"), "bucket.s3.example.com", "/k"),
        ("bucket", Some("https://example.com/s3/"), "bucket.example.com", "/s3/k"),
    ] {
        let e = endpoint(bucket, url);
        assert_eq!((e.authority.host_header().as_str(), e.key_path("k").as_str()), (host, path));
    }
    assert_eq!(endpoint("bucket", Some("http://127.0.0.1")).bucket_path(), "/bucket");
    assert_eq!(endpoint("bucket", None).bucket_path(), "/");
}

#[test]
fn what_is_no_endpoint_is_refused_without_its_password() {
    for url in [
        "https://me:secret@s3.example.com",
        "https://me:secret@s3.example.com/path?token=secret",
        "https://s3.example.com/?token=secret",
        "s3://me:secret@host",
        "https://me:secret@ho st",
        "ftp://me:p@secret@host/x",
        "https://me:secret?more@host",
        "https://host?mail=a@secret",
    ] {
        let config = Config { bucket: "bucket".into(), endpoint_url: Some(url.into()), ..Config::default() };
        let error = Endpoint::new(&config, "r").unwrap_err().to_string();
        assert!(error.contains("the endpoint URL") && !error.contains("secret"), "{error}");
    }
    assert_eq!(shown("http://a:b@h/p?token=secret"), "http://h/p");
    assert_eq!(without_password("--endpoint-url=http://a:b@h"), "--endpoint-url=http://h");
    assert_eq!(without_password("http://h/a@b"), "http://h/a@b");
}

#[test]
fn path_style_when_asked() {
    let config = Config { bucket: "bucket".into(), force_path_style: true, ..Config::default() };
    let e = Endpoint::new(&config, "cn-north-1").unwrap();
    assert_eq!(e.authority.host, "s3.cn-north-1.amazonaws.com.cn");
    assert_eq!(e.key_path("k"), "/bucket/k");
}

#[test]
fn each_partition_has_a_domain_of_its_own() {
    for (region, suffix) in [
        ("us-east-1", "amazonaws.com"),
        ("us-gov-west-1", "amazonaws.com"),
        ("cn-north-1", "amazonaws.com.cn"),
        ("eusc-de-east-1", "amazonaws.eu"),
        ("us-iso-east-1", "c2s.ic.gov"),
        ("us-isob-east-1", "sc2s.sgov.gov"),
        ("eu-isoe-west-1", "cloud.adc-e.uk"),
        ("us-isof-south-1", "csp.hci.ic.gov"),
        ("eu-isof-south-1", "csp.hci.ic.gov"),
    ] {
        let config = Config { bucket: "bucket".into(), force_path_style: true, ..Config::default() };
        let e = Endpoint::new(&config, region).unwrap();
        assert_eq!(e.authority.host, format!("s3.{region}.{suffix}"));
    }
}

#[test]
fn any_key_is_encoded_once_and_never_normalised() {
    let e = endpoint("bucket", None);
    assert_eq!(e.key_path("a//../b c+ü%\u{1}~"), "/a//../b%20c%2B%C3%BC%25%01~");
    assert_eq!(e.key_path("/lead"), "//lead");
}

#[test]
fn an_endpoint_that_is_no_plain_url_is_refused() {
    for url in ["example.com", "ftp://x", "http://u:p@x", "http://x/?a=b", "http://"] {
        let config = Config { bucket: "b".into(), endpoint_url: Some(url.into()), ..Config::default() };
        assert!(Endpoint::new(&config, "r").is_err(), "{url}");
    }
}

/// Compares each line of the table, except where this client refuses a URL that the SDK would change.
#[test]
fn hosts_paths_and_scopes_are_those_of_the_sdks_rules() {
    let mut compared = 0;
    for line in include_str!("sdk-rules.txt").lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('|').collect();
        let &[bucket, region, flags, endpoint, ref expected @ ..] = &columns[..] else { panic!("{line}") };
        let on = |flag| flags.split('+').any(|f| f == flag);
        let config = Config {
            bucket: bucket.into(),
            endpoint_url: (!endpoint.is_empty()).then(|| endpoint.into()),
            fips: on("fips"),
            dual_stack: on("dual"),
            transfer_acceleration: on("accelerate"),
            force_path_style: on("path"),
            ..Config::default()
        };
        let found = Endpoint::new(&config, region);
        if bucket.ends_with(".mrap") && !endpoint.is_empty() {
            assert!(found.is_err(), "{line}: the SDK ignores the user's URL");
            continue;
        }
        compared += 1;
        // The SDK turns the user's http of an outpost into https.
        let kept = bucket.starts_with("arn:aws:s3-outposts") && endpoint.starts_with("http:");
        let found = found.map(|found| {
            let scheme = if found.authority.tls { "https" } else { "http" };
            let host = found.authority.host_header();
            let scope = &found.signing;
            [
                format!("{scheme}://{host}{}", found.bucket_path().trim_end_matches('/')),
                if scope.region.is_some() { "sigv4" } else { "sigv4a" }.into(),
                scope.service.into(),
                scope.region.clone().unwrap_or_else(|| "*".into()),
            ]
        });
        match (found, expected) {
            (Ok(found), &[url, ref scope @ ..]) if found[1..] == *scope => {
                let url = if kept { url.replace("https:", "http:") } else { url.into() };
                assert_eq!(found[0], url, "{line}");
            }
            (Ok(found), _) => panic!("{line}: {found:?}"),
            (Err(error), ["error"]) => assert!(error.to_string().len() > 30, "{line}: {error}"),
            (Err(error), _) => panic!("{line}: {error}"),
        }
    }
    assert!(compared > 900, "{compared}");
}
