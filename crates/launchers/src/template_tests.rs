//! Tests of `template.rs`.

use protocol::group::{Group, Template};
use protocol::ids::Role;
use protocol::job::{JobRequest, Strategy};
use serde_json::{Value, json};

use super::*;

const STRICT: Allowed = Allowed { host_volumes: false, root: false };

/// A template whose pod has the fields of `spec`, and whose container for the script has the
/// fields of `container`.
fn template(container: &Value, spec: &Value) -> Template {
    let mut run = json!({ "name": "tensorflow", "image": "digits:1" });
    let mut pod = json!({ "containers": [] });
    for (into, from) in [(&mut run, container), (&mut pod, spec)] {
        let fields = from.as_object().unwrap().clone();
        into.as_object_mut().unwrap().extend(fields);
    }
    pod["containers"].as_array_mut().unwrap().push(run);
    Template { container: "tensorflow".to_owned(), tf_port: 2222, pod: json!({ "spec": pod }) }
}

fn of_container(container: &Value) -> Template {
    template(container, &json!({}))
}

fn of_pod(spec: &Value) -> Template {
    template(&json!({}), spec)
}

/// The paths of the refused fields.
fn refused(template: &Template, allowed: Allowed) -> Vec<String> {
    checked(template, allowed).err().unwrap_or_default().into_iter().map(|note| note.path).collect()
}

/// Asserts that the template is refused because of this field alone.
#[track_caller]
fn assert_refused(template: &Template, path: &str) {
    assert_eq!(refused(template, STRICT), [path], "{}", template.pod);
}

#[test]
fn a_forbidden_field_is_refused_and_the_refusal_names_the_path_of_the_field() {
    let of_pods = [
        (json!({ "hostNetwork": true }), "hostNetwork"),
        (json!({ "hostPID": true }), "hostPID"),
        (json!({ "nodeName": "node-1" }), "nodeName"),
        (json!({ "hostIPC": true }), "hostIPC"),
        (json!({ "shareProcessNamespace": true }), "shareProcessNamespace"),
        (json!({ "ephemeralContainers": [{ "name": "x" }] }), "ephemeralContainers"),
        (json!({ "serviceAccountName": "muster" }), "serviceAccountName"),
        (json!({ "serviceAccount": "muster" }), "serviceAccount"),
        (json!({ "securityContext": { "sysctls": [{ "name": "x", "value": "1" }] } }), "securityContext.sysctls"),
        (json!({ "securityContext": { "runAsUser": 0 } }), "securityContext.runAsUser"),
        (json!({ "initContainers": [{ "name": "x", "restartPolicy": "Always" }] }), "initContainers[0].restartPolicy"),
    ];
    for (spec, path) in of_pods {
        assert_refused(&of_pod(&spec), &format!("spec.{path}"));
    }
    let secret = json!({ "secretKeyRef": { "name": "muster", "key": "token" } });
    let of_containers = [
        (json!({ "ports": [{ "containerPort": 1, "hostPort": 1 }] }), "ports[0].hostPort"),
        (json!({ "envFrom": [{ "secretRef": { "name": "muster" } }] }), "envFrom[0].secretRef.name"),
        (json!({ "env": [{ "name": "X", "valueFrom": secret }] }), "env[0].valueFrom.secretKeyRef.name"),
    ];
    let of_contexts = [
        (json!({ "privileged": true }), "privileged"),
        (json!({ "runAsUser": 0 }), "runAsUser"),
        (json!({ "runAsNonRoot": false }), "runAsNonRoot"),
        (json!({ "seLinuxOptions": { "type": "spc_t", "level": "s0" } }), "seLinuxOptions.type"),
        (json!({ "procMount": "Unmasked" }), "procMount"),
        (json!({ "capabilities": { "add": ["SYS_ADMIN"] } }), "capabilities.add"),
        (json!({ "seccompProfile": { "type": "Unconfined" } }), "seccompProfile.type"),
    ];
    for (container, path) in of_containers {
        assert_refused(&of_container(&container), &format!("spec.containers[0].{path}"));
    }
    for (context, path) in of_contexts {
        let secured = of_container(&json!({ "securityContext": context }));
        assert_refused(&secured, &format!("spec.containers[0].securityContext.{path}"));
    }
}

#[test]
fn a_forbidden_volume_or_mount_is_refused_and_the_refusal_names_its_path() {
    let projected = |source: Value| json!({ "name": "x", "projected": { "sources": [source] } });
    let masters = json!({ "dataSource": { "kind": "PersistentVolumeClaim", "name": "muster-state" } });
    for (volume, path) in [
        (json!({ "name": "x", "hostPath": { "path": "/" } }), "hostPath"),
        (json!({ "name": "x", "nfs": { "server": "a", "path": "/" } }), "nfs"),
        (json!({ "name": "muster-bin", "emptyDir": {} }), "name"),
        (json!({ "name": "x", "secret": { "secretName": "muster" } }), "secret.secretName"),
        (json!({ "name": "x", "secret": { "secretName": "muster-token-x7k2p" } }), "secret.secretName"),
        (projected(json!({ "serviceAccountToken": { "path": "t" } })), "projected.sources[0].serviceAccountToken"),
        (projected(json!({ "secret": { "name": "muster" } })), "projected.sources[0].secret.name"),
        (json!({ "name": "x", "azureFile": { "secretName": "a", "shareName": "b" } }), "azureFile"),
        (
            json!({ "name": "x", "csi": { "driver": "d", "nodePublishSecretRef": { "name": "muster" } } }),
            "csi.nodePublishSecretRef.name",
        ),
        (
            json!({ "name": "x", "persistentVolumeClaim": { "claimName": "muster-state" } }),
            "persistentVolumeClaim.claimName",
        ),
        (
            json!({ "name": "x", "ephemeral": { "volumeClaimTemplate": { "spec": masters } } }),
            "ephemeral.volumeClaimTemplate.spec.dataSource",
        ),
    ] {
        assert_refused(&of_pod(&json!({ "volumes": [volume] })), &format!("spec.volumes[0].{path}"));
    }
    for path in ["/", "/muster", "//muster/./bin", "/data/../muster"] {
        let mounting = of_container(&json!({ "volumeMounts": [{ "name": "x", "mountPath": path }] }));
        assert_refused(&mounting, "spec.containers[0].volumeMounts[0].mountPath");
    }
}

#[test]
fn an_ephemeral_volume_a_claim_of_a_device_and_a_profile_of_app_armor_are_kept() {
    let claim = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
    let spec = json!({
        "resourceClaims": [{ "name": "gpu", "resourceClaimTemplateName": "one-gpu" }],
        "securityContext": { "appArmorProfile": { "type": "RuntimeDefault" } },
        "volumes": [{ "name": "scratch", "ephemeral": { "volumeClaimTemplate": { "spec": claim } } }],
    });
    assert_eq!(refused(&of_pod(&spec), STRICT), [""; 0]);
    let unconfined = of_pod(&json!({ "securityContext": { "appArmorProfile": { "type": "Unconfined" } } }));
    assert_eq!(refused(&unconfined, STRICT), ["spec.securityContext.appArmorProfile.type"]);
}

#[test]
fn a_probe_or_a_hook_may_only_call_its_own_pod() {
    let hook = json!({ "preStop": { "httpGet": { "host": "10.0.0.1", "port": 80 } } });
    let path = "spec.containers[0].lifecycle.preStop.httpGet.host";
    assert_eq!(refused(&of_container(&json!({ "lifecycle": hook })), STRICT), [path]);
    let probe = json!({ "tcpSocket": { "host": "10.0.0.1", "port": 80 }, "periodSeconds": 5 });
    let installer = of_pod(&json!({ "initContainers": [{ "name": "x", "startupProbe": probe }] }));
    assert_eq!(refused(&installer, STRICT), ["spec.initContainers[0].startupProbe.tcpSocket.host"]);
    let own = json!({ "preStop": { "httpGet": { "path": "/stop", "port": 80 } } });
    assert_eq!(refused(&of_container(&json!({ "lifecycle": own })), STRICT), [""; 0]);
}

#[test]
fn an_annotation_that_removes_a_profile_of_apparmor_is_refused() {
    let annotated = |profile: &str| {
        let mut template = of_pod(&json!({}));
        let name = "container.apparmor.security.beta.kubernetes.io/tensorflow";
        template.pod["metadata"] = json!({ "annotations": { name: profile, "note": "unconfined" } });
        refused(&template, STRICT)
    };
    assert_eq!(annotated("unconfined"), ["metadata.annotations"]);
    assert_eq!(annotated("runtime/default"), [""; 0]);
}

#[test]
fn fields_are_accepted_if_the_operator_allows_them_or_if_they_are_zero_or_false_or_empty() {
    let folder = of_pod(&json!({ "volumes": [{ "name": "x", "hostPath": { "path": "/data" } }] }));
    assert_eq!(refused(&folder, Allowed { host_volumes: true, ..STRICT }), [""; 0]);
    let root = of_pod(&json!({ "securityContext": { "runAsUser": 0 } }));
    assert_eq!(refused(&root, Allowed { root: true, ..STRICT }), [""; 0]);
    let no_host_port = of_container(&json!({ "ports": [{ "containerPort": 1, "hostPort": 0 }] }));
    assert_eq!(refused(&no_host_port, STRICT), [""; 0]);
    let false_or_empty = of_pod(&json!({ "hostNetwork": false, "ephemeralContainers": [], "nodeSelector": null }));
    assert_eq!(refused(&false_or_empty, STRICT), [""; 0]);
}

#[test]
fn a_template_that_kubernetes_cannot_parse_is_refused() {
    let unknown = of_pod(&json!({ "tolerationz": [{ "key": "gpu" }] }));
    assert_eq!(refused(&unknown, STRICT), ["spec.tolerationz"]);
    let nested = of_pod(&json!({ "tolerations": [{ "key": "gpu", "efect": "NoSchedule" }] }));
    assert_eq!(refused(&nested, STRICT), ["spec.tolerations[0].efect"]);
    let wrong = of_pod(&json!({ "nodeSelector": ["gpu"] }));
    assert_eq!(refused(&wrong, STRICT), ["spec.nodeSelector"]);
    let no_pod = Template { pod: json!([]), ..of_pod(&json!({})) };
    assert_eq!(refused(&no_pod, STRICT)[0], "template");
    let no_list = of_pod(&json!({ "volumes": { "name": "x" } }));
    assert_eq!(refused(&no_list, STRICT)[0], "spec.volumes");
}

#[test]
fn a_field_that_is_not_known_is_told_apart_from_a_field_that_is_not_supported() {
    let why = |template: &Template| checked(template, STRICT).unwrap_err().remove(0).why;
    for (field, meant) in [
        ("workdir", "workingDir"),
        ("environment", "env"),
        ("resouces", "resources"),
        ("imagePullpolicy", "imagePullPolicy"),
        ("volumeMount", "volumeMounts"),
    ] {
        let misspelt = of_container(&json!({ field: "x" }));
        assert_eq!(why(&misspelt), format!("this field is not known; did you mean {meant}?"));
    }
    assert_eq!(why(&of_container(&json!({ "wibble": 1 }))), "this field is not known");
    let resize = json!({ "resizePolicy": [{ "resourceName": "cpu", "restartPolicy": "NotRequired" }] });
    assert_eq!(why(&of_container(&resize)), "this field is not supported");
    let requests = json!({ "resources": { "request": { "cpu": "1" } } });
    assert_eq!(why(&of_container(&requests)), "this field is not known; did you mean requests?");
}

#[test]
fn exactly_one_container_must_have_the_name_of_the_scripts_container() {
    let none = Template { container: "main".to_owned(), ..of_pod(&json!({})) };
    assert_eq!(refused(&none, STRICT), ["spec.containers"]);
    let two = of_pod(&json!({ "containers": [{ "name": "tensorflow" }] }));
    assert_eq!(refused(&two, STRICT), ["spec.containers"]);
    let side_car = of_pod(&json!({ "containers": [{ "name": "logs", "livenessProbe": { "periodSeconds": 5 } }] }));
    assert_eq!(refused(&side_car, STRICT), [""; 0]);
}

#[test]
fn fields_without_effect_are_dropped_with_a_warning() {
    let container = json!({ "livenessProbe": { "periodSeconds": 5 }, "stdin": true, "terminationMessagePath": "/x" });
    let given = template(
        &container,
        &json!({ "restartPolicy": "OnFailure", "activeDeadlineSeconds": 5, "schedulerName": "s" }),
    );
    let checked = checked(&given, STRICT).unwrap();
    let paths: Vec<&str> = checked.warnings.iter().map(|note| note.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "spec.activeDeadlineSeconds",
            "spec.containers[0].livenessProbe",
            "spec.containers[0].terminationMessagePath",
            "spec.containers[0].stdin",
            "spec.restartPolicy"
        ]
    );
    let spec = checked.pod.spec.unwrap();
    assert_eq!((spec.restart_policy, spec.scheduler_name.as_deref()), (None, Some("s")));
    assert_eq!((&spec.containers[0].liveness_probe, spec.containers[0].stdin), (&None, None));
}

#[test]
fn a_job_gets_a_warning_for_each_field_that_has_no_effect_in_its_valid_templates() {
    let group = |template: Template| Group { template: Some(template), ..Group::new(Role::Worker, 1) };
    let job = JobRequest {
        groups: vec![
            Group::new(Role::Worker, 1),
            group(of_container(&json!({ "tty": true }))),
            group(of_pod(&json!({ "restartPolicy": "Never", "hostNetwork": true }))),
        ],
        ..JobRequest::new("digits".parse().unwrap(), Strategy::AllReduce)
    };
    let told = warnings(&JobSpec::try_from(job).unwrap());
    // The last template gives no warning, because it is refused.
    assert_eq!(
        told.iter().map(Warning::to_string).collect::<Vec<_>>(),
        ["groups[1].template.pod.spec.containers[0].tty: it has no effect: scripts have no terminal"]
    );
}
