//! The watch for the back end and the store. It restarts kube's watch in two cases: when a list gets no answer, and
//! when kube's watch would repeat a failing request for ever.

use std::fmt::Debug;
use std::time::Duration;

use backon::ExponentialBuilder;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{Config, Error, Event, ExponentialBackoff, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tracing::warn;

/// Maximum time for one page of a list. kube's watch has no such limit.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the API keeps a watch open, in seconds. If nothing has arrived 5 s after this time, kube requests the watch
/// again, and continues where the watch was. With kube's own 290 s, a connection that a load balancer has forgotten
/// would hide all changes for minutes.
const WATCH_SECONDS: u32 = 20;
/// First and longest pause after an error. Jitter may double a pause. kube's own pauses would grow to a minute. After
/// an outage of the API, a submit would then wait for up to a minute until the watch reports the new job.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// After this time without errors, the next pause is [`FIRST_PAUSE`] again.
const CALM: Duration = Duration::from_secs(60);
/// The HTTP status for a watch that cannot continue from its resource version.
const GONE: u16 = 410;

/// Reports every object that `selected` selects, then each change. After some errors, the stream reports every object
/// again. The stream never ends, and waits longer after each consecutive error.
pub(crate) fn changes_of<K>(
    api: Api<K>,
    selected: Config,
) -> impl Stream<Item = Result<Event<K>, Error>> + Send + use<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let pauses = ExponentialBuilder::default().with_min_delay(FIRST_PAUSE).with_max_delay(LONGEST_PAUSE);
    let pauses =
        Pauses(ResetTimerBackoff::new(ExponentialBackoff::from(pauses.without_max_times().with_jitter()), CALM));
    let selected = selected.timeout(WATCH_SECONDS);
    stream::unfold(ListWatch::begin(api, selected), async |mut following| Some((following.next().await, following)))
        .boxed()
        .backoff(pauses)
}

/// Pauses that become short again only after a time without errors. kube would reset the pauses after each event. If a
/// server answered each list but refused each watch with 410, kube's pauses would never grow.
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

struct ListWatch<K> {
    api: Api<K>,
    selected: Config,
    events: BoxStream<'static, Result<Event<K>, Error>>,
    is_listing: bool,
}

impl<K> ListWatch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    fn begin(api: Api<K>, selected: Config) -> Self {
        Self { events: watcher(api.clone(), selected.clone()).boxed(), api, selected, is_listing: false }
    }

    fn again(&self) -> Self {
        Self::begin(self.api.clone(), self.selected.clone())
    }

    async fn next(&mut self) -> Result<Event<K>, Error> {
        loop {
            // kube ends a silent watch by itself, and resumes it without a new list.
            let event = if self.is_listing {
                timeout(LIST_TIMEOUT, self.events.next()).await
            } else {
                Ok(self.events.next().await)
            };
            match event {
                Ok(Some(event)) => return self.heed(event),
                Ok(None) => {}
                Err(_) => warn!(seconds = LIST_TIMEOUT.as_secs(), "a list got no answer; listing again"),
            }
            *self = self.again();
        }
    }

    fn heed(&mut self, event: Result<Event<K>, Error>) -> Result<Event<K>, Error> {
        match &event {
            Ok(Event::Init) => self.is_listing = true,
            Ok(Event::InitDone) => self.is_listing = false,
            // kube would retry for ever with the same resource version.
            Err(Error::WatchStartFailed(kube::Error::Api(status))) if status.code == GONE => {
                *self = self.again();
            }
            Ok(Event::InitApply(_) | Event::Apply(_) | Event::Delete(_)) | Err(_) => {}
        }
        event
    }
}
