//! Journeys with a permanent master: concurrent jobs, detached jobs, and jobs that are cancelled or deleted.
#![expect(missing_docs, reason = "the name of a journey is its description")]

use protocol::view::{JobList, JobResult, JobState, JobView};
use rustix::process::Signal;

use crate::client::Running;
use crate::place::{Place, Stage};
use crate::processes::{signal, within};
use crate::scripts::{STUBBORN, with_peers};

pub fn concurrent_jobs_succeed_and_share_no_address(place: Place) {
    // A machine can run more processes than a node can run pods.
    let (jobs, workers) = match place {
        Place::OwnMaster | Place::Processes => (20, "4"),
        Place::Cluster => (5, "2"),
    };
    // Like a TensorFlow server, each worker keeps its address in use until all workers of its job listen.
    let stage = Stage::new(
        place,
        &with_peers(
            r#"
server = serve()
for address in ALL: call(address)
for _ in ALL: server.accept()
"#,
        ),
    );
    let submit = |n| Running::of(&mut stage.submitting(&["--task", &format!("job-{n}"), "--worker-num", workers]));
    let clients: Vec<Running> = (0..jobs).map(submit).collect();
    for client in clients {
        client.ended().code(0);
    }
    let list: JobList = serde_json::from_str(&stage.curl(&[], "/v1/jobs")).expect("not a list");
    let results: Vec<_> = list.jobs.into_iter().map(|job| job.result).collect();
    assert_eq!(results, vec![Some(JobResult::Succeeded); jobs]);
}

pub fn curl_submits_follows_and_deletes_a_job(place: Place) {
    let stage = Stage::hello(place);
    let create = format!("/create?strategy=AllReduce&n_worker=2&name=curl1{}", stage.img());
    let accepted: JobView = serde_json::from_str(&stage.curl(&[], &create)).expect("not a view");
    assert_eq!((accepted.name.as_str(), accepted.spec.worker_num), ("curl1", 2));
    let lines = stage.curl(&[], "/v1/jobs/curl1/logs?follow=true");
    assert_eq!(lines.lines().filter(|line| line.contains("TF_CONFIG")).count(), 2, "{lines}");
    assert_eq!(stage.finished("curl1").state, JobState::Succeeded);
    let one = stage.curl(&[], "/v1/jobs/curl1/logs?replica=worker-1&tail=2");
    assert!(one.starts_with("role worker index 1 rank 1\nTF_CONFIG "), "{one}");
    let code = ["-o", "/dev/null", "-w", "%{http_code}"];
    assert_eq!(stage.curl(&[code.as_slice(), &["-X", "DELETE"]].concat(), "/v1/jobs/curl1"), "202");
    let is_gone = || (stage.curl(&code, "/v1/jobs/curl1") == "404").then_some(());
    within("the job is deleted", is_gone, || stage.runs().join("\n"));
}

pub fn verbs_show_cancel_and_delete_a_detached_job(place: Place) {
    let stage = Stage::new(place, STUBBORN);
    stage.submit(&["-d", "--task", "long", "--worker-num", "2"]).code(0);
    stage.follow("long").until_printed(2, "ready");
    assert_eq!(stage.runs().len(), 2);
    assert!(stage.verb(&["list"]).code(0).stdout.contains("long"));
    assert!(stage.verb(&["status", "long"]).code(0).stdout.contains("worker-1"));
    stage.verb(&["wait", "long", "--timeout", "10ms"]).code(1).says(&["long"]);
    stage.verb(&["cancel", "long"]).code(0);
    stage.verb(&["wait", "long"]).code(1).says(&["cancelled"]);
    stage.assert_nothing_runs();
    let logs = stage.verb(&["logs", "long"]).code(0).stdout;
    assert_eq!(logs.matches("ready").count(), 2, "after the end of the pods, the output is not complete: {logs}");
    stage.verb(&["delete", "long"]).code(0);
    stage.verb(&["logs", "long"]).code(2).says(&["long"]);
    // The history still contains the job.
    stage.verb(&["status", "long"]).code(0).says(&["no longer on record"]);
}

pub fn ctrl_c_does_not_stop_a_job_of_a_permanent_master(place: Place) {
    let stage = Stage::new(place, STUBBORN);
    let client = Running::of(&mut stage.submitting(&["--task", "digits"]));
    client.until_printed(2, "ready");
    signal(client.pid(), Signal::INT);
    client.ended().by(Signal::INT).says(&["client logs digits", "client cancel digits"]);
    assert_eq!(stage.runs().len(), 2);
    assert_eq!(stage.status("digits").state, JobState::Running);
}

pub fn killing_an_agent_ends_its_run_and_fails_the_job_with_sigkill_as_the_reason(place: Place) {
    let stage = Stage::new(place, STUBBORN);
    stage.submit(&["-d", "--task", "shot", "--max-restarts", "0"]).code(0);
    stage.follow("shot").until_printed(2, "ready");
    assert_eq!(stage.runs().len(), 2);
    stage.kill_agent("shot");
    let Some(JobResult::Failed { failure }) = stage.finished("shot").result else { panic!("the job did not fail") };
    assert!(failure.to_string().contains("SIGKILL"), "{failure}");
    stage.assert_nothing_runs();
}

pub fn a_name_is_free_again_when_its_job_is_deleted(place: Place) {
    let stage = Stage::hello(place);
    let first = stage.submit(&["--task", "digits", "-o", "json"]).code(0).view();
    for arguments in [&["--task", "digits"][..], &["--task", "digits", "--detach"]] {
        let refused = stage.submit(arguments).code(2).says(&["job digits has already ended (succeeded)", "--replace"]);
        assert_eq!(refused.stdout, "");
    }
    stage.verb(&["wait", "digits"]).code(0);
    stage.verb(&["delete", "digits"]).code(0);
    let second = stage.submit(&["--task", "digits", "-o", "json"]).code(0).view();
    let third = stage.submit(&["--task", "digits", "-o", "json", "--replace"]).code(0).says(&["job digits is deleted"]);
    assert!(first.uid != second.uid && second.uid != third.view().uid);
    assert_eq!(third.view().result, Some(JobResult::Succeeded));
    let logs = stage.verb(&["logs", "digits"]).code(0).stdout;
    assert_eq!(logs.matches("TF_CONFIG").count(), 2, "the logs are not exactly the output of the last job: {logs}");
}
