//! Checks that a failure that a master names has happened in the simulated world.

use job::gang::Gang;
use protocol::agent::ExitReport;
use protocol::failure::{Failure, Loss};

use crate::world::World;
use crate::world_pods::{Fate, Pod};

/// Returns a message if the failure that a master found in this gang has not happened.
pub(crate) fn untruth(world: &World, failure: &Failure, gang: &Gang) -> Option<String> {
    let has_happened = match failure {
        Failure::ReplicaExited { replica, exit } => {
            let truly = world.pods.iter().find(|pod| pod.id == *replica).and_then(|pod| pod.run().exit.as_ref());
            // A stopped run can be a cause only if an earlier master stopped it and has died.
            let is_first = if exit.stopped { world.deaths > 0 } else { earliest_in(gang) == Some(exit) };
            truly == Some(exit) && is_first && !is_on_record(world, failure) && (exit.stopped || !exit.is_success())
        }
        Failure::ReplicaLost { replica, reason, loss } => {
            world.pods.iter().any(|pod| pod.id == *replica && was_lost_so(pod, (*loss, reason), world.deaths))
        }
        Failure::StartTimeout { missing, .. } => !missing.is_empty() && world.now >= world.policy.start_timeout,
        Failure::DeadlineExceeded { .. } => world.policy.deadline.is_some_and(|deadline| deadline.at <= world.now),
    };
    (!has_happened).then(|| format!("this failure has not happened: {failure:?} in {gang:?}"))
}

/// Whether the record lists an earlier start with the same failure.
fn is_on_record(world: &World, failure: &Failure) -> bool {
    world.record.restarts.failed_starts.iter().any(|failed| failed.failure == *failure)
}

fn earliest_in(gang: &Gang) -> Option<&ExitReport> {
    let exits = gang.members().filter_map(|member| member.phase.exit());
    exits.filter(|exit| !exit.is_success() && !exit.stopped).min_by_key(|exit| exit.ended_at)
}

fn was_lost_so(pod: &Pod, (loss, reason): (Loss, &str), deaths: u32) -> bool {
    match loss {
        Loss::Disrupted if reason.contains("takes no part in start") => pod.is_new(),
        // A pod that an earlier master deleted looks like an evicted pod.
        Loss::Disrupted => pod.had(Fate::Disrupted) || deaths > 0 && pod.had(Fate::Deleted),
        Loss::Broken => pod.had(Fate::NodeDied) || pod.had(Fate::Deleted),
        Loss::Hopeless => false,
    }
}
