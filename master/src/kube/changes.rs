//! The watch that the back end and the store follow: kube's own, begun anew where that would wait, or repeat what cannot
//! work, for ever.

use std::fmt::Debug;
use std::time::Duration;

use backon::ExponentialBuilder;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{Error, Event, ExponentialBackoff, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::api::{Cluster, ours};

/// How long one page of a list may take. kube's watch sets no limit to it.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long nothing may be told. A watch that is quiet for so long begins anew, in case it is not quiet but dead.
const QUIET_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// The first pause after an error, and the longest, but for jitter that may double it: what happened while the API was
/// away is seen soon after it is back, and before a job that is on record counts as slow to arrive. kube's own grow to
/// a minute.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Without errors for so long, the next pause is the first again.
const CALM: Duration = Duration::from_secs(60);
/// The HTTP status that says that a watch cannot go on from where it was.
const GONE: u16 = 410;

/// Everything of this kind that a master has made, and then each change; everything again after some errors. It never
/// ends, and waits longer after each error in a row.
pub(crate) fn changes<K>(cluster: &Cluster) -> impl Stream<Item = Result<Event<K>, Error>> + Send + use<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let pauses = ExponentialBuilder::default().with_min_delay(FIRST_PAUSE).with_max_delay(LONGEST_PAUSE);
    let pauses =
        Pauses(ResetTimerBackoff::new(ExponentialBackoff::from(pauses.without_max_times().with_jitter()), CALM));
    stream::unfold(Following::begin(cluster.watched()), async |mut following| Some((following.next().await, following)))
        .boxed()
        .backoff(pauses)
}

/// Pauses that time alone begins anew. kube would begin them anew with whatever is told, and a server that forgets all the
/// time answers each list.
struct Pauses(ResetTimerBackoff<ExponentialBackoff>);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {}
}

struct Following<K> {
    api: Api<K>,
    events: BoxStream<'static, Result<Event<K>, Error>>,
    is_listing: bool,
}

impl<K> Following<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    fn begin(api: Api<K>) -> Self {
        Self { events: watcher(api.clone(), ours()).boxed(), api, is_listing: false }
    }

    async fn next(&mut self) -> Result<Event<K>, Error> {
        loop {
            let patience = if self.is_listing { LIST_TIMEOUT } else { QUIET_TIMEOUT };
            match timeout(patience, self.events.next()).await {
                Ok(Some(event)) => return self.heed(event),
                Ok(None) => {}
                Err(_) if self.is_listing => {
                    warn!(seconds = patience.as_secs(), "a list has no answer, and begins anew")
                }
                Err(_) => debug!(seconds = patience.as_secs(), "a watch told nothing for long, and begins anew"),
            }
            *self = Self::begin(self.api.clone());
        }
    }

    fn heed(&mut self, event: Result<Event<K>, Error>) -> Result<Event<K>, Error> {
        match &event {
            Ok(Event::Init) => self.is_listing = true,
            Ok(Event::InitDone) => self.is_listing = false,
            // kube would ask again from the same version.
            Err(Error::WatchStartFailed(kube::Error::Api(status))) if status.code == GONE => {
                *self = Self::begin(self.api.clone());
            }
            Ok(Event::InitApply(_) | Event::Apply(_) | Event::Delete(_)) | Err(_) => {}
        }
        event
    }
}
