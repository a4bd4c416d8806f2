//! Checks a job's starts by its output. exec.py prints `begun GENERATION CLUSTER`, and before a success `done
//! GENERATION`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use protocol::ids::Generation;
use protocol::output::LogLine;
use protocol::view::JobView;

/// Checks that no replica ran twice in a start, and that all members of a start received the same TF_CONFIG cluster. In
/// the last start, all replicas must have printed `done`.
pub(crate) fn judge(logs: &str, end: &JobView) -> anyhow::Result<()> {
    let mut clusters: BTreeMap<Generation, String> = BTreeMap::new();
    let (mut begun, mut done) = (BTreeSet::new(), Vec::<Generation>::new());
    for line in logs.lines() {
        let LogLine { replica, line, .. } = serde_json::from_str(line).with_context(|| line.to_owned())?;
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["begun", generation, cluster] => {
                let generation = generation.parse()?;
                ensure!(begun.insert((generation, replica)), "{}: {replica} ran twice in start {generation}", end.name);
                let first = clusters.entry(generation).or_insert_with(|| (*cluster).to_owned());
                ensure!(
                    first == cluster,
                    "{}: two TF_CONFIG clusters in start {generation}: {first} and {cluster}",
                    end.name
                );
            }
            ["done", generation] => done.push(generation.parse()?),
            _ => {}
        }
    }
    let last = clusters.last_key_value().map(|(generation, _)| *generation).context("no replica ran")?;
    let of_last = done.iter().filter(|generation| **generation == last).count();
    ensure!(
        of_last == end.replicas.len(),
        "{}: only {of_last} replicas of the last start {last} printed `done`:\n{logs}",
        end.name
    );
    Ok(())
}
