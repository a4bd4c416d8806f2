//! Tests of the TF_CONFIG that the scripts of a TFJob receive, and of the labels of the TFJob's pods.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use job::plan;
use job::rendezvous::Rendezvous;
use protocol::ids::{Generation, ReplicaId};
use protocol::job::JobSpec;
use serde_json::{Value, json};

use super::read_file;

/// The environment of each replica. The replica with number n (from 0) has the address 10.0.0.n and the port of its
/// group.
fn environments(spec: &JobSpec) -> BTreeMap<String, Value> {
    let port = |id: ReplicaId| {
        let group = spec.group_of(id).and_then(|group| group.template.as_ref());
        group.expect("no template").tf_port
    };
    let members: BTreeMap<ReplicaId, SocketAddr> = (0_u8..)
        .zip(plan::replicas(spec))
        .map(|(place, id)| (id, SocketAddr::from(([10, 0, 0, place], port(id)))))
        .collect();
    let generation: Generation = "1.1".parse().expect("not a generation");
    let rendezvous = Rendezvous::new(spec, generation, &members);
    let of = |id: &ReplicaId| serde_json::to_value(rendezvous.environment(*id)).expect("not JSON");
    members.keys().map(|id| (id.to_string(), of(id))).collect()
}

fn spec(name: &str) -> JobSpec {
    read_file(name).expect("an invalid TFJob").spec
}

#[test]
fn tf_config_is_that_of_kubeflow_with_addresses_instead_of_services() {
    let environments = environments(&spec("every_role"));
    let cluster = json!({
        "chief": ["10.0.0.0:2222"], "worker": ["10.0.0.1:3333", "10.0.0.2:3333"], "ps": ["10.0.0.3:2222"],
    });
    for (replica, kind, index) in [
        ("chief-0", "chief", 0),
        ("worker-0", "worker", 0),
        ("worker-1", "worker", 1),
        ("ps-0", "ps", 0),
        ("evaluator-0", "evaluator", 0),
    ] {
        let golden = json!({ "cluster": cluster, "task": { "type": kind, "index": index }, "environment": "cloud" });
        assert_eq!(environments[replica]["TF_CONFIG"], golden, "{replica}");
    }
}

#[test]
fn a_replica_of_type_master_keeps_this_type_in_tf_config() {
    let environments = environments(&spec("master"));
    let cluster = json!({
        "master": ["10.0.0.0:2222"], "worker": ["10.0.0.1:2222"], "ps": ["10.0.0.2:2222", "10.0.0.3:2222"],
    });
    for (replica, kind, index) in [("chief-0", "master", 0), ("worker-0", "worker", 0), ("ps-1", "ps", 1)] {
        let golden = json!({ "cluster": cluster, "task": { "type": kind, "index": index }, "environment": "cloud" });
        assert_eq!(environments[replica]["TF_CONFIG"], golden, "{replica}");
    }
}

#[test]
fn a_job_with_one_replica_has_no_tf_config() {
    assert_eq!(environments(&spec("worker_alone"))["worker-0"].get("TF_CONFIG"), None);
}

#[test]
fn the_labels_of_pods_are_those_of_a_tfjob() {
    let labels = |name: &str, replica: &str| {
        let all = spec(name).labels_of(replica.parse().expect("not a replica"));
        let short =
            |key: &String| key.strip_prefix("training.kubeflow.org/").expect("not a label of TFJobs").to_owned();
        all.iter().map(|(key, value)| format!("{}={value}", short(key))).collect::<Vec<_>>().join(" ")
    };
    for (name, replica, expected) in [
        ("every_role", "chief-0", "job-name=mnist job-role=master replica-index=0 replica-type=chief"),
        ("every_role", "worker-0", "job-name=mnist replica-index=0 replica-type=worker"),
        ("every_role", "ps-0", "job-name=mnist replica-index=0 replica-type=ps"),
        ("every_role", "evaluator-0", "job-name=mnist replica-index=0 replica-type=evaluator"),
        ("master", "chief-0", "job-name=mnist job-role=master replica-index=0 replica-type=master"),
        ("servers_without_chief", "worker-0", "job-name=mnist job-role=master replica-index=0 replica-type=worker"),
        ("servers_without_chief", "worker-3", "job-name=mnist replica-index=3 replica-type=worker"),
    ] {
        assert_eq!(labels(name, replica), expected, "{name} {replica}");
    }
}
