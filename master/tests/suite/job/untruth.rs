//! Whether a failure that a master names is what the tiny world bears out.

use master::job::gang::Gang;
use protocol::agent::ExitReport;
use protocol::failure::{Failure, Loss};

use crate::job::world::World;
use crate::job::world_pods::{Fate, Pod};

/// Says what is untrue about a failure that a master has found in this gang.
pub(crate) fn untruth(world: &World, failure: &Failure, gang: &Gang) -> Option<String> {
    let is_true = match failure {
        Failure::ReplicaExited { replica, exit } => {
            let truly = world.pods.iter().find(|pod| pod.id == *replica).and_then(|pod| pod.run().exit.as_ref());
            // Only a master that has died can have stopped it without being known for it.
            let is_first = if exit.stopped { world.deaths > 0 } else { earliest_in(gang) == Some(exit) };
            truly == Some(exit) && is_first && !is_on_record(world, failure) && (exit.stopped || !exit.is_success())
        }
        Failure::ReplicaLost { replica, reason, loss } => {
            world.pods.iter().any(|pod| pod.id == *replica && was_lost_so(pod, (*loss, reason), world.deaths))
        }
        Failure::StartTimeout { missing, .. } => !missing.is_empty() && world.now >= world.policy.start_timeout,
        Failure::DeadlineExceeded { .. } => world.policy.deadline.is_some_and(|deadline| deadline.at <= world.now),
    };
    (!is_true).then(|| format!("untrue: {failure:?} in {gang:?}"))
}

/// Whether an earlier start has failed of this very exit.
fn is_on_record(world: &World, failure: &Failure) -> bool {
    world.record.restarts.failed_starts.iter().any(|failed| failed.failure == *failure)
}

fn earliest_in(gang: &Gang) -> Option<&ExitReport> {
    let exits = gang.members().iter().filter_map(|member| member.phase.exit());
    exits.filter(|exit| !exit.is_success() && !exit.stopped).min_by_key(|exit| exit.ended_at)
}

fn was_lost_so(pod: &Pod, (loss, reason): (Loss, &str), deaths: u32) -> bool {
    match loss {
        Loss::Disrupted if reason.contains("knows nothing of start") => pod.is_new(),
        // What an earlier master had deleted looks like what the cluster took.
        Loss::Disrupted => pod.had(Fate::Disrupted) || deaths > 0 && pod.had(Fate::Deleted),
        Loss::Broken => pod.had(Fate::NodeDied) || pod.had(Fate::Deleted),
        Loss::Hopeless => false,
    }
}
