//! Posts to an address of the user when a job restarts, waits for new code, or ends.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use master_client::http;
use protocol::view::{JobResult, JobState, JobView};
use reqwest::Url;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::address::config::{ClientConfig, NOTIFY_VARIABLE};
use crate::args::web_address;
use crate::ending::error::Error;
use crate::output::{Notes, narrate};

/// Maximum time of one request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The address of --notify, of the file of --notify-file, or of `MUSTER_NOTIFY`. Errors do not contain the address, which
/// may be a secret.
pub(super) fn address(flag: Option<Url>, file: Option<PathBuf>, config: &ClientConfig) -> Result<Option<Url>, Error> {
    let (origin, text) = match (flag, file) {
        (Some(url), _) => return Ok(Some(url)),
        (None, Some(file)) => {
            let shown = file.display().to_string();
            let unreadable = |error| Error::input(format!("read the file of --notify-file {shown}")).because(error);
            (shown.clone(), Some(fs::read_to_string(&file).map_err(unreadable)?))
        }
        (None, None) => (NOTIFY_VARIABLE.to_owned(), config.notify.clone()),
    };
    let url = text.map(|text| web_address(text.trim())).transpose();
    url.map_err(|wrong| Error::input(format!("{origin}: {wrong}")))
}

/// The requests of one command, which are sent one after another.
pub(super) struct Notifier {
    events: mpsc::UnboundedSender<Value>,
    task: tokio::task::JoinHandle<()>,
}

impl Notifier {
    /// A notifier that posts to this address. A request that fails is reported once, and not repeated.
    pub(super) fn new(url: Url, notes: Notes) -> Result<Self, Error> {
        let client = http().timeout(TIMEOUT).build();
        let client = client.map_err(|error| Error::input("prepare the requests of --notify").because(error))?;
        let (events, mut queue) = mpsc::unbounded_channel::<Value>();
        let task = tokio::spawn(async move {
            while let Some(event) = queue.recv().await {
                let answer = client.post(url.clone()).json(&event).send().await;
                // The address may contain a secret, so it is not printed.
                if let Err(error) = answer.and_then(reqwest::Response::error_for_status) {
                    notes.say(&format!("cannot post to the address of --notify: {}", error.without_url()));
                }
            }
        });
        Ok(Self { events, task })
    }

    /// Posts what has happened to this job since the last view.
    pub(super) fn tell(&self, before: Option<&JobView>, now: &JobView) {
        // While replicas still stop, a job with a result is `stopping`.
        let state = now.result.as_ref().map_or(now.state, JobResult::state);
        for sentence in news(before, now) {
            let text = format!("job {} {sentence}", now.name);
            // The task ends only with this notifier.
            let _ = self.events.send(json!({ "job": now.name, "state": state, "text": text }));
        }
    }

    /// Waits until all requests are answered.
    pub(super) async fn complete(self) {
        drop(self.events);
        let _ = self.task.await;
    }
}

/// The events since `before` that matter to a user who does not watch the job.
fn news(before: Option<&JobView>, now: &JobView) -> Vec<String> {
    let is_new = |state: JobState| now.state == state && before.is_some_and(|view| view.state != state);
    let halted = is_new(JobState::Halted).then(|| {
        let failed = now.restarts.failed_starts.last();
        let why = failed.map(|failed| format!(": {}", failed.failure)).unwrap_or_default();
        format!("waits for new code{why}")
    });
    let ended = now.result.is_some() && before.is_none_or(|view| view.result.is_none());
    let restart = narrate::restart(before, now).filter(|_| !ended).map(|text| format!("starts again, {text}"));
    restart.into_iter().chain(halted).chain(ended.then(|| narrate::closing(now))).collect()
}
