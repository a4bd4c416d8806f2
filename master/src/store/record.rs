//! The record of one job: what the user asked for, and the few facts that a later master cannot observe.
//!
//! The record of a job that has not ended has no phase and no roster. Every master computes the phase from its
//! observations, so a takeover after a crash needs no code of its own. A job is accepted when its record is created. A
//! deletion removes the record last.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use job::plan;
use protocol::code::CodeId;
use protocol::elastic::Workers;
use protocol::failure::Restarts;
use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::job::JobSpec;
use protocol::view::{JobResult, JobTimes, ReplicaView};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{Halted, Suspension};

/// The format of records. Raise it with every change that a master of the earlier version would misread or drop. A master
/// leaves records of another format alone.
pub const FORMAT: u32 = 2;

/// The format of the record of a job whose replicas have several processes. An earlier master would drop their number, so it
/// must leave the record alone.
pub const FORMAT_OF_SEVERAL: u32 = 3;

/// The record of one job.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The format of the record: [`FORMAT`] or [`FORMAT_OF_SEVERAL`].
    pub format: u32,
    /// How many times the record was changed. A watch may report changes late, so readers ignore a revision that is
    /// lower than the highest that they have seen.
    #[serde(default)]
    pub revision: u64,
    /// The unique id of the job. A later job with the same name has another uid.
    pub uid: String,
    /// The request; it never changes.
    pub spec: Arc<JobSpec>,
    /// When the job was accepted.
    pub accepted_at: UnixMillis,
    /// 1 at first. Each takeover by another master, or by a new driver of the same master, adds one.
    pub epoch: u32,
    /// The boot id of the master that holds the job.
    pub holder: String,
    /// The fingerprint of the key of the agents' tokens, if agents outlive their master. A master with another key
    /// cannot send requests to these agents.
    pub agent_key: Option<String>,
    /// The priority of the job's pods, as the cluster has resolved it. 0 if they have none.
    #[serde(default, skip_serializing_if = "protocol::is_default")]
    pub priority: i32,
    /// The user's current wish.
    pub wish: Wish,
    /// The newest start with an agent of Muster's first prototype, recorded before the start. Such an agent cannot
    /// report whether its exec.py was started.
    pub launched: Option<Generation>,
    /// The failed starts of the gang, and the number of restarts.
    #[serde(default, skip_serializing_if = "Restarts::is_empty")]
    pub restarts: Restarts,
    /// The range of workers that a user last asked for. Absent: the range in the spec.
    pub desired: Option<Workers>,
    /// The code of the newest push. Absent: the code of the spec.
    pub code: Option<CodeId>,
    /// How often a user has pushed code, or asked for a new start of the scripts. The master stops a start that began with
    /// fewer pushes, and begins the next start.
    #[serde(default, skip_serializing_if = "protocol::is_default")]
    pub pushes: u32,
    /// When and how long users have suspended the job.
    #[serde(default, skip_serializing_if = "Suspension::is_none")]
    pub suspension: Suspension,
    /// The newest failed start after which the job has waited for new code. A push does not clear this field, because
    /// the field also shows that the start is over. [`JobRecord::waits_after`] shows whether the job still waits.
    pub halted: Option<Halted>,
    /// How the job ended; written once.
    #[serialize_always]
    pub ended: Option<Ended>,
}

impl JobRecord {
    /// The record of a job that the master `holder` has just accepted.
    pub fn new(spec: JobSpec, uid: String, holder: String, accepted_at: UnixMillis) -> Self {
        Self {
            format: if spec.nproc_per_node > 1 { FORMAT_OF_SEVERAL } else { FORMAT },
            revision: 0,
            uid,
            spec: spec.into(),
            accepted_at,
            epoch: 1,
            holder,
            agent_key: None,
            priority: 0,
            wish: Wish::Run,
            launched: None,
            restarts: Restarts::default(),
            desired: None,
            code: None,
            pushes: 0,
            suspension: Suspension::default(),
            halted: None,
            ended: None,
        }
    }

    /// How many workers an elastic job may have now; `None` for a fixed job.
    pub fn workers(&self) -> Option<Workers> {
        self.desired.or(self.spec.workers())
    }

    /// The spec with the numbers of workers that a user has chosen last.
    pub fn scaled_spec(&self) -> Cow<'_, JobSpec> {
        self.desired.map_or(Cow::Borrowed(&self.spec), |workers| Cow::Owned(self.spec.scaled(workers)))
    }

    /// The code that the job's next start uses, if the job brings its code.
    pub fn code(&self) -> Option<CodeId> {
        self.code.or(self.spec.code)
    }

    /// Whether the job has ended, or a user has cancelled or deleted it.
    pub fn is_over(&self) -> bool {
        self.ended.is_some() || self.wish > Wish::Run
    }

    /// The replicas that the job has now.
    pub fn replicas(&self) -> Vec<ReplicaId> {
        plan::replicas_now(&self.spec, self.workers())
    }

    /// The failed start after which the job waits for new code. `None` if the job has never waited, if a user has
    /// pushed new code after the wait began, or if the job has ended.
    pub fn waits_after(&self) -> Option<&Halted> {
        self.halted.as_ref().filter(|halted| halted.pushes >= self.pushes && self.ended.is_none())
    }

    /// The time from the job's acceptance to `now`, without the time for which the job was suspended.
    pub fn active_time(&self, now: UnixMillis) -> Duration {
        let now = self.suspension.since.map_or(now, |since| since.min(now));
        Duration::from_millis(now.0.saturating_sub(self.accepted_at.0).saturating_sub(self.suspension.earlier_millis))
    }

    /// The number of starts that are over, according to the record.
    pub fn starts(&self) -> u32 {
        self.restarts.total() + self.suspension.starts + u32::from(self.halted.is_some())
    }

    /// The newest start that is over, according to the record.
    pub fn newest_ended(&self) -> Option<Generation> {
        let halted = self.halted.as_ref().and_then(|halted| halted.failed.generation);
        self.restarts.newest_failed().max(self.suspension.ended).max(halted)
    }
}

/// What a user wants of a job. A wish can change only to a later wish in this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// The job runs to its end.
    Run,
    /// The job ends, and its record stays.
    Cancel,
    /// The job ends, and its record is deleted.
    Delete,
}

/// How a job ended, and when it reached each phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The result.
    pub result: JobResult,
    /// When the job reached its phases.
    pub times: JobTimes,
    /// The last start of the gang, if there was one.
    pub generation: Option<Generation>,
    /// The members of an elastic job's last start, by seat.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roster: Vec<ReplicaId>,
    /// The state of every replica at the end.
    pub replicas: Arc<[ReplicaView]>,
}

impl Ended {
    /// The times of a job that ended before this master began. If `finished` is unknown, it gets the value of `ended`.
    pub fn times_of_finished(&self) -> JobTimes {
        JobTimes { finished: self.times.finished.or(self.times.ended), ..self.times.clone() }
    }
}
