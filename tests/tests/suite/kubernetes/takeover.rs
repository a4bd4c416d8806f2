//! Tests in which the master is killed, and a new master takes over its job.

use std::fs;

use e2e::journeys::end_all;
use e2e::scripts::{AWAITS_ITS_END, tell, with_peers};
use e2e::{Place, Running, Stage, within};
use protocol::view::{JobState, JobView};

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn scripts_continue_without_a_master_and_a_client_that_follows_the_job_sees_its_end() {
    let mut stage = Stage::new(Place::Cluster, &with_peers(AWAITS_ITS_END));
    let client = Running::of(&mut stage.submitting(&["--task", "goes-on"]));
    client.until_printed(2, "begun");
    let before = stage.status("goes-on");
    stage.kill_master();
    assert_eq!(tell(&before, 0, "how are you"), "still here\n");
    let after = take_over(&mut stage, &["--state-dir", "state"], "goes-on");
    assert_eq!(after.generation, before.generation, "the scripts were restarted");
    end_all(&before);
    let run = client.ended().code(0);
    let mut lines: Vec<&str> = run.stdout.lines().collect();
    lines.sort_unstable();
    // exec.py must have started once in each pod, and no output may be lost.
    let all =
        ["0 │ begun", "0 │ ended", "0 │ still here", "1 │ begun", "1 │ ended"].map(|line| format!("worker-{line}"));
    assert_eq!(lines, all);
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_master_with_another_state_directory_and_the_same_key_takes_over_the_job() {
    let file = tempfile::NamedTempFile::new().expect("cannot create a temporary file");
    fs::write(file.path(), "a key of more than thirty-two characters").expect("cannot write the file");
    let key = ["--agent-key-file", file.path().to_str().expect("not UTF-8")];
    let mut stage = Stage::with_master(
        Place::Cluster,
        &with_peers(AWAITS_ITS_END),
        &[&key, ["--state-dir", "one"].as_slice()].concat(),
    );
    stage.submit(&["-d", "--task", "moved"]).code(0);
    stage.follow("moved").until_printed(2, "begun");
    let before = stage.status("moved");
    stage.kill_master();
    let after = take_over(&mut stage, &[&key, ["--state-dir", "other"].as_slice()].concat(), "moved");
    assert_eq!((after.uid, after.generation), (before.uid.clone(), before.generation));
    end_all(&before);
    assert_eq!(stage.finished("moved").state, JobState::Succeeded);
    let logs = stage.verb(&["logs", "moved"]).code(0).stdout;
    assert_eq!((logs.matches("begun").count(), logs.matches("ended").count()), (2, 2), "{logs}");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn the_next_master_reports_a_job_that_ended_without_a_master() {
    let mut stage = Stage::new(Place::Cluster, &with_peers(AWAITS_ITS_END));
    stage.submit(&["-d", "--task", "meanwhile"]).code(0);
    stage.follow("meanwhile").until_printed(2, "begun");
    let before = stage.status("meanwhile");
    stage.kill_master();
    end_all(&before);
    stage.next_master(&["--state-dir", "state"]);
    assert_eq!(stage.finished("meanwhile").state, JobState::Succeeded);
    stage.assert_nothing_runs();
    let logs = stage.verb(&["logs", "meanwhile"]).code(0).stdout;
    assert_eq!(logs.matches("ended").count(), 2, "{logs}");
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn a_job_whose_master_died_right_after_accepting_it_is_started_once_by_the_next_master() {
    let mut stage = Stage::hello(Place::Cluster);
    stage.submit(&["-d", "--task", "orphan"]).code(0);
    stage.kill_master();
    stage.next_master(&["--state-dir", "state"]);
    assert_eq!(stage.finished("orphan").state, JobState::Succeeded);
    let logs = stage.verb(&["logs", "orphan"]).code(0).stdout;
    assert_eq!(logs.matches("TF_CONFIG").count(), 2, "{logs}");
    stage.assert_nothing_runs();
}

/// Starts the next master, and waits until it shows the job as running.
fn take_over(stage: &mut Stage, args: &[&str], job: &str) -> JobView {
    stage.next_master(args);
    let path = format!("/v1/jobs/{job}");
    let look = || serde_json::from_str::<JobView>(&stage.curl(&[], &path)).ok();
    let running = || look().filter(|view| view.state == JobState::Running);
    within("the next master shows the job as running", running, || stage.cluster().to_string())
}
