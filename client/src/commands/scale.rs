//! `scale`: changes the number of workers of an elastic job.

use protocol::elastic::{JobPatch, WorkerNum};
use protocol::ids::JobName;

use crate::error::Error;
use crate::exit::Exit;
use crate::master_client::MasterClient;
use crate::output::Notes;

pub(super) async fn run(
    client: &MasterClient,
    name: &JobName,
    WorkerNum { min, max }: WorkerNum,
    notes: &Notes,
) -> Result<Exit, Error> {
    let view = client.patch(name, JobPatch { worker_min: min, worker_num: Some(max) }).await?;
    if let Some(workers) = view.workers {
        let noun = if workers.max == 1 { "worker" } else { "workers" };
        notes.say(&format!("job {name} may have {workers} {noun} from now on; client status {name} shows it"));
    }
    Ok(Exit::Done)
}
