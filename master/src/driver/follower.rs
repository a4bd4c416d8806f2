//! One task for each pod that has an address. The task long-polls the agent's status, reports each change to the
//! driver, and copies the output. If the agent is unreachable, the task retries until the pod has ended or the agent's
//! lease has lapsed.

mod copying;
mod leased;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder, Retryable};
use futures_util::future::join_all;
use job::observation::AgentState;
use protocol::agent::{RunState, RunStatus};
use protocol::ids::Generation;
use protocol::lease::{ClockMillis, Lease, Renewal, Vigil};
use protocol::warm::WarmRequest;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::context::{Common, Kept};
use super::delivery::Delivery;
use super::reports::{Report, Subject};
use super::retry::{is_unreachable, patience};
use super::tasks::{COPY_TIMEOUT, spawn, state_of};
use crate::agents::client::{AgentAnswer, AgentError, POLL_WAIT_MAX, Poll};
use crate::error_chain::error_chain;
use crate::host::clock::wall_clock;
use crate::logs::ReplicaLog;

/// Maximum pause between two polls of an agent that has no run.
const REST_MAX: Duration = Duration::from_secs(10);

/// Follows one pod. Dropping the follower aborts its task, so that no request reaches a later pod at the same address.
pub(super) struct Follower {
    address: SocketAddr,
    copied: watch::Receiver<Copied>,
    heard: watch::Receiver<Option<ClockMillis>>,
    lease: Option<Lease>,
    watched: watch::Sender<Option<Generation>>,
    pod_ended: CancellationToken,
    _task: AbortOnDropHandle<()>,
}

/// What a follower needs: the pod, and where the pod's states and output are sent.
pub(super) struct Followed {
    pub(super) common: Common,
    pub(super) subject: Subject,
    /// The number of the replica's processes.
    pub(super) processes: u32,
    pub(super) address: SocketAddr,
    pub(super) log: ReplicaLog,
    /// The stores for the script's reports and steps.
    pub(super) kept: Kept,
    /// The request for a warm interpreter, if the job is to have one.
    pub(super) warm: Option<WarmRequest>,
    /// The current delivery of the code that the job brings, if any.
    pub(super) delivery: watch::Receiver<Option<Arc<Delivery>>>,
    /// How long the agent may be silent; `None` if there is no limit.
    pub(super) lease: Option<Lease>,
    /// Whether an earlier master may have asked the agent to start the script.
    pub(super) is_found: bool,
    /// How often to pass the script's reports to the driver, if the job's batch sizes follow them.
    pub(super) balance_every: Option<Duration>,
}

/// The progress of copying output, by run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Copied {
    /// The newest run that the agent has started.
    started: Option<Generation>,
    /// The newest run whose output is copied as far as possible.
    complete: Option<Generation>,
    /// Whether no further run will be reported.
    is_last: bool,
    /// Whether the last write to the file failed.
    is_stuck: bool,
}

impl Follower {
    pub(super) fn begin(followed: Followed) -> Self {
        let (news, copied) = watch::channel(Copied::default());
        let (address, lease, pod_ended) = (followed.address, followed.lease, CancellationToken::new());
        let (reporter, watched) = (followed.common.reporter.clone(), watch::Sender::new(None));
        let (answers, heard) = watch::channel(None);
        let (began, ended) = (Instant::now(), pod_ended.clone());
        let pod = Pod { followed, news, answers, watched: watched.subscribe(), ended, began };
        let work = async move {
            tokio::join!(pod.report_changes(), pod.copy_output(), pod.warm_up());
        };
        let _task = spawn(&reporter, work);
        Self { address, copied, heard, lease, watched, pod_ended, _task }
    }

    pub(super) fn is_at(&self, address: SocketAddr) -> bool {
        self.address == address
    }

    /// The renewal of the agent's lease, to send with a request. `None` without a lease, or if the agent's clock
    /// is unknown.
    pub(super) fn renewal(&self) -> Option<Renewal> {
        Some(Renewal { fence: self.lease?.fence(), heard: (*self.heard.borrow())? })
    }

    /// Begins to poll the agent for this start. The driver calls this function when the gang runs or is being stopped.
    /// At other times, the answers to the driver's own requests are enough.
    pub(super) fn watch_run(&self, start: Option<Generation>) {
        self.watched.send_if_modified(|watched| {
            let is_newer = start > *watched;
            *watched = start.max(*watched);
            is_newer
        });
    }

    /// Notifies the task that the pod has ended. The task still copies the remaining output, and ends if the agent is
    /// unreachable.
    pub(super) fn pod_has_ended(&self) {
        self.pod_ended.cancel();
    }

    /// Resolves when all output of the reported runs is copied, or when no more output can be copied.
    pub(super) fn caught_up(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut copied = self.copied.clone();
        async move {
            // An error means that the task has ended.
            let _ = copied.wait_for(|copied| copied.is_stuck || copied.complete >= copied.started).await;
        }
    }
}

/// Waits for copies in progress, but not longer than [`COPY_TIMEOUT`]. Then drops the followers.
pub(super) async fn await_copies(followers: Vec<Follower>) {
    let all = join_all(followers.iter().map(Follower::caught_up));
    if timeout(COPY_TIMEOUT, all).await.is_err() {
        warn!("the rest of a job's output took too long to copy");
    }
}

/// The data of a [`Follower`]'s task.
struct Pod {
    followed: Followed,
    news: watch::Sender<Copied>,
    answers: watch::Sender<Option<ClockMillis>>,
    /// The newest start for which [`Follower::watch_run`] was called.
    watched: watch::Receiver<Option<Generation>>,
    ended: CancellationToken,
    /// When this task began. The task measures all times from here.
    began: Instant,
}

impl Pod {
    /// Reports the agent's status at each change, and notes when no further status will follow.
    async fn report_changes(&self) {
        let mut heard: Option<Box<RunStatus>> = None;
        let mut vigil = self.first_vigil();
        while let Some(state) = self.next_state(heard.as_deref(), &mut vigil).await {
            let is_first = heard.is_none();
            let Some(state) = self.with_code(is_first, state, vigil.is_some()).await else { break };
            let is_last = match &state {
                AgentState::Status(status) => {
                    self.note_started(status);
                    heard = Some(status.clone());
                    false
                }
                AgentState::Silent
                | AgentState::SeedOnly
                | AgentState::Configured(_)
                | AgentState::Started(_)
                | AgentState::Unreachable { .. }
                | AgentState::Failed(_) => true,
            };
            let is_unreachable = matches!(state, AgentState::Unreachable { .. });
            self.followed.common.report(Report::Agent(self.followed.subject, state)).await;
            if let (true, Some(vigil)) = (is_unreachable, &mut vigil) {
                self.await_fence(vigil).await;
            }
            if is_last {
                break;
            }
        }
        let Followed { kept, subject, .. } = &self.followed;
        kept.series.forget_usage(subject.id);
        self.news.send_modify(|copied| copied.is_last = true);
    }

    /// Returns the state to report to the driver. If `state` is from the agent's first answer, first sends the code.
    /// If a push replaces the code meanwhile, sends the new code. Returns `None` if the pod has ended.
    async fn with_code(&self, is_first: bool, state: AgentState, has_lease: bool) -> Option<AgentState> {
        let mut current = self.followed.delivery.clone();
        loop {
            let Some(delivery) = current.borrow_and_update().clone().filter(|_| is_first) else { return Some(state) };
            tokio::select! {
                biased;
                complete = self.with_code_of(&delivery, &state, has_lease) => return complete,
                () = self.ended.cancelled() => return None,
                Ok(()) = current.changed() => {}
            }
        }
    }

    /// Sends the code, and retries until the pod has ended. If the agent has a lease, retries only for the length of the
    /// lease, and then returns `Unreachable`.
    async fn with_code_of(&self, delivery: &Delivery, state: &AgentState, has_lease: bool) -> Option<AgentState> {
        let Followed { subject, address, lease, .. } = &self.followed;
        let complete = async || delivery.complete(*address, *subject, state.clone()).await.ok_or(());
        let pauses = persistent().with_total_delay(lease.filter(|_| has_lease).map(Lease::length));
        let complete = complete.retry(pauses).when(|()| !self.ended.is_cancelled()).await;
        complete.ok().or_else(|| self.unreachable(false).filter(|_| !self.ended.is_cancelled()))
    }

    /// After the agent's first answer, asks for a warm interpreter, which imports modules while the gang gathers. A
    /// refusal is harmless: the agent can also start a run without a warm interpreter.
    async fn warm_up(&self) {
        let Followed { common: Common { agents, .. }, address, warm: Some(request), .. } = &self.followed else {
            return;
        };
        let mut answers = self.answers.subscribe();
        if answers.wait_for(Option::is_some).await.is_ok()
            && let Err(error) = agents.warm(*address, request).await
        {
            info!(agent = %address, error = error_chain(&error), "the agent keeps no warm interpreter");
        }
    }

    /// Waits for a change of the agent's state. `None` if no change will follow.
    async fn next_state(&self, heard: Option<&RunStatus>, vigil: &mut Option<Vigil>) -> Option<AgentState> {
        loop {
            if vigil.is_none() {
                self.until_it_may_change(heard).await;
            }
            let Some(answer) = self.within_lease(vigil, self.ask(heard)).await else {
                return self.unreachable(false);
            };
            let answer = match answer {
                Err(AgentError::Unreachable { .. }) => return None,
                Ok(AgentAnswer::Status(mut status)) => {
                    self.note_answer(&mut status, vigil);
                    let Followed { kept, subject, .. } = &self.followed;
                    kept.series.note(subject.id, &status, wall_clock());
                    self.note_step(&status);
                    self.pass_progress(&status).await;
                    // The long poll has timed out, or only the script's progress has changed. The lines above have
                    // handled the progress, so the driver needs no new state.
                    if heard.is_some_and(|heard| !status.is_news_after(heard)) {
                        continue;
                    }
                    Ok(AgentAnswer::Status(status))
                }
                answer => answer,
            };
            let state = state_of(answer, heard, self.followed.processes);
            // After the end of the pod or of its run, a refusal adds nothing to the last report.
            let is_known = self.ended.is_cancelled() || heard.is_some_and(|heard| heard.exit.is_some());
            let is_refusal = matches!(state, AgentState::Failed(_));
            return if is_refusal && is_known { None } else { Some(state) };
        }
    }

    fn note_step(&self, status: &RunStatus) {
        let Followed { common, kept, subject, .. } = &self.followed;
        let step = status.helper.as_ref().and_then(|progress| progress.step);
        if let (true, Some(generation), Some(step)) = (subject.id.role.trains(), status.generation, step) {
            kept.timeline.step(generation, step, common.context.store.now());
        }
    }

    async fn pass_progress(&self, status: &RunStatus) {
        let Followed { common, subject, balance_every: Some(_), .. } = &self.followed else { return };
        if let (Some(progress), Some(generation), None) = (&status.helper, status.generation, &status.exit) {
            common.report(Report::Progress(*subject, generation, Box::new(progress.clone()))).await;
        }
    }

    /// Waits while the agent's status can change only after a request of the driver. Polls that only confirm these
    /// requests would slow down the start of a large gang. The wait is limited, because the previous master may still
    /// start a run during a takeover.
    async fn until_it_may_change(&self, heard: Option<&RunStatus>) {
        let Some(RunStatus { state, generation, .. }) = heard else { return };
        let may_change = |start: &Option<Generation>| match state {
            RunState::Idle => start.is_some(),
            RunState::Configured => start >= generation,
            RunState::Running | RunState::Stopping => true,
            RunState::Exited => start > generation,
        };
        // A timeout and a dropped sender both mean that it is time to ask.
        let _ = timeout(REST_MAX, self.watched.clone().wait_for(may_change)).await;
    }

    /// Asks for the agent's status. Retries an unreachable agent until its pod has ended. If the agent has a lease, the
    /// caller drops this future when the lease lapses.
    async fn ask(&self, heard: Option<&RunStatus>) -> Result<AgentAnswer, AgentError> {
        let Followed { common: Common { agents, .. }, address, kept, .. } = &self.followed;
        let is_worth_it = |error: &AgentError| is_unreachable(error) && !self.ended.is_cancelled();
        let runs = |heard: &RunStatus| matches!(heard.state, RunState::Running | RunState::Stopping);
        let interval = || self.followed.balance_every.unwrap_or_else(|| kept.series.interval());
        let wait = if heard.is_some_and(runs) { interval() } else { POLL_WAIT_MAX };
        if let Some(leased) = heard.and_then(|heard| self.leased(heard)) {
            return leased.ask(self, wait, is_worth_it).await;
        }
        let ask =
            async || agents.status(*address, heard.map(|heard| Poll { after: heard.seq, wait, lease: None })).await;
        if heard.is_some() {
            return ask.retry(persistent()).when(is_worth_it).await;
        }
        let asked = agents.asked();
        let pauses = persistent().with_max_delay(REST_MAX).build().map(|pause| asked.limit(pause));
        ask.retry(pauses).when(is_worth_it).await
    }

    fn note_started(&self, status: &RunStatus) {
        let has_started = match status.state {
            RunState::Running | RunState::Stopping | RunState::Exited => true,
            RunState::Idle | RunState::Configured => false,
        };
        if has_started {
            self.news.send_modify(|copied| copied.started = copied.started.max(status.generation));
        }
    }
}

fn persistent() -> ExponentialBuilder {
    patience().without_max_times()
}
