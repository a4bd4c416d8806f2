//! Names of environment variables, the programs that write and read each variable, and the rules for a job's variables.

pub mod launchers;

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::as_text::checked_text;

/// Written by the rendezvous, read by TensorFlow: the addresses of all members, and the role and index of this replica.
pub const TF_CONFIG: &str = "TF_CONFIG";
/// Written by the rendezvous, read by scripts: the number of processes of workers, without the chief.
pub const NUM_WORKERS: &str = "NUM_WORKERS";
/// Written by the rendezvous, read by scripts made for tf-spawner: this replica's index in its role. With several
/// processes, the index of the process among all processes of this role.
pub const WORKER_NUMBER: &str = "WORKER_NUMBER";
/// Written by the rendezvous, read by scripts made for tf-spawner: the same number as [`NUM_WORKERS`].
pub const TOT_WORKERS: &str = "TOT_WORKERS";
/// Written by the rendezvous for replicas that train, read by scripts: see [`crate::ids::Rank`].
pub const RANK: &str = "RANK";
/// Written by the rendezvous, read by scripts: the number of processes that train.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// Written by the rendezvous, read by scripts: the job's name.
pub const MUSTER_JOB: &str = "MUSTER_JOB";
/// Written by the rendezvous, read by scripts: `chief`, `worker`, `ps` or `evaluator`.
pub const MUSTER_ROLE: &str = "MUSTER_ROLE";
/// Written by the rendezvous, read by scripts: the replica's index in its role, from 0.
pub const MUSTER_INDEX: &str = "MUSTER_INDEX";
/// Written by the rendezvous for replicas of several processes, read by scripts: the index of the process in its replica,
/// from 0.
pub const MUSTER_PROCESS: &str = "MUSTER_PROCESS";
/// Written by the rendezvous, read by scripts: the generation, `E.S`.
pub const MUSTER_GENERATION: &str = "MUSTER_GENERATION";
/// Written by the rendezvous, read by scripts: the number of earlier starts. If a script of an earlier start may have
/// run, the number is at least 1.
pub const MUSTER_RESTART_COUNT: &str = "MUSTER_RESTART_COUNT";
/// Written by the rendezvous in jobs with a global batch, read by scripts: the batch size of each rank at the beginning
/// of this start, as a JSON list. 0 for a chief that only directs. Muster may change the sizes later.
pub const MUSTER_BATCH_SIZES: &str = "MUSTER_BATCH_SIZES";
/// Written by the rendezvous, read by the agent: hosts to reach without a proxy, separated by commas. When a proxy is
/// set, the agent adds these hosts to `no_proxy`, because gRPC hangs silently behind a proxy. Otherwise the script does
/// not get this variable.
pub const MUSTER_NO_PROXY: &str = "MUSTER_NO_PROXY";
/// Written by the agent, read by the helper `muster.py`: the file descriptor of the helper's socket to the agent,
/// and the inode of this socket, as `FD:INODE`.
pub const MUSTER_FD: &str = "MUSTER_FD";
/// Written by the agent, read by Muster's `sitecustomize.py`: the file descriptor to which Python writes its stacks, and
/// the file's inode, as `FD:INODE`.
pub const MUSTER_STACKS_FD: &str = "MUSTER_STACKS_FD";
/// Written by the agent, read by Transformers (`KubeflowCallback` in transformers/integrations/integration_utils.py):
/// the address to which the Trainer posts progress. The two variables below name the files of the token and of the
/// certificate for this address. The agent needs no certificate, because the address is on loopback. If the job sets
/// one of the three variables, the agent sets none.
pub const KUBEFLOW_TRAINER_SERVER_URL: &str = "KUBEFLOW_TRAINER_SERVER_URL";
/// See [`KUBEFLOW_TRAINER_SERVER_URL`].
pub const KUBEFLOW_TRAINER_SERVER_TOKEN: &str = "KUBEFLOW_TRAINER_SERVER_TOKEN";
/// See [`KUBEFLOW_TRAINER_SERVER_URL`].
pub const KUBEFLOW_TRAINER_SERVER_CA_CERT: &str = "KUBEFLOW_TRAINER_SERVER_CA_CERT";
/// Written by users, read by Transformers and by the agent: with the value `TRUE`, nothing is posted.
pub const DISABLE_KUBEFLOW_INTEGRATION: &str = "DISABLE_KUBEFLOW_INTEGRATION";
/// Written by the rendezvous unless the job sets it, read by Python: unbuffered output, so a killed run loses no line.
pub const PYTHONUNBUFFERED: &str = "PYTHONUNBUFFERED";
/// Written by the rendezvous for workers and parameter servers unless the job sets it, read by gRPC: `use_caller`, as
/// TensorFlow's ParameterServer guide recommends for every server.
pub const GRPC_FAIL_FAST: &str = "GRPC_FAIL_FAST";

/// Written by the rendezvous unless the job sets it, read by TensorFlow's gRPC workers: threads of the connection
/// cache. With one thread and one queue, a process has about 55 threads instead of 110, at the same speed. Pods and
/// users often have a limit of threads.
pub const TF_GRPC_WORKER_CACHE_THREADS: &str = "TF_GRPC_WORKER_CACHE_THREADS";
/// Queues of the connection cache: see [`TF_GRPC_WORKER_CACHE_THREADS`].
pub const TF_GRPC_WORKER_CACHE_QUEUES: &str = "TF_GRPC_WORKER_CACHE_QUEUES";

/// Written by a back end into the pod, read by the agent: the SHA-256, in hex, of the bearer token. Every request
/// except `GET /healthz` must carry the token. The hash keeps the token secret from readers of the pod's manifest.
pub const MUSTER_TOKEN_SHA256: &str = "MUSTER_TOKEN_SHA256";

/// Written by a back end into the pod, read by the agent: the pod's time from SIGTERM to the kubelet's SIGKILL, in
/// whole seconds (`terminationGracePeriodSeconds`).
pub const MUSTER_TERMINATION_GRACE_SECONDS: &str = "MUSTER_TERMINATION_GRACE_SECONDS";

/// Prefix of variables that the process back end writes for an agent. The agent removes the prefix and passes the
/// variable to the script. So the variable has no effect on the agent itself.
pub const MUSTER_SCRIPT_PREFIX: &str = "MUSTER_SCRIPT_";

/// Written by the kubelet into every container, removed by the agent. If this variable is set, JAX asks the cluster's
/// API for the members. The request fails, because pods have no token for the API.
pub const KUBERNETES_SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";

/// Written by the agent, as by torchrun, if several replicas that train share a machine and nobody has set it: `1`.
/// Read by OpenMP and OpenBLAS, and so by PyTorch and NumPy. Otherwise each replica would have a thread for each
/// processor, and the threads would wait for each other.
pub const OMP_NUM_THREADS: &str = "OMP_NUM_THREADS";

/// Prefix of Muster's own variables.
pub const MUSTER_PREFIX: &str = "MUSTER_";

/// Prefix of the dynamic linker's variables (ld.so(8)).
const LINKER_PREFIX: &str = "LD_";

/// Variables that make a program load or run code that its command does not name. Training rarely needs them. `PATH`
/// and `PYTHONPATH` are not listed, because many jobs need them.
const RUNS_OTHER_CODE: [&str; 20] = [
    // glibc and OpenSSL load the files that these variables name.
    "GCONV_PATH",
    "GLIBC_TUNABLES",
    "OPENSSL_CONF",
    "OPENSSL_ENGINES",
    "OPENSSL_MODULES",
    // CUDA loads the named library into every program that uses CUDA.
    "CUDA_INJECTION32_PATH",
    "CUDA_INJECTION64_PATH",
    // Shells first run the file that these variables name.
    "BASH_ENV",
    "ENV",
    // With these variables, an interpreter loads another library, runs a further file, opens a prompt, or takes more
    // flags.
    "PYTHONBREAKPOINT",
    "PYTHONHOME",
    "PYTHONINSPECT",
    "PYTHONSTARTUP",
    "PERL5DB",
    "PERL5OPT",
    "RUBYOPT",
    "NODE_OPTIONS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
];

/// Linux's maximum bytes of one variable: name, `=`, value and closing NUL
/// (`MAX_ARG_STRLEN`, include/uapi/linux/binfmts.h).
pub const ENTRY_LIMIT: usize = 131_072;

/// Maximum bytes of a job's arguments and variables together, as JSON. They are part of the job's record, which can be
/// a ConfigMap of at most 1 MiB. Kubernetes uses `MaxSecretSize` of core/v1 for ConfigMaps too. Linux's own limit for
/// arguments and variables is larger: a quarter of the stack, 2 MiB by default (execve(2)).
pub const INPUT_BYTES_MAX: usize = 512 * 1024;

/// Maximum characters of a variable's name.
pub const NAME_MAX: usize = 128;

/// A variable's name: `[A-Za-z_][A-Za-z0-9_]{0,127}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EnvName(String);

/// The name or the value of an environment variable is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// The name is empty, too long, begins with a digit, or contains a character that is not allowed.
    #[error(
        "environment name {0:?} is not allowed: use at most {NAME_MAX} letters, digits and '_', and no digit at the beginning"
    )]
    Name(String),
    /// The value contains a NUL byte.
    #[error("the value of {0} contains a NUL byte")]
    Nul(EnvName),
    /// Name and value together exceed [`ENTRY_LIMIT`].
    #[error("{name} would be {bytes} bytes long; Linux passes at most {ENTRY_LIMIT} to a program")]
    TooLong {
        /// The variable's name.
        name: EnvName,
        /// Length of name, `=`, value and NUL.
        bytes: usize,
    },
}

impl EnvName {
    /// Whether only Muster may set this variable. A job that sets it is refused.
    pub fn is_reserved(&self) -> bool {
        let computed = [TF_CONFIG, NUM_WORKERS, WORKER_NUMBER, TOT_WORKERS, RANK, WORLD_SIZE];
        computed.contains(&self.as_str()) || self.0.starts_with(MUSTER_PREFIX)
    }

    /// Whether Muster computes this variable: it is reserved, or one of [`launchers`].
    pub fn is_computed(&self) -> bool {
        self.is_reserved() || launchers::ALL.contains(&self.as_str())
    }

    /// Whether the variable makes a program run code that its command does not name. A job with such a variable must
    /// also name the variable in `allow_env`.
    pub fn runs_other_code(&self) -> bool {
        self.0.starts_with(LINKER_PREFIX) || RUNS_OTHER_CODE.contains(&self.as_str())
    }

    /// Checks that `value` can be passed to a program under this name.
    ///
    /// # Errors
    /// [`EnvError::Nul`] and [`EnvError::TooLong`].
    pub fn check_value(&self, value: &str) -> Result<(), EnvError> {
        let bytes = self.0.len() + value.len() + 2;
        if value.contains('\0') {
            Err(EnvError::Nul(self.clone()))
        } else if bytes > ENTRY_LIMIT {
            Err(EnvError::TooLong { name: self.clone(), bytes })
        } else {
            Ok(())
        }
    }
}

impl FromStr for EnvName {
    type Err = EnvError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let first_ok = !text.as_bytes().first().is_none_or(u8::is_ascii_digit);
        if first_ok && text.len() <= NAME_MAX && text.bytes().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(EnvError::Name(text.chars().take(NAME_MAX).collect()))
        }
    }
}

checked_text!(EnvName);
