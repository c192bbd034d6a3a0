//! The kubelet's calls. Enters: a call of the service Node. Leaves: a request to a mounter, and the answer to the call.
//!
//! This room parses a call (`publish`, `target`), applies the rules for options and credentials (`options`, `credentials`), and admits one
//! call at a time for a target (`claims`). A mount that has begun runs to its end even if the caller stops waiting, because no one would
//! clean up half a mount.
//!
//! Never here: a mount, a wait for anything but a mounter, a secret in a log or an error.

pub mod advice;
pub mod claims;
pub mod credentials;
pub mod driver_keys;
pub mod options;
pub mod publish;
pub mod stats;
pub mod target;
pub mod trial;
pub mod volume_metrics;

use std::path::PathBuf;
use std::time::Instant;

use mountpoint::sync::Arc;
use tokio::sync::{mpsc, watch};
use tonic::{Request, Response, Status};
use tracing::{debug, info, warn};

use self::claims::{Claims, Table, Volume};
use self::credentials::AuthenticationSource;
use self::driver_keys::DriverKeys;
use self::options::{Inputs, MountOptions};
use self::publish::PublishRequest;
use self::stats::{Stats, Usage};
use self::target::Target;
use crate::call_metrics::CallMetrics;
use crate::contract::cache::{self, Cache};
use crate::contract::reason::Reason;
use crate::contract::volume;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Notice, WorkloadRef};
use crate::mounter::{Agent, Credentials, Made, MountRequest, Mounter, Token};
use crate::proto::csi::node_server::Node;
use crate::proto::csi::node_service_capability::{Rpc, Type, rpc};
use crate::proto::csi::volume_usage::Unit;
use crate::proto::csi::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeServiceCapability, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, VolumeCondition, VolumeUsage,
};

/// The audience of tokens for the agent of EKS Pod Identity.
const AGENT_AUDIENCE: &str = "pods.eks.amazonaws.com";

/// The configuration of the service Node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name.
    pub node_id: String,
    /// The kubelet's directory; nothing is mounted outside it.
    pub kubelet: PathBuf,
    /// URL of the store.
    pub endpoint_url: String,
    /// Other stores that a volume may name.
    pub allowed_endpoints: Vec<String>,
    /// Region of volumes that name none.
    pub region: Option<String>,
    /// Credentials of volumes without their own. Without these the engine finds credentials itself.
    pub credentials: DriverKeys,
    /// The token service that exchanges a token of the workload's service account for credentials.
    pub sts: Sts,
    /// The URL of the node's agent, which gives credentials to service accounts without a role; `None` if there is none.
    pub agent_url: Option<String>,
    /// The API server's version, for the user agent.
    pub kubernetes: Option<String>,
    /// The mount table of this process.
    pub mount_table: PathBuf,
}

/// The token service for tokens of service accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sts {
    /// URL of the service; `None`: AWS's in the region.
    pub endpoint_url: Option<String>,
    /// The audience of the tokens.
    pub audience: String,
}

impl Sts {
    fn endpoint(&self, region: Option<&str>) -> String {
        let of_aws = |region: &str| {
            let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
            format!("https://sts.{region}.{domain}")
        };
        self.endpoint_url.clone().unwrap_or_else(|| of_aws(region.unwrap_or("us-east-1")))
    }
}

/// The credentials of a mount, or the tokens that are exchanged for some.
struct Keys {
    whose: AuthenticationSource,
    credentials: Option<Credentials>,
    token: Option<Token>,
    agent: Option<Agent>,
}

/// The inputs of the engine's environment.
struct EngineEnv {
    of_volume: Vec<(String, String)>,
    endpoint_url: Option<String>,
    /// Whether an ARN names the bucket, and thereby its place.
    is_arn: bool,
    region: Option<String>,
    sts_region: Option<String>,
    needs_sts: bool,
    of_options: Vec<(String, String)>,
}

/// The service Node.
#[derive(Clone)]
pub struct NodeService {
    config: Arc<Config>,
    mounter: Arc<dyn Mounter>,
    table: Arc<Table>,
    claims: Claims,
    stats: Stats,
    notices: Option<mpsc::Sender<Notice>>,
    calls: CallMetrics,
    registers: watch::Sender<()>,
}

impl NodeService {
    /// A service that makes its mounts by `mounter`.
    #[must_use]
    pub fn new(config: Config, mounter: Arc<dyn Mounter>) -> Self {
        let table = Arc::new(Table { path: config.mount_table.clone(), kubelet: config.kubelet.clone() });
        let claims = Claims::new(table.clone());
        let (stats, calls) = (Stats::default(), CallMetrics::of("mount_s3_csi_node"));
        let registers = watch::Sender::new(());
        Self { config: Arc::new(config), mounter, table, claims, stats, notices: None, calls, registers }
    }

    /// A receiver that is notified when the kubelet registers the driver: only then it asks for the node's name.
    #[must_use]
    pub fn registers(&self) -> watch::Receiver<()> {
        self.registers.subscribe()
    }

    /// The page of metrics: counts of the calls, and the present usage of the engines.
    pub async fn page(&self) -> String {
        let volumes = self.mounter.usage().await;
        let is_outdated = self.mounter.is_outdated();
        volume_metrics::page(&self.calls.page(None), &self.config.node_id, &volumes, is_outdated)
    }

    /// Replaces the source of the mounts' usage.
    #[must_use]
    pub fn with_stats(self, stats: Stats) -> Self {
        Self { stats, ..self }
    }

    /// Sends notices for workloads to this writer of Events. Without one, notices are only logged.
    #[must_use]
    pub fn with_notices(self, notices: mpsc::Sender<Notice>) -> Self {
        Self { notices: Some(notices), ..self }
    }

    async fn publish(&self, call: NodePublishVolumeRequest) -> Result<NodePublishVolumeResponse> {
        let started = Instant::now();
        let request = PublishRequest::parse(call, &self.config.kubelet)?;
        debug!(?request, "NodePublishVolume");
        let Keys { whose, credentials, token, agent } = self.keys(&request)?;
        // The source that the volume names, unless the volume has a Secret.
        let source = match whose {
            AuthenticationSource::Secret | AuthenticationSource::Pod => whose,
            AuthenticationSource::Driver => request.authentication_source,
        };
        let is_mounted = self.table.read()?.at(&request.target.path).is_some();
        if !is_mounted {
            self.check_attributes(&request)?;
        }
        let endpoint = self.check_endpoint(request.endpoint_url.as_deref(), &request.volume);
        let cache = self.cache(&request);
        let options = endpoint.and_then(|()| {
            let cache = cache
                .as_ref()
                .map_err(|why| Error::invalid(format!("{why}: fix PersistentVolume {}", request.volume)))?;
            MountOptions::new(&Inputs {
                volume: &request.volume,
                bucket: &request.bucket,
                prefix: request.prefix.as_deref(),
                options: &request.mount_options,
                inline: request.inline,
                cache: cache.as_ref(),
                no_stage: self.mounter.no_stage(),
                keeps_stages: self.mounter.keeps_stages(),
                fs_group: request.fs_group,
                read_only: request.volume_read_only,
                source,
                kubernetes: self.config.kubernetes.as_deref(),
            })
        });
        // Options may be edited while a volume is mounted. A mount's options were checked when it was made, and new credentials must still
        // reach it.
        let (mut options, unusable) = match options {
            Err(error) if is_mounted => (MountOptions::default(), Some(error.to_string())),
            options => (options?, None),
        };
        let (names, why) = self.mounter.leaves_out();
        options.leave_out(names, why);
        if let Some(why) = &unusable {
            warn!(
                volume = request.volume,
                why, "the mount goes on, but its options would be refused for a new mount"
            );
        }
        let volume = Volume { name: request.volume.clone(), handle: request.handle.clone() };
        let claim = self.claims.publish(&request.target.path, &volume, request.single_writer)?;
        let place = request.place();
        if !is_mounted {
            self.tell_of_options(&request, &options);
            self.tell_of_cache(&request, cache.ok().flatten());
            self.tell_of_attributes(&request);
        }
        let target = request.target.path;
        let mount = MountRequest {
            volume: request.volume,
            handle: request.handle,
            workload_uid: request.workload_uid,
            workload: request.workload.clone(),
            target,
            read_only: request.read_only,
            source_read_only: options.read_only,
            bucket: request.bucket.clone(),
            place,
            args: options.args,
            env: self.engine_env(EngineEnv {
                of_volume: request.engine_env,
                endpoint_url: request.endpoint_url,
                is_arn: publish::is_arn(&request.bucket),
                region: request.region,
                sts_region: request.sts_region.filter(|_| token.is_some()),
                needs_sts: token.is_some(),
                of_options: options.env,
            }),
            unusable,
            credentials,
            of_secret: whose == AuthenticationSource::Secret,
            token,
            agent,
        };
        let (mounter, notices, workload) = (self.mounter.clone(), self.notices.clone(), request.workload);
        let mounted = tokio::spawn(async move {
            let (volume, target) = (mount.volume.clone(), mount.target.clone());
            let made = mounter.mount(mount).await.map_err(|error| {
                match advice::field_for(&error.to_string(), &volume, whose) {
                    Some(field) => Error::new(error.kind, format!("{error}: {field}")),
                    None => error,
                }
            })?;
            claim.published();
            if let Made::BySystemdInstead(why) = made {
                let note = format!(
                    "the node's systemd mounts PersistentVolume {volume}, and the mount stays so until the pod ends: {why}"
                );
                send(notices.as_ref(), workload, Reason::MountedBySystemd, note);
            }
            info!(volume, target = %target.display(), took_ms = started.elapsed().as_millis() as u64, "published");
            Ok(NodePublishVolumeResponse {})
        });
        mounted.await.unwrap_or_else(|_| {
            Err(Error::internal("the mount failed inside the driver: see the driver's log"))
        })
    }

    /// The credentials of a mount and their source, or the tokens that are exchanged for credentials.
    fn keys(&self, request: &PublishRequest) -> Result<Keys> {
        let of_pod = request.authentication_source == AuthenticationSource::Pod;
        let of_driver = || if of_pod { Ok(None) } else { self.config.credentials.read() };
        let (whose, credentials) = credentials::resolve(&request.secrets, of_driver)?;
        if !of_pod || whose == AuthenticationSource::Secret {
            return Ok(Keys { whose, credentials, token: None, agent: None });
        }
        let token = |audience: &str| credentials::token(&request.secrets, &request.tokens, audience);
        let url = self.config.agent_url.clone();
        let agent =
            url.map(|url| Ok::<_, Error>(Agent { url, token: token(AGENT_AUDIENCE)? })).transpose()?;
        let token = Some(token(&self.config.sts.audience)?);
        Ok(Keys { whose: AuthenticationSource::Pod, credentials: None, token, agent })
    }

    async fn unpublish(&self, call: NodeUnpublishVolumeRequest) -> Result<NodeUnpublishVolumeResponse> {
        debug!(volume_id = call.volume_id, target_path = call.target_path, "NodeUnpublishVolume");
        if call.volume_id.is_empty() {
            return Err(Error::invalid("volume_id is missing: the kubelet must send it"));
        }
        let target = Target::parse("target_path", &call.target_path, &self.config.kubelet)?.path;
        let claim = self.claims.unpublish(&target)?;
        let mounter = self.mounter.clone();
        let unmounted = tokio::spawn(async move {
            mounter.unmount(&target).await?;
            claim.gone();
            Ok(NodeUnpublishVolumeResponse {})
        });
        unmounted.await.unwrap_or_else(|_| {
            Err(Error::internal("the unmount failed inside the driver: see the driver's log"))
        })
    }

    async fn volume_stats(&self, call: NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse> {
        if call.volume_id.is_empty() {
            return Err(Error::invalid("volume_id is missing: the kubelet must send it"));
        }
        if call.volume_path.is_empty() {
            return Err(Error::invalid("volume_path is missing: the kubelet must send it"));
        }
        let unknown = || {
            let path = &call.volume_path;
            Error::new(
                ErrorKind::NotFound,
                format!("volume_path {path:?} is not a mounted volume of this node"),
            )
        };
        let path = Target::parse("volume_path", &call.volume_path, &self.config.kubelet)
            .map_err(|_| unknown())?
            .path;
        // Whether the path is mounted comes from the mount table, which never blocks.
        let mounts = self.table.read()?;
        if mounts.at(&path).is_none() {
            return Err(unknown());
        }
        let (usage, condition) = match self.stats.of(&path).await {
            Ok(usage) => (usage, VolumeCondition { abnormal: false, message: "the mount answers".into() }),
            Err(message) => {
                let message = match self.mounter.restarting(&path) {
                    Some(state) => {
                        format!(
                            "the engine of the mount at {} died and is started again ({state})",
                            path.display()
                        )
                    }
                    None => message,
                };
                warn!(volume_id = call.volume_id, message, "volume condition");
                let others = stats::others(mounts.buckets(), &path, &self.config.kubelet);
                let usage = self.stats.of_first(others).await.unwrap_or_default();
                (usage, VolumeCondition { abnormal: true, message })
            }
        };
        Ok(NodeGetVolumeStatsResponse { usage: wire(usage).into(), volume_condition: Some(condition) })
    }

    /// Reports options that the engine does not get as they were written. A call for a mounted target reports nothing: the kubelet repeats
    /// such calls, and the first one reported the options.
    fn tell_of_options(&self, request: &PublishRequest, options: &MountOptions) {
        let MountOptions { stripped, overruled, .. } = options;
        let volume = &request.volume;
        for (option, why) in overruled {
            info!(volume, option, why, "mount option overruled");
        }
        for (option, why) in stripped {
            warn!(volume, option, why, "mount option left out");
        }
        self.tell(request, Reason::MountOptionLeftOut, options.left_out(volume));
    }

    /// The cache of the volume; `None` if the mounter has no Mountpoint Pods for it.
    fn cache(&self, request: &PublishRequest) -> std::result::Result<Option<Cache>, String> {
        if self.is_ignored(request, volume::CACHE) {
            return Ok(None);
        }
        Cache::read(|key| request.cache.get(key).map(String::as_str), &request.mount_options)
    }

    /// Whether an attribute has no effect on the mounter. A cache on a claim has none where claims have none.
    fn is_ignored(&self, request: &PublishRequest, attribute: &str) -> bool {
        let ignored = self.mounter.ignores();
        let on_a_claim = || request.cache.get(volume::CACHE).is_some_and(|kind| kind == cache::EPHEMERAL);
        ignored.contains(&attribute)
            || attribute == volume::CACHE && ignored.contains(&volume::CACHE_CLASS) && on_a_claim()
    }

    /// Reports a cache with the default size: earlier releases set no limit.
    fn tell_of_cache(&self, request: &PublishRequest, cache: Option<Cache>) {
        let Some(cache) = cache.filter(|cache| cache.is_default) else { return };
        let note = format!(
            "the cache of PersistentVolume {} may use {} MiB of the node, since the volume says no size: set {}: emptyDir and {} in its \
             volumeAttributes, or 'max-cache-size' in its mountOptions",
            request.volume,
            cache.max_mib,
            volume::CACHE,
            volume::CACHE_SIZE_LIMIT
        );
        self.tell(request, Reason::CacheLimited, Some(note));
    }

    /// Reports unknown attributes, because a misspelt one would otherwise go unnoticed, and attributes without an effect on
    /// this mounter.
    fn tell_of_attributes(&self, request: &PublishRequest) {
        let known = request.known_attributes.iter().map(String::as_str);
        let without: Vec<_> = known.filter(|it| self.is_ignored(request, it)).collect();
        if !without.is_empty() {
            let (volume, without) = (&request.volume, without.join(", "));
            warn!(volume, without, "volume attributes without effect");
            let note = format!(
                "volumeAttributes have no effect: {without}. They configure Mountpoint Pods, and with node.mounter: systemd or shared of \
                 the chart there are none. PersistentVolume {volume} has them; certificates for all volumes are tls.caCertConfigMap of the chart"
            );
            self.tell(request, Reason::VolumeAttributeUnknown, Some(note));
        }
        if request.unknown_attributes.is_empty() {
            return;
        }
        let (volume, unknown) = (&request.volume, request.unknown_attributes.join(", "));
        warn!(volume, unknown, "volume attributes without effect");
        let note = format!(
            "volumeAttributes have no effect: {unknown}. The driver does not know them; names are case-sensitive. \
             PersistentVolume {volume} has them"
        );
        self.tell(request, Reason::VolumeAttributeUnknown, Some(note));
    }

    fn tell(&self, request: &PublishRequest, reason: Reason, note: Option<String>) {
        if let Some(note) = note {
            send(self.notices.as_ref(), request.workload.clone(), reason, note);
        }
    }

    /// The engine's environment without credentials: with the volume's store and region, else the driver's.
    fn engine_env(&self, given: EngineEnv) -> Vec<(String, String)> {
        let mut env = given.of_volume;
        if !given.is_arn {
            let endpoint_url = given.endpoint_url.unwrap_or_else(|| self.config.endpoint_url.clone());
            env.push(("AWS_ENDPOINT_URL".to_owned(), endpoint_url));
        }
        let region = given.region.or_else(|| self.config.region.clone());
        if given.needs_sts {
            // Without this variable AWS_ENDPOINT_URL would also name the token service.
            let region = given.sts_region.or_else(|| region.clone());
            env.push(("AWS_ENDPOINT_URL_STS".to_owned(), self.config.sts.endpoint(region.as_deref())));
        }
        env.extend(region.map(|region| ("AWS_REGION".to_owned(), region)));
        env.extend(given.of_options);
        env
    }

    /// Refuses attributes that this mounter can't follow: it would serve another volume than the author means.
    fn check_attributes(&self, request: &PublishRequest) -> Result<()> {
        let refused = self.mounter.refuses();
        match request.known_attributes.iter().find(|it| refused.contains(&it.as_str())) {
            Some(attribute) => Err(Error::invalid(format!(
                "volume attribute {attribute} of PersistentVolume {} needs a Mountpoint Pod, and with node.mounter: shared of the chart there are \
                 none: leave it out; certificates for all volumes are tls.caCertConfigMap of the chart",
                request.volume
            ))),
            None => Ok(()),
        }
    }

    /// Refuses a store of a volume that the administrator does not allow, because the volume's credentials would be sent there.
    fn check_endpoint(&self, endpoint_url: Option<&str>, volume: &str) -> Result<()> {
        let Some(asked) = endpoint_url else { return Ok(()) };
        let mut allowed = self.config.allowed_endpoints.iter().chain([&self.config.endpoint_url]);
        if allowed.any(|it| it.trim_end_matches('/') == asked.trim_end_matches('/')) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "endpointUrl {asked:?} of PersistentVolume {volume} is neither s3.endpointUrl of the chart nor in s3.allowedEndpoints: an \
             administrator may add it there"
        )))
    }
}

fn wire(usage: Usage) -> [VolumeUsage; 2] {
    let number = |it: u64| i64::try_from(it).unwrap_or(i64::MAX);
    [
        VolumeUsage {
            unit: Unit::Bytes.into(),
            available: number(usage.available_bytes),
            total: number(usage.total_bytes),
            used: number(usage.used_bytes),
        },
        VolumeUsage {
            unit: Unit::Inodes.into(),
            available: number(usage.free_inodes),
            total: number(usage.total_inodes),
            used: number(usage.total_inodes.saturating_sub(usage.free_inodes)),
        },
    ]
}

fn send(notices: Option<&mpsc::Sender<Notice>>, workload: Option<WorkloadRef>, reason: Reason, note: String) {
    if let (Some(notices), Some(workload)) = (notices, workload) {
        let (namespace, pod) = (workload.namespace.clone(), workload.name.clone());
        if let Err(error) = notices.try_send(Notice { workload, reason, note }) {
            warn!(namespace, pod, %error, %reason, "no Event is written");
        }
    }
}

/// Logs the result of a call, and turns it into the gRPC answer.
fn answer<T>(call: &str, result: Result<T>) -> std::result::Result<Response<T>, Status> {
    match result {
        Ok(answer) => {
            debug!(call, "done");
            Ok(Response::new(answer))
        }
        Err(error) => {
            warn!(call, kind = ?error.kind, %error, "failed");
            Err(error.into())
        }
    }
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> std::result::Result<Response<NodePublishVolumeResponse>, Status> {
        let began = Instant::now();
        let result = self.publish(request.into_inner()).await;
        self.calls.called("NodePublishVolume", &result, began.elapsed());
        answer("NodePublishVolume", result)
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> std::result::Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let began = Instant::now();
        let result = self.unpublish(request.into_inner()).await;
        self.calls.called("NodeUnpublishVolume", &result, began.elapsed());
        answer("NodeUnpublishVolume", result)
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> std::result::Result<Response<NodeGetVolumeStatsResponse>, Status> {
        answer("NodeGetVolumeStats", self.volume_stats(request.into_inner()).await)
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> std::result::Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capabilities = [
            rpc::Type::VolumeMountGroup,
            rpc::Type::SingleNodeMultiWriter,
            rpc::Type::GetVolumeStats,
            rpc::Type::VolumeCondition,
        ];
        let capabilities = capabilities
            .map(|it| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: it.into() })) });
        answer("NodeGetCapabilities", Ok(NodeGetCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> std::result::Result<Response<NodeGetInfoResponse>, Status> {
        self.registers.send_replace(());
        let max = self.mounter.volumes_max().map(|max| i64::try_from(max).unwrap_or(i64::MAX));
        let info = NodeGetInfoResponse {
            node_id: self.config.node_id.clone(),
            // 0 means no limit: the scheduler may place any number here.
            max_volumes_per_node: max.unwrap_or_default(),
            ..Default::default()
        };
        answer("NodeGetInfo", Ok(info))
    }
}
