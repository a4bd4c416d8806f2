//! The calls that bring a job's code to an agent, or read it back.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http_body_util::BodyExt;
use hyper::Method;
use protocol::code::{CodeId, MissingBlobs};
use protocol::routes;
use tokio::time::{Instant, timeout_at};

use super::{AgentClient, AgentError, CALL_TIMEOUT, Call, get, no_answer_of_an_agent, request, unreachable};

/// Maximum time of a call that sends blobs, at most 64 MiB. The agent writes the blobs to its disk before it answers.
const SEND_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum time until the next piece of code that an agent sends back. The agent reads all files before the first piece.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);

impl AgentClient {
    /// `PUT /code/ID`. Returns the blobs that the agent does not have.
    pub async fn offer_code(&self, agent: SocketAddr, id: CodeId, manifest: Bytes) -> Result<MissingBlobs, AgentError> {
        self.put(agent, &format!("{}{id}", routes::AGENT_CODE), manifest, CALL_TIMEOUT).await
    }

    /// `PUT /code/ID/blobs`. Returns the blobs that the agent still does not have.
    pub async fn send_code(&self, agent: SocketAddr, id: CodeId, blobs: Bytes) -> Result<MissingBlobs, AgentError> {
        let path = format!("{}{id}{}", routes::AGENT_CODE, routes::AGENT_CODE_BLOBS);
        self.put(agent, &path, blobs, SEND_TIMEOUT).await
    }

    /// `GET /code/ID`: the code that the agent has, as it arrives. Its content may be wrong.
    ///
    /// # Errors
    /// [`AgentError`]. If the connection breaks later, the stream yields [`AgentError::Unreachable`].
    pub async fn held_code(
        &self,
        agent: SocketAddr,
        id: CodeId,
    ) -> Result<impl Stream<Item = Result<Bytes, AgentError>> + Send + use<>, AgentError> {
        let end = Instant::now() + SEND_TIMEOUT;
        let limit = move || end.min(Instant::now() + PIECE_TIMEOUT);
        let call = self.send(get(agent, &format!("{}{id}", routes::AGENT_CODE)));
        let response = timeout_at(limit(), call).await.map_err(|late| unreachable(agent, late))??;
        Ok(stream::try_unfold(response.into_body(), move |mut body| async move {
            let frame = timeout_at(limit(), body.frame()).await.map_err(|late| unreachable(agent, late))?;
            let frame = frame.transpose().map_err(|error| unreachable(agent, error))?;
            Ok(frame.map(|frame| (frame.into_data().unwrap_or_default(), body)))
        }))
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
