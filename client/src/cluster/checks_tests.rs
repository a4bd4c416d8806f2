//! Tests of the verdicts of `client doctor`.

use master_client::KubePlace;
use serde_json::json;

use super::*;
use crate::cluster::no_master;
use crate::ending::error::Cause;

fn verdict(check: &Check) -> (CheckVerdict, &str) {
    (check.verdict, &check.detail)
}

fn node(architecture: &str, kubelet: &str) -> Node {
    let info = json!({
        "architecture": architecture, "kubeletVersion": kubelet, "bootID": "", "containerRuntimeVersion": "",
        "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "",
        "systemUUID": "",
    });
    serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"nodeInfo": info}})).expect("not a Node")
}

fn healthy() -> Observed {
    Observed {
        pod_security: Ok(None),
        quotas: Ok(vec![]),
        secret: Ok(()),
        master: Ok(Master { trouble: None, image: "muster-master:1".to_owned() }),
        answer: Ok(env!("CARGO_PKG_VERSION").to_owned()),
        nodes: Ok(vec![node("amd64", "v1.33.0")]),
        daemon_sets: Ok(vec!["kube-proxy".to_owned(), "calico-node".to_owned()]),
        left_alone: Ok(BTreeSet::new()),
    }
}

#[test]
fn a_healthy_installation_has_neither_failures_nor_warnings() {
    let checks = of_cluster(&healthy());
    assert!(checks.iter().all(|check| check.verdict == CheckVerdict::Ok && check.hint.is_none()), "{checks:?}");
    assert_eq!(checks.len(), 9);
}

#[test]
fn a_check_whose_right_the_user_lacks_is_a_warning_and_a_missing_master_is_a_failure() {
    let lacking = || Error::master("you may not list nodes in namespace n of context c").cause(Cause::Forbidden);
    let no_master = || no_master(&KubePlace::default());
    let observed = Observed {
        pod_security: Err(lacking()),
        quotas: Err(lacking()),
        nodes: Err(lacking()),
        daemon_sets: Err(lacking()),
        left_alone: Err(lacking()),
        master: Err(no_master()),
        answer: Err(no_master()),
        ..healthy()
    };
    let checks = of_cluster(&observed);
    let of = |verdict| checks.iter().filter(move |check| check.verdict == verdict).map(|check| check.name.as_str());
    assert_eq!(of(CheckVerdict::Fail).collect::<Vec<_>>(), ["rollout", "port-forward"]);
    let unknown = ["Pod Security", "quota", "image", "architecture", "network policies", "TFJobs"];
    assert_eq!(of(CheckVerdict::Warn).collect::<Vec<_>>(), unknown);
}

#[test]
fn tfjobs_in_a_namespace_without_a_master_are_a_warning() {
    let left_alone = Ok(["a".to_owned(), "b".to_owned()].into());
    let checks = of_cluster(&Observed { left_alone, ..healthy() });
    let check = checks.iter().find(|check| check.name == "TFJobs").expect("there is no check with the name TFJobs");
    assert_eq!(verdict(check), (CheckVerdict::Warn, "no master runs the TFJobs in a, b"));
    assert!(check.hint.as_deref().is_some_and(|hint| hint.starts_with("client install --tfjobs -n a")), "{check:?}");
}

#[test]
fn the_network_is_recognized_by_its_daemon_sets_or_as_part_of_k3s() {
    for (names, kubelet, expected) in [
        (&["cilium"][..], "v1.33.0", (CheckVerdict::Ok, "Cilium enforces them")),
        (&["aws-node"], "v1.33.0", (CheckVerdict::Warn, "Amazon VPC CNI enforces them only if enabled")),
        (&["aws-node", "calico-node"], "v1.33.0", (CheckVerdict::Ok, "Calico enforces them")),
        (
            &["kube-flannel-ds"],
            "v1.33.0",
            (CheckVerdict::Warn, "Flannel does not enforce them, so every pod can reach TensorFlow's port"),
        ),
        (&[], "v1.33.0+k3s1", (CheckVerdict::Ok, "k3s enforces them")),
        (&["kube-proxy"], "v1.33.0", (CheckVerdict::Warn, "the network is not known")),
    ] {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(verdict(&network(&names, &[node("amd64", kubelet)])), expected);
    }
}

#[test]
fn an_image_without_a_registry_on_two_nodes_and_nodes_with_different_architectures_are_warnings() {
    let of = |name, nodes| image(name, nodes).verdict;
    assert_eq!(of("muster-master:1", 1), CheckVerdict::Ok);
    assert_eq!(of("muster-master:1", 2), CheckVerdict::Warn);
    assert_eq!(of("team/muster-master:1", 2), CheckVerdict::Warn);
    for name in ["registry.example.com/muster-master:1", "localhost:5000/muster-master", "localhost/muster-master"] {
        assert_eq!(of(name, 2), CheckVerdict::Ok, "{name}");
    }
    let check = architectures(&[node("arm64", ""), node("amd64", ""), node("amd64", "")]);
    let detail = "the nodes differ: amd64, arm64; an image may run on only one of these architectures";
    assert_eq!(verdict(&check), (CheckVerdict::Warn, detail));
}

#[test]
fn a_quota_without_room_is_a_warning() {
    let of = |used: &str| {
        let quota = json!({
            "metadata": {"name": "team-pods"},
            "status": {"hard": {"pods": "4", "configmaps": "1"}, "used": {"pods": used, "configmaps": "1"}},
        });
        super::quota(&[serde_json::from_value(quota).expect("the JSON is not a ResourceQuota")])
    };
    assert_eq!(verdict(&of("3")), (CheckVerdict::Ok, "team-pods"));
    assert_eq!(verdict(&of("4")), (CheckVerdict::Warn, "no room for another pod: 4 of 4 pods used (quota team-pods)"));
}

#[test]
fn an_old_kubernetes_and_another_version_of_the_master_are_warnings() {
    assert_eq!(version("1", "19+", "v1.19.1").verdict, CheckVerdict::Warn);
    assert_eq!(version("1", "20", "v1.20.2").verdict, CheckVerdict::Ok);
    assert_eq!(forward("0.0.1").verdict, CheckVerdict::Warn);
}
