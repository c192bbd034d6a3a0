//! Texts with variables in a StorageClass: `${pvc.namespace}-${pvc.name}`. Enters: a text, the facts of a claim. Leaves: the
//! text with values in place of variables. Pure.
//!
//! Never here: the names of Secrets. The provisioner fills those in.

use std::collections::HashMap;

use super::cluster::Cluster;
use crate::error::{Error, Result};

/// Parameter with the claim's name. The provisioner sends these three if it runs with `--extra-create-metadata`.
pub const PVC_NAME: &str = "csi.storage.k8s.io/pvc/name";
/// Parameter with the claim's namespace.
pub const PVC_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
/// Parameter with the PersistentVolume's name.
pub const PV_NAME: &str = "csi.storage.k8s.io/pv/name";

/// Number of hexadecimal digits of `${hash}`.
const DIGITS: usize = 12;

/// The values of the variables.
#[derive(Clone, Debug)]
pub struct Values {
    request: String,
    pvc_name: Option<String>,
    pvc_namespace: Option<String>,
    pv_name: Option<String>,
    hash: String,
}

impl Values {
    /// The values for the request of this name, with the parameters of its class.
    #[must_use]
    pub fn new(cluster: &Cluster, request: &str, parameters: &HashMap<String, String>) -> Self {
        let said = |key| parameters.get(key).filter(|it| !it.is_empty()).cloned();
        Self {
            request: request.to_owned(),
            pvc_name: said(PVC_NAME),
            pvc_namespace: said(PVC_NAMESPACE),
            pv_name: said(PV_NAME),
            hash: cluster.digest(&["hash", request], DIGITS),
        }
    }

    /// Replaces the variables in a text by their values. `field` names the parameter, for errors.
    ///
    /// # Errors
    /// `InvalidArgument`: an unknown variable, or a variable whose value the provisioner did not send.
    pub fn fill(&self, field: &str, text: &str) -> Result<String> {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("${") {
            filled.push_str(before);
            let (variable, after) = behind.split_once('}').ok_or_else(|| {
                Error::invalid(format!(
                    "parameter {field} {text:?}: a variable begins with '${{' and does not end with '}}'"
                ))
            })?;
            filled.push_str(self.value(field, variable)?);
            rest = after;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    fn value(&self, field: &str, variable: &str) -> Result<&str> {
        let value = match variable {
            "pvc.name" => self.pvc_name.as_deref(),
            "pvc.namespace" => self.pvc_namespace.as_deref(),
            // The request's name is also the PersistentVolume's, unless the side-car is configured to name volumes otherwise.
            "pv.name" => Some(self.pv_name.as_deref().unwrap_or(&self.request)),
            "hash" => Some(self.hash.as_str()),
            _ => {
                return Err(Error::invalid(format!(
                    "parameter {field}: there is no variable ${{{}}}; use ${{pvc.name}}, ${{pvc.namespace}}, ${{pv.name}} or ${{hash}}",
                    variable.escape_debug()
                )));
            }
        };
        value.ok_or_else(|| {
            Error::invalid(format!(
                "parameter {field}: the provisioner does not say what ${{{variable}}} is: start csi-provisioner with \
                 --extra-create-metadata, as the chart does"
            ))
        })
    }
}

/// Whether the text contains this variable.
#[must_use]
pub fn has(text: &str, variable: &str) -> bool {
    text.contains(&format!("${{{variable}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn values(parameters: &[(&str, &str)]) -> Values {
        let parameters = parameters.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Values::new(&Cluster::new("uid-1"), "pvc-0", &parameters)
    }

    #[test]
    fn variables_become_what_the_provisioner_said_of_the_claim() {
        let values = values(&[(PVC_NAME, "data"), (PVC_NAMESPACE, "team-a"), (PV_NAME, "pvc-7")]);
        let filled = values.fill("x", "a-${pvc.namespace}-${pvc.name}/${pv.name}}").unwrap();
        assert_eq!(filled, "a-team-a-data/pvc-7}");
        assert_eq!(values.fill("x", "plain $ {}").unwrap(), "plain $ {}");
        let hash = values.fill("x", "${hash}").unwrap();
        assert!(hash.len() == 12 && hash.bytes().all(|b| b.is_ascii_hexdigit()), "{hash}");
        assert!(has("a${hash}", "hash") && !has("a${hash}", "pv.name"));
    }

    #[test]
    fn the_name_of_the_request_serves_for_that_of_the_volume() {
        assert_eq!(values(&[]).fill("x", "${pv.name}").unwrap(), "pvc-0");
    }

    #[test]
    fn what_can_not_be_filled_in_is_named_with_its_parameter() {
        for (text, words) in [
            ("${pvc.name}", "--extra-create-metadata"),
            ("${pvc.namespace}", "--extra-create-metadata"),
            ("${pvc.annotations['a']}", "there is no variable"),
            ("a-${pvc.name", "does not end"),
        ] {
            let error = values(&[]).fill("bucketNameTemplate", text).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
            let said = error.to_string();
            assert!(said.contains("bucketNameTemplate") && said.contains(words), "{text}: {said}");
        }
    }
}
