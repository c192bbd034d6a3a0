//! Idle and busy connections: a request gets an idle one, opens one, or waits in a queue.
//!
//! Per host: at most `connections` open, spread over all addresses of its name, in two lanes (`lanes.rs`). The connection returned last is
//! reused first, so a quiet mount keeps few. Connections that are idle too long are closed.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::clock::Clock;
use crate::doorbell::{Doorbell, Next};
use crate::metrics::Metrics;
use crate::net::address::Addresses;
use crate::net::authority::Authority;
use crate::net::broken::Broken;
use crate::net::connection::Connection;
use crate::net::dial::Interfaces;
use crate::net::flow::lanes::{Lane, LaneSlot, Lanes};
use crate::net::flow::watch::Expired;
use crate::net::flow::width;
use crate::net::handshake::Handshake;
use crate::net::proxy::{Proxies, Proxy};
use crate::net::question::Question;
use crate::net::tls::Tls;
use crate::net::{Config, Result};
use crate::supervise::Supervisor;
use crate::sync::{Arc, Mutex, Weak};

/// Most connections to each host other than the bucket's, such as the sources of credentials.
pub(crate) const SIDE_CONNECTIONS: usize = 4;
/// Most hosts in the pool. Beyond it, the pool drops hosts without users.
const HOSTS_MAX: usize = 16;
/// Shortest pause between two sweeps, which close connections that were idle too long. Doubling it halves the sweeps of a busy mount, and
/// keeps an idle connection open for one more second at most.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Attempts to connect before the request fails, each with the next address.
const ATTEMPTS: u32 = 2;

/// All connections of one client.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    limits: Limits,
    tls: Tls,
    proxies: Proxies,
    /// The interfaces for connections to the bucket's host.
    interfaces: Arc<Interfaces>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    hosts: Mutex<HashMap<Authority, Arc<Host>>>,
    /// Rung when a connection becomes idle. The sweep then has a connection to close once the limit on idle time has passed.
    rested: Arc<Doorbell>,
    /// Notified when a bulk transfer begins: the measuring of the links then resumes.
    bulk: Arc<Notify>,
}

#[derive(Clone, Debug)]
struct Limits {
    connections: usize,
    connect: Duration,
    idle: Duration,
    resolve: Duration,
    queue: Duration,
}

/// The connections of one host.
#[derive(Debug)]
pub(crate) struct Host {
    authority: Authority,
    connections: usize,
    pub(crate) lanes: Arc<Lanes>,
    /// The proxy before this host, if any.
    proxy: Option<Proxy>,
    interfaces: Arc<Interfaces>,
    idle: Mutex<Vec<Connection>>,
    addresses: Mutex<Addresses>,
    question: Question,
}

/// A connection in use. Dropping the lease closes it; [`Lease::give_back`] keeps it for the next request.
#[derive(Debug)]
pub(crate) struct Lease {
    connection: Option<Connection>,
    host: Arc<Host>,
    pool: Arc<ConnectionPool>,
    place: Option<LaneSlot>,
}

/// The reason why a request got no connection.
#[derive(Debug)]
pub(crate) enum NoConnection {
    /// The name has no address now.
    Dns(io::Error),
    /// Every attempt failed: the last address, and its error.
    Connect(SocketAddr, io::Error),
    /// Neither the host's name nor its addresses led to a connection in the allowed time.
    Late(Duration),
    /// All connections (this number) are in use, and no byte moved on any of them for this time.
    AllBusy(usize, Duration),
}

impl std::fmt::Display for NoConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dns(e) => write!(f, "the host's name can't be resolved: {e}"),
            Self::Connect(at, e) => write!(f, "no connection to {at}: {e}"),
            Self::Late(within) => {
                write!(f, "no connection within the {} s that were left", within.as_secs_f32())
            }
            Self::AllBusy(connections, quiet) => write!(
                f,
                "all {connections} connections are in use, and none of them moved a byte for {} s",
                quiet.as_secs_f32()
            ),
        }
    }
}

impl std::error::Error for NoConnection {}

impl ConnectionPool {
    /// An empty pool. Reads the CA bundles and starts the tasks of the pool.
    pub(crate) fn new(config: &Config, clock: &Clock, metrics: &Arc<Metrics>) -> Result<Arc<Self>> {
        let limits = Limits {
            connections: config.connections,
            connect: config.connect,
            idle: config.idle,
            resolve: config.resolve,
            queue: config.queue,
        };
        let tls = Tls::new(config.ca_bundle.as_deref(), &config.extra_ca_bundles)?;
        let proxies = Proxies::new(&config.proxies)?;
        let pool = Arc::new(Self {
            limits,
            tls,
            proxies,
            interfaces: Arc::new(Interfaces::new(&config.interfaces)?),
            clock: clock.clone(),
            metrics: Arc::clone(metrics),
            hosts: Mutex::default(),
            rested: Arc::default(),
            bulk: Arc::new(Notify::new()),
        });
        let supervisor = Supervisor { metrics: Arc::clone(metrics), clock: clock.clone() };
        let runtime = tokio::runtime::Handle::current();
        let (weak, time, rested) = (Arc::downgrade(&pool), clock.clone(), Arc::clone(&pool.rested));
        supervisor.task(&runtime, "closing idle connections", move || {
            sweep(weak.clone(), time.clone(), Arc::clone(&rested))
        });
        let (weak, clock, bulk) = (Arc::downgrade(&pool), clock.clone(), Arc::clone(&pool.bulk));
        supervisor.task(&runtime, "fitting the lanes to the link", move || {
            look(weak.clone(), clock.clone(), Arc::clone(&bulk))
        });
        Ok(pool)
    }

    /// The host of the bucket, with the configured number of connections and interfaces.
    pub(crate) fn bucket_host(&self, authority: &Authority) -> Arc<Host> {
        self.host(authority, self.limits.connections, Arc::clone(&self.interfaces))
    }

    /// Any other host, with [`SIDE_CONNECTIONS`] connections.
    pub(crate) fn side_host(&self, authority: &Authority) -> Arc<Host> {
        self.host(authority, SIDE_CONNECTIONS, Arc::default())
    }

    fn host(&self, authority: &Authority, connections: usize, interfaces: Arc<Interfaces>) -> Arc<Host> {
        let mut hosts = self.hosts.lock();
        if let Some(known) = hosts.get(authority) {
            return Arc::clone(known);
        }
        if hosts.len() >= HOSTS_MAX {
            hosts.retain(|_, h| Arc::strong_count(h) > 1);
        }
        let host = Arc::new(Host {
            authority: authority.clone(),
            connections,
            lanes: Lanes::new(connections),
            proxy: self.proxies.on_the_way_to(authority).cloned(),
            interfaces,
            idle: Mutex::default(),
            addresses: Mutex::default(),
            question: Question::default(),
        });
        hosts.insert(authority.clone(), Arc::clone(&host));
        host
    }

    /// Waits in the queue for a permit to use a connection. The wait goes on while bytes move on the connections in use.
    pub(crate) async fn place(
        &self,
        host: &Arc<Host>,
        lane: Lane,
    ) -> std::result::Result<LaneSlot, NoConnection> {
        let mut entering = std::pin::pin!(host.lanes.enter(lane));
        let mut moved = None;
        loop {
            tokio::select! {
                biased;
                place = &mut entering => {
                    if host.lanes.is_busy() {
                        self.bulk.notify_one();
                    }
                    return Ok(place);
                }
                () = self.clock.sleep(self.limits.queue) => {}
            }
            let now = Some(host.lanes.moved());
            if moved == now {
                return Err(NoConnection::AllBusy(host.connections, self.limits.queue));
            }
            moved = now;
        }
    }

    /// A connection to `host` for this permit: an idle one unless `fresh`, otherwise a new one.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        host: &Arc<Host>,
        place: LaneSlot,
        fresh: bool,
    ) -> std::result::Result<Lease, NoConnection> {
        let idle = if fresh {
            // The oldest idle connection is closed, so that the number of connections stays within the limit.
            let oldest = {
                let mut idle = host.idle.lock();
                (!idle.is_empty()).then(|| idle.remove(0))
            };
            if let Some(oldest) = oldest {
                host.addresses.lock().closed(oldest.address);
            }
            None
        } else {
            self.take_idle(host)
        };
        let connection = match idle {
            Some(connection) => connection,
            None => self.open(host).await?,
        };
        Ok(Lease {
            connection: Some(connection),
            host: Arc::clone(host),
            pool: Arc::clone(self),
            place: Some(place),
        })
    }

    fn take_idle(&self, host: &Host) -> Option<Connection> {
        let now = self.clock.now();
        loop {
            let mut connection = host.idle.lock().pop()?;
            let fresh = now.saturating_duration_since(connection.idle_since) < self.limits.idle;
            if fresh && connection.is_reusable() {
                return Some(connection);
            }
            host.addresses.lock().closed(connection.address);
        }
    }

    /// Makes a TLS handshake with `host`, and closes the connection; `None` without TLS.
    pub(crate) async fn handshake(
        &self,
        host: &Host,
    ) -> std::result::Result<Option<Handshake>, NoConnection> {
        let connection = self.open(host).await?;
        host.addresses.lock().closed(connection.address);
        Ok(connection.handshake())
    }

    async fn open(&self, host: &Host) -> std::result::Result<Connection, NoConnection> {
        let mut tried = 0;
        loop {
            let address = self.address(host).await?;
            let opened = self.open_at(host, address).await;
            let now = self.clock.now();
            let mut addresses = host.addresses.lock();
            match opened {
                Ok(connection) => {
                    addresses.worked(address);
                    host.lanes.opened(&connection.moved);
                    self.metrics.s3_connections.inc();
                    return Ok(connection);
                }
                Err(e) => {
                    addresses.failed(address, now);
                    tried += 1;
                    if tried >= ATTEMPTS {
                        return Err(NoConnection::Connect(address, e));
                    }
                }
            }
        }
    }

    async fn open_at(&self, host: &Host, address: SocketAddr) -> io::Result<Connection> {
        let guard = OpenGuard { host, address, kept: false };
        let now = self.clock.now();
        let opening = async {
            let tcp = host.interfaces.dial(address).await?;
            Connection::open(&host.authority, host.proxy.as_ref(), tcp, address, &self.tls, now).await
        };
        let timeout = self.clock.sleep(self.limits.connect);
        let connection = tokio::select! {
            opened = opening => opened?,
            () = timeout => return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no handshake within {} s", self.limits.connect.as_secs_f32()),
            )),
        };
        guard.keep();
        Ok(connection)
    }

    /// The address for the next connection. Asks DNS if the known addresses are outdated.
    async fn address(&self, host: &Host) -> std::result::Result<SocketAddr, NoConnection> {
        let now = self.clock.now();
        let (due, known) = {
            let mut addresses = host.addresses.lock();
            let due = addresses.wants_resolving(now, self.limits.resolve);
            (due, if due { None } else { addresses.choose(now) })
        };
        if let (false, Some(address)) = (due, known) {
            return Ok(address);
        }
        let authority = host.proxy.as_ref().map_or(&host.authority, |proxy| &proxy.authority);
        let named: io::Result<Vec<SocketAddr>> = match authority.host.parse::<IpAddr>() {
            Ok(ip) => Ok(vec![SocketAddr::new(ip, authority.port)]),
            Err(_) => {
                tokio::select! {
                    named = host.question.ask(&authority.host, authority.port) => named,
                    () = self.clock.sleep(self.limits.connect) => Err(io::ErrorKind::TimedOut.into()),
                }
            }
        };
        let now = self.clock.now();
        let mut addresses = host.addresses.lock();
        let failed = match named {
            Ok(named) => {
                addresses.resolved(&named, now);
                None
            }
            Err(e) => {
                addresses.unanswered(now);
                Some(e)
            }
        };
        // If DNS does not answer, the earlier addresses stay in use.
        addresses.choose(now).ok_or_else(|| {
            NoConnection::Dns(failed.unwrap_or_else(|| io::Error::other("the name has no address")))
        })
    }

    /// Closes connections that were idle too long. Returns the time of the next sweep.
    fn sweep(&self) -> Next {
        let now = self.clock.now();
        let hosts: Vec<_> = self.hosts.lock().values().cloned().collect();
        let mut oldest: Option<Instant> = None;
        let mut closed = false;
        for host in hosts {
            let mut old = Vec::new();
            {
                let mut idle = host.idle.lock();
                // Connections idle for longest come first.
                let n = idle
                    .iter()
                    .take_while(|c| now.saturating_duration_since(c.idle_since) >= self.limits.idle)
                    .count();
                old.extend(idle.drain(..n));
                let since = idle.first().map(|c| c.idle_since);
                oldest = oldest.into_iter().chain(since).min();
            }
            closed |= !old.is_empty();
            let mut addresses = host.addresses.lock();
            old.iter().for_each(|c| addresses.closed(c.address));
        }
        if closed {
            self.metrics.work.ring();
        }
        sweep_again(oldest, now, self.limits.idle)
    }
}

/// Time of the next sweep: when the connection that is idle since `since`, the longest of all, reaches `idle_max`.
fn sweep_again(since: Option<Instant>, now: Instant, idle_max: Duration) -> Next {
    let Some(since) = since else { return Next::Rest };
    Next::Look(idle_max.saturating_sub(now.saturating_duration_since(since)).max(SWEEP_EVERY))
}

/// Sweeps idle connections for the life of the pool.
async fn sweep(pool: Weak<ConnectionPool>, clock: Clock, rested: Arc<Doorbell>) {
    rested.keep_house(&clock, |_| pool.upgrade().map_or(Next::Leave, |pool| pool.sweep())).await;
}

/// Measures the links for the life of the pool, while bulk transfers are in flight.
async fn look(pool: Weak<ConnectionPool>, clock: Clock, bulk: Arc<Notify>) {
    loop {
        clock.sleep(width::EVERY).await;
        let Some(pool) = pool.upgrade() else { return };
        let hosts: Vec<_> = pool.hosts.lock().values().cloned().collect();
        drop(pool);
        let busy = hosts.iter().fold(false, |busy, host| host.lanes.look(clock.now()) | busy);
        drop(hosts);
        if !busy {
            bulk.notified().await;
        }
    }
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        self.rested.ring();
        self.bulk.notify_one();
    }
}

/// A guard that takes back the address's count of connections if opening fails or its future is dropped.
struct OpenGuard<'a> {
    host: &'a Host,
    address: SocketAddr,
    kept: bool,
}

impl OpenGuard<'_> {
    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for OpenGuard<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.host.addresses.lock().closed(self.address);
        }
    }
}

impl Lease {
    /// Whether the connection served a request before this one.
    pub(crate) fn is_reused(&self) -> bool {
        self.served > 0
    }

    /// Keeps the connection for the next request if it is reusable; otherwise closes it.
    pub(crate) fn give_back(mut self) {
        if let Some(mut connection) = self.connection.take_if(Connection::is_reusable) {
            connection.served += 1;
            connection.idle_since = self.now();
            self.host.idle.lock().push(connection);
            self.pool.rested.ring();
        }
    }

    /// Closes the connection and returns its permit, for another connection.
    pub(crate) fn into_place(mut self) -> Option<LaneSlot> {
        self.place.take()
    }

    /// Notes a failure of the address: other addresses are preferred for a while.
    pub(crate) fn blame(&self) {
        self.host.addresses.lock().failed(self.address, self.now());
    }

    /// Notes that an exchange broke off: blames the address. After a silence, idle connections may be as dead as this one, so all of them
    /// are closed.
    pub(crate) fn suspect(&self, broken: &Broken) {
        self.blame();
        if matches!(broken, Broken::Expired(Expired::Quiet(_))) {
            let idle = std::mem::take(&mut *self.host.idle.lock());
            let mut addresses = self.host.addresses.lock();
            idle.iter().for_each(|connection| addresses.closed(connection.address));
        }
    }

    fn now(&self) -> Instant {
        self.pool.clock.now()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.host.addresses.lock().closed(connection.address);
        }
    }
}

impl Deref for Lease {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        // Nothing but `give_back` and the drop take the connection, and both end the lease.
        self.connection.as_ref().expect("a lease holds its connection")
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("a lease holds its connection")
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[test]
    fn the_sweep_rests_without_idle_connections_and_wakes_for_the_oldest() {
        let (now, idle_max) = (Instant::now(), Duration::from_secs(15));
        let again = |ago| sweep_again(Some(now - Duration::from_millis(ago)), now, idle_max);
        assert_eq!(sweep_again(None, now, idle_max), Next::Rest);
        assert_eq!(again(0), Next::Look(idle_max));
        assert_eq!(again(5000), Next::Look(Duration::from_secs(10)));
        assert_eq!(again(14_900), Next::Look(SWEEP_EVERY), "more may be due by then");
    }

    #[tokio::test]
    async fn an_idle_connection_is_closed_also_after_a_time_without_any() {
        let settle = async || {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (clock, config) = (Clock::manual(), crate::s3::Config::default().net());
        let pool = ConnectionPool::new(&config, &clock, &Arc::default()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let host = pool.bucket_host(&Authority { tls: false, host: "127.0.0.1".into(), port });
        for _ in 0..3 {
            let place = pool.place(&host, Lane::Small).await.unwrap();
            let lease = pool.connect(&host, place, false).await.unwrap();
            let (mut accepted, _) = listener.accept().await.unwrap();
            lease.give_back();
            settle().await;
            clock.advance(config.idle - SWEEP_EVERY);
            settle().await;
            assert_eq!(host.idle.lock().len(), 1, "not idle long enough");
            clock.advance(SWEEP_EVERY);
            settle().await;
            assert_eq!(host.idle.lock().len(), 0);
            assert_eq!(accepted.read(&mut [0]).await.unwrap(), 0, "it is closed");
            clock.advance(Duration::from_secs(3600));
            settle().await;
        }
    }
}
