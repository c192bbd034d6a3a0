//! A watch that survives the status 410. Enters: an API and a selection. Leaves: the events of kube's watcher, while the caller polls it.
//!
//! Never here: the handling of an event; the backoff between attempts (`default_backoff` of the caller).

use std::fmt::Debug;

use futures_util::stream::{self, Stream, StreamExt as _};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// A watch that begins again with a list when its start is refused with the status 410. kube's watcher does so only after an event with
/// 410; after a status of 410 it would ask for the same expired version for ever.
pub fn lasting<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let begin = move || watcher(api.clone(), config.clone()).boxed();
    stream::unfold((begin(), begin), |(mut stream, begin)| async move {
        let event = stream.next().await?;
        if let Err(
            watcher::Error::WatchStartFailed(kube::Error::Api(status))
            | watcher::Error::WatchFailed(kube::Error::Api(status)),
        ) = &event
            && status.code == 410
        {
            stream = begin();
        }
        Some((event, (stream, begin)))
    })
}
