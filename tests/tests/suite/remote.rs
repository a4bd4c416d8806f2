//! Tests of jobs of a permanent master: concurrent jobs, requests by curl, and a master that is killed.

use std::fs;

use e2e::scripts::STUBBORN;
use e2e::{Finished, Place, Scene, Stage, within};
use protocol::view::JobState;

e2e::journeys_at_a_master!(Place::Processes, #[cfg(unix)]);

#[test]
fn a_head_request_to_create_submits_no_job() {
    let scene = Scene::of_example("hello");
    let master = scene.master();
    let create = format!("{}/create?strategy=AllReduce&n_worker=2&name=head", master.url);
    let answer = scene.curl(&["-I", &create]);
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    assert!(scene.curl(&[&format!("{}/v1/jobs", master.url)]).ends_with(r#""jobs":[]}"#));
}

#[test]
fn a_master_logs_two_info_lines_for_a_job_that_succeeds() {
    let scene = Scene::of_example("hello");
    let master = scene.master();
    scene.run(&["--master", &master.url, "--task", "quiet", "--worker-num", "2"]).code(0);
    scene.run(&["--master", &master.url, "delete", "quiet"]).code(0);
    let log = master.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("INFO")).collect();
    assert!(lines.len() == 2 && lines[0].contains("job accepted") && lines[1].contains("job ended"), "{log}");
}

#[test]
fn after_kill_9_of_the_master_no_agent_runs_and_the_next_master_restarts_the_job() {
    let mut stage = Stage::new(Place::Processes, STUBBORN);
    stage.submit(&["-d", "--task", "lost"]).code(0);
    let follower = stage.follow("lost");
    follower.until_printed(2, "ready");
    stage.kill_master();
    let is_still = || stage.scene().processes().lines().all(|line| line.contains("logs lost")).then_some(());
    within("only the follower runs", is_still, || stage.scene().processes());
    stage.next_master(&["--state-dir", "state"]);
    follower.until_printed(4, "ready");
    follower.until_said("--- another master took over: going on with 2 workers (start 2.1) ---");
    assert_eq!((stage.status("lost").state, stage.runs().len()), (JobState::Running, 2));
    let why = stage.verb(&["why", "lost"]).code(0).stdout;
    let repeated = "after the submit: the previous start was lost with its master (not counted)";
    assert!(why.starts_with("job lost is running") && why.contains("start 2.1, ") && why.contains(repeated), "{why}");
}

#[test]
fn a_replacement_whose_script_does_not_parse_leaves_the_old_job_running() {
    let stage = Stage::new(Place::Processes, STUBBORN);
    stage.submit(&["-d", "--task", "digits"]).code(0);
    stage.follow("digits").until_printed(2, "ready");
    let old = stage.status("digits").uid;
    fs::write(stage.scene().path().join("exec.py"), "def broken(:").expect("cannot write the file");
    stage.submit(&["-d", "--task", "digits", "--replace"]).code(2).says(&["the script does not parse: "]);
    let now = stage.status("digits");
    assert_eq!((now.state, now.uid), (JobState::Running, old));
}

#[test]
fn exec_py_sees_its_six_muster_variables_and_agents_inherit_no_settings_of_the_client_or_the_master() {
    let scene = Scene::new("import os; print(sorted(name for name in os.environ if name.startswith('MUSTER_')))");
    let mut command = scene.client(&["--worker-num", "1"]);
    let run =
        Finished::of(command.env("MUSTER_LINGER", "no number").env("MUSTER_TERMINATION_GRACE_SECONDS", "none either"))
            .code(0);
    let names = ["FD", "GENERATION", "INDEX", "JOB", "RESTART_COUNT", "ROLE"].map(|name| format!("'MUSTER_{name}'"));
    assert_eq!(run.stdout, format!("worker-0 │ [{}]\n", names.join(", ")));

    let master = scene.master_with(&[("MUSTER_LINGER", "no number")]);
    scene.run(&["--master", &master.url, "--worker-num", "1"]).code(0);
}
