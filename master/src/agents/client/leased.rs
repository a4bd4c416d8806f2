//! The calls that can renew an agent's lease: the configuration for a start, and polls of the status.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use protocol::agent::Membership;
use protocol::code::CodeId;
use protocol::ids::Generation;
use protocol::lease::{ClockMillis, Lease, Renewal};
use protocol::routes;

use super::{AgentAnswer, AgentClient, AgentError, CALL_TIMEOUT, get, post};

/// A long poll of an agent with a lease.
#[derive(Debug, Clone, Copy)]
pub struct LeasePoll {
    /// The agent's lease.
    pub lease: Lease,
    /// The number of the newest known status.
    pub after: u64,
    /// Maximum wait for a newer status.
    pub wait: Duration,
    /// The agent's clock time, as received in the agent's newest answer.
    pub heard: ClockMillis,
}

/// The parameters of `POST /config`: one agent's part in a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartOfStart {
    /// The number of the start.
    pub generation: Generation,
    /// The replica's membership.
    pub membership: Membership,
    /// The code that the run uses, if the job brings its code.
    pub code: Option<CodeId>,
    /// The renewal of the agent's lease, if the job has leases.
    pub renewal: Option<Renewal>,
}

impl AgentClient {
    /// `POST /config` with a JSON object.
    pub async fn configure(&self, agent: SocketAddr, part: PartOfStart, body: Bytes) -> Result<(), AgentError> {
        let PartOfStart { generation, membership, code, renewal: of_lease } = part;
        let Membership { seat, of, start, pushes } = membership;
        let pushes = if pushes == 0 { String::new() } else { format!("&pushes={pushes}") };
        let code = code.map(|id| format!("&code={id}")).unwrap_or_default();
        let further = pushes + &code + &renewal(of_lease);
        let path =
            format!("{}?generation={generation}&seat={seat}&of={of}&start={start}{further}", routes::AGENT_CONFIG);
        self.call(post(agent, &path, body), CALL_TIMEOUT).await.map(drop)
    }

    /// `GET /status` of an agent with a lease. The agent answers when its status changes, or after `wait`, which may be
    /// 0.
    pub async fn poll(&self, agent: SocketAddr, poll: LeasePoll) -> Result<AgentAnswer, AgentError> {
        let LeasePoll { lease, after, wait, heard } = poll;
        let renewal = renewal(Some(Renewal { fence: lease.fence(), heard }));
        let path = format!("{}?after={after}&wait_ms={}{renewal}", routes::AGENT_STATUS, wait.as_millis());
        self.status_of(get(agent, &path), wait + lease.answer()).await
    }
}

fn renewal(renewal: Option<Renewal>) -> String {
    let parameters = |Renewal { fence, heard: ClockMillis(heard) }| {
        format!("&fence_ms={}&heard_ms={heard}", Duration::as_millis(&fence))
    };
    renewal.map(parameters).unwrap_or_default()
}
