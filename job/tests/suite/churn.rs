//! Random events happen to an elastic job, under one or several masters. The tests check each start, and that the job
//! runs in the end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use job::gang::{Gang, Member};
use job::observation::{Addresses, AgentState, DeletedBy, Enrolled, LostRun, Observation, PodState, Presence};
use job::phase::{Action, Halt, JobEvent, JobPhase, Known, Seen, begin, step};
use job::policy::{GangKind, Policy};
use job::turns::Turn;
use job::upkeep::Replacements;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use protocol::agent::{ExitOutcome, ExitReport, Membership, RunState, RunStatus};
use protocol::elastic::Workers;
use protocol::failure::Restarts;
use protocol::ids::{Generation, ReplicaId, Role, UnixMillis};
use protocol::lease::{Lease, Standing};

use crate::support::{cases, with_restarts};

/// The number of places. It is larger than the first maximum of workers, so that a job can grow.
const PLACES: u32 = 16;

/// An event between two observations of the master. If the event happens to one pod, the number chooses the
/// pod among those to which the event can happen.
#[derive(Debug, Clone)]
enum Happening {
    /// A requested pod runs, and its agent answers.
    Arrives(u8),
    /// An agent carries out the newest request of its master.
    Heeds(u8),
    /// The cluster deletes a pod.
    Evicted(u8),
    /// An agent is killed.
    Killed(u8),
    /// A script fails while its gang is not being stopped.
    Fails(u8),
    /// A script fails while its gang is being stopped.
    FailsAmidStop(u8),
    /// A user changes the range of workers. The numbers determine its minimum and its maximum.
    Scaled(u8, u8),
    /// A user pushes new code.
    Pushed,
    /// A user suspends the job, or resumes it.
    Suspended(bool),
    /// This number of milliseconds passes.
    Waits(u16),
    /// A new master takes over the job.
    TakenOver,
    /// The network of an agent breaks.
    CutOff(u8),
    /// The network of an agent works again before the agent's lease has lapsed.
    Reconnected(u8),
}

fn any_happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        8 => any::<u8>().prop_map(Happening::Arrives),
        24 => any::<u8>().prop_map(Happening::Heeds),
        2 => any::<u8>().prop_map(Happening::Evicted),
        1 => any::<u8>().prop_map(Happening::Killed),
        1 => any::<u8>().prop_map(Happening::Fails),
        1 => any::<u8>().prop_map(Happening::FailsAmidStop),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(min, more)| Happening::Scaled(min, more)),
        1 => Just(Happening::Pushed),
        1 => any::<bool>().prop_map(Happening::Suspended),
        8 => any::<u16>().prop_map(Happening::Waits),
        1 => Just(Happening::TakenOver),
    ]
}

fn any_happening_with_cuts() -> impl Strategy<Value = Happening> {
    prop_oneof![
        30 => any_happening(),
        3 => any::<u8>().prop_map(Happening::CutOff),
        2 => any::<u8>().prop_map(Happening::Reconnected),
        8 => any::<u16>().prop_map(|milliseconds| Happening::Waits(milliseconds / 8)),
    ]
}

/// The state of an agent whose network is broken.
#[derive(Debug)]
struct Cut {
    /// When the agent and its master last exchanged a message. The agent computes its fence from this time.
    fence_from: Duration,
    /// When the current master last received a message from the agent, or when this master began.
    heard: Duration,
    /// The agent's status when the network broke. The master receives it when the network works again.
    hidden: Option<RunStatus>,
}

/// A request that is on its way to an agent.
#[derive(Debug, Clone, Copy)]
enum Order {
    Configure(Generation, Membership),
    Run(Generation),
    Stop,
}

/// A replica: the master's observation of it, and its real state.
#[derive(Debug)]
struct Place {
    id: ReplicaId,
    seen: Observation,
    replacements: Replacements,
    order: Option<Order>,
    /// The start in which the replica's exec.py runs.
    runs: Option<Generation>,
    cut: Option<Cut>,
}

impl Place {
    fn new(index: u32) -> Self {
        let id = ReplicaId { role: Role::Worker, index };
        Self { id, seen: Observation::NEW, replacements: Replacements::default(), order: None, runs: None, cut: None }
    }

    fn status(&self) -> Option<RunStatus> {
        self.seen.agent.status().cloned()
    }

    fn report(&mut self, change: impl FnOnce(&mut RunStatus)) {
        if let Some(mut status) = self.status() {
            status.seq += 1;
            change(&mut status);
            self.seen.hear(AgentState::Status(Box::new(status)));
        }
    }

    fn end_run(&mut self, outcome: ExitOutcome, is_stopped: bool) {
        self.runs = None;
        let exit = ExitReport { stopped: is_stopped, ..ExitReport::new(outcome, UnixMillis(1)) };
        self.report(|status| {
            status.state = RunState::Exited;
            status.exit = Some(exit);
        });
    }

    /// Lets the current master delete the pod. If the agent is cut off, the pod stays until its run is certainly dead.
    fn delete(&mut self, is_member: bool) {
        if self.cut.is_some() && self.seen.agent.standing() < Standing::Fenced {
            self.seen.deleted_by = DeletedBy::ThisMaster;
            return;
        }
        assert!(self.cut.is_none() || self.runs.is_none(), "{} still runs although its fence has passed", self.id);
        self.vanish(is_member);
    }

    /// If the agent is cut off, ends its run at the fence, and updates the master's observation when the lease lapses.
    fn pass_time(&mut self, lease: Lease, now: Duration) {
        let Some(cut) = &self.cut else { return };
        if now >= cut.fence_from + lease.fence() {
            self.runs = None;
        }
        let silent = now.saturating_sub(cut.heard);
        if silent >= lease.length() {
            let is_fenced = silent >= lease.death();
            self.seen.hear(AgentState::Unreachable { lost: LostRun::disrupted("its agent did not answer"), is_fenced });
        }
    }

    fn cut_off(&mut self, now: Duration) {
        self.cut = Some(Cut { fence_from: now, heard: now, hidden: self.status() });
    }

    /// Repairs the agent's network. The master then receives the agent's status.
    fn reconnect(&mut self) {
        let Some(Cut { hidden: Some(status), .. }) = self.cut.take() else { return };
        let was_killed = status.state == RunState::Running && self.runs.is_none();
        self.seen.hear(AgentState::Status(Box::new(status)));
        if was_killed {
            self.end_run(ExitOutcome::Signal(9), true);
        }
    }

    /// Removes the pod with everything in it.
    fn vanish(&mut self, is_member: bool) {
        (self.order, self.runs, self.cut) = (None, None, None);
        self.seen.pod = None;
        if is_member {
            self.seen.agent = AgentState::Failed(self.seen.lost("its pod was deleted"));
        } else {
            self.seen = Observation::NEW;
        }
    }
}

/// The job, its pods and its master.
struct World {
    places: Vec<Place>,
    policy: Policy,
    phase: JobPhase,
    restarts: Restarts,
    newest_failed: Option<Generation>,
    /// The record of the failed start after which the job waits for new code.
    halted: Option<Halt>,
    epoch: u32,
    now: Duration,
    /// The members of the newest start, in the order of their seats.
    roster: Vec<ReplicaId>,
    newest: Option<Generation>,
    /// Whether all members of the newest start have run.
    was_launched: bool,
    /// The number of starts so far.
    starts: u32,
}

impl World {
    fn new(lease: Option<Lease>) -> Self {
        let workers = Workers { min: 2, max: PLACES - 4 };
        let policy = Policy {
            kind: GangKind::Elastic,
            workers,
            grow_interval: Some(Duration::from_secs(60)),
            lease,
            start_timeout: Duration::from_secs(1_000_000),
            ..with_restarts(u32::MAX)
        };
        let phase = begun(&policy, Record { epoch: 1, newest_failed: None, halted: None }, Duration::ZERO);
        Self {
            places: (0..PLACES).map(Place::new).collect(),
            policy,
            phase,
            restarts: Restarts::default(),
            newest_failed: None,
            halted: None,
            epoch: 1,
            now: Duration::ZERO,
            roster: vec![],
            newest: None,
            was_launched: false,
            starts: 0,
        }
    }

    fn gang(&self) -> Gang {
        let horizon = self.phase.horizon();
        let members = self.places.iter().map(|place| {
            let mut member = Member::of(place.id, &place.seen, horizon);
            member.place.create_at = place.replacements.next_at();
            member
        });
        let max = self.policy.workers.max;
        let exists = |member: &Member| {
            member.id.index < max || member.pod != Presence::Absent || member.place.enrolled.is_some()
        };
        Gang::new(members.filter(exists).collect(), horizon)
    }

    fn look(&mut self) {
        if let Some(lease) = self.policy.lease {
            let now = self.now;
            self.places.iter_mut().for_each(|place| place.pass_time(lease, now));
        }
        for looks in 0.. {
            assert!(looks < 50, "the phase still changes after 50 steps: {:?}", self.phase);
            let gang = self.gang();
            let seen = Seen {
                gang: &gang,
                policy: &self.policy,
                turn: &Turn::Go,
                restarts: &self.restarts,
                epoch: self.epoch,
                now: self.now,
            };
            let (after, actions) = step(self.phase.clone(), JobEvent::Observed, seen);
            let has_moved = after != self.phase;
            self.was_launched |= matches!(after, JobPhase::Running { .. });
            self.check_move(&after, &gang);
            if has_moved && matches!(after, JobPhase::Restarting { .. }) {
                self.begin_again();
            }
            self.phase = after;
            for action in actions {
                self.act(action, &gang);
            }
            if !has_moved {
                return;
            }
        }
    }

    fn check_move(&self, after: &JobPhase, gang: &Gang) {
        let has_ended = matches!(after, JobPhase::Finished { .. } | JobPhase::Releasing { .. });
        assert!(!has_ended, "the job has ended: {after:?} of {gang:?}");
        if let JobPhase::Suspended { .. } | JobPhase::Halted { .. } = after {
            // A run of a cut-off agent may still be alive, even after the end of its start is on record. The job's next
            // start waits until this run is certainly dead, or until its pod is deleted.
            let is_on_record = |run: Generation| Some(run) <= self.newest_failed;
            let is_over = |place: &Place| place.runs.is_none_or(is_on_record) || place.cut.is_some();
            assert!(self.places.iter().all(is_over), "a script runs although the job is suspended or halted");
        }
        if let (JobPhase::Running { .. }, JobPhase::Starting { .. }) = (after, &self.phase) {
            assert!(self.roster.iter().all(|id| self.place(*id).runs == self.newest), "not all members run");
        }
    }

    fn place(&self, id: ReplicaId) -> &Place {
        &self.places[id.index as usize]
    }

    fn begin_again(&mut self) {
        for place in &mut self.places {
            if place.seen.pod.is_none() {
                place.seen = Observation::NEW;
            }
        }
    }

    fn act(&mut self, action: Action, gang: &Gang) {
        match action {
            Action::Keep(upkeep) => {
                assert!(!matches!(self.phase, JobPhase::Stopping { .. }), "pods change while runs are stopped");
                for id in upkeep.create {
                    self.create(id);
                }
                for id in upkeep.delete {
                    let is_member = gang.places().iter().any(|place| place.id == id && gang.has(place));
                    let is_suspended = matches!(self.phase, JobPhase::Suspended { .. });
                    assert!(is_suspended || !is_member, "{id} is deleted although it is a member");
                    self.places[id.index as usize].delete(false);
                }
            }
            Action::Enrol { generation, roster } => {
                self.check_roster(generation, roster.members());
                for (id, seat) in roster.seats() {
                    let pushes = self.policy.pushes;
                    let membership = Membership { seat: seat.index, of: roster.len(), start: self.starts, pushes };
                    self.places[id.index as usize].seen.enrolled = Some(Enrolled { generation, membership });
                }
                self.starts += 1;
            }
            Action::Configure(generation) => self.order(|place| {
                let enrolled = place.seen.enrolled.filter(|enrolled| enrolled.generation == generation)?;
                Some(Order::Configure(generation, enrolled.membership))
            }),
            Action::Launch(generation) => self.order(|place| {
                let is_member = place.seen.enrolment().is_some_and(|enrolled| enrolled.generation == generation);
                let waits = place.status().is_some_and(|status| status.state == RunState::Configured);
                (is_member && waits).then_some(Order::Run(generation))
            }),
            Action::StopRuns { .. } => {
                let generation = self.phase.generation();
                self.order(|place| {
                    let is_member = place.seen.enrolment().map(|enrolled| enrolled.generation) == generation;
                    let has_run =
                        place.status().is_some_and(|status| status.exit.is_none() && status.generation.is_some());
                    (is_member && has_run).then_some(Order::Stop)
                });
            }
            Action::RecordRestart(_) => {
                assert!(self.places.iter().all(|place| place.runs.is_none()), "a failure is judged while scripts run");
                self.record_end();
                self.restarts.counted += 1;
            }
            Action::RecordHalt => self.record_halt(),
            Action::RecordSuspension => self.record_end(),
            Action::DeletePods(which) => {
                let gang = self.gang();
                for place in gang.places().iter().filter(|place| which.includes(place, &gang)) {
                    self.places[place.id.index as usize].delete(gang.has(place));
                }
            }
            Action::Conclude(_) | Action::ReleasePods => {
                panic!("unexpected action of an elastic job that continues: {action:?}")
            }
        }
    }

    fn record_halt(&mut self) {
        let JobPhase::Halted(halt) = &self.phase else { panic!("the phase is {:?}, not Halted", self.phase) };
        self.halted = Some(halt.clone());
    }

    fn record_end(&mut self) {
        (self.newest_failed, self.halted) = (self.newest.max(self.newest_failed), None);
    }

    fn create(&mut self, id: ReplicaId) {
        let place = &mut self.places[id.index as usize];
        assert!(place.seen.pod.is_none(), "{id} has a pod");
        place.seen = Observation { pod: Some(PodState::Pending { has_node: false, wait: None }), ..Observation::NEW };
        place.replacements.note(self.now);
    }

    /// Checks the promises that hold at each start, and stores the new start.
    fn check_roster(&mut self, generation: Generation, members: &[ReplicaId]) {
        let Workers { min, max } = self.policy.workers;
        assert!(Some(generation) > self.newest, "start {generation} is not newer than start {:?}", self.newest);
        let has_new_code = self.halted.as_ref().is_none_or(|halt| halt.has_new_code(&self.policy));
        assert!(has_new_code, "start {generation} runs the code that failed: {:?}", self.halted);
        assert!(
            (min..=max).contains(&u32::try_from(members.len()).expect("too large a number")),
            "{} members, but the range is {min} to {max}",
            members.len()
        );
        for place in &self.places {
            assert_eq!(place.runs, None, "{} still runs when start {generation} begins", place.id);
        }
        let survivors = |roster: &[ReplicaId], other: &[ReplicaId]| -> Vec<ReplicaId> {
            roster.iter().filter(|id| other.contains(id)).copied().collect()
        };
        // A replica whose pod was replaced is not a survivor.
        let known: Vec<ReplicaId> =
            self.places.iter().filter(|place| place.seen.enrolment().is_some()).map(|place| place.id).collect();
        let before = survivors(&survivors(&self.roster, &known), members);
        assert_eq!(&members[..before.len()], before, "survivors have changed their order: {:?}", self.roster);
        (self.roster, self.newest, self.was_launched) = (members.to_vec(), Some(generation), false);
    }

    fn order(&mut self, order: impl Fn(&Place) -> Option<Order>) {
        for place in &mut self.places {
            if let Some(order) = order(place) {
                place.order = Some(order);
            }
        }
    }

    fn happen(&mut self, happening: &Happening) {
        let chosen = |number: u8, places: &[Place], test: &dyn Fn(&Place) -> bool| {
            let possible: Vec<usize> = (0..places.len()).filter(|index| test(&places[*index])).collect();
            possible.get(usize::from(number) % possible.len().max(1)).copied()
        };
        let is_up = |place: &Place| place.cut.is_none() && matches!(place.seen.pod, Some(PodState::Running(_)));
        let has_pod = |place: &Place| place.cut.is_none() && place.seen.pod.is_some();
        let waits = |place: &Place| matches!(place.seen.pod, Some(PodState::Pending { .. }));
        let horizon = self.phase.horizon();
        let is_member = |place: &Place| {
            place.seen.enrolment().is_some_and(|enrolled| horizon.is_none_or(|horizon| enrolled.generation >= horizon))
        };
        let is_stopping = matches!(self.phase, JobPhase::Stopping { .. });
        match *happening {
            Happening::Arrives(number) => {
                chosen(number, &self.places, &waits).into_iter().for_each(|index| arrive(&mut self.places[index]));
            }
            Happening::Heeds(number) => {
                if let Some(index) = chosen(number, &self.places, &|place| place.order.is_some() && place.cut.is_none())
                {
                    heed(&mut self.places[index]);
                }
            }
            Happening::Evicted(number) => {
                if let Some(index) = chosen(number, &self.places, &has_pod) {
                    let member = is_member(&self.places[index]);
                    self.places[index].vanish(member);
                }
            }
            Happening::Killed(number) => {
                if let Some(index) = chosen(number, &self.places, &is_up) {
                    let place = &mut self.places[index];
                    (place.order, place.runs) = (None, None);
                    place.seen.pod = Some(PodState::ended(None, "killed"));
                }
            }
            Happening::Fails(number) if !is_stopping => self.fail_one(number),
            Happening::FailsAmidStop(number) if is_stopping => self.fail_one(number),
            Happening::Fails(_) | Happening::FailsAmidStop(_) => {}
            Happening::Scaled(min, more) => {
                let min = 1 + u32::from(min) % 4;
                let workers = Workers { min, max: (min + u32::from(more) % PLACES).min(PLACES) };
                self.policy.workers = workers;
            }
            Happening::Pushed => self.policy.pushes += 1,
            Happening::Suspended(is_suspended) => self.policy.is_suspended = is_suspended,
            Happening::Waits(milliseconds) => self.now += Duration::from_millis(u64::from(milliseconds)),
            Happening::TakenOver => self.take_over(),
            Happening::CutOff(number) => {
                let (index, now) = (chosen(number, &self.places, &is_up), self.now);
                index.into_iter().for_each(|index| self.places[index].cut_off(now));
            }
            Happening::Reconnected(number) => {
                let is_held = |place: &Place| place.cut.is_some() && place.seen.agent.standing() == Standing::Held;
                chosen(number, &self.places, &is_held).into_iter().for_each(|index| self.places[index].reconnect());
            }
        }
    }

    fn fail_one(&mut self, number: u8) {
        let running: Vec<usize> = (0..self.places.len())
            .filter(|index| self.places[*index].runs.is_some() && self.places[*index].cut.is_none())
            .collect();
        if let Some(index) = running.get(usize::from(number) % running.len().max(1)) {
            self.places[*index].end_run(ExitOutcome::Code(3), false);
        }
    }

    /// Replaces the master. The new master observes only the record, the pods, and the agents' reports.
    fn take_over(&mut self) {
        self.epoch += 1;
        if !self.was_launched {
            // Perhaps no agent has received its seat. Then the new master does not know this roster.
            self.roster.clear();
        }
        for place in &mut self.places {
            place.order = None;
            place.replacements = Replacements::default();
            let pod = place.seen.pod.take();
            let agent = match (&pod, place.status(), &mut place.cut) {
                (Some(PodState::Running(_)), Some(status), None) => AgentState::Status(Box::new(status)),
                (_, _, Some(cut)) => {
                    cut.heard = self.now;
                    AgentState::Silent
                }
                (_, _, None) => AgentState::Silent,
            };
            let is_found = pod.is_some();
            place.seen = Observation { pod, agent, is_found, deleted_by: DeletedBy::Others, ..Observation::NEW };
        }
        let Self { epoch, newest_failed, .. } = *self;
        self.phase = begun(&self.policy, Record { epoch, newest_failed, halted: self.halted.clone() }, self.now);
    }

    /// Lets all pods start, all agents answer and much time pass. Returns whether the gang runs then.
    fn settle(&mut self) -> bool {
        for _ in 0..400 {
            self.now += Duration::from_secs(30);
            for place in &mut self.places {
                if place.seen.agent.standing() == Standing::Held {
                    place.reconnect();
                }
                if place.cut.is_none() {
                    arrive(place);
                    heed(place);
                }
            }
            self.look();
        }
        matches!(self.phase, JobPhase::Running { .. })
    }
}

/// The parts of the record that a new master reads.
struct Record {
    epoch: u32,
    newest_failed: Option<Generation>,
    halted: Option<Halt>,
}

fn begun(policy: &Policy, Record { epoch, newest_failed, halted }: Record, now: Duration) -> JobPhase {
    let first = Generation { epoch, sequence: 1 };
    let newest_failed = newest_failed.max(halted.as_ref().map(|halt| halt.generation));
    let waits = halted.filter(|halt| !halt.has_new_code(policy));
    let halted = waits.map(|halt| Halt { next: first, ..halt });
    let known = Known { first, newest_failed, halted, result: None };
    begin(known, policy, now).0
}

fn arrive(place: &mut Place) {
    if !matches!(place.seen.pod, Some(PodState::Pending { .. })) {
        return;
    }
    let port = u16::try_from(20_000 + place.id.index).expect("not a port");
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    place.seen.pod = Some(PodState::Running(Addresses { agent: address, tensorflow: address }));
    place.seen.agent = AgentState::Status(Box::new(RunStatus::idle("boot")));
}

fn heed(place: &mut Place) {
    match place.order.take() {
        None => {}
        Some(Order::Configure(generation, membership)) => place.report(|status| {
            status.state = RunState::Configured;
            (status.generation, status.membership, status.exit) = (Some(generation), Some(membership), None);
        }),
        Some(Order::Run(generation)) if place.status().is_some_and(|status| status.state == RunState::Configured) => {
            place.runs = Some(generation);
            place.report(|status| status.state = RunState::Running);
        }
        Some(Order::Run(_)) => {}
        Some(Order::Stop) => {
            let outcome = match place.runs {
                Some(_) => ExitOutcome::Signal(9),
                None => ExitOutcome::NotStarted("it was stopped".to_owned()),
            };
            place.end_run(outcome, true);
        }
    }
}

/// Plays the happenings. Checks each start, and that the job runs with the maximum of workers in the end.
fn check(lease: Option<Lease>, waits_for_code: bool, happenings: &[Happening]) {
    let mut world = World::new(lease);
    world.policy.halt = waits_for_code.then_some(Duration::from_secs(20));
    world.look();
    for happening in happenings {
        world.happen(happening);
        world.look();
    }
    world.policy.is_suspended = false;
    assert!(world.settle(), "the job does not run in the end: {:?}\n{:#?}", world.phase, world.gang());
    let Workers { min, max } = world.policy.workers;
    let members = u32::try_from(world.gang().members().count()).expect("too large a number");
    assert_eq!(members, max, "a job of {min} to {max} workers does not reach the maximum: {:?}", world.phase);
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn an_elastic_job_starts_a_gang_only_after_all_earlier_runs_are_dead_and_runs_in_the_end(
        happenings in vec(any_happening(), 0..200), waits_for_code in any::<bool>()
    ) {
        check(None, waits_for_code, &happenings);
    }
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn a_job_with_leases_starts_no_gang_while_an_unreachable_run_may_be_alive(
        happenings in vec(any_happening_with_cuts(), 0..200)
    ) {
        check(Some(Lease::new(Duration::from_secs(5))), false, &happenings);
    }
}

#[test]
fn a_job_that_was_suspended_with_an_unreachable_agent_runs_after_a_takeover_and_a_resume() {
    use Happening::{Arrives, CutOff, Heeds, Scaled, Suspended, TakenOver, Waits};
    let happenings = [Scaled(0, 0), Arrives(0), Heeds(0), Heeds(0), CutOff(0), Suspended(true), Waits(5000), TakenOver];
    check(Some(Lease::new(Duration::from_secs(5))), false, &happenings);
}

#[test]
fn workers_that_arrive_at_the_same_time_cause_only_one_start() {
    let mut world = World::new(None);
    world.look();
    for place in &mut world.places {
        arrive(place);
    }
    for _ in 0..8 {
        world.look();
        world.places.iter_mut().for_each(heed);
    }
    assert!(matches!(world.phase, JobPhase::Running { .. }), "{:?}", world.phase);
    assert_eq!((world.roster.len(), world.starts), (PLACES as usize - 4, 1));
    world.policy.workers = Workers { min: 2, max: PLACES };
    for _ in 0..16 {
        world.look();
        world.places.iter_mut().for_each(arrive);
        world.places.iter_mut().for_each(heed);
    }
    assert_eq!((world.roster.len(), world.starts), (PLACES as usize, 2));
    let seats: BTreeMap<ReplicaId, usize> = world.roster.iter().copied().zip(0..).collect();
    assert!(seats.iter().all(|(id, seat)| id.index as usize == *seat), "{seats:?}");
}
