//! Tokens that an issuer of the test signed, with all kinds of faults.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_SHA256};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::*;

const ISSUER: &str = "https://kubernetes.default.svc";
const ROLE: &str = "arn:aws:iam::000000000000:role/writer";
const SUBJECT: &str = "system:serviceaccount:team:writer";

/// An API server that signs.
struct Issuer(KeyPair);

impl Issuer {
    fn new() -> Self {
        Self(KeyPair::generate(KeySize::Rsa2048).unwrap())
    }

    fn keys(&self) -> Keys {
        let public = self.0.public_key();
        let text = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let [n, e] = integers(public.as_ref()).map(|it| text(&it));
        Keys::of_jwks(
            &json!({"keys": [{"kty": "EC", "kid": "other"}, {"kty": "RSA", "kid": "one", "n": n, "e": e}]}),
        )
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let mut signature = vec![0; self.0.public_modulus_len()];
        self.0.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).unwrap();
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }
}

/// The two numbers of a public key in DER (PKCS #1): a sequence of two integers.
fn integers(der: &[u8]) -> [Vec<u8>; 2] {
    fn take<'a>(der: &mut &'a [u8], tag: u8) -> &'a [u8] {
        assert_eq!(der[0], tag);
        let (len, at) = match der[1] {
            long @ 0x81.. => {
                let bytes = usize::from(long & 0x7f);
                (der[2..2 + bytes].iter().fold(0, |len, &byte| len << 8 | usize::from(byte)), 2 + bytes)
            }
            short => (usize::from(short), 2),
        };
        let (value, rest) = der[at..].split_at(len);
        *der = rest;
        value
    }
    let mut der = der;
    let mut inside = take(&mut der, 0x30);
    [(); 2].map(|()| {
        let value = take(&mut inside, 0x02);
        value.strip_prefix(&[0]).unwrap_or(value).to_vec()
    })
}

fn header() -> Value {
    json!({"alg": "RS256", "kid": "one"})
}

fn claims() -> Value {
    json!({"iss": ISSUER, "aud": ["sts.amazonaws.com"], "sub": SUBJECT, "nbf": 900, "exp": 2000})
}

fn service(issuer: &Issuer) -> Service {
    let role = Role { subject: SUBJECT.into(), access_key: "KEYOFROLE".into(), secret_key: "hush".into() };
    Service {
        issuer: ISSUER.into(),
        audience: "sts.amazonaws.com".into(),
        keys: issuer.keys(),
        roles: BTreeMap::from([(ROLE.to_owned(), role)]),
    }
}

fn asked(service: &Service, role: &str, token: &str) -> (u16, String) {
    let role = role.replace(':', "%3A").replace('/', "%2F");
    let form = format!(
        "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={role}&RoleSessionName=s&WebIdentityToken={token}"
    );
    service.answer(&form, Timestamp::from_second(1000).unwrap())
}

#[test]
fn an_issuers_token_gets_the_keys_of_a_role_that_trusts_its_subject() {
    let issuer = Issuer::new();
    let (status, document) = asked(&service(&issuer), ROLE, &issuer.token(&header(), &claims()));
    assert_eq!(status, 200, "{document}");
    for part in ["<AccessKeyId>KEYOFROLE<", "<SecretAccessKey>hush<", "<Expiration>1970-01-01T01:16:40Z<"] {
        assert!(document.contains(part), "{part}: {document}");
    }
}

#[test]
fn whatever_is_wrong_with_a_token_is_refused() {
    let (issuer, other) = (Issuer::new(), Issuer::new());
    let with = |field: &str, value: Value| {
        let mut claims = claims();
        claims[field] = value;
        issuer.token(&header(), &claims)
    };
    let good = issuer.token(&header(), &claims());
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let of_other_claims = format!(
        "{}.{signature}",
        with("sub", json!("system:serviceaccount:kube-system:admin")).rsplit_once('.').unwrap().0
    );
    for (wanted, token) in [
        ("not a JWT", String::new()),
        ("not a JWT", "a.b".to_owned()),
        ("signature", format!("{signed}.{}", other.token(&header(), &claims()).rsplit_once('.').unwrap().1)),
        ("signature", of_other_claims),
        ("RS256", issuer.token(&json!({"alg": "none", "kid": "one"}), &claims())),
        ("No key", issuer.token(&json!({"alg": "RS256", "kid": "two"}), &claims())),
        ("issuer", with("iss", json!("https://evil.test"))),
        ("audience", with("aud", json!(["vault"]))),
        ("audience", with("aud", json!([]))),
        ("ExpiredTokenException", with("exp", json!(1000))),
        ("not valid yet", with("nbf", json!(1001))),
        ("AccessDenied", with("sub", json!("system:serviceaccount:team:reader"))),
        ("AccessDenied", with("sub", json!("system:serviceaccount:other:writer"))),
    ] {
        let (status, document) = asked(&service(&issuer), ROLE, &token);
        assert!(status >= 400 && document.contains(wanted), "{wanted}: {document}");
        assert!(!document.contains("hush"), "{document}");
    }
    let (status, document) = asked(&service(&issuer), "arn:aws:iam::1:role/none", &good);
    assert!(status == 403 && document.contains("AccessDenied"), "{document}");
    let (status, _) = service(&issuer).answer("Action=AssumeRole", Timestamp::from_second(1000).unwrap());
    assert_eq!(status, 400);
}

#[test]
fn an_agent_gives_keys_to_associated_accounts_by_tokens_of_its_audience() {
    let issuer = Issuer::new();
    let mut claims = claims();
    let keys = ("KEYOFACCOUNT".to_owned(), "hush".to_owned());
    let agent = agent::Agent {
        issuer: ISSUER.into(),
        keys: issuer.keys(),
        associations: BTreeMap::from([(SUBJECT.to_owned(), keys)]),
    };
    let now = Timestamp::from_second(1000).unwrap();
    let ask = |claims: &Value| agent.answer(Some(&issuer.token(&header(), claims)), now);
    let (status, document) = ask(&claims);
    assert!(
        status == 400 && document["message"] == "Incorrect token audience",
        "that of the token service: {document}"
    );
    claims["aud"] = json!([agent::AUDIENCE]);
    let (status, document) = ask(&claims);
    assert_eq!((status, document["AccessKeyId"].as_str()), (200, Some("KEYOFACCOUNT")));
    assert_eq!(document["Expiration"], "1970-01-01T01:16:40Z");
    claims["sub"] = json!("system:serviceaccount:team:reader");
    let (status, document) = ask(&claims);
    assert!(status == 403 && document["code"] == "AccessDenied" && document["SecretAccessKey"].is_null());
    assert_eq!(agent.answer(None, now).0, 400);
}
