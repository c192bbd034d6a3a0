//! The provisioner's calls: creates and deletes volumes. Enters: a call of the service Controller. Leaves: a bucket or a prefix, and the
//! answer to the call.
//!
//! This room parses a call (`request`, `parameters`, `secrets`), chooses a place (`template`, `bucket_name`, `volume_id`), checks the
//! owner of a bucket (`ownership`, `tags`), and admits one call at a time for a volume, and for a bucket (`pending`). A call that has begun
//! runs to its end even if the caller stops waiting; the caller's next try then gets the result.
//!
//! Never here: a mount, a secret in a log or an error, a deletion without proof.

pub mod bucket_name;
pub mod cluster;
pub mod deletion;
pub mod on_delete;
pub mod ownership;
pub mod parameters;
pub mod pending;
pub mod provision;
pub mod purge;
pub mod request;
pub mod secrets;
pub mod store;
pub mod tags;
pub mod template;
pub mod volume_id;
pub mod volumes;

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::time::Instant;

use mountpoint::s3::ListObjects;
use mountpoint::sync::Arc;
use prometheus_client::metrics::counter::Counter;
use tonic::{Request, Response, Status};
use tracing::{debug, info, warn};

use self::cluster::Cluster;
use self::deletion::Outcome;
use self::parameters::Parameters;
use self::pending::Pending;
use self::provision::Made;
use self::request::Capacity;
use self::secrets::Keys;
use self::store::{Looked, Stores};
use self::template::Values;
use self::volume_id::{Place, VolumeId};
use self::volumes::Volumes;
use crate::call_metrics::CallMetrics;
use crate::contract::reason::Reason;
use crate::contract::volume;
use crate::error::{Error, ErrorKind, Result};
use crate::proto::csi::controller_server::Controller;
use crate::proto::csi::controller_service_capability::{Rpc, Type, rpc};
use crate::proto::csi::validate_volume_capabilities_response::Confirmed;
use crate::proto::csi::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerServiceCapability,
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
};

/// The service Controller. Clones share their state.
#[derive(Clone)]
pub struct ControllerService {
    stores: Arc<Stores>,
    volumes: Volumes,
    pending: Pending,
    calls: CallMetrics,
    kept: Counter,
}

impl ControllerService {
    /// A service over these stores and volumes.
    #[must_use]
    pub fn new(stores: store::Config, volumes: Volumes) -> Self {
        let calls = CallMetrics::of("mount_s3_csi_controller");
        let (pending, kept) = (Pending::default(), Counter::default());
        Self { stores: Arc::new(Stores::new(stores)), volumes, pending, calls, kept }
    }

    /// The service's page of metrics.
    #[must_use]
    pub fn page(&self) -> String {
        let kept = ("volumes_kept", "Deleted volumes whose data was kept", self.kept.clone());
        self.calls.page(Some(kept))
    }

    /// The reason why no volume can be created now, for the readiness page.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.cluster().err().map(|error| error.to_string())
    }

    fn cluster(&self) -> Result<&Cluster> {
        self.volumes.cluster().ok_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                "the cluster's id is not known yet: the API server has not answered for the namespace kube-system",
            )
        })
    }

    async fn create(&self, call: CreateVolumeRequest) -> Result<CreateVolumeResponse> {
        let name = request::name(&call.name)?;
        request::capabilities(&call.volume_capabilities)?;
        let capacity = Capacity::new(call.capacity_range)?;
        if call.volume_content_source.is_some() {
            return Err(Error::invalid(
                "volume_content_source: this driver has neither snapshots nor clones; leave dataSource out of the claim",
            ));
        }
        let parameters = Parameters::parse(&call.parameters)?;
        let keys = secrets::resolve(&call.secrets, || self.stores.config.credentials.read())?;
        let endpoint = self.stores.allowed(parameters.endpoint_url.as_deref())?;
        let cluster = self.cluster()?;
        let values = Values::new(cluster, name, &call.parameters);
        let chosen = parameters.place(cluster, name, &values)?;
        let tags = parameters.tags(&values)?;
        let _turn = self.pending.begin(name)?;
        let _of_bucket = self.pending.begin_for(&endpoint, &chosen.place)?;
        let region = parameters.region.as_deref();
        let bucket = self.stores.bucket(&endpoint, region, chosen.place.bucket(), &keys)?;
        let request = provision::Request {
            cluster,
            name,
            chosen: &chosen,
            capacity,
            on_delete: parameters.on_delete,
            tags,
            location: region.filter(|it| *it != "us-east-1"),
            keys: &keys,
        };
        let Made { capacity_bytes, region } = Box::pin(request.make(bucket)).await?;
        let volume_id = VolumeId::new(cluster, name, chosen.place.clone()).to_string();
        let volume_context = context(&parameters, &chosen.place, region, &keys);
        let volume = Volume { capacity_bytes, volume_id, volume_context, ..Volume::default() };
        Ok(CreateVolumeResponse { volume: Some(volume) })
    }

    async fn delete(&self, call: DeleteVolumeRequest) -> Result<DeleteVolumeResponse> {
        if call.volume_id.is_empty() {
            return Err(Error::invalid("volume_id is missing: the provisioner must send it"));
        }
        let Some(id) = VolumeId::parse(&call.volume_id) else {
            warn!(volume_id = %call.volume_id.escape_debug(), "no volume of this driver has such an id; nothing is deleted");
            return Ok(DeleteVolumeResponse {});
        };
        let keys = secrets::resolve(&call.secrets, || self.stores.config.credentials.read())?;
        let cluster = self.cluster()?;
        let _turn = self.pending.begin(&call.volume_id)?;
        let (recorded, volumes_known) = match self.volumes.look_up(&call.volume_id).await {
            Ok(recorded) => (recorded, true),
            Err(error) => {
                warn!(volume_id = call.volume_id, %error, "the API server does not list the PersistentVolumes");
                (None, false)
            }
        };
        let recorded = recorded.as_ref();
        let request = deletion::Request { cluster, id: &id, recorded, volumes_known, keys: &keys };
        let region = recorded.and_then(|it| it.region.as_deref());
        for endpoint in
            self.endpoints(recorded.and_then(|it| it.endpoint_url.as_deref()), recorded.is_some())?
        {
            let _of_bucket = self.pending.begin_for(&endpoint, &id.place())?;
            let bucket = self.stores.bucket(&endpoint, region, id.bucket(), &keys)?;
            match Box::pin(request.run(bucket)).await? {
                Outcome::NotHere => {}
                Outcome::Gone => break,
                Outcome::Kept(note) => {
                    self.kept.inc();
                    warn!(volume_id = call.volume_id, "{note}");
                    if let Some(recorded) = recorded {
                        self.volumes.tell(&recorded.name, Reason::VolumeDataKept, &note).await;
                    }
                    break;
                }
            }
        }
        Ok(DeleteVolumeResponse {})
    }

    /// The stores that may have a volume: the store that its PersistentVolume names, or every allowed store if it never got a
    /// PersistentVolume.
    fn endpoints(&self, said: Option<&str>, is_recorded: bool) -> Result<BTreeSet<String>> {
        let mut all = BTreeSet::from([self.stores.allowed(said)?]);
        if !is_recorded {
            all.extend(
                self.stores.config.allowed_endpoints.iter().map(|it| it.trim_end_matches('/').to_owned()),
            );
        }
        Ok(all)
    }

    async fn validate(
        &self,
        call: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse> {
        if call.volume_id.is_empty() {
            return Err(Error::invalid("volume_id is missing: say which volume"));
        }
        if call.volume_capabilities.is_empty() {
            return Err(Error::invalid(
                "volume_capabilities is missing: list the capabilities that the volume must have",
            ));
        }
        let keys = secrets::resolve(&call.secrets, || self.stores.config.credentials.read())?;
        let unknown = || Error::new(ErrorKind::NotFound, format!("there is no volume {:?}", call.volume_id));
        let id = VolumeId::parse(&call.volume_id).ok_or_else(unknown)?;
        let recorded = self.volumes.known(&call.volume_id);
        let said = |key: &str| call.volume_context.get(key).map(String::as_str);
        let recorded = recorded.unwrap_or_default();
        let endpoint =
            self.stores.allowed(recorded.endpoint_url.as_deref().or_else(|| said(volume::ENDPOINT_URL)))?;
        let region = recorded.region.as_deref().or_else(|| said(volume::REGION));
        let bucket = self.stores.bucket(&endpoint, region, id.bucket(), &keys)?;
        let trying = format!("checking whether the bucket {} exists", id.bucket());
        let is_there = match id.place() {
            Place::Bucket(_) => {
                let looked = store::look(bucket).await.map_err(|e| store::error_of(&trying, &e, &keys))?;
                matches!(looked, Looked { tagging: Some(_), .. })
            }
            Place::Prefix { .. } => {
                let prefix = id.place().prefix().unwrap_or_default();
                let one = ListObjects { prefix, max_keys: 1, ..ListObjects::default() };
                match store::listed(bucket, &one).await {
                    Ok(_) => true,
                    Err(error) if *error.kind() == mountpoint::s3::ErrorKind::NoSuchBucket => false,
                    Err(error) => return Err(store::error_of(&trying, &error, &keys)),
                }
            }
        };
        if !is_there {
            return Err(unknown());
        }
        let answer = match call.volume_capabilities.iter().find_map(request::unfit) {
            Some(message) => {
                ValidateVolumeCapabilitiesResponse { message: message.to_owned(), ..Default::default() }
            }
            None => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: call.volume_context,
                    volume_capabilities: call.volume_capabilities,
                    parameters: call.parameters,
                    ..Default::default()
                }),
                message: String::new(),
            },
        };
        Ok(answer)
    }
}

/// The attributes of the PersistentVolume, which the node reads. `elsewhere` is the bucket's region according to the store, if it differs
/// from the request's.
fn context(
    parameters: &Parameters,
    place: &Place,
    elsewhere: Option<String>,
    keys: &Keys,
) -> HashMap<String, String> {
    // The credentials of this call decide which ones the node uses, as in release 2.2.
    let source = match (parameters.of_pod, keys.of_secret) {
        (true, _) => volume::SOURCE_POD,
        (false, true) => "secret",
        (false, false) => "driver",
    };
    let said = [
        (volume::BUCKET_NAME, Some(place.bucket().to_owned())),
        (volume::PREFIX, place.prefix()),
        (volume::REGION, elsewhere.or_else(|| parameters.region.clone()).or_else(|| keys.region.clone())),
        (volume::ENDPOINT_URL, parameters.endpoint_url.clone()),
        (volume::ON_DELETE, Some(parameters.on_delete.to_string())),
        (volume::AUTHENTICATION_SOURCE, Some(source.to_owned())),
        (volume::DYNAMIC_PROVISIONING, Some("true".to_owned())),
    ];
    said.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// Runs a call to its end, counts and logs the result, and makes the answer.
async fn answer<T: Send + 'static>(
    calls: &CallMetrics,
    call: &'static str,
    of: String,
    work: Pin<Box<dyn Future<Output = Result<T>> + Send>>,
) -> std::result::Result<Response<T>, Status> {
    let started = Instant::now();
    let ended = tokio::spawn(work).await;
    let ended = ended
        .unwrap_or_else(|_| Err(Error::internal("the call failed inside the driver: see the driver's log")));
    let took = started.elapsed();
    calls.called(call, &ended, took);
    let took_ms = took.as_millis() as u64;
    match ended {
        Ok(answer) => {
            info!(call, of = %of.escape_debug(), took_ms, "done");
            Ok(Response::new(answer))
        }
        Err(error) => {
            warn!(call, of = %of.escape_debug(), took_ms, kind = ?error.kind, %error, "failed");
            Err(error.into())
        }
    }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> std::result::Result<Response<CreateVolumeResponse>, Status> {
        let (service, call) = (self.clone(), request.into_inner());
        debug!(name = %call.name.escape_debug(), parameters = ?call.parameters, "CreateVolume");
        answer(
            &self.calls,
            "CreateVolume",
            call.name.clone(),
            Box::pin(async move { Box::pin(service.create(call)).await }),
        )
        .await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> std::result::Result<Response<DeleteVolumeResponse>, Status> {
        let (service, call) = (self.clone(), request.into_inner());
        answer(
            &self.calls,
            "DeleteVolume",
            call.volume_id.clone(),
            Box::pin(async move { Box::pin(service.delete(call)).await }),
        )
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> std::result::Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let (service, call) = (self.clone(), request.into_inner());
        answer(
            &self.calls,
            "ValidateVolumeCapabilities",
            call.volume_id.clone(),
            Box::pin(async move { service.validate(call).await }),
        )
        .await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> std::result::Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capabilities = [rpc::Type::CreateDeleteVolume, rpc::Type::SingleNodeMultiWriter];
        let capabilities = capabilities
            .map(|it| ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: it.into() })) });
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: capabilities.into() }))
    }
}
