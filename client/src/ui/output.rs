//! Reads the output of a job from the master: the newest lines, and then each new line.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::TryStreamExt;
use master_client::log_stream::{self, Begin, Lines, StreamUntil, WantedLines};
use master_client::{MasterClient, MasterError};
use protocol::ids::{JobName, ReplicaId};
use protocol::output::LogLine;
use protocol::view::JobView;
use tokio::time::sleep;

use crate::ending::error::{Cause, Error};
use crate::follow::resume::{Resumable, to_the_end};

/// Number of lines that a page shows at first.
pub(super) const LINES_MAX: usize = 500;
/// Minimum number of lines of each replica.
const LINES_MIN: usize = 5;
/// Time between two attempts after the client has given up on a stream.
const RETRY: Duration = Duration::from_secs(3);

/// The newest lines of one replica, or of all `replicas` together in the order of their times.
pub(super) async fn newest(
    client: &MasterClient,
    name: &JobName,
    replica: Option<ReplicaId>,
    replicas: usize,
) -> Result<Vec<LogLine>, MasterError> {
    let tail = if replica.is_some() { LINES_MAX } else { tail(replicas) };
    let begin = Begin { tail: u32::try_from(tail).ok(), since: None };
    let wanted = WantedLines { replica, begin, times: true };
    let lines = log_stream::merged(client, name, &wanted, &BTreeMap::new(), StreamUntil::Now).await?;
    let mut lines: Vec<LogLine> = lines.try_collect().await?;
    // The master sends one replica after the other. The order of lines without a time stays.
    lines.sort_by_key(|line| line.time.map(|time| time.0));
    Ok(lines)
}

/// The number of lines to read of each replica. With many replicas, the number is smaller, so that all replicas
/// together have about twice [`LINES_MAX`] lines.
fn tail(replicas: usize) -> usize {
    (2 * LINES_MAX / replicas.max(1)).clamp(LINES_MIN, LINES_MAX)
}

/// The output of a job, and how far it is read.
pub(super) struct OutputReading {
    client: MasterClient,
    name: JobName,
    /// The number of the job's replicas.
    replicas: usize,
    offsets: BTreeMap<ReplicaId, u64>,
    /// Takes each line.
    push: Box<dyn Fn(&LogLine) + Send + Sync>,
}

impl OutputReading {
    /// A reading at the beginning.
    pub(super) fn new(
        client: MasterClient,
        name: JobName,
        replicas: usize,
        push: Box<dyn Fn(&LogLine) + Send + Sync>,
    ) -> Self {
        Self { client, name, replicas, offsets: BTreeMap::new(), push }
    }

    /// Reads the newest lines. After a failure, the caller reads again or follows.
    pub(super) async fn read_newest(&mut self) {
        let lines = newest(&self.client, &self.name, None, self.replicas).await.unwrap_or_default();
        lines.iter().for_each(|line| self.take(line));
    }

    /// Reads until the job has ended or is deleted.
    pub(super) async fn follow(&mut self) {
        loop {
            match to_the_end(self).await {
                Ok(_) => return,
                Err(Error { cause: Cause::Master(error), .. }) if error.is_not_found() => return,
                Err(_) => sleep(RETRY).await,
            }
        }
    }

    /// Reads new lines once in each period, without an open stream between two readings.
    pub(super) async fn poll(&mut self, period: Duration) {
        loop {
            sleep(period).await;
            // The next reading repairs a failure.
            if let Ok(mut lines) = self.lines(StreamUntil::Now).await {
                while let Ok(Some(line)) = lines.try_next().await {
                    self.take(&line);
                }
            }
        }
    }

    async fn lines(&self, until: StreamUntil) -> Result<Lines, MasterError> {
        let begin = Begin { tail: u32::try_from(tail(self.replicas)).ok(), since: None };
        let wanted = WantedLines { begin, ..WantedLines::default() };
        log_stream::merged(&self.client, &self.name, &wanted, &self.offsets, until).await
    }

    fn take(&mut self, line: &LogLine) {
        let reached = self.offsets.entry(line.replica).or_default();
        *reached = line.offset.max(*reached);
        (self.push)(line);
    }
}

impl Resumable for OutputReading {
    type Opened = Lines;

    async fn open(&self) -> Result<Lines, MasterError> {
        self.lines(StreamUntil::End).await
    }

    async fn read(&mut self, mut lines: Lines) -> Result<JobView, Error> {
        while let Some(line) = lines.try_next().await? {
            self.take(&line);
        }
        Ok(log_stream::ended_with(&self.client, &self.name).await?)
    }
}
