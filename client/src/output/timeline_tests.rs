//! Tests of `timeline.rs`.

use serde_json::json;

use super::*;

/// A job of two workers. Its first start failed, and the second start runs.
fn restarted() -> serde_json::Value {
    let failure =
        json!({"cause": "replica_exited", "replica": "worker-1", "exit": {"code": 3, "stopped": false, "ended_at": 0}});
    json!({
        "name": "digits", "uid": "0b5e", "state": "running", "now": 100_000, "accepted": 10_000,
        "starts": [
            {
                "generation": "1.1", "cause": {"cause": "first"}, "workers": 2,
                "began": 10_000, "complete": 14_000, "configured": 14_500, "started": 15_000,
                "first_step": {"step": 1, "at": 20_000}, "last_step": {"step": 11, "at": 31_000},
                "stopped": 32_000, "dead": 33_000, "ending": {"how": "failed", "failure": failure},
            },
            {
                "generation": "1.2", "cause": {"cause": "left", "failure": failure}, "workers": 2,
                "lost_steps": {"replica": "worker-0", "first": 9, "last": 11},
                "began": 33_000, "complete": 38_000,
            },
        ],
        "replicas": [{"replica": "worker-0", "pod": 0, "generation": "1.2", "requested": 10_100, "joined": 14_000}],
        "failed_replicas": [
            {"replica": "worker-1", "pod": 0, "generation": "1.1", "joined": 13_000, "ended": 32_000, "reason": "exited with code 3"},
        ],
        "spent": {"gathering_ms": 5000, "program_startup_ms": 5000, "kept_steps_ms": 8000, "lost_steps_ms": 3000, "recovery_ms": 69_000},
    })
}

fn text(timeline: &serde_json::Value) -> String {
    timeline_text(&serde_json::from_value(timeline.clone()).unwrap())
}

#[test]
fn each_start_is_shown_with_its_cause_its_times_and_its_end() {
    let expected = "\
job digits: running, 1 m 30 s after the submit

start 1.1 with 2 workers: first start
      0.00 s  gathering
       4.0 s  gang complete: every agent has answered
       4.5 s  every agent has its environment
       5.0 s  running: every script was started
      10.0 s  first reported step: 1
      21.0 s  last reported step: 11
      22.0 s  failed: worker-1 exited with code 3
      23.0 s  every run has ended

start 1.2 with 2 workers: worker-1 exited with code 3; steps 9 to 11 are lost, because worker-0 ended before it had saved
      23.0 s  gathering
      28.0 s  gang complete: every agent has answered

replicas of the start that failed last:
REPLICA   REQUESTED  NODE  ADDRESS  AGENT  STARTED  FIRST STEP  ENDED   REASON
worker-1                            3.0 s                       22.0 s  exited with code 3

replicas:
REPLICA   REQUESTED  NODE  ADDRESS  AGENT  STARTED  FIRST STEP  ENDED  REASON
worker-0  0.1 s                     4.0 s

goodput: 8.8 %, the share of the time in steps that are kept
       8.0 s    8.8 %  steps that are kept
       3.0 s    3.3 %  steps that a later start repeated
       5.0 s    5.5 %  from the launch to the first step
       5.0 s    5.5 %  gathering pods and agents
    1 m 09 s   76.6 %  from a failure to the next launch";
    assert_eq!(text(&restarted()), expected);
}

#[test]
fn a_timeline_without_steps_shows_the_running_share_and_says_so() {
    let mut timeline = restarted();
    timeline["spent"] = json!({"running_ms": 3000, "gathering_ms": 1000});
    let text = text(&timeline);
    let end = "\
running share: 75.0 %; no script has reported steps with muster.py
       3.0 s   75.0 %  scripts ran, and report no steps
       1.0 s   25.0 %  gathering pods and agents";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn what_this_master_has_not_seen_is_said() {
    let mut timeline = restarted();
    timeline["taken_over"] = json!(20_000);
    timeline["unseen"] = json!(3);
    timeline["folded"] = json!({"causes": {"left": 2, "pushed": 1}, "until": 20_000, "spent": {}});
    timeline["starts"] = json!([{"generation": "1.4", "workers": 1, "started": 12_000}]);
    let expected = "\
job digits: running, 1 m 30 s after the submit

before this master took the job over, 10.0 s after the submit: 3 starts; their times are unknown
3 earlier starts, by cause: 2 left, 1 pushed

start 1.4 with 1 worker: an earlier master began it
       2.0 s  running: every script was started
";
    let text = text(&timeline);
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn of_many_replicas_those_that_were_ready_last_are_shown() {
    let mut timeline = restarted();
    let replica = |index: u64| json!({"replica": format!("worker-{index}"), "pod": 0, "joined": 10_000 + index});
    timeline["replicas"] = (0..40).map(replica).collect();
    let text = text(&timeline);
    assert!(text.contains("replicas (24 that were ready earlier are left out):\n"), "{text}");
    assert!(text.contains("\nworker-24 ") && !text.contains("\nworker-23 "), "{text}");
}
