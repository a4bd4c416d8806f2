//! The call for the output of a run, which arrives as a stream.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http_body_util::BodyStream;
use hyper::body::Frame;
use hyper::header::{self, HeaderValue};
use protocol::aged_output::AgedReader;
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
    /// The next bytes, and their age: the time between their printing and their sending.
    Bytes(Bytes, Duration),
    /// The run has ended, and all of its output was sent. The value is the run's generation, if the agent sent it.
    RunEnded(Option<Generation>),
}

impl AgentClient {
    /// `GET /logs`: stdout and stderr together, from `offset` to the end of the run. Tells the agent where its output
    /// begins in the replica's output: at `base`.
    ///
    /// # Errors
    /// [`AgentError`]. If the connection breaks later, the stream yields [`AgentError::Unreachable`].
    pub async fn logs(
        &self,
        agent: SocketAddr,
        offset: u64,
        base: u64,
    ) -> Result<LogStream<impl Stream<Item = Result<LogPiece, AgentError>> + Send + use<>>, AgentError> {
        let path = format!("{}?stream=both&follow=true&ages=true&offset={offset}", routes::AGENT_LOGS);
        let mut call = get(agent, &path);
        call.request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
        call.request.headers_mut().insert(routes::LOG_BASE_HEADER, HeaderValue::from(base));
        let response = timeout(CALL_TIMEOUT, self.send(call)).await.map_err(|late| unreachable(agent, late))??;
        let first = response.headers().get(routes::LOG_OFFSET_HEADER);
        let offset = first.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(offset);
        let mut ages = AgedReader::default();
        let frames = BodyStream::new(response.into_body());
        let pieces = frames.flat_map(move |frame| {
            let pieces = match frame {
                Ok(frame) => pieces_of(frame, &mut ages).into_iter().map(Ok).collect(),
                Err(error) => vec![Err(unreachable(agent, error))],
            };
            stream::iter(pieces)
        });
        Ok(LogStream { offset, pieces })
    }
}

/// The pieces of a frame. `ages` separates the bytes from their ages.
fn pieces_of(frame: Frame<Bytes>, ages: &mut AgedReader) -> Vec<LogPiece> {
    match frame.into_data() {
        Ok(bytes) => {
            let mut rest = bytes.as_ref();
            let parts = std::iter::from_fn(|| ages.next(&mut rest));
            parts.map(|part| LogPiece::Bytes(bytes.slice_ref(part.bytes), part.age)).collect()
        }
        Err(frame) => run_ended(frame).into_iter().collect(),
    }
}

/// The end of the run, if the frame contains the trailer that names the run.
fn run_ended(frame: Frame<Bytes>) -> Option<LogPiece> {
    let trailers = frame.into_trailers().ok()?;
    let generation = trailers.get(routes::LOG_COMPLETE_TRAILER)?.to_str().ok()?;
    Some(LogPiece::RunEnded(generation.parse().ok()))
}
