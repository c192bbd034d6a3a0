//! A driver on its own socket, and a mounter that records its requests.

#![allow(dead_code, reason = "each test file uses a part")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use csi::contract::restart::Restarting;
use csi::contract::volume;
use csi::error::{Error, ErrorKind, Result};
use csi::events::Notice;
use csi::mounter::{Credentials, Made, MountRequest, Mounter, VolumeUsage};
use csi::node::driver_keys::DriverKeys;
use csi::node::stats::Stats;
use csi::node::{Config, NodeService, Sts};
use csi::proto::csi::controller_client::ControllerClient;
use csi::proto::csi::identity_client::IdentityClient;
use csi::proto::csi::node_client::NodeClient;
use csi::proto::csi::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use csi::proto::csi::{NodePublishVolumeRequest, VolumeCapability};
use csi::server::{Endpoint, Fault, Health, Server};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

/// A secret that no error and no log may show.
pub(crate) const HUSH: &str = "HUSHHUSH";

/// A mounter that does nothing, and records its requests.
#[derive(Default)]
pub(crate) struct Recorder {
    mounts: Mutex<Vec<MountRequest>>,
    unmounts: Mutex<Vec<PathBuf>>,
    next_error: Mutex<Option<Error>>,
    gate: Mutex<Option<Arc<Semaphore>>>,
    ignored: Mutex<&'static [&'static str]>,
    left_out: Mutex<(&'static [&'static str], &'static str)>,
    refused: Mutex<&'static [&'static str]>,
    made: Mutex<Made>,
    restarting: Mutex<Option<Restarting>>,
    usage: Mutex<Vec<VolumeUsage>>,
    finished: watch::Sender<usize>,
    begun: watch::Sender<usize>,
}

impl Recorder {
    /// Engines tell this from now on.
    pub(crate) fn uses(&self, usage: Vec<VolumeUsage>) {
        *self.usage.lock().unwrap() = usage;
    }
}

impl Mounter for Recorder {
    fn ignores(&self) -> &'static [&'static str] {
        *self.ignored.lock().unwrap()
    }

    fn leaves_out(&self) -> (&'static [&'static str], &'static str) {
        *self.left_out.lock().unwrap()
    }

    fn refuses(&self) -> &'static [&'static str] {
        *self.refused.lock().unwrap()
    }

    fn restarting(&self, _target: &Path) -> Option<Restarting> {
        *self.restarting.lock().unwrap()
    }

    fn usage(&self) -> BoxFuture<'_, Vec<VolumeUsage>> {
        let usage = self.usage.lock().unwrap().clone();
        async { usage }.boxed()
    }

    fn mount(&self, request: MountRequest) -> BoxFuture<'_, Result<Made>> {
        async move {
            self.mounts.lock().unwrap().push(request);
            self.begun.send_modify(|it| *it += 1);
            let gate = self.gate.lock().unwrap().clone();
            if let Some(gate) = gate {
                // Closed when the test lets go.
                gate.acquire().await.expect_err("the gate has no permits");
            }
            self.finished.send_modify(|it| *it += 1);
            let made = self.made.lock().unwrap().clone();
            self.next_error.lock().unwrap().take().map_or(Ok(made), Err)
        }
        .boxed()
    }

    fn unmount<'a>(&'a self, target: &'a Path) -> BoxFuture<'a, Result<()>> {
        async move {
            self.unmounts.lock().unwrap().push(target.to_owned());
            Ok(())
        }
        .boxed()
    }
}

/// Mounts wait until this is dropped.
pub(crate) struct Gate(Arc<Semaphore>);

impl Drop for Gate {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Recorder {
    pub(crate) fn mounts(&self) -> Vec<MountRequest> {
        self.mounts.lock().unwrap().clone()
    }

    pub(crate) fn unmounts(&self) -> Vec<PathBuf> {
        self.unmounts.lock().unwrap().clone()
    }

    pub(crate) fn finished(&self) -> usize {
        *self.finished.borrow()
    }

    /// Makes the next mount fail with this error.
    pub(crate) fn fail(&self, kind: ErrorKind, message: &str) {
        *self.next_error.lock().unwrap() = Some(Error::new(kind, message));
    }

    /// Makes the mounter ignore these attributes.
    pub(crate) fn ignore(&self, attributes: &'static [&'static str]) {
        *self.ignored.lock().unwrap() = attributes;
    }

    pub(crate) fn refuse(&self, attributes: &'static [&'static str]) {
        *self.refused.lock().unwrap() = attributes;
    }

    pub(crate) fn leave_out(&self, options: &'static [&'static str], why: &'static str) {
        *self.left_out.lock().unwrap() = (options, why);
    }

    /// Sets the result that the mounter reports for its mounts.
    pub(crate) fn makes(&self, made: Made) {
        *self.made.lock().unwrap() = made;
    }

    /// Makes the mounter say that its engines are started again.
    pub(crate) fn restarts(&self, state: Restarting) {
        *self.restarting.lock().unwrap() = Some(state);
    }

    pub(crate) fn hold(&self) -> Gate {
        let gate = Arc::new(Semaphore::new(0));
        *self.gate.lock().unwrap() = Some(gate.clone());
        Gate(gate)
    }

    /// Waits until a mount has begun.
    pub(crate) async fn reached(&self) {
        self.reached_by(1).await;
    }

    /// Waits until this many mounts have begun.
    pub(crate) async fn reached_by(&self, count: usize) {
        self.begun.subscribe().wait_for(|&it| it >= count).await.unwrap();
    }
}

pub(crate) struct Driver {
    pub(crate) mounter: Arc<Recorder>,
    directory: tempfile::TempDir,
    channel: Channel,
    stop: watch::Sender<bool>,
    notices: Mutex<mpsc::Receiver<Notice>>,
    node: NodeService,
    registers: watch::Receiver<()>,
    serving: Option<JoinHandle<()>>,
}

impl Driver {
    pub(crate) async fn start() -> Self {
        Self::start_with(Stats::default()).await
    }

    pub(crate) async fn start_with(stats: Stats) -> Self {
        Self::start_as(stats, None).await
    }

    /// A driver whose node has an agent with this URL.
    pub(crate) async fn start_with_agent(url: &str) -> Self {
        Self::start_as(Stats::default(), Some(url.to_owned())).await
    }

    async fn start_as(stats: Stats, agent_url: Option<String>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mount_table = directory.path().join("mountinfo");
        std::fs::write(&mount_table, "").unwrap();
        let config = Config {
            node_id: "worker-1".into(),
            kubelet: directory.path().join("kubelet"),
            endpoint_url: "http://s3.example.com:8000".into(),
            allowed_endpoints: vec!["https://other.example.com".into()],
            region: Some("us-east-1".into()),
            credentials: DriverKeys::Fixed(Some(Credentials {
                access_key_id: "DRIVERKEY".into(),
                secret_access_key: HUSH.into(),
                session_token: None,
            })),
            sts: Sts { endpoint_url: None, audience: "sts.amazonaws.com".into() },
            agent_url,
            kubernetes: None,
            mount_table,
        };
        let mounter = Arc::new(Recorder::default());
        let (to_tell, notices) = mpsc::channel(8);
        let node = NodeService::new(config, mounter.clone()).with_stats(stats).with_notices(to_tell);
        let (of_page, registers) = (node.clone(), node.registers());
        let endpoint = Endpoint::Unix(directory.path().join("csi.sock"));
        let server = Server::bind(&endpoint).await.unwrap();
        let (stop, stopped) = watch::channel(false);
        // The device does not exist until a test makes it.
        let device = directory.path().join("fuse");
        let serving = tokio::spawn(async move { server.serve(node, &device, until(stopped)).await.unwrap() });
        let channel =
            tonic::transport::Endpoint::from_shared(endpoint.to_string()).unwrap().connect().await.unwrap();
        Self {
            mounter,
            directory,
            channel,
            stop,
            notices: Mutex::new(notices),
            node: of_page,
            registers,
            serving: Some(serving),
        }
    }

    /// Returns once the kubelet has registered the driver.
    pub(crate) async fn registered(&self) {
        self.registers.clone().changed().await.unwrap();
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn kubelet(&self) -> String {
        self.directory.path().join("kubelet").to_str().unwrap().to_owned()
    }

    /// The kubelet's target of `pv-1` for this pod.
    pub(crate) fn target(&self, uid: &str) -> String {
        format!("{}/pods/{uid}/volumes/kubernetes.io~csi/pv-1/mount", self.kubelet())
    }

    /// A good call, as the kubelet makes it for a static volume.
    pub(crate) fn call(&self) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: "handle-1".into(),
            target_path: self.target("uid-1"),
            volume_capability: Some(VolumeCapability {
                access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
                access_type: Some(AccessType::Mount(MountVolume {
                    mount_flags: vec!["allow-delete".into()],
                    ..Default::default()
                })),
            }),
            volume_context: [(volume::BUCKET_NAME.to_owned(), "bucket-1".to_owned())].into(),
            ..Default::default()
        }
    }

    pub(crate) async fn publish(
        &self,
        call: NodePublishVolumeRequest,
    ) -> std::result::Result<(), tonic::Status> {
        self.node().node_publish_volume(call).await.map(drop)
    }

    /// Makes the mount table show these targets from now on.
    pub(crate) fn mounted(&self, targets: &[&str]) {
        let line =
            |target: &&str| format!("40 30 0:50 / {target} rw,relatime shared:9 - fuse mountpoint-s3 rw\n");
        std::fs::write(self.directory.path().join("mountinfo"), targets.iter().map(line).collect::<String>())
            .unwrap();
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    pub(crate) fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel.clone())
    }

    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    /// Starts `/healthz` for as long as the test lasts.
    pub(crate) async fn health(&self, device: &Path, fault: Fault) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let endpoint = Endpoint::Unix(self.directory.path().join("csi.sock"));
        let node = self.node.clone();
        let page = move || {
            let node = node.clone();
            async move { node.page().await }.boxed()
        };
        let health = Health::new(&endpoint, device, fault).unwrap().with_page(Arc::new(page));
        tokio::spawn(async move { health.serve(listener, std::future::pending()).await.unwrap() });
        address
    }

    /// The next word to a workload, if one was said.
    pub(crate) fn notice(&self) -> Option<Notice> {
        self.notices.lock().unwrap().try_recv().ok()
    }

    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(crate) async fn ended(&mut self) {
        self.serving.take().unwrap().await.unwrap();
    }
}

pub(crate) fn mount_of(call: &mut NodePublishVolumeRequest) -> &mut MountVolume {
    match call.volume_capability.as_mut().unwrap().access_type.as_mut().unwrap() {
        AccessType::Mount(mount) => mount,
        AccessType::Block(_) => panic!("the call asks for a block device"),
    }
}

/// Status and body.
pub(crate) async fn http_get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

async fn until(mut stopped: watch::Receiver<bool>) {
    drop(stopped.wait_for(|&stop| stop).await);
}
