//! Tests of gangs that do not all fit into the cluster.

use e2e::{Place, Stage, within};
use protocol::view::JobState;

/// Runs for a moment, so that the other gangs arrive meanwhile.
const BRIEF: &str = "import time; time.sleep(2)";

#[test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
fn four_gangs_of_four_on_a_node_with_room_for_four_run_one_after_the_other() {
    let stage = Stage::new(Place::Cluster, BRIEF);
    let cpu = stage.cluster().namespace.cpu_for(4);
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
