//! Jobs on machines that join: the job that is submitted, and the command by which a machine joins the job.

use master_client::MasterUrl;
use protocol::ids::JobName;
use protocol::job::{JobRequest, JobSpec, SpecError};
use protocol::run_policy::{OnUnreachable, RunPolicy};

/// The command that lets a machine join a job.
pub(super) fn join_command(job: &JobName, master: &MasterUrl) -> String {
    format!("agent --join {master} --task {job} -- python train.py")
}

/// How machines join a job that the master at this address has accepted.
pub(super) fn how_to_join(job: &JobName, master: &MasterUrl) -> String {
    let on_each = format!("run on each machine: {}", join_command(job, master));
    if !master.is_loopback() {
        return on_each;
    }
    format!("{on_each}\n{master} works only on this machine: on other machines, use an address that they can reach")
}

/// Makes the job elastic. The default of `on_unreachable` becomes `replace`: this value gives the agents a lease, and
/// only a lease shows that a machine is lost. If the user has `given` another value, the master refuses the job.
pub(super) fn on_machines(request: JobRequest, given: Option<OnUnreachable>) -> Result<JobSpec, SpecError> {
    let JobSpec { worker_min, worker_num, run_policy, .. } = JobSpec::try_from(request.clone())?;
    let run_policy = RunPolicy { on_unreachable: given.unwrap_or(OnUnreachable::Replace), ..run_policy };
    JobSpec::try_from(JobRequest { worker_min: worker_min.or(Some(worker_num)), run_policy, ..request })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_warned_of_an_address_that_other_machines_cannot_use() {
        let job = "digits".parse().unwrap();
        let told = |url: &str| how_to_join(&job, &url.parse().unwrap());
        let command = "run on each machine: agent --join http://10.0.0.1:7897 --task digits -- python train.py";
        assert_eq!(told("http://10.0.0.1:7897"), command);
        for here in ["http://127.0.0.1:7897", "http://localhost:7897", "http://[::1]:7897"] {
            let told = told(here);
            assert!(told.starts_with(&command.replace("http://10.0.0.1:7897", here)), "{told}");
            assert!(told.contains(&format!("\n{here} works only on this machine")), "{told}");
        }
    }
}
