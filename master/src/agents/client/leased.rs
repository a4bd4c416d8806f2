//! The calls that can renew an agent's lease: the configuration for a start, and polls of the status.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use protocol::agent::Membership;
use protocol::code::CodeId;
use protocol::ids::Generation;
use protocol::lease::{ClockMillis, Renewal};
use protocol::routes;

use super::{AgentClient, AgentError, CALL_TIMEOUT, post};

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
    /// The number of the replica's processes. The body for one process differs in form from that for several.
    pub processes: u32,
}

impl AgentClient {
    /// `POST /config` with a JSON object.
    pub async fn configure(&self, agent: SocketAddr, part: PartOfStart, body: Bytes) -> Result<(), AgentError> {
        let PartOfStart { generation, membership, code, renewal: of_lease, processes } = part;
        let Membership { seat, of, start, pushes } = membership;
        let pushes = if pushes == 0 { String::new() } else { format!("&pushes={pushes}") };
        let code = code.map(|id| format!("&code={id}")).unwrap_or_default();
        let processes = if processes == 1 { String::new() } else { format!("&processes={processes}") };
        let further = pushes + &code + &renewal(of_lease) + &processes;
        let path =
            format!("{}?generation={generation}&seat={seat}&of={of}&start={start}{further}", routes::AGENT_CONFIG);
        self.call(post(agent, &path, body), CALL_TIMEOUT).await.map(drop)
    }
}

pub(super) fn renewal(renewal: Option<Renewal>) -> String {
    let parameters = |Renewal { fence, heard: ClockMillis(heard) }| {
        format!("&fence_ms={}&heard_ms={heard}", Duration::as_millis(&fence))
    };
    renewal.map(parameters).unwrap_or_default()
}
