//! Notes why each start of a job begins, which members it has, and which steps were lost with the start before.

use std::mem;

use job::alone::first_failure;
use job::gang::{Gang, Member};
use job::phase::{Ending, Halt, JobPhase, Stop};
use job::policy::Policy;
use job::roster::Roster;
use protocol::failure::Failure;
use protocol::ids::{Generation, ReplicaId};
use protocol::progress::LostSteps;
use protocol::starts::ChangeCause;

use crate::store::JobRecord;

/// What is known of a start when it begins.
pub(super) struct Beginning {
    pub(super) workers: u32,
    pub(super) cause: ChangeCause,
    /// The steps of the previous start that are lost, if it is known that there are any.
    pub(super) lost_steps: Option<LostSteps>,
}

/// The starts of a job under this master.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// The number of starts before the next start, from the record and this master's own starts.
    before: u32,
    /// The members of the newest start.
    roster: Vec<ReplicaId>,
    /// How often a user had pushed new code when this master last configured a start.
    configured_pushes: u32,
    /// How often a user had pushed new code when the newest start that ran was configured.
    started_pushes: u32,
    /// The cause of the next start, if it is known already.
    cause: Option<ChangeCause>,
    /// The steps that are lost with the previous start.
    lost_steps: Option<LostSteps>,
}

impl Starts {
    pub(super) fn new(record: &JobRecord) -> Self {
        // After a takeover, an earlier start may have left no trace. So count at least one start.
        let before = record.starts().max(u32::from(record.epoch > 1));
        let started_pushes = record.halted.as_ref().map_or(0, |halted| halted.pushes);
        Self { before, started_pushes, ..Self::default() }
    }

    /// The members of the newest start, by seat.
    pub(super) fn roster(&self) -> &[ReplicaId] {
        &self.roster
    }

    pub(super) fn started_pushes(&self) -> u32 {
        self.started_pushes
    }

    /// The cause of the next start, if it is known already.
    pub(super) fn cause(&self) -> Option<&ChangeCause> {
        self.cause.as_ref()
    }

    /// Notes the failure that ends a start as the cause of the next start. Later failures are not noted.
    fn note_failure(&mut self, failure: Failure) {
        self.cause.get_or_insert(ChangeCause::Left { failure });
    }

    /// Notes the first failure of a member as the cause of the next start. After a takeover, a member may be missing:
    /// its pod was lost while no master ran. Then the exits of other members are consequences.
    fn note_first_failure(&mut self, gang: &Gang, policy: &Policy) {
        let is_cause = |failure: &Failure| gang.is_whole() || matches!(failure, Failure::ReplicaLost { .. });
        first_failure(gang, policy).filter(is_cause).into_iter().for_each(|failure| self.note_failure(failure));
    }

    /// Stores the members of a start that an earlier master began.
    fn adopt(&mut self, gang: &Gang) {
        let mut members: Vec<_> = gang.members().map(|member| (gang.seat(member), member.id)).collect();
        members.sort_unstable();
        self.roster = members.into_iter().map(|(_, id)| id).collect();
    }

    /// Notes that this start begins with these members, after `earlier` starts.
    pub(super) fn begin(&mut self, earlier: u32, generation: Generation, roster: &Roster) -> Beginning {
        self.before = earlier + 1;
        let before = mem::replace(&mut self.roster, roster.members().to_vec());
        let joined: Vec<ReplicaId> = roster.members().iter().filter(|id| !before.contains(id)).copied().collect();
        let cause = match self.cause.take() {
            Some(cause) => cause,
            None if before.is_empty() && generation.epoch == 1 => ChangeCause::First,
            None if before.is_empty() => ChangeCause::TakenOver,
            None if joined.is_empty() => ChangeCause::Shrunk,
            None => ChangeCause::Joined { replicas: joined },
        };
        Beginning { workers: roster.workers(), cause, lost_steps: self.lost_steps.take() }
    }

    /// The number of starts so far: the greatest number from the record, the agents and this master.
    pub(super) fn so_far(&self, gang: &Gang, recorded: u32) -> u32 {
        let known = gang.places().iter().filter_map(|place| Some(place.enrolled?.membership.start + 1)).max();
        self.before.max(known.unwrap_or_default()).max(recorded)
    }

    /// Notes how often a user had pushed new code when this master configures a start.
    pub(super) fn configure(&mut self, pushes: u32) {
        self.configured_pushes = pushes;
    }

    /// Forgets lost steps that the script has saved meanwhile. A start may end before the script in a leaving pod ends.
    pub(super) fn note_saved(&mut self, gang: &Gang) {
        self.lost_steps = self.lost_steps.take().filter(|lost| !gang.has_saved(lost));
    }

    /// When a phase begins, notes why the previous start has ended. Also notes the members of a start that an earlier
    /// master began.
    pub(super) fn note(&mut self, (before, phase): (&JobPhase, &JobPhase), gang: &Gang, policy: &Policy) {
        // One script may have failed before all scripts ran, and then the start never reached `Running`.
        if let JobPhase::Halted(Halt { generation, .. }) | JobPhase::Running { generation, .. } = phase {
            // If an earlier master configured the start, only the agents can report the number.
            self.started_pushes = gang.pushes_in(*generation).unwrap_or(self.configured_pushes);
        }
        if let (JobPhase::Stopping(Stop { ending, .. }), false) = (before, matches!(phase, JobPhase::Stopping { .. })) {
            self.lost_steps = gang.unsaved_steps();
            if let Ending::Failed(known) = ending {
                // Every member has ended. The failure that came first may have been reported last.
                self.note_failure(gang.cause(known.clone()));
            }
        }
        let generations = (before.generation(), phase.generation());
        let stops_on = matches!((before, phase), (JobPhase::Stopping { .. }, JobPhase::Stopping { .. }))
            && generations.0 == generations.1;
        let is_unknown = self.roster.is_empty();
        match phase {
            JobPhase::Starting { .. } | JobPhase::Running { .. } if is_unknown => self.adopt(gang),
            // The ends of runs that this master has stopped are no failures. Only the grace of these runs has changed.
            JobPhase::Stopping { .. } if stops_on => {}
            // Do not look for a failure: a script that an earlier master has stopped for the push looks like a failure.
            JobPhase::Stopping(Stop { ending: Ending::Regroup, .. }) if is_for_push(gang, policy) => {
                self.cause.get_or_insert(ChangeCause::Pushed);
            }
            // If a member has failed by now, the gang regroups because of this failure. Usually, somebody has stopped
            // the member's run.
            JobPhase::Stopping(Stop { ending: Ending::Regroup, .. }) => self.note_first_failure(gang, policy),
            // A member was lost before any agent was asked to run exec.py.
            JobPhase::Restarting { .. } if matches!(before, JobPhase::Starting { .. }) => {
                self.note_first_failure(gang, policy);
            }
            JobPhase::Restarting { .. } if matches!(before, JobPhase::Suspended { .. }) => {
                self.cause = Some(ChangeCause::Resumed);
            }
            JobPhase::Restarting { .. } if has_code_for_halted(before, policy) => {
                self.cause = Some(ChangeCause::Pushed)
            }
            JobPhase::Stopping(Stop {
                ending: Ending::Succeeded | Ending::Failed(_) | Ending::Cancelled | Ending::Suspended,
                ..
            })
            | JobPhase::Halted { .. }
            | JobPhase::Suspended { .. }
            | JobPhase::Starting { .. }
            | JobPhase::Running { .. }
            | JobPhase::Pending { .. }
            | JobPhase::Queued { .. }
            | JobPhase::Restarting { .. }
            | JobPhase::Releasing { .. }
            | JobPhase::Finished { .. } => {}
        }
    }
}

/// Whether the gang regroups because a user has pushed new code.
fn is_for_push(gang: &Gang, policy: &Policy) -> bool {
    let pushes = |member: &Member| member.enrolled.map(|enrolled| enrolled.membership.pushes);
    let is_outdated = |member: &Member| pushes(member).is_some_and(|pushes| pushes < policy.pushes);
    gang.any(is_outdated)
}

/// Whether the job is halted, and a user has pushed new code after the halt.
fn has_code_for_halted(phase: &JobPhase, policy: &Policy) -> bool {
    matches!(phase, JobPhase::Halted(halt) if halt.has_new_code(policy))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use job::observation::{Enrolled, Observation, Presence};
    use job::replica::ReplicaPhase;
    use protocol::agent::{ExitOutcome, ExitReport, Membership};
    use protocol::ids::UnixMillis;
    use protocol::job::{JobRequest, JobSpec, Strategy};

    use super::*;

    const START: Generation = Generation { epoch: 1, sequence: 1 };

    fn gang(phases: [ReplicaPhase; 2]) -> Gang {
        let member = |(seat, phase): (u32, ReplicaPhase)| {
            let membership = Membership { seat, of: 2, start: 0, pushes: 0 };
            let enrolled = Some(Enrolled { generation: START, membership });
            let id = format!("worker-{seat}").parse().unwrap();
            Member { phase, pod: Presence::Live, enrolled, ..Member::of(id, &Observation::NEW, None) }
        };
        Gang::new((0..).zip(phases).map(member).collect(), None)
    }

    fn stopping(grace: u64) -> JobPhase {
        JobPhase::Stopping(Stop {
            generation: Some(START),
            horizon: Some(START),
            next: START.next(),
            ending: Ending::Regroup,
            since: Duration::ZERO,
            evaluates_until: Duration::ZERO,
            grace: Duration::from_secs(grace),
        })
    }

    #[test]
    fn a_run_that_the_master_has_stopped_is_no_cause_when_the_others_get_more_time() {
        let request = JobRequest {
            worker_num: Some(2),
            worker_min: Some(1),
            ..JobRequest::new("shrunk".parse().unwrap(), Strategy::AllReduce)
        };
        let policy = Policy::of(&JobSpec::try_from(request).unwrap(), Duration::ZERO, 0);
        let running = || ReplicaPhase::Running(START);
        let stopped = ExitReport { stopped: true, ..ExitReport::new(ExitOutcome::Signal(9), UnixMillis(1)) };
        let mut starts = Starts::default();
        let before = JobPhase::Running { generation: START, since: Duration::ZERO };
        starts.note((&before, &stopping(2)), &gang([running(), running()]), &policy);
        let half = gang([running(), ReplicaPhase::Exited(START, stopped)]);
        starts.note((&stopping(2), &stopping(30)), &half, &policy);
        assert_eq!(starts.cause, None);
    }
}
