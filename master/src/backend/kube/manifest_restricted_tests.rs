//! Checks that pods meet the Pod Security Standard `restricted`, except for options that the user sets explicitly.

use serde_json::{Value, json};

use super::*;

/// The controls of the Pod Security Standard `restricted`, by name, as checks of a pod's specification. The controls of
/// `baseline` come first. A check of security contexts applies to every container.
type Control = (&'static str, fn(&Value) -> bool);
const RESTRICTED: [Control; 17] = [
    ("HostProcess", |pod| {
        pod["securityContext"]["windowsOptions"].is_null() && own(pod, |c| c["windowsOptions"].is_null())
    }),
    ("Host Namespaces", |pod| ["hostNetwork", "hostPID", "hostIPC"].iter().all(|host| pod[host].is_null())),
    ("Privileged Containers", |pod| own(pod, |c| c["privileged"].is_null())),
    ("HostPath Volumes", |pod| items(&pod["volumes"]).iter().all(|volume| volume["hostPath"].is_null())),
    ("Host Ports", |pod| {
        containers(pod).flat_map(|container| items(&container["ports"])).all(|port| port["hostPort"].is_null())
    }),
    ("Host Probes / Lifecycle Hooks", |pod| {
        let probes = ["livenessProbe", "readinessProbe", "startupProbe", "lifecycle"];
        containers(pod).all(|container| probes.iter().all(|probe| container[probe].is_null()))
    }),
    ("AppArmor", |pod| {
        pod["securityContext"]["appArmorProfile"].is_null() && own(pod, |c| c["appArmorProfile"].is_null())
    }),
    ("SELinux", |pod| {
        pod["securityContext"]["seLinuxOptions"].is_null() && own(pod, |c| c["seLinuxOptions"].is_null())
    }),
    ("/proc Mount Type", |pod| own(pod, |c| c["procMount"].is_null())),
    ("Sysctls", |pod| pod["securityContext"]["sysctls"].is_null()),
    ("Volume Types", |pod| {
        let is_allowed = |kind: &String| ["name", "persistentVolumeClaim", "emptyDir"].contains(&kind.as_str());
        items(&pod["volumes"]).iter().all(|volume| volume.as_object().expect("not an object").keys().all(is_allowed))
    }),
    ("Privilege Escalation", |pod| own(pod, |c| c["allowPrivilegeEscalation"] == json!(false))),
    ("Running as Non-root", |pod| {
        pod["securityContext"]["runAsNonRoot"] == json!(true) && own(pod, |c| c["runAsNonRoot"].is_null())
    }),
    ("Running as Non-root user", |pod| {
        pod["securityContext"]["runAsUser"] != json!(0) && own(pod, |c| c["runAsUser"].is_null())
    }),
    ("Seccomp", |pod| {
        pod["securityContext"]["seccompProfile"]["type"] == json!("RuntimeDefault")
            && own(pod, |c| c["seccompProfile"].is_null())
    }),
    ("Capabilities", |pod| own(pod, |c| c["capabilities"] == json!({ "drop": ["ALL"] }))),
    ("no ephemeral container", |pod| pod["ephemeralContainers"].is_null()),
];

/// The controls that a pod with these options breaks. Checks that the list is the same if the agent is in the job's
/// image and if the agent is copied into the pod.
fn broken_controls(options: &PodOptions) -> Vec<&'static str> {
    let broken = |spec: &PodSpec| {
        let pod = sent(spec)["spec"].take();
        RESTRICTED.iter().filter(|(_, holds)| !holds(&pod)).map(|(name, _)| *name).collect::<Vec<_>>()
    };
    let in_image = broken(&PodSpec { options: options.clone(), ..spec() });
    assert_eq!(broken(&with_code(options.clone())), in_image);
    in_image
}

#[test]
fn pods_without_root_and_without_host_volumes_meet_the_restricted_standard() {
    let all = PodOptions {
        volumes: ["pvc:data:/data:ro", "empty:/cache"].map(|v| v.parse().unwrap()).into(),
        allow_root: false,
        ..all_options()
    };
    let Value::Object(all) = serde_json::to_value(all).unwrap() else { panic!("the options are not an object") };
    assert_eq!(all.len(), 13, "this test must set all options except --allow-root");
    for chosen in 0..1_u32 << all.len() {
        let some = all.iter().enumerate().filter(|(place, _)| chosen & (1 << place) != 0);
        let some = some.map(|(_, (name, value))| (name.clone(), value.clone())).collect();
        let options: PodOptions = serde_json::from_value(Value::Object(some)).unwrap();
        assert_eq!(broken_controls(&options), Vec::<&str>::new(), "{options:?}");
    }
}

#[test]
fn the_options_for_root_and_for_host_volumes_break_the_restricted_standard() {
    let root = PodOptions { allow_root: true, ..PodOptions::default() };
    assert_eq!(broken_controls(&root), ["Running as Non-root"]);
    let host = PodOptions { volumes: vec!["host:/srv:/srv".parse().unwrap()], ..PodOptions::default() };
    assert_eq!(broken_controls(&host), ["HostPath Volumes", "Volume Types"]);
}
