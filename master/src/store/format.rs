//! Formats of records. The format protects a record from a master of an earlier version, which would drop newer fields.

use protocol::job::JobSpec;
use protocol::run_policy::OnFailure;

/// The newest format of records that this version of the master can change. It is the format of jobs that have groups
/// of replicas, options of TF_CONFIG, or restart rules for roles. It is also the format of jobs that come from another
/// launcher, or wait for new code after a failure.
pub const FORMAT: u32 = 3;

/// The format of jobs that are elastic, bring code, name a script, were suspended, or received a push.
pub const SECOND_FORMAT: u32 = 2;

/// The format of all other jobs.
const FIRST_FORMAT: u32 = 1;

/// The format of a record without the field `format`.
pub(super) fn first_format() -> u32 {
    FIRST_FORMAT
}

/// The format of the record of a job that was just accepted. Later changes of a record may raise its format.
pub fn format_of(spec: &JobSpec) -> u32 {
    let needs_newest = !spec.groups.is_empty()
        || !spec.tf_config.is_default()
        || !spec.run_policy.restart.is_empty()
        || spec.run_policy.on_failure != OnFailure::Restart
        || spec.origin.is_some();
    let is_as_ever = spec.workers().is_none() && spec.code.is_none() && spec.script.is_default();
    match (needs_newest, is_as_ever) {
        (true, _) => FORMAT,
        (false, true) => FIRST_FORMAT,
        (false, false) => SECOND_FORMAT,
    }
}
