//! Carries out the actions of `step`. Slow work runs in tasks, which report their results to the driver.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use futures_util::{FutureExt, StreamExt, stream};
use job::observation::{AgentState, DeletedBy, Enrolled, Presence};
use job::phase::{Action, Ending, JobPhase, PodSelection};
use job::replica::ReplicaPhase;
use protocol::ids::{Generation, ReplicaId, Role};
use protocol::lease::Standing;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::follower::Follower;
use super::retry::patience;
use super::subject::Subject;
use super::tasks::{self, Meeting, Seat};
use super::tracked::Replica;
use super::{Driver, Next, Report};
use crate::error_chain::error_chain;

/// Maximum number of pods that are created or deleted at the same time.
pub(super) const PODS_AT_ONCE: usize = 32;

impl Driver {
    pub(super) async fn act(&mut self, action: Action) -> Next {
        match action {
            Action::Keep(upkeep) => self.keep(upkeep),
            Action::Enrol { generation, roster } => self.enrol(generation, &roster),
            Action::Configure(generation) => self.configure(generation).await,
            Action::Launch(generation) => return self.launch(generation).await,
            Action::StopRuns { grace } => self.stop_runs(grace).await,
            // `advance` has stored the diagnosis in `self.failed`.
            Action::RecordRestart(_) => return self.record_restart().await,
            Action::RecordHalt => return self.record_halt().await,
            Action::RecordSuspension => return self.record_suspension().await,
            Action::Conclude(result) => return self.conclude(result).await,
            Action::ReleasePods => self.release_pods().await,
            Action::DeletePods(which) => self.delete_pods(which).await,
        }
        Next::GoOn
    }

    async fn configure(&mut self, generation: Generation) {
        let (gang, record) = (self.gang(), &self.stored.record);
        debug!(job = %self.stored.name(), %generation, members = gang.members().count(), "gang complete");
        for (id, replica) in &mut self.replicas {
            replica.output_from = self.channels.logs.of(*id).map_or(0, |log| log.progress().end);
        }
        let mut restarts = self.starts_so_far(&gang);
        let (mut members, mut seats) = (BTreeMap::new(), vec![]);
        for member in gang.members() {
            let Some(replica) = self.replicas.get(&member.id) else { continue };
            let Some(addresses) = replica.seen.addresses() else { continue };
            let Some(Enrolled { membership, .. }) = replica.seen.enrolled else { continue };
            let seat = gang.seat(member);
            restarts = membership.start;
            members.insert(seat, addresses.tensorflow);
            seats.push(Seat {
                subject: replica.subject(member.id),
                agent: addresses.agent,
                seat,
                membership,
                renewal: replica.follower.as_ref().and_then(Follower::renewal),
            });
        }
        let (spec, uid) = (record.spec.clone(), record.uid.clone());
        let meeting = Meeting { spec, uid, members, restarts };
        // `record.pushes` may include a push that `follow_record` has not applied yet.
        self.starts.configure(self.policy.pushes);
        self.begin_start(tasks::configure(self.fanout(generation), seats, meeting)).await;
    }

    async fn launch(&mut self, generation: Generation) -> Next {
        if self.replicas.values().any(|replica| replica.is_seed_only) {
            let next = self.remember(generation).await;
            if next != Next::GoOn {
                return next;
            }
        }
        let waiting = self.agents(|_, phase| !phase.was_launched());
        self.begin_start(tasks::launch(self.fanout(generation), waiting)).await;
        Next::GoOn
    }

    fn fanout(&self, generation: Generation) -> tasks::Fanout {
        // With leases, retry without a limit: if an agent's lease lapses, the agent's follower reports the loss.
        let pauses = if self.policy.lease.is_some() { patience().without_max_times() } else { patience() };
        let (agents, reporter) = (self.agents.clone(), self.reporter.clone());
        let delivery = self.code.delivery().borrow().clone();
        tasks::Fanout { agents, generation, reporter, pauses, delivery }
    }

    /// Cancels the task of an earlier start, then runs this work in a new task. An agent that is configured for the
    /// newer start refuses the earlier task's requests, and that task would report the refusals as failures.
    async fn begin_start(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.cancel_start().await;
        self.start = Some(tasks::spawn(&self.reporter, work));
    }

    /// Cancels a start in progress, then asks agents to stop their runs. After a stop request, an agent refuses to
    /// start a run. The task of the start would report this refusal as a failure.
    async fn stop_runs(&mut self, grace: Duration) {
        self.call_start_back().await;
        let generation = self.phase.generation();
        // While runs stop, `step` returns this action at each change. Skip the agents that were already asked.
        let targets = self.agents(|replica, phase| !replica.is_stopped && phase.was_configured() && !phase.is_dead());
        for (subject, _) in &targets {
            self.replicas.entry(subject.id).and_modify(|replica| {
                replica.watch_run(generation);
                replica.is_stopped = true;
            });
        }
        if targets.is_empty() {
            return;
        }
        let (agents, reporter) = (self.agents.clone(), self.reporter.clone());
        // After a success, only replicas that run the training loop get the full grace, because they may still save
        // something. TensorFlow's servers ignore SIGTERM.
        let has_succeeded = matches!(self.phase, JobPhase::Stopping { ending: Ending::Succeeded, .. });
        let of_servers = if has_succeeded { self.policy.stop_grace } else { grace };
        let spec = &self.stored.record.spec;
        let workers_serve = spec.ps_num > 0 && spec.chief_num > 0;
        self.tasks.spawn(async move {
            let stop = async |(subject, agent): (Subject, SocketAddr)| {
                let grace = match subject.id.role {
                    Role::Ps | Role::Evaluator => of_servers,
                    Role::Worker if workers_serve => of_servers,
                    Role::Worker | Role::Chief => grace,
                };
                if let Err(error) = tasks::stop(&agents, agent, generation, grace).await {
                    let report = Report::NotStopped { replica: subject.id, generation, reason: error_chain(&error) };
                    // The send fails only if the driver has ended, so the error does not matter.
                    let _ = reporter.send(report).await;
                }
            };
            stream::iter(targets).for_each_concurrent(tasks::AGENTS_AT_ONCE, stop).await;
        });
    }

    /// Deletes a pod whose agent does not stop its run. If the run has ended by now, or the pod serves the next start,
    /// the pod stays.
    pub(super) fn delete_unstopped(&mut self, id: ReplicaId, reason: &str) {
        let horizon = self.phase.horizon();
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let has_ended = ReplicaPhase::of(&replica.seen, horizon).is_dead();
        if !replica.is_stopped || has_ended || replica.seen.presence() != Presence::Live {
            return;
        }
        warn!(job = %self.stored.name(), replica = %id, reason, "the agent does not stop its run; deleting the pod");
        replica.seen.deleted_by = DeletedBy::ThisMaster;
        let (context, job) = (Arc::clone(&self.context), self.stored.key());
        self.tasks.spawn(async move { tasks::delete(context.backend.as_ref(), &job, id).await });
    }

    async fn release_pods(&mut self) {
        self.call_start_back().await;
        for (id, replica) in &mut self.replicas {
            let presence = replica.seen.presence();
            // Only a deletion ends the other containers of a pod whose agent has ended.
            let is_occupied = presence == Presence::Occupied && replica.seen.deleted_by == DeletedBy::Others;
            // Wait for the agent's first answer. `step` limits this wait.
            let is_unheard = replica.seen.agent == AgentState::Silent && replica.seen.addresses().is_some();
            let is_next = is_occupied || !is_unheard && !replica.is_released;
            let Some(log) = self.channels.logs.of(*id).filter(|_| is_next) else { continue };
            if is_occupied {
                replica.deletion_asked_at = Some(Instant::now());
                replica.seen.deleted_by = DeletedBy::ThisMaster;
            }
            // An evicted pod ends without a request, and its exec.py may still be saving its state.
            let is_to_end = !replica.is_released && presence == Presence::Live && !replica.seen.is_leaving();
            replica.is_released |= presence.has_containers();
            let copied = replica.follower.as_ref().map(Follower::caught_up);
            // Nothing is left to wait for, so spawn no task. After a takeover, an ended job may have thousands of
            // replicas without pods.
            if copied.is_none() && !is_to_end && !is_occupied {
                log.complete();
                continue;
            }
            let complete = tasks::complete(log, OptionFuture::from(copied).map(drop));
            let (id, agent, standing) = (*id, replica.agent(), replica.seen.agent.standing());
            let (agents, context, job) = (self.agents.clone(), Arc::clone(&self.context), self.stored.key());
            self.tasks.spawn(async move {
                // First complete the output, so that its readers do not wait for the pod's end.
                complete.await;
                let is_finished = is_to_end && tasks::finish(&agents, agent).await;
                if is_occupied || is_to_end && !is_finished {
                    tasks::replace(context.backend.as_ref(), &job, id, standing).await;
                }
            });
        }
    }

    /// Deletes the selected pods. A deletion is repeated only after `release_timeout`, because the back end's watch
    /// needs some time to report the deletion.
    pub(super) async fn delete_pods(&mut self, which: PodSelection) {
        self.call_start_back().await;
        let soon = self.policy.release_timeout;
        let gang = self.gang();
        let mut chosen = vec![];
        for place in gang.places() {
            let Some(replica) = self.replicas.get_mut(&place.id) else { continue };
            if !replica.was_asked_to_go_within(soon) && which.includes(place, &gang) {
                replica.deletion_asked_at = Some(Instant::now());
                replica.seen.deleted_by = DeletedBy::ThisMaster;
                chosen.push((place.id, replica.seen.agent.standing()));
            }
        }
        match which {
            PodSelection::All if chosen.is_empty() => {}
            PodSelection::All => self.delete_all_pods().await,
            PodSelection::Live | PodSelection::Unended | PodSelection::Idle => {
                let (backend, job) = (self.context.backend.as_ref(), &self.stored.key());
                let delete = |(id, standing): (ReplicaId, Standing)| tasks::replace(backend, job, id, standing);
                stream::iter(chosen).for_each_concurrent(PODS_AT_ONCE, delete).await;
            }
        }
    }

    /// Deletes every pod of the job, including pods that the watch has not reported yet.
    pub(super) async fn delete_all_pods(&mut self) {
        self.call_start_back().await;
        for replica in self.replicas.values_mut().filter(|replica| replica.seen.presence() != Presence::Absent) {
            replica.seen.deleted_by = DeletedBy::ThisMaster;
        }
        tasks::delete_all(self.context.backend.as_ref(), &self.stored.key()).await;
    }

    /// Cancels the tasks of a start and waits until they have ended. A requested pod may still appear later.
    async fn call_start_back(&mut self) {
        for creation in self.creations.drain(..) {
            creation.abort();
            let _ = creation.await;
        }
        self.replicas.values_mut().for_each(Replica::give_up_request);
        self.cancel_start().await;
    }

    async fn cancel_start(&mut self) {
        if let Some(start) = self.start.take() {
            start.abort();
            // The task's result does not matter: the watch and the agents show what the task did.
            let _ = start.await;
        }
    }

    /// The members of the current start for which `test` holds, with the addresses of their agents.
    fn agents(&self, test: impl Fn(&Replica, &ReplicaPhase) -> bool) -> Vec<(Subject, SocketAddr)> {
        let Some(start) = self.phase.generation() else { return vec![] };
        let horizon = self.phase.horizon();
        let passes = |replica: &Replica| test(replica, &ReplicaPhase::of(&replica.seen, horizon));
        let chosen = |(_, replica): &(&ReplicaId, &Replica)| replica.is_member(start) && passes(replica);
        let agent =
            |(id, replica): (&ReplicaId, &Replica)| Some((replica.subject(*id), replica.seen.addresses()?.agent));
        self.replicas.iter().filter(chosen).filter_map(agent).collect()
    }
}
