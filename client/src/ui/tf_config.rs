//! TF_CONFIG of one replica, from the members and addresses in a job's view.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use protocol::batching::BATCH_SIZE_LIST_KEY;
use protocol::ids::{ReplicaId, Role};
use protocol::tf_config::{TfCluster, TfConfig};
use protocol::view::{JobView, ReplicaView};
use serde_json::Value;

/// The seat of each member of the current start. An elastic job may have a gap between two places.
fn seats(view: &JobView) -> BTreeMap<ReplicaId, ReplicaId> {
    let all: Vec<ReplicaId> = view.replicas.iter().map(|replica| replica.replica).collect();
    let members = if view.workers.is_some() { &view.roster } else { &all };
    let mut next: BTreeMap<Role, u32> = BTreeMap::new();
    let mut seat = |place: &ReplicaId| {
        let index = next.entry(place.role).or_default();
        *index += 1;
        (*place, ReplicaId { role: place.role, index: *index - 1 })
    };
    members.iter().map(&mut seat).collect()
}

/// TF_CONFIG of the first process of the replica in this place, as JSON. `None` if the place has no seat in the current start, if an address
/// is unknown, or if the job omits TF_CONFIG.
pub(super) fn tf_config(view: &JobView, place: ReplicaId) -> Option<String> {
    let seats = seats(view);
    let own = *seats.get(&place)?;
    let address = |replica: &ReplicaView| replica.address.as_ref()?.parse::<SocketAddr>().ok();
    let addressed = view.replicas.iter().filter_map(|replica| Some((*seats.get(&replica.replica)?, address(replica)?)));
    let members: BTreeMap<ReplicaId, SocketAddr> = addressed.collect();
    let options = &view.spec.tf_config;
    if members.len() < seats.len() || options.omit_single && seats.len() == 1 {
        return None;
    }
    let cluster = options.cluster(TfCluster::new(&members, |seat| view.spec.processes_of(seat)));
    let task = options.task(ReplicaId { index: own.index * view.spec.processes_of(own), ..own });
    let sizes = first_sizes(view);
    let sizes = sizes.as_ref().map(|sizes| (BATCH_SIZE_LIST_KEY, sizes));
    serde_json::to_string_pretty(&TfConfig { cluster: &cluster, task, sizes, extra: &options.extra }).ok()
}

/// The batch sizes with which the start began. `None` if they have changed, or if there are none.
fn first_sizes(view: &JobView) -> Option<Value> {
    let batches = view.batches.as_ref().filter(|batches| batches.changed.is_none())?;
    Some(view.spec.batching.list.of(&batches.sizes, view.spec.ps_num as usize))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view(roster: &[&str], more: &Value) -> JobView {
        let replica = |index: u32| json!({"replica": format!("worker-{index}"), "state": "running", "pod": "p", "address": format!("10.0.0.{index}:1234")});
        let mut view = json!({
            "name": "digits", "uid": "u", "seq": 1, "state": "running", "times": {}, "roster": roster,
            "spec": {"name": "digits", "strategy": "AllReduce", "worker_num": 4, "work_dir": "/w"},
            "replicas": [replica(0), replica(2), replica(3)],
        });
        view.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(view).unwrap()
    }

    fn shown(view: &JobView, place: &str) -> Option<Value> {
        tf_config(view, place.parse().unwrap()).map(|text| serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn a_member_of_an_elastic_job_has_the_index_of_its_seat() {
        let elastic = view(&["worker-0", "worker-3"], &json!({"workers": {"min": 1, "max": 4}}));
        let cluster = json!({"worker": ["10.0.0.0:1234", "10.0.0.3:1234"]});
        assert_eq!(
            shown(&elastic, "worker-3"),
            Some(json!({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
        );
        assert_eq!(shown(&elastic, "worker-2"), None, "worker-2 takes no part in this start");
    }

    #[test]
    fn batch_sizes_are_shown_until_they_change() {
        let sizes = json!({"batches": {"global": 96, "sizes": [64, 16, 16]}});
        assert_eq!(shown(&view(&[], &sizes), "worker-2").unwrap()["batch_size_list"], "[64,16,16]");
        let change = json!({"at": 1, "from": [32, 32, 32], "slowest": "worker-2", "fastest": "worker-0", "ratio": 2.0});
        let changed = json!({"batches": {"global": 96, "sizes": [64, 16, 16], "changed": change}});
        assert_eq!(shown(&view(&[], &changed), "worker-2").unwrap().get("batch_size_list"), None);
    }
}
