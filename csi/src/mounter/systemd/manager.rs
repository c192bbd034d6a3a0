//! The node's service manager over D-Bus. Enters: names and properties of units. Leaves: units that run or have ended, and their
//! messages.
//!
//! The code uses the system bus: on systemd's own socket, answers have a sender that the library does not accept as a name. One
//! connection serves all calls; if the bus closes it, the next call makes a new one. Signals only wake waiters, which then ask systemd,
//! so no change is missed.
//!
//! Never here: the purpose of a unit.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt as _;
use mountpoint::sync::{Arc, Mutex};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use zbus::message::Type;
use zbus::wire::{ObjectPath, Variant};
use zbus::{Connection, MatchRule, Message, MessageStream};

use super::unit::Properties;
use crate::error::{Error, ErrorKind, Result};

const DESTINATION: &str = "org.freedesktop.systemd1";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const SERVICE: &str = "org.freedesktop.systemd1.Service";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// Most signals that wait to be read; with more, the connection waits.
const SIGNALS: usize = 4096;
/// Time limit of one call. systemd answers within milliseconds, so a slower call hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Interval in which a waiter asks without a signal. Doubled, a waiter waits twice as long if a signal was lost with the connection.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Time in which a restarted systemd is back on the bus.
const BACK_SOON: Duration = Duration::from_secs(1);
/// The pause before the name of a unit that systemd is about to forget is tried again.
const FORGOTTEN_SOON: Duration = Duration::from_millis(20);

/// The state of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The unit is active: the engine serves.
    Active,
    /// The unit starts, ends, or waits to start, for the first time or again.
    Changing,
    /// The unit ended; with its last status text.
    Ended(String),
    /// systemd does not know the unit.
    Unknown,
}

/// The connection to systemd.
#[derive(Debug)]
pub(super) struct Manager {
    socket: PathBuf,
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
    wakers: Arc<Wakers>,
}

#[derive(Debug)]
struct Link {
    connection: Connection,
    listener: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// Waiters by the name of their unit; at most one per unit.
#[derive(Debug, Default)]
struct Wakers(Mutex<HashMap<String, Arc<Notify>>>);

/// A waiter for signals about one unit.
struct Waiter<'a> {
    wakers: &'a Wakers,
    unit: &'a str,
    woken: Arc<Notify>,
}

impl Wakers {
    fn waiter<'a>(&'a self, unit: &'a str) -> Waiter<'a> {
        let woken = Arc::new(Notify::new());
        self.0.lock().insert(unit.to_owned(), Arc::clone(&woken));
        Waiter { wakers: self, unit, woken }
    }

    fn wake(&self, unit: &str) {
        if let Some(woken) = self.0.lock().get(unit) {
            woken.notify_one();
        }
    }

    fn wake_all(&self) {
        for woken in self.0.lock().values() {
            woken.notify_one();
        }
    }
}

impl Waiter<'_> {
    /// Waits for a signal, or for [`ASK_EVERY`]; `false` after the deadline.
    async fn wait(&self, deadline: Instant) -> bool {
        let ask = deadline.min(Instant::now() + ASK_EVERY);
        let _ = timeout_at(ask, self.woken.notified()).await;
        Instant::now() < deadline
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.wakers.0.lock().remove(self.unit);
    }
}

impl Manager {
    /// The manager behind this socket; the first call connects.
    pub(super) fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), link: tokio::sync::Mutex::default(), wakers: Arc::default() }
    }

    /// Whether systemd's socket exists.
    pub(super) fn is_there(&self) -> bool {
        self.socket.exists()
    }

    /// Starts a unit, whose name must be unused, and waits until it is active.
    ///
    /// # Errors
    /// `FailedPrecondition` with the unit's status text if it ended, `DeadlineExceeded` if it still starts, `Unavailable` without systemd.
    /// Then the unit is stopped.
    pub(super) async fn start(&self, unit: &str, properties: &Properties, deadline: Instant) -> Result<()> {
        let waiter = self.wakers.waiter(unit);
        let started = self.start_and_wait(unit, properties, &waiter, deadline).await;
        drop(waiter);
        if started.is_err() {
            self.stop(unit, Instant::now() + ANSWER_WITHIN).await;
        }
        started
    }

    async fn start_and_wait(
        &self,
        unit: &str,
        properties: &Properties,
        waiter: &Waiter<'_>,
        deadline: Instant,
    ) -> Result<()> {
        let others: &[(&str, &[(&str, Variant<'_>)])] = &[];
        loop {
            let body = (unit, "fail", properties, others);
            match self.call(MANAGER_PATH, MANAGER, "StartTransientUnit", &body).await {
                Ok(_) => break,
                // The unit is from an earlier call, and systemd has not forgotten it yet; or from this call, whose answer was lost.
                Err(error) if is(&error, "UnitExists") && Instant::now() < deadline => {
                    match self.state(unit).await? {
                        State::Active | State::Changing => break,
                        State::Ended(_) | State::Unknown => self.reset(unit).await,
                    }
                    tokio::time::sleep(FORGOTTEN_SOON).await;
                }
                Err(error) => return Err(self.failed(&format!("starting {unit}"), &error)),
            }
        }
        loop {
            match self.state(unit).await? {
                State::Active => return Ok(()),
                State::Changing => {}
                State::Ended(words) => return Err(super::super::source::refused(&words)),
                State::Unknown => {
                    return Err(super::super::source::refused("its unit does not exist any more"));
                }
            }
            if !waiter.wait(deadline).await {
                let text = "the engine has neither begun to serve nor failed in time: is the store reachable from the node?";
                return Err(Error::new(ErrorKind::DeadlineExceeded, text));
            }
        }
    }

    /// Stops a unit if it runs, and makes systemd forget it. Waits for its end until the deadline.
    pub(super) async fn stop(&self, unit: &str, deadline: Instant) {
        match self.call(MANAGER_PATH, MANAGER, "StopUnit", &(unit, "replace")).await {
            Ok(_) => {
                self.ended(unit, deadline).await;
            }
            Err(error) if is(&error, "NoSuchUnit") => {}
            Err(error) => tracing::warn!(
                "stopping {unit}: {error}; its engine may still run: look at 'systemctl status {unit}'"
            ),
        }
        self.reset(unit).await;
    }

    /// Waits until a unit has no process; `false` if it has one at the deadline, or systemd does not answer.
    pub(super) async fn ended(&self, unit: &str, deadline: Instant) -> bool {
        let waiter = self.wakers.waiter(unit);
        loop {
            match self.state(unit).await {
                Ok(State::Ended(_) | State::Unknown) => return true,
                Ok(State::Active | State::Changing) => {}
                Err(error) => {
                    tracing::warn!("{error}");
                    return false;
                }
            }
            if !waiter.wait(deadline).await {
                return false;
            }
        }
    }

    /// The present state of a unit.
    ///
    /// # Errors
    /// `Unavailable` if systemd does not answer.
    pub(super) async fn state(&self, unit: &str) -> Result<State> {
        match self.ask(unit).await {
            Ok(state) => Ok(state),
            Err(error) if is(&error, "NoSuchUnit") || is(&error, "UnknownObject") => Ok(State::Unknown),
            Err(error) => Err(self.failed(&format!("asking for {unit}"), &error)),
        }
    }

    async fn ask(&self, unit: &str) -> zbus::Result<State> {
        let answer = self.call(MANAGER_PATH, MANAGER, "GetUnit", &(unit,)).await?;
        let body = answer.body();
        let path: ObjectPath<'_> = body.deserialize()?;
        // The order matters: a unit that has no job and is inactive afterwards has ended, but a unit whose start is queued is inactive,
        // too.
        let has_job = self.has_job(&path).await?;
        Ok(match self.property(&path, UNIT, "ActiveState").await?.as_str() {
            "active" | "reloading" => State::Active,
            "activating" | "deactivating" => State::Changing,
            "inactive" if has_job => State::Changing,
            _ => State::Ended(self.last_words(&path).await?),
        })
    }

    async fn has_job(&self, path: &ObjectPath<'_>) -> zbus::Result<bool> {
        let answer = self.call(path.as_str(), PROPERTIES, "Get", &(UNIT, "Job")).await?;
        let body = answer.body();
        let value: Variant<'_> = body.deserialize()?;
        let (number, _): (u32, ObjectPath<'_>) = value.try_into()?;
        Ok(number != 0)
    }

    async fn last_words(&self, path: &ObjectPath<'_>) -> zbus::Result<String> {
        let said = self.property(path, SERVICE, "StatusText").await?;
        if !said.is_empty() {
            return Ok(said);
        }
        let result = self.property(path, SERVICE, "Result").await?;
        Ok(format!("its unit ended with the result {result:?}, and its journal may say why"))
    }

    async fn property(&self, path: &ObjectPath<'_>, interface: &str, name: &str) -> zbus::Result<String> {
        let answer = self.call(path.as_str(), PROPERTIES, "Get", &(interface, name)).await?;
        let body = answer.body();
        let value: Variant<'_> = body.deserialize()?;
        String::try_from(value)
    }

    /// Clears the failed state of a unit, with which systemd would keep it.
    async fn reset(&self, unit: &str) {
        if let Err(error) = self.call(MANAGER_PATH, MANAGER, "ResetFailedUnit", &(unit,)).await
            && !is(&error, "NoSuchUnit")
        {
            tracing::warn!("forgetting {unit}: {error}");
        }
    }

    /// Calls systemd. If the connection was closed, the call is repeated once over a new one.
    async fn call<B>(&self, path: &str, interface: &str, method: &str, body: &B) -> zbus::Result<Message>
    where
        B: serde::Serialize + zbus::wire::DynamicType + Sync,
    {
        let link = self.link().await?;
        let call = |link: Arc<Link>| async move {
            link.connection.call_method(Some(DESTINATION), path, Some(interface), method, body).await
        };
        match call(Arc::clone(&link)).await {
            Err(error) if link.connection.is_closed() => {
                tracing::info!("the bus closed the connection ({error}); connecting again");
                call(self.link().await?).await
            }
            Err(error) if is_away(&error) => {
                tracing::info!("systemd restarts ({error}); asking again");
                tokio::time::sleep(BACK_SOON).await;
                call(link).await
            }
            answer => answer,
        }
    }

    async fn link(&self) -> zbus::Result<Arc<Link>> {
        let mut link = self.link.lock().await;
        if let Some(link) = link.as_ref().filter(|link| !link.connection.is_closed()) {
            return Ok(Arc::clone(link));
        }
        let made = Arc::new(self.connect().await?);
        *link = Some(Arc::clone(&made));
        Ok(made)
    }

    async fn connect(&self) -> zbus::Result<Link> {
        let address = format!("unix:path={}", self.socket.display());
        let builder = zbus::connection::Builder::address(address.as_str()).method_timeout(ANSWER_WITHIN);
        let connection = builder.build().await?;
        let signals = MatchRule::builder().msg_type(Type::Signal).interface(MANAGER).build()?;
        let signals = MessageStream::for_match_rule(signals, &connection, NonZeroUsize::new(SIGNALS)).await?;
        let listener = tokio::spawn(listen(signals, Arc::clone(&self.wakers)));
        let link = Link { connection, listener };
        let subscribed = link
            .connection
            .call_method(Some(DESTINATION), MANAGER_PATH, Some(MANAGER), "Subscribe", &())
            .await;
        // Without signals, waiters ask at intervals.
        if let Err(error) = subscribed {
            tracing::warn!("subscribing to systemd's signals: {error}");
        }
        Ok(link)
    }

    fn failed(&self, what: &str, error: &zbus::Error) -> Error {
        let text = format!(
            "{what}: the system bus at {} says: {error}; with node.mounter: systemd each node needs it",
            self.socket.display()
        );
        Error::new(ErrorKind::Unavailable, text)
    }
}

/// Wakes waiters for signals until the connection ends.
async fn listen(mut messages: MessageStream, wakers: Arc<Wakers>) {
    while let Some(Ok(message)) = messages.next().await {
        if message.message_type() != Type::Signal {
            continue;
        }
        let (header, body) = (message.header(), message.body());
        let unit = match header.member().map(|member| member.as_str()) {
            Some("JobRemoved") => {
                body.deserialize::<(u32, ObjectPath<'_>, &str, &str)>().map(|(_, _, unit, _)| unit)
            }
            Some("UnitRemoved") => body.deserialize::<(&str, ObjectPath<'_>)>().map(|(unit, _)| unit),
            _ => continue,
        };
        match unit {
            Ok(unit) => wakers.wake(unit),
            Err(error) => tracing::warn!("a signal of systemd that can't be read: {error}"),
        }
    }
    wakers.wake_all();
}

/// Whether systemd is not on the bus at present.
fn is_away(error: &zbus::Error) -> bool {
    use zbus::fdo::Error as Bus;
    let zbus::Error::FDO(error) = error else { return false };
    matches!(
        **error,
        Bus::ServiceUnknown(_) | Bus::NameHasNoOwner(_) | Bus::NoReply(_) | Bus::Disconnected(_)
    )
}

/// Whether an error is systemd's error with this name.
fn is(error: &zbus::Error, name: &str) -> bool {
    match error {
        zbus::Error::MethodError(error, _, _) => error.as_str().ends_with(&format!(".{name}")),
        zbus::Error::FDO(error) => {
            matches!(**error, zbus::fdo::Error::UnknownObject(_)) && name == "UnknownObject"
        }
        _ => false,
    }
}
