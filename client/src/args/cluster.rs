//! The flags of the verbs for a cluster: `install`, `uninstall` and `doctor`.

use clap::Args;
use master_client::namespace_name;

use super::FormatArgs;
use crate::cluster::installation::Installation;

pub(super) const INSTALL_EXAMPLES: &str = "\
Examples:
  client install
  eval \"$(client install -n team)\"
  client install --image registry.example.com/team/muster-master:0.1.0
  client install --export > muster.json";

/// The namespace of the master. `--master kube:CONTEXT/NAMESPACE` can also name the namespace.
#[derive(Debug, Args)]
pub(crate) struct NamespaceArg {
    /// Namespace of the master [default: from --master kube:NAMESPACE, else from the kubeconfig's context]
    #[arg(short, long, value_name = "NAME", value_parser = namespace_name)]
    pub(crate) namespace: Option<String>,
}

/// Arguments of `install`.
#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    pub(crate) place: NamespaceArg,
    #[command(flatten)]
    pub(crate) order: Installation,
    /// Print the objects for kubectl apply -f -, without the Secret, and install nothing
    #[arg(long)]
    pub(crate) export: bool,
}

/// Arguments of `uninstall`.
#[derive(Debug, Args)]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    pub(crate) place: NamespaceArg,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Only list what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also stop jobs that have not ended
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) place: NamespaceArg,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}
