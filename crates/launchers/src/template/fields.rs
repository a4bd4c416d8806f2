//! The fields of a pod template, each with its rule. A field that is not listed is refused.

use std::path::{Component, Path};

use serde_json::Value;

use super::Allowed;
use super::MUSTER;

/// What the master does with a field.
#[derive(Debug)]
pub(super) enum Rule {
    /// The field stays in the pod.
    Keep,
    /// The field stays in the pod. If the function returns a reason against the value, the template is refused.
    Check(fn(&Value, Allowed) -> Option<String>),
    /// The field has no effect, for this reason.
    Drop(&'static str),
    /// The field has no effect. Most such fields are set by the API server, so files from a cluster contain them.
    DropSilently,
    /// The field is refused, for this reason. If the value is `false` or 0, the field has no effect.
    Refuse(&'static str),
    /// An object whose fields have these rules.
    Object(FieldGroup),
    /// A list of objects whose fields have these rules.
    Each(FieldGroup),
    /// The list of containers.
    Containers,
}

/// Names of fields, and the rule of these fields.
pub(super) type FieldGroup = &'static [(&'static [&'static str], Rule)];

/// The rule of a field.
pub(super) fn rule_of(rules: FieldGroup, name: &str) -> Option<&'static Rule> {
    rules.iter().find(|(known, _)| known.contains(&name)).map(|(_, rule)| rule)
}

/// The rules of the fields of the object, or of the objects in the list, that has this rule.
pub(super) fn inner(rule: &Rule) -> FieldGroup {
    match rule {
        Rule::Object(rules) | Rule::Each(rules) => rules,
        Rule::Containers => CONTAINER,
        Rule::Keep | Rule::Check(_) | Rule::Drop(_) | Rule::DropSilently | Rule::Refuse(_) => &[],
    }
}

use Rule::{Check, Containers, Drop, DropSilently, Each, Keep, Object, Refuse};

const SHARES_THE_NODE: &str = "it gives the pod access to its node: remove it";
const BY_THE_MASTER: &str = "it has no effect: the master decides when a training ends and restarts";
/// Why a template's `restartPolicy` has no effect.
pub(crate) const BESIDE_REPLICAS: &str =
    "it has no effect: the restartPolicy of a TFJob belongs beside replicas, not into the template";
const NEWER: &str = "it is newer than Kubernetes 1.33, whose fields Muster knows: remove it";
const FURTHER_RIGHTS: &str = "a container gets no further rights: remove it";

pub(super) const POD_TEMPLATE: FieldGroup = &[
    (&["apiVersion", "kind", "status"], DropSilently),
    (&["metadata"], Object(METADATA)),
    (&["spec"], Object(POD_SPEC)),
];

const METADATA: FieldGroup = &[
    (&["labels"], Keep),
    (&["annotations"], Check(confined_by_annotations)),
    (&["name", "generateName"], Drop("it has no effect: pods are named after job and replica")),
    (&["namespace"], Drop("it has no effect: pods run in the master's namespace")),
    (&["creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"], DropSilently),
    (&["finalizers"], Refuse("it would keep ended pods: remove it")),
    (&["ownerReferences"], Refuse("the job owns its pods: remove it")),
];

const POD_SPEC: FieldGroup = &[
    // The network of the pod.
    (&["dnsConfig", "dnsPolicy", "hostAliases", "hostname", "setHostnameAsFQDN", "subdomain"], Keep),
    (&["hostUsers"], Keep),
    (&["hostnameOverride", "schedulingGroup", "workloadRef"], Refuse(NEWER)),
    // The node of the pod, and when the pod gets it.
    (&["affinity", "nodeSelector", "os", "runtimeClassName", "schedulerName"], Keep),
    (&["tolerations"], Each(&[(&["effect", "key", "operator", "tolerationSeconds", "value"], Keep)])),
    (&["preemptionPolicy", "priority", "priorityClassName", "topologySpreadConstraints"], Keep),
    (&["resources"], Object(RESOURCES)),
    (&["overhead", "resourceClaims", "terminationGracePeriodSeconds"], Keep),
    (&["containers"], Containers),
    (&["imagePullSecrets"], Each(&[(&["name"], Check(not_masters))])),
    (&["initContainers"], Each(CONTAINER)),
    (&["securityContext"], Object(POD_SECURITY)),
    (&["serviceAccount", "serviceAccountName"], Check(not_masters)),
    (&["volumes"], Each(VOLUME)),
    (&["enableServiceLinks"], DropSilently),
    (&["automountServiceAccountToken"], Drop("it has no effect: pods get no token for the API")),
    (&["activeDeadlineSeconds"], Drop(BY_THE_MASTER)),
    (&["restartPolicy"], Drop(BESIDE_REPLICAS)),
    (&["ephemeralContainers"], Refuse("only the API server adds ephemeral containers: remove the field")),
    (&["hostIPC", "hostNetwork", "hostPID"], Refuse(SHARES_THE_NODE)),
    (&["nodeName"], Refuse("it would bypass the scheduler: use nodeSelector with the label kubernetes.io/hostname")),
    (&["shareProcessNamespace"], Refuse("the agent must be process 1 of its container: remove it")),
];

const POD_SECURITY: FieldGroup = &[
    (&["fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsNonRoot", "supplementalGroups"], Keep),
    (&["appArmorProfile", "seccompProfile"], Object(PROFILE)),
    (&["runAsUser"], Check(not_root)),
    (&["seLinuxOptions"], Object(SELINUX)),
    (&["sysctls"], Refuse(SHARES_THE_NODE)),
];

/// A profile of seccomp or AppArmor.
const PROFILE: FieldGroup = &[(&["type"], Check(confined)), (&["localhostProfile"], Keep)];

/// Another SELinux type could give a container all rights on its node.
const SELINUX: FieldGroup = &[(&["level"], Keep), (&["role", "type", "user"], Refuse(SHARES_THE_NODE))];

const CONTAINER_SECURITY: FieldGroup = &[
    (&["readOnlyRootFilesystem", "runAsGroup"], Keep),
    (&["appArmorProfile", "seccompProfile"], Object(PROFILE)),
    (&["capabilities"], Object(&[(&["add"], Refuse(FURTHER_RIGHTS)), (&["drop"], Keep)])),
    // Muster sets `runAsNonRoot` for the pod, but a container could override the pod's value.
    (&["runAsNonRoot", "runAsUser"], Check(not_root)),
    (&["seLinuxOptions"], Object(SELINUX)),
    (&["allowPrivilegeEscalation"], Refuse(FURTHER_RIGHTS)),
    (&["privileged", "procMount"], Refuse(SHARES_THE_NODE)),
];

const RESOURCES: FieldGroup = &[(&["claims", "limits", "requests"], Keep)];

/// A container of any kind.
pub(super) const CONTAINER: FieldGroup = &[
    (&["args", "command", "image", "imagePullPolicy", "name", "workingDir"], Keep),
    (&["resources"], Object(RESOURCES)),
    (&["terminationMessagePath", "terminationMessagePolicy"], Keep),
    (&["env"], Each(VARIABLE)),
    (&["envFrom"], Each(ENV_FROM)),
    (&["lifecycle"], Object(&[(&["postStart", "preStop"], Object(ACTION)), (&["stopSignal"], Keep)])),
    (&["livenessProbe", "readinessProbe", "startupProbe"], Object(ACTION)),
    (&["ports"], Each(PORT)),
    (&["securityContext"], Object(CONTAINER_SECURITY)),
    (&["volumeMounts"], Each(MOUNT)),
    (&["stdin", "stdinOnce", "tty"], Drop("it has no effect: scripts have no terminal")),
    (&["restartPolicyRules"], Refuse(NEWER)),
    (&["restartPolicy"], Refuse("remove the field; put a sidecar into spec.containers")),
];

/// Fields without effect in the container that runs the script.
pub(super) const NOT_OF_THE_RUN: [&str; 5] =
    ["livenessProbe", "readinessProbe", "startupProbe", "terminationMessagePath", "terminationMessagePolicy"];
/// Why the fields in [`NOT_OF_THE_RUN`] have no effect.
pub(super) const BY_THE_AGENT: &str = "it has no effect: Muster's agent reports on the script";

/// Usual names of a claim for the master's state. An administrator creates this claim, because the installation creates
/// no claim.
const MASTERS_CLAIMS: [&str; 2] = [MUSTER, "muster-state"];

const OTHER_HOST: &str = "the node sends this request, perhaps to hosts that the pod cannot reach: remove the field";

/// A probe or a hook.
const ACTION: FieldGroup = &[
    (&["exec", "grpc", "sleep", "terminationGracePeriodSeconds"], Keep),
    (&["failureThreshold", "initialDelaySeconds", "periodSeconds", "successThreshold", "timeoutSeconds"], Keep),
    (&["httpGet"], Object(&[(&["httpHeaders", "path", "port", "scheme"], Keep), (&["host"], Refuse(OTHER_HOST))])),
    (&["tcpSocket"], Object(&[(&["port"], Keep), (&["host"], Refuse(OTHER_HOST))])),
];

const PORT: FieldGroup =
    &[(&["containerPort", "name", "protocol"], Keep), (&["hostIP", "hostPort"], Refuse(SHARES_THE_NODE))];

const VARIABLE: FieldGroup = &[(&["name", "value"], Keep), (&["valueFrom"], Object(VALUE_SOURCE))];

const VALUE_SOURCE: FieldGroup = &[
    (&["fileKeyRef"], Refuse(NEWER)),
    (&["configMapKeyRef", "fieldRef", "resourceFieldRef"], Keep),
    (&["secretKeyRef"], Object(&[(&["name"], Check(not_masters)), (&["key", "optional"], Keep)])),
];

const ENV_FROM: FieldGroup = &[
    (&["configMapRef", "prefix"], Keep),
    (&["secretRef"], Object(&[(&["name"], Check(not_masters)), (&["optional"], Keep)])),
];

const MOUNT: FieldGroup = &[
    (&["name", "readOnly", "subPath", "subPathExpr"], Keep),
    (&["mountPath"], Check(beside_musters_folder)),
    (&["mountPropagation"], Refuse(SHARES_THE_NODE)),
];

/// A claim that Kubernetes creates for one pod.
const NEW_CLAIM: FieldGroup = &[
    (&["accessModes", "resources", "storageClassName", "volumeAttributesClassName", "volumeMode"], Keep),
    (&["dataSource", "dataSourceRef"], Refuse("it could copy the master's claim: mount an existing claim instead")),
    (&["selector", "volumeName"], Refuse("it could bind the master's volume: mount an existing claim instead")),
];

const SECRET_ITEMS: FieldGroup =
    &[(&["name", "secretName"], Check(not_masters)), (&["items", "optional", "defaultMode"], Keep)];

const THROUGH_A_CLAIM: &str = "pods get no volumes of this kind: mount it through a PersistentVolumeClaim";

/// A volume that a driver of the cluster creates for one pod.
const CSI: FieldGroup = &[
    (&["driver", "fsType", "readOnly", "volumeAttributes"], Keep),
    (&["nodePublishSecretRef"], Object(&[(&["name"], Check(not_masters))])),
];

const VOLUME: FieldGroup = &[
    (&["name"], Check(not_musters_volume)),
    (&["configMap", "downwardAPI", "emptyDir"], Keep),
    (
        &["ephemeral"],
        Object(&[(&["volumeClaimTemplate"], Object(&[(&["metadata"], Keep), (&["spec"], Object(NEW_CLAIM))]))]),
    ),
    (&["hostPath"], Check(host_volume)),
    (&["azureFile", "cephfs", "cinder", "glusterfs", "nfs"], Refuse(THROUGH_A_CLAIM)),
    (&["awsElasticBlockStore", "azureDisk", "fc", "gcePersistentDisk", "iscsi", "rbd"], Refuse(THROUGH_A_CLAIM)),
    (&["csi"], Object(CSI)),
    (&["persistentVolumeClaim"], Object(&[(&["claimName"], Check(not_masters_claim)), (&["readOnly"], Keep)])),
    (&["projected"], Object(&[(&["sources"], Each(PROJECTED)), (&["defaultMode"], Keep)])),
    (&["secret"], Object(SECRET_ITEMS)),
];

/// A source of a projected volume.
const PROJECTED: FieldGroup = &[
    (&["configMap", "downwardAPI"], Keep),
    (&["secret"], Object(SECRET_ITEMS)),
    (&["serviceAccountToken"], Refuse("pods get no token for the API")),
];

/// Whether the account or the Secret with this name is the master's. Kubernetes before 1.24 stores the tokens of an
/// account in Secrets whose names begin with the account's name.
pub fn is_masters(name: &str) -> bool {
    name.strip_prefix(MUSTER)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("-token-") || rest.starts_with("-dockercfg-"))
}

fn not_masters(name: &Value, _: Allowed) -> Option<String> {
    let name = name.as_str().filter(|name| is_masters(name))?;
    Some(format!("\"{name}\" belongs to the master: use another name"))
}

/// Whether the claim with this name contains the master's state.
pub fn is_masters_claim(name: &str) -> bool {
    MASTERS_CLAIMS.contains(&name)
}

fn not_masters_claim(name: &Value, _: Allowed) -> Option<String> {
    let name = name.as_str().filter(|name| is_masters_claim(name))?;
    Some(format!("\"{name}\" contains the master's state: use another claim"))
}

fn not_musters_volume(name: &Value, _: Allowed) -> Option<String> {
    let is_ours = name.as_str().is_some_and(|name| name.starts_with("muster-"));
    is_ours.then(|| "names that begin with muster- belong to Muster: use another name".to_owned())
}

fn not_root(value: &Value, allowed: Allowed) -> Option<String> {
    let is_refused = is_zero_or_false(value) && !allowed.root;
    is_refused.then(|| {
        "a container may not run as root: use another user. To allow root in a TFJob, use client apply --allow-root, \
         or the annotation muster/allow-root: \"true\" if the master has --watch-tfjobs=allow-root"
            .to_owned()
    })
}

pub(super) fn is_zero_or_false(value: &Value) -> bool {
    *value == Value::Bool(false) || value.as_i64() == Some(0)
}

fn confined(kind: &Value, _: Allowed) -> Option<String> {
    (kind == "Unconfined").then(|| "a container needs a profile: use RuntimeDefault".to_owned())
}

/// Earlier versions of Kubernetes read the profiles of AppArmor and seccomp from annotations.
fn confined_by_annotations(annotations: &Value, _: Allowed) -> Option<String> {
    let is_profile = |name: &str| name.contains("apparmor.security.") || name.contains("seccomp.security.");
    let mut all = annotations.as_object()?.iter();
    let (name, _) = all.find(|(name, profile)| is_profile(name) && *profile == "unconfined")?;
    Some(format!("{name} leaves a container without a profile: remove this annotation"))
}

fn host_volume(_: &Value, allowed: Allowed) -> Option<String> {
    (!allowed.host_volumes).then(|| {
        "this master refuses folders of the node: to allow them, start the master with --allow-host-volumes".to_owned()
    })
}

/// Muster keeps its agent and the job's code in /muster.
fn beside_musters_folder(path: &Value, _: Allowed) -> Option<String> {
    let mut parts = Path::new(path.as_str()?).components().filter(|part| *part != Component::RootDir);
    match parts.next() {
        Some(Component::Normal(first)) if first != MUSTER && !parts.any(|part| part == Component::ParentDir) => None,
        Some(_) | None => Some("it may hide /muster, which belongs to Muster: use another path".to_owned()),
    }
}
