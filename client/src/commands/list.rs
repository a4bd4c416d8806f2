//! `list`: all jobs, or those that the filters choose.

use std::time::Duration;

use master_client::LONG_POLL;
use master_client::clock::now;
use protocol::history::PastJobs;
use protocol::ids::UnixMillis;
use protocol::view::{JobList, JobSummary};

use crate::address::config::ClientConfig;
use crate::args::ListArgs;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::master::patience::observe;
use crate::masters::past;
use crate::masters::upstream::Upstream;
use crate::output::command_line::command;
use crate::output::{Data, Format, Notes, jobs_table};

/// The jobs of a master, or of all local masters. With `--all`, also the jobs of the history.
pub(super) async fn run(config: &ClientConfig, args: &ListArgs, data: &mut Data, notes: &Notes) -> Result<Exit, Error> {
    let upstream = Upstream::find("list", config, notes).await?;
    if args.all {
        return show(all_jobs(&upstream, notes).await?, args, data);
    }
    if args.watch {
        return watch(&upstream, args, data, notes).await;
    }
    let jobs = upstream.list().await?.jobs;
    if jobs.is_empty() && upstream.is_local() {
        notes.say(&none_runs(upstream.ended(&[]).await?.len()));
    }
    show(jobs, args, data)
}

/// All jobs on record, and then all jobs of the history that are no longer on record, the newest first.
async fn all_jobs(upstream: &Upstream, notes: &Notes) -> Result<Vec<JobSummary>, Error> {
    let jobs = upstream.list().await?.jobs;
    let PastJobs { jobs: past, skipped } = upstream.all_ended(&jobs).await?;
    for skipped in skipped {
        notes.say(&format!("skipped a file of the history: {} {}", skipped.file, skipped.reason));
    }
    Ok([jobs, past].concat())
}

/// The sentence in place of a list of local jobs, if this many jobs have ended.
fn none_runs(ended: usize) -> String {
    let have = if ended == 1 { "has" } else { "have" };
    match ended {
        0 => "no job runs".to_owned(),
        _ => format!("no job runs; {} shows {ended} that {have} ended", command("list --all")),
    }
}

fn show(jobs: Vec<JobSummary>, args: &ListArgs, data: &mut Data) -> Result<Exit, Error> {
    let list = JobList { seq: 0, jobs: chosen(jobs, args, now()) };
    data.show(args.format.output, &list, || jobs_table(&list.jobs, now()))?;
    Ok(Exit::Done)
}

/// Prints the list, and then each job that changes. As JSON, each job is one line.
async fn watch(upstream: &Upstream, args: &ListArgs, data: &mut Data, notes: &Notes) -> Result<Exit, Error> {
    let mut known = observe(notes, || upstream.list()).await?;
    let first = chosen(known.jobs.clone(), args, now());
    show_changed(&first, &vec![true; first.len()], true, args, data)?;
    loop {
        let next = observe(notes, || upstream.list_after(known.seq, LONG_POLL)).await?;
        let mut jobs = next.jobs.clone();
        jobs.extend(ended(upstream, &known, &next).await);
        let jobs = chosen(jobs, args, now());
        let changed: Vec<bool> = jobs.iter().map(|job| !known.jobs.contains(job)).collect();
        show_changed(&jobs, &changed, false, args, data)?;
        known = next;
    }
}

/// The jobs of the earlier list that are no longer on record, as the history describes them. A local master ends with
/// its job, so its job leaves the list.
async fn ended(upstream: &Upstream, before: &JobList, now: &JobList) -> Vec<JobSummary> {
    let gone = past::gone(&before.jobs, &now.jobs);
    if gone.is_empty() {
        return vec![];
    }
    // If the history cannot be read, `--watch` only does not show how these jobs ended.
    let past = upstream.ended(&now.jobs).await.unwrap_or_default();
    past.into_iter().filter(|job| gone.iter().any(|gone| gone.uid == job.uid)).collect()
}

/// Prints the jobs that have changed, as lines of the table of all jobs, or as JSON.
fn show_changed(
    jobs: &[JobSummary],
    changed: &[bool],
    wants_head: bool,
    args: &ListArgs,
    data: &mut Data,
) -> Result<(), Error> {
    match args.format.output {
        Format::Json => {
            let mut changed = jobs.iter().zip(changed).filter(|(_, is_changed)| **is_changed);
            changed.try_for_each(|(job, _)| data.json_line(job))
        }
        Format::Text => {
            let table = jobs_table(jobs, now());
            let lines = table.lines().zip([&wants_head].into_iter().chain(changed));
            let wanted: Vec<&str> = lines.filter(|(_, is_wanted)| **is_wanted).map(|(line, _)| line).collect();
            data.text(&wanted.join("\n"))
        }
    }
}

/// The jobs that the filters choose.
fn chosen(mut jobs: Vec<JobSummary>, args: &ListArgs, now: UnixMillis) -> Vec<JobSummary> {
    jobs.retain(|job| is_chosen(job, args, now));
    jobs
}

/// Whether the filters choose this job.
fn is_chosen(job: &JobSummary, args: &ListArgs, now: UnixMillis) -> bool {
    let ListArgs { text, state, since, all: _, watch: _, format: _ } = args;
    // Names of jobs are in lower case.
    let has_text = text.as_ref().is_none_or(|text| job.name.as_str().contains(&text.to_lowercase()));
    let has_state = state.is_empty() || state.contains(&job.state);
    let ended = if job.state.is_finished() { job.times.ended.or(job.times.finished) } else { None };
    let age = ended.map(|ended| now.since(ended));
    let is_recent = since.is_none_or(|since| age.is_none_or(|age| age <= Duration::from_secs(since.into())));
    has_text && has_state && is_recent
}

#[cfg(test)]
mod tests {
    use protocol::view::{JobState, JobTimes, JobView};

    use super::*;
    use crate::args::FormatArgs;
    use crate::output::narrate::tests::pending;

    #[test]
    fn a_job_is_chosen_if_it_passes_all_filters() {
        let ended = JobTimes { ended: Some(UnixMillis(60_000)), ..JobTimes::default() };
        let job = JobView { state: JobState::Failed, times: ended, ..pending(2) }.summary();
        let format = FormatArgs { output: Format::Text };
        let is_chosen = |text: Option<&str>, state: &[JobState], since: Option<u32>| {
            let args = ListArgs {
                text: text.map(str::to_owned),
                state: state.to_vec(),
                since,
                all: false,
                watch: false,
                format,
            };
            is_chosen(&job, &args, UnixMillis(100_000))
        };
        assert!(is_chosen(None, &[], None));
        assert!(is_chosen(Some("iGit"), &[JobState::Running, JobState::Failed], Some(40)));
        assert!(!is_chosen(Some("letters"), &[], None));
        assert!(!is_chosen(None, &[JobState::Running], None));
        assert!(!is_chosen(None, &[], Some(39)), "the job ended 40 s ago");
        let running = pending(2).summary();
        let recent = ListArgs { text: None, state: vec![], since: Some(1), all: false, watch: false, format };
        assert!(super::is_chosen(&running, &recent, UnixMillis(u64::MAX)), "the job has not ended");
    }
}
