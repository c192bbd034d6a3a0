//! A token service for the lab: exchanges a token of a service account for credentials of a store, like AWS's AssumeRoleWithWebIdentity;
//! and an agent that does so without a role (`agent`). Enters: the form of a request, the API server's public keys. Leaves: credentials for
//! an hour, or the refusal in AWS's words.
//!
//! Never here: a token or a secret in a log.

pub mod agent;
mod token;

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use percent_encoding::percent_decode_str;
pub use token::{Keys, Refusal};

/// The roles, and the audience of tokens for them.
#[derive(Clone, Debug)]
pub struct Service {
    /// The issuer in the API server's tokens.
    pub issuer: String,
    /// The audience that tokens must name.
    pub audience: String,
    /// The public keys of the API server.
    pub keys: Keys,
    /// The roles, by ARN.
    pub roles: BTreeMap<String, Role>,
}

/// A role: the account that it trusts, and its credentials in the store.
#[derive(Clone, Debug)]
pub struct Role {
    /// The trusted account: `system:serviceaccount:NAMESPACE:NAME`
    pub subject: String,
    /// The access key id.
    pub access_key: String,
    /// The secret key.
    pub secret_key: String,
}

impl Service {
    /// Answers a request. Returns status and document.
    #[must_use]
    pub fn answer(&self, form: &str, now: Timestamp) -> (u16, String) {
        let form: BTreeMap<String, String> = form
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (decoded(name), decoded(value)))
            .collect();
        match self.assume(&form, now) {
            Ok(document) => (200, document),
            Err(refusal) => (refusal.status(), refusal.document()),
        }
    }

    fn assume(&self, form: &BTreeMap<String, String>, now: Timestamp) -> Result<String, Refusal> {
        let field = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        if field("Action") != "AssumeRoleWithWebIdentity" {
            return Err(Refusal::new("InvalidAction", "only AssumeRoleWithWebIdentity is known"));
        }
        let claims = token::verified(field("WebIdentityToken"), &self.keys)?;
        claims.check(&self.issuer, &self.audience, now)?;
        let role = self.roles.get(field("RoleArn")).filter(|role| role.subject == claims.subject);
        let Some(role) = role else {
            return Err(Refusal::new(
                "AccessDenied",
                "Not authorized to perform sts:AssumeRoleWithWebIdentity",
            ));
        };
        let expires = now + SignedDuration::from_hours(1);
        let (arn, id) = (field("RoleArn"), &role.access_key);
        Ok(format!(
            "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleWithWebIdentityResult>\
             <SubjectFromWebIdentityToken>{}</SubjectFromWebIdentityToken><Audience>{}</Audience>\
             <AssumedRoleUser><Arn>{arn}/s</Arn><AssumedRoleId>{id}:s</AssumedRoleId></AssumedRoleUser>\
             <Credentials><AccessKeyId>{id}</AccessKeyId><SecretAccessKey>{}</SecretAccessKey><SessionToken>lab</SessionToken>\
             <Expiration>{expires}</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
            claims.subject, self.audience, role.secret_key
        ))
    }
}

/// Decodes a value of a form, in which `+` is a space.
fn decoded(value: &str) -> String {
    percent_decode_str(&value.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests;
