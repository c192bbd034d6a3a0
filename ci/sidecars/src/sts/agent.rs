//! The agent of a node for the lab: gives credentials to service accounts that are associated with some, like EKS Pod Identity's agent.
//! Enters: the token of a request, the API server's public keys. Leaves: credentials for an hour, or the refusal.
//!
//! Never here: a token or a secret in a log.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::token::{Keys, Refusal, verified};

/// The audience of tokens for the agent.
pub const AUDIENCE: &str = "pods.eks.amazonaws.com";
/// The path of requests for credentials.
pub const PATH: &str = "/v1/credentials";

/// The associations of a cluster.
#[derive(Clone, Debug)]
pub struct Agent {
    /// The issuer in the API server's tokens.
    pub issuer: String,
    /// The public keys of the API server.
    pub keys: Keys,
    /// Access key and secret by `system:serviceaccount:NAMESPACE:NAME`.
    pub associations: BTreeMap<String, (String, String)>,
}

impl Agent {
    /// Answers a request whose header `Authorization` has this token. Returns status and document.
    #[must_use]
    pub fn answer(&self, token: Option<&str>, now: Timestamp) -> (u16, Value) {
        match self.keys_for(token.unwrap_or_default(), now) {
            Ok(document) => (200, document),
            Err(refusal) => (refusal.status(), json!({"code": refusal.code, "message": refusal.message})),
        }
    }

    fn keys_for(&self, token: &str, now: Timestamp) -> Result<Value, Refusal> {
        let claims = verified(token, &self.keys)?;
        claims.check(&self.issuer, AUDIENCE, now)?;
        let Some((access_key, secret)) = self.associations.get(&claims.subject) else {
            return Err(Refusal::new("AccessDenied", "No association is known for the service account"));
        };
        let expires = now + SignedDuration::from_hours(1);
        Ok(json!({
            "AccessKeyId": access_key, "SecretAccessKey": secret, "Token": "lab", "AccountId": "000000000000",
            "Expiration": expires.to_string(),
        }))
    }
}
