//! A folder on disk behind an S3 server on loopback: the mounted bucket, and direct access to it without the mount.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use aws_credential_types::Credentials;
use bytes::Bytes;
use http::Method;
use mountpoint::buffer::{BLOCK, Config, Fill, Pool, Use};
use mountpoint::checksum::{Checksum, ChecksumAlgorithm};
use mountpoint::clock::Clock;
use mountpoint::metrics::Metrics;
use mountpoint::object::{ObjectId, ObjectKey};
use mountpoint::s3::{
    self, ErrorKind, GetObject, ListObjects, NewObject, ObjectClient, ProbeRequest, Properties, PutObject,
    S3Client,
};
use s3server::{FaultPlan, RequestLog, Server};
use testkit::{Moto, RealStore, Versitygw};

use super::certificates::Certificates;
use super::front::Front;

/// The one bucket.
pub(crate) const BUCKET: &str = "bucket";

/// Carries the requests that go around the mounts.
pub(super) static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().expect("a runtime")
});

/// The store that the tests of a binary run on, and the protocol of their mounts: `crate::STORE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// s3server, as strict as S3, over HTTP and in path style.
    S3server,
    /// s3server over HTTPS at `https://BUCKET.HOST`, which only a proxy knows the way to.
    S3serverOverHttps,
    /// versitygw over HTTPS, in path style.
    Versitygw,
    /// moto over HTTP, in path style.
    Moto,
    /// The store that `ci/stores` names, over HTTP, in path style.
    Real,
}

/// The host of [`Kind::S3serverOverHttps`].
const HOST: &str = "s3.test";

/// The server behind a store.
#[derive(Debug)]
enum Serving {
    S3server { server: Server, front: Option<Front> },
    Versitygw { gateway: Versitygw, certificates: Certificates },
    Moto(Moto),
    Real(RealStore),
}

/// A bucket on loopback, with a client of its own that no mount shares.
#[derive(Debug)]
pub(crate) struct Store {
    // Dropped in this order: the client lets go, the server ends, the folder goes.
    client: Arc<S3Client>,
    pool: Pool,
    serving: Serving,
    root: tempfile::TempDir,
    home: tempfile::TempDir,
}

impl Store {
    /// The key that signs.
    pub(crate) const ACCESS_KEY: &str = match crate::STORE {
        Kind::Real => RealStore::KEYS[0],
        _ => "test",
    };
    /// The secret of the test's key; no log may contain it.
    pub(crate) const SECRET_KEY: &str = match crate::STORE {
        Kind::Real => RealStore::KEYS[1],
        _ => "canary-of-the-secret-key",
    };

    /// An empty bucket, as strict as S3.
    pub(crate) fn new() -> Arc<Self> {
        if crate::STORE == Kind::Versitygw
            && let Some(binary) = Versitygw::binary()
        {
            return Self::versitygw(&binary);
        }
        if crate::STORE == Kind::Moto
            && let Some(binary) = Moto::binary()
        {
            let root = tempfile::tempdir().expect("a temporary folder");
            let serving = Serving::Moto(Moto::start(&binary, root.path(), BUCKET));
            return Self::with(root, serving, String::new(), [Self::ACCESS_KEY, Self::SECRET_KEY]);
        }
        if crate::STORE == Kind::Real
            && let Some(name) = RealStore::named()
        {
            return Self::real(&name);
        }
        Self::signed_by(Self::ACCESS_KEY)
    }

    fn real(name: &str) -> Arc<Self> {
        let root = tempfile::tempdir().expect("a temporary folder");
        let keys = [Self::ACCESS_KEY, Self::SECRET_KEY];
        let store = RealStore::start(name, root.path(), keys);
        let config = s3::Config {
            endpoint_url: Some(format!("http://{}", store.address())),
            force_path_style: true,
            ..s3::Config::default()
        };
        let credentials = Credentials::new(keys[0], keys[1], None, None, "test");
        let made = RUNTIME.block_on(async {
            let admin = s3::Store::new(config, &Clock::machine(), &Arc::new(Metrics::default()))?;
            admin.bucket(BUCKET, "us-east-1", Some(credentials))?.create(None).await
        });
        made.unwrap_or_else(|error| panic!("make a bucket: {error}"));
        Self::with(root, Serving::Real(store), String::new(), keys)
    }

    /// Whether the value replaces a store that this machine lacks: then nothing is mounted.
    pub(crate) fn stands_in(&self) -> bool {
        matches!(crate::STORE, Kind::Versitygw | Kind::Moto | Kind::Real)
            && matches!(self.serving, Serving::S3server { .. })
    }

    fn versitygw(binary: &Path) -> Arc<Self> {
        let root = tempfile::tempdir().expect("a temporary folder");
        let certificates = Certificates::of(&["127.0.0.1"]);
        let (certificate, key) = certificates.files();
        let tls = Some([certificate.as_path(), key.as_path()]);
        let keys = [Self::ACCESS_KEY, Self::SECRET_KEY];
        let gateway = Versitygw::start(binary, root.path(), BUCKET, keys, tls);
        let serving = Serving::Versitygw { gateway, certificates };
        Self::with(root, serving, String::new(), keys)
    }

    /// An empty bucket behind another access key, with the same secret.
    pub(crate) fn signed_by(access_key: &str) -> Arc<Self> {
        Self::served(access_key, |config| config.strict())
    }

    /// An empty bucket whose server starts with this change of its configuration.
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
        config.domain = (crate::STORE == Kind::S3serverOverHttps).then(|| HOST.to_owned());
        let server = Server::start(config).expect("start the server");
        let hosts = [HOST, &format!("*.{HOST}")];
        let front =
            (crate::STORE == Kind::S3serverOverHttps).then(|| Front::before(server.address(), &hosts));
        Self::with(root, Serving::S3server { server, front }, allowed, [access_key, Self::SECRET_KEY])
    }

    fn with(root: tempfile::TempDir, serving: Serving, allowed: String, keys: [&str; 2]) -> Arc<Self> {
        let (endpoint, ca_bundle) = match &serving {
            // The test's own client goes past the front, so that bytes which came over TLS are compared with bytes that came another way.
            Serving::S3server { server, .. } => (server.endpoint(), None),
            Serving::Versitygw { gateway, certificates } => {
                (format!("https://{}", gateway.address()), Some(certificates.ca_bundle()))
            }
            Serving::Moto(moto) => (format!("http://{}", moto.address()), None),
            Serving::Real(store) => (format!("http://{}", store.address()), None),
        };
        let config = s3::Config {
            bucket: BUCKET.to_owned(),
            prefix: allowed,
            region: Some("us-east-1".to_owned()),
            endpoint_url: Some(endpoint),
            force_path_style: true,
            ca_bundle,
            credentials: Some(Credentials::new(keys[0], keys[1], None, None, "test")),
            ..s3::Config::default()
        };
        let client = S3Client::connect(config, Clock::machine(), Arc::new(Metrics::default()));
        let client = RUNTIME.block_on(client).expect("connect to the server");
        let home = tempfile::tempdir().expect("a temporary folder");
        Arc::new(Self { client, pool: Pool::new(&Config::default()), serving, root, home })
    }

    fn server(&self) -> &Server {
        match &self.serving {
            Serving::S3server { server, .. } => server,
            Serving::Versitygw { .. } | Serving::Moto(_) | Serving::Real(_) => {
                panic!("{:?} counts no requests and makes no faults: leave this test out there", crate::STORE)
            }
        }
    }

    /// `http://127.0.0.1:PORT`, without TLS.
    pub(crate) fn endpoint(&self) -> String {
        self.server().endpoint()
    }

    /// The TLS before the server, if there is one.
    pub(crate) fn front(&self) -> Option<&Front> {
        match &self.serving {
            Serving::S3server { front, .. } => front.as_ref(),
            Serving::Versitygw { .. } | Serving::Moto(_) | Serving::Real(_) => None,
        }
    }

    /// The options and the environment with which a mount finds the store.
    pub(crate) fn way(&self, endpoint: Option<&str>) -> (Vec<String>, Vec<(&'static str, String)>) {
        let (at, style, ca_bundle, proxy) = match &self.serving {
            Serving::S3server { server, front: None } => {
                (server.endpoint(), Some("--force-path-style"), None, None)
            }
            Serving::S3server { front: Some(front), .. } => {
                (format!("https://{HOST}"), None, Some(front.ca_bundle()), Some(front.address()))
            }
            Serving::Versitygw { gateway, certificates } => (
                format!("https://{}", gateway.address()),
                Some("--force-path-style"),
                Some(certificates.ca_bundle()),
                None,
            ),
            Serving::Moto(moto) => {
                (format!("http://{}", moto.address()), Some("--force-path-style"), None, None)
            }
            Serving::Real(store) => {
                (format!("http://{}", store.address()), Some("--force-path-style"), None, None)
            }
        };
        let mut options = vec!["--endpoint-url".to_owned(), endpoint.map_or(at, str::to_owned)];
        options.extend(style.map(str::to_owned));
        if let Some(ca_bundle) = ca_bundle {
            options.extend(["--ca-bundle".to_owned(), ca_bundle.to_str().expect("a plain path").to_owned()]);
        }
        (options, proxy.map(|address| ("HTTPS_PROXY", format!("http://{address}"))).into_iter().collect())
    }

    /// The address at which the store listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server().address()
    }

    /// An empty folder that is the engine's HOME.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Has a program print this store's keys, for this profile of the engine's HOME.
    pub(crate) fn print_keys(&self, profile: &str) {
        let home = self.home();
        let (key, secret) = (Self::ACCESS_KEY, Self::SECRET_KEY);
        let printed =
            format!("{{\"Version\": 1, \"AccessKeyId\": \"{key}\", \"SecretAccessKey\": \"{secret}\"}}");
        fs::write(home.join("printed"), printed).unwrap();
        fs::create_dir(home.join(".aws")).unwrap();
        let config = format!("[profile {profile}]\ncredential_process = cat {}/printed\n", home.display());
        fs::write(home.join(".aws/config"), config).unwrap();
    }

    /// Whether plain keys are plain files of a folder.
    pub(crate) fn has_folder(&self) -> bool {
        matches!(self.serving, Serving::S3server { .. } | Serving::Versitygw { .. })
    }

    /// The folder in which plain keys are plain files.
    pub(crate) fn bucket_folder(&self) -> PathBuf {
        match self.serving {
            Serving::S3server { .. } => self.root.path().join(BUCKET),
            Serving::Versitygw { .. } => self.root.path().join("data").join(BUCKET),
            Serving::Moto(_) | Serving::Real(_) => panic!("{:?} has no folder of plain files", crate::STORE),
        }
    }

    /// The faults of the server.
    pub(crate) fn faults(&self) -> &FaultPlan {
        self.server().faults()
    }

    /// The requests of mounts and of the tests themselves.
    pub(crate) fn requests(&self) -> &RequestLog {
        self.server().requests()
    }

    /// Puts a file straight into the folder: quick, for plain keys, before the first request for it. versitygw takes its ETag from a
    /// record beside the file, so for versitygw the call stores the object.
    pub(crate) fn plant(&self, key: &str, bytes: &[u8]) {
        if !matches!(self.serving, Serving::S3server { .. }) {
            return self.put(key, bytes.to_vec());
        }
        let path = self.bucket_folder().join(key);
        std::fs::create_dir_all(path.parent().expect("a folder above")).expect("make the folder");
        std::fs::write(path, bytes).expect("plant a file");
    }

    /// Stores an object as any other client would.
    pub(crate) fn put(&self, key: &str, bytes: impl Into<Bytes>) {
        let object = NewObject::new(key);
        let request = PutObject { object, body: vec![bytes.into()], checksum: None };
        RUNTIME.block_on(self.client.put_object(&request)).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Stores an object with user metadata, as any other client would.
    pub(crate) fn put_with(&self, key: &str, bytes: impl Into<Bytes>, words: &[(&str, &str)]) {
        let mut object = NewObject::new(key);
        object.properties.content_type = Some("text/plain".to_owned());
        object.properties.user = words.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        let request = PutObject { object, body: vec![bytes.into()], checksum: None };
        RUNTIME.block_on(self.client.put_object(&request)).unwrap_or_else(|error| panic!("{error}"));
    }

    /// The properties of an object besides its bytes.
    pub(crate) fn properties(&self, key: &str) -> Properties {
        let described = RUNTIME.block_on(self.client.describe_object(&ObjectKey::new(key)));
        described.unwrap_or_else(|error| panic!("{error}")).properties
    }

    /// The bytes of an object.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let key = ObjectKey::new(key);
        let meta = match RUNTIME.block_on(self.client.head_object(&key)) {
            Err(error) if *error.kind() == ErrorKind::NotFound => return None,
            answer => answer.unwrap_or_else(|error| panic!("{error}")),
        };
        let bytes = Arc::new(std::sync::Mutex::new(Vec::with_capacity(meta.size as usize)));
        let id = ObjectId::of(key, &meta);
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
        self.sizes().into_iter().map(|(key, _)| key).collect()
    }

    /// All keys, in order, with the sizes of their objects, as of one moment while objects are replaced.
    pub(crate) fn sizes(&self) -> Vec<(String, u64)> {
        let mut request = ListObjects { max_keys: 1000, ..ListObjects::default() };
        let mut keys = Vec::new();
        loop {
            let page = RUNTIME.block_on(self.client.list_objects(&request));
            let page = page.unwrap_or_else(|error| panic!("{error}"));
            let about = |object: s3::ListedObject| (object.key.as_str().to_owned(), object.meta.size);
            keys.extend(page.objects.into_iter().map(about));
            if page.next_token.is_none() {
                return keys;
            }
            request.continuation_token = page.next_token;
        }
    }

    /// Has the bucket keep versions from now on.
    pub(crate) fn keep_versions(&self) {
        let body = "<VersioningConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Status>Enabled</Status></VersioningConfiguration>";
        self.ask(&ProbeRequest {
            query: &[("versioning", "")],
            body: Some(Bytes::from_static(body.as_bytes())),
            ..ProbeRequest::of("PutBucketVersioning", Method::PUT)
        });
    }

    /// The number of versions and of delete markers in the bucket.
    pub(crate) fn versions(&self) -> (usize, usize) {
        let versions = ProbeRequest {
            query: &[("versions", "")],
            ..ProbeRequest::of("ListObjectVersions", Method::GET)
        };
        let page = self.ask(&versions);
        (page.matches("<Version>").count(), page.matches("<DeleteMarker>").count())
    }

    /// Locks every version that is stored from now on for a day, and these objects until the test ends.
    pub(crate) fn lock_versions(&self, held: &[&str]) {
        const CONFIGURATION: &str = "<ObjectLockConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention><Mode>COMPLIANCE</Mode><Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>";
        const HOLD: &str =
            "<LegalHold xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Status>ON</Status></LegalHold>";
        let change = |operation, key: Option<&str>, query: &'static str, body: &'static str| {
            let sum = Checksum::of(ChecksumAlgorithm::Crc32, body.as_bytes()).to_base64();
            let headers = [(ChecksumAlgorithm::Crc32.header(), sum.as_str())];
            let (query, body) = ([(query, "")], Some(Bytes::from_static(body.as_bytes())));
            let key = key.map(ObjectKey::new);
            let request = ProbeRequest {
                key: key.as_ref(),
                query: &query,
                headers: &headers,
                body,
                ..ProbeRequest::of(operation, Method::PUT)
            };
            self.ask(&request);
        };
        change("PutObjectLockConfiguration", None, "object-lock", CONFIGURATION);
        for key in held {
            change("PutObjectLegalHold", Some(key), "legal-hold", HOLD);
        }
    }

    /// Tries to delete each version of a key, as no file operation does; how many are refused.
    pub(crate) fn refused_versions(&self, key: &str) -> usize {
        let page = self.ask(&ProbeRequest {
            query: &[("prefix", key), ("versions", "")],
            ..ProbeRequest::of("ListObjectVersions", Method::GET)
        });
        let text = |entry: &str| Some(entry.split_once("<VersionId>")?.1.split_once('<')?.0.to_owned());
        let versions = page.split("<Version>").skip(1).filter_map(text);
        let refused = versions.filter(|version| {
            let key = ObjectKey::new(key);
            let delete = ProbeRequest {
                key: Some(&key),
                query: &[("versionId", version)],
                ..ProbeRequest::of("DeleteObject", Method::DELETE)
            };
            let reply = RUNTIME.block_on(self.client.ask(&delete)).unwrap_or_else(|error| panic!("{error}"));
            reply.refusal.is_some()
        });
        refused.count()
    }

    fn ask(&self, question: &ProbeRequest<'_>) -> String {
        let reply = RUNTIME.block_on(self.client.ask(question)).unwrap_or_else(|error| panic!("{error}"));
        assert!(reply.refusal.is_none(), "{:?}", reply.refusal);
        String::from_utf8_lossy(&reply.body).into_owned()
    }

    /// Uploads that were started and neither completed nor aborted.
    pub(crate) fn pending_uploads(&self) -> usize {
        let uploads = RUNTIME.block_on(self.client.list_multipart_uploads(""));
        uploads.unwrap_or_else(|error| panic!("{error}")).len()
    }
}
