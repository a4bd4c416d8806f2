//! How often the master asks agents that have not answered yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Maximum pause, including jitter, between two requests to an agent that has not answered yet, if there are few such
/// agents. The pause is short because the whole gang waits for the last agent.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// If there are many such agents, the maximum pause is this time multiplied by their number. So the master sends at
/// most 1,000 of these requests a second, also while thousands of pods pull a large image.
const PAUSE_EACH: Duration = Duration::from_millis(1);

/// The number of agents of all jobs that are being asked and have not answered yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Unheard(Arc<AtomicU32>);

/// Counts one agent until it is dropped.
#[derive(Debug)]
pub struct UnheardAgent(Unheard);

impl Unheard {
    /// Counts an agent while it is asked for its first answer.
    pub(super) fn ask(&self) -> UnheardAgent {
        self.0.fetch_add(1, Ordering::Relaxed);
        UnheardAgent(self.clone())
    }

    fn pause_max(&self) -> Duration {
        PAUSE_MAX.max(PAUSE_EACH * self.0.load(Ordering::Relaxed))
    }
}

impl UnheardAgent {
    /// Limits `pause` to the maximum for the present number of agents.
    pub fn limit(&self, pause: Duration) -> Duration {
        pause.min(self.0.pause_max())
    }
}

impl Drop for UnheardAgent {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_grow_with_the_number_of_agents_that_do_not_answer() {
        let (unheard, long) = (Unheard::default(), Duration::from_secs(60));
        let first = unheard.ask();
        assert_eq!(first.limit(long), Duration::from_millis(200));
        assert_eq!(first.limit(Duration::from_millis(10)), Duration::from_millis(10));
        let others: Vec<UnheardAgent> = (0..4999).map(|_| unheard.ask()).collect();
        assert_eq!(first.limit(long), Duration::from_secs(5));
        drop(others);
        assert_eq!(first.limit(long), Duration::from_millis(200));
    }
}
