//! The master of the simulated world. Like a driver, it passes observations to `step` and carries out the actions.

use std::mem;

use job::alone::has_used_up;
use job::gang::Gang;
use job::observation::{AgentState, Enrolled, Presence};
use job::phase::{Action, Halt, JobEvent, JobPhase, Known, PodSelection, Seen, begin, next_look, step};
use job::policy::{Deadline, RELEASE_TIMEOUT, Verdict};
use job::replica::ReplicaPhase;
use job::roster::Roster;
use job::tracked;
use job::turns::Turn;
use job::upkeep::Upkeep;
use protocol::agent::Membership;
use protocol::failure::Failure;
use protocol::ids::{Generation, ReplicaId, Role};
use protocol::view::JobResult;

use super::checks::{History, Move, note_restart};
use super::pods::{Cluster, Order, Pod};
use super::tracked::Tracked;
use super::{Death, Record, World, is_planned};

/// Whether a master survives an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    Die,
}

impl World {
    /// Begins a master with the record and with the first observations of its watch of pods.
    pub(super) fn begin(&mut self) {
        let result = self.record.result.clone();
        (self.began, self.history) = (self.now, History::of(result.clone()));
        let first = Generation { epoch: self.record.epoch, sequence: 1 };
        let waits = self.record.halted.clone().filter(|halt| !halt.has_new_code(&self.policy) && result.is_none());
        // The record has the wall-clock time.
        let halted = waits.map(|halt| Halt { next: first, until: halt.until.saturating_sub(self.now), ..halt });
        self.set_deadline();
        let known = Known { first, newest_failed: self.newest_ended(), halted, result };
        let (phase, actions) = begin(known, &self.policy, self.elapsed());
        for pod in &mut self.pods {
            let tracked = Tracked::new(self.record.epoch > 1, is_planned(pod.id, self.policy.wishes.workers));
            pod.begin_anew(tracked, &phase, self.now);
        }
        self.current_start = phase.generation();
        self.phase = phase;
        let known = self.known();
        let gang = gang_of(&known, self.phase.horizon());
        for action in actions {
            self.act(action, &gang);
        }
        self.advance();
    }

    /// Sets the deadline to what is left of the job's time.
    pub(super) fn set_deadline(&mut self) {
        let given = self.deadline.filter(|_| !self.policy.wishes.is_suspended);
        self.policy.wishes.deadline = given.map(|given| Deadline::of(given, self.active, self.elapsed()));
    }

    /// The newest start that is over, according to the record.
    pub(super) fn newest_ended(&self) -> Option<Generation> {
        let Record { restarts, halted, suspended, .. } = &self.record;
        restarts.newest_failed().max(*suspended).max(halted.as_ref().map(|halt| halt.generation))
    }

    /// Ends the master, and lets another master take over.
    pub(super) fn die(&mut self) {
        self.deaths += 1;
        self.doom = None;
        if self.record.result.is_none() {
            self.record.epoch += 1;
        }
        if !self.was_launched {
            // Perhaps no agent has received its seat. Then the new master does not know these members.
            self.roster.clear();
        }
        self.begin();
    }

    pub(super) fn gang(&self) -> Gang<'_> {
        let horizon = self.phase.horizon();
        let known = self.pods.iter().filter(|pod| pod.tracked.is_known);
        Gang::new(known.map(|pod| pod.tracked.known.place(pod.id, horizon)).collect(), horizon)
    }

    /// What the master knows now.
    fn known(&self) -> Vec<(ReplicaId, tracked::Tracked)> {
        let known = self.pods.iter().filter(|pod| pod.tracked.is_known);
        known.map(|pod| (pod.id, pod.tracked.known.clone())).collect()
    }

    pub(super) fn advance(&mut self) {
        if let Some(lease) = self.policy.rules.lease {
            self.pods.iter_mut().for_each(|pod| pod.pass_time(lease, self.now));
        }
        for moves in 0.. {
            assert!(moves < 50, "the phase still changes after 50 steps: {:?}", self.phase);
            // The gang is observed before the actions change what the master knows.
            let (known, now) = (self.known(), self.elapsed());
            let gang = gang_of(&known, self.phase.horizon());
            let Record { epoch, restarts, wish, .. } = &self.record;
            let seen = Seen { gang: &gang, policy: &self.policy, turn: &Turn::Go, restarts, epoch: *epoch, now };
            let (phase, actions) = step(self.phase.clone(), *wish, seen);
            self.history.check(Move { before: &self.phase, after: &phase, actions: &actions, seen });
            self.look_at = next_look(&phase, &actions, seen);
            let has_moved = phase != self.phase;
            // The failure of a start is diagnosed before the master enters the next phase.
            self.judged = self.current_start;
            if has_moved {
                self.enter(phase, &gang);
            }
            for action in actions {
                if self.act(action, &gang) == Next::Die {
                    return self.die();
                }
            }
            if !has_moved {
                return;
            }
        }
    }

    fn enter(&mut self, phase: JobPhase, gang: &Gang<'_>) {
        let replicas = self.pods.iter_mut().map(|pod| &mut pod.tracked);
        match &phase {
            JobPhase::Restarting { .. } => replicas.for_each(Tracked::begin_again),
            JobPhase::Queued { .. } => replicas.for_each(Tracked::queue),
            JobPhase::Suspended { .. } => {
                replicas.for_each(|replica| replica.known.forget_replacements());
                self.check_waiting();
            }
            JobPhase::Halted(_) => self.check_waiting(),
            JobPhase::Running { generation, .. } => {
                self.check_running(*generation, gang);
                self.was_launched = true;
            }
            JobPhase::Pending { .. }
            | JobPhase::Starting { .. }
            | JobPhase::Stopping { .. }
            | JobPhase::Releasing { .. }
            | JobPhase::Finished { .. } => {}
        }
        let generation = phase.generation();
        if generation.is_some() || matches!(phase, JobPhase::Restarting { .. }) {
            self.current_start = generation;
        }
        self.phase = phase;
    }

    fn act(&mut self, action: Action, gang: &Gang<'_>) -> Next {
        self.done.push(action.clone());
        match action {
            Action::Keep(upkeep) => self.keep(upkeep),
            Action::Enrol { generation, roster } => self.enrol(generation, &roster),
            Action::Configure(generation) => self.configure(generation),
            Action::Launch(generation) => self.launch(generation),
            Action::Rejoin { generation, replica } => self.rejoin(generation, replica),
            Action::StopTraining { .. } => self.stop(|id| id.role != Role::Evaluator),
            Action::StopRuns { .. } => self.stop(|_| true),
            Action::RecordRestart(failure) => return self.record_restart(failure, gang),
            Action::RecordHalt => return self.record_halt(gang),
            Action::RecordSuspension => return self.record_suspension(),
            Action::Conclude(result) => return self.conclude(result, gang),
            Action::ReleasePods => self.release(),
            Action::DeletePods(which) => self.delete(which),
        }
        Next::GoOn
    }

    fn pod_mut(&mut self, id: ReplicaId) -> &mut Pod {
        self.pods.iter_mut().find(|pod| pod.id == id).expect("an unknown replica")
    }

    fn keep(&mut self, Upkeep { create, delete, next: _ }: Upkeep) {
        assert_eq!(self.record.result, None, "pods change after the result was recorded");
        let (now, soon) = (self.elapsed(), RELEASE_TIMEOUT);
        for id in create {
            self.pod_mut(id).tracked.request(now, soon);
        }
        for id in delete {
            let pod = self.pod_mut(id);
            if pod.tracked.known.ask_to_go(now, soon) {
                pod.delete();
            }
        }
    }

    fn enrol(&mut self, generation: Generation, roster: &Roster) {
        self.check_start(generation, roster.members());
        let (of, start, pushes) = (roster.len(), self.starts, self.policy.wishes.pushes);
        for (id, ReplicaId { index: seat, .. }) in roster.seats() {
            let membership = Membership { seat, of, start, pushes };
            self.pod_mut(id).tracked.known.seen.enrolled = Some(Enrolled { generation, membership });
        }
        self.starts += 1;
    }

    /// Withdraws the orders of an earlier start that no agent has carried out. Then gives each member its order.
    fn begin_start(&mut self, order: impl Fn(&Pod) -> Option<Order>) {
        assert_eq!(self.record.result, None, "a start begins after the result was recorded");
        let generation = self.phase.generation();
        for pod in &mut self.pods {
            pod.tracked.cancel_start();
            if generation.is_some_and(|start| pod.tracked.known.is_member(start))
                && let Some(order) = order(pod)
            {
                pod.order(order);
            }
        }
    }

    fn configure(&mut self, generation: Generation) {
        let gang = self.gang();
        let seen = |id: ReplicaId| &self.pod(id).tracked.known.seen;
        let address = |id: ReplicaId| seen(id).addresses().expect("not all members have an address").tensorflow;
        let cluster: Cluster = gang.members().map(|member| (gang.seat(member), address(member.id))).collect();
        assert_eq!(cluster.len(), gang.members().count(), "two members have the same seat");
        self.begin_start(|pod| {
            let Enrolled { membership, .. } = pod.tracked.known.seen.enrolled?;
            Some(Order::Configure(generation, membership, cluster.clone()))
        });
    }

    /// Gives the new pod of an evaluator the place of its earlier pod.
    fn rejoin(&mut self, generation: Generation, id: ReplicaId) {
        let known = self.gang().members().find_map(|member| member.seen.enrolment()).expect("the start has no members");
        assert!(!self.pod(id).runs(), "{id} still runs when it starts again");
        let membership = Membership { seat: id.index, ..known.membership };
        self.pod_mut(id).tracked.known.seen.enrolled = Some(Enrolled { generation, membership });
        self.begin_start(|_| None);
        // TF_CONFIG does not list the evaluator, so the others keep their environment.
        let cluster = self.clusters.get(&generation).cloned().unwrap_or_default();
        let pod = self.pod_mut(id);
        pod.order(Order::Configure(generation, membership, cluster));
        pod.order(Order::Launch(generation));
    }

    fn launch(&mut self, generation: Generation) {
        let newest = self.newest_launch.replace(generation);
        assert!(Some(generation) >= newest, "start {generation} is launched after the newer start {newest:?}");
        for member in self.gang().members() {
            let mut runs = self.pod(member.id).history();
            let is_configured = runs.any(|run| run.generation == Some(generation));
            assert!(is_configured, "{} is not configured for this launch", member.id);
        }
        let horizon = self.phase.horizon();
        let was_launched = |pod: &Pod| ReplicaPhase::of(&pod.tracked.known.seen, horizon).was_launched();
        self.begin_start(|pod| (!was_launched(pod)).then_some(Order::Launch(generation)));
    }

    /// Stops all configured runs, and withdraws the orders to create, configure or launch that are not carried out.
    fn stop(&mut self, includes: impl Fn(ReplicaId) -> bool) {
        let (horizon, generation) = (self.phase.horizon(), self.phase.generation());
        for pod in &mut self.pods {
            let tracked = &mut pod.tracked;
            tracked.call_start_back();
            let phase = ReplicaPhase::of(&tracked.known.seen, horizon);
            let has_run = phase.was_configured() && !phase.is_dead() && tracked.known.seen.addresses().is_some();
            let is_target = generation.is_some_and(|start| tracked.known.is_member(start)) && has_run;
            if is_target && includes(pod.id) && !mem::replace(&mut tracked.known.is_stopped, true) {
                pod.order(Order::Stop(generation));
            }
        }
    }

    fn release(&mut self) {
        for pod in &mut self.pods {
            let tracked = &mut pod.tracked;
            tracked.call_start_back();
            let has_address = tracked.known.seen.addresses().is_some();
            // The master waits for the agent's first answer.
            let is_unheard = tracked.known.seen.agent == AgentState::Silent && has_address;
            let is_live = tracked.known.seen.presence() == Presence::Live;
            if is_unheard || !is_live || mem::replace(&mut tracked.is_released, true) || tracked.known.seen.is_leaving()
            {
                continue;
            }
            if has_address && tracked.known.seen.agent.has_answered() {
                pod.order(Order::Finish);
            } else {
                pod.delete();
            }
        }
    }

    /// Deletes a pod whose agent does not stop its run, unless the run has ended by now.
    pub(super) fn delete_unstopped(&mut self, place: usize) {
        let horizon = self.phase.horizon();
        let Pod { tracked, .. } = &self.pods[place];
        let has_ended = ReplicaPhase::of(&tracked.known.seen, horizon).is_dead();
        if tracked.known.is_stopped && !has_ended && tracked.known.seen.presence() == Presence::Live {
            self.pods[place].delete();
        }
    }

    fn delete(&mut self, which: PodSelection) {
        let is_force = matches!(which, PodSelection::Live | PodSelection::Unended);
        self.used_force |= is_force && !matches!(self.phase, JobPhase::Finished { .. });
        let (known, now, soon) = (self.known(), self.elapsed(), RELEASE_TIMEOUT);
        let gang = gang_of(&known, self.phase.horizon());
        self.pods.iter_mut().for_each(|pod| pod.tracked.call_start_back());
        let mut chosen: Vec<ReplicaId> = vec![];
        for place in gang.places().iter().filter(|place| which.includes(place, &gang)) {
            if self.pod_mut(place.id).tracked.known.ask_to_go(now, soon) {
                chosen.push(place.id);
            }
        }
        // The deletion of all pods includes pods that the master has not seen yet.
        let all = if which == PodSelection::All && !chosen.is_empty() { &self.pods[..] } else { &[] };
        chosen.extend(all.iter().map(|pod| pod.id).collect::<Vec<_>>());
        for id in chosen {
            self.pod_mut(id).delete();
        }
    }

    fn record_restart(&mut self, failure: Failure, gang: &Gang<'_>) -> Next {
        self.check_failure(&failure, gang);
        self.check_all_dead(gang);
        let verdict = self.policy.verdict(&failure, gang.helper_of(&failure), &self.record.restarts);
        assert_ne!(verdict, Verdict::GiveUp, "a restart is recorded, but this failure is final: {failure}");
        let (start, policy) = (self.judged, self.policy.clone());
        self.write(|record| {
            record.halted = None;
            note_restart(&mut record.restarts, (failure, start), gang, &policy);
        })
    }

    fn record_halt(&mut self, gang: &Gang<'_>) -> Next {
        let JobPhase::Halted(halt) = &self.phase else { return Next::GoOn };
        self.check_failure(&halt.failure, gang);
        let halt = Halt { until: halt.until + self.began, ..halt.clone() };
        self.write(|record| record.halted = Some(halt))
    }

    fn record_suspension(&mut self) -> Next {
        let known = self.record.restarts.newest_failed().max(self.record.suspended);
        let Some(ended) = self.current_start.filter(|start| Some(*start) > known) else { return Next::GoOn };
        self.write(|record| (record.halted, record.suspended) = (None, Some(ended)))
    }

    fn conclude(&mut self, result: JobResult, gang: &Gang<'_>) -> Next {
        self.check_all_dead(gang);
        match &result {
            JobResult::Cancelled => assert_eq!(self.record.wish, JobEvent::CancelWished),
            JobResult::Succeeded => self.check_success(gang),
            JobResult::Failed { failure } => {
                self.check_failure(failure, gang);
                let verdict = self.policy.verdict(failure, gang.helper_of(failure), &self.record.restarts);
                // An evaluator that has started again alone as often as it may ends the job too.
                let is_final = |member| verdict == Verdict::GiveUp || has_used_up(member, &self.policy);
                let is_final = gang.failed(failure).map_or(verdict == Verdict::GiveUp, is_final);
                assert!(is_final, "the job ends with a failure that allows a restart: {failure}");
            }
        }
        assert_eq!(self.record.result, None, "a second result is concluded");
        self.write(|record| record.result = Some(result))
    }

    fn write(&mut self, change: impl FnOnce(&mut Record)) -> Next {
        let doom = self.doom.take();
        if doom != Some(Death::BeforeWrite) {
            change(&mut self.record);
        }
        if doom.is_some() { Next::Die } else { Next::GoOn }
    }
}

/// The gang of these replicas. Runs of generations before `horizon` belong to earlier starts.
fn gang_of(known: &[(ReplicaId, tracked::Tracked)], horizon: Option<Generation>) -> Gang<'_> {
    Gang::new(known.iter().map(|(id, tracked)| tracked.place(*id, horizon)).collect(), horizon)
}
