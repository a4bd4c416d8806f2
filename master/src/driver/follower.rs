//! One task for each pod, from its agent's first answer to the pod's end. It long-polls the agent's status, reports
//! each change to the driver, and copies the output. It retries an unreachable agent until the pod has ended.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use protocol::agent::{RunState, RunStatus};
use protocol::ids::Generation;
use protocol::warm::WarmRequest;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::Report;
use super::delivery::Delivery;
use super::subject::Subject;
use super::tasks::{COPY_TIMEOUT, is_unreachable, patience, report, spawn, state_of};
use crate::agent_client::{AgentAnswer, AgentClient, AgentError, POLL_WAIT_MAX, Poll};
use crate::error_chain::error_chain;
use crate::job::observation::AgentState;
use crate::logs::ReplicaLog;
use crate::series::SeriesOfJob;
use crate::store::wall_clock;

/// Maximum pause, without jitter, before a silent agent is asked again. The whole gang waits for the last agent.
const JOIN_DELAY_MAX: Duration = Duration::from_millis(200);

/// Maximum time between two requests to an agent that has no run.
const REST_MAX: Duration = Duration::from_secs(10);

/// Follows one pod. Dropping the follower aborts its task, so that no request reaches a later pod at the same address.
pub(super) struct Follower {
    address: SocketAddr,
    copied: watch::Receiver<Copied>,
    watched: watch::Sender<bool>,
    pod_ended: CancellationToken,
    _task: AbortOnDropHandle<()>,
}

/// The pod to follow, and the receiver of its reports.
pub(super) struct Followed {
    pub(super) agents: AgentClient,
    pub(super) subject: Subject,
    pub(super) address: SocketAddr,
    pub(super) log: ReplicaLog,
    /// Where to keep what the script reports.
    pub(super) series: Arc<SeriesOfJob>,
    pub(super) reporter: mpsc::Sender<Report>,
    /// The request for a warm interpreter, if the job is to have one.
    pub(super) warm: Option<WarmRequest>,
    /// The job's code, if it brings it.
    pub(super) delivery: Option<Arc<Delivery>>,
}

/// The progress of the copy, in runs.
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
    /// Begins to follow a pod.
    pub(super) fn begin(followed: Followed) -> Self {
        let (news, copied) = watch::channel(Copied::default());
        let (address, pod_ended) = (followed.address, CancellationToken::new());
        let (reporter, watched) = (followed.reporter.clone(), watch::Sender::new(false));
        let pod = Pod { followed, news, watched: watched.subscribe(), ended: pod_ended.clone() };
        let work = async move {
            tokio::join!(pod.report_changes(), pod.copy_output());
        };
        let _task = spawn(&reporter, work);
        Self { address, copied, watched, pod_ended, _task }
    }

    /// Whether this follower follows the agent at this address.
    pub(super) fn is_at(&self, address: SocketAddr) -> bool {
        self.address == address
    }

    /// Sets whether the agent's status may change by itself from now on, because the gang runs or is being stopped.
    /// Before that, the answers to the driver's own requests are enough.
    pub(super) fn watch_run(&self, may_change: bool) {
        self.watched.send_replace(may_change);
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

/// Waits for copies in progress, then drops the followers.
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
    watched: watch::Receiver<bool>,
    ended: CancellationToken,
}

/// Whether a stream brought any bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progressed {
    Yes,
    No,
}

/// Why a copy stopped.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("keep the output")]
    File(#[source] io::Error),
    /// The agent ended the stream without sending any bytes, although the run continues.
    #[error("the agent sends no output while its run goes on")]
    NoStream,
}

impl Pod {
    /// Reports the agent's status at each change, and notes when no further status will follow.
    async fn report_changes(&self) {
        let mut heard: Option<Box<RunStatus>> = None;
        while let Some(state) = self.next_state(heard.as_deref()).await {
            let is_first = heard.is_none();
            let Some(state) = self.with_code(is_first, state).await else { break };
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
                | AgentState::Failed(_) => true,
            };
            report(&self.followed.reporter, self.followed.subject, state).await;
            if is_last {
                break;
            }
            if is_first {
                self.warm_up(heard.as_deref()).await;
            }
        }
        self.news.send_modify(|copied| copied.is_last = true);
    }

    /// Brings the code after the agent's first answer, before the driver hears of that answer. Retries while the pod
    /// lives. `None` if it has ended.
    async fn with_code(&self, is_first: bool, state: AgentState) -> Option<AgentState> {
        let Followed { delivery, address, .. } = &self.followed;
        let Some(delivery) = delivery.as_ref().filter(|_| is_first) else { return Some(state) };
        let complete = async || delivery.complete(*address, state.clone()).await.ok_or(());
        complete.retry(persistent()).when(|()| !self.ended.is_cancelled()).await.ok()
    }

    /// Asks for a warm interpreter after the agent's first answer, so that it imports modules while the gang gathers.
    /// Nothing depends on the answer: the agent starts runs without one too.
    async fn warm_up(&self, heard: Option<&RunStatus>) {
        let Followed { agents, address, warm, .. } = &self.followed;
        if let (Some(request), true) = (warm, heard.is_some_and(|heard| heard.features.warm))
            && let Err(error) = agents.warm(*address, request).await
        {
            info!(agent = %address, error = error_chain(&error), "the agent keeps no warm interpreter");
        }
    }

    /// Waits for a change of the agent's state. `None` if no change will follow.
    async fn next_state(&self, heard: Option<&RunStatus>) -> Option<AgentState> {
        loop {
            self.until_it_may_change(heard).await;
            let answer = match self.ask(heard).await {
                Err(AgentError::Unreachable { .. }) => return None,
                Ok(AgentAnswer::Status(status)) => {
                    let Followed { series, subject, .. } = &self.followed;
                    series.note(subject.id, &status, wall_clock());
                    // The long poll timed out. The driver needs no news about progress.
                    if heard.is_some_and(|heard| !status.is_news_after(heard)) {
                        continue;
                    }
                    Ok(AgentAnswer::Status(status))
                }
                answer => answer,
            };
            let state = state_of(answer, heard);
            // After the end of the pod or of its run, a refusal adds nothing to the last report.
            let is_known = self.ended.is_cancelled() || heard.is_some_and(|heard| heard.exit.is_some());
            let is_refusal = matches!(state, AgentState::Failed(_));
            return Some(state).filter(|_| !(is_refusal && is_known));
        }
    }

    /// Waits while the gang does not run and the agent's last answer reported no run. Polls that only confirm the
    /// driver's own requests would slow down the start of a large gang. The wait is limited, because a master that is
    /// being replaced may still start a run.
    async fn until_it_may_change(&self, heard: Option<&RunStatus>) {
        let is_at_rest = heard.is_some_and(|heard| matches!(heard.state, RunState::Idle | RunState::Configured));
        if is_at_rest {
            // A timeout and a dropped sender both mean that it is time to ask.
            let _ = timeout(REST_MAX, self.watched.clone().wait_for(|may_change| *may_change)).await;
        }
    }

    /// Asks for the agent's status. Retries an unreachable agent until its pod has ended, because only the pod's state
    /// proves that the agent is dead.
    async fn ask(&self, heard: Option<&RunStatus>) -> Result<AgentAnswer, AgentError> {
        let Followed { agents, address, series, .. } = &self.followed;
        let reports = |heard: &RunStatus| heard.helper.is_some() && heard.exit.is_none();
        let wait = if heard.is_some_and(reports) { series.interval() } else { POLL_WAIT_MAX };
        let ask = async || agents.status(*address, heard.map(|heard| Poll { after: heard.seq, wait })).await;
        let pauses = match heard {
            None => persistent().with_max_delay(JOIN_DELAY_MAX),
            Some(_) => persistent(),
        };
        ask.retry(pauses).when(|error| is_unreachable(error) && !self.ended.is_cancelled()).await
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

    /// Copies the output of each run while it is written.
    async fn copy_output(&self) {
        let mut news = self.news.subscribe();
        let is_due = |copied: &Copied| copied.started > copied.complete;
        while news.wait_for(|copied| is_due(copied) || copied.is_last).await.is_ok_and(|copied| is_due(&copied)) {
            let started = news.borrow().started;
            // If the agent has no run or is dead, there is nothing more to copy.
            let complete = self.copy_run().await.flatten().max(started);
            self.news.send_modify(|copied| copied.complete = complete);
        }
    }

    /// Copies until a run has ended and its output is complete; returns that run, or `Some(None)` if the agent has no
    /// run. `None` if the rest of the output is lost.
    async fn copy_run(&self) -> Option<Option<Generation>> {
        let Followed { address, log, .. } = &self.followed;
        loop {
            let before = log.progress().end;
            let attempt = async || self.copy_rest().await;
            // The pauses grow while no byte arrives.
            let is_worth_it = |_: &CopyError| !self.ended.is_cancelled() && log.progress().end == before;
            let mut has_told = false;
            let tell = |error: &CopyError, _| {
                if !std::mem::replace(&mut has_told, true) {
                    info!(agent = %address, error = error_chain(error), "copying output was interrupted; retrying");
                }
            };
            match attempt.retry(persistent()).when(is_worth_it).notify(tell).await {
                Ok(run) => return Some(run),
                Err(_) if log.progress().end > before => {}
                Err(error) => {
                    warn!(agent = %address, error = error_chain(&error), "the rest of a run's output is lost");
                    return None;
                }
            }
        }
    }

    /// Copies the missing output. The end of a stream does not mean the end of the output, because an agent also ends
    /// the stream of a slow reader. After the run's end, this opens streams until one brings no new bytes.
    async fn copy_rest(&self) -> Result<Option<Generation>, CopyError> {
        let Followed { agents, address, log, .. } = &self.followed;
        loop {
            let AgentAnswer::Status(status) = agents.status(*address, None).await? else { return Ok(None) };
            let base = self.kept(log.base_of(&status.boot_id).await)?;
            let has_ended = matches!(status.state, RunState::Exited | RunState::Idle);
            let mut progressed = self.copy_stream(base).await?;
            while has_ended && progressed == Progressed::Yes {
                progressed = self.copy_stream(base).await?;
            }
            if has_ended {
                return Ok(status.generation);
            }
            if progressed == Progressed::No {
                return Err(CopyError::NoStream);
            }
        }
    }

    /// Copies from the end of the kept output until the agent ends the stream. The agent counts its bytes from 0; the
    /// file counts them from `base`.
    async fn copy_stream(&self, base: u64) -> Result<Progressed, CopyError> {
        let Followed { agents, address, log, .. } = &self.followed;
        let before = log.progress().end;
        let mut stream = agents.logs(*address, before.saturating_sub(base)).await?;
        let mut offset = stream.offset + base;
        if offset > before {
            // The agent no longer has the bytes in between. Record the gap now, because no other bytes may follow.
            self.kept(log.append(offset, Bytes::new()).await)?;
        }
        while let Some(bytes) = stream.bytes.next().await {
            let bytes = bytes?;
            let length = bytes.len() as u64;
            self.kept(log.append(offset, bytes).await)?;
            offset += length;
        }
        Ok(if log.progress().end > before { Progressed::Yes } else { Progressed::No })
    }

    /// Notes whether the file accepts output, for its readers and for tasks that wait for the copy.
    fn kept<T>(&self, done: io::Result<T>) -> Result<T, CopyError> {
        let log = &self.followed.log;
        let is_stuck = done.is_err();
        match &done {
            Ok(_) => log.note_kept(),
            Err(error) => log.note_missing(error),
        }
        self.news.send_if_modified(|copied| std::mem::replace(&mut copied.is_stuck, is_stuck) != is_stuck);
        done.map_err(CopyError::File)
    }
}

fn persistent() -> ExponentialBuilder {
    patience().without_max_times()
}
