//! The flags that choose the master.

use std::path::PathBuf;

use clap::Args;

/// How to reach the master. All commands take these flags.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ConnectionArgs {
    /// Address of the master, http://HOST:PORT or https://HOST:PORT. kube:[CONTEXT/]NAMESPACE reaches the master in
    /// that namespace through the Kubernetes API, with the kubeconfig. `kube` uses the namespace of the current
    /// context. `local` starts a master for the new job only, and the replicas run as processes on this machine. In
    /// commands on existing jobs, `local` means the one local master that runs at present [default: $MUSTER_MASTER,
    /// else local]
    #[arg(long, global = true, value_name = "URL", help_heading = "Master")]
    pub(crate) master: Option<String>,
    /// File with the master's token [default: the token in $MUSTER_TOKEN]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Master")]
    pub(crate) token_file: Option<PathBuf>,
}
