//! A token service for the lab: exchanges a token of a service account for keys of a store, as AWS's AssumeRoleWithWebIdentity does, and
//! (`agent`) an agent that does it without a role. Enters:
//! the form of a request, the API server's public keys. Leaves: keys for an hour, or the refusal in AWS's words.
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
    /// The API server's name in tokens.
    pub issuer: String,
    /// The audience that tokens must name.
    pub audience: String,
    /// The API server's keys.
    pub keys: Keys,
    /// The roles, by ARN.
    pub roles: BTreeMap<String, Role>,
}

/// A role: the accounts it trusts, and its keys in the store.
#[derive(Clone, Debug)]
pub struct Role {
    /// `system:serviceaccount:NAMESPACE:NAME`
    pub subject: String,
    /// The key's id.
    pub access_key: String,
    /// The secret key.
    pub secret_key: String,
}

impl Service {
    /// Answers a request: status and document.
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

/// A value of a form: `+` is a blank.
fn decoded(value: &str) -> String {
    percent_decode_str(&value.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests;
