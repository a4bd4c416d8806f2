//! Tests of `client timeline` with real programs: it tells the same story as `why` and `status`, with the same numbers.

use e2e::{Place, Scene, Stage};
use serde_json::Value;

fn json(stage: &Stage, verb: &str) -> Value {
    let printed = stage.verb(&[verb, "retried", "-o", "json"]).code(0).stdout;
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

#[test]
fn the_timeline_agrees_with_why_and_status() {
    let exec_py = "import muster, os, sys\njob = muster.Job(global_batch=4)\njob.started()\n\
                   is_first = os.environ['MUSTER_RESTART_COUNT'] == '0'\n\
                   for step in range(1, 4 if is_first else 6):\n    job.step(step, job.signal())\n\
                   sys.exit(3 if is_first else 0)";
    let stage = Stage::new(Place::Processes, exec_py);
    stage.submit(&["--task", "retried", "--worker-num", "1", "--max-restarts", "1", "--backoff", "0s"]).code(0);
    let (timeline, why, status) = (json(&stage, "timeline"), json(&stage, "why"), json(&stage, "status"));
    let [first, second] = &timeline["starts"].as_array().expect("no starts")[..] else { panic!("{timeline}") };

    let failed = &why["failed_starts"][0];
    assert_eq!(first["generation"], failed["generation"], "{timeline}");
    let how = |failure: &Value| (failure["replica"].clone(), failure["exit"]["code"].clone());
    assert_eq!(how(&first["ending"]["failure"]), how(&failed["failure"]), "{timeline}");
    assert_eq!(how(&second["cause"]["failure"]), how(&failed["failure"]), "{timeline}");
    assert_eq!(second["ending"]["how"], "succeeded", "{timeline}");

    let times = &status["times"];
    for (of_start, of_job) in [("complete", "joined"), ("configured", "configured"), ("started", "started")] {
        assert_eq!(first[of_start], times[of_job], "{of_start}: {timeline} {times}");
    }
    assert_eq!(second["started"], times["restarted"], "{timeline} {times}");
    assert_eq!((&second["stopped"], &timeline["ended"]), (&times["ended"], &times["ended"]), "{timeline} {times}");
    assert_eq!(second["last_step"]["step"], 5, "{timeline}");
    let parts = timeline["spent"].as_object().expect("no parts").values();
    let whole: u64 = parts.map(|part| part.as_u64().expect("not a number")).sum();
    let time = |name: &str| timeline[name].as_u64().expect("not a time");
    assert_eq!(whole, time("ended") - time("accepted"), "{timeline}");

    let text = stage.verb(&["timeline", "retried"]).code(0).stdout;
    for part in
        ["start 1.1 with 1 worker: first start\n", "start 1.2 with 1 worker: worker-0 exited with code 3", "goodput: "]
    {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_local_job_stays_in_the_history_of_its_user_after_its_master_has_ended() {
    let scene = Scene::new("import sys\nprint('the last words')\nsys.exit(3)");
    scene.run(&["--task", "gone", "--worker-num", "1", "--max-restarts", "0"]).code(1);
    let listed = scene.run(&["list", "--all", "--state", "failed"]).code(0).stdout;
    assert!(listed.lines().nth(1).is_some_and(|row| row.starts_with("gone ")), "{listed}");
    let why = scene.run(&["why", "gone"]).code(0).says(&["this is from the history"]).stdout;
    assert!(why.starts_with("job gone failed: worker-0 exited with code 3"), "{why}");
    let timeline = scene.run(&["timeline", "gone"]).code(0).stdout;
    assert!(timeline.contains("start 1.1 with 1 worker: first start\n"), "{timeline}");
}

#[test]
fn a_job_of_the_history_runs_again() {
    let scene = Scene::new("import sys\nprint('with', *sys.argv[1:])");
    scene.run(&["--task", "before", "--worker-num", "1", "--", "a"]).code(0);
    let again = scene.run(&["rerun", "before", "--task", "after"]).code(0);
    assert_eq!(again.lines("with a").len(), 1);
    let other = scene.run(&["rerun", "after", "--task", "other", "--", "b"]).code(0);
    assert_eq!(other.lines("with b").len(), 1);
    let listed = scene.run(&["list", "--all"]).code(0).stdout;
    let names: Vec<&str> = listed.lines().skip(1).filter_map(|row| row.split_whitespace().next()).collect();
    assert_eq!(names, ["other", "after", "before"]);
}
