//! `scale`, `suspend` and `resume`: change the number of workers of an elastic job; stop a job and start it again.

use master_client::MasterClient;
use protocol::elastic::WorkerNum;
use protocol::ids::JobName;
use protocol::patch::JobPatch;

use super::leaving::to_follow;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::output::Notes;
use crate::output::command_line::command;

/// Changes the number of workers.
pub(super) async fn run(
    client: &MasterClient,
    name: &JobName,
    WorkerNum { min, max }: WorkerNum,
    notes: &Notes,
) -> Result<Exit, Error> {
    let view = client.patch(name, JobPatch { worker_min: min, worker_num: Some(max), ..JobPatch::default() }).await?;
    if let Some(workers) = view.workers {
        let noun = if workers.max == 1 { "worker" } else { "workers" };
        notes.say(&format!(
            "job {name} may have {workers} {noun} from now on; to see the present number: {}",
            command(&format!("status {name}"))
        ));
    }
    Ok(Exit::Done)
}

/// Stops the job's runs and deletes its pods, until `resume`.
pub(super) async fn suspend(client: &MasterClient, name: &JobName, notes: &Notes) -> Result<(), Error> {
    client.patch(name, JobPatch { suspended: Some(true), ..JobPatch::default() }).await?;
    let resume = command(&format!("resume {name}"));
    notes.say(&format!("job {name} is being suspended; to start the job again: {resume}"));
    Ok(())
}

/// Starts a suspended job again.
pub(super) async fn resume(client: &MasterClient, name: &JobName, notes: &Notes) -> Result<(), Error> {
    client.patch(name, JobPatch { suspended: Some(false), ..JobPatch::default() }).await?;
    notes.say(&format!("job {name} is not suspended any more; to follow the job: {}", to_follow(name)));
    Ok(())
}
