//! A simulated world in which actions have effects: pods start and end, agents acknowledge, runs end, networks break,
//! and masters die. The master's observations lag behind, and every order may arrive late. Assertions check what must
//! always be true.

mod checks;
mod master;
mod nonsense;
mod pods;
mod stories;
mod tracked;
mod truth;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use job::phase::{Action, Halt, JobEvent, JobPhase};
use job::policy::{Policy, RELEASE_TIMEOUT};
use protocol::agent::{ExitOutcome, Membership, RunState};
use protocol::elastic::Workers;
use protocol::failure::Restarts;
use protocol::ids::{Generation, ReplicaId, Role};
use protocol::lease::Lease;
use protocol::run_policy::CleanPods;
use protocol::view::JobResult;

use self::checks::History;
use self::pods::{Cluster, Effect, Pod, Remains};
use crate::support::FIRST;

/// The job's record. It outlives every master.
#[derive(Debug)]
struct Record {
    epoch: u32,
    restarts: Restarts,
    /// The failed start after which the job waits, or has waited, for new code.
    halted: Option<Halt>,
    /// The newest start that a suspension has ended.
    suspended: Option<Generation>,
    result: Option<JobResult>,
    wish: JobEvent,
}

/// When a master dies, relative to its write of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    /// The master dies before the write, so nothing is written.
    BeforeWrite,
    /// The master dies after the write, so its next actions do not happen.
    AfterWrite,
}

/// The simulated world: the policy, the pods, the record and the current master.
#[derive(Debug)]
struct World {
    policy: Policy,
    pods: Vec<Pod>,
    phase: JobPhase,
    record: Record,
    /// What the current master has done.
    history: History,
    /// The actions of all masters, in order.
    done: Vec<Action>,
    /// Whether a master deleted pods whose runs had not ended.
    used_force: bool,
    /// How many masters have died.
    deaths: u32,
    now: Duration,
    /// When the current master began.
    began: Duration,
    /// How long the job was not suspended.
    active: Duration,
    /// The time limit of the job, without suspensions.
    deadline: Option<Duration>,
    /// When the master looks at the job even if nothing happens.
    look_at: Option<Duration>,
    current_start: Option<Generation>,
    /// The start that has failed, if the master records a failure.
    judged: Option<Generation>,
    doom: Option<Death>,
    /// The TensorFlow addresses that the members of each start got.
    clusters: BTreeMap<Generation, Cluster>,
    /// The runs that were started.
    launched: BTreeSet<(ReplicaId, Generation)>,
    newest_launch: Option<Generation>,
    /// The members of the newest start, in the order of their seats, if every later master knows them.
    roster: Vec<ReplicaId>,
    newest: Option<Generation>,
    /// Whether all members of the newest start have run.
    was_launched: bool,
    /// The number of starts so far.
    starts: u32,
}

impl World {
    /// A world in which a master begins. If `found` has a state for each replica, an earlier master has left pods with
    /// runs in these states.
    fn new(policy: Policy, replicas: &[ReplicaId], found: &[RunState]) -> Self {
        let pod = |(place, id): (usize, &ReplicaId)| Pod::absent(*id, place);
        let epoch = if found.is_empty() { 1 } else { 2 };
        let (restarts, wish) = (Restarts::default(), JobEvent::Observed);
        let mut world = Self {
            pods: replicas.iter().enumerate().map(pod).collect(),
            phase: JobPhase::Finished { result: JobResult::Cancelled }, // until a master begins
            record: Record { epoch, restarts, halted: None, suspended: None, result: None, wish },
            history: History::default(),
            done: vec![],
            used_force: false,
            deaths: epoch - 1,
            now: Duration::ZERO,
            began: Duration::ZERO,
            active: Duration::ZERO,
            deadline: policy.wishes.deadline.map(|deadline| deadline.given),
            look_at: None,
            current_start: None,
            judged: None,
            doom: None,
            clusters: BTreeMap::new(),
            launched: BTreeSet::new(),
            newest_launch: None,
            roster: vec![],
            newest: None,
            was_launched: false,
            starts: 0,
            policy,
        };
        world.find(found);
        world.begin();
        world
    }

    /// Gives the planned replicas pods of an earlier master, with the first start in these states.
    fn find(&mut self, found: &[RunState]) {
        let workers = self.policy.wishes.workers;
        let mut planned: Vec<&mut Pod> = self.pods.iter_mut().filter(|pod| is_planned(pod.id, workers)).collect();
        let of = u32::try_from(planned.len()).expect("a gang of tests is small");
        for (pod, state) in planned.iter_mut().zip(found) {
            pod.find(*state, FIRST, Membership { seat: pod.id.index, of, start: 0, pushes: 0 });
        }
        let cluster: Cluster = planned.iter().map(|pod| (pod.id, pod.addresses().tensorflow)).collect();
        planned.iter_mut().for_each(|pod| pod.join(&cluster));
        let running = planned.iter().filter(|pod| pod.runs());
        self.launched = running.map(|pod| (pod.id, FIRST)).collect();
        if !found.is_empty() {
            (self.starts, self.newest) = (1, Some(FIRST));
            self.clusters.insert(FIRST, cluster);
        }
    }

    fn pod(&self, id: ReplicaId) -> &Pod {
        self.pods.iter().find(|pod| pod.id == id).expect("an unknown replica")
    }

    /// The time since the current master began.
    fn elapsed(&self) -> Duration {
        self.now - self.began
    }

    /// The first pod from this place on that passes `test`.
    fn find_pod(&self, place: usize, test: impl Fn(&Pod) -> bool) -> Option<usize> {
        let count = self.pods.len();
        (0..count).map(|distance| (place % count + distance) % count).find(|place| test(&self.pods[*place]))
    }

    /// Lets `time` pass, and one nanosecond more. So all events have different times.
    fn pass(&mut self, time: Duration) {
        let time = time + Duration::from_nanos(1);
        self.now += time;
        self.active += if self.policy.wishes.is_suspended { Duration::ZERO } else { time };
    }

    fn wait(&mut self, time: Duration) {
        self.pass(time);
        self.advance();
    }

    fn cancel(&mut self) {
        self.record.wish = JobEvent::CancelWished;
        self.advance();
    }

    fn push(&mut self) {
        self.policy.wishes.pushes += 1;
        self.advance();
    }

    fn suspend(&mut self, is_suspended: bool) {
        self.policy.wishes.is_suspended = is_suspended;
        self.set_deadline();
        self.advance();
    }

    /// Changes the range of workers of an elastic job.
    fn scale(&mut self, workers: Workers) {
        if self.policy.is_fixed() || self.record.result.is_some() {
            return;
        }
        self.policy.wishes.workers = workers;
        for pod in &mut self.pods {
            pod.tracked.known.forget_replacements();
            pod.tracked.is_known |= is_planned(pod.id, workers);
        }
        self.advance();
    }

    /// Lets a pod carry out its oldest order.
    fn carry_out(&mut self, place: usize) {
        self.pass(Duration::ZERO);
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
                assert_eq!(*expected, cluster, "{id} gets other addresses than other members of start {generation}");
            }
            Effect::Launched(generation) => self.check_launch(id, generation),
            Effect::NotStopped => self.delete_unstopped(place),
            Effect::NotFinished => self.pods[place].delete(),
        }
    }

    fn check_launch(&mut self, id: ReplicaId, generation: Generation) {
        // An evaluator may start again in a new pod. An agent refuses to run a start twice.
        let is_first = self.launched.insert((id, generation)) || id.role == Role::Evaluator;
        assert!(is_first, "{id} is started twice in start {generation}");
        assert_eq!(self.record.result, None, "{id} is started after the end");
        for pod in self.pods.iter().filter(|pod| pod.runs()) {
            assert_eq!(pod.run().generation, Some(generation), "{} still runs while {id} is started", pod.id);
        }
    }

    /// Lets a run exit.
    fn exit(&mut self, place: usize, code: i32) {
        self.pass(Duration::ZERO);
        let pod = &mut self.pods[place];
        // In a leaving pod, the agent stops the run.
        let stopped = pod.is_leaving();
        pod.end_run(ExitOutcome::Code(code), stopped, self.now);
    }

    /// Lets the master observe a pod.
    fn look(&mut self, place: usize) {
        self.pods[place].show(&self.phase);
        self.advance();
    }

    /// Carries out all orders, and lets the master observe the results.
    fn progress(&mut self) {
        for place in 0..self.pods.len() {
            while self.pods[place].is_busy() {
                self.carry_out(place);
            }
            self.look(place);
        }
    }

    /// Lets everything go well from now on, except that no run ends by itself, until `is_over` holds. Returns whether it
    /// holds in the end.
    fn settle(&mut self, is_over: impl Fn(&mut Self) -> bool) -> bool {
        let mut idle = 0;
        self.suspend(false);
        for _ in 0..600 {
            let before = self.phase.clone();
            for pod in &mut self.pods {
                pod.go(Remains::Nothing);
                if pod.can_reconnect() {
                    pod.reconnect();
                }
            }
            self.progress();
            self.wait(Duration::from_millis(10));
            if is_over(self) {
                return true;
            }
            idle = if before == self.phase { idle + 1 } else { 0 };
            if idle > 3 {
                self.sleep();
                idle = 0;
            }
        }
        false
    }

    /// Lets time pass until the master looks again, or until the runs of unreachable agents are dead.
    fn sleep(&mut self) {
        let (now, soon) = (self.elapsed(), RELEASE_TIMEOUT);
        // After a time limit has passed, a driver looks repeatedly.
        let deadline = self.phase.deadline(&self.policy).map(|at| if at > now { at - now } else { soon });
        let look = self.look_at.map(|at| at.saturating_sub(now));
        let death = self.policy.rules.lease.filter(|_| self.pods.iter().any(Pod::is_cut)).map(Lease::death);
        self.wait(death.or(look.into_iter().chain(deadline).min()).unwrap_or(soon));
    }

    /// Lets the job run. Returns whether it runs with its maximum of workers.
    fn run_on(&mut self) -> bool {
        self.settle(|world| {
            let workers = world.gang().members().filter(|member| member.id.role == Role::Worker).count();
            matches!(world.phase, JobPhase::Running { .. }) && workers == world.policy.wishes.workers.max as usize
        })
    }

    /// Lets all runs succeed. Returns whether the job finishes and its pods are cleaned up.
    fn finish(&mut self) -> bool {
        self.settle(|world| {
            while let Some(place) = world.find_pod(0, |pod| pod.runs() && pod.id.role.trains()) {
                world.exit(place, 0);
            }
            matches!(world.phase, JobPhase::Finished { .. }) && world.pods.iter().all(|pod| world.is_cleaned_up(pod))
        })
    }

    fn is_cleaned_up(&self, pod: &Pod) -> bool {
        // A pod ends by itself after its run.
        let is_spent = pod.run().state == RunState::Exited;
        let stays = self.policy.rules.clean_pods == CleanPods::None && is_spent;
        pod.tracked.orders.is_empty() && (stays || !pod.is_up())
    }

    /// The results that the masters concluded.
    fn conclusions(&self) -> usize {
        self.done.iter().filter(|action| matches!(action, Action::Conclude(_))).count()
    }
}

/// Whether the replica exists in a job with this range of workers.
fn is_planned(id: ReplicaId, workers: Workers) -> bool {
    id.role != Role::Worker || id.index < workers.max
}
