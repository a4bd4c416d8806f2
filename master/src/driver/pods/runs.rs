//! Starts and stops the runs of a gang: asks the agents, in one task at a time, and chooses the first signal of a stop.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use job::batching::sizes_by_rank;
use job::gang::Place;
use job::observation::Enrolled;
use job::phase::{Ending, JobPhase, Stop};
use job::policy::STOP_GRACE;
use job::replica::ReplicaPhase;
use protocol::agent::{FirstSignal, Membership};
use protocol::ids::{Generation, ReplicaId, Role, UnixMillis};
use protocol::stacks::ReplicaStacks;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info};

use super::replica::Replica;
use super::stacks;
use super::table::ReplicaTable;
use crate::driver::balance::{Balance, Rank};
use crate::driver::context::Common;
use crate::driver::delivery::Delivery;
use crate::driver::follower::Follower;
use crate::driver::job_code::JobCode;
use crate::driver::machine::{Current, Machine};
use crate::driver::reports::{Report, Subject};
use crate::driver::retry::patience;
use crate::driver::tasks::{self, Fanout, Meeting, Seat};
use crate::error_chain::error_chain;
use crate::host::clock::wall_clock;
use crate::logs::series::SeriesOfJob;
use crate::store::JobRecord;

/// The runs of a job, and the requests to their agents.
pub(in crate::driver) struct Runs {
    common: Common,
    series: Arc<SeriesOfJob>,
    /// The delivery of the code of the next start, if the job brings its code.
    delivery: watch::Receiver<Option<Arc<Delivery>>>,
    /// The current task of the start: configuring agents, or launching runs.
    start: Option<AbortOnDropHandle<()>>,
}

impl Runs {
    pub(in crate::driver) fn new(common: Common, series: Arc<SeriesOfJob>, code: &JobCode) -> Self {
        Self { common, series, delivery: code.delivery(), start: None }
    }

    /// Sends every member of this start its environment. Returns the batch of each member that has one.
    pub(in crate::driver) async fn configure(
        &mut self,
        generation: Generation,
        replicas: &mut ReplicaTable,
        current: Current<'_>,
        balance: &Balance,
    ) -> BTreeMap<ReplicaId, u32> {
        // The times of lines of output come from the same clock.
        self.series.begin(generation, wall_clock());
        replicas.iter_mut().for_each(|(_, replica)| replica.output_from = replica.log.progress().end);
        let (seats, meeting, first) = meet(replicas, current, balance);
        debug!(job = %self.common.job.name, %generation, members = seats.len(), "gang complete");
        self.begin(tasks::configure(self.fanout(generation, current.machine), seats, meeting)).await;
        first
    }

    /// Gives the new pod of this replica the place in a start that runs, which the replica's earlier pod had.
    pub(in crate::driver) async fn rejoin(
        &mut self,
        (generation, id): (Generation, ReplicaId),
        replicas: &mut ReplicaTable,
        current: Current<'_>,
        balance: &Balance,
    ) {
        let gang = replicas.gang(current.machine.horizon());
        let known = gang.members().find_map(|member| member.seen.enrolment());
        let (Some(known), Some(replica)) = (known, replicas.get_mut(id)) else { return };
        let membership = Membership { seat: id.index, ..known.membership };
        replica.tracked.seen.enrolled = Some(Enrolled { generation, membership });
        replica.output_from = replica.log.progress().end;
        replica.watch_run(Some(generation));
        info!(job = %self.common.job.name, replica = %id, %generation, "replica starts again alone");
        let (mut seats, meeting, _) = meet(replicas, current, balance);
        seats.retain(|seat| seat.subject.id == id);
        let targets = seats.iter().map(|seat| (seat.subject, seat.agent)).collect();
        let fanout = self.fanout(generation, current.machine);
        self.begin(async move {
            tasks::configure(fanout.clone(), seats, meeting).await;
            tasks::launch(fanout, targets).await;
        })
        .await;
    }

    /// Asks every member of this start to run exec.py, unless it runs already.
    pub(in crate::driver) async fn launch(&mut self, start: Generation, replicas: &ReplicaTable, machine: &Machine) {
        let waiting = agents(replicas, machine, |_, phase| !phase.was_launched());
        self.begin(tasks::launch(self.fanout(start, machine), waiting)).await;
    }

    fn fanout(&self, generation: Generation, machine: &Machine) -> Fanout {
        // With leases, retry without a limit: if an agent's lease lapses, the agent's follower reports the loss.
        let has_lease = machine.policy().rules.lease.is_some();
        let pauses = if has_lease { patience().without_max_times() } else { patience() };
        Fanout { common: self.common.clone(), generation, pauses, delivery: self.delivery.borrow().clone() }
    }

    /// Cancels the task of an earlier start, then runs this work in a new task. An agent that is configured for the
    /// newer start refuses the earlier task's requests, and that task would report the refusals as failures.
    async fn begin(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.cancel().await;
        self.start = Some(tasks::spawn(&self.common.reporter, work));
    }

    /// Cancels the task of a start and waits until it has ended.
    pub(in crate::driver) async fn cancel(&mut self) {
        if let Some(start) = self.start.take() {
            start.abort();
            // The task's result does not matter: the watch and the agents show what the task did.
            let _ = start.await;
        }
    }

    /// Asks agents to stop their runs. Call [`Self::cancel`] first: after a stop request, an agent refuses to start a
    /// run, and the task of the start would report this refusal as a failure.
    pub(in crate::driver) fn stop(
        &self,
        (grace, includes): (Duration, fn(Role) -> bool),
        replicas: &mut ReplicaTable,
        Current { record, machine }: Current<'_>,
        tasks: &mut JoinSet<()>,
    ) {
        let generation = machine.phase().generation();
        // While runs stop, `step` returns this action at each change. Skip the agents that were already asked.
        let mut targets = agents(replicas, machine, |replica, phase| {
            !replica.tracked.is_stopped && phase.was_configured() && !phase.is_dead()
        });
        targets.retain(|(subject, _)| includes(subject.id.role));
        for (subject, _) in &targets {
            if let Some(replica) = replicas.get_mut(subject.id) {
                replica.watch_run(generation);
                replica.tracked.is_stopped = true;
            }
        }
        if targets.is_empty() {
            return;
        }
        let common = self.common.clone();
        let grace_of = grace_of(grace, record, machine);
        let is_cancelled = matches!(machine.phase(), JobPhase::Stopping(Stop { ending: Ending::Cancelled, .. }));
        let first = if is_cancelled && record.spec.is_on_machines() { FirstSignal::Int } else { FirstSignal::Term };
        tasks.spawn(async move {
            let stop = async |(subject, agent): (Subject, SocketAddr)| {
                let grace = grace_of(subject.id.role);
                if let Err(error) = tasks::stop(&common.agents, agent, generation, first, grace).await {
                    let (replica, reason) = (subject.id, error_chain(&error));
                    common.report(Report::NotStopped { replica, generation, reason }).await;
                }
            };
            stream::iter(targets).for_each_concurrent(tasks::AGENTS_AT_ONCE, stop).await;
        });
    }

    /// Asks the agents of all members where their scripts are, at most for the time `limit`. Returns nothing if no script
    /// runs. The future is independent of the driver.
    pub(in crate::driver) fn stacks(
        &self,
        replicas: &ReplicaTable,
        horizon: Option<Generation>,
        limit: Duration,
    ) -> impl Future<Output = Vec<ReplicaStacks>> + Send + use<> {
        let gang = replicas.gang(horizon);
        let is_running = gang.any(|member| matches!(member.phase, ReplicaPhase::Running(_)));
        let members = gang.members().filter(|_| is_running);
        let members = members.map(|it| (it.id, stacks::to_ask(&it.phase, replicas.get(it.id)))).collect();
        stacks::of(self.common.agents.clone(), members, Instant::now() + limit)
    }
}

/// The seats of a start, what the members learn of each other, and the batch of each member that has one.
fn meet(
    replicas: &ReplicaTable,
    Current { record, machine }: Current<'_>,
    balance: &Balance,
) -> (Vec<Seat>, Meeting, BTreeMap<ReplicaId, u32>) {
    let gang = replicas.gang(machine.horizon());
    let (mut members, mut places, mut seats) = (BTreeMap::new(), BTreeMap::new(), vec![]);
    for member in gang.members() {
        let Some(replica) = replicas.get(member.id) else { continue };
        let Some(addresses) = member.seen.addresses() else { continue };
        let Some(Enrolled { membership, .. }) = member.seen.enrolled else { continue };
        let seat = gang.seat(member);
        members.insert(seat, addresses.tensorflow);
        places.insert(seat, member.id);
        seats.push(Seat {
            subject: replica.subject(member.id),
            agent: addresses.agent,
            seat,
            membership,
            renewal: replica.follower.as_ref().and_then(Follower::renewal),
        });
    }
    let restarts = seats.first().map_or(0, |seat| seat.membership.start);
    let speed = |place| balance.speed(replicas.get(place)?.subject(place));
    let sizes = sizes_by_rank((&record.spec, &record.restarts), &places, speed);
    let trains = places.iter().filter(|(seat, _)| seat.role.trains()).map(|(_, place)| *place);
    let first = trains.zip(sizes.iter().flatten().copied()).filter(|(_, size)| *size > 0).collect();
    let meeting = Meeting { spec: Arc::clone(&record.spec), uid: record.uid.clone(), members, restarts, sizes };
    (seats, meeting, first)
}

/// The members of the current start that have a batch, in the order of their ranks.
pub(in crate::driver) fn ranks(replicas: &ReplicaTable, Current { record, machine }: Current<'_>) -> Vec<Rank> {
    let gang = replicas.gang(machine.horizon());
    let mut members: Vec<_> = gang.members().filter(|member| record.spec.has_batch(member.id.role)).collect();
    members.sort_by_key(|member| gang.seat(member));
    let rank =
        |member: &&Place<'_>| Some((replicas.get(member.id)?.subject(member.id), member.seen.addresses()?.agent));
    members.iter().filter_map(rank).collect()
}

/// When the last exec.py of this start was started, if the agent of every member has reported the time.
pub(in crate::driver) fn last_launch(replicas: &ReplicaTable, start: Generation) -> Option<UnixMillis> {
    let members = replicas.iter().filter(|(_, replica)| replica.tracked.is_member(start));
    let starts = members.map(|(_, replica)| replica.tracked.seen.agent.status()?.started_at);
    starts.collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// The members of the current start for which `test` holds, with the addresses of their agents.
fn agents(
    replicas: &ReplicaTable,
    machine: &Machine,
    test: impl Fn(&Replica, &ReplicaPhase) -> bool,
) -> Vec<(Subject, SocketAddr)> {
    let Some(start) = machine.phase().generation() else { return vec![] };
    let passes = |replica: &Replica| test(replica, &ReplicaPhase::of(&replica.tracked.seen, machine.horizon()));
    let chosen = replicas.iter().filter(|(_, replica)| replica.tracked.is_member(start) && passes(replica));
    chosen.filter_map(|(id, replica)| Some((replica.subject(id), replica.tracked.seen.addresses()?.agent))).collect()
}

/// The time between SIGTERM and SIGKILL for each role. After a success, only replicas that run the training loop get the
/// full grace, because they may still save something. TensorFlow's servers ignore SIGTERM.
fn grace_of(grace: Duration, record: &JobRecord, machine: &Machine) -> impl Fn(Role) -> Duration + Send + 'static {
    let has_succeeded = matches!(machine.phase(), JobPhase::Stopping(Stop { ending: Ending::Succeeded, .. }));
    let of_servers = if has_succeeded { STOP_GRACE } else { grace };
    let workers_serve = record.spec.ps_num > 0 && record.spec.chief_num > 0;
    move |role| match role {
        Role::Ps | Role::Evaluator => of_servers,
        Role::Worker if workers_serve => of_servers,
        Role::Worker | Role::Chief => grace,
    }
}
