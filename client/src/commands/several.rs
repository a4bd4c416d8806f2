//! Verbs that take several names. Handles a limited number of jobs at a time. An error of one job does not stop the
//! others.

use std::collections::HashSet;

use futures_util::{StreamExt, stream};
use protocol::ids::JobName;

use crate::ending::error::Error;
use crate::ending::exit::Exit;
use crate::output::Notes;

/// Maximum jobs that a command handles at a time.
const AT_ONCE: usize = 32;

/// What a command has done with its jobs.
#[derive(Debug)]
pub(super) struct Outcomes<T> {
    /// The results of the jobs without an error, in the order of the command line.
    pub(super) done: Vec<T>,
    /// The worst exit code of the errors. `Done` if there was no error.
    pub(super) failed: Exit,
}

/// Does `work` for each job once. The error of a job is printed after the job's name. If the command names only one
/// job, returns this job's error instead.
pub(super) async fn each<T, W>(
    names: &[JobName],
    notes: &Notes,
    work: impl Fn(JobName) -> W,
) -> Result<Outcomes<T>, Error>
where
    W: Future<Output = Result<T, Error>>,
{
    let names = distinct(names);
    if let [name] = names.as_slice() {
        return Ok(Outcomes { done: vec![work(name.clone()).await?], failed: Exit::Done });
    }
    let ends = names.into_iter().map(|name| {
        let end = work(name.clone());
        async move { end.await.inspect_err(|error| notes.error(error, Some(&name))) }
    });
    let mut outcomes = Outcomes { done: Vec::new(), failed: Exit::Done };
    let mut ends = stream::iter(ends).buffered(AT_ONCE);
    while let Some(end) = ends.next().await {
        match end {
            Ok(result) => outcomes.done.push(result),
            Err(error) => outcomes.failed = outcomes.failed.max(error.exit),
        }
    }
    Ok(outcomes)
}

/// The names without repetitions, in their order.
pub(super) fn distinct(names: &[JobName]) -> Vec<JobName> {
    let mut seen = HashSet::new();
    names.iter().filter(|name| seen.insert(*name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_name_counts_once_and_the_order_stays() {
        let names = |text: &str| text.split(' ').map(|name| name.parse().unwrap()).collect::<Vec<JobName>>();
        assert_eq!(distinct(&names("b a b c a")), names("b a c"));
    }
}
