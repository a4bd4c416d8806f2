//! Carrying out what `step` decided. What takes time goes to tasks that report back.

use std::collections::BTreeMap;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use protocol::ids::{Generation, ReplicaId};
use protocol::view::JobResult;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::adopt::persistently;
use super::replica::{Listener, Replica};
use super::{Driver, Next, tasks};
use crate::backend::PodSpec;
use crate::error_chain::error_chain;
use crate::job::phase::Action;
use crate::job::replica::{AgentState, ReplicaPhase};
use crate::store::{Change, Ended, JobRecord, amend};

/// Pods that are created or deleted at the same time.
const PODS_AT_ONCE: usize = 32;

impl Driver {
    pub(super) async fn act(&mut self, action: Action) -> Next {
        match action {
            Action::CreatePods => self.create_pods(),
            Action::Configure(generation) => self.configure(generation),
            Action::Launch(generation) => return self.launch(generation).await,
            Action::Follow(_) => self.follow(),
            Action::StopRuns { grace } => self.stop_runs(grace).await,
            Action::Conclude(result) => return self.conclude(result).await,
            Action::ReleasePods => self.release_pods().await,
            Action::DeletePods => self.delete_live_pods().await,
        }
        Next::GoOn
    }

    fn create_pods(&mut self) {
        let record = &self.stored.record;
        let pod = |id: ReplicaId| PodSpec::new(self.stored.key(), &record.spec, id, self.token.sha256());
        let missing = self.replicas.iter().filter(|(_, replica)| replica.seen.pod.is_none());
        let pods: Vec<PodSpec> = missing.map(|(id, _)| pod(*id)).collect();
        let (backend, reporter) = (Arc::clone(&self.context.backend), self.reporter.clone());
        self.begin_start(async move {
            let create = async |pod: PodSpec| {
                let replica = pod.replica;
                if let Err(error) = backend.create(pod).await {
                    tasks::report(&reporter, replica, AgentState::Refused(error_chain(&error))).await;
                }
            };
            stream::iter(pods).for_each_concurrent(PODS_AT_ONCE, create).await;
        });
    }

    fn configure(&mut self, generation: Generation) {
        info!(job = %self.stored.name(), %generation, joined = self.replicas.len(), "gang complete");
        let tensorflow = |(id, replica): (&ReplicaId, &Replica)| Some((*id, replica.seen.addresses()?.tensorflow));
        let members: BTreeMap<ReplicaId, SocketAddr> = self.replicas.iter().filter_map(tensorflow).collect();
        let spec = self.stored.record.spec.clone();
        self.begin_start(tasks::configure(self.fanout(generation), self.agents(|_| true), spec, members));
    }

    async fn launch(&mut self, generation: Generation) -> Next {
        if self.replicas.values().any(|replica| replica.is_seed_only) && self.remember(generation).await == Next::End {
            return Next::End;
        }
        let waiting = self.agents(|phase| !phase.was_launched());
        self.begin_start(tasks::launch(self.fanout(generation), waiting));
        Next::GoOn
    }

    /// Writes down that a start is about to be made, for a master that takes over and has nobody to ask.
    async fn remember(&mut self, generation: Generation) -> Next {
        self.write(|record| {
            if record.launched == Some(generation) {
                return Change::Nothing;
            }
            record.launched = Some(generation);
            Change::Write
        })
        .await
    }

    /// Changes the record, if it is still this master's: what another master holds by now is not this one's to change.
    async fn write(&mut self, change: impl Fn(&mut JobRecord) -> Change) -> Next {
        let (uid, epoch) = (self.stored.record.uid.clone(), self.stored.record.epoch);
        let is_held = |record: &JobRecord| record.uid == uid && record.epoch == epoch;
        let while_held = |record: &mut JobRecord| if is_held(record) { change(record) } else { Change::Nothing };
        let (store, job) = (self.context.store.as_ref(), self.stored.name());
        match persistently(|| amend(store, job, while_held)).await {
            Some(stored) if is_held(&stored.record) => self.stored = stored,
            Some(_) => return Next::End,
            // Deleted by someone else, or not to be written: the pods go all the same.
            None => {}
        }
        Next::GoOn
    }

    fn fanout(&self, generation: Generation) -> tasks::Fanout {
        tasks::Fanout { agents: self.agents.clone(), generation, reporter: self.reporter.clone() }
    }

    /// Goes on with the start; [`Self::call_start_back`] takes it back.
    fn begin_start(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.start = Some(AbortOnDropHandle::new(tokio::spawn(work)));
    }

    /// Follows whatever has, or may have, a run and is not followed yet.
    fn follow(&mut self) {
        let generation = self.phase.generation();
        for (id, replica) in &mut self.replicas {
            let may_run = ReplicaPhase::of(&replica.seen, generation).was_configured();
            let is_followed = matches!(replica.listener, Listener::OfRun { .. });
            let Some(addresses) = replica.seen.addresses() else { continue };
            if !may_run || is_followed || replica.is_seed_only {
                continue;
            }
            let listen = tasks::follow(self.agents.clone(), *id, addresses.agent, self.reporter.clone());
            replica.listener = Listener::OfRun { _task: AbortOnDropHandle::new(tokio::spawn(listen)) };
            if let Some(log) = self.wires.logs.of(*id) {
                let copy = tasks::copy_output(self.agents.clone(), addresses.agent, log.clone());
                replica.copy = Some(AbortOnDropHandle::new(tokio::spawn(copy)));
            }
        }
    }

    /// A start that is still on its way is called back first: its agents refuse it once they were told to stop.
    async fn stop_runs(&mut self, grace: Duration) {
        self.call_start_back().await;
        let generation = self.phase.generation();
        let mut targets = self.agents(|phase| phase.was_configured() && !phase.is_dead());
        targets.retain(|(id, _)| {
            let replica = self.replicas.get_mut(id);
            replica.is_some_and(|replica| !mem::replace(&mut replica.is_stopped, true))
        });
        // Each change while a job ends asks for this again, and mostly all were told.
        if targets.is_empty() {
            return;
        }
        let (agents, context, job) = (self.agents.clone(), Arc::clone(&self.context), self.stored.key());
        self.tasks.spawn(async move {
            let stop = async |(id, agent): (ReplicaId, SocketAddr)| {
                if let Err(error) = tasks::stop(&agents, agent, generation, grace).await {
                    warn!(job = %job.name, replica = %id, error = error_chain(&error), "its agent does not stop it, so its pod goes");
                    tasks::delete(context.backend.as_ref(), &job, id, grace).await;
                }
            };
            stream::iter(targets).for_each_concurrent(tasks::AGENTS_AT_ONCE, stop).await;
        });
    }

    /// The result must be on record before the evidence goes with the pods, so nothing else happens meanwhile.
    async fn conclude(&mut self, result: JobResult) -> Next {
        let generation = self.wires.view.borrow().generation;
        let replicas = self.replica_views();
        let ended = Ended { result, times: self.times.clone(), generation, replicas }.bounded();
        self.write(|record| {
            if record.ended.is_some() {
                return Change::Nothing;
            }
            record.ended = Some(ended.clone());
            Change::Write
        })
        .await
    }

    async fn release_pods(&mut self) {
        self.call_start_back().await;
        for (id, replica) in &mut self.replicas {
            if !replica.seen.is_live() || mem::replace(&mut replica.is_released, true) {
                continue;
            }
            let (id, seen) = (*id, &replica.seen);
            let (agents, context, job) = (self.agents.clone(), Arc::clone(&self.context), self.stored.key());
            // The output of a run that was never started has no end to wait for.
            let was_launched = ReplicaPhase::of(seen, None).was_launched();
            let copy = replica.copy.take().filter(|_| was_launched);
            let agent = match (&seen.agent, seen.addresses()) {
                (AgentState::Silent | AgentState::SeedOnly | AgentState::Refused(_), _) | (_, None) => None,
                (AgentState::Status(_) | AgentState::Configured(_) | AgentState::Started(_), Some(a)) => Some(a.agent),
            };
            self.tasks.spawn(async move {
                let has_finished = match agent {
                    Some(agent) => tasks::finish(&agents, agent, copy).await,
                    None => false,
                };
                if !has_finished {
                    tasks::delete(context.backend.as_ref(), &job, id, Duration::ZERO).await;
                }
            });
        }
    }

    /// Pods that have ended stay: they hold what `kubectl logs` shows.
    async fn delete_live_pods(&mut self) {
        self.call_start_back().await;
        let (backend, job) = (self.context.backend.as_ref(), &self.stored.key());
        let live = self.replicas.iter().filter(|(_, replica)| replica.seen.is_live());
        let live: Vec<ReplicaId> = live.map(|(id, _)| *id).collect();
        let delete = |id: ReplicaId| tasks::delete(backend, job, id, Duration::ZERO);
        stream::iter(live).for_each_concurrent(PODS_AT_ONCE, delete).await;
    }

    /// Nothing of the job is to be left.
    pub(super) async fn delete_all_pods(&mut self) {
        self.call_start_back().await;
        tasks::delete_all(self.context.backend.as_ref(), &self.stored.key(), Duration::ZERO).await;
    }

    /// Removes all that is left of a job whose user wishes it gone. The record goes last, for it is what a master that
    /// dies in here leaves to the next.
    pub(super) async fn forget(&mut self) -> Next {
        self.take_pods();
        if self.replicas.values().any(|replica| replica.seen.pod.is_some()) {
            self.delete_all_pods().await;
            return Next::GoOn;
        }
        if let Err(error) = self.wires.logs.remove() {
            warn!(job = %self.stored.name(), %error, "its kept output stays behind");
        }
        let (store, name, uid) = (self.context.store.as_ref(), self.stored.name(), &self.stored.record.uid);
        persistently(|| store.delete(name, uid)).await;
        info!(job = %name, "job forgotten");
        Next::End
    }

    /// Returns when it does nothing any more. A pod that it asked for may still come: it goes with the record.
    async fn call_start_back(&mut self) {
        if let Some(start) = self.start.take() {
            start.abort();
            // How it ended does not matter: what it did is seen.
            let _ = start.await;
        }
    }

    /// The agents of the replicas whose phase passes `test`.
    fn agents(&self, test: impl Fn(&ReplicaPhase) -> bool) -> Vec<(ReplicaId, SocketAddr)> {
        let current = self.phase.generation();
        let chosen = self.replicas.iter().filter(|(_, replica)| test(&ReplicaPhase::of(&replica.seen, current)));
        chosen.filter_map(|(id, replica)| Some((*id, replica.seen.addresses()?.agent))).collect()
    }
}
