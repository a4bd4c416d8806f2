//! What the pods of a job are given beside their image, where pods are Kubernetes'. Each value is parsed once, here, in
//! the form in which it is typed and sent.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::ids::serde_as_string;

/// What every pod of a job is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodOptions {
    /// Processors: request and limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Amount>,
    /// Memory: request and limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Amount>,
    /// GPUs, as `nvidia.com/gpu`; 0 is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// What is mounted, and where.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// Secrets whose keys become variables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env_secrets: Vec<ObjectName>,
    /// Labels that a node must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<LabelKey, LabelValue>,
    /// Taints that a node may have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// The PriorityClass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<ObjectName>,
    /// The ServiceAccount. Its token is not mounted in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ObjectName>,
    /// Whether a node asks a registry for the image; IfNotPresent when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
}

/// The same fields, for requests: an unknown one is refused.
#[derive(Deserialize)]
#[serde(remote = "PodOptions", deny_unknown_fields)]
struct Strict {
    #[serde(default)]
    cpu: Option<Amount>,
    #[serde(default)]
    memory: Option<Amount>,
    #[serde(default)]
    gpus: Option<u32>,
    #[serde(default)]
    volumes: Vec<Volume>,
    #[serde(default)]
    env_secrets: Vec<ObjectName>,
    #[serde(default)]
    node_selector: BTreeMap<LabelKey, LabelValue>,
    #[serde(default)]
    tolerations: Vec<Toleration>,
    #[serde(default)]
    priority_class: Option<ObjectName>,
    #[serde(default)]
    service_account: Option<ObjectName>,
    #[serde(default)]
    image_pull_policy: Option<PullPolicy>,
}

impl PodOptions {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The names of the fields that ask for something, for who cannot give it.
    pub fn asked_for(&self) -> Vec<&'static str> {
        let Self {
            cpu,
            memory,
            gpus,
            volumes,
            env_secrets,
            node_selector,
            tolerations,
            priority_class,
            service_account,
            image_pull_policy,
        } = self;
        let fields = [
            ("cpu", cpu.is_some()),
            ("memory", memory.is_some()),
            ("gpus", gpus.is_some()),
            ("volume", !volumes.is_empty()),
            ("env-secret", !env_secrets.is_empty()),
            ("node-selector", !node_selector.is_empty()),
            ("toleration", !tolerations.is_empty()),
            ("priority-class", priority_class.is_some()),
            ("service-account", service_account.is_some()),
            ("image-pull-policy", image_pull_policy.is_some()),
        ];
        fields.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect()
    }

    /// Reads the options of a request.
    pub(crate) fn deserialize_strictly<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Strict::deserialize(from)
    }
}

/// Why a text is none of the values here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no {what}: {form}")]
pub struct BadValue {
    text: String,
    what: &'static str,
    form: &'static str,
}

fn bad(text: &str, what: &'static str, form: &'static str) -> BadValue {
    BadValue { text: text.chars().take(80).collect(), what, form }
}

/// A quantity, in Kubernetes' notation, that is requested, and one that is the limit: `REQUEST`, or `REQUEST:LIMIT`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Amount {
    /// What the scheduler sets aside.
    pub request: String,
    /// What cannot be exceeded; not below the request.
    pub limit: String,
}

const AMOUNT_FORM: &str =
    "write a quantity such as 2, 500m or 4Gi, alone or as REQUEST:LIMIT with a limit not below the request";

impl FromStr for Amount {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (request, limit) = text.split_once(':').unwrap_or((text, text));
        match (thousandths(request), thousandths(limit)) {
            (Some(1..), Some(most)) if thousandths(request) <= Some(most) => {
                Ok(Self { request: request.to_owned(), limit: limit.to_owned() })
            }
            (_, _) => Err(bad(text, "amount", AMOUNT_FORM)),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, limit } = self;
        if request == limit { f.write_str(request) } else { write!(f, "{request}:{limit}") }
    }
}

serde_as_string!(Amount);

/// A quantity's value in thousandths (`k8s.io/apimachinery/pkg/api/resource/quantity.go`, without its exponents).
fn thousandths(text: &str) -> Option<u128> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let factor: u128 = match suffix {
        "m" => 1,
        "" => 1000,
        "k" => 1000_u128.pow(2),
        "M" => 1000_u128.pow(3),
        "G" => 1000_u128.pow(4),
        "T" => 1000_u128.pow(5),
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Longer ones are no amounts of anything, and would not fit.
    if whole.len() + fraction.len() > 15 || whole.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    Some(digits * factor / 10_u128.pow(u32::try_from(fraction.len()).ok()?))
}

/// Something mounted into every pod: `pvc:CLAIM:/path`, `host:/dir:/path` or `empty:/path`, each with `:ro` or without.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Volume {
    /// What.
    pub source: VolumeSource,
    /// Where, an absolute path.
    pub path: String,
    /// Whether nothing can be written to it.
    pub read_only: bool,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// A PersistentVolumeClaim of the job's namespace.
    Claim(ObjectName),
    /// A folder of the node, by its absolute path.
    Host(String),
    /// A folder of each pod's own, which goes with it.
    Empty,
}

const VOLUME_FORM: &str =
    "write pvc:CLAIM:/path, host:/dir:/path or empty:/path, with :ro at the end for reading alone";

impl FromStr for Volume {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || bad(text, "volume", VOLUME_FORM);
        let (rest, read_only) = match text.strip_suffix(":ro") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let parts: Vec<&str> = rest.split(':').collect();
        let (source, path) = match parts.as_slice() {
            ["pvc", claim, path] => (VolumeSource::Claim(claim.parse().map_err(|_| bad())?), *path),
            ["host", dir, path] if is_absolute(dir) => (VolumeSource::Host((*dir).to_owned()), *path),
            ["empty", path] => (VolumeSource::Empty, *path),
            _ => return Err(bad()),
        };
        // The agent lies in /muster; a mount over it, or over everything, would hide it.
        let is_free = is_absolute(path) && path != "/" && path != "/muster" && !path.starts_with("/muster/");
        if is_free { Ok(Self { source, path: path.to_owned(), read_only }) } else { Err(bad()) }
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            VolumeSource::Claim(claim) => write!(f, "pvc:{claim}:")?,
            VolumeSource::Host(dir) => write!(f, "host:{dir}:")?,
            VolumeSource::Empty => f.write_str("empty:")?,
        }
        f.write_str(&self.path)?;
        f.write_str(if self.read_only { ":ro" } else { "" })
    }
}

serde_as_string!(Volume);

fn is_absolute(path: &str) -> bool {
    path.starts_with('/') && !path.split('/').any(|part| part == "..") && !path.contains('\0')
}

/// A taint that a node may have: `KEY`, `KEY=VALUE`, `KEY:EFFECT` or `KEY=VALUE:EFFECT`, as `kubectl taint` writes
/// taints. Without a value any value is meant, without an effect every effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Toleration {
    /// The taint's key.
    pub key: LabelKey,
    /// Its value, if not any.
    pub value: Option<LabelValue>,
    /// Its effect, if not every.
    pub effect: Option<TaintEffect>,
}

/// What a taint does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaintEffect {
    /// No new pod comes there.
    NoSchedule,
    /// A new pod comes there if nowhere else.
    PreferNoSchedule,
    /// No pod stays there.
    NoExecute,
}

impl TaintEffect {
    const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    /// The name, as Kubernetes has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

const TOLERATION_FORM: &str = "write KEY[=VALUE][:EFFECT], with the effect NoSchedule, PreferNoSchedule or NoExecute, for example spot=true:NoSchedule";

impl FromStr for Toleration {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || bad(text, "toleration", TOLERATION_FORM);
        let (taint, effect) = match text.split_once(':') {
            Some((taint, effect)) => {
                (taint, Some(TaintEffect::ALL.into_iter().find(|known| known.as_str() == effect).ok_or_else(bad)?))
            }
            None => (text, None),
        };
        let (key, value) = match taint.split_once('=') {
            Some((key, value)) => (key, Some(value.parse().map_err(|_| bad())?)),
            None => (taint, None),
        };
        Ok(Self { key: key.parse().map_err(|_| bad())?, value, effect })
    }
}

impl fmt::Display for Toleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key)?;
        if let Some(value) = &self.value {
            write!(f, "={value}")?;
        }
        match self.effect {
            Some(effect) => write!(f, ":{}", effect.as_str()),
            None => Ok(()),
        }
    }
}

serde_as_string!(Toleration);

/// When a node asks a registry for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PullPolicy {
    /// When it does not have it.
    IfNotPresent,
    /// Each time.
    Always,
    /// Not at all.
    Never,
}

impl PullPolicy {
    const ALL: [Self; 3] = [Self::IfNotPresent, Self::Always, Self::Never];

    /// The name, as Kubernetes has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IfNotPresent => "IfNotPresent",
            Self::Always => "Always",
            Self::Never => "Never",
        }
    }
}

impl FromStr for PullPolicy {
    type Err = BadValue;

    /// Case does not matter.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|policy| policy.as_str().eq_ignore_ascii_case(text));
        known.ok_or_else(|| bad(text, "pull policy", "use IfNotPresent, Always or Never"))
    }
}

/// A text that its constructor has checked.
macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $what:literal, $form:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl FromStr for $name {
            type Err = BadValue;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let check: fn(&str) -> bool = $check;
                if check(text) { Ok(Self(text.to_owned())) } else { Err(bad(text, $what, $form)) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        serde_as_string!($name);
    };
}

checked_text!(
    /// The name of an object of Kubernetes: a DNS subdomain (RFC 1123).
    ObjectName, "object's name", "use a-z, 0-9, '-' and '.', beginning and ending with a letter or digit", is_subdomain
);

checked_text!(
    /// A label's or a taint's key: `[PREFIX/]NAME`.
    LabelKey, "label's key", "write [PREFIX/]NAME, for example disk or example.com/disk", |text| {
        let (prefix, name) = match text.split_once('/') {
            Some((prefix, name)) => (Some(prefix), name),
            None => (None, text),
        };
        prefix.is_none_or(is_subdomain) && !name.is_empty() && is_label_text(name)
    }
);

checked_text!(
    /// A label's or a taint's value, which may be empty.
    LabelValue, "label's value", "use at most 63 letters, digits, '-', '_' and '.'", is_label_text
);

fn is_subdomain(text: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let label_ok = |label: &str| {
        !label.is_empty() && !label.starts_with('-') && !label.ends_with('-') && label.bytes().all(is_inner)
    };
    text.len() <= 253 && text.split('.').all(label_ok)
}

fn is_label_text(text: &str) -> bool {
    let is_edge = |b: Option<u8>| b.is_none_or(|b| b.is_ascii_alphanumeric());
    let edges_ok = is_edge(text.bytes().next()) && is_edge(text.bytes().last());
    let is_inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.len() <= 63 && edges_ok && text.bytes().all(is_inner)
}
