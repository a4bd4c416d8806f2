//! Divides a pod's termination grace. The run gets most of it. The agent gets the rest, because it must report and end
//! before the kubelet's SIGKILL.

use std::time::Duration;

/// The agent's reserve is one fifth of the grace. During the reserve, the agent kills and reaps processes, and the
/// master reads the report and the output.
const RESERVE_PART: u32 = 5;
/// The agent ends before the kubelet's SIGKILL. The time from its end to the SIGKILL is one fifth of the reserve.
const SPARE_PART: u32 = 5;
/// Maximum reserve.
const RESERVE_MAX: Duration = Duration::from_secs(5);

/// The shares. Both times begin when the agent gets SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Time from SIGTERM to SIGKILL for the run.
    pub run: Duration,
    /// Time until the agent itself ends.
    pub agent: Duration,
}

impl Shares {
    /// The shares of a pod that is killed after `grace`.
    pub fn of(grace: Duration) -> Self {
        let reserve = (grace / RESERVE_PART).min(RESERVE_MAX);
        Self { run: grace - reserve, agent: grace - reserve / SPARE_PART }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_is_divided_between_the_run_and_the_agent() {
        for (grace, run, agent) in [(30_000, 25_000, 29_000), (600_000, 595_000, 599_000), (1000, 800, 960), (0, 0, 0)]
        {
            let (run, agent) = (Duration::from_millis(run), Duration::from_millis(agent));
            assert_eq!(Shares::of(Duration::from_millis(grace)), Shares { run, agent });
        }
    }
}
