//! A job's output as streams of lines and of bytes.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};
use protocol::ids::{JobName, ReplicaId, UnixMillis};
use protocol::output::{LOG_LINE_BYTES, LogLine};
use protocol::routes::{LOG_DROPPED_HEADER, LOG_OFFSET_HEADER};
use protocol::view::JobView;
use reqwest::Response;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;

use crate::client::{MasterClient, of_job};
use crate::error::MasterError;
use crate::transport::Transport;

/// Maximum bytes of a JSON line. In JSON, a byte of output takes at most 6 bytes, as `\u00XX`. The other fields of the
/// line may take as many bytes as the output.
const JSON_LINE_MAX: usize = 12 * LOG_LINE_BYTES;

/// Where a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamUntil {
    /// At the end of the output so far.
    Now,
    /// When the job ends.
    End,
    /// When the job ends. Until then, the master also sends each unfinished line whenever the line has changed.
    EndWithUnfinished,
}

/// The lines that a stream contains. The default is all lines of all replicas, without times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedLines {
    /// Only the lines of this replica.
    pub replica: Option<ReplicaId>,
    /// The first line of each replica.
    pub begin: Begin,
    /// Whether the lines have times.
    pub times: bool,
}

/// Where the output of a replica begins. The default is the oldest line that the master still has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Begin {
    /// At most this number of lines before the end.
    pub tail: Option<u32>,
    /// Only lines that were complete at or after this time.
    pub since: Option<Since>,
}

impl Begin {
    /// Whether all kept lines are wanted.
    pub fn is_beginning(&self) -> bool {
        self.tail.is_none() && self.since.is_none()
    }
}

/// A point in time by the master's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// This long before `asked`. It is not an absolute time, because the clock of this machine may be wrong.
    Ago {
        /// How long.
        length: Duration,
        /// When the user asked for the output.
        asked: Instant,
    },
    /// This time.
    Time(UnixMillis),
}

impl Since {
    fn parameter(self) -> (&'static str, String) {
        match self {
            Self::Ago { length, asked } => {
                let elapsed = Duration::from_secs_f64(asked.elapsed().as_secs_f64().round());
                ("since_seconds", (length + elapsed).as_secs().to_string())
            }
            Self::Time(UnixMillis(millis)) => ("since_time", millis.to_string()),
        }
    }
}

/// The output of all replicas, as it arrives.
pub type Lines = BoxStream<'static, Result<LogLine, MasterError>>;

/// The output of one replica in bytes, as it arrives.
pub type Pieces = BoxStream<'static, Result<Vec<u8>, MasterError>>;

/// The position at which a stream of bytes begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawBegin {
    /// Where the user wants the stream to begin.
    Asked(Begin),
    /// After the bytes read so far.
    At(u64),
}

/// The position of a replica's stream.
pub struct RawPosition {
    /// The absolute offset of the stream's first byte.
    pub offset: u64,
    /// Number of requested bytes before `offset` that the master no longer has.
    pub dropped: u64,
}

/// The output line by line. The output of each replica in `offsets` begins at the replica's offset.
///
/// # Errors
/// See [`MasterError`].
pub async fn merged(
    client: &MasterClient,
    name: &JobName,
    wanted: &WantedLines,
    offsets: &BTreeMap<ReplicaId, u64>,
    until: StreamUntil,
) -> Result<Lines, MasterError> {
    let WantedLines { replica, begin: Begin { tail, since }, times } = wanted;
    let mut query = vec![follow(until)];
    if until == StreamUntil::EndWithUnfinished {
        query.push(("unfinished", "true".to_owned()));
    }
    if let Some(replica) = replica {
        query.extend([("replica", replica.to_string()), ("lines", "true".to_owned())]);
    }
    if *times {
        query.push(("times", "true".to_owned()));
    }
    if offsets.is_empty() {
        query.extend(tail.map(|lines| ("tail", lines.to_string())));
    } else {
        let pairs: Vec<String> = offsets.iter().map(|(replica, offset)| format!("{replica}:{offset}")).collect();
        query.push(("from", pairs.join(",")));
    }
    query.extend(since.map(Since::parameter));
    let answer = client.transport.stream(&of_job(name, "/logs"), &query, "application/x-ndjson").await?;
    Ok(lines(client.transport.clone(), answer))
}

/// The bytes of one replica.
///
/// # Errors
/// See [`MasterError`].
pub async fn raw(
    client: &MasterClient,
    name: &JobName,
    replica: ReplicaId,
    begin: RawBegin,
    until: StreamUntil,
) -> Result<(RawPosition, Pieces), MasterError> {
    let mut query = vec![follow(until), ("replica", replica.to_string())];
    match begin {
        RawBegin::At(offset) => query.push(("offset", offset.to_string())),
        RawBegin::Asked(Begin { tail, since }) => {
            query.extend(tail.map(|lines| ("tail", lines.to_string())));
            query.extend(since.map(Since::parameter));
        }
    }
    let transport = client.transport.clone();
    let answer = transport.stream(&of_job(name, "/logs"), &query, "application/octet-stream").await?;
    let position = RawPosition {
        offset: number(&transport, &answer, LOG_OFFSET_HEADER)?,
        dropped: number(&transport, &answer, LOG_DROPPED_HEADER)?,
    };
    let pieces = answer.bytes_stream().map_ok(Vec::from).map_err(move |error| transport.error(&error));
    Ok((position, pieces.boxed()))
}

/// Called after a log stream has ended normally. Returns the ended job. If the job has no result, returns an error: the
/// master is shutting down.
///
/// # Errors
/// See [`MasterError`].
pub async fn ended_with(client: &MasterClient, name: &JobName) -> Result<JobView, MasterError> {
    client.view(name).await?.as_ended().ok_or_else(|| {
        let reason = "the log stream ended before the job".into();
        MasterError::Unreachable { url: client.url().to_string().into(), reason }
    })
}

fn follow(until: StreamUntil) -> (&'static str, String) {
    ("follow", (until != StreamUntil::Now).to_string())
}

fn number(transport: &Transport, answer: &Response, header: &str) -> Result<u64, MasterError> {
    let text = answer.headers().get(header).and_then(|value| value.to_str().ok());
    text.and_then(|text| text.parse().ok()).ok_or_else(|| transport.not_a_master(answer.status()))
}

fn lines(transport: Transport, answer: Response) -> Lines {
    let status = answer.status();
    let reader = StreamReader::new(Box::pin(answer.bytes_stream().map_err(io::Error::other)));
    let lines = FramedRead::new(reader, LinesCodec::new_with_max_length(JSON_LINE_MAX));
    let lines = lines.map(move |line| match line {
        Ok(line) => serde_json::from_str(&line).map_err(|_| transport.not_a_master(status)),
        Err(LinesCodecError::MaxLineLengthExceeded) => Err(transport.not_a_master(status)),
        Err(LinesCodecError::Io(error)) => Err(match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(error) => transport.error(error),
            // Other errors are about text that is not UTF-8.
            None => transport.not_a_master(status),
        }),
    });
    lines.boxed()
}
