//! Tests of elastic jobs whose pods are evicted, deleted, or refused by a quota.

use std::collections::BTreeSet;

use e2e::journeys::{end_all, runs_with};
use e2e::scripts::{AWAITS_ITS_END, with_peers};
use e2e::{Place, Stage, within};
use protocol::view::{JobState, ReplicaView};

use super::options::{ALLOWING, folder_of_node};

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn evicted_and_deleted_pods_of_an_elastic_job_do_not_count_as_restarts() {
    let stage = Stage::new(Place::Cluster, &with_peers(AWAITS_ITS_END));
    stage.submit(&["-d", "--task", "evicted", "--worker-num", "2:3", "--max-restarts", "0"]).code(0);
    runs_with(&stage, "evicted", &[0, 1, 2]);
    stage.cluster().evict("evicted-worker-0");
    let view = runs_with(&stage, "evicted", &[1, 2, 0]);
    let sentences: Vec<String> = view.changes.iter().map(ToString::to_string).collect();
    assert!(sentences.iter().any(|sentence| sentence.starts_with("worker-0 was lost: ")), "{sentences:?}");
    stage.cluster().namespace.kubectl(&["delete", "pod", "evicted-worker-2", "--wait=false"]);
    let view = runs_with(&stage, "evicted", &[1, 0, 2]);
    assert_eq!(view.restarts.total(), 0);
    end_all(&view);
    assert_eq!(stage.finished("evicted").state, JobState::Succeeded);
}

/// Worker 0 trains 12 steps without a save, and then evaluates without end. After the first start, all workers only
/// print the saved step.
const EVALUATES: &str = r#"
import os, pathlib, time
import muster
job = muster.Job(global_batch=4)
job.started()
kept = pathlib.Path("/data/kept")
step = int(kept.read_text()) if kept.exists() else 0
print("begins at step", step)
if step > 0:
    job.done()

@job.saves
def save():
    whole = kept.with_suffix(".new")
    whole.write_text(str(step))
    whole.replace(kept)

for step in range(1, 13):
    job.step(step, job.signal())
print("evaluates")
while job.is_chief: time.sleep(60)
while not job.step(step, job.signal()): time.sleep(0.05)
job.leave()
"#;

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_pod_that_is_deleted_during_an_evaluation_loses_no_step() {
    let stage = Stage::with_master(Place::Cluster, EVALUATES, &ALLOWING);
    let volume = format!("host:{}:/data", folder_of_node(&stage));
    let flags = ["-d", "--task", "drained", "--worker-num", "1:2", "--max-restarts", "0", "--volume", &volume];
    stage.submit(&flags).code(0);
    runs_with(&stage, "drained", &[0, 1]);
    stage.follow("drained").until_printed(1, "worker-0 │ evaluates");
    stage.cluster().namespace.kubectl(&["delete", "pod", "drained-worker-0", "--wait=false"]);
    let view = stage.finished("drained");
    assert_eq!((view.state, view.restarts.total()), (JobState::Succeeded, 0));
    assert!(view.changes.iter().all(|change| change.lost_steps.is_none()), "{:#?}", view.changes);
    let logs = stage.verb(&["logs", "drained"]).code(0);
    let begun: BTreeSet<String> = logs.lines("begins at step ").into_iter().collect();
    assert_eq!(begun, BTreeSet::from(["0".to_owned(), "12".to_owned()]), "{}", logs.stdout);
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn an_elastic_job_starts_with_the_pods_that_a_quota_allows_and_grows_when_there_is_room() {
    let stage = Stage::new(Place::Cluster, &with_peers(AWAITS_ITS_END));
    let quota = |hard: &str| {
        let namespace = &stage.cluster().namespace;
        namespace.try_kubectl(&["delete", "quota", "pods"]);
        namespace.kubectl(&["create", "quota", "pods", &format!("--hard=pods={hard}")]);
    };
    quota("1");
    let flags = ["-d", "--task", "bounded", "--worker-num"];
    stage.submit(&[flags.as_slice(), &["2:3"]].concat()).code(2).says(&["quota"]);
    stage.submit(&[flags.as_slice(), &["1:2"]].concat()).code(0);
    let status = || stage.status("bounded");
    let runs_with = |count: usize| {
        let look = || Some(status()).filter(|view| view.state == JobState::Running && view.roster.len() == count);
        within(&format!("{count} workers run"), look, || format!("{:#?}", status()))
    };
    runs_with(1);
    let says_quota = |replica: &ReplicaView| replica.reason.as_ref().is_some_and(|reason| reason.contains("quota"));
    let waits = || status().replicas.iter().any(says_quota).then_some(());
    within("the other worker waits because of the quota", waits, || format!("{:#?}", status()));
    quota("2");
    let view = runs_with(2);
    end_all(&view);
    assert_eq!(stage.finished("bounded").state, JobState::Succeeded);
}
