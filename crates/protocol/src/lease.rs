//! Leases: when a master may assume that the run of an unreachable agent is dead. The master then restarts the job
//! without this agent. The agent uses a [`Fence`], and the master a [`Vigil`]. Both are pure: time is an argument.
//!
//! The master polls the agent. Each answer contains the time of the agent's clock, and the master's next poll repeats
//! this time. When the agent's clock shows the repeated time plus [`Lease::fence`], the agent kills its run. The agent
//! wrote the answer before the master received it. So when the master has waited for [`Lease::fence`] after the answer,
//! the agent has already begun to kill the run. The master waits a little longer ([`Lease::death`]). A poll that
//! arrives late does no harm: the fence counts from the time in the poll, not from the poll's arrival.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An agent's clock: milliseconds since its machine booted, including the time in which the machine was suspended
/// (Linux' `CLOCK_BOOTTIME`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClockMillis(pub u64);

impl ClockMillis {
    /// The point that is later by `time`.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// Maximum time that a master allows for the end of a killed process.
const LONGEST_END: Duration = Duration::from_millis(500);

/// The length of a lease, which determines the other times of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease(Duration);

impl Lease {
    /// A lease of this length.
    pub fn new(length: Duration) -> Self {
        Self(length)
    }

    /// After this time without an answer, the master treats the agent as lost.
    pub fn length(self) -> Duration {
        self.0
    }

    /// How long one poll waits for news.
    pub fn poll(self) -> Duration {
        self.0 * 2 / 5
    }

    /// How long an answer may take, besides the wait of its poll.
    pub fn answer(self) -> Duration {
        self.0 * 3 / 10
    }

    /// Interval at which the master looks at the clock.
    pub fn tick(self) -> Duration {
        self.0 / 20
    }

    /// How long a run may live after an answer of its agent. A poll that repeats the time of a later answer prolongs
    /// the run's life.
    pub fn fence(self) -> Duration {
        self.0 * 3
    }

    /// After this time without an answer, the master treats the run as dead. It is longer than the fence, because two
    /// clocks may differ in speed by one thousandth, and a killed process does not end at once.
    pub fn death(self) -> Duration {
        self.fence() + self.fence() / 1000 + self.poll().min(LONGEST_END)
    }
}

/// The part of a request that keeps an agent's run alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    /// See [`Lease::fence`].
    pub fence: Duration,
    /// The agent's clock in the last answer that the sender has received.
    pub heard: ClockMillis,
}

/// The agent's part: when the agent kills its run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fence {
    until: Option<ClockMillis>,
}

impl Fence {
    /// Applies a request that arrives now. A request with the time of an older answer changes nothing.
    pub fn renew(&mut self, Renewal { fence, heard }: Renewal, now: ClockMillis) {
        // If `heard` is in the future, it is the time of another machine's clock. Then use `now`.
        self.until = self.until.max(Some(heard.min(now).after(fence)));
    }

    /// Lets the run live without polls.
    pub fn lift(&mut self) {
        self.until = None;
    }

    /// When the agent kills its run. `None` if the run may live without polls.
    pub fn until(&self) -> Option<ClockMillis> {
        self.until
    }

    /// Whether the agent kills its run at the time `now`.
    pub fn has_passed(&self, now: ClockMillis) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// What a master may assume about an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// The agent answered recently, or has no lease.
    #[default]
    Held,
    /// The agent is lost, and its run may be alive.
    Lapsed,
    /// The agent is lost, and its run is dead.
    Fenced,
}

/// The master's part: measures how long the agent has been silent. All times come from one clock of the master. A
/// master that gets no processor time receives no answers. So the vigil subtracts the time by which its own looks at
/// the clock were late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vigil {
    lease: Lease,
    /// When the last answer was received.
    heard: Duration,
    /// When the vigil last looked at the clock.
    looked: Duration,
    /// The total time by which the looks since the last answer were late.
    slipped: Duration,
}

impl Vigil {
    /// A vigil that begins now, at an answer of the agent.
    pub fn new(lease: Lease, now: Duration) -> Self {
        Self { lease, heard: now, looked: now, slipped: Duration::ZERO }
    }

    /// Interval at which to [`look`](Self::look).
    pub fn tick(&self) -> Duration {
        self.lease.tick()
    }

    /// Looks at the clock. Call this at each [`Self::tick`].
    pub fn look(&mut self, now: Duration) -> Standing {
        self.slipped += now.saturating_sub(self.looked + self.lease.tick());
        self.looked = now;
        let silent = now.saturating_sub(self.heard + self.slipped);
        if silent >= self.lease.death() {
            Standing::Fenced
        } else if silent >= self.lease.length() {
            Standing::Lapsed
        } else {
            Standing::Held
        }
    }
}
