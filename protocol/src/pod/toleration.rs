//! The taints of nodes that pods may run on all the same.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BadValue, LabelKey, LabelValue, bad};
use crate::ids::serde_as_string;

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
