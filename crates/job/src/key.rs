//! The identity of a job. A later job may have the same name.

use protocol::ids::JobName;

/// The name and uid of a job. The uid distinguishes the job from earlier jobs with the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// The job's name.
    pub name: JobName,
    /// The job's uid, as in its record.
    pub uid: String,
}
