//! Golden JSON of the message with which an agent joins a job, and of the master's answers.

use protocol::elastic::Workers;
use protocol::join::{JoinAnswer, JoinRequest, Left};
use protocol::view::JobState;
use serde_json::json;

use crate::common::{assert_golden, assert_tolerates_new_fields, read};

fn message() -> JoinRequest {
    JoinRequest {
        boot_id: "6f1c".into(),
        address: "10.0.0.2:7896".parse().expect("an invalid address"),
        tensorflow_port: 20000.try_into().expect("an invalid port"),
        workers: None,
        nproc_per_node: None,
        lease_seconds: None,
        max_restarts: None,
        uid: None,
        place: None,
        left: None,
    }
}

#[test]
fn the_first_message_has_the_options_of_the_job_to_submit() {
    let first = JoinRequest {
        workers: Some(Workers { min: 1, max: 2 }),
        lease_seconds: Some(5),
        max_restarts: Some(3),
        ..message()
    };
    let golden = json!({
        "boot_id": "6f1c", "address": "10.0.0.2:7896", "tensorflow_port": 20000, "workers": {"min": 1, "max": 2},
        "lease_seconds": 5, "max_restarts": 3,
    });
    assert_golden(&first, &golden);
}

#[test]
fn the_last_message_says_why_the_agent_leaves() {
    let place = Some("worker-1".parse().expect("an invalid replica"));
    let last = JoinRequest { uid: Some("a-uid".into()), place, left: Some(Left::Terminated), ..message() };
    let golden = json!({
        "boot_id": "6f1c", "address": "10.0.0.2:7896", "tensorflow_port": 20000,
        "uid": "a-uid", "place": "worker-1", "left": "terminated",
    });
    assert_golden(&last, &golden);
    assert_golden(&Left::Finished, &json!("finished"));
}

#[test]
fn a_message_with_an_unknown_field_or_with_port_0_is_refused() {
    let later = json!({"boot_id": "1", "address": "10.0.0.2:7896", "tensorflow_port": 1, "later": 1});
    assert!(read::<JoinRequest>(&later).is_err());
    let without_port = json!({"boot_id": "1", "address": "10.0.0.2:7896", "tensorflow_port": 0});
    assert!(read::<JoinRequest>(&without_port).is_err());
}

#[test]
fn an_answer_names_the_state_of_the_agent_and_may_have_new_fields() {
    let place = "worker-1".parse().expect("an invalid replica");
    let joined = JoinAnswer::Joined { uid: "a-uid".into(), place, token_sha256: "00ff".into(), lease_seconds: 5 };
    let golden =
        json!({"state": "joined", "uid": "a-uid", "place": "worker-1", "token_sha256": "00ff", "lease_seconds": 5});
    assert_golden(&joined, &golden);
    assert_tolerates_new_fields::<JoinAnswer>(&golden);
    assert_golden(&JoinAnswer::Waiting { uid: "a-uid".into() }, &json!({"state": "waiting", "uid": "a-uid"}));
    let reason = Some("worker-0 exited with code 1".to_owned());
    let ended = JoinAnswer::Ended { outcome: JobState::Failed, reason };
    assert_golden(&ended, &json!({"state": "ended", "outcome": "failed", "reason": "worker-0 exited with code 1"}));
}
