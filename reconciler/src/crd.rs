//! The CRD of attachments: prints it as YAML, applies it to a cluster, deletes it.

use std::time::Duration;

use anyhow::Context as _;
use csi::contract::attachment::MountpointS3PodAttachment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, CustomResourceExt as _};

/// The field manager of the CRD's server-side apply.
pub const FIELD_MANAGER: &str = "scality-csi-controller";
/// Annotation of the CRD: the release that wrote it.
const RELEASE: &str = "s3.csi.scality.com/version";
/// Longest wait until the API server serves the resource. After that, the installation has failed.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(60);

/// The CRD, with the version of this release as an annotation.
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    let mut crd = MountpointS3PodAttachment::crd();
    let annotations = crd.metadata.annotations.get_or_insert_default();
    annotations.insert(RELEASE.to_owned(), csi::contract::VERSION.to_owned());
    crd
}

/// The CRD as YAML, as in the chart's file.
///
/// # Errors
/// None for our CRD: every value in it can be YAML.
pub fn yaml() -> anyhow::Result<String> {
    Ok(serde_norway::to_string(&crd())?)
}

/// Writes the CRD by server-side apply, over a CRD of a chart, `kubectl` or an older release. Waits until the API server serves it.
///
/// # Errors
/// An error of the API server, or it does not serve the resource in time.
pub async fn install(client: Client) -> anyhow::Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client);
    let crd = crd();
    let name = MountpointS3PodAttachment::crd_name();
    let params = PatchParams::apply(FIELD_MANAGER).force();
    crds.patch(name, &params, &Patch::Apply(&crd))
        .await
        .with_context(|| format!("applying the CRD {name}"))?;
    let established =
        kube::runtime::wait::await_condition(crds, name, kube::runtime::conditions::is_crd_established());
    tokio::time::timeout(ESTABLISHED_WITHIN, established)
        .await
        .with_context(|| {
            format!(
                "the CRD {name} is not served after {} s: look at its conditions",
                ESTABLISHED_WITHIN.as_secs()
            )
        })?
        .with_context(|| format!("waiting until the CRD {name} is served"))?;
    tracing::info!(name, "the CRD is installed");
    Ok(())
}

/// Deletes the CRD, and with it all attachments. Workloads keep their mounts until they end.
///
/// # Errors
/// An error of the API server.
pub async fn uninstall(client: Client) -> anyhow::Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client);
    let name = MountpointS3PodAttachment::crd_name();
    match crds.delete(name, &DeleteParams::default()).await {
        Ok(_) => tracing::info!(name, "the CRD is being deleted"),
        Err(kube::Error::Api(status)) if status.is_not_found() => tracing::info!(name, "there is no CRD"),
        Err(error) => return Err(error).with_context(|| format!("deleting the CRD {name}")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charts_file_is_what_crdgen_prints() {
        let file =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../helm/scality-mountpoint-s3-csi-driver/files/crd.yaml");
        let kept = std::fs::read_to_string(file).expect("the chart's CRD");
        assert_eq!(
            kept,
            yaml().unwrap(),
            "run: cargo run -p reconciler --bin crdgen > helm/scality-mountpoint-s3-csi-driver/files/crd.yaml"
        );
    }

    #[test]
    fn the_crd_has_what_release_2_2_and_its_users_rely_on() {
        let crd = serde_json::to_value(crd()).unwrap();
        assert_eq!(crd["metadata"]["name"], "mountpoints3podattachments.s3.csi.scality.com");
        assert_eq!(crd["spec"]["scope"], "Cluster");
        assert_eq!(crd["spec"]["names"]["shortNames"], serde_json::json!(["s3pa"]));
        assert_eq!(crd["metadata"]["annotations"][RELEASE], csi::contract::VERSION);
        let version = &crd["spec"]["versions"][0];
        assert_eq!(
            (&version["name"], &version["served"], &version["storage"]),
            (&"v2".into(), &true.into(), &true.into())
        );
        let selectable: Vec<_> =
            version["selectableFields"].as_array().unwrap().iter().map(|field| &field["jsonPath"]).collect();
        assert_eq!(
            selectable,
            [
                ".spec.nodeName",
                ".spec.persistentVolumeName",
                ".spec.volumeID",
                ".spec.mountOptions",
                ".spec.workloadFSGroup"
            ]
        );
        let columns = version["additionalPrinterColumns"].as_array().unwrap();
        let wide: Vec<_> =
            columns.iter().filter(|it| it["priority"] == 1).map(|it| &it["jsonPath"]).collect();
        assert_eq!(wide, [".spec.mountOptions", ".spec.mountpointS3PodAttachments"]);
        let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        assert_eq!(spec["required"].as_array().unwrap().len(), 6);
    }
}
