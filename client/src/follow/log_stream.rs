//! A job's output as streams of lines and of bytes. `resume.rs` reopens broken streams.

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

use crate::ending::error::MasterError;
use crate::master::client::MasterClient;

/// Maximum bytes of a JSON line. In JSON, a byte of output takes at most 6 bytes, as `\u00XX`. The other fields of the
/// line may take as many bytes as the output.
const JSON_LINE_MAX: usize = 12 * LOG_LINE_BYTES;

/// Where a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamUntil {
    /// At the end of the output so far.
    Now,
    /// When the job ends.
    End,
    /// When the job ends. Until then, the master also sends each unfinished line whenever the line has changed.
    EndWithUnfinished,
}

/// The lines that a stream contains. The default is all lines of all replicas, without times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WantedLines {
    /// Only the lines of this replica.
    pub(crate) replica: Option<ReplicaId>,
    /// The first line of each replica.
    pub(crate) begin: Begin,
    /// Whether the lines have times.
    pub(crate) times: bool,
}

/// Where the output of a replica begins. The default is the oldest line that the master still has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Begin {
    /// At most this number of lines before the end.
    pub(crate) tail: Option<u32>,
    /// Only lines that were complete at or after this time.
    pub(crate) since: Option<Since>,
}

impl Begin {
    /// Whether all kept lines are wanted.
    pub(crate) fn is_beginning(&self) -> bool {
        self.tail.is_none() && self.since.is_none()
    }
}

/// A point in time by the master's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
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
pub(crate) type Lines = BoxStream<'static, Result<LogLine, MasterError>>;

/// The output of one replica in bytes, as it arrives.
pub(crate) type Pieces = BoxStream<'static, Result<Vec<u8>, MasterError>>;

/// The position at which a stream of bytes begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RawBegin {
    /// Where the user wants the stream to begin.
    Asked(Begin),
    /// After the bytes read so far.
    At(u64),
}

/// The position of a replica's stream.
pub(crate) struct RawPosition {
    /// The absolute offset of the stream's first byte.
    pub(crate) offset: u64,
    /// Number of requested bytes before `offset` that the master no longer has.
    pub(crate) dropped: u64,
}

/// The output line by line. The output of each replica in `offsets` begins at the replica's offset.
pub(crate) async fn merged(
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
    let answer = client.logs(name, &query, "application/x-ndjson").await?;
    Ok(lines(client.clone(), answer))
}

/// The bytes of one replica.
pub(crate) async fn raw(
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

fn follow(until: StreamUntil) -> (&'static str, String) {
    ("follow", (until != StreamUntil::Now).to_string())
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
