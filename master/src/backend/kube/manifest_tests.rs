//! Tests of `manifest.rs`. They check the JSON that Kubernetes receives.

use proptest::collection::vec;
use proptest::prelude::{prop_assert_eq, proptest};
use serde_json::{Value, json};

use super::*;

#[path = "manifest_template_tests.rs"]
mod in_templates;
#[path = "manifest_restricted_tests.rs"]
mod restricted;

fn spec() -> PodSpec {
    PodSpec {
        job: JobKey { name: "digits".parse().unwrap(), uid: "u-1".to_owned() },
        replica: "worker-3".parse().unwrap(),
        image: Some("registry.local/digits:1".parse().unwrap()),
        work_dir: None,
        brings_code: false,
        processes: 1,
        command: command(&["exec.py"]),
        template: None,
        labels: BTreeMap::new(),
        second_code_folder: None,
        options: PodOptions::default(),
        agent_token_sha256: "ab".repeat(32),
    }
}

/// The command `python` with these arguments.
fn command(words: &[&str]) -> Vec<String> {
    ["python"].iter().chain(words).map(|word| (*word).to_owned()).collect()
}

fn sent(spec: &PodSpec) -> Value {
    sent_by(DefaultUser::Muster, spec)
}

fn sent_by(user: DefaultUser, spec: &PodSpec) -> Value {
    sent_with(&AgentSource::Image("muster-master:1".parse().unwrap()), user, spec)
}

fn sent_with(agent: &AgentSource, user: DefaultUser, spec: &PodSpec) -> Value {
    let allowed = Allowed { host_volumes: false, root: false };
    serde_json::to_value(pod(spec, Some(agent), user, allowed).unwrap()).unwrap()
}

/// Every option, as a user would write it.
fn all_options() -> PodOptions {
    PodOptions {
        cpu: Some("500m:2".parse().unwrap()),
        memory: Some("4Gi".parse().unwrap()),
        gpus: Some(1),
        shm: Some("2Gi".parse().unwrap()),
        volumes: ["pvc:data:/data:ro", "host:/mnt/scratch:/scratch", "empty:/cache"].map(|v| v.parse().unwrap()).into(),
        env_secrets: vec!["s3-keys".parse().unwrap()],
        node_selector: [("disk".parse().unwrap(), "ssd".parse().unwrap())].into(),
        tolerations: ["spot=true:NoSchedule", "gpu"].map(|t| t.parse().unwrap()).into(),
        priority_class: Some("batch".parse().unwrap()),
        service_account: Some("trainer".parse().unwrap()),
        image_pull_policy: Some(PullPolicy::Always),
        termination_grace_seconds: std::num::NonZeroU32::new(90),
        allow_root: true,
        run_as: Some("1000:100".parse().unwrap()),
    }
}

fn minimal() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "digits-worker-3",
            "labels": {
                "app.kubernetes.io/managed-by": "muster",
                "app.kubernetes.io/name": "muster-job",
                "app.kubernetes.io/instance": "digits",
                "app.kubernetes.io/component": "worker",
                "muster/job": "digits",
                "muster/job-uid": "u-1",
                "muster/role": "worker",
                "muster/index": "3",
            },
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "ConfigMap", "name": "muster-digits", "uid": "u-1", "controller": true },
            ],
        },
        "spec": {
            "containers": [{
                "name": "agent",
                "image": "registry.local/digits:1",
                "imagePullPolicy": "IfNotPresent",
                "env": [
                    { "name": "MUSTER_TOKEN_SHA256", "value": "ab".repeat(32) },
                    { "name": "MUSTER_TERMINATION_GRACE_SECONDS", "value": "30" },
                ],
                "ports": [{ "name": "agent", "containerPort": 7896 }],
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
            }],
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "terminationGracePeriodSeconds": 30,
        },
    })
}

#[test]
fn a_spec_without_options_gives_the_minimal_pod() {
    assert_eq!(sent(&spec()), minimal());
}

#[test]
fn each_option_sets_its_fields_of_the_pod() {
    let mut expected = minimal();
    let container = &mut expected["spec"]["containers"][0];
    container["imagePullPolicy"] = json!("Always");
    container["args"] = json!(["--", "python", "exec.py", "--epochs", "3"]);
    container["resources"] = json!({
        "requests": { "cpu": "500m", "memory": "4Gi" },
        "limits": { "cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1" },
    });
    container["envFrom"] = json!([{ "secretRef": { "name": "s3-keys" } }]);
    container["volumeMounts"] = json!([
        { "name": "volume-0", "mountPath": "/data", "readOnly": true },
        { "name": "volume-1", "mountPath": "/scratch", "readOnly": false },
        { "name": "volume-2", "mountPath": "/cache", "readOnly": false },
        { "name": "shm", "mountPath": "/dev/shm" },
    ]);
    container["env"][1]["value"] = json!("90");
    let pod = &mut expected["spec"];
    pod["terminationGracePeriodSeconds"] = json!(90);
    let seccomp = json!({ "type": "RuntimeDefault" });
    pod["securityContext"] = json!({ "seccompProfile": seccomp, "runAsUser": 1000, "runAsGroup": 100 });
    pod["volumes"] = json!([
        { "name": "volume-0", "persistentVolumeClaim": { "claimName": "data", "readOnly": true } },
        { "name": "volume-1", "hostPath": { "path": "/mnt/scratch", "type": "Directory" } },
        { "name": "volume-2", "emptyDir": {} },
        { "name": "shm", "emptyDir": { "medium": "Memory", "sizeLimit": "2Gi" } },
    ]);
    pod["nodeSelector"] = json!({ "disk": "ssd" });
    pod["tolerations"] = json!([
        { "key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule" },
        { "key": "gpu", "operator": "Exists" },
    ]);
    pod["priorityClassName"] = json!("batch");
    pod["serviceAccountName"] = json!("trainer");
    let command = command(&["exec.py", "--epochs", "3"]);
    assert_eq!(sent(&PodSpec { command, options: all_options(), ..spec() }), expected);
}

proptest! {
    #[test]
    fn arguments_reach_the_agent_as_they_were_typed(args in vec("([$()A é]|\\$\\(A\\)){0,8}", 1..4)) {
        let sent = arguments(&PodSpec { command: args.clone(), ..spec() }).unwrap();
        prop_assert_eq!(&sent[0], "--");
        let arrived: Vec<String> = sent[1..].iter().map(|arg| expanded(arg)).collect();
        prop_assert_eq!(arrived, args);
    }
}

/// Expands an argument like the kubelet, without any known variable
/// (`kubernetes/third_party/forked/golang/expansion/expand.go`).
fn expanded(arg: &str) -> String {
    let (mut out, mut rest) = (String::new(), arg);
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        out.push('$');
        rest = after.strip_prefix('$').unwrap_or(after);
        assert!(after.starts_with('$') || !after.starts_with('('), "{arg} names a variable");
    }
    out + rest
}

#[test]
fn if_the_image_contains_the_agent_only_the_default_command_needs_no_args() {
    let command = command(&["src/train.py"]);
    assert_eq!(arguments(&PodSpec { command, ..spec() }).unwrap(), ["--", "python", "src/train.py"]);
    assert_eq!(sent(&spec())["spec"]["containers"][0].get("args"), None);
}

/// The pod of a job that brings its code, with these options.
fn with_code(options: PodOptions) -> PodSpec {
    PodSpec { brings_code: true, command: command(&["train.py", "--epochs", "$3"]), options, ..spec() }
}

#[test]
fn a_job_that_brings_its_code_runs_an_unmodified_image_with_the_agent_from_another_image() {
    let mut expected = minimal();
    let mount = |path: &str, name: &str| json!({ "name": name, "mountPath": path });
    let mounts = [
        mount("/muster/bin", "muster-bin"),
        mount("/muster/work", "muster-work"),
        mount("/muster/home", "muster-home"),
        mount("/tmp", "muster-tmp"),
    ];
    let restricted = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    let resources = |limits: Value| json!({ "requests": { "cpu": "2" }, "limits": limits });
    let pod = &mut expected["spec"];
    pod["initContainers"] = json!([{
        "name": "install-agent",
        "image": "muster-master:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/muster/agent", "--install", "/muster/bin/agent"],
        "resources": resources(json!({ "cpu": "2" })),
        "securityContext": restricted,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mounts[0]],
    }]);
    let container = &mut pod["containers"][0];
    container["command"] = json!(["/muster/bin/agent"]);
    container["args"] = json!(["--work-dir", "/muster/work", "--", "python", "train.py", "--epochs", "$$3"]);
    for (name, value) in [("HOME", "/muster/home"), ("USER", "muster"), ("LOGNAME", "muster")] {
        container["env"].as_array_mut().unwrap().push(json!({ "name": name, "value": value }));
    }
    container["resources"] = resources(json!({ "cpu": "2", "nvidia.com/gpu": "1" }));
    container["volumeMounts"] = json!(mounts);
    pod["volumes"] = mounts.iter().map(|mount| json!({ "name": mount["name"], "emptyDir": {} })).collect();
    let seccomp = json!({ "type": "RuntimeDefault" });
    pod["securityContext"] =
        json!({ "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": seccomp });
    let options = PodOptions { cpu: Some("2".parse().unwrap()), gpus: Some(1), ..PodOptions::default() };
    assert_eq!(sent(&with_code(options)), expected);
}

#[test]
fn if_a_config_map_has_the_agent_python_of_the_jobs_image_starts_the_agent_without_an_init_container() {
    let spec = with_code(PodOptions::default());
    let by_image = sent(&spec);
    let by_map = sent_with(&AgentSource::ConfigMap("muster-agent-1".to_owned()), DefaultUser::Muster, &spec);
    let mut expected = by_image;
    let pod = &mut expected["spec"];
    pod.as_object_mut().unwrap().remove("initContainers");
    let container = &mut pod["containers"][0];
    let command = &by_map["spec"]["containers"][0]["command"];
    assert_eq!(items(command)[..4], ["python3", "-I", "-S", "-c"]);
    container["command"] = command.clone();
    let mount = json!({ "name": "muster-agent", "mountPath": "/muster/agent" });
    container["volumeMounts"].as_array_mut().unwrap().push(mount);
    let volume = json!({ "name": "muster-agent", "configMap": { "name": "muster-agent-1" } });
    pod["volumes"].as_array_mut().unwrap().push(volume);
    assert_eq!(by_map, expected);
}

#[test]
fn the_flags_run_as_and_allow_root_change_the_user_of_a_job_that_brings_its_code() {
    let user = |options: PodOptions| {
        let pod = sent(&with_code(options))["spec"].take();
        let names = items(&pod["containers"][0]["env"]).iter().map(|variable| variable["name"].clone());
        let context = &pod["securityContext"];
        (context["runAsUser"].clone(), context["runAsGroup"].clone(), names.filter(|name| name == "HOME").count())
    };
    let run_as = |text: &str| PodOptions { run_as: Some(text.parse().unwrap()), ..PodOptions::default() };
    assert_eq!(user(run_as("image")), (Value::Null, Value::Null, 0));
    assert_eq!(user(run_as("1000")), (json!(1000), json!(1000), 1));
    assert_eq!(user(run_as("1000:0")), (json!(1000), json!(0), 1));
    assert_eq!(user(PodOptions { allow_root: true, ..PodOptions::default() }), (Value::Null, Value::Null, 0));
}

#[test]
fn if_the_cluster_chooses_users_a_pod_sets_only_a_user_that_the_job_names() {
    let mut expected = sent(&with_code(PodOptions::default()));
    let context = expected["spec"]["securityContext"].as_object_mut().unwrap();
    assert_eq!([context.remove("runAsUser"), context.remove("runAsGroup")], [Some(json!(65532)), Some(json!(65532))]);
    assert_eq!(sent_by(DefaultUser::OfCluster, &with_code(PodOptions::default())), expected);
    assert_eq!(expected["spec"]["securityContext"]["runAsNonRoot"], true);
    let named = with_code(PodOptions { run_as: Some("1000".parse().unwrap()), ..PodOptions::default() });
    assert_eq!(sent_by(DefaultUser::OfCluster, &named), sent(&named));
}

#[test]
fn a_volume_that_the_job_mounts_at_tmp_replaces_the_empty_folder_there() {
    let volumes = vec!["pvc:scratch:/tmp".parse().unwrap()];
    let pod = sent(&with_code(PodOptions { volumes, ..PodOptions::default() }))["spec"].take();
    let mounts = items(&pod["containers"][0]["volumeMounts"]).iter();
    let at_tmp: Vec<&Value> = mounts.filter(|mount| mount["mountPath"] == "/tmp").map(|mount| &mount["name"]).collect();
    assert_eq!(at_tmp, ["volume-0"]);
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    items(&pod["containers"]).iter().chain(items(&pod["initContainers"]))
}

/// Whether the test holds for the security context of every container.
fn own(pod: &Value, test: impl Fn(&Value) -> bool) -> bool {
    containers(pod).all(|container| test(&container["securityContext"]))
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[test]
fn the_same_spec_gives_the_same_pod() {
    let spec = PodSpec { options: all_options(), ..spec() };
    assert_eq!(sent(&spec), sent(&spec.clone()));
}
