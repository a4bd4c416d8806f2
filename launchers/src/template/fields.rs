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
    Object(Fields),
    /// A list of objects whose fields have these rules.
    Each(Fields),
    /// The list of containers.
    Containers,
}

/// Rules by the name of the field.
type Fields = &'static [(&'static str, Rule)];

use Rule::{Check, Containers, Drop, DropSilently, Each, Keep, Object, Refuse};

const SHARES_THE_NODE: &str = "it gives the pod access to its node: remove it";
const BY_THE_MASTER: &str = "it has no effect: the master decides when a training ends and restarts";
const BY_THE_AGENT: &str = "it has no effect: Muster's agent reports on the script";
const NO_TERMINAL: &str = "it has no effect: scripts have no terminal";

pub(super) const POD_TEMPLATE: Fields = &[
    ("apiVersion", DropSilently),
    ("kind", DropSilently),
    ("status", DropSilently),
    ("metadata", Object(METADATA)),
    ("spec", Object(POD_SPEC)),
];

const METADATA: Fields = &[
    ("labels", Keep),
    ("annotations", Check(confined_by_annotations)),
    ("name", Drop("it has no effect: pods are named after job and replica")),
    ("generateName", Drop("it has no effect: pods are named after job and replica")),
    ("namespace", Drop("it has no effect: pods run in the master's namespace")),
    ("creationTimestamp", DropSilently),
    ("uid", DropSilently),
    ("resourceVersion", DropSilently),
    ("generation", DropSilently),
    ("selfLink", DropSilently),
    ("managedFields", DropSilently),
    ("finalizers", Refuse("it would keep ended pods: remove it")),
    ("ownerReferences", Refuse("the job owns its pods: remove it")),
];

const POD_SPEC: Fields = &[
    ("affinity", Keep),
    ("automountServiceAccountToken", Drop("it has no effect: pods get no token for the API")),
    ("activeDeadlineSeconds", Drop(BY_THE_MASTER)),
    ("containers", Containers),
    ("dnsConfig", Keep),
    ("dnsPolicy", Keep),
    ("enableServiceLinks", DropSilently),
    ("ephemeralContainers", Refuse("only the API server adds ephemeral containers: remove the field")),
    ("hostAliases", Keep),
    ("hostIPC", Refuse(SHARES_THE_NODE)),
    ("hostNetwork", Refuse(SHARES_THE_NODE)),
    ("hostPID", Refuse(SHARES_THE_NODE)),
    ("hostname", Keep),
    ("imagePullSecrets", Each(&[("name", Check(not_masters))])),
    ("initContainers", Each(CONTAINER)),
    ("nodeName", Refuse("it would bypass the scheduler: use nodeSelector with the label kubernetes.io/hostname")),
    ("nodeSelector", Keep),
    ("os", Keep),
    ("overhead", Keep),
    ("preemptionPolicy", Keep),
    ("priority", Keep),
    ("priorityClassName", Keep),
    ("resourceClaims", Keep),
    ("resources", Keep),
    ("restartPolicy", Drop(BY_THE_MASTER)),
    ("runtimeClassName", Keep),
    ("schedulerName", Keep),
    ("securityContext", Object(POD_SECURITY)),
    ("serviceAccount", Check(not_masters)),
    ("serviceAccountName", Check(not_masters)),
    ("setHostnameAsFQDN", Keep),
    ("shareProcessNamespace", Refuse("the agent must be process 1 of its container: remove it")),
    ("subdomain", Keep),
    ("terminationGracePeriodSeconds", Keep),
    ("tolerations", Keep),
    ("topologySpreadConstraints", Keep),
    ("volumes", Each(VOLUME)),
];

const POD_SECURITY: Fields = &[
    ("appArmorProfile", Object(PROFILE)),
    ("fsGroup", Keep),
    ("fsGroupChangePolicy", Keep),
    ("runAsGroup", Keep),
    ("runAsNonRoot", Keep),
    ("runAsUser", Check(not_root)),
    ("seLinuxOptions", Object(SELINUX)),
    ("seccompProfile", Object(PROFILE)),
    ("supplementalGroups", Keep),
    ("sysctls", Refuse(SHARES_THE_NODE)),
];

/// A profile of seccomp or AppArmor.
const PROFILE: Fields = &[("type", Check(confined)), ("localhostProfile", Keep)];

/// Another SELinux type could give a container all rights on its node.
const SELINUX: Fields = &[
    ("level", Keep),
    ("role", Refuse(SHARES_THE_NODE)),
    ("type", Refuse(SHARES_THE_NODE)),
    ("user", Refuse(SHARES_THE_NODE)),
];

const CONTAINER_SECURITY: Fields = &[
    ("allowPrivilegeEscalation", Refuse("a container gets no further rights: remove it")),
    ("appArmorProfile", Object(PROFILE)),
    ("capabilities", Object(&[("add", Refuse("a container gets no further rights: remove it")), ("drop", Keep)])),
    ("privileged", Refuse(SHARES_THE_NODE)),
    ("procMount", Refuse(SHARES_THE_NODE)),
    ("readOnlyRootFilesystem", Keep),
    ("runAsGroup", Keep),
    // Muster sets this field for the pod, but a container could override the pod's value.
    ("runAsNonRoot", Check(not_root)),
    ("runAsUser", Check(not_root)),
    ("seLinuxOptions", Object(SELINUX)),
    ("seccompProfile", Object(PROFILE)),
];

/// A container of any kind.
pub(super) const CONTAINER: Fields = &[
    ("args", Keep),
    ("command", Keep),
    ("env", Each(VARIABLE)),
    ("envFrom", Each(ENV_FROM)),
    ("image", Keep),
    ("imagePullPolicy", Keep),
    ("lifecycle", Object(&[("postStart", Object(ACTION)), ("preStop", Object(ACTION)), ("stopSignal", Keep)])),
    ("livenessProbe", Object(ACTION)),
    ("name", Keep),
    ("ports", Each(PORT)),
    ("readinessProbe", Object(ACTION)),
    ("resources", Keep),
    ("restartPolicy", Refuse("remove the field; put a sidecar into spec.containers")),
    ("securityContext", Object(CONTAINER_SECURITY)),
    ("startupProbe", Object(ACTION)),
    ("stdin", Drop(NO_TERMINAL)),
    ("stdinOnce", Drop(NO_TERMINAL)),
    ("terminationMessagePath", Keep),
    ("terminationMessagePolicy", Keep),
    ("tty", Drop(NO_TERMINAL)),
    ("volumeMounts", Each(MOUNT)),
    ("workingDir", Keep),
];

/// Fields without effect in the container that runs the script, each with the reason.
pub(super) const NOT_OF_THE_RUN: [(&str, &str); 5] = [
    ("livenessProbe", BY_THE_AGENT),
    ("readinessProbe", BY_THE_AGENT),
    ("startupProbe", BY_THE_AGENT),
    ("terminationMessagePath", BY_THE_AGENT),
    ("terminationMessagePolicy", BY_THE_AGENT),
];

/// Usual names of a claim for the master's state. An administrator creates this claim, because the installation creates
/// no claim.
const MASTERS_CLAIMS: [&str; 2] = [MUSTER, "muster-state"];

const OTHER_HOST: &str = "the node sends this request, perhaps to hosts that the pod cannot reach: remove the field";

/// A probe or a hook.
const ACTION: Fields = &[
    ("exec", Keep),
    ("failureThreshold", Keep),
    ("grpc", Keep),
    (
        "httpGet",
        Object(&[
            ("host", Refuse(OTHER_HOST)),
            ("httpHeaders", Keep),
            ("path", Keep),
            ("port", Keep),
            ("scheme", Keep),
        ]),
    ),
    ("initialDelaySeconds", Keep),
    ("periodSeconds", Keep),
    ("sleep", Keep),
    ("successThreshold", Keep),
    ("tcpSocket", Object(&[("host", Refuse(OTHER_HOST)), ("port", Keep)])),
    ("terminationGracePeriodSeconds", Keep),
    ("timeoutSeconds", Keep),
];

const PORT: Fields = &[
    ("containerPort", Keep),
    ("hostIP", Refuse(SHARES_THE_NODE)),
    ("hostPort", Refuse(SHARES_THE_NODE)),
    ("name", Keep),
    ("protocol", Keep),
];

const VARIABLE: Fields = &[
    ("name", Keep),
    ("value", Keep),
    (
        "valueFrom",
        Object(&[
            ("configMapKeyRef", Keep),
            ("fieldRef", Keep),
            ("resourceFieldRef", Keep),
            ("secretKeyRef", Object(&[("name", Check(not_masters)), ("key", Keep), ("optional", Keep)])),
        ]),
    ),
];

const ENV_FROM: Fields = &[
    ("configMapRef", Keep),
    ("prefix", Keep),
    ("secretRef", Object(&[("name", Check(not_masters)), ("optional", Keep)])),
];

const MOUNT: Fields = &[
    ("mountPath", Check(beside_musters_folder)),
    ("mountPropagation", Refuse(SHARES_THE_NODE)),
    ("name", Keep),
    ("readOnly", Keep),
    ("subPath", Keep),
    ("subPathExpr", Keep),
];

const CLONES: &str = "it could copy the master's claim: mount an existing claim instead";
const BINDS: &str = "it could bind the master's volume: mount an existing claim instead";

/// A claim that Kubernetes creates for one pod.
const NEW_CLAIM: Fields = &[
    ("accessModes", Keep),
    ("dataSource", Refuse(CLONES)),
    ("dataSourceRef", Refuse(CLONES)),
    ("resources", Keep),
    ("selector", Refuse(BINDS)),
    ("storageClassName", Keep),
    ("volumeAttributesClassName", Keep),
    ("volumeMode", Keep),
    ("volumeName", Refuse(BINDS)),
];

const SECRET_ITEMS: Fields = &[
    ("name", Check(not_masters)),
    ("secretName", Check(not_masters)),
    ("items", Keep),
    ("optional", Keep),
    ("defaultMode", Keep),
];

const VOLUME: Fields = &[
    ("name", Check(not_musters_volume)),
    ("configMap", Keep),
    ("downwardAPI", Keep),
    ("emptyDir", Keep),
    ("ephemeral", Object(&[("volumeClaimTemplate", Object(&[("metadata", Keep), ("spec", Object(NEW_CLAIM))]))])),
    ("hostPath", Check(host_volume)),
    ("nfs", Refuse("mount the NFS folder through a PersistentVolumeClaim")),
    ("persistentVolumeClaim", Object(&[("claimName", Check(not_masters_claim)), ("readOnly", Keep)])),
    (
        "projected",
        Object(&[
            (
                "sources",
                Each(&[
                    ("configMap", Keep),
                    ("downwardAPI", Keep),
                    ("secret", Object(SECRET_ITEMS)),
                    ("serviceAccountToken", Refuse("pods get no token for the API")),
                ]),
            ),
            ("defaultMode", Keep),
        ]),
    ),
    ("secret", Object(SECRET_ITEMS)),
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
