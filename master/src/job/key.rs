//! Which job: its name alone may be another job's later.

use protocol::ids::JobName;

/// A job, told from any other that had the same name before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// Its name.
    pub name: JobName,
    /// Its uid, as its record has it.
    pub uid: String,
}
