//! TF_CONFIG: golden texts, and its maximum length.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use protocol::env::{self, EnvName};
use protocol::ids::{ReplicaId, Role};
use protocol::tf_config::{MEMBERS_MAX, TfCluster, TfConfig};
use serde_json::json;

/// A TensorFlow cluster on one machine. The replicas have the ports from 2000 on, in the given order.
fn cluster(replicas: &[&str]) -> TfCluster {
    let member = |(port, id): (u16, &&str)| (id.parse().expect(id), SocketAddr::from(([10, 1, 0, 5], port)));
    TfCluster::new(&(2000..).zip(replicas).map(member).collect(), |_| 1)
}

fn tf_config(cluster: &TfCluster, replica: &str) -> String {
    let id: ReplicaId = replica.parse().expect(replica);
    serde_json::to_string(&TfConfig { cluster, task: id.into(), sizes: None, extra: &serde_json::Map::new() })
        .expect("TF_CONFIG could not be written as JSON")
}

#[test]
fn all_replicas_see_the_same_tensorflow_cluster_which_has_no_evaluator() {
    let members = cluster(&["chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"]);
    let addresses = r#"{"chief":["10.1.0.5:2000"],"worker":["10.1.0.5:2001","10.1.0.5:2002"],"ps":["10.1.0.5:2003"]}"#;
    for (replica, role, index) in
        [("chief-0", "chief", 0), ("worker-1", "worker", 1), ("ps-0", "ps", 0), ("evaluator-0", "evaluator", 0)]
    {
        let golden = format!(r#"{{"cluster":{addresses},"task":{{"type":"{role}","index":{index}}}}}"#);
        assert_eq!(tf_config(&members, replica), golden);
    }
}

#[test]
fn addresses_are_sorted_by_index_and_not_by_text() {
    let workers: Vec<String> = (0..12).map(|index| format!("worker-{index}")).collect();
    let names: Vec<&str> = workers.iter().map(String::as_str).collect();
    let json = serde_json::to_value(cluster(&names)).expect("not JSON");
    assert_eq!(json["worker"][2], "10.1.0.5:2002");
    assert_eq!(json["worker"][10], "10.1.0.5:2010");
}

#[test]
fn a_cluster_reads_back() {
    let members = cluster(&["chief-0", "worker-0", "ps-0"]);
    let json = serde_json::to_string(&members).expect("not JSON");
    assert_eq!(serde_json::from_str::<TfCluster>(&json).expect("not a cluster"), members);
    assert_eq!(
        serde_json::from_value::<TfCluster>(json!({})).expect("an empty cluster is refused"),
        TfCluster::default()
    );
}

/// The longest TF_CONFIG with this many members. It has the longest addresses, all roles of a cluster and the longest
/// task.
fn longest(members: u32) -> String {
    let id = |place: u32| match place {
        0 => ReplicaId { role: Role::Chief, index: 0 },
        1 => ReplicaId { role: Role::Ps, index: 0 },
        worker => ReplicaId { role: Role::Worker, index: worker - 2 },
    };
    let address = SocketAddr::from(([255, 255, 255, 255], 65_535));
    let cluster = TfCluster::new(&(0..members).map(|place| (id(place), address)).collect::<BTreeMap<_, _>>(), |_| 1);
    tf_config(&cluster, "evaluator-99999")
}

#[test]
fn the_tf_config_of_the_largest_tensorflow_cluster_fits_into_one_variable() {
    let name: EnvName = env::TF_CONFIG.parse().expect("an invalid name");
    assert_eq!(name.check_value(&longest(MEMBERS_MAX)), Ok(()));
}

#[test]
fn a_tensorflow_cluster_one_percent_larger_than_the_maximum_does_not_fit() {
    let name: EnvName = env::TF_CONFIG.parse().expect("an invalid name");
    let larger = longest(MEMBERS_MAX + MEMBERS_MAX / 100);
    assert!(name.check_value(&larger).is_err(), "{} bytes fit: MEMBERS_MAX could be larger", larger.len());
}
