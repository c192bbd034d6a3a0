//! A folder on disk behind an S3 server on loopback: the mounted bucket, and direct access to it without the mount.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use aws_credential_types::Credentials;
use bytes::Bytes;
use mountpoint::buffer::{BLOCK, Config, Fill, Pool, Use};
use mountpoint::clock::Clock;
use mountpoint::metrics::Metrics;
use mountpoint::object::{ObjectId, ObjectKey};
use mountpoint::s3::{self, ErrorKind, GetObject, ListObjects, NewObject, ObjectClient, PutObject, S3Client};
use s3server::{FaultPlan, RequestLog, Server};

/// The one bucket.
pub(crate) const BUCKET: &str = "bucket";

/// Carries the requests that go around the mounts.
static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().expect("a runtime")
});

/// A bucket on loopback, with a client of its own that no mount shares.
#[derive(Debug)]
pub(crate) struct Store {
    // Dropped in this order: the client lets go, the server ends, the folder goes.
    client: Arc<S3Client>,
    pool: Pool,
    server: Server,
    root: tempfile::TempDir,
    home: tempfile::TempDir,
}

impl Store {
    /// The key that signs.
    pub(crate) const ACCESS_KEY: &str = "test";
    /// Its secret; a word that may stand in no log.
    pub(crate) const SECRET_KEY: &str = "canary-of-the-secret-key";

    /// An empty bucket, as strict as S3.
    pub(crate) fn new() -> Arc<Self> {
        Self::signed_by(Self::ACCESS_KEY)
    }

    /// An empty bucket behind another access key, with the same secret.
    pub(crate) fn signed_by(access_key: &str) -> Arc<Self> {
        Self::served(access_key, |config| config.strict())
    }

    /// An empty bucket whose server is started with this change of its configuration.
    pub(crate) fn served(
        access_key: &str,
        change: impl Fn(s3server::Config) -> s3server::Config,
    ) -> Arc<Self> {
        let root = tempfile::tempdir().expect("a temporary folder");
        let mut config = change(s3server::Config::new(root.path()).bucket(BUCKET));
        // The client lists what it may, before anything else.
        let allowed = config.policy_prefix.clone().unwrap_or_default();
        config.access_key = access_key.to_owned();
        config.secret_key = Self::SECRET_KEY.to_owned();
        let server = Server::start(config).expect("start the server");
        let client = client(server.endpoint(), allowed, access_key, Self::SECRET_KEY);
        let client = RUNTIME.block_on(client).expect("connect to the server");
        let home = tempfile::tempdir().expect("a temporary folder");
        Arc::new(Self { client, pool: Pool::new(&Config::default()), server, root, home })
    }

    /// `http://127.0.0.1:PORT`
    pub(crate) fn endpoint(&self) -> String {
        self.server.endpoint()
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// An empty folder that is the engine's HOME.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Where plain keys are plain files.
    pub(crate) fn bucket_folder(&self) -> PathBuf {
        self.root.path().join(BUCKET)
    }

    /// What is to go wrong.
    pub(crate) fn faults(&self) -> &FaultPlan {
        self.server.faults()
    }

    /// What was asked, by mounts and around them.
    pub(crate) fn requests(&self) -> &RequestLog {
        self.server.requests()
    }

    /// Puts a file straight into the folder: quick, for plain keys, before anybody asks for it.
    pub(crate) fn plant(&self, key: &str, bytes: &[u8]) {
        let path = self.bucket_folder().join(key);
        std::fs::create_dir_all(path.parent().expect("a folder above")).expect("make the folder");
        std::fs::write(path, bytes).expect("plant a file");
    }

    /// Stores an object as any other client would.
    pub(crate) fn put(&self, key: &str, bytes: impl Into<Bytes>) {
        let object = NewObject { key: key.into(), content_type: None, only_if_absent: false, checksum: None };
        let request = PutObject { object, body: vec![bytes.into()], checksum: None };
        RUNTIME.block_on(self.client.put_object(&request)).unwrap_or_else(|error| panic!("{error}"));
    }

    /// The bytes of an object.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let key = ObjectKey::new(key);
        let meta = match RUNTIME.block_on(self.client.head_object(&key)) {
            Err(error) if *error.kind() == ErrorKind::NotFound => return None,
            answer => answer.unwrap_or_else(|error| panic!("{error}")),
        };
        let bytes = Arc::new(std::sync::Mutex::new(Vec::with_capacity(meta.size as usize)));
        let id = ObjectId { key, etag: meta.etag };
        // A window at a time, so that the pool need not hold the object.
        for start in (0..meta.size).step_by(16 * BLOCK) {
            let range = start..meta.size.min(start + 16 * BLOCK as u64);
            let pieces = range.clone().step_by(BLOCK);
            let blocks = pieces.map(|at| {
                let len = (range.end - at).min(BLOCK as u64) as usize;
                self.pool.try_take(Use::Demand, len).expect("the pool is large enough for a window")
            });
            let sink = Arc::clone(&bytes);
            let mut fill = Fill::new(blocks, move |block| sink.lock().unwrap().extend_from_slice(&block));
            let request = GetObject { id: id.clone(), range, object_size: meta.size };
            let got = RUNTIME.block_on(self.client.get_object(&request, &mut fill));
            got.unwrap_or_else(|error| panic!("{error}"));
        }
        let bytes = std::mem::take(&mut *bytes.lock().unwrap());
        Some(bytes)
    }

    /// Removes an object as any other client would.
    pub(crate) fn remove(&self, key: &str) {
        let removed = RUNTIME.block_on(self.client.delete_object(&ObjectKey::new(key)));
        removed.unwrap_or_else(|error| panic!("{error}"));
    }

    /// All keys, in order.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut request = ListObjects { max_keys: 1000, ..ListObjects::default() };
        let mut keys = Vec::new();
        loop {
            let page = RUNTIME.block_on(self.client.list_objects(&request));
            let page = page.unwrap_or_else(|error| panic!("{error}"));
            keys.extend(page.objects.into_iter().map(|object| object.key.as_str().to_owned()));
            if page.next_token.is_none() {
                return keys;
            }
            request.continuation_token = page.next_token;
        }
    }

    /// Uploads that were started and neither completed nor aborted.
    pub(crate) fn pending_uploads(&self) -> usize {
        let uploads = RUNTIME.block_on(self.client.list_multipart_uploads(""));
        uploads.unwrap_or_else(|error| panic!("{error}")).len()
    }
}

/// The engine's client of the bucket, below a prefix.
async fn client(
    endpoint: String,
    prefix: String,
    access_key: &str,
    secret_key: &str,
) -> s3::Result<Arc<S3Client>> {
    let config = s3::Config {
        bucket: BUCKET.to_owned(),
        prefix,
        region: Some("us-east-1".to_owned()),
        endpoint_url: Some(endpoint),
        force_path_style: true,
        credentials: Some(Credentials::new(access_key, secret_key, None, None, "test")),
        ..s3::Config::default()
    };
    S3Client::connect(config, Clock::machine(), Arc::new(Metrics::default())).await
}
