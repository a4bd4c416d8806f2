//! The master of the simulated world. Like a driver, it passes observations to `step` and carries out the actions.
//! Assertions in the actions check the rules that must always hold.

use std::mem;

use job::diagnosis::{Evidence, diagnose};
use job::gang::{Gang, Member};
use job::observation::{AgentState, DeletedBy, Presence};
use job::phase::{Action, JobEvent, JobPhase, Known, PodSelection, Seen, begin, step};
use job::policy::{SuccessRule, Verdict};
use job::replica::ReplicaPhase;
use job::turns::Turn;
use protocol::failure::Failure;
use protocol::ids::{Generation, UnixMillis};
use protocol::view::JobResult;

use crate::untruth::untruth;
use crate::world::{Death, Record, World};
use crate::world_pods::{Cluster, Fate, Order, Pod};

/// Whether a master survives an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    Die,
}

impl World {
    /// Begins a master with the record and with the first observations of its watch of pods.
    pub(crate) fn begin(&mut self) {
        self.pods.iter_mut().for_each(Pod::begin_anew);
        let Record { epoch, restarts, result, .. } = &self.record;
        let first = Generation { epoch: *epoch, sequence: 1 };
        let leftovers = if restarts.is_empty() { Leftovers::None } else { Leftovers::Possible };
        let known =
            Known { first, newest_failed: restarts.newest_failed(), leftovers, halted: None, result: result.clone() };
        let (phase, actions) = begin(known, &self.policy, self.now);
        (self.phase, self.current_start) = (phase, None);
        let gang = self.gang();
        for action in actions {
            self.act(action, &gang);
        }
        self.advance();
    }

    /// Ends the master, and lets another master take over.
    pub(crate) fn die(&mut self) {
        self.deaths += 1;
        self.doom = None;
        if self.record.result.is_none() {
            self.record.epoch += 1;
        }
        self.pods.iter_mut().for_each(|pod| pod.orders.clear());
        self.begin();
    }

    fn gang(&self) -> Gang {
        let horizon = self.phase.horizon();
        Gang::new(self.pods.iter().map(|pod| Member::of(pod.id, &pod.seen, horizon)).collect())
    }

    pub(crate) fn advance(&mut self) {
        loop {
            let gang = self.gang();
            let Record { epoch, restarts, wish, .. } = &self.record;
            let seen =
                Seen { gang: &gang, policy: &self.policy, turn: &Turn::Go, restarts, epoch: *epoch, now: self.now };
            let (phase, actions) = step(self.phase.clone(), *wish, seen);
            let has_moved = phase != self.phase;
            if has_moved {
                self.enter(phase);
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

    fn enter(&mut self, phase: JobPhase) {
        if matches!(phase, JobPhase::Restarting { .. }) {
            self.pods.iter_mut().for_each(Pod::let_go);
        }
        let generation = phase.generation();
        if generation.is_some() || matches!(phase, JobPhase::Pending { .. }) {
            self.current_start = generation;
        }
        self.phase = phase;
    }

    fn act(&mut self, action: Action, gang: &Gang) -> Next {
        self.done.push(action.clone());
        match action {
            Action::Keep(upkeep) => {
                assert_eq!(upkeep.delete, [], "the upkeep of a fixed job deletes pods");
                self.begin_start(|_| Order::Create, |pod| upkeep.create.contains(&pod.id));
            }
            Action::Enrol { .. } | Action::RecordHalt | Action::RecordSuspension => {
                panic!("unexpected action of a fixed job that is neither halted nor suspended: {action:?}")
            }
            Action::Configure(generation) => self.configure(generation),
            Action::Launch(generation) => self.launch(generation),
            Action::StopRuns { .. } => self.stop(),
            Action::RecordRestart(failure) => return self.record_restart(failure, gang),
            Action::Conclude(result) => return self.conclude(result, gang),
            Action::ReleasePods => self.release(),
            Action::DeletePods(which) => self.delete(which),
        }
        Next::GoOn
    }

    /// Withdraws the orders to create, configure or launch that no pod has carried out. Then gives `order` to the pods
    /// that pass `test`.
    fn begin_start(&mut self, order: impl Fn(&Pod) -> Order, test: impl Fn(&Pod) -> bool) {
        assert_eq!(self.record.result, None, "a start begins after the result was recorded");
        for pod in &mut self.pods {
            pod.withdraw_start_orders();
            if test(pod) {
                let order = order(pod);
                pod.order(order);
            }
        }
    }

    fn configure(&mut self, generation: Generation) {
        let address = |pod: &Pod| pod.seen.addresses().map(|addresses| addresses.tensorflow);
        let cluster: Cluster = self.pods.iter().filter_map(address).collect();
        assert_eq!(cluster.len(), self.pods.len(), "not all members have an address");
        self.begin_start(|_| Order::Configure(generation, cluster.clone()), |_| true);
    }

    fn launch(&mut self, generation: Generation) {
        assert!(
            Some(generation) >= self.newest_launch,
            "start {generation} is launched after the newer start {:?}",
            self.newest_launch
        );
        self.newest_launch = Some(generation);
        for pod in &self.pods {
            assert_eq!(pod.run().generation, Some(generation), "{} is not configured for this launch", pod.id);
        }
        let horizon = self.phase.horizon();
        let was_launched = |pod: &Pod| ReplicaPhase::of(&pod.seen, horizon).was_launched();
        self.begin_start(|_| Order::Launch(generation), |pod| !was_launched(pod));
    }

    /// Stops all configured runs, and withdraws the orders to create, configure or launch that no pod has carried out.
    fn stop(&mut self) {
        let (horizon, generation) = (self.phase.horizon(), self.phase.generation());
        for pod in &mut self.pods {
            pod.withdraw_start_orders();
            let phase = ReplicaPhase::of(&pod.seen, horizon);
            let is_target = phase.was_configured() && !phase.is_dead() && pod.seen.addresses().is_some();
            if is_target && !mem::replace(&mut pod.is_stopped, true) {
                pod.order(Order::Stop(generation));
            }
        }
    }

    fn release(&mut self) {
        for pod in &mut self.pods {
            pod.withdraw_start_orders();
            if pod.seen.presence() != Presence::Live || mem::replace(&mut pod.is_released, true) {
                continue;
            }
            let has_no_answer = matches!(pod.seen.agent, AgentState::Silent | AgentState::Failed(_));
            if has_no_answer || pod.seen.addresses().is_none() {
                pod.leave(Fate::Deleted);
            } else {
                pod.order(Order::Finish);
            }
        }
    }

    pub(crate) fn delete_unstopped(&mut self, place: usize) {
        let pod = &mut self.pods[place];
        if pod.seen.presence() == Presence::Live {
            pod.seen.deleted_by = DeletedBy::ThisMaster;
            pod.leave(Fate::Deleted);
        }
    }

    fn delete(&mut self, which: PodSelection) {
        let is_force = matches!(which, PodSelection::Live | PodSelection::Unended);
        self.used_force |= is_force && !matches!(self.phase, JobPhase::Finished { .. });
        let gang = self.gang();
        for (pod, member) in self.pods.iter_mut().zip(gang.places()) {
            pod.withdraw_start_orders();
            if which == PodSelection::All || which.includes(member, &gang) {
                if pod.seen.pod.is_some() {
                    pod.seen.deleted_by = DeletedBy::ThisMaster;
                }
                pod.leave(Fate::Deleted);
            }
        }
    }

    fn record_restart(&mut self, failure: Failure, gang: &Gang) -> Next {
        assert_eq!(untruth(self, &failure, gang), None, "{:?}", self.pods);
        self.check_all_dead(gang);
        let verdict = self.policy.verdict(&failure, gang.helper_of(&failure), &self.record.restarts);
        assert_ne!(verdict, Verdict::GiveUp, "a restart is recorded, but this failure is final: {failure}");
        let (generation, now, budget) =
            (self.current_start, UnixMillis(0), self.policy.budget_of(&failure, gang.helper_of(&failure)));
        let failed = diagnose(
            failure,
            gang,
            Evidence { generation, now, budget, last_lines: vec![], silence: std::collections::BTreeMap::new() },
        );
        self.write(|record| {
            record.restarts.note(failed);
            record.restarts.count_restart(now);
        })
    }

    fn conclude(&mut self, result: JobResult, gang: &Gang) -> Next {
        self.check_all_dead(gang);
        match &result {
            JobResult::Cancelled => assert_eq!(self.record.wish, JobEvent::CancelWished),
            JobResult::Succeeded => self.check_success(),
            JobResult::Failed { failure } => {
                assert_eq!(untruth(self, failure, gang), None, "{:?}", self.pods);
                let verdict = self.policy.verdict(failure, gang.helper_of(failure), &self.record.restarts);
                assert_eq!(verdict, Verdict::GiveUp, "the job ends with a failure that allows a restart: {failure}");
            }
        }
        assert_eq!(self.record.result, None, "a second result is concluded");
        self.write(|record| record.result = Some(result))
    }

    fn write(&mut self, change: impl FnOnce(&mut Record)) -> Next {
        let doom = self.doom.take();
        if doom != Some(Death::BeforeWrite) {
            change(&mut self.record);
            assert!(self.record.restarts.counted <= self.policy.max_restarts, "more restarts are counted than allowed");
        }
        if doom.is_some() { Next::Die } else { Next::GoOn }
    }

    /// Asserts that all runs are dead when a start is over, except in lost pods.
    fn check_all_dead(&self, gang: &Gang) {
        for (pod, member) in self.pods.iter().zip(gang.members()) {
            let is_lost = matches!(member.phase, ReplicaPhase::Lost(_));
            assert!(is_lost || !pod.runs(), "{} still runs after its start is over", pod.id);
        }
    }

    fn check_success(&self) {
        let succeeded = |pod: &Pod| pod.run().exit.as_ref().is_some_and(|exit| exit.is_success() && !exit.stopped);
        let mut deciding = self.pods.iter().filter(|pod| match self.policy.success {
            SuccessRule::AllThatTrain => pod.id.role.trains(),
            SuccessRule::Decider(decider) => pod.id == decider,
        });
        assert!(deciding.all(succeeded), "the master concludes a success, but a deciding replica has not succeeded");
    }
}
