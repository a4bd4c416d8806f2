//! Tests of pods that the cluster evicts, or that a user or a master deletes.

use serde_json::{Value, json};

use super::*;

#[test]
fn an_evicted_or_preempted_or_deleted_pod_is_disrupted_and_has_a_reason_without_an_exit_code() {
    let ended = |reason: &str| PodState::disrupted(reason);
    let evicted =
        json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory. " });
    assert_eq!(state(&pod(&evicted), None), ended("Evicted: The node was low on resource: memory."));
    let refused = json!({ "phase": "Failed", "reason": "OutOfcpu" });
    assert_eq!(state(&pod(&refused), None), ended("OutOfcpu"));
    let mut preempted = with("Failed", &json!({ "terminated": { "exitCode": 143, "reason": "Error" } }));
    preempted["conditions"] =
        disrupted("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod");
    let why = "PreemptionByScheduler: default-scheduler: preempting to accommodate a higher priority pod";
    assert_eq!(state(&deleted(pod(&preempted)), None), ended(why));
    let deleted_early = json!({ "phase": "Failed" });
    assert_eq!(state(&deleted(pod(&deleted_early)), None), ended("its pod was deleted"));
    let silent = PodState::ended(None, "its pod ended without a reason");
    assert_eq!(state(&pod(&deleted_early), None), silent);
}

#[test]
fn an_evicted_pod_keeps_the_exit_report_of_a_run_that_was_not_stopped() {
    for stopped in [false, true] {
        let (mut status, words) = with_last_words(stopped);
        status["reason"] = json!("Evicted");
        let reason = "Evicted".to_owned();
        let expected = if stopped { PodState::disrupted(reason) } else { PodState::ended(Some(words), reason) };
        assert_eq!(state(&pod(&status), None), expected);
    }
}

fn disrupted(reason: &str, message: &str) -> Value {
    json!([{ "type": "DisruptionTarget", "status": "True", "reason": reason, "message": message }])
}

fn is_leaving(reason: &str) -> PodState {
    PodState::Leaving { reason: reason.to_owned() }
}

#[test]
fn a_pod_that_is_being_deleted_is_leaving_if_it_has_not_succeeded() {
    let mut running = with("Running", &json!({ "running": {} }));
    assert_eq!(state(&deleted(pod(&running)), None), is_leaving("its pod is being deleted"));
    running["conditions"] = disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint");
    let why = "DeletionByTaintManager: Taint manager: deleting due to NoExecute taint";
    assert_eq!(state(&deleted(pod(&running)), None), is_leaving(why));
    let lost = json!({ "phase": "Running", "podIP": "10.244.0.7", "reason": "NodeLost",
        "message": "Node n1 which was running pod digits-worker-1 is unresponsive" });
    let why = "NodeLost: Node n1 which was running pod digits-worker-1 is unresponsive";
    assert_eq!(state(&deleted(pod(&lost)), None), is_leaving(why));
    let (mut succeeded, words) = with_last_words(false);
    succeeded["phase"] = json!("Succeeded");
    let ended = state(&deleted(pod(&succeeded)), None);
    let has_words = matches!(&ended, PodState::Terminated { exit: Some(exit), .. } if *exit == words);
    assert!(has_words, "a succeeded pod is not terminated: {ended:?}");
}

#[test]
fn an_agent_that_ends_because_its_pod_is_deleted_while_the_gang_gathers_is_disrupted() {
    let reason = "its pod is being deleted";
    let leaving = state(&deleted(pod(&with("Running", &json!({ "running": {} })))), None);
    assert_eq!(leaving, is_leaving(reason));
    // An agent without a run ends with exit code 0 and leaves no last words.
    for (phase, code) in [("Succeeded", 0), ("Running", 0), ("Failed", 143)] {
        let ended = deleted(terminated(phase, code, "Completed"));
        let expected = if phase == "Running" { is_leaving(reason) } else { PodState::disrupted(reason) };
        assert_eq!(state(&ended, Some(&leaving)), expected, "in phase {phase}");
    }
    let unseen = deleted(terminated("Succeeded", 0, "Completed"));
    assert_eq!(state(&unseen, None), PodState::disrupted("its pod was deleted"));
    // The container had ended by itself before the deletion.
    let before = state(&terminated("Succeeded", 0, "Completed"), None);
    assert_eq!(state(&unseen, Some(&before)), before);
}

#[test]
fn a_pod_that_is_evicted_for_its_own_use_of_storage_is_terminated_not_disrupted() {
    let evicted =
        |message: &str| state(&pod(&json!({ "phase": "Failed", "reason": "Evicted", "message": message })), None);
    for message in [
        "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
        "Container agent exceeded its local ephemeral storage limit \"1Gi\". ",
        "Usage of EmptyDir volume \"volume-0\" exceeds the limit \"1Gi\". ",
    ] {
        let reason = format!("Evicted: {}", message.trim());
        assert_eq!(evicted(message), PodState::ended(None, reason));
    }
    let of_others = evicted("The node was low on resource: ephemeral-storage. Container agent was using 1Gi.");
    assert!(matches!(of_others, PodState::Disrupted { .. }), "{of_others:?}");
}
