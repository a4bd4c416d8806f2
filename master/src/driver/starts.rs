//! The starts of a job under one driver: why each start begins, its members, the steps that were lost with the start
//! before, and the times at which the job reached its phases. Each start is noted in the timeline.

use std::mem;
use std::sync::Arc;

use job::alone::first_failure;
use job::gang::{Gang, Place};
use job::phase::{Attempt, Ending, Halt, JobPhase, StartStage, Stop};
use job::policy::Policy;
use job::replica::ReplicaPhase;
use job::roster::Roster;
use protocol::failure::Failure;
use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::progress::LostSteps;
use protocol::starts::ChangeCause;
use protocol::timeline::StartEnding;
use protocol::view::JobTimes;

use super::timeline::{Beginning, Facts, TimelineOfJob, ending_of, ending_with};
use crate::store::{Ended, JobRecord};
use crate::tally::StartTimes;

/// The starts of a job under this master.
#[derive(Debug, Default)]
pub(super) struct Starts {
    timeline: Arc<TimelineOfJob>,
    /// When the job reached its phases. A later master leaves out the times of earlier steps that no agent reports.
    times: JobTimes,
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

/// What the driver knows when the job enters a phase.
#[derive(Clone, Copy)]
pub(super) struct Entered<'a> {
    /// The gang in the previous phase.
    pub(super) gang: &'a Gang<'a>,
    pub(super) policy: &'a Policy,
    pub(super) record: &'a JobRecord,
    /// The failure that the driver has diagnosed, if the phase follows a failed start.
    pub(super) failure: Option<&'a Failure>,
    /// When the last exec.py of the newest start was started, if every agent has reported the time.
    pub(super) last_launch: Option<UnixMillis>,
    pub(super) now: UnixMillis,
}

impl Entered<'_> {
    /// Whether this master has seen each start of the job, because it is the job's first master.
    fn are_all_seen(&self) -> bool {
        self.record.epoch == 1
    }

    /// When the last exec.py of the newest start was started, if this is known when the job enters the phase `after`.
    fn started(&self, (before, after): (&JobPhase, &JobPhase)) -> Option<UnixMillis> {
        let was_starting = matches!(before, JobPhase::Starting { .. });
        if matches!(after, JobPhase::Running { .. }) {
            // A master that takes over a running gang learns the time from the agents.
            return if was_starting { Some(self.now) } else { self.last_launch };
        }
        let is_complete = was_starting && self.gang.all(ReplicaPhase::was_launched);
        (is_complete && matches!(after, JobPhase::Stopping { .. })).then_some(self.now)
    }
}

/// The job's first start under its first master.
const FIRST: Generation = Generation { epoch: 1, sequence: 1 };

impl Starts {
    /// The starts of a driver that begins in this phase.
    pub(super) fn new(record: &JobRecord, phase: &JobPhase, timeline: Arc<TimelineOfJob>, now: UnixMillis) -> Self {
        timeline.begin(record, phase, now);
        // After a takeover, an earlier start may have left no trace. So count at least one start.
        let before = record.starts().max(u32::from(record.epoch > 1));
        let started_pushes = record.halted.as_ref().map_or(0, |halted| halted.pushes);
        let (accepted, halted) = (Some(record.accepted_at), record.waits_after().map(|halted| halted.since));
        let times = JobTimes { accepted, halted, ..JobTimes::default() };
        let times = record.ended.as_ref().map_or(times, Ended::times_of_finished);
        Self { timeline, times, before, started_pushes, ..Self::default() }
    }

    pub(super) fn timeline(&self) -> &TimelineOfJob {
        &self.timeline
    }

    pub(super) fn times(&self) -> &JobTimes {
        &self.times
    }

    /// The members of the newest start, by seat.
    pub(super) fn roster(&self) -> &[ReplicaId] {
        &self.roster
    }

    pub(super) fn started_pushes(&self) -> u32 {
        self.started_pushes
    }

    /// Notes the failure that ends a start as the cause of the next start. Later failures are not noted.
    fn note_failure(&mut self, failure: Failure) {
        self.cause.get_or_insert(ChangeCause::Left { failure });
    }

    /// Notes the first failure of a member as the cause of the next start. After a takeover, a member may be missing:
    /// its pod was lost while no master ran. Then the exits of other members are consequences.
    fn note_first_failure(&mut self, gang: &Gang<'_>, policy: &Policy) {
        let is_cause = |failure: &Failure| gang.is_whole() || matches!(failure, Failure::ReplicaLost { .. });
        first_failure(gang, policy).filter(is_cause).into_iter().for_each(|failure| self.note_failure(failure));
    }

    /// Stores the members of a start that an earlier master began.
    fn adopt(&mut self, gang: &Gang<'_>) {
        let mut members: Vec<_> = gang.members().map(|member| (gang.seat(member), member.id)).collect();
        members.sort_unstable();
        self.roster = members.into_iter().map(|(_, id)| id).collect();
    }

    /// Notes that this start begins with these members, after `earlier` starts.
    pub(super) fn begin(&mut self, earlier: u32, generation: Generation, roster: &Roster) {
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
        let beginning = Beginning { workers: roster.workers(), cause, lost_steps: self.lost_steps.take() };
        self.timeline.start(generation, beginning, earlier);
    }

    /// The number of starts so far: the greatest number from the record, the agents and this master.
    pub(super) fn so_far(&self, gang: &Gang<'_>, recorded: u32) -> u32 {
        let known = gang.places().iter().filter_map(|place| Some(place.seen.enrolment()?.membership.start + 1)).max();
        self.before.max(known.unwrap_or_default()).max(recorded)
    }

    /// Notes how often a user had pushed new code when this master configures a start.
    pub(super) fn configure(&mut self, pushes: u32) {
        self.configured_pushes = pushes;
    }

    /// Forgets lost steps that the script has saved meanwhile. A start may end before the script in a leaving pod ends.
    pub(super) fn note_saved(&mut self, gang: &Gang<'_>) {
        let is_saved = |lost: &LostSteps| gang.any_place(|place| place.id == lost.replica && place.has_saved());
        self.lost_steps = self.lost_steps.take().filter(|lost| !is_saved(lost));
    }

    /// Notes that the job leaves the phase `before` and enters the phase `after`. Returns how long the newest start took,
    /// if all its scripts were started just now.
    pub(super) fn enter(
        &mut self,
        (before, after): (&JobPhase, &JobPhase),
        entered: &Entered<'_>,
    ) -> Option<StartTimes> {
        let timeline = Arc::clone(&self.timeline);
        let mut facts = timeline.facts();
        self.leave((before, after), entered, &mut facts);
        let started = entered.started((before, after));
        facts.note_started(started);
        self.reach((before, after), entered, &mut facts);
        if let (JobPhase::Starting(Attempt { generation, .. }), Some(_), JobPhase::Stopping { .. })
        | (_, _, JobPhase::Running { generation, .. }) = (before, started, after)
        {
            self.note_run(*generation, started, entered.are_all_seen());
        }
        let has_started = matches!(before, JobPhase::Starting { .. }) && started.is_some();
        if has_started { facts.start_times() } else { None }
    }

    /// Notes how the start of the phase `before` has ended, or which start of an earlier master goes on.
    fn leave(&mut self, (before, after): (&JobPhase, &JobPhase), entered: &Entered<'_>, facts: &mut Facts) {
        let Entered { gang, record, failure, now, .. } = *entered;
        if let (JobPhase::Stopping(Stop { ending, .. }), false) = (before, matches!(after, JobPhase::Stopping { .. })) {
            self.lost_steps = gang.unsaved_steps();
            if let Ending::Failed(known) = ending {
                // Every member has ended. The failure that came first may have been reported last.
                self.note_failure(gang.cause(known.clone()));
            }
            facts.end(ending_of(ending, failure, gang), now);
        }
        let is_new = matches!(after, JobPhase::Starting(Attempt { stage: StartStage::Configuring, .. }));
        if let (JobPhase::Pending { .. }, Some(generation), false) = (before, after.generation(), is_new) {
            facts.adopt(generation, gang, self.so_far(gang, record.starts()));
        }
    }

    /// Notes what the phase `after` says of the newest start. For most phases, only the time of the first entry is
    /// stored. A halt, a suspension or a restart clears the end time. The next phase clears the time of a halt.
    fn reach(&mut self, (before, after): (&JobPhase, &JobPhase), entered: &Entered<'_>, facts: &mut Facts) {
        let Entered { gang, policy, failure, now, .. } = *entered;
        // A later master cannot know whether its first start is the job's first start.
        let first = entered.are_all_seen().then_some(now);
        self.times.halted = None;
        if matches!(after, JobPhase::Starting { .. } | JobPhase::Running { .. }) && self.roster.is_empty() {
            self.adopt(gang);
        }
        match after {
            JobPhase::Pending { .. } | JobPhase::Queued { .. } => {}
            JobPhase::Starting(Attempt { generation, stage: StartStage::Configuring, .. }) => {
                self.times.joined = self.times.joined.or(first);
                facts.complete(*generation, now);
            }
            JobPhase::Starting(Attempt { stage: StartStage::Launching, .. }) => {
                self.times.configured = self.times.configured.or(first);
                facts.note_configured(now);
            }
            JobPhase::Running { generation, .. } => {
                self.note_pushes(*generation, gang);
                // An agent of the first prototype does not report when it has started a run.
                facts.note_started(Some(now));
            }
            JobPhase::Stopping(stop) => {
                self.times.ended = Some(now);
                facts.stop(ending_of(&stop.ending, failure, gang), now);
                self.note_why_it_stops((before, stop), gang, policy);
            }
            // One script may have failed before all scripts ran, and then the start never reached `Running`.
            JobPhase::Halted(Halt { generation, .. }) => {
                (self.times.halted, self.times.ended) = (Some(now), None);
                self.note_pushes(*generation, gang);
            }
            JobPhase::Restarting { .. } => {
                self.times.ended = None;
                self.note_why_it_restarts(before, gang, policy);
                // A start without runs ends without `Stopping`.
                facts.end(StartEnding::Regrouped, now);
                facts.gather(now, self.cause.clone());
            }
            JobPhase::Suspended { .. } => {
                self.times.ended = None;
                facts.end(StartEnding::Suspended, now);
            }
            // A halted job enters `Releasing` without `Stopping`, so it has no end time yet.
            JobPhase::Releasing { result, .. } => {
                self.times.ended.get_or_insert(now);
                facts.end(ending_with(result), now);
            }
            JobPhase::Finished { .. } => self.times.finished = self.times.finished.or(Some(now)),
        }
    }

    /// Notes how often a user had pushed new code when this start was configured. If an earlier master configured the
    /// start, only the agents can report the number.
    fn note_pushes(&mut self, generation: Generation, gang: &Gang<'_>) {
        self.started_pushes = gang.pushes_in(generation).unwrap_or(self.configured_pushes);
    }

    /// Notes when every exec.py of this start was started, if the time is known.
    fn note_run(&mut self, generation: Generation, at: Option<UnixMillis>, are_all_seen: bool) {
        let has_run = self.times.started.is_some() || self.times.restarted.is_some();
        if !has_run && (are_all_seen || generation == FIRST) {
            self.times.started = at;
        } else {
            self.times.restarted = at;
        }
    }

    /// Notes why a gang that regroups stops its runs.
    fn note_why_it_stops(&mut self, (before, stop): (&JobPhase, &Stop), gang: &Gang<'_>, policy: &Policy) {
        // The ends of runs that this master has stopped are no failures. Only the grace of these runs has changed.
        let stops_on = matches!(before, JobPhase::Stopping { .. }) && before.generation() == stop.generation;
        if stops_on || stop.ending != Ending::Regroup {
            return;
        }
        if is_for_push(gang, policy) {
            // Do not look for a failure: a script that an earlier master has stopped for the push looks like a failure.
            self.cause.get_or_insert(ChangeCause::Pushed);
        } else {
            // If a member has failed by now, the gang regroups because of this failure. Usually, somebody has stopped
            // the member's run.
            self.note_first_failure(gang, policy);
        }
    }

    fn note_why_it_restarts(&mut self, before: &JobPhase, gang: &Gang<'_>, policy: &Policy) {
        if matches!(before, JobPhase::Starting { .. }) {
            // A member was lost before any agent was asked to run exec.py.
            self.note_first_failure(gang, policy);
        } else if matches!(before, JobPhase::Suspended { .. }) {
            self.cause = Some(ChangeCause::Resumed);
        } else if matches!(before, JobPhase::Halted(halt) if halt.has_new_code(policy)) {
            self.cause = Some(ChangeCause::Pushed);
        }
    }
}

/// Whether the gang regroups because a user has pushed new code.
fn is_for_push(gang: &Gang<'_>, policy: &Policy) -> bool {
    let pushes = |member: &Place<'_>| member.seen.enrolment().map(|enrolled| enrolled.membership.pushes);
    gang.any(|member| pushes(member).is_some_and(|pushes| pushes < policy.wishes.pushes))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use job::observation::{Enrolled, Observation, PodState};
    use protocol::agent::{ExitOutcome, ExitReport, Membership};
    use protocol::job::{JobRequest, JobSpec, Strategy};

    use super::*;

    const START: Generation = Generation { epoch: 1, sequence: 1 };

    /// Two pods of the first start.
    fn observed() -> [Observation; 2] {
        [0, 1].map(|seat| {
            let membership = Membership { seat, of: 2, start: 0, pushes: 0 };
            let pod = Some(PodState::Leaving { reason: "drained".to_owned() });
            Observation { pod, enrolled: Some(Enrolled { generation: START, membership }), ..Observation::NEW }
        })
    }

    fn gang(seen: &[Observation; 2], phases: [ReplicaPhase; 2]) -> Gang<'_> {
        let place = |(index, (seen, phase)): (u32, (_, ReplicaPhase))| {
            let id = format!("worker-{index}").parse().unwrap();
            Place { phase, ..Place::of(id, seen, None) }
        };
        Gang::new((0..).zip(seen.iter().zip(phases)).map(place).collect(), None)
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
        let spec = JobSpec::try_from(request).unwrap();
        let policy = Policy::of(&spec, Duration::ZERO, 0);
        let record = JobRecord::new(spec, "uid".to_owned(), "master".to_owned(), UnixMillis(0));
        let running = || ReplicaPhase::Running(START);
        let stopped = ExitReport { stopped: true, ..ExitReport::new(ExitOutcome::Signal(9), UnixMillis(1)) };
        let mut starts = Starts::default();
        let before = JobPhase::Running { generation: START, since: Duration::ZERO };
        let seen = observed();
        let mut enter = |before: &JobPhase, after: &JobPhase, phases| {
            let gang = &gang(&seen, phases);
            let (record, policy, now) = (&record, &policy, UnixMillis(2));
            let entered = Entered { gang, policy, record, failure: None, last_launch: None, now };
            starts.enter((before, after), &entered);
        };
        enter(&before, &stopping(2), [running(), running()]);
        enter(&stopping(2), &stopping(30), [running(), ReplicaPhase::Exited(START, stopped)]);
        assert_eq!(starts.cause, None);
    }
}
