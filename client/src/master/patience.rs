//! The waits between retries while the master cannot be reached.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use master_client::MasterError;
use tokio::time::Instant;

use crate::output::Notes;

/// How long a command waits for an unreachable master, for example while the master restarts.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a command that observes a job waits. The job continues meanwhile. A master that moves to another node is
/// away for minutes, because the node pulls the image and attaches the volume.
const OBSERVER_LIMIT: Duration = Duration::from_secs(5 * 60);
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(3);

/// Sends a request until the master answers, or until the limit. Says once that the master does not answer. The request
/// must be safe to repeat.
pub(crate) async fn persist<T, F>(notes: &Notes, request: impl Fn() -> F) -> Result<T, MasterError>
where
    F: Future<Output = Result<T, MasterError>>,
{
    with(Patience::new(), notes, request).await
}

/// As [`persist`], for a command that observes jobs.
pub(crate) async fn observe<T, F>(notes: &Notes, request: impl Fn() -> F) -> Result<T, MasterError>
where
    F: Future<Output = Result<T, MasterError>>,
{
    with(Patience::of_observer(), notes, request).await
}

async fn with<T, F>(mut patience: Patience, notes: &Notes, request: impl Fn() -> F) -> Result<T, MasterError>
where
    F: Future<Output = Result<T, MasterError>>,
{
    loop {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(error) => {
                if error.is_transient() && !patience.has_failed() {
                    notes.say(&format!("{error}; retrying"));
                }
                patience.wait_after(error).await?;
            }
        }
    }
}

/// The retries since the last success.
pub(crate) struct Patience {
    trouble: Option<LastTrouble>,
    limit: Duration,
}

struct LastTrouble {
    since: Instant,
    delays: ExponentialBackoff,
}

impl Patience {
    /// Creates a state without failures, for a request whose answer the user waits for.
    pub(crate) fn new() -> Self {
        Self { trouble: None, limit: LIMIT }
    }

    /// Creates a state without failures, for a command that observes a job.
    pub(crate) fn of_observer() -> Self {
        Self { trouble: None, limit: OBSERVER_LIMIT }
    }

    /// Call after a success.
    pub(crate) fn restore(&mut self) {
        self.trouble = None;
    }

    /// Whether there was a failure since the last success.
    pub(crate) fn has_failed(&self) -> bool {
        self.trouble.is_some()
    }

    /// Call after a failure. Waits before the next attempt. Returns the error if a retry cannot help,
    /// or after the limit.
    pub(crate) async fn wait_after(&mut self, error: MasterError) -> Result<(), MasterError> {
        if !error.is_transient() {
            return Err(error);
        }
        let trouble = self.trouble.get_or_insert_with(|| LastTrouble { since: Instant::now(), delays: delays() });
        match trouble.delays.next() {
            Some(delay) if trouble.since.elapsed() < self.limit => {
                tokio::time::sleep(delay).await;
                Ok(())
            }
            Some(_) | None => Err(error),
        }
    }
}

fn delays() -> ExponentialBackoff {
    let delays = ExponentialBuilder::new().with_min_delay(FIRST_DELAY).with_max_delay(LONGEST_DELAY);
    delays.with_jitter().without_max_times().build()
}
