//! Options for a job's pods in Kubernetes. Flags and messages use the same text form of each value.

mod amount;
mod names;
mod pull_policy;
mod run_as;
mod toleration;
mod volume;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

pub use self::amount::{Amount, MemorySize, bytes_of_quantity, thousandths};
pub use self::names::{LabelKey, LabelValue, ObjectName};
pub use self::pull_policy::PullPolicy;
pub use self::run_as::RunAs;
pub use self::toleration::{TaintEffect, Toleration};
pub use self::volume::{Volume, VolumeSource};

/// Options for every pod of a job.
#[serde_with::apply(_ => #[serde(skip_serializing_if = "crate::is_default")])]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct PodOptions {
    /// CPU request and limit.
    pub cpu: Option<Amount>,
    /// Memory request and limit.
    pub memory: Option<Amount>,
    /// Number of GPUs, requested as `nvidia.com/gpu`.
    pub gpus: Option<u32>,
    /// Size of /dev/shm, a folder in memory; default 64 MiB. With `gpus`: half of the memory limit, or 8 GiB without a limit.
    pub shm: Option<MemorySize>,
    /// Volumes to mount.
    pub volumes: Vec<Volume>,
    /// Secrets whose keys become environment variables.
    pub env_secrets: Vec<ObjectName>,
    /// Labels that a node must have.
    pub node_selector: BTreeMap<LabelKey, LabelValue>,
    /// Taints to tolerate.
    pub tolerations: Vec<Toleration>,
    /// Name of the PriorityClass.
    pub priority_class: Option<ObjectName>,
    /// Name of the ServiceAccount. Its token is never mounted.
    pub service_account: Option<ObjectName>,
    /// When a node pulls the image; default IfNotPresent.
    pub image_pull_policy: Option<PullPolicy>,
    /// Seconds between SIGTERM and SIGKILL when the cluster ends a pod; default 30.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>, minimum = 1))]
    pub termination_grace_seconds: Option<NonZeroU32>,
    /// Whether the image may run as root.
    pub allow_root: bool,
    /// The UNIX user of the pods' processes. The default is the image's own user, or 65532 if the job brings its code.
    pub run_as: Option<RunAs>,
}

/// Where programs expect shared memory, by the Linux convention.
pub const SHM_PATH: &str = "/dev/shm";

/// An API group that only OpenShift has. OpenShift gives each namespace a range of users. It refuses a pod that names a
/// user outside this range, and gives a user to a pod that names none.
pub const OPENSHIFT_GROUP: &str = "security.openshift.io";

/// Default termination grace period, in seconds: Kubernetes' default.
pub const TERMINATION_GRACE_SECONDS: u32 = 30;

impl PodOptions {
    /// Flag names of the options that are set. A back end that does not support pod options names them in its error.
    pub fn asked_for(&self) -> Vec<&'static str> {
        let Self {
            cpu,
            memory,
            gpus,
            shm,
            volumes,
            env_secrets,
            node_selector,
            tolerations,
            priority_class,
            service_account,
            image_pull_policy,
            termination_grace_seconds: _, // has a meaning on every back end
            allow_root,
            run_as,
        } = self;
        let fields = [
            ("cpu", cpu.is_some()),
            ("memory", memory.is_some()),
            ("gpus", gpus.is_some()),
            ("shm", shm.is_some()),
            ("volume", !volumes.is_empty()),
            ("env-secret", !env_secrets.is_empty()),
            ("node-selector", !node_selector.is_empty()),
            ("toleration", !tolerations.is_empty()),
            ("priority-class", priority_class.is_some()),
            ("service-account", service_account.is_some()),
            ("image-pull-policy", image_pull_policy.is_some()),
            ("allow-root", *allow_root),
            ("run-as", run_as.is_some()),
        ];
        fields.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect()
    }

    /// The termination grace period in seconds, or its default.
    pub fn termination_grace_seconds(&self) -> u32 {
        self.termination_grace_seconds.map_or(TERMINATION_GRACE_SECONDS, NonZeroU32::get)
    }

    /// These options with a /dev/shm for GPUs, if there are GPUs and the options mount nothing there.
    #[must_use]
    pub fn with_shm_of_gpus(self) -> Self {
        let is_mounted = self.shm.is_some() || self.volumes.iter().any(|volume| volume.path == SHM_PATH);
        let shm = (self.gpus > Some(0) && !is_mounted).then(|| MemorySize::of_gpus(self.memory.as_ref()));
        Self { shm: self.shm.or(shm), ..self }
    }

    /// The first path that two volumes share. `shm` is a volume too.
    pub fn path_mounted_twice(&self) -> Option<&str> {
        let mut seen = BTreeSet::new();
        let shm = self.shm.iter().map(|_| SHM_PATH);
        shm.chain(self.volumes.iter().map(|volume| volume.path.as_str())).find(|path| !seen.insert(*path))
    }
}

/// The text is not a valid pod option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a valid {what}: {form}")]
pub struct BadValue {
    text: String,
    what: &'static str,
    form: &'static str,
}

fn bad(text: &str, what: &'static str, form: &'static str) -> BadValue {
    BadValue { text: text.chars().take(80).collect(), what, form }
}
