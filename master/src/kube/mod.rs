//! The Kubernetes API, shared by the back end and the store.

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
