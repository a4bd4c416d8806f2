//! Tests of gangs that do not all fit into the cluster.

use e2e::{Place, Stage, within};
use protocol::pod::thousandths;
use protocol::view::JobState;
use serde_json::Value;

/// Runs for a moment, so that the other gangs arrive meanwhile.
const BRIEF: &str = "import time; time.sleep(2)";

/// The CPU of each pod, such as `350m`, with which the node has room for exactly this number of pods.
fn cpu_for(stage: &Stage, pods: u128) -> String {
    let get = |what: &[&str]| -> Value {
        let text = stage.cluster().namespace.kubectl(&[&["get", "-o", "json"], what].concat());
        serde_json::from_str(&text).expect("kubectl prints no JSON")
    };
    let of = |amount: &Value| amount.as_str().and_then(thousandths).unwrap_or_default();
    let nodes = get(&["nodes"]);
    let [node] = nodes["items"].as_array().expect("no list").as_slice() else { panic!("not one node: {nodes}") };
    let others = get(&["pods", "--all-namespaces"]);
    let has_ended = |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let is_live = |pod: &&Value| pod["spec"]["nodeName"].is_string() && !has_ended(pod);
    let live = others["items"].as_array().expect("no list").iter().filter(is_live);
    let containers = live.flat_map(|pod| pod["spec"]["containers"].as_array().into_iter().flatten());
    let used: u128 = containers.map(|container| of(&container["resources"]["requests"]["cpu"])).sum();
    let free = of(&node["status"]["allocatable"]["cpu"]).saturating_sub(used);
    format!("{}m", free / pods)
}

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn four_gangs_of_four_on_a_node_with_room_for_four_run_one_after_the_other() {
    let stage = Stage::new(Place::Cluster, BRIEF);
    let cpu = cpu_for(&stage, 4);
    let names: Vec<String> = (0..4).map(|index| format!("gang-{index}")).collect();
    for name in &names {
        stage.submit(&["-d", "--task", name, "--worker-num", "4", "--cpu", &cpu]).code(0);
    }
    let list = || stage.verb(&["list"]).code(0).stdout;
    within("a gang waits for its turn", || list().contains("queued behind gang-").then_some(()), list);
    for name in &names {
        let view = stage.finished(name);
        assert_eq!((view.state, view.restarts.total()), (JobState::Succeeded, 0), "{view:#?}");
    }
    stage.assert_nothing_runs();
}
