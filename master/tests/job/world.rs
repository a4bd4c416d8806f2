//! A tiny world in which actions have their effects: pods come up, agents acknowledge, runs end, pods are lost. What
//! the master sees of it lags behind, and every order may come late.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use master::job::gang::{Gang, Member};
use master::job::phase::{Action, JobEvent, JobPhase, Seen, begin, step};
use master::job::policy::{Policy, SuccessRule};
use master::job::replica::{Addresses, AgentState, Observation, PodState, ReplicaPhase};
use protocol::agent::{ExitOutcome, ExitReport, RunState, RunStatus};
use protocol::ids::{Generation, ReplicaId, UnixMillis};
use protocol::view::JobResult;

use crate::support::POLICY;

/// What a pod was told and has not done yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Create,
    Configure(Generation),
    Launch(Generation),
    Stop,
    Finish,
    Delete,
}

/// One pod as it truly is, and as it is seen.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) id: ReplicaId,
    pub(crate) truth: Observation,
    pub(crate) seen: Observation,
    pub(crate) was_lost: bool,
    run: RunStatus,
    orders: VecDeque<Order>,
}

/// The whole of it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) policy: Policy,
    pub(crate) pods: Vec<Pod>,
    pub(crate) phase: JobPhase,
    /// What the master did, in order.
    pub(crate) done: Vec<Action>,
    /// Whether pods were deleted before the job was finished.
    pub(crate) used_force: bool,
    now: Duration,
    is_followed: bool,
}

const ADDRESSES: Addresses = {
    let address = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);
    Addresses { agent: address, tensorflow: address }
};

impl Pod {
    fn new(id: ReplicaId, found: Option<(RunState, Generation)>) -> Self {
        let (boot_id, exit, pid, started_at) = ("boot".to_owned(), None, None, None);
        let (state, generation) = found.unwrap_or((RunState::Idle, Generation { epoch: 0, sequence: 0 }));
        let generation = (state != RunState::Idle).then_some(generation);
        let run = RunStatus { seq: 1, boot_id, state, generation, pid, started_at, exit };
        let mut truth = Observation::NEW;
        truth.pod = found.map(|_| PodState::Running(ADDRESSES));
        // A watch of pods begins with everything as it is; agents are heard one by one.
        let seen = truth.clone();
        Self { id, truth, seen, was_lost: false, run, orders: VecDeque::new() }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.truth.addresses().is_some()
    }

    pub(crate) fn runs(&self) -> bool {
        self.is_up() && self.run.state == RunState::Running
    }

    pub(crate) fn run(&self) -> &RunStatus {
        &self.run
    }

    fn end_run(&mut self, outcome: ExitOutcome, stopped: bool, at: Duration) {
        let ended_at = UnixMillis(u64::try_from(at.as_nanos()).expect("a test is short"));
        self.run.state = RunState::Exited;
        self.run.exit = Some(ExitReport { outcome, stopped, terminated: false, ended_at, stderr_tail: String::new() });
    }

    fn end_pod(&mut self, reason: &str) {
        self.truth.pod = Some(PodState::Terminated { exit: None, reason: reason.to_owned() });
    }

    /// Carries out the oldest order.
    fn obey(&mut self, now: Duration) {
        let Some(order) = self.orders.pop_front() else { return };
        match order {
            Order::Create if self.truth.pod.is_none() => self.truth.pod = Some(PodState::Running(ADDRESSES)),
            Order::Create => {}
            Order::Delete => self.truth.pod = None,
            Order::Configure(_) | Order::Launch(_) if !self.is_up() => {
                self.seen.agent = AgentState::Refused("it cannot be reached".to_owned());
            }
            Order::Configure(generation) => {
                (self.run.state, self.run.generation) = (RunState::Configured, Some(generation));
                self.seen.agent = AgentState::Configured(generation);
            }
            Order::Launch(generation) => self.launch(generation),
            Order::Stop if self.runs() => self.end_run(ExitOutcome::Signal(9), true, now),
            Order::Stop if self.run.state == RunState::Configured => {
                self.end_run(ExitOutcome::NotStarted("it was stopped first".to_owned()), true, now);
            }
            Order::Stop => {}
            Order::Finish if self.is_up() => self.end_pod("its agent finished"),
            Order::Finish => {}
        }
    }

    fn launch(&mut self, generation: Generation) {
        match self.run.state {
            _ if self.run.generation != Some(generation) => {
                self.seen.agent = AgentState::Refused("nothing is configured".to_owned());
                return;
            }
            RunState::Configured => self.run.state = RunState::Running,
            RunState::Idle | RunState::Running | RunState::Stopping | RunState::Exited => {}
        }
        self.seen.agent = AgentState::Started(generation);
    }

    /// The master's next look: the pod's state, and the run's if the agent answers and is asked.
    fn show(&mut self, is_followed: bool) {
        self.seen.pod = self.truth.pod.clone();
        if self.is_up() && (is_followed || self.seen.agent == AgentState::Silent) {
            self.seen.agent = AgentState::Status(Box::new(self.run.clone()));
        }
    }
}

impl World {
    /// A world in which a master of this epoch begins, and finds what it finds.
    pub(crate) fn new(success: SuccessRule, epoch: u32, found: &[(ReplicaId, Option<(RunState, Generation)>)]) -> Self {
        let pods = found.iter().map(|(id, found)| Pod::new(*id, *found)).collect();
        let policy = Policy { success, ..POLICY };
        let (phase, actions) = begin(Generation { epoch, sequence: 1 }, None, Duration::ZERO);
        let mut world =
            Self { policy, pods, phase, done: vec![], used_force: false, now: Duration::ZERO, is_followed: false };
        actions.into_iter().for_each(|action| world.act(action));
        world
    }

    /// Time passes; no two things happen at once.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time + Duration::from_nanos(1);
        self.advance(JobEvent::Observed);
    }

    pub(crate) fn cancel(&mut self) {
        self.advance(JobEvent::CancelWished);
    }

    pub(crate) fn obey(&mut self, place: usize) {
        self.now += Duration::from_nanos(1);
        self.pods[place].obey(self.now);
    }

    /// A run ends by itself.
    pub(crate) fn exit(&mut self, place: usize, code: i32) {
        self.now += Duration::from_nanos(1);
        if self.pods[place].runs() {
            self.pods[place].end_run(ExitOutcome::Code(code), false, self.now);
        }
    }

    /// A pod is lost with its run.
    pub(crate) fn lose(&mut self, place: usize) {
        let pod = &mut self.pods[place];
        if pod.is_up() {
            pod.was_lost = true;
            pod.end_pod("its node died");
        }
    }

    pub(crate) fn look(&mut self, place: usize) {
        self.pods[place].show(self.is_followed);
        self.advance(JobEvent::Observed);
    }

    /// Lets everything go well until the job is finished and nothing is left of it; says whether it came to that.
    pub(crate) fn settle(&mut self) -> bool {
        for _ in 0..100 {
            for place in 0..self.pods.len() {
                while !self.pods[place].orders.is_empty() {
                    self.obey(place);
                }
                if self.pods[place].id.role.trains() && self.is_followed {
                    self.exit(place, 0);
                }
                self.look(place);
            }
            self.wait(Duration::from_millis(10));
            let is_over = matches!(self.phase, JobPhase::Finished { .. });
            if is_over && self.pods.iter().all(|pod| pod.orders.is_empty() && !pod.is_up()) {
                return true;
            }
        }
        false
    }

    /// What was concluded.
    pub(crate) fn conclusions(&self) -> Vec<&JobResult> {
        let mut results = vec![];
        for action in &self.done {
            if let Action::Conclude(result) = action {
                results.push(result);
            }
        }
        results
    }

    fn gang(&self) -> Gang {
        let current = self.phase.generation();
        let member = |pod: &Pod| Member {
            id: pod.id,
            phase: ReplicaPhase::of(&pod.seen, current),
            has_live_pod: pod.seen.is_live(),
        };
        Gang::new(self.pods.iter().map(member).collect())
    }

    fn advance(&mut self, mut event: JobEvent) {
        loop {
            let gang = self.gang();
            let seen = Seen { gang: &gang, policy: &self.policy, now: self.now };
            let (phase, actions) = step(self.phase.clone(), event, seen);
            let has_moved = phase != self.phase;
            self.phase = phase;
            actions.into_iter().for_each(|action| self.act(action));
            if !has_moved {
                return;
            }
            event = JobEvent::Observed;
        }
    }

    fn act(&mut self, action: Action) {
        match &action {
            Action::CreatePods => self.order(Order::Create, |pod| pod.seen.pod.is_none()),
            Action::Configure(generation) => self.order(Order::Configure(*generation), |_| true),
            Action::Launch(generation) => self.launch(*generation),
            Action::Follow(_) => self.is_followed = true,
            Action::StopRuns { .. } => self.stop(),
            Action::Conclude(result) => self.check_conclusion(result),
            Action::ReleasePods => {
                self.order(Order::Finish, |pod| pod.seen.is_live() && !pod.orders.contains(&Order::Finish));
            }
            Action::DeletePods => {
                self.used_force |= !matches!(self.phase, JobPhase::Finished { .. });
                self.order(Order::Delete, |pod| pod.seen.pod.is_some());
            }
        }
        self.done.push(action);
    }

    fn order(&mut self, order: Order, test: impl Fn(&Pod) -> bool) {
        self.pods.iter_mut().filter(|pod| test(pod)).for_each(|pod| pod.orders.push_back(order));
    }

    fn launch(&mut self, generation: Generation) {
        for pod in &self.pods {
            assert_eq!(pod.run.generation, Some(generation), "{} is launched unconfigured", pod.id);
        }
        let current = self.phase.generation();
        self.order(Order::Launch(generation), |pod| !ReplicaPhase::of(&pod.seen, current).was_launched());
    }

    /// A start that is still on its way is called back.
    fn stop(&mut self) {
        let current = self.phase.generation();
        for pod in &mut self.pods {
            pod.orders.retain(|order| !matches!(order, Order::Create | Order::Configure(_) | Order::Launch(_)));
            let phase = ReplicaPhase::of(&pod.seen, current);
            if phase.was_configured() && !phase.is_dead() && !pod.orders.contains(&Order::Stop) {
                pod.orders.push_back(Order::Stop);
            }
        }
    }

    /// When a result is written, nothing that was ever heard of runs any more, and a success is one.
    fn check_conclusion(&self, result: &JobResult) {
        for pod in self.pods.iter().filter(|pod| pod.seen.agent != AgentState::Silent) {
            assert!(!pod.runs(), "{} still runs when the job is said to have ended {result:?}", pod.id);
        }
        let succeeded = |pod: &&Pod| pod.run.exit.as_ref().is_some_and(ExitReport::is_success);
        let mut deciding = self.pods.iter().filter(|pod| match self.policy.success {
            SuccessRule::AllThatTrain => pod.id.role.trains(),
            SuccessRule::Decider(decider) => pod.id == decider,
        });
        assert!(*result != JobResult::Succeeded || deciding.all(|pod| succeeded(&pod)), "a false success");
    }
}
