//! Tests of the pods of groups with templates.

use protocol::group::Template;
use serde_json::{Value, json};

use super::*;

/// The pod of a replica whose group has this template.
fn in_template(pod: Value, options: PodOptions) -> Value {
    let template = Template { container: "tensorflow".to_owned(), tf_port: 2222, pod };
    sent(&PodSpec { image: None, template: Some(template), command: command(&["/opt/model.py"]), options, ..spec() })
}

#[test]
fn a_pod_has_the_fields_of_its_template_and_the_fields_that_muster_sets() {
    let made = in_template(
        json!({
            "metadata": { "labels": { "team": "vision", "muster/job": "another" }, "annotations": { "note": "kept" } },
            "spec": {
                "tolerations": [{ "key": "gpu" }],
                "nodeSelector": { "disk": "ssd" },
                "volumes": [{ "name": "data", "emptyDir": {} }],
                "initContainers": [{ "name": "fetch", "image": "fetch:1" }],
                "containers": [
                    { "name": "logs", "image": "logs:1" },
                    {
                        "name": "tensorflow", "image": "digits:1", "command": ["python"], "args": ["/opt/model.py"],
                        "workingDir": "/opt", "env": [{ "name": "BATCH", "value": "64" }],
                        "resources": { "requests": { "amd.com/gpu": 1 }, "limits": { "cpu": "2", "amd.com/gpu": 1 } },
                        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                        "ports": [{ "name": "tfjob-port", "containerPort": 2222 }],
                    },
                ],
            },
        }),
        PodOptions::default(),
    );
    let (metadata, spec) = (&made["metadata"], &made["spec"]);
    assert_eq!((&metadata["labels"]["team"], &metadata["labels"]["muster/job"]), (&json!("vision"), &json!("digits")));
    let annotations =
        json!({ "kubectl.kubernetes.io/default-container": "tensorflow", "muster/tf-port": "2222", "note": "kept" });
    assert_eq!(metadata["annotations"], annotations);
    assert_eq!(spec["tolerations"], json!([{ "key": "gpu" }]));
    assert_eq!(spec["nodeSelector"], json!({ "disk": "ssd" }));
    assert_eq!(names(&spec["initContainers"]), ["install-agent", "fetch"]);
    assert_eq!(names(&spec["containers"]), ["logs", "tensorflow"]);
    assert!(own(spec, |context| context["allowPrivilegeEscalation"] == json!(false)), "{spec}");
    assert!(own(spec, |context| context["capabilities"] == json!({ "drop": ["ALL"] })), "{spec}");
    assert_eq!(names(&spec["volumes"]), ["data", "muster-bin", "muster-home"]);
    let run = &spec["containers"][1];
    assert_eq!((&run["image"], &run["workingDir"]), (&json!("digits:1"), &json!("/opt")));
    assert_eq!(run["command"], json!(["/muster/bin/agent"]));
    assert_eq!(run["args"], json!(["--", "python", "/opt/model.py"]));
    assert_eq!(
        run["resources"],
        json!({ "requests": { "amd.com/gpu": "1" }, "limits": { "cpu": "2", "amd.com/gpu": "1" } })
    );
    assert_eq!(spec["initContainers"][0]["resources"], json!({ "requests": {}, "limits": { "cpu": "2" } }));
    assert_eq!(names(&run["ports"]), ["tfjob-port", "agent"]);
    assert_eq!(names(&run["env"])[0], "BATCH");
    assert_eq!(names(&run["volumeMounts"]), ["data", "muster-bin", "muster-home"]);
    assert_eq!((&spec["restartPolicy"], &spec["automountServiceAccountToken"]), (&json!("Never"), &json!(false)));
    assert_eq!(spec["securityContext"]["runAsUser"], 65532);
}

#[test]
fn a_user_in_the_template_replaces_the_default_user() {
    let pod = json!({ "spec": {
        "securityContext": { "runAsUser": 1000, "fsGroup": 100 },
        "containers": [{ "name": "tensorflow", "image": "digits:1" }],
    } });
    let context = &in_template(pod, PodOptions::default())["spec"]["securityContext"];
    assert_eq!(
        (&context["runAsUser"], &context["fsGroup"], &context["runAsNonRoot"]),
        (&json!(1000), &json!(100), &json!(true))
    );
}

/// The names of the items of a list.
fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}
