//! `logs`: prints a job's output, of all replicas or of one.

use std::slice;

use futures_util::TryStreamExt;
use protocol::ids::{JobName, ReplicaId};
use protocol::view::JobView;

use super::leaving::{Stage, unless_interrupted};
use crate::args::{Format, LogsArgs};
use crate::error::Error;
use crate::exit::Exit;
use crate::follow::{Following, Logs, Told, follow, tell_end};
use crate::log_stream::{self, From, Pieces, RawPosition, Unfinished, Until};
use crate::master_client::{MasterClient, MasterError};
use crate::narrate;
use crate::output::{Data, Notes};
use crate::resume::{Resumable, to_the_end};
use crate::usage::UsageError;

pub(super) async fn run(client: MasterClient, args: LogsArgs, mut data: Data, notes: &Notes) -> Result<Exit, Error> {
    let LogsArgs { job, follow, replica, tail, format } = args;
    let name = job.name;
    if format.output == Format::Json && replica.is_some() {
        return Err(one_replica_as_json().into());
    }
    let view = client.view(&name).await?;
    if format.output == Format::Json {
        data.log_lines_as_json();
    } else {
        data.align_prefixes(&view.spec);
    }
    let Some(replica) = replica else {
        let from = tail.map_or(From::Start, From::Tail);
        if !follow {
            return print_merged(&client, &view, &from, &mut data).await;
        }
        let work = follow_merged(client.clone(), view, from, (data, notes.clone()));
        return unless_interrupted(work, slice::from_ref(&name), || Stage::Following, notes).await;
    };
    let (begin, until) =
        (RawBegin::Asked { tail }, if follow { Until::Finished(Unfinished::Hidden) } else { Until::Now });
    let (at, of, said) = (client.clone(), name.clone(), notes.clone());
    let reading = RawReading { client: at, name: of, replica, begin, until, data, notes: said };
    if !follow {
        return print_raw(reading).await;
    }
    unless_interrupted(follow_raw(reading), slice::from_ref(&name), || Stage::Following, notes).await
}

/// The error for `-o json` with `--replica`: the bytes of one replica are printed unchanged, and JSON can only contain
/// text.
fn one_replica_as_json() -> UsageError {
    UsageError {
        sentence: "-o json cannot be used with --replica, which prints the output unchanged".to_owned(),
        hint: Some("leave out --replica: each line of the merged output names its replica".to_owned()),
    }
}

async fn print_merged(client: &MasterClient, view: &JobView, from: &From, data: &mut Data) -> Result<Exit, Error> {
    let mut lines = log_stream::merged(client, &view.name, from, Until::Now).await?;
    while let Some(line) = lines.try_next().await? {
        data.log_line(&line)?;
    }
    data.flush()?;
    Ok(Exit::Done)
}

async fn follow_merged(
    client: MasterClient,
    view: JobView,
    from: From,
    (mut data, notes): (Data, Notes),
) -> Result<Exit, Error> {
    notes.say(&narrate::standing(&view));
    let following = Following { client, first: view, told: Told::Standing, logs: Logs::Merged(from) };
    let ended = follow(following, &mut data, &notes).await?;
    Ok(ended.state.into())
}

async fn print_raw(mut reading: RawReading) -> Result<Exit, Error> {
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
    until: Until,
    data: Data,
    notes: Notes,
}

/// The position at which the next stream begins.
enum RawBegin {
    /// At the last `tail` lines; without `tail`, at the oldest kept byte.
    Asked { tail: Option<u32> },
    /// After the bytes read so far.
    At(u64),
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
        let wants_all_before = !matches!(self.begin, RawBegin::Asked { tail: Some(_) });
        if position.dropped > 0 && wants_all_before {
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
        let begin = match self.begin {
            RawBegin::Asked { tail } => (None, tail),
            RawBegin::At(offset) => (Some(offset), None),
        };
        log_stream::raw(&self.client, (&self.name, self.replica), begin, self.until).await
    }

    async fn read(&mut self, opened: Self::Opened) -> Result<JobView, Error> {
        self.print_all(opened).await?;
        Ok(log_stream::ended_with(&self.client, &self.name).await?)
    }
}
