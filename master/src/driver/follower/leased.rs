//! Polls an agent so often that its lease does not lapse, and finds out when the lease has lapsed. See
//! [`protocol::lease`].

use std::pin::pin;
use std::time::Duration;

use backon::Retryable;
use job::observation::{AgentState, LostRun};
use protocol::agent::RunStatus;
use protocol::lease::{ClockMillis, Lease, Standing, Vigil};
use tokio::time::sleep;

use super::{Followed, Pod, persistent};
use crate::agents::client::{AgentAnswer, AgentError, Poll};
use crate::driver::context::Common;
use crate::driver::reports::Report;

/// A poll of an agent with a lease.
pub(super) struct Leased {
    lease: Lease,
    /// The `seq` of the newest status that this task has received.
    after: u64,
    /// The time of the agent's clock in the agent's newest answer.
    heard: ClockMillis,
}

impl Leased {
    /// Asks for news, and waits for at most `longest`. If no answer arrives, asks again at once on another connection.
    /// The agent answers these further requests without waiting for news.
    pub(super) async fn ask(
        self,
        pod: &Pod,
        longest: Duration,
        is_worth_it: impl Fn(&AgentError) -> bool,
    ) -> Result<AgentAnswer, AgentError> {
        let (Self { lease, after, heard }, Followed { common: Common { agents, .. }, address, .. }) =
            (self, &pod.followed);
        let poll = async |wait: Duration| {
            agents.status(*address, Some(Poll { after, wait, lease: Some((lease, heard)) })).await
        };
        match poll(lease.poll().min(longest)).await {
            Err(error) if is_worth_it(&error) => {}
            answer => return answer,
        }
        let again = async || poll(Duration::ZERO).await;
        again.retry(persistent().with_max_delay(lease.tick())).when(is_worth_it).await
    }
}

impl Pod {
    /// The [`Vigil`] until the agent's first answer. `None` for a pod that this master has created: the agent of a new
    /// pod may be silent for long. In a pod that an earlier master may have created, a run may be alive.
    pub(super) fn first_vigil(&self) -> Option<Vigil> {
        let Followed { lease, is_found, .. } = self.followed;
        if is_found { lease.map(|lease| Vigil::new(lease, self.now())) } else { None }
    }

    /// The next poll after this answer, if the agent has a lease.
    pub(super) fn leased(&self, heard: &RunStatus) -> Option<Leased> {
        Some(Leased { lease: self.followed.lease?, after: heard.seq, heard: (*self.answers.borrow())? })
    }

    /// Notes an answer. Removes the clock from the status, because a change of the clock alone is no news.
    pub(super) fn note_answer(&self, status: &mut RunStatus, vigil: &mut Option<Vigil>) {
        let clock = status.clock_ms.take();
        *vigil = self.followed.lease.filter(|_| clock.is_some()).map(|lease| Vigil::new(lease, self.now()));
        self.answers.send_replace(clock);
    }

    /// Waits for an answer while the lease holds. `None` if the lease has lapsed.
    pub(super) async fn within_lease<T>(
        &self,
        vigil: &mut Option<Vigil>,
        answer: impl Future<Output = T>,
    ) -> Option<T> {
        let Some(vigil) = vigil else { return Some(answer.await) };
        let mut answer = pin!(answer);
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return Some(answer),
                () = sleep(vigil.tick()) => if vigil.look(self.now()) > Standing::Held {
                    return None;
                },
            }
        }
    }

    /// Waits until the agent's fence must have killed the run. Then reports that the agent is fenced.
    pub(super) async fn await_fence(&self, vigil: &mut Vigil) {
        while vigil.look(self.now()) < Standing::Fenced {
            sleep(vigil.tick()).await;
        }
        if let Some(fenced) = self.unreachable(true) {
            self.followed.common.report(Report::Agent(self.followed.subject, fenced)).await;
        }
    }

    /// The state of an agent whose lease has lapsed.
    pub(super) fn unreachable(&self, is_fenced: bool) -> Option<AgentState> {
        let seconds = self.followed.lease?.length().as_secs();
        let lost = LostRun::disrupted(format!("its agent did not answer for {seconds} s"));
        Some(AgentState::Unreachable { lost, is_fenced })
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}
