//! Chooses the credentials of a call. Enters: the call's secrets, which the provisioner read. Leaves: complete credentials, or an error
//! that names the field, never a value. Pure.

use std::collections::HashMap;

use crate::contract::volume;
use crate::error::{Error, Result};
use crate::mounter::Credentials;
use crate::node::credentials::{ACCESS_KEY_ID, Field, SECRET_ACCESS_KEY, SESSION_TOKEN, checked};

/// Field of the Secret: the region of this account.
const REGION: &str = "region";

/// The credentials of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The credentials; `None`: the process finds them as AWS tools do.
    pub credentials: Option<Credentials>,
    /// The region in the Secret.
    pub region: Option<String>,
    /// Whether the credentials are from the call's Secret.
    pub of_secret: bool,
}

/// The credentials of the call's Secret, else the driver's.
///
/// # Errors
/// `InvalidArgument` if a Secret came and is incomplete or invalid.
pub fn resolve(
    secrets: &HashMap<String, String>,
    driver: impl FnOnce() -> Result<Option<Credentials>>,
) -> Result<Keys> {
    if secrets.is_empty() {
        return Ok(Keys { credentials: driver()?, region: None, of_secret: false });
    }
    let at = |key| secrets.get(key).map(String::as_str);
    let keys =
        checked(at(ACCESS_KEY_ID), at(SECRET_ACCESS_KEY), at(SESSION_TOKEN)).map_err(|(field, wrong)| {
            let field = match field {
                Field::AccessKeyId => ACCESS_KEY_ID,
                Field::SecretAccessKey => SECRET_ACCESS_KEY,
                Field::SessionToken => SESSION_TOKEN,
            };
            Error::invalid(format!(
                "the Secret of the provisioner (csi.storage.k8s.io/provisioner-secret-name of the StorageClass) is unusable: \
                 {field} {wrong}"
            ))
        })?;
    let region = at(REGION).map(str::trim).filter(|it| !it.is_empty()).map(str::to_owned);
    // The region becomes a part of host names, here and on the nodes. The message does not show it, because it is a Secret's value.
    if region.as_deref().is_some_and(|region| !volume::is_region(region)) {
        return Err(Error::invalid(format!(
            "the Secret of the provisioner (csi.storage.k8s.io/provisioner-secret-name of the StorageClass) is unusable: {REGION} is not a valid \
             region: eu-west-1 is one"
        )));
    }
    Ok(Keys { credentials: Some(keys), region, of_secret: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn secrets(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn the_keys_of_the_call_win_over_the_driver_s() {
        let driver =
            Credentials { access_key_id: "D".into(), secret_access_key: "d".into(), session_token: None };
        let none = resolve(&HashMap::new(), || Ok(Some(driver.clone()))).unwrap();
        assert_eq!((none.credentials.as_ref(), none.of_secret), (Some(&driver), false));
        let given = secrets(&[
            (ACCESS_KEY_ID, " A\n"),
            (SECRET_ACCESS_KEY, "s"),
            (SESSION_TOKEN, "t"),
            (REGION, "eu-west-1\n"),
        ]);
        let keys = resolve(&given, || Ok(Some(driver.clone()))).unwrap();
        let credentials = keys.credentials.unwrap();
        assert_eq!((credentials.access_key_id.as_str(), keys.region.as_deref()), ("A", Some("eu-west-1")));
        assert!(keys.of_secret && credentials.session_token.is_some());
    }

    #[test]
    fn a_broken_secret_is_named_by_its_field_and_never_shown() {
        for (field, given) in [
            (ACCESS_KEY_ID, secrets(&[(SECRET_ACCESS_KEY, "HUSH")])),
            (SECRET_ACCESS_KEY, secrets(&[(ACCESS_KEY_ID, "HUSH"), (SECRET_ACCESS_KEY, "")])),
            (SECRET_ACCESS_KEY, secrets(&[(ACCESS_KEY_ID, "HUSH"), (SECRET_ACCESS_KEY, "HUSH\nHUSH")])),
            (ACCESS_KEY_ID, secrets(&[("password", "HUSH")])),
            (
                REGION,
                secrets(&[(ACCESS_KEY_ID, "A"), (SECRET_ACCESS_KEY, "s"), (REGION, "HUSH.example.com/")]),
            ),
        ] {
            let error = resolve(&given, || Ok(None)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
            let said = error.to_string();
            assert!(said.contains(field) && !said.contains("HUSH"), "{said}");
        }
    }
}
