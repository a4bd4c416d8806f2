//! Variables that scripts for other launchers read. For each start, the rendezvous writes the variables that the job
//! does not set itself. Replicas that do not train get only PS_HOSTS and WORKER_HOSTS.

/// Defines a constant for each name, and the list of all names.
macro_rules! names {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        $($(#[$doc])* pub const $name: &str = stringify!($name);)*

        /// The names of all variables that scripts for other launchers read.
        pub(super) const ALL: &[&str] = &[$($name),*];
    };
}

names! {
    /// Read by torch.distributed: the address of rank 0.
    MASTER_ADDR,
    /// Read by torch.distributed: a free port of rank 0.
    MASTER_PORT,
    /// Read by scripts for torchrun: the replica's index among the training replicas at its address.
    LOCAL_RANK,
    /// Read by scripts for torchrun: the number of training replicas at the replica's address.
    LOCAL_WORLD_SIZE,
    /// Read by scripts for torchrun: the index of the replica's address among all addresses, in the order of ranks.
    GROUP_RANK,
    /// Read by scripts for torchrun: the number of different addresses.
    GROUP_WORLD_SIZE,
    /// Read by scripts for torchrun: always `default`, the name that torchrun gives to its only role.
    ROLE_NAME,
    /// Read by scripts for torchrun: the same as RANK.
    ROLE_RANK,
    /// Read by scripts for torchrun: the same as WORLD_SIZE.
    ROLE_WORLD_SIZE,

    /// Read by torch.distributed: the job's uid. If the variable is set, a launcher has started the script.
    TORCHELASTIC_RUN_ID,
    /// Read by scripts for torchrun: the same as [`super::MUSTER_RESTART_COUNT`].
    TORCHELASTIC_RESTART_COUNT,
    /// Read by scripts for torchrun: the job's maximum number of restarts.
    TORCHELASTIC_MAX_RESTARTS,
    /// Read by torch.distributed: `False`, so that rank 0 serves the key-value store of all ranks. With `True`, each
    /// rank would wait for a store of torchrun.
    TORCHELASTIC_USE_AGENT_STORE,
    /// Read by torch.distributed: `1`, as torchrun sets it. A failed NCCL call then ends the process.
    TORCH_NCCL_ASYNC_ERROR_HANDLING,

    /// Read by torchrun itself, if exec.py starts torchrun: the number of replicas that train.
    PET_NNODES,
    /// Read by torchrun: the rank of the replica.
    PET_NODE_RANK,
    /// Read by torchrun: the number of processes to start. It is the replica's number of GPUs, at least 1.
    PET_NPROC_PER_NODE,
    /// Read by torchrun: the same as [`MASTER_ADDR`].
    PET_MASTER_ADDR,
    /// Read by torchrun: the same as [`MASTER_PORT`].
    PET_MASTER_PORT,

    /// Read by `jax.distributed.initialize`: address and port of rank 0.
    JAX_COORDINATOR_ADDRESS,
    /// Read by scripts for JAX: the number of replicas that train.
    JAX_NUM_PROCESSES,
    /// Read by scripts for JAX: the rank.
    JAX_PROCESS_ID,
    /// Read by scripts for Kubeflow's JAXJobs: the address of rank 0, in brackets if it is an IPv6 address.
    COORDINATOR_ADDRESS,
    /// Read by scripts for Kubeflow's JAXJobs: the same as [`MASTER_PORT`].
    COORDINATOR_PORT,
    /// Read by scripts for Kubeflow's JAXJobs: the same as [`JAX_NUM_PROCESSES`].
    NUM_PROCESSES,
    /// Read by scripts for Kubeflow's JAXJobs: the same as [`JAX_PROCESS_ID`].
    PROCESS_ID,
    /// Read by `keras.distribution.initialize`: the same as [`JAX_COORDINATOR_ADDRESS`].
    KERAS_DISTRIBUTION_JOB_ADDRESSES,
    /// Read by `keras.distribution.initialize`: the same as [`JAX_NUM_PROCESSES`].
    KERAS_DISTRIBUTION_NUM_PROCESSES,
    /// Read by `keras.distribution.initialize`: the same as [`JAX_PROCESS_ID`].
    KERAS_DISTRIBUTION_PROCESS_ID,

    /// Read by scripts for Scavenger and OmniLearn, in jobs with a global batch: the samples of this replica in a step.
    BATCH_SIZE,
    /// The same as [`BATCH_SIZE`].
    WORKER_BATCH_SIZE,
    /// Read by scripts for OmniLearn, in jobs with a global batch: the samples of all replicas in a step.
    GLOBAL_BATCH_SIZE,
    /// The same as [`GLOBAL_BATCH_SIZE`].
    GLOBAL_CLUSTER_BATCH_SIZE,
    /// Read by scripts for OmniLearn, in jobs with a global batch: the samples of each rank, separated by commas.
    BATCH_SIZE_LIST,

    /// Read by scripts from before TF_CONFIG: the addresses of all parameter servers, separated by commas.
    PS_HOSTS,
    /// Read by scripts from before TF_CONFIG: the addresses of all workers, without the chief, separated by commas.
    WORKER_HOSTS,
}
