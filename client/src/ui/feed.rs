//! What the master knows, for all open tabs together. One task asks the master about the list of jobs, and one task
//! about each job that is open in a tab. Tabs read the newest answer at their own speed, so a tab that stops reading
//! delays neither the task nor other tabs.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use master_client::{LONG_POLL, MasterClient, MasterError};
use protocol::history::PastJob;
use protocol::ids::{JobName, UnixMillis};
use protocol::output::LogLine;
use protocol::view::{JobList, JobView};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::log_lines::Line;
use super::output::{LINES_MAX, OutputReading};
use super::parts::{Content, JobShown, KnownToFeed, Part};
use super::series::Series;
use crate::ending::error::{Cause, Error};
use crate::masters::past;
use crate::masters::upstream::Upstream;

/// Pause after which the list of jobs is read again, so that the times on the page grow. A change is shown earlier,
/// after at most `LIST_PAUSE`.
const LIST_PERIOD: Duration = Duration::from_secs(2);
/// Maximum time between two looks at a job that has not ended: at its view, so that the times on the page grow, and at
/// the reports of its scripts.
const SERIES_PERIOD: Duration = Duration::from_secs(5);
/// Minimum time between two requests for the list, because all rows are made again after each answer.
const LIST_PAUSE: Duration = Duration::from_millis(500);
/// Minimum time between two requests for one job.
const PAUSE: Duration = Duration::from_millis(100);
/// Time between two attempts to reach the master.
const RETRY: Duration = Duration::from_secs(3);
/// How long a feed continues after its last tab was closed, because tabs often come back.
const LINGER: Duration = Duration::from_secs(10);
/// Maximum time that a feed's first answer about a job waits for the newest lines of output.
const FIRST_LINES: Duration = Duration::from_millis(40);
/// Maximum number of jobs that are followed with open requests. The way to the master may be a port-forward, which
/// allows only a few connections at a time. Further jobs are asked every [`SERIES_PERIOD`].
const FOLLOWED_MAX: usize = 4;

/// What a feed is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Topic {
    /// The list of all jobs.
    Jobs,
    Job(JobName),
}

/// All feeds.
pub(crate) struct Hub {
    pub(super) upstream: Upstream,
    /// This machine's clock. The times in a job's view are by the master's clock, which may differ.
    now: fn() -> UnixMillis,
    feeds: Mutex<Feeds>,
}

#[derive(Default)]
struct Feeds {
    by_topic: HashMap<Topic, Arc<Feed>>,
    tasks: JoinSet<()>,
    /// Number of feeds so far.
    count: u64,
}

/// One feed.
pub(super) struct Feed {
    /// Distinguishes this feed from an earlier one about the same job.
    pub(super) id: u64,
    topic: Topic,
    known: watch::Sender<Option<Arc<Snapshot>>>,
    lines: Mutex<Ring>,
    /// The number of the next line.
    pub(super) written: watch::Sender<u64>,
}

/// What a feed knew at one time, and the HTML of its parts. Each part is made at most once.
pub(super) struct Snapshot {
    pub(super) known: KnownToFeed,
    html: Mutex<HashMap<Part, Arc<str>>>,
}

impl Snapshot {
    /// The HTML of a part.
    pub(super) fn html(&self, part: &Part) -> Arc<str> {
        let mut made = locked(&self.html);
        Arc::clone(made.entry(part.clone()).or_insert_with(|| part.html(&self.known).into()))
    }
}

/// The newest lines of output of all replicas.
#[derive(Default)]
struct Ring {
    lines: VecDeque<Arc<Line>>,
    /// The number of the next line.
    end: u64,
    /// The number of jobs that this feed has had, because another job may get the same name. Each new job clears the
    /// lines.
    jobs: u64,
}

impl Ring {
    fn begin(&self) -> u64 {
        self.end - self.lines.len() as u64
    }

    fn push(&mut self, line: Line) {
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(Arc::new(line));
        self.end += 1;
    }

    /// Forgets all lines. Skips one number, so that every reader sees a gap and starts again with the newest lines.
    fn clear(&mut self) {
        self.lines.clear();
        self.end += 1;
        self.jobs += 1;
    }
}

/// Lines of output for a tab.
pub(super) struct NewLines {
    pub(super) lines: Vec<Arc<Line>>,
    /// Whether the lines before these lines were dropped, or belong to another job.
    pub(super) is_gap: bool,
    /// The number of the next line.
    pub(super) end: u64,
    /// A number that differs between the lines of two jobs.
    pub(super) job: u64,
}

impl Feed {
    /// The lines from this number on.
    pub(super) fn lines_from(&self, from: u64) -> NewLines {
        let ring = locked(&self.lines);
        let is_gap = from < ring.begin() || from > ring.end;
        let skipped = if is_gap { 0 } else { from - ring.begin() };
        let lines = ring.lines.iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX)).cloned().collect();
        NewLines { lines, is_gap, end: ring.end, job: ring.jobs }
    }

    fn change_lines(&self, change: impl FnOnce(&mut Ring)) {
        let end = {
            let mut ring = locked(&self.lines);
            change(&mut ring);
            ring.end
        };
        self.written.send_replace(end);
    }

    fn publish(&self, known: KnownToFeed) {
        self.known.send_replace(Some(Arc::new(Snapshot { known, html: Mutex::default() })));
    }
}

/// A tab's view of a feed. The feed ends some time after its last `Watching` is dropped.
pub(super) struct Watching {
    pub(super) feed: Arc<Feed>,
    pub(super) known: watch::Receiver<Option<Arc<Snapshot>>>,
}

impl Watching {
    /// The newest snapshot. Waits for the first answer of the master.
    pub(super) async fn snapshot(&mut self) -> Arc<Snapshot> {
        let known = self.known.wait_for(Option::is_some).await;
        known.ok().and_then(|known| known.clone()).expect("the feed has a sender, and the value is there")
    }
}

impl Hub {
    /// A hub without feeds.
    pub(crate) fn new(upstream: Upstream, now: fn() -> UnixMillis) -> Arc<Self> {
        Arc::new(Self { upstream, now, feeds: Mutex::default() })
    }

    /// Watches the feed about this topic. Starts the feed if there is none.
    pub(super) fn watch(self: &Arc<Self>, topic: Topic) -> Watching {
        let mut feeds = locked(&self.feeds);
        let Feeds { by_topic, tasks, count } = &mut *feeds;
        let followed = by_topic.keys().filter(|topic| matches!(topic, Topic::Job(_))).count();
        let feed = by_topic.entry(topic).or_insert_with_key(|topic| {
            while tasks.try_join_next().is_some() {}
            *count += 1;
            let (known, written) = (watch::Sender::default(), watch::Sender::default());
            let feed = Arc::new(Feed { id: *count, topic: topic.clone(), known, lines: Mutex::default(), written });
            let pace = if followed < FOLLOWED_MAX { FeedPace::Live } else { FeedPace::Slow };
            tasks.spawn(Arc::clone(self).run(Arc::clone(&feed), pace));
            feed
        });
        Watching { feed: Arc::clone(feed), known: feed.known.subscribe() }
    }

    /// Keeps a feed up to date until nobody watches it.
    async fn run(self: Arc<Self>, feed: Arc<Feed>, pace: FeedPace) {
        let mut asking = JoinSet::new();
        match &feed.topic {
            Topic::Jobs => asking.spawn(Arc::clone(&self).ask_for_jobs(Arc::clone(&feed))),
            Topic::Job(name) => {
                let hub = Arc::clone(&self);
                let asked = AskingForJob {
                    hub,
                    feed: Arc::clone(&feed),
                    name: name.clone(),
                    pace,
                    job: None,
                    next_series: Instant::now(),
                    next_timeline: Instant::now(),
                    has_looked_back: false,
                    reading: JoinSet::new(),
                };
                asking.spawn(asked.run())
            }
        };
        loop {
            feed.known.closed().await;
            sleep(LINGER).await;
            let mut feeds = locked(&self.feeds);
            if feed.known.receiver_count() == 0 {
                feeds.by_topic.remove(&feed.topic);
                return;
            }
        }
    }

    async fn ask_for_jobs(self: Arc<Self>, feed: Arc<Feed>) {
        let mut content = Content::Nothing;
        let mut list = JobList { seq: 0, jobs: vec![] };
        let (mut ended, mut is_known) = (vec![], false);
        loop {
            let answer = match content {
                Content::Nothing => self.upstream.list().await,
                Content::Jobs { .. } | Content::Job(_) => self.upstream.list_after(list.seq, LIST_PERIOD).await,
            };
            let answer = answer.map_err(Error::from);
            let (trouble, pause) = match &answer {
                Ok(_) => (None, LIST_PAUSE),
                Err(error) => (Some(sentence(error)), LIST_PERIOD),
            };
            if let Ok(newest) = answer {
                // A job that is no longer on record is now in the history.
                is_known &= past::gone(&list.jobs, &newest.jobs).is_empty();
                if !is_known && let Ok(past) = self.upstream.ended(&newest.jobs).await {
                    (ended, is_known) = (past, true);
                }
                list = newest;
                content = Content::Jobs { present: list.jobs.clone(), past: ended.clone() };
            }
            feed.publish(KnownToFeed { content: content.clone(), trouble, at: (self.now)() });
            sleep(pause).await;
        }
    }
}

/// How closely a job is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FeedPace {
    /// By a long poll and a log stream.
    Live,
    /// By short requests.
    Slow,
}

/// The task that asks about one job.
struct AskingForJob {
    hub: Arc<Hub>,
    feed: Arc<Feed>,
    name: JobName,
    pace: FeedPace,
    /// The job as last seen. `None` before the first answer, and if the master knows no such job.
    job: Option<JobShown>,
    /// When the reports are read next.
    next_series: Instant,
    /// When the timeline is read next. A change of the job's state makes this earlier.
    next_timeline: Instant,
    /// Whether the task has looked for the earlier job from the same source.
    has_looked_back: bool,
    /// The task that reads the output.
    reading: JoinSet<()>,
}

impl AskingForJob {
    async fn run(mut self) {
        loop {
            let asked = if self.look_back().await { Ok(()) } else { self.ask().await };
            let (trouble, pause) = match asked {
                Ok(()) => (None, PAUSE),
                Err(error) => {
                    self.look_in_history(&error).await;
                    let is_past = self.job.as_ref().is_some_and(|job| job.is_past);
                    ((!is_past).then(|| sentence(&error)), RETRY)
                }
            };
            let content = self.job.clone().map_or(Content::Nothing, |job| Content::Job(Box::new(job)));
            self.feed.publish(KnownToFeed { content, trouble, at: (self.hub.now)() });
            sleep(pause).await;
        }
    }

    /// If the job may no longer be on record, shows it from the history.
    async fn look_in_history(&mut self, error: &Error) {
        let is_gone = is_not_found(error);
        let known = self.job.as_ref().filter(|job| !job.is_past);
        // A local master ends with its job.
        if let (Some(job), true) = (known, is_gone || self.hub.upstream.is_local())
            && let Ok(past) = self.hub.upstream.past_job(&job.view.uid).await
        {
            self.job = Some(from_history(&self.hub.upstream, past).await);
        }
        if is_gone {
            self.job.take_if(|job| !job.is_past);
        }
        // Nothing more can be read of a job that is not on record.
        if self.job.as_ref().is_none_or(|job| job.is_past) {
            self.reading.abort_all();
        }
    }

    /// Looks once for the earlier job from the same source, after the first answer was published. Returns whether it
    /// has looked now.
    async fn look_back(&mut self) -> bool {
        let Some(job) = self.job.as_mut().filter(|_| !self.has_looked_back) else { return false };
        self.has_looked_back = true;
        // Without the earlier job, the rest of the page is still useful.
        if let Ok(list) = self.hub.upstream.list().await {
            job.before = self.hub.upstream.run_before(&job.view, &list.jobs).await.ok().flatten();
        }
        true
    }

    /// Waits for a change of the job, at most until its reports are due. Then reads what is new about it.
    async fn ask(&mut self) -> Result<(), Error> {
        let client = self.hub.upstream.of(&self.name)?;
        let view = self.next_view(&client).await?;
        let before = self.job.take().filter(|job| job.view.uid == view.uid && !job.is_past);
        self.has_looked_back &= before.is_some();
        let first_lines = before.is_none().then(|| self.read_output(client.clone(), view.replicas.len()));
        let state_before = before.as_ref().map(|job| job.view.state);
        let job = self.job.insert(match before {
            Some(job) => JobShown { view, ..job },
            None => JobShown::on_record(view, self.hub.upstream.takes_jobs()),
        });
        let (state, is_new) = (job.view.state, state_before != Some(job.view.state));
        if is_new && state.is_finished() {
            // The master adds numbers that it finds in the output later, with the times of their lines. A request for
            // newer points would miss them, so all points are read again.
            job.series = Series::default();
        }
        let period = if state.is_finished() { LONG_POLL } else { SERIES_PERIOD };
        if is_new || self.next_series <= Instant::now() {
            // Without the reports, the rest of the page is still useful.
            let newest = client.series_after(&self.name, job.series.after()).await;
            newest.into_iter().for_each(|answer| job.series.add(answer));
            self.next_series = Instant::now() + period;
        }
        if is_new || self.next_timeline <= Instant::now() {
            job.timeline = client.timeline(&self.name).await.ok();
            self.next_timeline = Instant::now() + period;
        }
        if let Some(mut first_lines) = first_lines {
            // Waits a moment, so that the first page contains the newest lines.
            let _ = timeout(FIRST_LINES, first_lines.changed()).await;
        }
        Ok(())
    }

    async fn next_view(&self, client: &MasterClient) -> Result<JobView, MasterError> {
        match &self.job {
            None => client.view(&self.name).await,
            Some(job) if self.pace == FeedPace::Slow => {
                sleep(SERIES_PERIOD).await;
                client.view_after(&self.name, job.view.seq, Duration::ZERO).await
            }
            Some(JobShown { view, .. }) => {
                let wait = if view.state.is_finished() { LONG_POLL } else { SERIES_PERIOD };
                client.view_after(&self.name, view.seq, wait).await
            }
        }
    }

    /// Begins to read the output of a job that was not known before. The channel closes when the newest lines are
    /// read.
    fn read_output(&mut self, client: MasterClient, replicas: usize) -> watch::Receiver<()> {
        self.reading.abort_all();
        self.feed.change_lines(Ring::clear);
        let (first_read, has_read) = watch::channel(());
        let feed = Arc::clone(&self.feed);
        let push = Box::new(move |line: &LogLine| feed.change_lines(|ring| ring.push(Line::new(line))));
        let mut reading = OutputReading::new(client, self.name.clone(), replicas, push);
        let pace = self.pace;
        self.reading.spawn(async move {
            reading.read_newest().await;
            drop(first_read);
            match pace {
                FeedPace::Live => reading.follow().await,
                FeedPace::Slow => reading.poll(SERIES_PERIOD).await,
            }
        });
        has_read
    }
}

/// A job of the history, with the earlier job from the same source.
pub(super) async fn from_history(upstream: &Upstream, past: PastJob) -> JobShown {
    let PastJob { view, timeline, series: reports, last_output: _ } = past;
    let present = upstream.list().await.map(|list| list.jobs).unwrap_or_default();
    let mut series = Series::default();
    series.add(reports);
    JobShown {
        series,
        timeline: Some(timeline),
        before: upstream.run_before(&view, &present).await.ok().flatten(),
        is_past: true,
        takes_jobs: upstream.takes_jobs(),
        has_its_name: present.iter().all(|job| job.name != view.name),
        view,
    }
}

/// The sentence of an error, with its hint.
pub(super) fn sentence(error: &Error) -> String {
    error.hint.as_ref().map_or_else(|| error.to_string(), |hint| format!("{error} ({hint})"))
}

/// Whether the master does not know the job.
pub(super) fn is_not_found(error: &Error) -> bool {
    matches!(&error.cause, Cause::Master(error) if error.is_not_found())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        let line = protocol::output::LogLine {
            replica: "worker-0".parse().unwrap(),
            time: None,
            offset: 1,
            line: text.to_owned(),
            unfinished: false,
        };
        Line::new(&line)
    }

    #[test]
    fn a_reader_that_lags_gets_all_kept_lines_and_is_told_of_the_gap() {
        let feed = Feed {
            id: 1,
            topic: Topic::Jobs,
            known: watch::Sender::default(),
            lines: Mutex::default(),
            written: watch::Sender::default(),
        };
        let seen = |from| {
            let NewLines { lines, is_gap, end, job: _ } = feed.lines_from(from);
            (lines.len(), is_gap, end)
        };
        assert_eq!(seen(0), (0, false, 0));
        (0..3).for_each(|number| feed.change_lines(|ring| ring.push(line(&number.to_string()))));
        assert_eq!((seen(0), seen(2), seen(3)), ((3, false, 3), (1, false, 3), (0, false, 3)));
        assert_eq!(seen(4), (3, true, 3), "a number of another feed");
        (0..LINES_MAX).for_each(|_| feed.change_lines(|ring| ring.push(line("more"))));
        assert_eq!((seen(3), seen(2)), ((LINES_MAX, false, 503), (LINES_MAX, true, 503)));
        feed.change_lines(Ring::clear);
        assert_eq!((seen(503), seen(504)), ((0, true, 504), (0, false, 504)), "the lines of another job");
        assert_eq!(*feed.written.borrow(), 504);
    }
}
