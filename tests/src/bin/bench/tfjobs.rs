//! Measures TFJobs that `kubectl apply` creates: the time until all scripts run, and the writes to the API.

use std::time::{Duration, SystemTime};

use e2e::Finished;
use e2e::cluster::OURS;
use e2e::processes::within;
use serde_json::json;

use crate::cluster::writes;
use crate::installed::{BASE, Installed, JOB, last_start, script};
use crate::sample::{Figure, Row, median};

/// Number of runs for each number of workers.
const RUNS: usize = 3;

/// For each launch: the number of workers, and two values of Kubeflow's tf-operator 1.1. The first value is the number
/// of its API writes with bindings (the smallest of several measurements). The second value is its time until all pods
/// run (`None` if not measured).
const LAUNCHES: [(usize, u64, Option<Duration>); 2] = [(4, 27, None), (16, 83, Some(Duration::from_millis(7800)))];
const OPERATOR: &str = "Kubeflow's tf-operator 1.1, measured earlier";

/// Returns all rows about TFJobs.
pub(crate) fn compare() -> anyhow::Result<Vec<Row>> {
    let site = Installed::new(&["--tfjobs"])?;
    let mut rows = vec![];
    for (count, operator_writes, operator_took) in LAUNCHES {
        let (mut times, mut own, mut all) = (vec![], u64::MAX, u64::MAX);
        for start in 0..RUNS {
            let before = writes()?;
            times.push(apply(&site, start, count)?);
            let after = writes()?;
            own = own.min(after.without_bindings - before.without_bindings);
            all = all.min(after.with_bindings - before.with_bindings);
            site.namespace.kubectl(&["delete", "tfjob", JOB]);
            let pods = || site.namespace.kubectl(&["get", "pods", "-l", OURS, "-o", "name"]);
            within("the pods are gone", || pods().is_empty().then_some(()), pods);
        }
        let what = format!("kubectl apply of a TFJob until all have started, {count} workers");
        let row = Row::new(what, Figure::Time(median(times)));
        rows.extend([
            match operator_took {
                Some(took) => row.against(Figure::Time(took), OPERATOR),
                None => row,
            },
            Row::new(format!("API writes of the TFJob, {count} workers"), Figure::Count(all))
                .against(Figure::Count(operator_writes), OPERATOR),
            Row::new(format!("the same without bindings (at most {})", count + 4), Figure::Count(own)),
        ]);
    }
    Ok(rows)
}

/// Creates a TFJob, and waits until its status is Running. Returns the time until the last script has started.
fn apply(site: &Installed, start: usize, count: usize) -> anyhow::Result<Duration> {
    let container = json!({
        "name": "tensorflow", "image": BASE, "imagePullPolicy": "IfNotPresent", "command": ["python", "-c", script(start)],
    });
    let worker = json!({ "replicas": count, "template": { "spec": { "containers": [container] } } });
    let tfjob = json!({
        "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": { "name": JOB },
        "spec": { "tfReplicaSpecs": { "Worker": worker } },
    });
    let begin = SystemTime::now();
    site.namespace.kubectl_with(&["apply", "-f", "-"], &tfjob.to_string());
    site.namespace.kubectl(&["wait", "tfjob", JOB, "--for=condition=Running", "--timeout=300s"]);
    let output = || Finished::of(&mut site.client(&["logs", JOB])).code(0).stdout;
    Ok(last_start(output, start, count).duration_since(begin)?)
}
