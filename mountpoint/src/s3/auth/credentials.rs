//! Credentials from the chain of `aws-config`, cached, and refreshed before they expire.

use std::error::Error as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_types::error::display::DisplayErrorContext;
use aws_types::region::Region;

use crate::clock::Clock;
use crate::net::pool::NoConnection;
use crate::s3::auth::aside::Aside;
use crate::s3::auth::printed;
use crate::s3::auth::sign::Skew;
use crate::s3::{Config, Error, ErrorKind, Result};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};

/// Time before their expiry at which credentials are refreshed in the background ...
const AHEAD: Duration = Duration::from_secs(300);
/// ... and at which they are no longer used.
const LAST_MOMENTS: Duration = Duration::from_secs(10);
/// Time after which credentials without an expiry are read again, to notice changes of other sources than files.
const REREAD: Duration = Duration::from_secs(900);
/// Time between two checks of the credentials files, while there are requests. Doubling it notices a change later, and halves the calls of
/// stat(2).
const LOOK: Duration = Duration::from_secs(5);
/// Longest wait for a check of the files, or for the check of another request. Beyond it, the request uses the current credentials.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// Pause after an answer without usable credentials. Requests get the same error meanwhile. Refreshes pause for the same time.
const REST: Duration = Duration::from_secs(10);
/// Longest wait for the source. Beyond it, the request fails.
const LOAD_MAX: Duration = Duration::from_secs(10);

/// The source of credentials.
#[derive(Debug)]
pub(crate) struct Source {
    http: SharedHttpClient,
    region: String,
    profile: Option<String>,
    given: Option<Credentials>,
    files: Vec<PathBuf>,
    /// Runs stat(2) on the files: a home directory may be on a dead network file system.
    looks: Aside,
    asks: Aside,
    /// Time of the last check of the files. The request that checks holds the lock.
    looked: tokio::sync::Mutex<Option<Instant>>,
    clock: Clock,
    /// The skew between the local clock and the store's. Credentials expire by the true time, for which the engine takes the store's clock.
    skew: Arc<Skew>,
    held: Mutex<Option<Held>>,
    rests_until: Mutex<Option<Instant>>,
    /// The last error of the source, during the pause after it.
    failed: Mutex<Option<(Instant, String)>>,
    loading: tokio::sync::Mutex<()>,
    generations: AtomicU64,
}

/// Credentials with their generation, a number that grows with each refresh.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) credentials: Credentials,
    pub(crate) generation: u64,
    loaded: Instant,
    /// The stamps of the files from before they were read.
    stamps: Vec<Option<Stamp>>,
}

type Answer = std::result::Result<Credentials, CredentialsError>;

/// Attributes of a file that are compared to detect a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

impl Stamp {
    /// The stamp of the file; `None` if the file can't be found.
    fn of(path: &Path) -> Option<Self> {
        let it = std::fs::metadata(path).ok()?;
        Some(Self { inode: it.ino(), len: it.len(), modified: (it.mtime(), it.mtime_nsec()) })
    }
}

/// The validity of the current credentials.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Age {
    Fresh,
    /// The credentials are still good, but should be refreshed in the background.
    Due,
    Expired,
}

fn age(expiry: Option<SystemTime>, wall: SystemTime, held_for: Duration) -> Age {
    match expiry.map(|at| at.duration_since(wall).unwrap_or_default()) {
        None if held_for < REREAD => Age::Fresh,
        Some(left) if left > AHEAD => Age::Fresh,
        Some(left) if left <= LAST_MOMENTS => Age::Expired,
        _ => Age::Due,
    }
}

impl Source {
    /// Makes a source without asking for credentials. `http` carries the requests of the chain; roles are assumed in `region`.
    pub(crate) fn new(
        http: SharedHttpClient,
        region: &str,
        config: &Config,
        clock: &Clock,
        skew: &Arc<Skew>,
    ) -> Arc<Self> {
        Arc::new(Self {
            http,
            region: region.to_owned(),
            profile: config.profile.clone(),
            given: config.credentials.clone(),
            files: config.credential_files.clone(),
            looks: Aside::default(),
            asks: Aside::default(),
            looked: tokio::sync::Mutex::new(None),
            clock: clock.clone(),
            skew: Arc::clone(skew),
            held: Mutex::new(None),
            rests_until: Mutex::new(None),
            failed: Mutex::new(None),
            loading: tokio::sync::Mutex::new(()),
            generations: AtomicU64::new(0),
        })
    }

    /// Returns valid credentials: the current ones, or new ones if these have expired.
    pub(crate) async fn get(self: &Arc<Self>) -> Result<Held> {
        if !self.files.is_empty() {
            self.look().await;
        }
        let held = self.held.lock().clone();
        if let Some(held) = held {
            match self.age(&held) {
                Age::Expired => {}
                Age::Fresh => return Ok(held),
                Age::Due => {
                    self.refresh_aside();
                    return Ok(held);
                }
            }
        }
        let _turn = self.loading.lock().await;
        let held = self.held.lock().clone();
        match held {
            Some(held) if self.age(&held) != Age::Expired => Ok(held),
            _ => match self.failed_just_now() {
                Some(why) => Err(self.no_credentials(&why)),
                None => self.load().await,
            },
        }
    }

    /// Checks whether a file has changed, at most once in [`LOOK`]. Other requests wait for the check meanwhile.
    async fn look(self: &Arc<Self>) {
        let Some(mut looked) = self.clock.timeout(LOOK_MAX, self.looked.lock()).await else { return };
        let now = self.clock.now();
        if looked.is_some_and(|at| now.saturating_duration_since(at) < LOOK) {
            return;
        }
        let held = self.held.lock().clone();
        let Some(held) = held.filter(|held| self.age(held) != Age::Expired) else { return };
        *looked = Some(now);
        let stamps = self.stamps().await;
        if stamps.is_some_and(|stamps| stamps != held.stamps) {
            self.read_again(held).await;
        }
    }

    /// Whether a file has changed since it was read. A file that was read half written has changed when it is complete.
    async fn has_changed(&self, held: Option<&Held>) -> bool {
        let stamps = self.stamps().await;
        held.zip(stamps).is_some_and(|(held, stamps)| stamps != held.stamps)
    }

    /// The stamps of all files; `None`: the file system does not answer.
    async fn stamps(&self) -> Option<Vec<Option<Stamp>>> {
        let files = self.files.clone();
        self.looks.run(&self.clock, LOOK_MAX, move || files.iter().map(|it| Stamp::of(it)).collect()).await
    }

    /// Loads the credentials of a changed file, or keeps the old ones if that fails.
    async fn read_again(self: &Arc<Self>, held: Held) {
        let _turn = self.loading.lock().await;
        if self.held.lock().as_ref().is_some_and(|it| it.generation > held.generation) {
            return;
        }
        if let Err(error) = self.load().await {
            tracing::warn!(
                "a changed credentials file has no usable keys; the old keys stay in use: {error}"
            );
        }
    }

    /// The error of the last load, during the pause after it. Requests that waited for that load return the error instead of loading again.
    fn failed_just_now(&self) -> Option<String> {
        let failed = self.failed.lock();
        failed.as_ref().filter(|(until, _)| self.clock.now() < *until).map(|(_, why)| why.clone())
    }

    /// Asks the source for other credentials, because the store refused generation `refused`. Returns whether there are others now.
    pub(crate) async fn replace(self: &Arc<Self>, refused: u64) -> bool {
        let _turn = self.loading.lock().await;
        let newer = |held: &Option<Held>| held.as_ref().is_some_and(|h| h.generation > refused);
        if newer(&self.held.lock()) {
            return true;
        }
        let before = self.held.lock().clone();
        if self.rests() && !self.has_changed(before.as_ref()).await {
            return false;
        }
        // Another question to the source for each refused request would not help, whatever its answer is.
        self.rest();
        match self.load().await {
            Ok(now) => before.is_none_or(|b| differ(&b.credentials, &now.credentials)),
            Err(e) => {
                tracing::warn!("credentials can't be refreshed: {e}");
                false
            }
        }
    }

    fn age(&self, held: &Held) -> Age {
        let held_for = self.clock.now().saturating_duration_since(held.loaded);
        age(held.credentials.expiry(), self.skew.apply(self.clock.wall()), held_for)
    }

    fn rests(&self) -> bool {
        self.rests_until.lock().is_some_and(|until| self.clock.now() < until)
    }

    fn rest(&self) {
        *self.rests_until.lock() = Some(self.clock.now() + REST);
    }

    fn refresh_aside(self: &Arc<Self>) {
        if self.rests() {
            return;
        }
        self.rest();
        let source = Arc::clone(self);
        tokio::spawn(async move {
            if let Ok(_turn) = source.loading.try_lock()
                && let Err(e) = source.load().await
            {
                tracing::warn!("credentials are due and can't be refreshed; the old ones stay in use: {e}");
            }
        });
    }

    fn no_credentials(&self, why: &str) -> Error {
        let error = Error::new(ErrorKind::NoCredentials, "credentials");
        match &self.profile {
            Some(profile) => error.message(format!("invalid AWS credentials: profile '{profile}': {why}")),
            None => error.message(why),
        }
    }

    async fn load(self: &Arc<Self>) -> Result<Held> {
        // Unreadable files keep the old stamps, so the next check reads the files again.
        let before = || self.held.lock().as_ref().map(|held| held.stamps.clone()).unwrap_or_default();
        let stamps = self.stamps().await.unwrap_or_else(before);
        let answer = match self.ask().await {
            Some(answer) => answer.map_err(|e| {
                let said = DisplayErrorContext(&e).to_string();
                tracing::debug!("credentials: {}", reasons(&e));
                match (unreached(&e), &self.profile) {
                    // No user configured this source: the chain asks it only if nothing else is configured.
                    (Some(NoConnection::Connect(at, _)), None) if is_instance(at) => NONE_FOUND.to_owned(),
                    (None, None) if said.contains(OF_INSTANCE) => NONE_FOUND.to_owned(),
                    (Some(why), _) => format!("a source of credentials can't be reached: {why}"),
                    (None, Some(_)) if said.contains("was not defined") => NO_SUCH_PROFILE.to_owned(),
                    (None, Some(_)) => PROFILE_GIVES_NONE.to_owned(),
                    (None, None) if is_configured(&e) => SOURCE_GIVES_NONE.to_owned(),
                    (None, None) => NONE_FOUND.to_owned(),
                }
            }),
            None => Err(NO_ANSWER.to_owned()),
        };
        let answer = answer.and_then(|found| {
            let (trimmed, is_changed) = trimmed(found);
            if is_changed && self.generations.load(Ordering::Relaxed) == 0 {
                tracing::warn!("{WHITE_SPACE}: it is left out");
            }
            if is_sendable(&trimmed) { Ok(trimmed) } else { Err(BROKEN.to_owned()) }
        });
        let credentials = answer.map_err(|why| {
            let error = self.no_credentials(&why);
            *self.failed.lock() = Some((self.clock.now() + REST, why));
            error
        })?;
        let held = Held {
            credentials,
            generation: self.generations.fetch_add(1, Ordering::Relaxed) + 1,
            loaded: self.clock.now(),
            stamps,
        };
        *self.failed.lock() = None;
        *self.held.lock() = Some(held.clone());
        tracing::debug!(generation = held.generation, "credentials loaded");
        Ok(held)
    }

    /// Asks the source. `None`: no answer in time, or an earlier call still runs.
    async fn ask(self: &Arc<Self>) -> Option<Answer> {
        if let Some(given) = &self.given {
            return Some(Ok(given.clone()));
        }
        // `aws-config` reads files on the thread that it runs on.
        let (source, runtime) = (Arc::clone(self), tokio::runtime::Handle::current());
        self.asks.run(&self.clock, LOAD_MAX, move || runtime.block_on(source.ask_chain())).await
    }

    /// Asks a new chain, because a chain caches the files that it has read.
    async fn ask_chain(&self) -> Answer {
        if let Some(answer) = printed::ask(self.profile.as_deref()).await {
            return answer;
        }
        let region = Region::new(self.region.clone());
        let config =
            ProviderConfig::default().with_http_client(self.http.clone()).with_region(Some(region.clone()));
        match &self.profile {
            Some(profile) => {
                let provider = ProfileFileCredentialsProvider::builder()
                    .configure(&config)
                    .profile_name(profile)
                    .build();
                provider.provide_credentials().await
            }
            None => {
                let chain = DefaultCredentialsChain::builder().configure(config).region(region).build().await;
                chain.provide_credentials().await
            }
        }
    }
}

/// Part of the chain's error if the metadata service of an instance refuses the request, or a proxy refuses it instead.
const OF_INSTANCE: &str = "failed to load IMDS session token";
const NONE_FOUND: &str = "none found in the environment, ~/.aws, web identity, container or instance (--foreground --debug says why of each): \
     set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a --profile, or for a public bucket --no-sign-request";
const SOURCE_GIVES_NONE: &str =
    "a source that is configured, such as a role by web identity, gives none (--foreground --debug says why)";
const NO_SUCH_PROFILE: &str = "it is in neither ~/.aws/config nor ~/.aws/credentials, nor in the files that AWS_CONFIG_FILE and \
     AWS_SHARED_CREDENTIALS_FILE name";
const PROFILE_GIVES_NONE: &str = "it gives none (--foreground --debug says why)";
const NO_ANSWER: &str = "no source of credentials answered within 10 s; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
     name a --profile";

const WHITE_SPACE: &str = "the keys begin or end in white space, such as a line end: look at what sets AWS_ACCESS_KEY_ID, \
     AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN";
const BROKEN: &str = "the keys have a line end or another control character within: look at what sets AWS_ACCESS_KEY_ID, \
     AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or at ~/.aws/credentials";

/// Trims the credentials, and returns whether that changed them. A secret may contain blanks, so only its line ends are cut.
fn trimmed(found: Credentials) -> (Credentials, bool) {
    let parts = [found.access_key_id(), found.secret_access_key(), found.session_token().unwrap_or("")];
    let [key, secret, token] = [parts[0].trim(), parts[1].trim_matches(['\r', '\n']), parts[2].trim()];
    if [key, secret, token] == parts {
        return (found, false);
    }
    let token = Some(token.to_owned()).filter(|token| !token.is_empty());
    (Credentials::new(key, secret, token, found.expiry(), "keys without their white space"), true)
}

/// Whether the parts of the credentials that requests contain are valid in a header.
fn is_sendable(found: &Credentials) -> bool {
    let parts = [found.access_key_id(), found.session_token().unwrap_or("")];
    parts.iter().all(|part| !part.chars().any(char::is_control))
}

/// Whether the chain's error shows that a source is configured.
fn is_configured(error: &CredentialsError) -> bool {
    !matches!(error, CredentialsError::CredentialsNotLoaded(_))
}

/// The reason why a configured source was not reached: an address, a certificate, a proxy. (The answer of a source may repeat a secret, so
/// it is only logged.)
fn unreached(error: &CredentialsError) -> Option<&NoConnection> {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    let mut causes = causes.filter(|_| is_configured(error));
    causes.find_map(|cause| cause.downcast_ref::<NoConnection>())
}

/// Whether this is the address of an instance's metadata service.
fn is_instance(at: &SocketAddr) -> bool {
    match at.ip() {
        IpAddr::V4(v4) => v4 == Ipv4Addr::new(169, 254, 169, 254),
        IpAddr::V6(v6) => v6 == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    }
}

/// Whether key ID, secret or session token differ. The expiry does not count: a request does not carry it.
fn differ(a: &Credentials, b: &Credentials) -> bool {
    fn parts(of: &Credentials) -> (&str, &str, Option<&str>) {
        (of.access_key_id(), of.secret_access_key(), of.session_token())
    }
    parts(a) != parts(b)
}

/// The error and its causes in words. Their `Debug` may have the answer of a source, with keys.
fn reasons(error: &(dyn std::error::Error + 'static)) -> String {
    let (mut words, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use aws_smithy_runtime_api::client::http::{HttpClient, HttpConnectorSettings, SharedHttpConnector};
    use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;

    use super::*;

    #[derive(Debug)]
    struct NoHttp;

    impl HttpClient for NoHttp {
        fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
            panic!("credentials that are given need no request")
        }
    }

    /// Regression: with a clock that is hours ahead, every request would ask the source.
    #[tokio::test]
    async fn the_end_of_credentials_is_judged_by_the_stores_clock() {
        let (clock, skew) = (Clock::manual(), Arc::new(Skew::default()));
        let hours = |n: u64| Duration::from_secs(n * 3600);
        let theirs = clock.wall() - hours(2);
        let given = Credentials::new("key", "secret", Some("token".into()), Some(theirs + hours(1)), "test");
        let config = Config { credentials: Some(given), ..Config::default() };
        let source = Source::new(SharedHttpClient::new(NoHttp), "r", &config, &clock, &skew);
        skew.learn(clock.wall(), theirs);
        for _ in 0..10 {
            assert_eq!(source.get().await.unwrap().generation, 1);
        }
        clock.advance(hours(1));
        assert_eq!(source.get().await.unwrap().generation, 2, "its hour is over");
    }

    /// Simulates a home directory on a dead network file system.
    #[tokio::test]
    async fn files_that_do_not_answer_hold_up_no_request_and_no_refused_one() {
        let (clock, skew) = (Clock::manual(), Arc::new(Skew::default()));
        let given = Credentials::new("key", "secret", None, None, "test");
        let files = vec!["/".into()];
        let config = Config { credentials: Some(given), credential_files: files, ..Config::default() };
        let source = Source::new(SharedHttpClient::new(NoHttp), "r", &config, &clock, &skew);
        let (answer, silence) = std::sync::mpsc::channel::<()>();
        let hangs = source.looks.run(&clock, Duration::ZERO, move || silence.recv());
        assert_eq!(hangs.await, None);
        for _ in 0..100 {
            assert_eq!(source.get().await.unwrap().generation, 1);
            clock.advance(LOOK);
        }
        assert!(!source.replace(1).await, "they are the same as before");
        drop(answer);
    }

    #[test]
    fn white_space_around_keys_is_left_out_and_within_them_is_refused() {
        let of = |key: &str, secret: &str, token: Option<&str>| {
            trimmed(Credentials::new(key, secret, token.map(str::to_owned), None, "test"))
        };
        let (found, is_changed) = of("key\n", " secret of mine\r\n", Some("token\t"));
        assert!(is_changed && is_sendable(&found));
        assert_eq!((found.access_key_id(), found.secret_access_key()), ("key", " secret of mine"));
        assert_eq!(found.session_token(), Some("token"));
        assert!(!of("key", "secret", None).1);
        assert!(!is_sendable(&of("k\ney", "s", None).0) && !is_sendable(&of("k", "s", Some("t\0")).0));
    }

    #[test]
    fn credentials_differ_in_key_secret_or_token_and_not_in_their_end() {
        let of = |key: &str, secret: &str, token: Option<&str>, end: Option<SystemTime>| {
            Credentials::new(key, secret, token.map(str::to_owned), end, "test")
        };
        let held = of("key", "secret", Some("token"), None);
        assert!(!differ(&held, &of("key", "secret", Some("token"), Some(SystemTime::UNIX_EPOCH))));
        assert!(differ(&held, &of("other", "secret", Some("token"), None)));
        assert!(differ(&held, &of("key", "other", Some("token"), None)));
        assert!(differ(&held, &of("key", "secret", Some("other"), None)));
        assert!(differ(&held, &of("key", "secret", None, None)));
    }

    #[test]
    fn credentials_are_replaced_before_they_expire_and_never_used_after() {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let minutes = |n: u64| Some(wall + Duration::from_secs(60 * n));
        let none = Duration::ZERO;
        assert_eq!(age(minutes(60), wall, none), Age::Fresh);
        assert_eq!(age(minutes(4), wall, none), Age::Due);
        assert_eq!(age(minutes(0), wall, none), Age::Expired);
        assert_eq!(age(Some(wall - Duration::from_secs(60)), wall, none), Age::Expired);
        assert_eq!(age(None, wall, none), Age::Fresh);
        assert_eq!(age(None, wall, REREAD), Age::Due);
    }
}
