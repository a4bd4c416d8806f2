//! Errors of a submit, and of a change of a job.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use job::key::JobKey;
use protocol::ids::{JobName, ReplicaId};
use protocol::job::SpecError;

use crate::backend::{BackendError, Refusal};
use crate::code::CodeError;
use crate::store::StoreError;

/// Maximum number of replicas that an error names.
const REPLICAS_NAMED: usize = 3;

/// Why a submit was not accepted, or a job could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum JobsError {
    /// Another job has this name.
    #[error("another job is named \"{0}\": choose another name, or delete that job first")]
    Exists(JobName),
    /// The TFJob was changed in a way that a job does not allow.
    #[error(
        "tfjob {name} is on record with another spec: {difference}. Only suspend and, with enableDynamicWorker, the \
         number of workers may change. To apply the file as a new job, first delete the old job: client delete {name}"
    )]
    OtherTfJob {
        /// The job.
        name: JobName,
        /// What differs, as a sentence without a full stop.
        difference: String,
    },
    /// The TFJob was applied again with other code.
    #[error(
        "tfjob {0} is on record with other code. To start its scripts again with the new code: client push {0} FOLDER"
    )]
    OtherCode(JobName),
    /// The TFJob was applied again with other code, and its job has ended or is being ended.
    #[error(
        "tfjob {0} has ended, or is being stopped, so it takes no new code. To run it again with the new code, first \
         delete the old job: client delete {0}"
    )]
    EndedTfJob(JobName),
    /// An unreadable record has this name.
    #[error(
        "the name \"{}\" belongs to a record that cannot be read ({reason}): choose another name, or remove the record \
         with {removal}", .job.name
    )]
    Unreadable {
        /// The job.
        job: JobKey,
        /// Why the record is unreadable.
        reason: String,
        /// The command that removes the record.
        removal: String,
    },
    /// Another version of the master wrote the record of the job.
    #[error(transparent)]
    OtherFormat(StoreError),
    /// No job has this name.
    #[error("no job is named \"{0}\"")]
    Unknown(JobName),
    /// The back end refuses the job.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The job's code is in its image, so the job takes no new code.
    #[error(
        "the script of job \"{0}\" is in its image: build the image again and submit the job with --replace, or submit \
         the job with its code, as in client train.py --image IMAGE"
    )]
    NotPushable(JobName),
    /// The job has ended, or a user has asked for its end.
    #[error("job \"{0}\" has ended, or is being stopped, so it takes no new code: submit the job again with --replace")]
    TakesNoCode(JobName),
    /// Agents still receive the new code.
    #[error("the new code of job \"{name}\" has not reached {} yet; the master is still sending it", listed(left))]
    Underway {
        /// The job.
        name: JobName,
        /// The replicas that do not have the code.
        left: BTreeSet<ReplicaId>,
    },
    /// An agent did not accept the new code.
    #[error("the job continues with its current code, because an agent did not accept the new code: {0}")]
    NotStaged(String),
    /// The code that the job brings cannot be used.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// The change does not fit the job.
    #[error(transparent)]
    Spec(SpecError),
    /// The job has ended, or is being ended.
    #[error("job \"{0}\" has ended, or is being stopped, so it can no longer be changed")]
    Over(JobName),
    /// This master creates its pods itself.
    #[error("agents cannot join this master: it creates its pods itself. Start a master with --backend joined")]
    NoMachines,
    /// The first agent of a job must give the number of workers, and this agent did not.
    #[error("no job is named \"{0}\": give --worker-num to create the job")]
    NotBegun(JobName),
    /// The agent's rules differ from the job's rules.
    #[error("job \"{name}\" was created with{rules}: use the same flags, or choose another --task")]
    OtherRules {
        /// The job.
        name: JobName,
        /// The job's rules as flags, with a space before each flag.
        rules: String,
    },
    /// A new agent cannot join a job that has ended.
    #[error("job \"{0}\" has ended: choose another --task, or remove the job with client delete {0}")]
    Ended(JobName),
    /// The master, or a machine of the job, cannot reach the agent that wants to join.
    #[error("{by} cannot reach the agent at {agent} (--address): {reason}")]
    AgentUnreachable {
        /// The program that cannot reach the agent.
        by: String,
        /// The address that the agent named.
        agent: SocketAddr,
        /// What went wrong at this address.
        reason: String,
    },
    /// The message of an agent cannot be kept.
    #[error("could not write the agent's message to disk")]
    NotWritten(#[source] io::Error),
    /// The store refuses the job's record.
    #[error("the store refused the job's record: {0}")]
    NotKept(String),
    /// The back end could not delete the job's pods.
    #[error("could not delete the pods of the job")]
    Pods(#[source] BackendError),
    /// The store does not answer.
    #[error("could not access the job's record")]
    Store(#[source] StoreError),
    /// The store or the back end did not answer in time.
    #[error(
        "the request for job \"{name}\" has no result after {} s: it may still succeed; client status {name} \
         shows whether it has",
        limit.as_secs()
    )]
    Late {
        /// The job.
        name: JobName,
        /// The time limit.
        limit: Duration,
    },
    /// This master does not drive the job now, so it asks no agent.
    #[error("the agents of job \"{0}\" were not asked in time: another master may have taken the job over. Try again")]
    NotDriven(JobName),
    /// The job is on record but has not reached the registry in time.
    #[error("job \"{0}\" is on record, but this master does not drive the job yet")]
    Slow(JobName),
}

impl JobsError {
    /// Whether the same request may succeed later.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Store(_)
                | Self::Pods(_)
                | Self::Late { .. }
                | Self::Underway { .. }
                | Self::Slow(_)
                | Self::Unreadable { .. }
                | Self::OtherFormat(_)
        )
    }
}

/// Names the first of some replicas.
fn listed(replicas: &BTreeSet<ReplicaId>) -> String {
    let first: Vec<String> = replicas.iter().take(REPLICAS_NAMED).map(ReplicaId::to_string).collect();
    let first = first.join(", ");
    match replicas.len().saturating_sub(REPLICAS_NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Converts an error of the store into the error of a user's request.
pub(super) fn of_store(error: StoreError) -> JobsError {
    match error {
        StoreError::Unreadable { job, reason, removal, version: _ } => JobsError::Unreadable { job, reason, removal },
        error @ StoreError::OtherFormat { .. } => JobsError::OtherFormat(error),
        StoreError::Refused(reason) | StoreError::OverQuota(reason) => JobsError::NotKept(reason),
        error @ (StoreError::Exists(_)
        | StoreError::NotFound(_)
        | StoreError::Conflict(_)
        | StoreError::Unavailable(_)) => JobsError::Store(error),
    }
}
