//! A token of a service account: a JWT that the API server signed. Pure.

use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// Public keys with their ids.
#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<Key>);

#[derive(Clone, Debug)]
struct Key {
    id: String,
    modulus: Vec<u8>,
    exponent: Vec<u8>,
}

/// The reason of a refusal, in AWS's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// AWS's code.
    pub code: &'static str,
    /// The problem with the token.
    pub message: &'static str,
}

/// The claims of a token.
#[derive(Clone, Debug)]
pub(super) struct Claims {
    pub(super) subject: String,
    issuer: String,
    audiences: Vec<String>,
    not_before: i64,
    expires: i64,
}

impl Refusal {
    pub(super) fn new(code: &'static str, message: &'static str) -> Self {
        Self { code, message }
    }

    pub(super) fn status(&self) -> u16 {
        if self.code == "AccessDenied" { 403 } else { 400 }
    }

    pub(super) fn document(&self) -> String {
        format!(
            "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type><Code>{}</Code>\
             <Message>{}</Message></Error><RequestId>lab</RequestId></ErrorResponse>",
            self.code, self.message
        )
    }
}

const INVALID: &str = "InvalidIdentityToken";

impl Keys {
    /// The keys in the document of the API server at `/openid/v1/jwks`. Keys of other types than RSA are ignored.
    #[must_use]
    pub fn of_jwks(document: &Value) -> Self {
        let text = |key: &Value, field: &str| key[field].as_str().map(str::to_owned);
        let bytes = |key: &Value, field: &str| BASE64_URL_SAFE_NO_PAD.decode(text(key, field)?).ok();
        let keys = document["keys"].as_array().into_iter().flatten();
        let rsa = keys.filter_map(|key| {
            Some(Key { id: text(key, "kid")?, modulus: bytes(key, "n")?, exponent: bytes(key, "e")? })
        });
        Self(rsa.collect())
    }
}

/// The claims of a token. Refuses a token that none of these keys signed.
pub(super) fn verified(token: &str, keys: &Keys) -> Result<Claims, Refusal> {
    let malformed = Refusal::new(INVALID, "The token is not a JWT");
    let (signed, signature) = token.rsplit_once('.').ok_or_else(|| malformed.clone())?;
    let (header, payload) = signed.split_once('.').ok_or_else(|| malformed.clone())?;
    let decoded = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| malformed.clone());
    let json = |part: &str| serde_json::from_slice::<Value>(&decoded(part)?).map_err(|_| malformed.clone());
    let header = json(header)?;
    if header["alg"] != "RS256" {
        return Err(Refusal::new(INVALID, "The token is not signed by RS256"));
    }
    let key = keys.0.iter().find(|key| header["kid"] == key.id.as_str());
    let key = key.ok_or_else(|| Refusal::new(INVALID, "No key of the issuer signed the token"))?;
    RsaPublicKeyComponents { n: &key.modulus, e: &key.exponent }
        .verify(&RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &decoded(signature)?)
        .map_err(|_| Refusal::new(INVALID, "The signature of the token is wrong"))?;
    let claims = json(payload)?;
    let texts = |value: &Value| match value {
        Value::Array(all) => all.iter().filter_map(|it| it.as_str().map(str::to_owned)).collect(),
        one => one.as_str().map(str::to_owned).into_iter().collect::<Vec<_>>(),
    };
    Ok(Claims {
        subject: claims["sub"].as_str().unwrap_or_default().to_owned(),
        issuer: claims["iss"].as_str().unwrap_or_default().to_owned(),
        audiences: texts(&claims["aud"]),
        not_before: claims["nbf"].as_i64().unwrap_or_default(),
        expires: claims["exp"].as_i64().unwrap_or_default(),
    })
}

impl Claims {
    pub(super) fn check(&self, issuer: &str, audience: &str, now: Timestamp) -> Result<(), Refusal> {
        if self.issuer != issuer {
            return Err(Refusal::new(INVALID, "The token is of another issuer"));
        }
        if !self.audiences.iter().any(|it| it == audience) {
            return Err(Refusal::new(INVALID, "Incorrect token audience"));
        }
        if now.as_second() >= self.expires {
            return Err(Refusal::new("ExpiredTokenException", "Token expired"));
        }
        if now.as_second() < self.not_before {
            return Err(Refusal::new(INVALID, "The token is not valid yet"));
        }
        Ok(())
    }
}
