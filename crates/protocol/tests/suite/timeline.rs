//! Golden JSON of the timeline of a job.

use crate::common::{assert_golden, assert_tolerates_new_fields};
use protocol::agent::{ExitOutcome, ExitReport};
use protocol::failure::Failure;
use protocol::ids::{Generation, UnixMillis};
use protocol::progress::LostSteps;
use protocol::spent::Spent;
use protocol::starts::{ChangeCause, GangChange};
use protocol::timeline::{Folded, ReplicaFacts, StartEnding, StartFacts, StepAt, Timeline};
use protocol::view::JobState;
use serde_json::json;

fn timeline() -> Timeline {
    let worker = "worker-1".parse().expect("worker-1");
    let failure =
        Failure::ReplicaExited { replica: worker, exit: ExitReport::new(ExitOutcome::Code(3), UnixMillis(19)) };
    let step = |step: u64, at: u64| Some(StepAt { step, at: UnixMillis(at) });
    let start = StartFacts {
        generation: Some("1.2".parse().expect("1.2")),
        cause: Some(ChangeCause::Left { failure: failure.clone() }),
        workers: 2,
        lost_steps: Some(LostSteps { replica: worker, first: 4, last: 5 }),
        began: Some(UnixMillis(11)),
        complete: Some(UnixMillis(12)),
        configured: Some(UnixMillis(13)),
        started: Some(UnixMillis(14)),
        first_step: step(4, 15),
        last_step: step(9, 18),
        stopped: Some(UnixMillis(20)),
        dead: Some(UnixMillis(21)),
        ending: Some(StartEnding::Failed { failure }),
    };
    let replica = ReplicaFacts {
        generation: Some("1.2".parse().expect("1.2")),
        requested: Some(UnixMillis(1)),
        scheduled: Some(UnixMillis(2)),
        addressed: Some(UnixMillis(3)),
        joined: Some(UnixMillis(4)),
        warm: Some(UnixMillis(5)),
        configured: Some(UnixMillis(13)),
        started: Some(UnixMillis(14)),
        first_step: Some(UnixMillis(15)),
        ended: Some(UnixMillis(19)),
        reason: Some("exited with code 3".into()),
        ..ReplicaFacts::new(worker, 1)
    };
    let spent = Spent { kept_steps_ms: 1, lost_steps_ms: 2, running_ms: 3, ..Spent::default() };
    Timeline {
        name: "digits".parse().expect("digits"),
        uid: "0b5e".into(),
        state: JobState::Failed,
        now: UnixMillis(40),
        accepted: UnixMillis(0),
        taken_over: Some(UnixMillis(10)),
        ended: Some(UnixMillis(20)),
        unseen: 1,
        folded: Some(Folded { causes: [("pushed".to_owned(), 2)].into(), until: UnixMillis(11), spent }),
        starts: vec![start],
        replicas: vec![replica],
        failed_replicas: vec![ReplicaFacts::new(worker, 0)],
        spent: Spent {
            program_startup_ms: 4,
            after_steps_ms: 5,
            gathering_ms: 6,
            recovery_ms: 7,
            suspended_ms: 8,
            halted_ms: 9,
            ..spent
        },
    }
}

#[test]
fn the_golden_json_of_a_timeline() {
    let failure = json!({
        "cause": "replica_exited", "replica": "worker-1",
        "exit": {"code": 3, "stopped": false, "ended_at": 19, "stderr_tail": ""},
    });
    let json = json!({
        "name": "digits", "uid": "0b5e", "state": "failed", "now": 40, "accepted": 0, "taken_over": 10, "ended": 20,
        "unseen": 1,
        "folded": {
            "causes": {"pushed": 2}, "until": 11,
            "spent": {
                "kept_steps_ms": 1, "lost_steps_ms": 2, "running_ms": 3, "program_startup_ms": 0, "after_steps_ms": 0,
                "gathering_ms": 0, "recovery_ms": 0, "suspended_ms": 0, "halted_ms": 0,
            },
        },
        "starts": [{
            "generation": "1.2", "cause": {"cause": "left", "failure": failure}, "workers": 2,
            "lost_steps": {"replica": "worker-1", "first": 4, "last": 5},
            "began": 11, "complete": 12, "configured": 13, "started": 14,
            "first_step": {"step": 4, "at": 15}, "last_step": {"step": 9, "at": 18},
            "stopped": 20, "dead": 21, "ending": {"how": "failed", "failure": failure},
        }],
        "replicas": [{
            "replica": "worker-1", "pod": 1, "generation": "1.2", "requested": 1, "scheduled": 2, "addressed": 3,
            "joined": 4, "warm": 5, "configured": 13, "started": 14, "first_step": 15, "ended": 19,
            "reason": "exited with code 3",
        }],
        "failed_replicas": [{"replica": "worker-1", "pod": 0}],
        "spent": {
            "kept_steps_ms": 1, "lost_steps_ms": 2, "running_ms": 3, "program_startup_ms": 4, "after_steps_ms": 5,
            "gathering_ms": 6, "recovery_ms": 7, "suspended_ms": 8, "halted_ms": 9,
        },
    });
    assert_golden(&timeline(), &json);
    assert_tolerates_new_fields::<Timeline>(&json);
}

#[test]
fn only_a_start_whose_gang_was_complete_and_whose_cause_is_known_is_a_change() {
    let generation = Generation { epoch: 1, sequence: 2 };
    let start = StartFacts {
        generation: Some(generation),
        cause: Some(ChangeCause::Pushed),
        workers: 3,
        began: Some(UnixMillis(5)),
        complete: Some(UnixMillis(7)),
        ..StartFacts::default()
    };
    let change = GangChange { generation, at: UnixMillis(7), workers: 3, cause: ChangeCause::Pushed, lost_steps: None };
    assert_eq!(start.change(), Some(change));
    assert_eq!(StartFacts { generation: None, ..start.clone() }.change(), None);
    assert_eq!(StartFacts { cause: None, ..start.clone() }.change(), None);
    assert_eq!(StartFacts { complete: None, ..start }.change(), None);
}
