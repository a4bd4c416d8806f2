//! `client top`: what jobs, or the replicas of a job, do and use now.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use master_client::clock::now;
use master_client::{MasterClient, MasterError};
use protocol::ids::JobName;
use protocol::progress::JobSeries;
use protocol::view::JobSummary;
use tokio::time::sleep;

use crate::args::TopArgs;
use crate::ending::error::{Cause, Error};
use crate::ending::exit::Exit;
use crate::interrupt::Interrupts;
use crate::masters::finder::{Finder, JobPlace};
use crate::output::{Data, Notes, spelled, top_of_jobs, top_of_replicas};

/// The time between two tables on a terminal.
const INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of jobs whose numbers are asked for. Further jobs are listed without numbers.
const JOBS_MAX: usize = 64;

/// Prints the table once, or shows it on a terminal until an interrupt.
pub(super) async fn run(finder: &Finder, args: &TopArgs, data: &mut Data, notes: &Notes) -> Result<Exit, Error> {
    if args.once || !data.is_for_terminal() || !notes.shows_progress() {
        data.text(&table(finder, args.name.as_ref(), notes).await?)?;
        return Ok(Exit::Done);
    }
    let mut interrupts = Interrupts::listen().map_err(|error| Error::unsuccessful("catch Ctrl-C").because(error))?;
    let show = async {
        let (mut shown, mut at) = (String::new(), Instant::now());
        loop {
            match table(finder, args.name.as_ref(), notes).await {
                Ok(table) => {
                    (shown, at) = (table, Instant::now());
                    notes.show_table(&shown);
                }
                // The next table may succeed.
                Err(error) if is_passing(&error) => {
                    notes.show_table(&format!("not up to date since {}: {error}\n{shown}", spelled(at.elapsed())));
                }
                Err(error) => return Err(error),
            }
            sleep(INTERVAL).await;
        }
    };
    tokio::select! {
        failed = show => failed,
        () = interrupts.next() => {
            notes.end_progress();
            Ok(Exit::Done)
        }
    }
}

fn is_passing(error: &Error) -> bool {
    matches!(&error.cause, Cause::Master(error) if error.is_transient())
}

/// The present table. Looks for local masters each time, because they end with their jobs.
async fn table(finder: &Finder, name: Option<&JobName>, notes: &Notes) -> Result<String, Error> {
    let Some(name) = name else {
        let jobs = finder.upstream.masters().of_all(with_numbers).await?;
        return Ok(top_of_jobs(&jobs, now()));
    };
    let (view, series) = match finder.locate(name, notes).await? {
        JobPlace::Master(client) => (client.view(name).await?, client.progress(name, 1).await?),
        JobPlace::History(past) => (past.view, past.series),
    };
    Ok(top_of_replicas(&view, &series, now()))
}

/// The jobs of a master with their newest numbers. A job that was deleted meanwhile has no numbers.
async fn with_numbers(client: &MasterClient) -> Result<Vec<(JobSummary, Option<JobSeries>)>, MasterError> {
    let jobs = client.list().await?.jobs.into_iter().filter(|job| !job.state.is_finished());
    let asked = jobs.enumerate().map(async |(index, job)| {
        let series = if index < JOBS_MAX { client.progress(&job.name, 1).await.ok() } else { None };
        (job, series)
    });
    Ok(join_all(asked).await)
}
