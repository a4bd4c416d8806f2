//! Journeys of one job. One command submits the job and follows it to its end.
#![expect(missing_docs, reason = "the name of a journey is its description")]

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::client::Finished;
use crate::place::{Place, Stage};
use crate::scripts::with_peers;

pub fn four_workers_see_one_cluster_of_four_addresses(place: Place) {
    let stage = Stage::hello(place);
    let run = stage.submit(&["--strategy", "AllReduce", "--worker-num", "4"]).code(0);
    stage.assert_nothing_runs();
    let configs: Vec<Value> =
        run.lines("TF_CONFIG ").iter().map(|text| serde_json::from_str(text).expect("TF_CONFIG is not JSON")).collect();
    assert_eq!(configs.len(), 4, "{}", run.stdout);
    let clusters: BTreeSet<String> = configs.iter().map(|config| config["cluster"].to_string()).collect();
    assert_eq!(clusters.len(), 1, "not all workers have the same TF_CONFIG cluster: {clusters:?}");
    let workers = configs[0]["cluster"]["worker"].as_array().expect("not a list of workers");
    assert_eq!(
        workers.iter().map(Value::to_string).collect::<BTreeSet<_>>().len(),
        4,
        "the addresses are not distinct: {workers:?}"
    );
    let indexes: BTreeSet<u64> = configs.iter().filter_map(|config| config["task"]["index"].as_u64()).collect();
    assert_eq!(indexes, BTreeSet::from([0, 1, 2, 3]));
    let closing = run.stderr.lines().last().unwrap_or_default();
    assert!(closing.starts_with("succeeded in "), "the last line does not show the result: {closing}");
}

pub fn the_first_failure_is_named_and_the_other_replicas_are_stopped(place: Place) {
    let stage = Stage::new(
        place,
        &with_peers(
            r#"
if INDEX != 1: serve_stubbornly()
for address in ALL:
    if address != OWN: call(address)
print("out of luck", file=sys.stderr)
sys.exit(3)
"#,
        ),
    );
    let run = stage.submit(&["--worker-num", "3", "--max-restarts", "0"]).code(1);
    stage.assert_nothing_runs();
    run.says(&["worker-1 exited with code 3", "out of luck"]);
}

pub fn when_the_chief_succeeds_the_other_replicas_are_stopped_and_the_job_succeeds(place: Place) {
    let stage = Stage::new(
        place,
        &with_peers(
            r#"
if ROLE != "chief": serve_stubbornly()
for address in ALL:
    if address != OWN: call(address)
print("trained")
"#,
        ),
    );
    let run = stage.submit(&["--strategy", "ParameterServer", "--ps-num", "1", "--worker-num", "2"]).code(0);
    stage.assert_nothing_runs();
    assert_eq!(run.stdout, "chief-0  │ trained\n");
}

pub fn a_daemon_that_a_run_leaves_behind_is_killed(place: Place) {
    let stage = Stage::new(
        place,
        r#"
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("daemon", "w").close()
        time.sleep(600)
    os._exit(0)
while not os.path.exists("daemon"): time.sleep(0.01)
"#,
    );
    stage.submit(&["--worker-num", "1"]).code(0);
    stage.assert_nothing_runs();
}

pub fn variables_and_arguments_reach_exec_py(place: Place) {
    let stage = Stage::new(
        place,
        "import os, sys; print('got', os.environ['A'], os.environ['B'], os.environ['C'], sys.argv[1:])",
    );
    fs::write(stage.scene().path().join("job.env"), "A=from file\nB=from file\n").expect("cannot write the file");
    let flags = ["--worker-num", "1", "--env-file", "job.env", "--env", "B=x=$(y)", "--env", "C", "--"];
    let args = ["--steps", "3", "$(A) $$(A) $$ $C $(D) $(B) $(RANK)"];
    let run = Finished::of(stage.submitting(&[flags.as_slice(), &args].concat()).env("C", "passed on")).code(0);
    assert_eq!(
        run.stdout,
        "worker-0 │ got from file x=$(y) passed on ['--steps', '3', 'from file $(A) $ $C $(D) x=$(y) 0']\n"
    );
}

pub fn output_that_is_not_utf8_is_shown_with_replacement_characters(place: Place) {
    let stage = Stage::new(place, "import sys; sys.stdout.buffer.write(b'a\\xff\\xfeb\\n')");
    let run = stage.submit(&["--worker-num", "1"]).code(0);
    assert_eq!(run.stdout, "worker-0 │ a\u{fffd}\u{fffd}b\n");
}
