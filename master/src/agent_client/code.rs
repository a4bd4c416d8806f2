//! The calls that bring a job's code to an agent.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use protocol::code::{CodeId, MissingBlobs};
use protocol::routes;

use super::{AgentClient, AgentError, CALL_TIMEOUT, Call, no_answer_of_an_agent, request};

/// Maximum time of a call that sends blobs, at most 64 MiB. The agent writes the blobs to its disk before it answers.
const SEND_TIMEOUT: Duration = Duration::from_secs(300);

impl AgentClient {
    /// `PUT /code/ID`. Returns the blobs that the agent does not have.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn offer_code(&self, agent: SocketAddr, id: CodeId, manifest: Bytes) -> Result<MissingBlobs, AgentError> {
        self.put(agent, &format!("{}{id}", routes::AGENT_CODE), manifest, CALL_TIMEOUT).await
    }

    /// `PUT /code/ID/blobs`. Returns the blobs that the agent still does not have.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn send_code(&self, agent: SocketAddr, id: CodeId, blobs: Bytes) -> Result<MissingBlobs, AgentError> {
        let path = format!("{}{id}{}", routes::AGENT_CODE, routes::AGENT_CODE_BLOBS);
        self.put(agent, &path, blobs, SEND_TIMEOUT).await
    }

    async fn put(
        &self,
        agent: SocketAddr,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<MissingBlobs, AgentError> {
        let call = Call { agent, request: request(Method::PUT, agent, path, body) };
        let answer = self.call(call, limit).await?;
        serde_json::from_slice(&answer).map_err(|error| no_answer_of_an_agent(&error))
    }
}
