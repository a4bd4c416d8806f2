//! A job's output as streams of lines and of bytes. `resume.rs` reopens broken streams.

use std::collections::BTreeMap;
use std::io;

use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};
use protocol::ids::{JobName, ReplicaId};
use protocol::routes::{LOG_DROPPED_HEADER, LOG_OFFSET_HEADER};
use protocol::view::{JobView, LOG_LINE_BYTES, LogLine};
use reqwest::Response;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;

use crate::master_client::{MasterClient, MasterError};

/// Maximum bytes of a JSON line. In JSON, a byte of output takes at most 6 bytes, as `\u00XX`. The other fields of the
/// line may take as many bytes as the output.
const JSON_LINE_MAX: usize = 12 * LOG_LINE_BYTES;

/// Where a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// At the end of the output so far.
    Now,
    /// When the job ends.
    Finished(Unfinished),
}

/// Whether the stream includes lines that are still being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfinished {
    /// The master sends each unfinished line, and sends it again whenever it has changed.
    Shown,
    /// The master sends only finished lines.
    Hidden,
}

/// Where a stream begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum From {
    /// At the oldest line that the master still has.
    Start,
    /// At this number of lines before the end of each replica's output.
    Tail(u32),
    /// At these offsets. For a replica without an offset, at its oldest line.
    Offsets(BTreeMap<ReplicaId, u64>),
}

/// The output of all replicas, as it arrives.
pub(crate) type Lines = BoxStream<'static, Result<LogLine, MasterError>>;

/// The output of one replica in bytes, as it arrives.
pub(crate) type Pieces = BoxStream<'static, Result<Vec<u8>, MasterError>>;

/// The position of a replica's stream.
pub(crate) struct RawPosition {
    /// The absolute offset of the stream's first byte.
    pub(crate) offset: u64,
    /// Number of requested bytes before `offset` that the master no longer has.
    pub(crate) dropped: u64,
}

/// The output of all replicas, line by line.
pub(crate) async fn merged(
    client: &MasterClient,
    name: &JobName,
    from: &From,
    until: Until,
) -> Result<Lines, MasterError> {
    let mut query = vec![follow(until)];
    if until == Until::Finished(Unfinished::Shown) {
        query.push(("unfinished", "true".to_owned()));
    }
    match from {
        From::Start => {}
        From::Tail(lines) => query.push(("tail", lines.to_string())),
        From::Offsets(offsets) => {
            let pairs: Vec<String> = offsets.iter().map(|(replica, offset)| format!("{replica}:{offset}")).collect();
            query.push(("from", pairs.join(",")));
        }
    }
    let answer = client.logs(name, &query, "application/x-ndjson").await?;
    Ok(lines(client.clone(), answer))
}

/// The bytes of one replica.
pub(crate) async fn raw(
    client: &MasterClient,
    (name, replica): (&JobName, ReplicaId),
    (from, tail): (Option<u64>, Option<u32>),
    until: Until,
) -> Result<(RawPosition, Pieces), MasterError> {
    let mut query = vec![follow(until), ("replica", replica.to_string())];
    query.extend(from.map(|offset| ("offset", offset.to_string())));
    query.extend(tail.map(|lines| ("tail", lines.to_string())));
    let answer = client.logs(name, &query, "application/octet-stream").await?;
    let position = RawPosition {
        offset: number(client, &answer, LOG_OFFSET_HEADER)?,
        dropped: number(client, &answer, LOG_DROPPED_HEADER)?,
    };
    let client = client.clone();
    let pieces = answer.bytes_stream().map_ok(Vec::from).map_err(move |error| client.transport_error(&error));
    Ok((position, pieces.boxed()))
}

/// Called after a log stream has ended normally. Returns the ended job. If the job has no result, returns an error: the
/// master is shutting down.
pub(crate) async fn ended_with(client: &MasterClient, name: &JobName) -> Result<JobView, MasterError> {
    client.view(name).await?.as_ended().ok_or_else(|| client.log_stream_ended_early())
}

fn follow(until: Until) -> (&'static str, String) {
    ("follow", (until != Until::Now).to_string())
}

fn number(client: &MasterClient, answer: &Response, header: &str) -> Result<u64, MasterError> {
    let text = answer.headers().get(header).and_then(|value| value.to_str().ok());
    text.and_then(|text| text.parse().ok()).ok_or_else(|| client.not_a_master(answer.status()))
}

fn lines(client: MasterClient, answer: Response) -> Lines {
    let status = answer.status();
    let reader = StreamReader::new(Box::pin(answer.bytes_stream().map_err(io::Error::other)));
    let lines = FramedRead::new(reader, LinesCodec::new_with_max_length(JSON_LINE_MAX));
    let lines = lines.map(move |line| match line {
        Ok(line) => serde_json::from_str(&line).map_err(|_| client.not_a_master(status)),
        Err(LinesCodecError::MaxLineLengthExceeded) => Err(client.not_a_master(status)),
        Err(LinesCodecError::Io(error)) => Err(match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(error) => client.transport_error(error),
            // Other errors are about text that is not UTF-8.
            None => client.not_a_master(status),
        }),
    });
    lines.boxed()
}
