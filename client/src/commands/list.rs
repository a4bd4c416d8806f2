//! `list`: all jobs, or those that the filters choose.

use std::time::Duration;

use protocol::ids::UnixMillis;
use protocol::view::{JobList, JobSummary};

use super::which_master::Masters;
use super::{now, past};
use crate::address::config::Config;
use crate::args::ListArgs;
use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::output::{Data, Notes, jobs_table};

/// The jobs of a master, or of all local masters. With `--all`, also the jobs of the history.
pub(super) async fn run(config: &Config, args: &ListArgs, data: &mut Data, notes: &Notes) -> Result<Exit, Error> {
    let now = now();
    let mut jobs = if args.all {
        past::all_jobs(config, notes).await?
    } else {
        let masters = Masters::find("list", config, notes).await?;
        masters.of_all(async |client| Ok(client.list().await?.jobs)).await?
    };
    jobs.retain(|job| is_chosen(job, args, now));
    let list = JobList { seq: 0, jobs };
    data.show(args.format.output, &list, || jobs_table(&list.jobs, now))?;
    Ok(Exit::Done)
}

/// Whether the filters choose this job.
fn is_chosen(job: &JobSummary, ListArgs { text, state, since, all: _, format: _ }: &ListArgs, now: UnixMillis) -> bool {
    let has_text = text.as_ref().is_none_or(|text| job.name.as_str().contains(text.as_str()));
    let has_state = state.is_empty() || state.contains(&job.state);
    let ended = job.times.ended.or(job.times.finished).filter(|_| job.state.is_finished());
    let age = ended.map(|ended| Duration::from_millis(now.0.saturating_sub(ended.0)));
    let is_recent = since.is_none_or(|since| age.is_none_or(|age| age <= Duration::from_secs(since.into())));
    has_text && has_state && is_recent
}

#[cfg(test)]
mod tests {
    use protocol::view::{JobState, JobTimes, JobView};

    use super::*;
    use crate::args::{Format, FormatArgs};
    use crate::output::narrate::tests::pending;

    #[test]
    fn a_job_is_chosen_if_it_passes_all_filters() {
        let ended = JobTimes { ended: Some(UnixMillis(60_000)), ..JobTimes::default() };
        let job = JobView { state: JobState::Failed, times: ended, ..pending(2) }.summary();
        let format = FormatArgs { output: Format::Text };
        let is_chosen = |text: Option<&str>, state: &[JobState], since: Option<u32>| {
            let args = ListArgs { text: text.map(str::to_owned), state: state.to_vec(), since, all: false, format };
            is_chosen(&job, &args, UnixMillis(100_000))
        };
        assert!(is_chosen(None, &[], None));
        assert!(is_chosen(Some("igit"), &[JobState::Running, JobState::Failed], Some(40)));
        assert!(!is_chosen(Some("letters"), &[], None));
        assert!(!is_chosen(None, &[JobState::Running], None));
        assert!(!is_chosen(None, &[], Some(39)), "the job ended 40 s ago");
        let running = pending(2).summary();
        let recent = ListArgs { text: None, state: vec![], since: Some(1), all: false, format };
        assert!(super::is_chosen(&running, &recent, UnixMillis(u64::MAX)), "the job has not ended");
    }
}
