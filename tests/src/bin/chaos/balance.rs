//! Jobs whose batch sizes change while something else happens to the jobs: a takeover, another number of workers, new
//! code or a suspension. At every step, all ranks must use the same sizes, and each epoch must use each sample once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use e2e::Scene;
use e2e::balanced::{self, GLOBAL_BATCH, Journal, SCRIPT, slow_down};
use e2e::code::send_code;
use e2e::machines::Machines;
use e2e::processes::within;
use e2e::programs::python_path;
use protocol::batching::Batching;
use protocol::ids::{Generation, JobName};
use protocol::job::{JobRequest, Strategy};
use protocol::patch::JobPatch;
use protocol::run_policy::RunPolicy;
use protocol::view::{JobState, JobView};
use testkit::chaos::STRIKE_VARIABLE;

use crate::api::Api;
use crate::resizes::Resizes;
use crate::say;

/// Maximum violations of a journal that are printed.
const SHOWN: usize = 10;

/// What happens to a job. Afterwards, the sizes must change again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The master is killed. The next master takes the start over.
    Takeover,
    /// The job gets a third worker.
    Scale,
    /// A user pushes new code.
    Push,
    /// A user suspends the job, and resumes it.
    Suspend,
}

impl Event {
    const ALL: [Self; 4] = [Self::Takeover, Self::Scale, Self::Push, Self::Suspend];
}

/// When the event happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// The ranks train, and the master has not sent other sizes.
    BeforeOrder,
    /// Some rank knows other sizes, and the ranks do not use them yet.
    BeforeVote,
    /// The ranks use other sizes.
    AfterChange,
}

impl Moment {
    const ALL: [Self; 3] = [Self::BeforeOrder, Self::BeforeVote, Self::AfterChange];

    /// Waits until a start with this many ranks has reached the moment: the start `first`, or a later one.
    fn wait(self, folder: &Path, (first, ranks): (Generation, usize), state: impl Fn() -> String) {
        let is_reached = || {
            let journal = Journal::read(folder);
            let (_, newest) = journal.newest(ranks).filter(|(start, _)| *start >= first)?;
            let is_reached = match self {
                Self::BeforeOrder => true,
                Self::BeforeVote => newest.values().any(|line| line.noticed.max(line.split) > 0),
                Self::AfterChange => newest.values().all(|line| line.split > 0),
            };
            is_reached.then_some(())
        };
        within(&format!("{ranks} ranks are at the moment {self:?}"), is_reached, state);
    }
}

/// Lets each event happen at each moment, `rounds` times.
pub(crate) fn campaign(rounds: u32) -> anyhow::Result<()> {
    let (begin, mut violations) = (Instant::now(), vec![]);
    let each = || Event::ALL.into_iter().flat_map(|event| Moment::ALL.map(|moment| (event, moment)));
    for (event, moment) in (0..rounds).flat_map(|_| each()) {
        let played = if event == Event::Takeover { take_over(moment) } else { disturb(event, moment) };
        match played {
            Ok(changes) => say(&format!("{event:?} {moment:?}: {changes} changes of the sizes")),
            Err(error) => {
                say(&format!("VIOLATION {event:?} {moment:?}: {error:#}"));
                violations.push((event, moment));
            }
        }
    }
    ensure!(violations.is_empty(), "violations in {violations:?}");
    say(&format!(
        "{} events during a change of the batch sizes, {:.0} s for each: all ranks had the same sizes at each step, every \
         sample once an epoch, 0 violations",
        rounds as usize * each().count(),
        (begin.elapsed() / rounds.max(1)).as_secs_f64() / each().count() as f64,
    ));
    Ok(())
}

/// Kills the master of a job on machines. Returns the number of changes of the sizes.
fn take_over(moment: Moment) -> anyhow::Result<usize> {
    let strike = |strike| vec![(STRIKE_VARIABLE, strike)];
    let variables = match moment {
        Moment::BeforeOrder => strike("before-notify:kill:1"),
        Moment::BeforeVote => strike("after-notify:kill:1"),
        Moment::AfterChange => vec![],
    };
    let mut job = Machines::begin(&variables);
    if moment == Moment::AfterChange {
        job.until_changed(0);
        job.master.kill();
        job.next_master();
    } else {
        job.replace_the_struck_master();
    }
    let first = job.until_changed(0);
    slow_down(&job.folder(), 0);
    job.until_changed(first);
    let view = job.view().context("the master does not answer")?;
    balanced::end(&job.folder());
    job.ended();
    let journal = job.journal();
    ensure!(journal.starts.len() == 1 && view.restarts.is_empty(), "the scripts were restarted: {view:?}");
    judge(&journal)
}

/// Scales, pushes or suspends a job of two workers. Returns the number of changes of the sizes.
fn disturb(event: Event, moment: Moment) -> anyhow::Result<usize> {
    let scene = Scene::new("");
    let path = python_path();
    // One of the two agents never gets the first order. The master sends the order again some seconds later.
    let delay = (moment == Moment::BeforeVote).then_some((STRIKE_VARIABLE, "before-notify:delay:1"));
    let variables: Vec<(&str, &str)> = [("PATH", path.as_str())].into_iter().chain(delay).collect();
    let master = scene.master_with(&variables);
    let api = Api { scene: &scene, url: &master.url };
    let (name, folder): (JobName, _) = ("disturbed".parse()?, scene.path().join("disturbed"));
    let request = JobRequest {
        // Only a job with a range can be scaled.
        worker_min: (event == Event::Scale).then_some(1),
        code: Some(send_code(&master.url, None, &[("exec.py", SCRIPT)])),
        ..request(&folder, &name, 2)?
    };
    api.submit(&request)?;
    let first = Generation { epoch: 1, sequence: 1 };
    moment.wait(&folder, (first, 2), || state(api, &name));
    slow_down(&folder, 0);
    let workers = cause(event, api, &name)?;
    let is_another = |view: &JobView| view.generation > Some(first) || view.state.is_finished();
    let next = start_of(&api.until(&name, "another start", is_another)?)?;
    Moment::AfterChange.wait(&folder, (next, workers), || state(api, &name));
    balanced::end(&folder);
    ended_well(&api.finished(&name)?, api)?;
    judge(&Journal::read(&folder))
}

/// Lets an event happen. Returns the number of workers after it.
fn cause(event: Event, api: Api<'_>, name: &JobName) -> anyhow::Result<usize> {
    let patch = |patch| api.patch(name, patch);
    match event {
        Event::Takeover => bail!("a takeover needs machines"),
        Event::Scale => {
            patch(JobPatch { worker_num: Some(3), ..JobPatch::default() })?;
            return Ok(3);
        }
        Event::Push => {
            let code = send_code(api.url, None, &[("exec.py", &format!("{SCRIPT}# pushed\n"))]);
            patch(JobPatch { code: Some(code), ..JobPatch::default() })?;
        }
        Event::Suspend => {
            patch(JobPatch { suspended: Some(true), ..JobPatch::default() })?;
            api.until(name, "the job is suspended", |view| view.state == JobState::Suspended)?;
            patch(JobPatch { suspended: Some(false), ..JobPatch::default() })?;
        }
    }
    Ok(2)
}

/// Changes the number of workers `count` times. The changes come at each [`Moment`] in turn. Another thread of the
/// script takes batches early.
pub(crate) fn resizes(count: u32, seed: u64) -> anyhow::Result<()> {
    let (scene, path) = (Scene::new(SCRIPT), python_path());
    let master = scene.master_with(&[("PATH", &path)]);
    let api = Api { scene: &scene, url: &master.url };
    let random = fastrand::Rng::with_seed(seed);
    let mut resizes = Resizes { api, name: "balanced".parse()?, random, deleted: 0, workers: 2..=4 };
    let (name, folder) = (resizes.name.clone(), scene.path().join("balanced"));
    let env = BTreeMap::from([("AHEAD".parse()?, "2".to_owned())]);
    // A pod is deleted only if its command contains the job's name.
    api.submit(&JobRequest { worker_min: Some(2), env, args: vec![name.to_string()], ..request(&folder, &name, 4)? })?;
    let begin = Instant::now();
    let mut view = resizes.training_with(4, None)?;
    for (_, moment) in (0..count).zip(Moment::ALL.into_iter().cycle()) {
        let start = (start_of(&view)?, view.roster.len());
        Moment::BeforeOrder.wait(&folder, start, || state(api, &name));
        // The first sizes of a start follow measured speeds. To let the sizes change, the largest one must be wrong.
        slow_down(&folder, Journal::read(&folder).largest(start.1).context("no rank trains")?);
        moment.wait(&folder, start, || state(api, &name));
        thread::sleep(Duration::from_millis(resizes.random.u64(0..=100)));
        view = resizes.change(&view)?;
    }
    Moment::AfterChange.wait(&folder, (start_of(&view)?, view.roster.len()), || state(api, &name));
    balanced::end(&folder);
    let end = api.finished(&name)?;
    ended_well(&end, api)?;
    let journal = Journal::read(&folder);
    let changes = judge(&journal)?;
    ensure!(changes as u32 >= count / 3, "only {changes} changes of the sizes");
    say(&format!(
        "{count} changes of a gang of 2 to 4 workers ({} by deleting a pod), {:.1} s for each, {changes} changes of the \
         sizes while the scripts ran, {} steps and {} starts with batches taken 2 steps early: all ranks had the same \
         sizes at each step, every sample once an epoch, {} steps repeated",
        resizes.deleted,
        begin.elapsed().as_secs_f64() / f64::from(count.max(1)),
        journal.kept().len(),
        journal.starts.len(),
        journal.repeated(),
    ));
    drop(master);
    scene.until_empty();
    Ok(())
}

/// Creates this folder, and returns the request for a job that writes its journals there. Rank 1 is slow.
fn request(folder: &Path, name: &JobName, workers: u32) -> anyhow::Result<JobRequest> {
    fs::create_dir(folder)?;
    slow_down(folder, 1);
    Ok(JobRequest {
        worker_num: Some(workers),
        args: vec![folder.display().to_string()],
        batching: Batching { global_batch: Some(GLOBAL_BATCH), ..Batching::default() },
        run_policy: RunPolicy { max_restarts: 0, ..RunPolicy::default() },
        ..JobRequest::new(name.clone(), Strategy::AllReduce)
    })
}

fn start_of(view: &JobView) -> anyhow::Result<Generation> {
    view.generation.with_context(|| format!("the job has no start: {view:?}"))
}

fn ended_well(end: &JobView, api: Api<'_>) -> anyhow::Result<()> {
    let is_well = end.state == JobState::Succeeded && end.restarts.is_empty();
    ensure!(is_well, "the job ended with {end:?}\n{}", api.logs(&end.name));
    Ok(())
}

/// Fails if the journal contains violations. Returns how often the sizes changed within a start.
fn judge(journal: &Journal) -> anyhow::Result<usize> {
    let violations = journal.violations();
    let shown: Vec<&str> = violations.iter().take(SHOWN).map(String::as_str).collect();
    ensure!(shown.is_empty(), "{} violations, such as:\n{}", violations.len(), shown.join("\n"));
    let changes = |start| journal.versions(start).keys().filter(|version| **version > 0).count();
    Ok(journal.starts.keys().copied().map(changes).sum())
}

/// What a failed campaign prints.
fn state(api: Api<'_>, name: &JobName) -> String {
    let view = api.until(name, "any view", |_| true);
    format!("{view:?}\n{}", api.logs(name))
}
