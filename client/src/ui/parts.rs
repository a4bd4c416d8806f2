//! The parts of the page that change while the user looks at them. Each part is HTML, made from what a feed knows.

use askama::Template;
use protocol::elastic::Workers;
use protocol::ids::{ReplicaId, UnixMillis};
use protocol::job::JobSpec;
use protocol::run_policy::NO_RESTART_LIMIT;
use protocol::timeline::Timeline;
use protocol::view::{JobState, JobSummary, JobView};

use super::actions::PageAction;
use super::charts::{Chart, charts};
use super::series::Series;
use crate::masters::upstream::{Before, path};
use crate::output::command_line::command;
use crate::output::{
    Colours, exit_or_reason, for_terminal, is_plain, narrate, number, result_or_queued, status_facts, time,
    time_per_step, timeline_text, why_text,
};

/// Number of replicas on one page.
pub(super) const ROWS_MAX: usize = 100;

/// Digits of a code's id that the page shows. They are enough to tell two codes apart.
const CODE_DIGITS: usize = 12;

/// What a feed knows.
pub(super) struct KnownToFeed {
    pub(super) content: Content,
    /// Why the newest request to the master failed.
    pub(super) trouble: Option<String>,
    /// When the content was current.
    pub(super) at: UnixMillis,
}

/// What the master has answered.
#[derive(Clone)]
pub(super) enum Content {
    /// The master has not answered yet, or there is no such job.
    Nothing,
    /// The jobs on record, and the jobs of the history.
    Jobs {
        present: Vec<JobSummary>,
        past: Vec<JobSummary>,
    },
    Job(Box<JobShown>),
}

/// A job, and what its scripts have reported.
#[derive(Clone)]
pub(super) struct JobShown {
    pub(super) view: JobView,
    pub(super) series: Series,
    /// When the job reached each step. `None` if the master could not say it.
    pub(super) timeline: Option<Timeline>,
    /// The earlier run of the same source, if it is known.
    pub(super) before: Option<Before>,
    /// Whether the job is in the history, and no longer on record.
    pub(super) is_past: bool,
    /// Whether the master takes new jobs.
    pub(super) takes_jobs: bool,
    /// Whether commands with the job's name are about this job.
    pub(super) has_its_name: bool,
}

impl JobShown {
    /// A job on record, of which only the view is known yet.
    pub(super) fn on_record(view: JobView, takes_jobs: bool) -> Self {
        let (series, timeline, before) = (Series::default(), None, None);
        Self { view, series, timeline, before, is_past: false, takes_jobs, has_its_name: true }
    }

    /// The path of the job's page, relative to the page of any job.
    pub(super) fn path(&self) -> String {
        format!("../{}", path(&self.view.name, &self.view.uid, self.is_past))
    }

    fn actions(&self) -> Vec<PageAction> {
        let mut actions = PageAction::possible(&self.view, self.takes_jobs);
        actions.retain(|action| !self.is_past || *action == PageAction::Rerun);
        actions
    }
}

/// A part of a page. Its HTML replaces the content of an element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Trouble,
    Jobs(Filter),
    /// Name, state and actions. Changes seldom, so that a button stays in place while the user clicks it.
    Head,
    Facts,
    Why,
    Charts,
    Timeline,
    /// A page of replicas, beginning with this one.
    Replicas(usize),
    Run,
}

/// Which jobs the list shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Filter {
    /// A part of the name.
    pub(super) name: String,
    /// The name of a state. Empty for all states.
    pub(super) state: String,
}

impl Filter {
    fn admits(&self, job: &JobSummary) -> bool {
        job.name.as_str().contains(&self.name.to_lowercase())
            && (self.state.is_empty() || self.state == job.state.as_str())
    }
}

impl Part {
    /// The parts of a job's page. A slow tab gets the most important parts first.
    pub(super) fn of_job(from: usize) -> Vec<Self> {
        vec![
            Self::Trouble,
            Self::Head,
            Self::Facts,
            Self::Why,
            Self::Replicas(from),
            Self::Charts,
            Self::Timeline,
            Self::Run,
        ]
    }

    /// The id of the part's element.
    pub(super) fn id(&self) -> &'static str {
        match self {
            Self::Trouble => "trouble",
            Self::Jobs(_) => "jobs",
            Self::Head => "head",
            Self::Facts => "facts",
            Self::Why => "why",
            Self::Charts => "charts",
            Self::Timeline => "timeline",
            Self::Replicas(_) => "replicas",
            Self::Run => "run",
        }
    }

    /// The HTML of this part. Empty if there is nothing to show.
    pub(super) fn html(&self, known: &KnownToFeed) -> String {
        match (self, &known.content) {
            (Self::Trouble, _) => known.trouble.as_deref().map(|text| html(&FeedTrouble { text })).unwrap_or_default(),
            (Self::Jobs(filter), Content::Jobs { present, past }) => {
                html(&JobRows::new((present, past), filter, known.at))
            }
            (Self::Head, Content::Job(job)) => html(&Head::new(job)),
            (Self::Facts, Content::Job(job)) => html(&FactRows { facts: facts(job, known.at) }),
            (Self::Why, Content::Job(job)) => why(&job.view),
            (Self::Charts, Content::Job(job)) => match charts(&job.series) {
                charts if charts.is_empty() => String::new(),
                charts => html(&Charts { charts }),
            },
            (Self::Timeline, Content::Job(job)) => timeline(job),
            (Self::Replicas(from), Content::Job(job)) => html(&ReplicaRows::new(job, *from)),
            (Self::Run, Content::Job(job)) => html(&RunRows::new(job)),
            (_, Content::Nothing | Content::Jobs { .. } | Content::Job(_)) => String::new(),
        }
    }
}

/// The HTML of a template. Removes characters that change the direction of text, and control characters.
pub(super) fn html(template: &impl Template) -> String {
    let mut html = template.render().expect("the templates write only to memory");
    html.retain(|letter| is_plain(letter) || letter == '\n');
    html
}

/// Text without the sequences by which programs control terminals.
pub(super) fn plain(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(|line| for_terminal(line, Colours::Removed)).collect();
    lines.join("\n")
}

/// The explanation of a failure. Empty if nothing has failed.
fn why(view: &JobView) -> String {
    if view.restarts.is_empty() && narrate::last_words(view).is_none() {
        return String::new();
    }
    html(&Why { text: plain(&why_text(view)) })
}

/// The timeline, in the words of `client timeline`. Empty if it is unknown.
fn timeline(job: &JobShown) -> String {
    let text = job.timeline.as_ref().map(|timeline| plain(&timeline_text(timeline)));
    text.map(|text| html(&TimeRows { text })).unwrap_or_default()
}

#[derive(Template)]
#[template(path = "trouble.html")]
struct FeedTrouble<'a> {
    text: &'a str,
}

#[derive(Template)]
#[template(path = "why.html")]
struct Why {
    text: String,
}

#[derive(Template)]
#[template(path = "charts.html")]
struct Charts {
    charts: Vec<Chart>,
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobRows {
    rows: Vec<JobRow>,
    /// Number of jobs before the filter.
    all: usize,
}

struct JobRow {
    name: String,
    /// The path of the job's page.
    path: String,
    is_past: bool,
    state: JobState,
    strategy: String,
    replicas: usize,
    time: String,
    result: String,
}

impl JobRows {
    fn new((present, past): (&[JobSummary], &[JobSummary]), filter: &Filter, now: UnixMillis) -> Self {
        let mut shown: Vec<_> =
            present.iter().map(|job| (job, false)).chain(past.iter().map(|job| (job, true))).collect();
        let all = shown.len();
        shown.retain(|(job, _)| filter.admits(job));
        // The newest job first. Jobs of a restarted master also have this time, because it is in the record.
        shown.sort_by_key(|(job, _)| std::cmp::Reverse(job.times.accepted.map(|at| at.0)));
        let row = |(job, is_past): (&JobSummary, bool)| JobRow {
            name: job.name.to_string(),
            path: path(&job.name, &job.uid, is_past),
            is_past,
            state: job.state,
            strategy: job.strategy.to_string(),
            replicas: job.replica_num,
            time: time(job.state, &job.times, now),
            result: plain(&result_or_queued(job)),
        };
        Self { rows: shown.into_iter().map(row).collect(), all }
    }
}

#[derive(Template)]
#[template(path = "head.html")]
struct Head {
    name: String,
    path: String,
    is_past: bool,
    state: JobState,
    sentence: String,
    actions: Vec<PageAction>,
}

impl Head {
    fn new(job: &JobShown) -> Self {
        let view = &job.view;
        let sentence = if view.state.is_finished() { narrate::closing(view) } else { narrate::standing(view) };
        Self {
            name: view.name.to_string(),
            path: job.path(),
            is_past: job.is_past,
            state: view.state,
            sentence: plain(&sentence),
            actions: job.actions(),
        }
    }
}

#[derive(Template)]
#[template(path = "facts.html")]
struct FactRows {
    facts: Vec<(&'static str, String)>,
}

/// The facts of `status` that no other part of the page shows.
fn facts(JobShown { view, series, .. }: &JobShown, now: UnixMillis) -> Vec<(&'static str, String)> {
    let facts = status_facts(view, Some(&series.tail()), now).into_iter();
    // The timeline shows the starts.
    let elsewhere = ["job", "asked for", "state", "generation", "result", "failed", ""];
    facts.filter(|(label, _)| !elsewhere.contains(label)).map(|(label, value)| (label, plain(&value))).collect()
}

#[derive(Template)]
#[template(path = "timeline.html")]
struct TimeRows {
    text: String,
}

#[derive(Template)]
#[template(path = "replicas.html")]
struct ReplicaRows {
    path: String,
    /// Whether each replica has a page.
    has_pages: bool,
    rows: Vec<ReplicaRow>,
    /// The numbers of the first and the last row, counted from 1, and the total number of replicas.
    first: usize,
    last: usize,
    all: usize,
    /// The first rows of the pages before and after.
    before: Option<usize>,
    after: Option<usize>,
}

struct ReplicaRow {
    replica: ReplicaId,
    state: &'static str,
    step: String,
    time: String,
    batch: String,
    note: String,
}

impl ReplicaRows {
    fn new(job: &JobShown, from: usize) -> Self {
        let JobShown { view, series, .. } = job;
        let all = view.replicas.len();
        let begin = if from < all { from } else { 0 };
        let end = all.min(begin.saturating_add(ROWS_MAX));
        let row = |replica: &protocol::view::ReplicaView| {
            let newest = series.newest(replica.replica);
            ReplicaRow {
                replica: replica.replica,
                state: replica.state.as_str(),
                step: newest.and_then(|progress| progress.step).map(|step| step.to_string()).unwrap_or_default(),
                time: newest.and_then(time_per_step).unwrap_or_default(),
                batch: newest.map(|progress| number(progress.batch.into())).unwrap_or_default(),
                note: plain(&exit_or_reason(replica)),
            }
        };
        Self {
            path: job.path(),
            has_pages: !job.is_past,
            rows: view.replicas[begin..end].iter().map(row).collect(),
            first: begin + 1,
            last: end,
            all,
            before: (begin > 0).then(|| begin.saturating_sub(ROWS_MAX)),
            after: (end < all).then_some(end),
        }
    }
}

#[derive(Template)]
#[template(path = "run.html")]
struct RunRows {
    name: String,
    facts: Vec<(&'static str, String)>,
    /// A replica whose TF_CONFIG can be shown.
    first: Option<ReplicaId>,
    before: Option<Before>,
    commands: Vec<(&'static str, String)>,
}

impl RunRows {
    fn new(job: &JobShown) -> Self {
        let (view, name) = (&job.view, &job.view.name);
        let mut commands = vec![];
        if !job.is_past {
            commands.push(("follow the output", format!("logs {name} -f")));
            commands.push(("wait for the end", format!("wait {name}")));
        }
        if job.has_its_name {
            commands.push(("show the job", format!("status {name}")));
            commands.extend((!view.restarts.is_empty()).then(|| ("explain the failure", format!("why {name}"))));
            if view.result.is_none()
                && let Some(Workers { min, max }) = view.workers
            {
                commands.push(("change the workers", format!("scale {name} --worker-num {min}:{max}")));
            }
            let can_run = view.result.is_some() && view.spec.origin.is_none();
            commands.extend(can_run.then(|| ("run the job again", format!("rerun {name}"))));
        }
        let commands = commands.into_iter().map(|(what, words)| (what, command(&words))).collect();
        let mut before = job.before.clone();
        before.iter_mut().flat_map(|before| &mut before.differences).for_each(|text| *text = plain(text));
        let first = if job.is_past { None } else { view.replicas.first().map(|replica| replica.replica) };
        Self { name: name.to_string(), facts: facts_of_run(&view.spec, view), first, before, commands }
    }
}

/// What the replicas run. Values of variables are left out, because they may be secrets.
fn facts_of_run(spec: &JobSpec, view: &JobView) -> Vec<(&'static str, String)> {
    let words = std::iter::once(spec.script.to_string()).chain(spec.args.iter().cloned());
    let names: Vec<&str> = spec.env.keys().map(|name| name.as_str()).collect();
    let mut facts = vec![("script", words.collect::<Vec<_>>().join(" ")), ("asked for", narrate::composition(spec))];
    facts.extend(spec.image.as_ref().map(|image| ("image", image.to_string())));
    facts
        .extend(view.folder.as_ref().or(spec.work_dir.as_ref()).map(|folder| ("folder", folder.display().to_string())));
    let code = view.code.map(|code| code.to_string().chars().take(CODE_DIGITS).collect());
    facts.extend(code.map(|code| ("code", code)));
    facts.extend(spec.about.commit.as_ref().map(|commit| ("commit", commit.clone())));
    facts.extend((view.pushes > 0).then(|| ("pushes", view.pushes.to_string())));
    facts.extend((!names.is_empty()).then(|| ("variables", names.join(", "))));
    facts.push(match spec.run_policy.max_restarts {
        NO_RESTART_LIMIT => ("restarts", "no limit".to_owned()),
        limit => ("restarts", format!("at most {limit}")),
    });
    facts.into_iter().map(|(label, value)| (label, plain(&value))).collect()
}
