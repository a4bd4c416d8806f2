//! The actions that `step` returns. The driver carries them out.

use std::time::Duration;

use protocol::failure::Failure;
use protocol::ids::{Generation, ReplicaId};
use protocol::view::JobResult;

use crate::gang::{Gang, Place};
use crate::observation::Presence;
use crate::roster::Roster;
use crate::upkeep::Upkeep;

/// A subset of a job's pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodSelection {
    /// Pods whose containers may still run. Ended pods may stay, because `kubectl logs` still works for them.
    Live,
    /// Pods that may still have a run, because their agent has not reported its end. The run may be of the current
    /// start or, after a takeover, of any start.
    Unended,
    /// Pods in which exec.py was not started. These pods do not end by themselves.
    Idle,
    /// All pods of the job.
    All,
}

impl PodSelection {
    /// Whether the selection includes the pod of this replica of the gang.
    #[must_use]
    pub fn includes(self, place: &Place<'_>, gang: &Gang<'_>) -> bool {
        // Deleting an evicted pod would shorten its grace period.
        let is_leaving = place.seen.is_leaving();
        match self {
            Self::Live => place.seen.presence().has_containers(),
            Self::Unended => !is_leaving && place.is_unended() && (gang.has(place) || place.may_have_unknown_run()),
            Self::Idle => place.is_idle(),
            Self::All => place.seen.presence() != Presence::Absent,
        }
    }
}

/// What the driver does next. Repeating an action is harmless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Create and delete these pods.
    Keep(Upkeep),
    /// Give these replicas their seats in this start.
    Enrol {
        /// The start.
        generation: Generation,
        /// The members of the start.
        roster: Roster,
    },
    /// Send every member its environment.
    Configure(Generation),
    /// Ask every member to run exec.py.
    Launch(Generation),
    /// Give the new pod of this evaluator its place in a start that runs: send it its environment, and run exec.py.
    Rejoin {
        /// The start.
        generation: Generation,
        /// The evaluator.
        replica: ReplicaId,
    },
    /// Ask every live run except those of evaluators to stop, unless this master has already asked.
    StopTraining {
        /// Time between SIGTERM and SIGKILL.
        grace: Duration,
    },
    /// Ask every live run to stop, unless this master has already asked.
    StopRuns {
        /// Time between SIGTERM and SIGKILL.
        grace: Duration,
    },
    /// Record that a start failed for this reason and that the job restarts.
    RecordRestart(Failure),
    /// Record the failure after which the job waits for new code, and since when it waits.
    RecordHalt,
    /// Record that a user's wish to suspend the job has ended the job's current start.
    RecordSuspension,
    /// Record the result of the job. The result never changes afterwards.
    Conclude(JobResult),
    /// Ask every remaining pod to shut down, unless this master has already asked.
    ReleasePods,
    /// Delete these pods.
    DeletePods(PodSelection),
}
