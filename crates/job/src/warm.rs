//! Whether a job's agents keep a warm interpreter, and what they import into it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use protocol::env::EnvName;
use protocol::env::launchers::LOCAL_WORLD_SIZE;
use protocol::ids::Role;
use protocol::job::JobSpec;
use protocol::run_policy::Preload;
use protocol::warm::WarmRequest;

use super::rendezvous;

/// Whether the job's agents keep a warm interpreter.
pub fn is_warm(spec: &JobSpec) -> bool {
    match &spec.run_policy.preload {
        Some(Preload::Never) => false,
        Some(Preload::Modules(_)) => true,
        // Elastic jobs and jobs that bring their code restart often. For other jobs, the memory would be wasted.
        None => spec.workers().is_some() || spec.code.is_some(),
    }
}

/// The request to an agent of this role at this address, if the job is warm. The request has the variables that are the
/// same in every start. It also has LOCAL_WORLD_SIZE if all replicas are on one machine: the agent computes
/// OMP_NUM_THREADS from it, which modules read while they are imported. References between these variables are expanded,
/// as in a start.
pub fn request(spec: &JobSpec, role: Role, address: IpAddr) -> Option<WarmRequest> {
    let variable = |(name, value): (&str, String)| Some((name.parse::<EnvName>().ok()?, value));
    let modules = match &spec.run_policy.preload {
        Some(Preload::Modules(modules)) => Some(modules.clone()),
        Some(Preload::Never) | None => None,
    };
    let request = || {
        let ranks: u32 = spec.trainers().map(|replica| spec.processes_of(replica)).sum();
        let ranks = ranks.to_string();
        let is_shared = address.is_loopback() || spec.nproc_per_node > 1;
        let local = (is_shared && role.trains()).then_some((LOCAL_WORLD_SIZE, ranks.as_str()));
        let constants = local.into_iter().chain(rendezvous::constants(spec, role));
        let mut variables: BTreeMap<_, _> = constants.map(|(name, value)| (name, value.to_owned())).collect();
        variables.extend(rendezvous::expanded_env(spec, || variables.clone()));
        WarmRequest { env: variables.into_iter().filter_map(variable).collect(), modules }
    };
    is_warm(spec).then(request)
}
