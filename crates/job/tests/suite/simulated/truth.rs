//! Checks that what a master concludes has happened in the simulated world.

use job::gang::{Gang, Place};
use job::observation::Enrolled;
use job::policy::SuccessRule;
use job::replica::ReplicaPhase;
use protocol::agent::ExitReport;
use protocol::failure::{Failure, Loss};
use protocol::ids::{Generation, ReplicaId, Role};

use super::World;
use super::pods::{Fate, Pod};

impl World {
    /// Asserts that the failure that a master found in this gang has happened.
    pub(super) fn check_failure(&self, failure: &Failure, gang: &Gang<'_>) {
        let has_happened = match failure {
            // The failure was checked when the job was halted. Its pod may be lost since.
            failure if self.record.halted.as_ref().is_some_and(|halt| halt.failure == *failure) => true,
            Failure::ReplicaExited { replica, exit } => {
                let has_exit = self.pod(*replica).history().any(|run| run.exit.as_ref() == Some(exit));
                // A stopped run can be a cause only if an earlier master stopped it and has died.
                let is_earliest = replica.role == Role::Evaluator || earliest_in(gang) == Some(exit);
                let is_first = if exit.stopped { self.deaths > 0 } else { is_earliest };
                has_exit && is_first && !self.is_on_record(failure) && (exit.stopped || !exit.is_success())
            }
            Failure::ReplicaLost { replica, reason, loss } => {
                was_lost_so(self.pod(*replica), (*loss, reason), self.deaths)
            }
            Failure::StartTimeout { missing, .. } => !missing.is_empty() && self.now >= self.policy.rules.start_timeout,
            Failure::DeadlineExceeded { .. } => self.deadline.is_some_and(|given| given <= self.active),
        };
        assert!(has_happened, "this failure has not happened: {failure:?} in {gang:?}\n{:?}", self.pods);
    }

    /// Whether the record lists an earlier start with the same failure.
    fn is_on_record(&self, failure: &Failure) -> bool {
        self.record.restarts.failed_starts.iter().any(|failed| failed.failure == *failure)
    }

    /// Asserts that all runs are dead when a start is over, except in lost pods.
    pub(super) fn check_all_dead(&self, gang: &Gang<'_>) {
        for place in gang.places() {
            let is_lost = matches!(place.phase, ReplicaPhase::Lost(_));
            assert!(is_lost || !self.pod(place.id).runs(), "{} still runs after its start is over", place.id);
        }
    }

    /// Asserts that no run is alive, except in lost pods and of starts whose end is on record.
    pub(super) fn check_waiting(&self) {
        for pod in self.pods.iter().filter(|pod| pod.runs()) {
            let is_on_record = pod.run().generation <= self.newest_ended();
            assert!(is_on_record || pod.is_cut() || pod.is_leaving(), "{} runs although the job waits", pod.id);
        }
    }

    /// Asserts that exec.py of every member was started.
    pub(super) fn check_running(&self, generation: Generation, gang: &Gang<'_>) {
        // An evaluator that was lost in the meantime starts again alone.
        for member in gang.members().filter(|member| member.id.role != Role::Evaluator) {
            assert!(self.launched.contains(&(member.id, generation)), "{} does not run", member.id);
        }
    }

    pub(super) fn check_success(&self, gang: &Gang<'_>) {
        let decides = |member: &Place<'_>| match self.policy.rules.success {
            SuccessRule::AllThatTrain => member.id.role.trains(),
            SuccessRule::Decider(decider) => gang.seat(member) == decider,
        };
        let mut deciding = gang.members().filter(|member| decides(member)).peekable();
        assert!(deciding.peek().is_some(), "the master concludes a success without a deciding replica");
        for member in deciding {
            let start = member.seen.enrolment().map(|Enrolled { generation, .. }| generation);
            let mut runs = self.pod(member.id).history().filter(|run| run.generation == start);
            let exit = runs.find_map(|run| run.exit.as_ref());
            assert!(exit.is_some_and(|exit| exit.is_success() && !exit.stopped), "{} has not succeeded", member.id);
        }
    }

    /// Checks the promises that hold at each start, and stores the new start.
    pub(super) fn check_start(&mut self, generation: Generation, members: &[ReplicaId]) {
        assert!(Some(generation) > self.newest, "start {generation} is not newer than start {:?}", self.newest);
        let has_new_code = self.record.halted.as_ref().is_none_or(|halt| halt.has_new_code(&self.policy));
        assert!(has_new_code, "start {generation} runs the code that failed: {:?}", self.record.halted);
        for pod in &self.pods {
            assert!(!pod.runs(), "{} still runs when start {generation} begins", pod.id);
        }
        if !self.policy.is_fixed() {
            Role::ALL.into_iter().for_each(|role| self.check_survivors(role, members));
        }
        (self.roster, self.newest, self.was_launched) = (members.to_vec(), Some(generation), false);
    }

    /// Asserts that survivors have the first seats, in their earlier order. A replica whose pod was replaced is no
    /// survivor.
    fn check_survivors(&self, role: Role, members: &[ReplicaId]) {
        let is_known = |id: &ReplicaId| self.pod(*id).tracked.known.seen.enrolment().is_some();
        let survives = |id: &&ReplicaId| id.role == role && is_known(id) && members.contains(id);
        let survivors: Vec<&ReplicaId> = self.roster.iter().filter(survives).collect();
        let of_role: Vec<&ReplicaId> = members.iter().filter(|id| id.role == role).collect();
        assert!(of_role.starts_with(&survivors), "survivors {survivors:?} have changed their order: {members:?}");
    }
}

fn earliest_in<'g>(gang: &'g Gang<'_>) -> Option<&'g ExitReport> {
    let exits =
        gang.members().filter(|member| member.id.role != Role::Evaluator).filter_map(|member| member.phase.exit());
    exits.filter(|exit| !exit.is_success() && !exit.stopped).min_by_key(|exit| exit.ended_at)
}

fn was_lost_so(pod: &Pod, (loss, reason): (Loss, &str), deaths: u32) -> bool {
    match loss {
        Loss::Disrupted if reason.contains("takes no part in start") && pod.is_new() => true,
        // A pod that an earlier master deleted looks like an evicted pod.
        Loss::Disrupted => pod.had(Fate::Disrupted) || pod.had(Fate::CutOff) || deaths > 0 && pod.had(Fate::Deleted),
        Loss::Broken => pod.had(Fate::NodeDied) || pod.had(Fate::Deleted),
        Loss::Hopeless => false,
    }
}
