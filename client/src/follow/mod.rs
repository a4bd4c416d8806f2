//! Follows a job to its end. Prints its merged output and the changes of its state. Callers handle interrupts, exit
//! codes and local masters.

pub(crate) mod resume;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::TryStreamExt;
use master_client::log_stream::{self, Lines, StreamUntil, WantedLines};
use master_client::{LONG_POLL, MasterClient, MasterError};
use protocol::code::CodeId;
use protocol::ids::{JobName, ReplicaId};
use protocol::output::LogLine;
use protocol::view::JobView;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TryRecvError};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::ending::error::{Cause, Error};
use crate::ending::exit::Exit;
use crate::follow::resume::{Resumable, to_the_end};
use crate::master::patience::{Patience, persist};
use crate::output::command_line::command;
use crate::output::{Data, Notes, hints, narrate};

/// Maximum number of events that wait to be printed. When there are so many, the client stops reading from the master.
const QUEUE: usize = 256;

/// Maximum wait for each further event after the job's result is decided.
const LAST_LINES: Duration = Duration::from_secs(15);

/// A job to follow.
pub(crate) struct Following {
    /// The job's master.
    pub(crate) client: MasterClient,
    /// The first view to show: the newest one when following begins.
    pub(crate) first: JobView,
    /// Whether the user knows the job's state in `first`. Then only later changes are printed.
    pub(crate) is_told: bool,
    /// The output to show, if any.
    pub(crate) logs: Option<WantedLines>,
    /// The channel for the id of the code that the master has lost and needs again; see [`JobView::wanted_code`].
    pub(crate) wanted: watch::Sender<Option<CodeId>>,
}

enum FollowEvent {
    View(Box<JobView>),
    Line(LogLine),
    LogsEnded,
    Failed(Error),
}

/// Prints the job's output and state changes until the job has ended, then its result. Returns the job's last view.
pub(crate) async fn follow(following: Following, data: &mut Data, notes: &Notes) -> Result<JobView, Error> {
    let Following { client, first, is_told, logs, wanted } = following;
    let (events, inbox) = channel(QUEUE);
    let logs_open = logs.is_some();
    let mut feeds = JoinSet::new();
    feeds.spawn(feed_views(client.clone(), first.clone(), events.clone(), notes.clone()));
    if let Some(wanted) = logs {
        let until = if notes.shows_progress() || data.shows_frames() {
            StreamUntil::EndWithUnfinished
        } else {
            StreamUntil::End
        };
        let offsets = BTreeMap::new();
        feeds.spawn(feed_lines(LineReading { client, name: first.name.clone(), wanted, until, offsets, events }));
    }
    let last = is_told.then_some(first);
    let last = print_events(Watch { inbox, last, logs_open, wanted }, data, notes).await;
    notes.end_progress();
    let last = last?;
    data.flush()?;
    tell_end(&last, notes);
    Ok(last)
}

/// Follows a job without its output.
pub(crate) async fn follow_unseen(client: MasterClient, name: JobName, notes: Notes) -> Result<Exit, Error> {
    let first = persist(&notes, || client.view(&name)).await?;
    let following = Following { client, first, is_told: true, logs: None, wanted: watch::Sender::default() };
    Ok(follow(following, &mut Data::above(&notes), &notes).await?.state.into())
}

/// Prints how a job ended, and the cause of a failure.
pub(crate) fn tell_end(view: &JobView, notes: &Notes) {
    notes.say(&narrate::closing(view));
    tell_cause(view, notes);
}

/// Prints the last output of the replica whose failure ended the job, and a hint.
pub(crate) fn tell_cause(view: &JobView, notes: &Notes) {
    if let Some((replica, lines)) = narrate::last_words(view) {
        let lines: Vec<String> = lines.iter().map(|line| format!("  {line}")).collect();
        notes.say(&format!("last output of {replica} on stderr:\n{}", lines.join("\n")));
    }
    if let Some(hint) = hints::for_failure(view) {
        notes.hint(&hint);
    }
}

struct Watch {
    inbox: Receiver<FollowEvent>,
    last: Option<JobView>,
    logs_open: bool,
    wanted: watch::Sender<Option<CodeId>>,
}

async fn print_events(watch: Watch, data: &mut Data, notes: &Notes) -> Result<JobView, Error> {
    let Watch { mut inbox, mut last, mut logs_open, wanted } = watch;
    loop {
        let has_ended = last.as_ref().is_some_and(|view| view.result.is_some());
        if let Some(view) = last.take_if(|_| has_ended && !logs_open).and_then(JobView::as_ended) {
            return Ok(view);
        }
        let deadline = if has_ended { Some(LAST_LINES) } else { None };
        match next_event(&mut inbox, deadline, data).await? {
            // Two tasks ask for views, so an older view may arrive after the view with the result.
            Some(FollowEvent::View(view)) if has_ended && view.result.is_none() => {}
            Some(FollowEvent::View(view)) => {
                wanted.send_replace(view.wanted_code);
                tell_changes(last.as_ref(), &view, data, notes)?;
                last = Some(narrate::known(last, *view));
            }
            Some(FollowEvent::Line(line)) if line.unfinished && !data.shows(&line) => {}
            Some(FollowEvent::Line(line)) if line.unfinished => {
                notes.show_unfinished(&line);
                data.frame(&line)?;
            }
            Some(FollowEvent::Line(line)) => {
                notes.end_unfinished(line.replica);
                data.log_line(&line)?;
            }
            Some(FollowEvent::LogsEnded) => logs_open = false,
            Some(FollowEvent::Failed(error)) => return Err(error),
            None => {
                let name = last.as_ref().map_or("NAME", |view| view.name.as_str());
                let logs = command(&format!("logs {name}"));
                notes.say(&format!(
                    "the last log lines did not arrive; a master that stays prints all that it has: {logs}"
                ));
                logs_open = false;
            }
        }
    }
}

/// Returns the next event, or `None` after the deadline. Flushes buffered lines before it waits.
async fn next_event(
    inbox: &mut Receiver<FollowEvent>,
    deadline: Option<Duration>,
    data: &mut Data,
) -> Result<Option<FollowEvent>, Error> {
    match inbox.try_recv() {
        Ok(event) => return Ok(Some(event)),
        Err(TryRecvError::Empty | TryRecvError::Disconnected) => data.flush()?,
    }
    Ok(match deadline {
        Some(deadline) => tokio::time::timeout(deadline, inbox.recv()).await.ok().flatten(),
        None => inbox.recv().await,
    })
}

fn tell_changes(before: Option<&JobView>, now: &JobView, data: &mut Data, notes: &Notes) -> Result<(), Error> {
    if let Some(before) = before
        && before.uid != now.uid
    {
        return Err(replaced(&now.name));
    }
    let sentences = narrate::changes(before, now);
    if !sentences.is_empty() {
        data.flush()?;
        notes.say(&sentences.join("\n"));
    }
    notes.show_progress(now);
    Ok(())
}

/// The error if someone deleted the job and submitted another job with the same name.
pub(crate) fn replaced(job: &JobName) -> Error {
    Error::unsuccessful(format!("job {job} was deleted, and another job has its name now"))
}

/// The error of a command that waited for a job. If the master does not know the job any more, someone deleted it.
pub(crate) fn or_deleted(error: Error, job: &JobName) -> Error {
    let is_deleted = matches!(&error.cause, Cause::Master(cause) if cause.is_not_found());
    if is_deleted { Error::unsuccessful(format!("job {job} was deleted before it ended")) } else { error }
}

/// Waits until `test` is true for the job. Keeps the newest view in `view`. Calls `away` once each time the master
/// becomes unreachable.
pub(crate) async fn until(
    client: &MasterClient,
    view: &mut JobView,
    mut test: impl FnMut(&JobView) -> bool,
    away: impl Fn(&MasterError),
) -> Result<(), Error> {
    let mut patience = Patience::of_observer();
    while !test(view) {
        match client.view_after(&view.name, view.seq, LONG_POLL).await {
            Ok(next) if next.uid != view.uid => return Err(replaced(&view.name)),
            Ok(next) => {
                patience.restore();
                *view = next;
            }
            Err(error) => {
                if error.is_transient() && !patience.has_failed() {
                    away(&error);
                }
                patience.wait_after(error).await?;
            }
        }
    }
    Ok(())
}

/// Sends the job's view at once and after each change. Ends when the job has a result, a request fails or the receiver
/// is dropped.
async fn feed_views(client: MasterClient, mut view: JobView, events: Sender<FollowEvent>, notes: Notes) {
    let away = |error: &MasterError| notes.say(&format!("{error}; retrying"));
    loop {
        let (seq, has_ended) = (view.seq, view.result.is_some());
        if events.send(FollowEvent::View(Box::new(view.clone()))).await.is_err() || has_ended {
            return;
        }
        if let Err(error) = until(&client, &mut view, |now| now.seq != seq, away).await {
            let _ = events.send(FollowEvent::Failed(error)).await;
            return;
        }
    }
}

/// Sends every line until the job has ended. If the stream breaks, continues after the last complete lines.
async fn feed_lines(mut reading: LineReading) {
    let last = match to_the_end(&mut reading).await {
        Ok(_) => FollowEvent::LogsEnded,
        Err(error) => FollowEvent::Failed(error),
    };
    let _ = reading.events.send(last).await;
}

/// The merged lines of a job, and how far they are read.
struct LineReading {
    client: MasterClient,
    name: JobName,
    wanted: WantedLines,
    until: StreamUntil,
    offsets: BTreeMap<ReplicaId, u64>,
    events: Sender<FollowEvent>,
}

impl Resumable for LineReading {
    type Opened = Lines;

    async fn open(&self) -> Result<Lines, MasterError> {
        let Self { client, name, wanted, until, offsets, events } = self;
        if !offsets.is_empty() {
            // A new master may have restarted the job. The view of the restart must come before the new lines.
            let view = client.view(name).await?;
            let _ = events.send(FollowEvent::View(Box::new(view))).await;
        }
        log_stream::merged(client, name, wanted, offsets, *until).await
    }

    async fn read(&mut self, mut lines: Lines) -> Result<JobView, Error> {
        while let Some(line) = lines.try_next().await? {
            if !line.unfinished {
                self.offsets.insert(line.replica, line.offset);
            }
            // The error is ignored: if the receiver was dropped, this task is about to be aborted.
            let _ = self.events.send(FollowEvent::Line(line)).await;
        }
        Ok(log_stream::ended_with(&self.client, &self.name).await?)
    }
}
