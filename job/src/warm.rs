//! Whether a job's agents keep a warm interpreter, and what they import into it.

use protocol::env::EnvName;
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

/// The request to the agents of a role, if the job is warm. The request has the variables that are the same in every
/// start.
pub fn request(spec: &JobSpec, role: Role) -> Option<WarmRequest> {
    let variable = |(name, value): (&str, &str)| Some((name.parse::<EnvName>().ok()?, value.to_owned()));
    let modules = match &spec.run_policy.preload {
        Some(Preload::Modules(modules)) => Some(modules.clone()),
        Some(Preload::Never) | None => None,
    };
    let request =
        || WarmRequest { env: rendezvous::constants(spec, role).into_iter().filter_map(variable).collect(), modules };
    is_warm(spec).then(request)
}
