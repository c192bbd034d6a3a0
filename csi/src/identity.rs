//! The service Identity, and the capabilities of the service Controller. Enters: a call. Leaves: constants.
//!
//! Never here: a request to the store or the API server. A probe shows only that this process answers and could mount.

use std::path::{Path, PathBuf};

use tonic::{Request, Response, Status};

use crate::contract::{DRIVER, VERSION};
use crate::proto::csi::controller_server::Controller;
use crate::proto::csi::controller_service_capability::{Rpc, Type, rpc};
use crate::proto::csi::identity_server::Identity;
use crate::proto::csi::plugin_capability::{self, Service, service};
use crate::proto::csi::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerServiceCapability,
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};

/// The service Identity.
#[derive(Clone, Debug)]
pub struct IdentityService {
    device: Option<PathBuf>,
}

impl IdentityService {
    /// The service of a node with the FUSE device `device`; `None` for the controller service.
    #[must_use]
    pub fn new(device: Option<PathBuf>) -> Self {
        Self { device }
    }
}

/// The reason why the FUSE device can't be opened; `None` if it can.
#[must_use]
pub fn fault_of(device: &Path) -> Option<String> {
    let opened = std::fs::File::options().read(true).write(true).open(device);
    opened.err().map(|error| {
        format!(
            "{} does not open: {error}; load the kernel module fuse, and run this container privileged",
            device.display()
        )
    })
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER.to_owned(),
            vendor_version: VERSION.to_owned(),
            manifest: std::collections::HashMap::new(),
        }))
    }

    /// Returns the capability of a controller, which creates volumes; a node has none.
    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = Service { r#type: service::Type::ControllerService.into() };
        let controller = PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) };
        let capabilities = if self.device.is_none() { vec![controller] } else { Vec::new() };
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let fault = self.device.as_deref().and_then(fault_of);
        if let Some(fault) = &fault {
            tracing::debug!(fault, "Probe: not ready");
        }
        Ok(Response::new(ProbeResponse { ready: Some(fault.is_none()) }))
    }
}

/// The service Controller of a node, which only reports the access modes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodesController;

#[tonic::async_trait]
impl Controller for NodesController {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability = Rpc { r#type: rpc::Type::SingleNodeMultiWriter.into() };
        let capability = ControllerServiceCapability { r#type: Some(Type::Rpc(capability)) };
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: vec![capability] }))
    }
}
