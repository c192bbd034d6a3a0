//! A controller service on its own socket, and an S3 server behind it.

pub(crate) mod api;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use csi::controller::ControllerService;
use csi::controller::cluster::Cluster;
use csi::controller::ownership::Recorded;
use csi::controller::store::Config;
use csi::controller::volumes::Volumes;
use csi::mounter::Credentials;
use csi::node::driver_keys::DriverKeys;
use csi::proto::csi::controller_client::ControllerClient;
use csi::proto::csi::identity_client::IdentityClient;
use csi::proto::csi::node_client::NodeClient;
use csi::proto::csi::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use csi::proto::csi::{
    CreateVolumeRequest, DeleteVolumeRequest, NodeGetInfoRequest, Volume, VolumeCapability,
};
use csi::server::{Endpoint, Server as Driver};
use mountpoint::clock::Clock;
use mountpoint::object::ObjectKey;
use mountpoint::s3::{self, ListObjects, NewObject, ObjectClient as _, PutObject, S3Client, Tagging, Tags};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// The secret that no answer and no log may show.
pub(crate) const HUSH: &str = "HUSHHUSH";
/// The cluster's id.
pub(crate) const CLUSTER: &str = "uid-of-kube-system";

pub(crate) struct Lab {
    store: Arc<Store>,
    channel: Channel,
    /// The service that answers.
    pub(crate) service: ControllerService,
    _directory: tempfile::TempDir,
}

/// A server over a folder.
struct Store {
    server: s3server::Server,
    root: tempfile::TempDir,
}

impl Store {
    fn start(change: fn(s3server::Config) -> s3server::Config) -> Arc<Self> {
        let root = tempfile::tempdir().unwrap();
        let server = s3server::Server::start(change(s3server::Config::new(root.path()))).unwrap();
        Arc::new(Self { server, root })
    }
}

pub(crate) fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

pub(crate) fn capability(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

fn cluster() -> Cluster {
    Cluster::new(CLUSTER)
}

impl Lab {
    pub(crate) async fn start() -> Self {
        Self::over(Store::start(|it| it), Volumes::without_api(cluster()), &[]).await
    }

    /// A provisioner whose store has no tags of buckets.
    pub(crate) async fn without_tags() -> Self {
        let store = Store::start(|it| s3server::Config { bucket_tagging: false, ..it });
        Self::over(store, Volumes::without_api(cluster()), &[]).await
    }

    /// A provisioner whose API server never answers.
    pub(crate) async fn before_the_api_server_answers() -> Self {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        Self::over(Store::start(|it| it), Volumes::follow(&client, None), &[]).await
    }

    /// A driver on the same store, with an API server.
    pub(crate) async fn with_api(&self, client: &kube::Client) -> Self {
        let volumes = Volumes::follow(client, Some(cluster()));
        Self::over(self.store.clone(), volumes, &[]).await
    }

    /// A driver on the same store that knows a PersistentVolume.
    pub(crate) async fn recorded(&self, handle: &str, recorded: Recorded) -> Self {
        let volumes = BTreeMap::from([(handle.to_owned(), recorded)]);
        Self::over(self.store.clone(), Volumes::known_to_be(cluster(), volumes), &[]).await
    }

    /// A driver on the same store, with another one that classes may name.
    pub(crate) async fn allowing(&self, endpoint: &str) -> Self {
        Self::over(self.store.clone(), Volumes::without_api(cluster()), &[endpoint]).await
    }

    async fn over(store: Arc<Store>, volumes: Volumes, allowed: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            endpoint_url: store.server.endpoint(),
            allowed_endpoints: allowed.iter().map(|&it| it.to_owned()).collect(),
            region: None,
            extra_ca_bundles: Vec::new(),
            credentials: DriverKeys::Fixed(Some(Credentials {
                access_key_id: "test".into(),
                secret_access_key: "testsecret".into(),
                session_token: None,
            })),
        };
        let endpoint = Endpoint::Unix(directory.path().join("csi.sock"));
        let driver = Driver::bind(&endpoint).await.unwrap();
        let service = ControllerService::new(config, volumes);
        let serving = service.clone();
        tokio::spawn(async move { driver.serve_controller(serving, std::future::pending()).await.unwrap() });
        let channel =
            tonic::transport::Endpoint::from_shared(endpoint.to_string()).unwrap().connect().await.unwrap();
        Self { store, channel, service, _directory: directory }
    }

    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub(crate) fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel.clone())
    }

    pub(crate) async fn node(&self) -> Result<(), Status> {
        NodeClient::new(self.channel.clone()).node_get_info(NodeGetInfoRequest {}).await.map(drop)
    }

    pub(crate) fn server(&self) -> &s3server::Server {
        &self.store.server
    }

    /// A good call, as the provisioner makes it for a claim in the namespace `team-a`.
    pub(crate) fn call(&self, name: &str, parameters: &[(&str, &str)]) -> CreateVolumeRequest {
        let mut parameters = map(parameters);
        parameters.extend(map(&[
            ("csi.storage.k8s.io/pvc/name", &format!("claim-of-{name}")),
            ("csi.storage.k8s.io/pvc/namespace", "team-a"),
            ("csi.storage.k8s.io/pv/name", name),
        ]));
        CreateVolumeRequest {
            name: name.to_owned(),
            parameters,
            volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter)],
            ..Default::default()
        }
    }

    pub(crate) async fn create(&self, call: CreateVolumeRequest) -> Result<Volume, Status> {
        let answer = self.controller().create_volume(call).await?;
        Ok(answer.into_inner().volume.unwrap())
    }

    /// Repeats the call as the provisioner does, while the answer asks for it.
    pub(crate) async fn create_until_done(&self, call: CreateVolumeRequest) -> Volume {
        loop {
            match self.create(call.clone()).await {
                Ok(volume) => return volume,
                Err(status) => {
                    assert!(matches!(status.code(), Code::Aborted | Code::Unavailable), "{status}");
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn delete(&self, volume_id: &str) -> Result<(), Status> {
        let call = DeleteVolumeRequest { volume_id: volume_id.to_owned(), ..Default::default() };
        self.controller().delete_volume(call).await.map(drop)
    }

    fn folder(&self, bucket: &str) -> std::path::PathBuf {
        self.store.root.path().join(bucket)
    }

    /// The folders that are buckets, by name.
    pub(crate) fn buckets(&self) -> Vec<String> {
        let found = std::fs::read_dir(self.store.root.path()).unwrap();
        let names = found.map(|it| it.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|it| !it.starts_with('.')).collect();
        names.sort();
        names
    }

    pub(crate) fn make_bucket(&self, name: &str) {
        std::fs::create_dir(self.folder(name)).unwrap();
    }

    /// Puts an object by a request: keys need not be paths of a folder.
    pub(crate) async fn put(&self, bucket: &str, key: &str) {
        let new = NewObject::new(ObjectKey::new(key));
        let object = PutObject { object: new, body: vec!["x".into()], checksum: None };
        self.client(bucket).await.put_object(&object).await.unwrap();
    }

    pub(crate) async fn remove(&self, bucket: &str, key: &str) {
        self.admin(bucket).delete_object(&ObjectKey::new(key), None).await.unwrap();
    }

    async fn client(&self, bucket: &str) -> Arc<S3Client> {
        S3Client::connect(self.s3_config(bucket), Clock::machine(), Arc::default()).await.unwrap()
    }

    fn admin(&self, bucket: &str) -> s3::Bucket {
        let store = s3::Store::new(self.s3_config(bucket), &Clock::machine(), &Arc::default()).unwrap();
        store.bucket(bucket, "us-east-1", self.s3_config(bucket).credentials).unwrap()
    }

    fn s3_config(&self, bucket: &str) -> s3::Config {
        s3::Config {
            bucket: bucket.to_owned(),
            region: Some("us-east-1".into()),
            endpoint_url: Some(self.store.server.endpoint()),
            force_path_style: true,
            credentials: Some(s3::Credentials::new("test", "testsecret", None, None, "test")),
            ..s3::Config::default()
        }
    }

    pub(crate) async fn tags(&self, bucket: &str) -> Tags {
        match self.admin(bucket).tags().await.unwrap() {
            Tagging::Tags(tags) => tags,
            Tagging::Unsupported => panic!("the store has no tags"),
        }
    }

    /// Replaces the tags of a bucket, as another program does.
    pub(crate) async fn tag(&self, bucket: &str, tags: &Tags) {
        assert!(self.admin(bucket).set_tags(tags).await.unwrap());
    }

    pub(crate) async fn keys(&self, bucket: &str) -> Vec<String> {
        let request = ListObjects { max_keys: 1000, ..ListObjects::default() };
        let page = self.admin(bucket).list(&request).await.unwrap();
        page.objects.iter().map(|it| it.key.as_str().to_owned()).collect()
    }

    /// Begins an upload, which stays open.
    pub(crate) async fn upload(&self, bucket: &str, key: &str) {
        let new = NewObject::new(ObjectKey::new(key));
        self.client(bucket).await.create_multipart_upload(&new).await.unwrap();
    }

    pub(crate) async fn uploads(&self, bucket: &str) -> Vec<String> {
        let found = self.admin(bucket).uploads("").await.unwrap();
        found.iter().map(|it| it.upload.key.as_str().to_owned()).collect()
    }
}
