//! A running server: its threads, its address, its end.

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use s3s::host::SingleDomain;
use s3s::service::S3ServiceBuilder;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::api::{Folder, Gate, OneKey, Policy};
use crate::config::Config;
use crate::fault::FaultPlan;
use crate::requests::RequestLog;
use crate::store::{Error, Store};
use crate::wire;

/// Threads that answer requests. More only help if many clients send bodies at once.
const THREADS: usize = 2;
/// Most threads that wait for the disk; further work queues.
const BLOCKING_THREADS_MAX: usize = 32;
/// Longest time for writes in progress when the server stops; then they are cut off.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A server with its own threads. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    runtime: Option<Runtime>,
    address: SocketAddr,
    store: Arc<Store>,
    log: RequestLog,
    faults: FaultPlan,
}

impl Server {
    /// Opens the folder, creates the buckets and listens. The server answers requests when this returns.
    ///
    /// # Errors
    /// The folder can't be read or written, or another server uses it; a bucket's name is not valid; or the address is taken.
    pub fn start(config: Config) -> anyhow::Result<Self> {
        apart(|| Self::start_here(config))
    }

    fn start_here(config: Config) -> anyhow::Result<Self> {
        anyhow::ensure!(!config.access_key.is_empty(), "the access key is empty");
        anyhow::ensure!(!config.secret_key.is_empty(), "the secret key is empty");
        let store = Arc::new(Store::open(&config.root)?);
        for bucket in &config.buckets {
            anyhow::ensure!(s3s::path::check_bucket_name(bucket), "`{bucket}` can't be the name of a bucket");
            match store.create_bucket(bucket) {
                Ok(()) | Err(Error::BucketExists) => {}
                Err(error) => anyhow::bail!("can't make the bucket `{bucket}`: {error:?}"),
            }
        }
        let log = RequestLog::default();
        let policy = Policy::new(config.policy_prefix.clone());
        let mut builder =
            S3ServiceBuilder::new(Folder::new(Arc::clone(&store), config.strict, policy.clone()));
        builder.set_auth(OneKey::new(&config.access_key, &config.secret_key));
        builder.set_access(Gate::new(config.faults.clone(), log.clone(), policy, config.bucket_tagging));
        if let Some(domain) = &config.domain {
            let host = SingleDomain::new(domain)
                .with_context(|| format!("`{domain}` can't be a domain for buckets"))?;
            builder.set_host(host);
        }
        let service = builder.build();

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .thread_name("s3server")
            .enable_all()
            .build()
            .context("can't start threads")?;
        let listener = runtime
            .block_on(TcpListener::bind(config.listen))
            .with_context(|| format!("can't listen on {}", config.listen))?;
        let address = listener.local_addr().context("can't tell the address")?;
        runtime.spawn(wire::accept(listener, service, log.clone()));
        Ok(Self { runtime: Some(runtime), address, store, log, faults: config.faults })
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the server for clients: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The log of requests.
    pub fn requests(&self) -> &RequestLog {
        &self.log
    }

    /// The plan of faults; changeable at any time.
    pub fn faults(&self) -> &FaultPlan {
        &self.faults
    }

    /// Number of multipart uploads of this bucket that are in progress: neither completed nor aborted.
    pub fn pending_uploads(&self, bucket: &str) -> usize {
        self.store.uploads_of(bucket).len()
    }

    /// Closes all connections. When it returns, the folder has every acknowledged write.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            apart(|| runtime.shutdown_timeout(STOP_TIMEOUT));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs `work` on a separate thread. The caller may be a task of a runtime, where no other runtime may begin or end.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))
}
