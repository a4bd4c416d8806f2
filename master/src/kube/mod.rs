//! The Kubernetes API, for the back end, the store of records and the controller of TFJobs.

pub(crate) mod api;
pub(crate) mod changes;
pub(crate) mod clock;
pub(crate) mod own_pod;

pub use self::api::{ApiFailure, Cluster};
pub use self::own_pod::{OwnUses, Used};

/// The name of the ConfigMap that contains a job's record and owns the job's pods.
pub(crate) fn record_name(job: &str) -> String {
    format!("muster-{job}")
}
