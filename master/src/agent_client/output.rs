//! The call for the output of a run, which arrives as a stream.

use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_body_util::BodyStream;
use hyper::body::Frame;
use hyper::header::{self, HeaderValue};
use protocol::ids::Generation;
use protocol::routes;
use tokio::time::timeout;

use super::{AgentClient, AgentError, CALL_TIMEOUT, get, unreachable};

/// A run's output from an offset on.
#[derive(Debug)]
pub struct LogStream<S> {
    /// The absolute offset of the first byte.
    pub offset: u64,
    /// The output as it arrives.
    pub pieces: S,
}

/// A piece of a [`LogStream`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogPiece {
    /// The next bytes.
    Bytes(Bytes),
    /// The run has ended, and all of its output was sent. The value is the run's generation, if the agent sent it.
    /// Agents of earlier versions never report the end of a run in this way.
    RunEnded(Option<Generation>),
}

impl AgentClient {
    /// `GET /logs`: stdout and stderr together, from `offset` to the end of the run.
    ///
    /// # Errors
    /// [`AgentError`]. If the connection breaks later, the stream yields [`AgentError::Unreachable`].
    pub async fn logs(
        &self,
        agent: SocketAddr,
        offset: u64,
    ) -> Result<LogStream<impl Stream<Item = Result<LogPiece, AgentError>> + Send + use<>>, AgentError> {
        let path = format!("{}?stream=both&follow=true&offset={offset}", routes::AGENT_LOGS);
        let mut call = get(agent, &path);
        call.request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
        let response = timeout(CALL_TIMEOUT, self.send(call)).await.map_err(|late| unreachable(agent, late))??;
        let first = response.headers().get(routes::LOG_OFFSET_HEADER);
        let offset = first.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(offset);
        let frames = BodyStream::new(response.into_body());
        let pieces = frames.map(move |frame| frame.map(piece_of).map_err(|error| unreachable(agent, error)));
        Ok(LogStream { offset, pieces })
    }
}

fn piece_of(frame: Frame<Bytes>) -> LogPiece {
    let trailers = match frame.into_data() {
        Ok(bytes) => return LogPiece::Bytes(bytes),
        Err(frame) => frame.into_trailers().unwrap_or_default(),
    };
    let run = trailers.get(routes::LOG_COMPLETE_TRAILER).and_then(|value| value.to_str().ok());
    // Other trailers become an empty piece, which changes nothing.
    run.map_or(LogPiece::Bytes(Bytes::new()), |generation| LogPiece::RunEnded(generation.parse().ok()))
}
