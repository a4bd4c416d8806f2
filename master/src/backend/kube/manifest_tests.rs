//! Tests of `manifest.rs`, as the JSON that Kubernetes is sent.

use serde_json::{Value, json};

use super::*;

fn spec() -> PodSpec {
    PodSpec {
        job: JobKey { name: "digits".parse().unwrap(), uid: "u-1".to_owned() },
        replica: "worker-3".parse().unwrap(),
        image: Some("registry.local/digits:1".parse().unwrap()),
        work_dir: None,
        args: vec![],
        options: PodOptions::default(),
        agent_token_sha256: "ab".repeat(32),
    }
}

fn sent(spec: &PodSpec) -> Value {
    serde_json::to_value(pod(spec)).unwrap()
}

/// Every option, as a user would type it.
fn all_options() -> PodOptions {
    PodOptions {
        cpu: Some("500m:2".parse().unwrap()),
        memory: Some("4Gi".parse().unwrap()),
        gpus: Some(1),
        volumes: ["pvc:data:/data:ro", "host:/mnt/scratch:/scratch", "empty:/dev/shm"]
            .map(|v| v.parse().unwrap())
            .into(),
        env_secrets: vec!["s3-keys".parse().unwrap()],
        node_selector: [("disk".parse().unwrap(), "ssd".parse().unwrap())].into(),
        tolerations: ["spot=true:NoSchedule", "gpu"].map(|t| t.parse().unwrap()).into(),
        priority_class: Some("batch".parse().unwrap()),
        service_account: Some("trainer".parse().unwrap()),
        image_pull_policy: Some(PullPolicy::Always),
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
                "env": [{ "name": "MUSTER_TOKEN_SHA256", "value": "ab".repeat(32) }],
                "envFrom": [],
                "ports": [{ "name": "agent", "containerPort": 7896 }],
                "resources": { "limits": {}, "requests": {} },
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["NET_RAW"] } },
                "volumeMounts": [],
            }],
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
            "nodeSelector": {},
            "tolerations": [],
            "volumes": [],
        },
    })
}

#[test]
fn a_pod_of_which_nothing_is_asked_is_this_one() {
    assert_eq!(sent(&spec()), minimal());
}

#[test]
fn a_pod_of_which_everything_is_asked_is_this_one() {
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
        { "name": "volume-2", "mountPath": "/dev/shm", "readOnly": false },
    ]);
    let pod = &mut expected["spec"];
    pod["volumes"] = json!([
        { "name": "volume-0", "persistentVolumeClaim": { "claimName": "data", "readOnly": true } },
        { "name": "volume-1", "hostPath": { "path": "/mnt/scratch", "type": "Directory" } },
        { "name": "volume-2", "emptyDir": {} },
    ]);
    pod["nodeSelector"] = json!({ "disk": "ssd" });
    pod["tolerations"] = json!([
        { "key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule" },
        { "key": "gpu", "operator": "Exists" },
    ]);
    pod["priorityClassName"] = json!("batch");
    pod["serviceAccountName"] = json!("trainer");
    let args = ["--epochs", "3"].map(str::to_owned).into();
    assert_eq!(sent(&PodSpec { args, options: all_options(), ..spec() }), expected);
}

#[test]
fn arguments_arrive_as_they_were_typed() {
    let args = ["$HOME", "$(HOSTNAME)", "$$", "a$", "$(", "", "a b", "é"].map(str::to_owned);
    let sent = command(&args).unwrap();
    assert_eq!(sent[..3], ["--", "python", "exec.py"]);
    assert_eq!(sent[3..], ["$$HOME", "$$(HOSTNAME)", "$$$$", "a$$", "$$(", "", "a b", "é"]);
    let arrived: Vec<String> = sent[3..].iter().map(|arg| expanded(arg)).collect();
    assert_eq!(arrived, args);
}

/// What the kubelet makes of an argument where no variable is known
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
fn without_arguments_the_entrypoint_is_given_none() {
    assert_eq!(command(&[]), None);
    assert_eq!(sent(&spec())["spec"]["containers"][0].get("args"), None);
}

#[test]
fn the_same_spec_is_the_same_pod() {
    let spec = PodSpec { options: all_options(), ..spec() };
    assert_eq!(pod(&spec), pod(&spec.clone()));
}
