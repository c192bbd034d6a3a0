//! The client of a real store: connects the parts of this room, and proves that the bucket can be used before the mount relies on it.

use std::hash::{BuildHasher as _, RandomState};

use aws_config::environment::region::EnvironmentVariableRegionProvider;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::region::ProfileFileRegionProvider;
use aws_config::provider_config::ProviderConfig;
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use http::{HeaderMap, HeaderValue, header};

use crate::buffer::{BlockMut, Fill};
use crate::checksum::Checksum;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::net::pool::{ConnectionPool, NoConnection};
use crate::object::{ObjectId, ObjectKey, ObjectMeta, Second};
use crate::s3::abilities::{Abilities, Write, kind_of_endpoint};
use crate::s3::auth::arn::Arn;
use crate::s3::auth::credentials::Source;
use crate::s3::auth::credentials_http::Http;
use crate::s3::auth::profile;
use crate::s3::auth::sign::{Signer, Skew};
use crate::s3::endpoint::Endpoint;
use crate::s3::hedge::Hedge;
use crate::s3::oddities::Oddity;
use crate::s3::ops::if_absent::guarded;
use crate::s3::ops::{complete, copy, delete, first, get, head, list, multipart, put, tagging};
use crate::s3::outage::Outage;
use crate::s3::retry::{Dice, Slots};
use crate::s3::sums::Sums;
use crate::s3::wire::Wire;
use crate::s3::{
    BoxFuture, CompleteUpload, Config, CopyObject, CopyPart, Courier, Described, Error, ErrorKind, First,
    GetFirst, GetObject, ListObjects, ListPage, NewObject, ObjectClient, PartLimits, PendingUpload,
    PutObject, Replaces, Result, StoreKind, Stored, Tags, UploadId, UploadPart, UploadedPart,
};
use crate::sync::{Arc, Mutex};

/// Most attempts to prove the bucket: a dead endpoint is reported within seconds ...
const PROOF_ATTEMPTS: u32 = 3;
/// ... and the time for them: a silent endpoint is reported before the mount command stops waiting.
const PROOF_MAX: std::time::Duration = std::time::Duration::from_secs(26);
/// Longest wait for the sources of the region. Beyond it, the store's default region is used.
const REGION_MAX: std::time::Duration = std::time::Duration::from_secs(3);

/// One bucket of a real store.
#[derive(Debug)]
pub struct S3Client {
    pub(crate) wire: Wire,
}

impl S3Client {
    /// Finds region and credentials, and lists one key under the prefix, which proves that the bucket exists and this user may read it.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// `NoCredentials`, `NoSuchBucket`, `Denied`, `WrongRegion` (with the right one, if the user gave another), `Network`
    /// (nothing listens, within 5 s), `Timeout` (nothing answers, within 26 s), `InvalidRequest` (the configuration).
    pub async fn connect(config: Config, clock: Clock, metrics: Arc<Metrics>) -> Result<Arc<Self>> {
        let (client, proof) = Self::reach(config, clock, metrics).await?;
        proof.map(|()| client)
    }

    /// Connects like [`Self::connect`], for a caller that goes on without the proof: returns the client, and the result of the proof.
    ///
    /// # Errors
    /// `InvalidRequest` (the configuration).
    pub async fn reach(
        mut config: Config,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Result<(Arc<Self>, Result<()>)> {
        with_profile(&mut config).await;
        if let Some(kind) = config.store.or_else(|| kind_of_endpoint(&config)) {
            let may_choose = config.endpoint_url.is_some() && !config.bucket.starts_with("arn:");
            config.force_path_style |= may_choose && kind.profile().path_style;
        }
        let pool = ConnectionPool::new(&config.net(), &clock, &metrics)?;
        let mut region = match (&config.region, Arn::parse(&config.bucket)) {
            (Some(region), _) => region.clone(),
            (None, Ok(arn)) if !arn.region.is_empty() => arn.region.to_owned(),
            (None, _) => find_region(&config, &pool).await,
        };
        if !region.chars().all(|c| c.is_ascii_graphic()) {
            return Err(Error::new(ErrorKind::InvalidRequest, "configuration").message(format!(
                "the region {region:?} has white space within, or is not ASCII: look at --region, AWS_REGION and ~/.aws/config"
            )));
        }
        let mut client = Self::new(config.clone(), &region, &pool)?;
        let mut switched = false;
        let proof = loop {
            let refused = match client.prove().await {
                Ok(()) => break Ok(()),
                Err(e) => e,
            };
            if may_be_path_style(&client.wire, &refused) {
                let by_path = Config { force_path_style: true, ..config.clone() };
                let other = Self::new(by_path, &region, &pool)?;
                if other.prove().await.is_ok() {
                    tracing::info!(
                        "the bucket answers in the path of the URL, not in the host name: --force-path-style is assumed"
                    );
                    client = other;
                    break Ok(());
                }
            }
            let right = match refused.kind() {
                ErrorKind::WrongRegion(Some(right)) if *right != region => right.clone(),
                _ => break Err(refused),
            };
            if switched || config.region.is_some() {
                break Err(refused.message(format!(
                    "the bucket {:?} is in region {right}, not {region}: give that region",
                    config.bucket
                )));
            }
            tracing::info!("the bucket is in region {right}, switching from {region}");
            region = right;
            client = Self::new(config.clone(), &region, &pool)?;
            switched = true;
        };
        Ok((Arc::new(client), proof))
    }

    /// A client of a bucket that an earlier process proved, in this region. Makes no request, so it works during an outage of store or
    /// credentials.
    ///
    /// # Errors
    /// `InvalidRequest` (the configuration).
    pub async fn resume(
        mut config: Config,
        region: &str,
        path_style: bool,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Self>> {
        with_profile(&mut config).await;
        config.force_path_style |= path_style;
        let pool = ConnectionPool::new(&config.net(), &clock, &metrics)?;
        Ok(Arc::new(Self::new(config, region, &pool)?))
    }

    /// Whether the bucket is in the path of the URL.
    pub fn is_path_style(&self) -> bool {
        self.wire.config.force_path_style
    }

    /// The region that requests are signed for.
    pub fn region(&self) -> &str {
        self.wire.signer.region()
    }

    /// URL of the store, from the flag or the profile; `None` for AWS.
    pub fn endpoint_url(&self) -> Option<&str> {
        self.wire.config.endpoint_url.as_deref()
    }

    /// The kind of the store; generic until it is known.
    pub fn store(&self) -> StoreKind {
        self.wire.abilities.kind()
    }

    /// Whether the store is known to refuse copies, so that nothing can be renamed.
    pub fn refuses_copies(&self) -> bool {
        self.wire.abilities.refuses_copies()
    }

    /// Whether the store has refused an upload without Content-MD5, to this client or an earlier mount.
    pub fn demands_md5(&self) -> bool {
        self.wire.abilities.demands_md5()
    }

    /// Whether the store refuses requests for objects with their checksums.
    pub fn refuses_checksum_mode(&self) -> bool {
        self.wire.abilities.refuses_checksum_mode()
    }

    /// Whether a listing had entries that the file system can't show.
    pub fn has_left_out_entries(&self) -> bool {
        self.wire.abilities.oddities.has_seen(Oddity::BadEntries)
    }

    /// Whether the store refused a read for If-Match although the ETag was the object's own.
    pub fn is_refused_if_match(&self) -> bool {
        self.wire.abilities.oddities.has_seen(Oddity::IfMatch)
    }

    /// Whether the store decompresses compressed objects, unless the request forbids it.
    pub fn decompresses(&self) -> bool {
        self.wire.abilities.decompresses()
    }

    /// A sender of requests to other services, on the same connections.
    pub fn courier(&self) -> Courier {
        Courier(Http::new(&self.wire.config, &self.wire.pool))
    }

    /// Makes a client without a request.
    pub(crate) fn new(config: Config, region: &str, pool: &Arc<ConnectionPool>) -> Result<Self> {
        Ok(Self { wire: wire(config, region, pool)? })
    }

    /// Logs a failed request of the mount. Callers do not log it again.
    async fn logged<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        call.await.map_err(|error| error.log(&self.wire.metrics))
    }

    /// Awaits a request that stores an object: logs its failure, and caches the object's checksum. Reads can then be verified even if the
    /// store has another kind of checksum, or none.
    async fn stored(
        &self,
        key: &ObjectKey,
        size: u64,
        sum: Option<Checksum>,
        call: impl Future<Output = Result<Stored>>,
    ) -> Result<Stored> {
        let stored = self.logged(call).await?;
        if let Some(sum) = sum {
            let modified = stored.modified.and_then(Second::of);
            self.wire.sums.uploaded(key, &stored.etag, size, modified, sum);
        }
        Ok(stored)
    }

    /// Notes that the store accepts only parts of equal size, if its answer shows that.
    async fn learning<T>(&self, completed: impl Future<Output = Result<T>>) -> Result<T> {
        completed.await.inspect_err(|error| {
            if error.wants_equal_parts() {
                self.wire.abilities.learn_equal_parts();
            }
        })
    }

    /// Proves the bucket with a listing of one key, and less patience than later requests have.
    async fn prove(&self) -> Result<()> {
        let request =
            ListObjects { prefix: self.wire.config.prefix.clone(), max_keys: 1, ..ListObjects::default() };
        let proof = list::prove(&self.wire, &request, PROOF_ATTEMPTS, PROOF_MAX);
        proof.await.map(drop)
    }
}

/// Adds the settings of the profile, and trims region and URL.
async fn with_profile(config: &mut Config) {
    profile::complete(config).await;
    for setting in [&mut config.region, &mut config.endpoint_url] {
        // The value of a variable may end with the line end of the file from which it was read.
        *setting = setting.take().map(|it| it.trim().to_owned()).filter(|it| !it.is_empty());
    }
}

/// The connections, credentials and settings for a bucket in this region. Makes no request.
pub(crate) fn wire(config: Config, region: &str, pool: &Arc<ConnectionPool>) -> Result<Wire> {
    let endpoint = Endpoint::new(&config, region)?;
    let (clock, metrics) = (&pool.clock, &pool.metrics);
    let abilities = Abilities::new(&config, &endpoint, clock.wall());
    let http = SharedHttpClient::new(Http::new(&config, pool));
    let skew = Arc::new(Skew::default());
    let credentials = config.sign_requests.then(|| Source::new(http, region, &config, clock, &skew));
    let common = common_headers(&config, &endpoint)?;
    let host = pool.bucket_host(&endpoint.authority);
    Ok(Wire {
        signer: Signer::new(region, endpoint.signing.clone()),
        slots: Slots::new(),
        outage: Mutex::new(Outage::default()),
        hedge: Hedge::default(),
        dice: Dice::new(RandomState::new().hash_one(0)),
        skew,
        clock: clock.clone(),
        metrics: Arc::clone(metrics),
        config,
        endpoint,
        pool: Arc::clone(pool),
        credentials,
        common,
        host,
        sums: Sums::default(),
        abilities,
    })
}

/// Whether the refusal may come from the bucket's name in the host name: the store does not look there, or DNS does not know the name.
fn may_be_path_style(wire: &Wire, refused: &Error) -> bool {
    let config = &wire.config;
    let chosen = config.endpoint_url.is_none() || config.force_path_style || config.store.is_some();
    let unresolved = || matches!(refused.cause(), Some(NoConnection::Dns(_)));
    let is_doubtful = match refused.kind() {
        ErrorKind::NoSuchBucket | ErrorKind::BadAnswer => true,
        ErrorKind::Network => unresolved(),
        _ => false,
    };
    !chosen && wire.endpoint.has_bucket_in_host() && is_doubtful
}

/// The region of the environment, the profile or (on AWS only) the instance; without one, the default region of the store's kind.
async fn find_region(config: &Config, pool: &Arc<ConnectionPool>) -> String {
    let provider = ProviderConfig::default().with_http_client(Http::new(config, pool));
    let mut profile = ProfileFileRegionProvider::builder().configure(&provider);
    if let Some(name) = &config.profile {
        profile = profile.profile_name(name);
    }
    let mut chain =
        RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new()).or_else(profile.build());
    if config.endpoint_url.is_none() && config.sign_requests {
        chain = chain.or_else(ImdsRegionProvider::builder().configure(&provider).build());
    }
    let found = tokio::select! {
        found = chain.region() => found,
        () = pool.clock.sleep(REGION_MAX) => None,
    };
    let kind = config.store.or_else(|| kind_of_endpoint(config)).unwrap_or(StoreKind::Generic);
    let found = found.map(|it| it.as_ref().trim().to_owned()).filter(|it| !it.is_empty());
    found.unwrap_or_else(|| kind.profile().region.to_owned())
}

fn common_headers(config: &Config, endpoint: &Endpoint) -> Result<HeaderMap> {
    let agent = format!("mount-s3/{}", env!("CARGO_PKG_VERSION"));
    let agent = match &config.user_agent_prefix {
        Some(prefix) => format!("{prefix} {agent}"),
        None => agent,
    };
    let host = endpoint.authority.host_header();
    let owner = config.expected_bucket_owner.as_deref();
    let payer = config.requester_pays.then_some("requester");
    let mut headers = HeaderMap::with_capacity(16);
    for (name, value) in [
        (header::HOST, Some(host.as_str())),
        (header::USER_AGENT, Some(agent.as_str())),
        (header::HeaderName::from_static("x-amz-expected-bucket-owner"), owner),
        (header::HeaderName::from_static("x-amz-request-payer"), payer),
    ] {
        let Some(value) = value else { continue };
        let value = HeaderValue::from_str(value).map_err(|e| {
            Error::new(ErrorKind::InvalidRequest, "configuration")
                .message(format!("{value:?} is not valid in the header {name}"))
                .source(e)
        })?;
        headers.insert(name, value);
    }
    Ok(headers)
}

impl ObjectClient for S3Client {
    fn moved(&self) -> u64 {
        self.wire.moved()
    }

    fn checksum(&self, id: &ObjectId, size: u64) -> Option<Checksum> {
        self.wire.sums.get(id, size)
    }

    fn part_limits(&self) -> PartLimits {
        self.wire.abilities.part_limits()
    }

    fn head_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<ObjectMeta>> {
        Box::pin(self.logged(head::head_object(&self.wire, key)))
    }

    fn list_objects<'a>(&'a self, request: &'a ListObjects) -> BoxFuture<'a, Result<ListPage>> {
        Box::pin(self.logged(list::list_objects(&self.wire, request)))
    }

    fn get_object<'a>(&'a self, request: &'a GetObject, into: &'a mut Fill) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.logged(get::get_object(&self.wire, request, into)))
    }

    fn get_first<'a>(&'a self, request: &'a GetFirst, room: BlockMut) -> BoxFuture<'a, Result<First>> {
        Box::pin(self.logged(first::get_first(&self.wire, request, room)))
    }

    fn put_object<'a>(&'a self, request: &'a PutObject) -> BoxFuture<'a, Result<Stored>> {
        let (sum, NewObject { key, replaces, .. }) = (request.checksum, &request.object);
        let size = request.body.iter().map(|piece| piece.len() as u64).sum();
        let store = |conditional| put::put_object(&self.wire, request, conditional);
        Box::pin(self.stored(key, size, sum, guarded(&self.wire, Write::Put, key, replaces, store)))
    }

    fn create_multipart_upload<'a>(&'a self, request: &'a NewObject) -> BoxFuture<'a, Result<UploadId>> {
        Box::pin(self.logged(multipart::create(&self.wire, request)))
    }

    fn upload_part<'a>(&'a self, request: &'a UploadPart) -> BoxFuture<'a, Result<UploadedPart>> {
        Box::pin(self.logged(put::upload_part(&self.wire, request)))
    }

    fn complete_multipart_upload<'a>(&'a self, request: &'a CompleteUpload) -> BoxFuture<'a, Result<Stored>> {
        let sum = complete::whole_sum(&request.parts);
        let size = request.parts.iter().map(|part| part.size).sum();
        let complete = |conditional| complete::complete(&self.wire, request, conditional);
        let (key, replaces) = (&request.upload.key, &request.replaces);
        let completed = guarded(&self.wire, Write::Complete, key, replaces, complete);
        Box::pin(self.stored(key, size, sum, self.learning(completed)))
    }

    fn abort_multipart_upload<'a>(&'a self, upload: &'a UploadId) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.logged(multipart::abort(&self.wire, upload)))
    }

    fn list_multipart_uploads<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<PendingUpload>>> {
        Box::pin(self.logged(multipart::list_uploads(&self.wire, prefix)))
    }

    fn delete_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.logged(delete::delete_object(&self.wire, key)))
    }

    fn delete_version<'a>(&'a self, id: &'a ObjectId) -> BoxFuture<'a, Result<()>> {
        let delete = |conditional| delete::delete_if(&self.wire, id, conditional);
        Box::pin(self.logged(async move {
            let replaces = Replaces::Version(id.etag.clone());
            match guarded(&self.wire, Write::Delete, &id.key, &replaces, delete).await {
                // The store refused because no object matched. If the key does not exist any more, the deletion has its goal.
                Err(error) if *error.kind() == ErrorKind::Changed && error.http_status().is_none() => {
                    match head::head_object(&self.wire, &id.key).await {
                        Err(gone) if *gone.kind() == ErrorKind::NotFound => Ok(()),
                        _ => Err(error),
                    }
                }
                outcome => outcome,
            }
        }))
    }

    fn describe_object<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Described>> {
        Box::pin(self.logged(head::describe_object(&self.wire, key)))
    }

    fn object_tags<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Tags>> {
        Box::pin(self.logged(tagging::of_object(&self.wire, key)))
    }

    fn copy_object<'a>(&'a self, request: &'a CopyObject) -> BoxFuture<'a, Result<Stored>> {
        let copy = move |conditional| async move {
            let copied = copy::copy_object(&self.wire, request, conditional).await;
            let refuses = |error: &Error| !conditional && *error.kind() == ErrorKind::Unsupported;
            if copied.as_ref().is_err_and(refuses) {
                self.wire.abilities.learn_refused_copies();
            }
            copied
        };
        Box::pin(self.logged(guarded(&self.wire, Write::Copy, &request.to, &request.replaces, copy)))
    }

    fn upload_part_copy<'a>(&'a self, request: &'a CopyPart) -> BoxFuture<'a, Result<UploadedPart>> {
        Box::pin(self.logged(copy::upload_part_copy(&self.wire, request)))
    }
}
