//! `logs`: a job's output, of all replicas merged or of one as it was written.

use futures_util::TryStreamExt;
use protocol::ids::{JobName, ReplicaId};
use protocol::view::JobView;

use super::{is_json, unless_interrupted};
use crate::args::LogsArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::follow::{Following, Logs, Told, follow, tell_end};
use crate::log_stream::{self, From, Until};
use crate::master_client::{MasterClient, MasterError};
use crate::narrate;
use crate::output::{Data, Notes};
use crate::patience::Patience;
use crate::usage::UsageError;

pub(super) async fn run(client: MasterClient, args: LogsArgs, mut data: Data, notes: &Notes) -> Result<Exit, Error> {
    let LogsArgs { job, follow, replica, tail, format } = args;
    let name = job.name;
    if is_json(format.output) && replica.is_some() {
        return Err(one_replica_as_json().into());
    }
    let view = client.view(&name).await?;
    if is_json(format.output) {
        data.log_lines_as_json();
    } else {
        data.align_prefixes(&view.spec);
    }
    let from = tail.map_or(From::Start, From::Tail);
    match (follow, replica) {
        (false, None) => print_merged(&client, &view, &from, &mut data).await,
        (false, Some(replica)) => {
            let mut reading = RawReading { replica, next: None, tail };
            reading.print(&client, &name, Until::Now, (&mut data, notes)).await?;
            data.end_partial_line()?;
            Ok(Exit::Done)
        }
        (true, None) => {
            let work = follow_merged(client.clone(), view, from, (data, notes.clone()));
            unless_interrupted(work, (&client, &name), notes).await
        }
        (true, Some(replica)) => {
            let reading = RawReading { replica, next: None, tail };
            let work = follow_raw(client.clone(), name.clone(), reading, (data, notes.clone()));
            unless_interrupted(work, (&client, &name), notes).await
        }
    }
}

/// The bytes of one replica are passed on as they are, and JSON holds text only.
fn one_replica_as_json() -> UsageError {
    UsageError {
        sentence: "-o json does not go with --replica, which prints the output as it was written".to_owned(),
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

async fn follow_raw(
    client: MasterClient,
    name: JobName,
    mut reading: RawReading,
    (mut data, notes): (Data, Notes),
) -> Result<Exit, Error> {
    let mut patience = Patience::new();
    let view = loop {
        let before = reading.next;
        let outcome = reading.print_to_the_end(&client, &name, (&mut data, &notes)).await;
        if reading.next != before {
            patience.restore();
        }
        match outcome {
            Ok(view) => break view,
            Err(Error::Master(error)) => patience.wait_after(error).await?,
            Err(error) => return Err(error),
        }
    };
    data.end_partial_line()?;
    tell_end(&view, &notes);
    Ok(view.state.into())
}

/// How far one replica's output has been read.
struct RawReading {
    replica: ReplicaId,
    next: Option<u64>,
    tail: Option<u32>,
}

impl RawReading {
    async fn print_to_the_end(
        &mut self,
        client: &MasterClient,
        name: &JobName,
        printers: (&mut Data, &Notes),
    ) -> Result<JobView, Error> {
        self.print(client, name, Until::Finished, printers).await?;
        let view = client.view(name).await?;
        if view.state.is_finished() { Ok(view) } else { Err(client.log_stream_ended_early().into()) }
    }

    async fn print(
        &mut self,
        client: &MasterClient,
        name: &JobName,
        until: Until,
        (data, notes): (&mut Data, &Notes),
    ) -> Result<(), Error> {
        // The tail is where reading begins, not where it goes on.
        let tail = self.tail.filter(|_| self.next.is_none());
        let (position, mut bytes) = log_stream::raw(client, (name, self.replica), (self.next, tail), until).await?;
        if position.dropped > 0 && tail.is_none() {
            notes.say(&format!("{} bytes of the output are no longer kept", position.dropped));
        }
        self.next = Some(position.offset);
        while let Some(piece) = bytes.try_next().await.map_err(|error: MasterError| error)? {
            let piece = piece.as_ref();
            data.bytes(piece)?;
            self.next = self.next.map(|offset| offset + piece.len() as u64);
        }
        Ok(())
    }
}
