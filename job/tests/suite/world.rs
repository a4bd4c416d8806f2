//! A simulated world in which actions have effects: pods start and end, agents acknowledge, runs end, and masters die.
//! The master's observations lag behind, and every order may arrive late. Assertions check what must always be true.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use job::observation::{AgentState, LostRun, Presence};
use job::phase::{Action, JobEvent, JobPhase};
use job::policy::Policy;
use protocol::agent::{ExitOutcome, RunState};
use protocol::failure::Restarts;
use protocol::ids::{Generation, ReplicaId};
use protocol::run_policy::CleanPods;
use protocol::view::JobResult;

use crate::world_pods::{Cluster, Effect, Fate, Pod, Remains};

/// The job's record. It outlives every master.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) epoch: u32,
    pub(crate) restarts: Restarts,
    pub(crate) result: Option<JobResult>,
    pub(crate) wish: JobEvent,
}

/// When a master dies, relative to its write of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Death {
    /// The master dies before the write, so nothing is written.
    BeforeWrite,
    /// The master dies after the write, so its next actions do not happen.
    AfterWrite,
}

/// The run that a new master finds in a replica's pod. `None` means that the replica has no pod.
pub(crate) type Found = Option<(RunState, Generation)>;

/// The simulated world: the policy, the pods, the record and the current master.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) policy: Policy,
    pub(crate) pods: Vec<Pod>,
    pub(crate) phase: JobPhase,
    pub(crate) record: Record,
    /// The actions of all masters, in order.
    pub(crate) done: Vec<Action>,
    /// Whether a master deleted pods whose runs had not ended.
    pub(crate) used_force: bool,
    /// How many masters have died.
    pub(crate) deaths: u32,
    pub(crate) now: Duration,
    pub(crate) current_start: Option<Generation>,
    pub(crate) doom: Option<Death>,
    /// The TensorFlow addresses that the members of each start got.
    clusters: BTreeMap<Generation, Cluster>,
    launched: BTreeSet<(ReplicaId, Generation)>,
    pub(crate) newest_launch: Option<Generation>,
}

impl World {
    /// A world in which a master of this epoch begins and finds these runs.
    pub(crate) fn new(policy: Policy, epoch: u32, found: &[(ReplicaId, Found)]) -> Self {
        let pod = |(place, (id, found)): (usize, &(ReplicaId, Found))| match found {
            Some(found) => Pod::found(*id, place, *found),
            None => Pod::absent(*id, place),
        };
        let mut pods: Vec<Pod> = found.iter().enumerate().map(pod).collect();
        let cluster: Cluster = pods.iter().map(|pod| pod.addresses().tensorflow).collect();
        pods.iter_mut().for_each(|pod| pod.cluster.clone_from(&cluster));
        let generations = pods.iter().filter_map(|pod| pod.run().generation);
        let launched = pods.iter().filter(|pod| pod.runs());
        let mut world = Self {
            clusters: generations.map(|generation| (generation, cluster.clone())).collect(),
            launched: launched.filter_map(|pod| Some((pod.id, pod.run().generation?))).collect(),
            newest_launch: None,
            record: Record { epoch, restarts: Restarts::default(), result: None, wish: JobEvent::Observed },
            phase: JobPhase::Finished { result: JobResult::Cancelled }, // until a master begins
            policy,
            pods,
            done: vec![],
            used_force: false,
            deaths: epoch - 1,
            now: Duration::ZERO,
            current_start: None,
            doom: None,
        };
        world.begin();
        world
    }

    /// Lets the master die at its next write of the record.
    pub(crate) fn doom(&mut self, death: Death) {
        self.doom = Some(death);
    }

    /// Lets `time` pass, and one nanosecond more. So all events have different times.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time + Duration::from_nanos(1);
        self.advance();
    }

    pub(crate) fn cancel(&mut self) {
        self.record.wish = JobEvent::CancelWished;
        self.advance();
    }

    /// Lets a pod carry out its oldest order.
    pub(crate) fn carry_out(&mut self, place: usize) {
        self.now += Duration::from_nanos(1);
        // A real master first learns that a pod has ended, and only later gives up on the pod's agent. So this master
        // observes the pod first.
        if self.pods[place].is_out_of_reach() {
            self.look(place);
        }
        let id = self.pods[place].id;
        match self.pods[place].carry_out(self.now) {
            Effect::Nothing => {}
            Effect::Configured(generation, cluster) => {
                let expected = self.clusters.entry(generation).or_insert_with(|| cluster.clone());
                assert_eq!(
                    *expected, cluster,
                    "{id} gets other TensorFlow addresses than other members of start {generation}"
                );
            }
            Effect::Launched(generation) => self.check_start(id, generation),
            Effect::Defied => self.delete_unstopped(place),
        }
    }

    fn check_start(&mut self, id: ReplicaId, generation: Generation) {
        assert!(self.launched.insert((id, generation)), "{id} is started twice in start {generation}");
        assert_eq!(self.record.result, None, "{id} is started after the end");
        for pod in self.pods.iter().filter(|pod| pod.runs()) {
            assert_eq!(pod.run().generation, Some(generation), "{} still runs while {id} is started", pod.id);
        }
    }

    /// Lets a run exit.
    pub(crate) fn exit(&mut self, place: usize, code: i32) {
        self.now += Duration::from_nanos(1);
        if self.pods[place].runs() {
            // In a leaving pod, the agent stops the run.
            let stopped = self.pods[place].is_leaving();
            self.pods[place].end_run(ExitOutcome::Code(code), stopped, self.now);
        }
    }

    /// Begins to evict a pod if the master has seen that the pod is alive. If a pod were evicted before that, the
    /// master would not create another pod, and the start would time out.
    pub(crate) fn disrupt(&mut self, place: usize) {
        let pod = &mut self.pods[place];
        if pod.seen.presence() == Presence::Live {
            pod.leave(Fate::Disrupted);
        }
    }

    /// Lets the master observe a pod.
    pub(crate) fn look(&mut self, place: usize) {
        let pod = &mut self.pods[place];
        let was_there = pod.seen.pod.is_some();
        pod.show();
        let is_absent = pod.seen.presence() == Presence::Absent;
        match &self.phase {
            JobPhase::Pending { .. } | JobPhase::Starting { .. } if was_there && is_absent => {
                pod.seen.agent = AgentState::Failed(LostRun::disrupted("its pod was deleted"));
            }
            JobPhase::Restarting { .. } if is_absent => pod.begin_anew(),
            JobPhase::Pending { .. }
            | JobPhase::Starting { .. }
            | JobPhase::Running { .. }
            | JobPhase::Stopping { .. }
            | JobPhase::Restarting { .. }
            | JobPhase::Halted { .. }
            | JobPhase::Queued { .. }
            | JobPhase::Suspended { .. }
            | JobPhase::Releasing { .. }
            | JobPhase::Finished { .. } => {}
        }
        self.advance();
    }

    /// Carries out all orders, and lets the master observe the results.
    pub(crate) fn progress(&mut self) {
        for place in 0..self.pods.len() {
            while !self.pods[place].orders.is_empty() {
                self.carry_out(place);
            }
            self.look(place);
        }
    }

    /// Lets everything go well from now on. Returns whether the job finishes and its pods are cleaned up.
    pub(crate) fn settle(&mut self) -> bool {
        for _ in 0..200 {
            self.progress();
            for place in 0..self.pods.len() {
                self.pods[place].go(Remains::Nothing);
                if self.pods[place].id.role.trains() {
                    self.exit(place, 0);
                }
            }
            let pause = match &self.phase {
                JobPhase::Restarting { until, .. } if *until > self.now => *until - self.now,
                // If a pod is still leaving, the master repeats the delete after `release_timeout`.
                JobPhase::Restarting { .. } => self.policy.release_timeout,
                JobPhase::Pending { .. }
                | JobPhase::Starting { .. }
                | JobPhase::Running { .. }
                | JobPhase::Stopping { .. }
                | JobPhase::Halted { .. }
                | JobPhase::Queued { .. }
                | JobPhase::Suspended { .. }
                | JobPhase::Releasing { .. }
                | JobPhase::Finished { .. } => Duration::from_millis(10),
            };
            self.wait(pause);
            if matches!(self.phase, JobPhase::Finished { .. }) && self.pods.iter().all(|pod| self.is_over(pod)) {
                return true;
            }
        }
        false
    }

    fn is_over(&self, pod: &Pod) -> bool {
        let stays = self.policy.clean_pods == CleanPods::None && !pod.runs();
        pod.orders.is_empty() && (stays || !pod.is_up())
    }

    /// The results that the masters concluded.
    pub(crate) fn conclusions(&self) -> Vec<&JobResult> {
        let mut results = vec![];
        for action in &self.done {
            if let Action::Conclude(result) = action {
                results.push(result);
            }
        }
        results
    }
}
