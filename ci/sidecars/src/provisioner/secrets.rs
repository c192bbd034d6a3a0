//! The Secrets that a StorageClass names, as upstream resolves them (README and docs of kubernetes-csi/external-provisioner 5.3). Enters:
//! parameters, a claim, the volume's name. Leaves: references, or a sentence about the error. Pure.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail, ensure};

/// Prefix of parameters for the side-car, which are not passed to the driver.
pub const PREFIX: &str = "csi.storage.k8s.io/";

/// The values of a template's variables.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    /// The claim's name.
    pub name: String,
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's annotations.
    pub annotations: BTreeMap<String, String>,
}

/// A Secret of a class, by its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The Secret for CreateVolume and DeleteVolume.
    Provisioner,
    /// The Secret for NodePublishVolume.
    NodePublish,
}

/// A reference to a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The Secret's namespace.
    pub namespace: String,
    /// The Secret's name.
    pub name: String,
}

impl Use {
    fn word(self) -> &'static str {
        match self {
            Self::Provisioner => "provisioner",
            Self::NodePublish => "node-publish",
        }
    }

    /// The Secret for this purpose; `None` if the class names none.
    ///
    /// # Errors
    /// The name or the namespace is given alone, a variable can't be filled in, or the result is not a valid name.
    pub fn resolve(
        self,
        parameters: &BTreeMap<String, String>,
        claim: &Claim,
        volume: &str,
    ) -> anyhow::Result<Option<Reference>> {
        let key = |part| format!("{PREFIX}{}-secret-{part}", self.word());
        let (name_key, namespace_key) = (key("name"), key("namespace"));
        let (name, namespace) = match (parameters.get(&name_key), parameters.get(&namespace_key)) {
            (None, None) => return Ok(None),
            (Some(name), Some(namespace)) => (name, namespace),
            _ => bail!("either both of {name_key} and {namespace_key} must be set, or none"),
        };
        let with_annotations = self == Self::NodePublish;
        let name = fill(name, |variable| value(variable, claim, volume, true, with_annotations))
            .with_context(|| format!("resolving {name_key} {name:?}"))?;
        let namespace = fill(namespace, |variable| value(variable, claim, volume, false, false))
            .with_context(|| format!("resolving {namespace_key} {namespace:?}"))?;
        ensure!(is_name(&name, true), "{name_key} resolves to {name:?}, which is not a name of a Secret");
        ensure!(
            is_name(&namespace, false),
            "{namespace_key} resolves to {namespace:?}, which is not a namespace"
        );
        Ok(Some(Reference { namespace, name }))
    }
}

fn value(
    variable: &str,
    claim: &Claim,
    volume: &str,
    in_name: bool,
    with_annotations: bool,
) -> Option<String> {
    match variable {
        "pv.name" => Some(volume.to_owned()),
        "pvc.namespace" => Some(claim.namespace.clone()),
        "pvc.name" if in_name => Some(claim.name.clone()),
        _ if with_annotations => {
            let key = variable.strip_prefix("pvc.annotations['")?.strip_suffix("']")?;
            claim.annotations.get(key).cloned()
        }
        _ => None,
    }
}

fn fill(template: &str, value: impl Fn(&str) -> Option<String>) -> anyhow::Result<String> {
    let (mut filled, mut rest) = (String::new(), template);
    while let Some((before, behind)) = rest.split_once("${") {
        let (variable, after) = behind.split_once('}').context("a variable has no end")?;
        filled.push_str(before);
        filled.push_str(&value(variable).with_context(|| format!("invalid tokens: [{variable:?}]"))?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Whether a text is a DNS label, or with `dots` a DNS subdomain.
fn is_name(text: &str, dots: bool) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |label: &str| {
        label.starts_with(is_plain)
            && label.ends_with(is_plain)
            && label.chars().all(|c| is_plain(c) || c == '-')
    };
    let max = if dots { 253 } else { 63 };
    text.len() <= max && if dots { text.split('.').all(is_label) } else { is_label(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(of: Use, name: &str, namespace: &str) -> anyhow::Result<Option<Reference>> {
        let claim = Claim {
            name: "data".into(),
            namespace: "team-a".into(),
            annotations: [("tenant/keys".to_owned(), "of-annotation".to_owned())].into(),
        };
        let key = |part| format!("{PREFIX}{}-secret-{part}", of.word());
        let parameters = [(key("name"), name.to_owned()), (key("namespace"), namespace.to_owned())];
        let parameters = parameters.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        of.resolve(&parameters, &claim, "pvc-1")
    }

    #[test]
    fn templates_are_filled_in_as_upstream_documents_them() {
        for (of, name, namespace, wanted) in [
            (Use::Provisioner, "keys", "default", Some(("default", "keys"))),
            (Use::Provisioner, "${pvc.name}", "${pvc.namespace}", Some(("team-a", "data"))),
            (Use::Provisioner, "k-${pv.name}", "n-${pv.name}", Some(("n-pvc-1", "k-pvc-1"))),
            (Use::Provisioner, "${pvc.annotations['tenant/keys']}", "default", None),
            (Use::Provisioner, "keys", "${pvc.name}", None),
            (
                Use::NodePublish,
                "${pvc.annotations['tenant/keys']}",
                "${pvc.namespace}",
                Some(("team-a", "of-annotation")),
            ),
            (Use::NodePublish, "${pvc.annotations['other']}", "default", None),
            (Use::NodePublish, "keys", "${pvc.annotations['tenant/keys']}", None),
            (Use::NodePublish, "${pvc.uid}", "default", None),
            (Use::NodePublish, "No_Name", "default", None),
            (Use::NodePublish, "keys", "", None),
            (Use::Provisioner, "", "default", None),
        ] {
            let found = resolve(of, name, namespace);
            let is = found
                .as_ref()
                .ok()
                .and_then(|it| it.as_ref())
                .map(|it| (it.namespace.as_str(), it.name.as_str()));
            assert_eq!(is, wanted, "{name} {namespace}: {found:?}");
        }
        assert_eq!(resolve(Use::Provisioner, "", "").unwrap(), None);
    }
}
