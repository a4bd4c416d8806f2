//! Taints that pods tolerate.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BadValue, LabelKey, LabelValue, bad};
use crate::as_text::{names, serde_as_string};
use crate::text::parted;

/// A taint to tolerate: `KEY[=VALUE][:EFFECT]`, in the notation of `kubectl taint`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Toleration {
    /// The taint's key.
    pub key: LabelKey,
    /// The taint's value. `None` matches every value.
    pub value: Option<LabelValue>,
    /// The taint's effect. `None` matches every effect.
    pub effect: Option<TaintEffect>,
}

/// What a taint does to pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaintEffect {
    /// The scheduler places no new pod on the node.
    NoSchedule,
    /// The scheduler avoids the node if it can.
    PreferNoSchedule,
    /// Running pods are evicted too.
    NoExecute,
}

names!(TaintEffect {
    NoSchedule => "NoSchedule",
    PreferNoSchedule => "PreferNoSchedule",
    NoExecute => "NoExecute",
});

const TOLERATION_FORM: &str = "write KEY[=VALUE][:EFFECT] with EFFECT NoSchedule, PreferNoSchedule or NoExecute, for example spot=true:NoSchedule";

impl FromStr for Toleration {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || bad(text, "toleration", TOLERATION_FORM);
        let (taint, effect) = parted(text, ':');
        let named = |name: &str| TaintEffect::ALL.into_iter().find(|known| known.as_str() == name).ok_or_else(bad);
        let effect = effect.map(named).transpose()?;
        let (key, value) = parted(taint, '=');
        let value = value.map(str::parse).transpose().map_err(|_| bad())?;
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
            Some(effect) => write!(f, ":{effect}"),
            None => Ok(()),
        }
    }
}

serde_as_string!(Toleration);
