//! The main loop: watches report the groups that changed, and the loop plans and applies each of them. It only connects the other parts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use csi::contract::attachment::MountpointS3PodAttachment;
use csi::watch::lasting;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, FuturesUnordered, SelectAll};
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch as channel;

use crate::apply::{Applier, Outcome, describe};
use crate::facts::{Facts, Group, Phase};
use crate::handles::Handles;
use crate::headroom::act::reserve;
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::observed::Cache;
use crate::outdated;
use crate::plan::{Effect, plan};
use crate::prune;
use crate::queue::Queue;
use crate::upgrade::act::upgrade;

/// Most groups that are reconciled at once; the others wait in the queue. Doubling it doubles the load of the API server.
const WORKERS: usize = 8;
/// Interval between checks of all groups. The checks find changes without an event, such as the deletion of a workload while no
/// reconciler watched.
pub const SWEEP_EVERY: Duration = Duration::from_secs(120);
/// Objects per page of a list. A page is read as a whole before it is pruned: pages of 500 keep some 10 MiB more memory for good.
const PAGE: u32 = 100;
/// Longest time between turns of the wheel. `/healthz` fails if a turn is late by far.
pub const TURNS_EVERY: Duration = Duration::from_secs(10);

/// The health of the main loop.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    /// Whether all caches are filled.
    pub ready: bool,
    /// Whether groups were due while this process did not lead, and wait until it does. An expired Lease wakes nobody, so no change of the
    /// leadership tells this.
    pub missed: bool,
    /// The time of the last turn of the wheel.
    pub turned: Instant,
}

/// Watches the cluster, and applies plans while it leads.
pub struct MainLoop {
    cache: Cache,
    seen: SelectAll<BoxStream<'static, Seen>>,
    applier: Applier,
    leadership: Leadership,
    health: channel::Sender<Health>,
    /// The namespace of the drivers, if Mountpoint Pods are upgraded in place.
    upgrades: Option<String>,
}

/// The result of reconciling a group: the time after which it is due again without an event, or the reason why its plan was dropped.
pub type Again = Result<Option<Duration>, Left>;

/// The reason why the plan of a group was dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    /// The failed effect, or the fact that changed.
    pub why: String,
    /// Whether the facts changed after the plan was made. That is usual: the next plan uses the new facts.
    pub conflict: bool,
    /// The pause that the API server asked for.
    pub rest: Option<Duration>,
}

impl Left {
    /// Logs a failure as a warning, and a conflict, which is usual, only for debugging. `wait`: the time until the next plan.
    fn log(&self, group: &Group, wait: Duration) {
        let (Group { node, volume }, why) = (group, &self.why);
        match self.conflict {
            true => tracing::debug!(node, volume, ?wait, why, "the facts have changed; a new plan is made"),
            false => tracing::warn!(node, volume, ?wait, why, "the plan failed; it will be made again"),
        }
    }
}

enum Seen {
    Pod(Box<Pod>),
    Claim(Box<PersistentVolumeClaim>),
    Volume(Box<PersistentVolume>),
    Attachment(Group),
    Account(Box<ServiceAccount>),
    All,
    Nothing,
}

impl MainLoop {
    /// A loop for the cluster of this client. Its watches begin with [`MainLoop::run`].
    #[must_use]
    pub fn new(client: &Client, namespace: &str, applier: Applier, leadership: Leadership) -> Self {
        let mut seen = SelectAll::new();
        let handles = Handles::default();
        let index = handles.clone();
        let cache = Cache {
            namespace: namespace.to_owned(),
            pods: watched(client, &mut seen, prune::pod, |_| {}, |pod| Seen::Pod(Box::new(pod))),
            claims: watched(client, &mut seen, prune::claim, |_| {}, |claim| Seen::Claim(Box::new(claim))),
            volumes: watched(
                client,
                &mut seen,
                prune::volume,
                move |event| index.see(event),
                |volume| Seen::Volume(Box::new(volume)),
            ),
            handles,
            attachments: watched(
                client,
                &mut seen,
                prune::attachment,
                |_| {},
                |it: MountpointS3PodAttachment| Seen::Attachment(crate::observed::group_of_attachment(&it)),
            ),
            inline: false,
            share_percent: 0,
            stages: false,
            stages_on_nodes: false,
            agent: false,
            accounts: watched(client, &mut seen, prune::account, |_| {}, |it| Seen::Account(Box::new(it))),
        };
        let health = channel::channel(Health { ready: false, missed: true, turned: Instant::now() }).0;
        Self { cache, seen, applier, leadership, health, upgrades: None }
    }

    /// Sets whether inline volumes get Mountpoint Pods, too.
    #[must_use]
    pub fn with_inline_volumes(self, inline: bool) -> Self {
        Self { cache: Cache { inline, ..self.cache }, ..self }
    }

    /// Sets the share of a workload's resources, in per cent, that its Mountpoint Pod gets if no other setting names any.
    #[must_use]
    pub fn with_workload_share(self, share_percent: u32) -> Self {
        Self { cache: Cache { share_percent, ..self.cache }, ..self }
    }

    /// Sets whether volumes may have `mode full`, and whether their stages are directories of the nodes.
    #[must_use]
    pub fn with_stages(self, stages: bool, stages_on_nodes: bool) -> Self {
        Self { cache: Cache { stages, stages_on_nodes, ..self.cache }, ..self }
    }

    /// Sets whether an agent on the nodes gives credentials to service accounts whose annotations name no role.
    #[must_use]
    pub fn with_agent(self, agent: bool) -> Self {
        Self { cache: Cache { agent, ..self.cache }, ..self }
    }

    /// Sets the namespace of the node's drivers, if Mountpoint Pods are upgraded in place; `None` turns upgrades off.
    #[must_use]
    pub fn with_upgrades(self, drivers_in: Option<String>) -> Self {
        Self { upgrades: drivers_in, ..self }
    }

    /// A channel with the loop's health.
    #[must_use]
    pub fn health(&self) -> channel::Receiver<Health> {
        self.health.subscribe()
    }

    /// A function that renders the reconciler's page of metrics.
    #[must_use]
    pub fn page(&self) -> Arc<dyn Fn() -> String + Send + Sync> {
        let (cache, metrics) = (self.cache.clone(), self.applier.metrics());
        Arc::new(move || metrics.page(&cache))
    }

    /// Turns the wheel until `stop` completes. Returns when no effect is in progress any more.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut queue = Queue::default();
        let mut working: FuturesUnordered<BoxFuture<'_, (Group, Again)>> = FuturesUnordered::new();
        // One run for headroom at a time.
        let mut reserving: FuturesUnordered<BoxFuture<'_, bool>> = FuturesUnordered::new();
        let (mut reserve_due, mut waits_for_room) = (false, false);
        // One run for upgrades at a time: a node's pods are upgraded one after the other.
        let mut upgrading: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
        let (mut upgrade_due, drivers_in) = (false, self.upgrades.as_deref());
        let mut filled = filled(self.cache.clone()).boxed().fuse();
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        let mut pulse = tokio::time::interval(TURNS_EVERY);
        let mut leadership = self.leadership.clone();
        let (mut ready, mut stopped) = (false, false);
        let mut missed = true;
        let mut stop = std::pin::pin!(stop.fuse());
        let metrics = self.applier.metrics();
        let (cache, applier, gate) = (&self.cache, &self.applier, &self.leadership);
        // The index is a view of the caches at one moment: every event of a watch drops it.
        let mut index = None;
        loop {
            let now = Instant::now();
            self.health.send_replace(Health { ready, missed, turned: now });
            metrics.leads(gate.holds());
            while !stopped
                && working.len() < WORKERS
                && let Some(group) = queue.take(now)
            {
                let facts = gate.holds().then(|| {
                    let index = index.get_or_insert_with(|| cache.index());
                    cache.facts_by(index, &group, csi::contract::VERSION, Timestamp::now())
                });
                missed |= facts.is_none();
                working.push(Box::pin(reconcile(applier, gate, group, facts)));
            }
            if reserve_due && applier.reserves() && ready && !stopped && gate.holds() && reserving.is_empty()
            {
                reserve_due = false;
                reserving.push(Box::pin(reserve(cache, applier, gate)));
            }
            if upgrade_due && ready && !stopped && gate.holds() && upgrading.is_empty() {
                upgrade_due = false;
                upgrading.push(Box::pin(upgrade(cache, applier, gate, drivers_in)));
            }
            if stopped && working.is_empty() && reserving.is_empty() && upgrading.is_empty() {
                return;
            }
            let due = queue.next().filter(|_| !stopped && working.len() < WORKERS);
            let due = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut stop, if !stopped => stopped = true,
                Some((group, result)) = working.next() => match result {
                    Ok(again) => queue.done(group, again, Instant::now()),
                    Err(left) => {
                        metrics.plan_left(left.conflict);
                        let rest = left.rest.unwrap_or_default();
                        left.log(&group, queue.failed(group.clone(), rest, Instant::now()));
                    }
                },
                Some(again) = reserving.next() => waits_for_room = again,
                Some(()) = upgrading.next() => {}
                Some(seen) = self.seen.next() => {
                    index = None;
                    count(&seen, cache, &metrics);
                    reserve_due |= match &seen {
                        Seen::Pod(pod) => cache.is_about_headroom(pod),
                        Seen::Claim(_) | Seen::Volume(_) => waits_for_room,
                        _ => false,
                    };
                    upgrade_due |= matches!(&seen, Seen::Pod(pod) if cache.is_about_upgrades(pod));
                    if !ready {
                        continue;
                    }
                    for group in groups(cache, seen) {
                        queue.add(group, Instant::now());
                    }
                },
                result = &mut filled, if !ready => {
                    ready = result;
                    reserve_due = true;
                    tracing::info!(groups = cache.groups().len(), "all caches are filled");
                    add_all(&mut queue, cache);
                },
                () = leadership.changed() => {
                    let leads = leadership.holds();
                    if leads && missed && ready {
                        missed = false;
                        add_all(&mut queue, cache);
                    }
                    reserve_due |= leads;
                }
                _ = sweep.tick() => if ready {
                    (reserve_due, upgrade_due) = (true, true);
                    add_all(&mut queue, cache);
                },
                _ = pulse.tick() => {
                    reserve_due |= waits_for_room;
                    upgrade_due |= drivers_in.is_some();
                }
                () = due => {}
            }
        }
    }
}

/// Counts the time from the creation of a Mountpoint Pod until it runs.
fn count(seen: &Seen, cache: &Cache, metrics: &Metrics) {
    let Seen::Pod(pod) = seen else { return };
    if !cache.is_mountpoint_pod(pod) {
        return;
    }
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    match crate::mountpoint_pod::phase(pod) {
        Phase::Running => metrics.pod_runs(name, Instant::now()),
        Phase::Pending if pod.metadata.deletion_timestamp.is_none() => {}
        _ => metrics.pod_ended(name),
    }
}

/// Plans and carries out the effects of one group. `facts` is `None` if this process does not lead; then it does nothing.
async fn reconcile(
    applier: &Applier,
    leadership: &Leadership,
    group: Group,
    facts: Option<Facts>,
) -> (Group, Again) {
    let again = match facts {
        Some(facts) => carry_out(applier, leadership, facts).await,
        None => Ok(None),
    };
    (group, again)
}

/// Plans and applies. If a Mountpoint Pod can't be created (a quota, a webhook), it plans again without that pod: other workloads do not
/// wait for it. Effects that are done are not repeated.
///
/// # Errors
/// The reason why the plan was dropped, or the failed creation of a pod.
pub async fn carry_out(applier: &Applier, leadership: &Leadership, mut facts: Facts) -> Again {
    outdated::note(&applier.config, &mut facts);
    let (mut done, mut refused) = (Vec::new(), None);
    'plans: loop {
        let plan = plan(&facts);
        for effect in &plan.effects {
            if done.contains(effect) {
                continue;
            }
            if !leadership.holds() {
                let why = "the Lease has run out".to_owned();
                return Err(Left { why, conflict: true, rest: None });
            }
            match applier.apply(effect).await {
                Ok(Outcome::Done) => {
                    log(effect);
                    done.push(effect.clone());
                }
                Ok(Outcome::Stale(why)) => return Err(Left { why, conflict: true, rest: None }),
                Err(error) => {
                    let Facts { group, .. } = &facts;
                    tracing::debug!(node = group.node, volume = group.volume, %error, "{} failed", describe(effect));
                    let left = Left { why: error.to_string(), conflict: false, rest: error.rest() };
                    let Effect::CreatePod { request, .. } = effect else { return Err(left) };
                    facts.refused.insert(request.name.clone());
                    refused = Some(left);
                    continue 'plans;
                }
            }
        }
        return refused.map_or(Ok(plan.look_again_in), Err);
    }
}

fn log(effect: &Effect) {
    match effect {
        Effect::ConfirmWorkloadsEnded { .. }
        | Effect::ConfirmPodEnded { .. }
        | Effect::ConfirmUnnamed { .. }
        | Effect::ConfirmUnattached { .. }
        | Effect::Tell(_) => tracing::debug!("{}: done", describe(effect)),
        _ => tracing::info!("{}: done", describe(effect)),
    }
}

fn groups(cache: &Cache, seen: Seen) -> Vec<Group> {
    match seen {
        Seen::Pod(pod) => cache.groups_of_pod(&pod).into_iter().collect(),
        Seen::Claim(claim) => cache.groups_of_claim(&claim).into_iter().collect(),
        Seen::Volume(volume) => cache.groups_of_volume(&volume).into_iter().collect(),
        Seen::Attachment(group) => vec![group],
        Seen::Account(account) => cache.groups_of_account(&account).into_iter().collect(),
        Seen::All => cache.groups().into_iter().collect(),
        Seen::Nothing => Vec::new(),
    }
}

fn add_all(queue: &mut Queue, cache: &Cache) {
    let now = Instant::now();
    for group in cache.groups() {
        queue.add(group, now);
    }
}

/// Waits until all caches have been filled once. False if a watch ended before.
async fn filled(cache: Cache) -> bool {
    let Cache { pods, claims, volumes, attachments, accounts, .. } = cache;
    let all = tokio::join!(
        pods.wait_until_ready(),
        claims.wait_until_ready(),
        volumes.wait_until_ready(),
        attachments.wait_until_ready(),
        accounts.wait_until_ready()
    );
    all.0.is_ok() && all.1.is_ok() && all.2.is_ok() && all.3.is_ok() && all.4.is_ok()
}

/// Creates a cache that a watch fills. `seen` gets each observed object, and `index` each event, after the cache.
fn watched<K>(
    client: &Client,
    seen: &mut SelectAll<BoxStream<'static, Seen>>,
    prune: impl Fn(&mut K) + Send + 'static,
    index: impl Fn(&Event<K>) + Send + 'static,
    as_seen: impl Fn(K) -> Seen + Send + 'static,
) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let kind = K::kind(&()).into_owned();
    let config = watcher::Config::default().page_size(PAGE);
    let events =
        lasting(Api::<K>::all(client.clone()), config).default_backoff().modify(prune).reflect(writer);
    let stream = events.inspect_ok(index).map(move |event| match event {
        Ok(Event::Apply(object) | Event::Delete(object)) => as_seen(object),
        Ok(Event::InitDone) => Seen::All,
        Ok(Event::Init | Event::InitApply(_)) => Seen::Nothing,
        Err(error) => {
            tracing::warn!(kind, %error, "the watch broke; it begins again");
            Seen::Nothing
        }
    });
    seen.push(stream.boxed());
    store
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};

    use super::*;

    #[test]
    fn a_failed_plan_is_a_warning_and_a_conflict_is_for_debugging() {
        let mut file = tempfile::tempfile().unwrap();
        let lines = tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::DEBUG);
        let subscriber = lines.with_writer(file.try_clone().unwrap()).finish();
        let group = Group { node: "worker-1".into(), volume: "pv-1".into() };
        tracing::subscriber::with_default(subscriber, || {
            for conflict in [false, true] {
                let left = Left { why: "exceeded quota".into(), conflict, rest: None };
                left.log(&group, Duration::from_secs(3));
            }
        });
        let mut log = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut log).unwrap();
        let lines: Vec<_> = log.lines().collect();
        let [failure, conflict] = lines.as_slice() else { panic!("{log}") };
        assert!(failure.contains(" WARN ") && failure.contains("the plan failed"), "{failure}");
        assert!(conflict.contains(" DEBUG ") && conflict.contains("the facts have changed"), "{conflict}");
        for word in ["worker-1", "pv-1", "exceeded quota", "3s"] {
            assert!(failure.contains(word) && conflict.contains(word), "{word}: {log}");
        }
    }
}
