//! `logs`: prints a job's output, of all replicas or of one.

use std::collections::BTreeMap;
use std::slice;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use master_client::log_stream::{self, Begin, Pieces, RawBegin, RawPosition, Since, StreamUntil, WantedLines};
use master_client::{MasterClient, MasterError};
use protocol::history::PastJob;
use protocol::ids::{JobName, PodName, ReplicaId};
use protocol::output::{LogLine, is_of_earlier_master};
use protocol::view::{JobResult, JobView};
use tokio::sync::watch;

use super::leaving::{Stage, unless_interrupted};
use crate::args::LogsArgs;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::follow::resume::{Resumable, to_the_end};
use crate::follow::{Following, follow, tell_end};
use crate::masters::finder::{Finder, JobPlace};
use crate::output::{Data, Format, LogLines, Notes, ShownRanks, narrate};

pub(super) async fn run(finder: &Finder, args: LogsArgs, mut data: Data, notes: &Notes) -> Result<Exit, Error> {
    match finder.locate(&args.job.name, notes).await? {
        JobPlace::Master(client) => at_master(client, args, data, notes).await,
        JobPlace::History(past) => print_past(&past, &args, &mut data, notes),
    }
}

/// Prints what the history has of a job's output: the end of the output of the replica that failed first.
fn print_past(past: &PastJob, args: &LogsArgs, data: &mut Data, notes: &Notes) -> Result<Exit, Error> {
    let PastJob { view, last_output, .. } = past;
    check_ranks(&args.rank, view)?;
    let replica = match &view.result {
        Some(JobResult::Failed { failure }) => failure.replica(),
        Some(JobResult::Succeeded | JobResult::Cancelled) | None => None,
    };
    let exit = if args.follow { view.state.into() } else { Exit::Done };
    if last_output.is_empty() || args.replica.is_some_and(|wanted| Some(wanted) != replica) {
        notes.say(&format!("job {} has ended ({}); the history does not keep this output", view.name, view.state));
        return Ok(exit);
    }
    let of = replica.map(|replica| format!(" of {replica}")).unwrap_or_default();
    notes.say(&format!("job {} has ended ({}); the history keeps the end of its output{of}", view.name, view.state));
    let chosen = last_output.lines().filter_map(|line| Some((line, args.rank.shown(line)?)));
    let lines: Vec<&str> = chosen.map(|(line, (label, text))| if label.is_empty() { text } else { line }).collect();
    let kept = args.tail.map_or(lines.len(), |tail| tail as usize);
    let mut lines = lines[lines.len().saturating_sub(kept)..].iter();
    let line =
        |replica, line: &str| LogLine { replica, time: None, offset: 0, line: line.to_owned(), unfinished: false };
    match (args.format.output, replica) {
        (Format::Json, Some(replica)) => lines.try_for_each(|text| data.json_line(&line(replica, text)))?,
        (Format::Json | Format::Text, _) => lines.try_for_each(|text| data.text(text))?,
    }
    Ok(exit)
}

/// Refuses ranks that the job does not have.
fn check_ranks(ranks: &ShownRanks, JobView { name, spec, .. }: &JobView) -> Result<(), Error> {
    let Some(highest) = ranks.highest() else { return Ok(()) };
    if spec.nproc_per_node == 1 {
        return Err(Error::input(format!("--rank: the workers of job {name} have one process each"))
            .hint(format!("client logs {name} --replica REPLICA shows one of them")));
    }
    let last = (spec.worker_num * spec.nproc_per_node).saturating_sub(1);
    if highest > last {
        return Err(Error::input(format!("--rank: job {name} has no rank {highest}: its last rank is {last}")));
    }
    Ok(())
}

async fn at_master(client: MasterClient, args: LogsArgs, mut data: Data, notes: &Notes) -> Result<Exit, Error> {
    let LogsArgs { job, follow, replica, rank, tail, since, since_time, timestamps, format } = args;
    let name = job.name;
    let ago = |seconds| Since::Ago { length: Duration::from_secs(u64::from(seconds)), asked: Instant::now() };
    let begin = Begin { tail, since: since.map(ago).or(since_time.map(Since::Time)) };
    let view = client.view(&name).await?;
    check_ranks(&rank, &view)?;
    let form = match (format.output, replica) {
        (Format::Json, _) => LogLines::Json,
        (Format::Text, Some(_)) if timestamps || rank != ShownRanks::All => LogLines::Bare,
        (Format::Text, Some(replica)) => {
            let until = if follow { StreamUntil::End } else { StreamUntil::Now };
            let (begin, at, notes) = (RawBegin::Asked(begin), client.clone(), notes.clone());
            return print_raw(RawReading { client: at, name, replica, begin, until, data, notes }).await;
        }
        (Format::Text, None) => LogLines::prefixed(&view.spec),
    };
    data.log_lines_as(form);
    data.show_ranks(rank);
    if timestamps {
        data.show_times();
    }
    let wanted = WantedLines { replica, begin, times: timestamps };
    if !follow {
        return print_merged(&client, &view, &wanted, &mut data, notes).await;
    }
    let work = follow_merged(client, view, wanted, data, notes.clone());
    unless_interrupted(work, slice::from_ref(&name), || Stage::Following, notes).await
}

async fn print_merged(
    client: &MasterClient,
    view: &JobView,
    wanted: &WantedLines,
    data: &mut Data,
    notes: &Notes,
) -> Result<Exit, Error> {
    let mut lines = log_stream::merged(client, &view.name, wanted, &BTreeMap::new(), StreamUntil::Now).await?;
    let (mut ends, mut of_earlier_master) = (BTreeMap::new(), None);
    // Without `--tail` and `--since`, the first line of a replica begins at 0.
    let first = wanted.begin.is_beginning().then_some(0);
    while let Some(line) = lines.try_next().await? {
        let before = ends.insert(line.replica, line.offset).or(first);
        if before.is_some_and(|before| is_of_earlier_master(line.offset.saturating_sub(before))) {
            of_earlier_master.get_or_insert(line.replica);
        }
        data.log_line(&line)?;
    }
    data.flush()?;
    // Only pods have an image, and only their output can be elsewhere.
    if view.spec.image.is_some()
        && let Some(replica) = of_earlier_master
    {
        notes.hint(&hint_for_missing(&view.name, replica));
    }
    Ok(Exit::Done)
}

/// Where output may still be after the master's pod was replaced.
fn hint_for_missing(job: &JobName, replica: ReplicaId) -> String {
    format!("kubectl logs {} shows the output of a pod that still exists", PodName::new(job, replica))
}

async fn follow_merged(
    client: MasterClient,
    view: JobView,
    wanted: WantedLines,
    mut data: Data,
    notes: Notes,
) -> Result<Exit, Error> {
    notes.say(&narrate::standing(&view));
    let (logs, wanted) = (Some(wanted), watch::Sender::default());
    let following = Following { client, first: view, is_told: true, logs, wanted };
    let ended = follow(following, &mut data, &notes).await?;
    Ok(ended.state.into())
}

async fn print_raw(mut reading: RawReading) -> Result<Exit, Error> {
    if reading.until != StreamUntil::Now {
        let (name, notes) = (reading.name.clone(), reading.notes.clone());
        return unless_interrupted(follow_raw(reading), slice::from_ref(&name), || Stage::Following, &notes).await;
    }
    let opened = reading.open().await?;
    reading.print_all(opened).await?;
    reading.data.end_partial_line()?;
    Ok(Exit::Done)
}

async fn follow_raw(mut reading: RawReading) -> Result<Exit, Error> {
    let view = to_the_end(&mut reading).await?;
    reading.data.end_partial_line()?;
    tell_end(&view, &reading.notes);
    Ok(view.state.into())
}

/// Prints the output of one replica.
struct RawReading {
    client: MasterClient,
    name: JobName,
    replica: ReplicaId,
    begin: RawBegin,
    until: StreamUntil,
    data: Data,
    notes: Notes,
}

impl RawReading {
    /// Prints all kept output. A stream ends before a gap of dropped bytes. The next stream begins after the gap and
    /// reports the size of the gap.
    async fn print_all(&mut self, opened: (RawPosition, Pieces)) -> Result<(), Error> {
        let mut next = Some(opened);
        while let Some(opened) = next {
            self.print(opened).await?;
            next = Some(self.open().await?).filter(|(position, _)| position.dropped > 0);
        }
        Ok(())
    }

    async fn print(&mut self, (position, mut pieces): (RawPosition, Pieces)) -> Result<(), Error> {
        // With --tail, the user did not ask for earlier bytes, so their loss is not reported.
        let wants_all_before = !matches!(self.begin, RawBegin::Asked(Begin { tail: Some(_), .. }));
        if is_of_earlier_master(position.dropped) {
            self.notes.say("output that an earlier master kept may be missing");
            self.notes.hint(&hint_for_missing(&self.name, self.replica));
        } else if position.dropped > 0 && wants_all_before {
            self.notes.say(&format!("{} bytes of the output are no longer kept", position.dropped));
        }
        let mut offset = position.offset;
        self.begin = RawBegin::At(offset);
        while let Some(piece) = pieces.try_next().await? {
            self.data.bytes(&piece)?;
            offset += piece.len() as u64;
            self.begin = RawBegin::At(offset);
        }
        Ok(())
    }
}

impl Resumable for RawReading {
    type Opened = (RawPosition, Pieces);

    async fn open(&self) -> Result<Self::Opened, MasterError> {
        log_stream::raw(&self.client, &self.name, self.replica, self.begin, self.until).await
    }

    async fn read(&mut self, opened: Self::Opened) -> Result<JobView, Error> {
        self.print_all(opened).await?;
        Ok(log_stream::ended_with(&self.client, &self.name).await?)
    }
}
