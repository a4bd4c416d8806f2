//! Requests and limits of a pod's resources.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BadValue, bad};
use crate::as_text::{checked_text, serde_as_string};

/// A request and a limit in Kubernetes' notation: `REQUEST:LIMIT`, or one quantity for both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Amount {
    /// The quantity that the scheduler reserves.
    pub request: String,
    /// The maximum; at least the request.
    pub limit: String,
}

const AMOUNT_FORM: &str =
    "write a quantity such as 2, 500m or 4Gi, or REQUEST:LIMIT with a limit of at least the request";

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

/// A quantity of memory, such as `2Gi`. Less than 1 MiB is refused as a mistake: Kubernetes reads `64m` as less than a
/// byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MemorySize(String);

impl FromStr for MemorySize {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match bytes_of_quantity(text) {
            Some(MIB..) => Ok(Self(text.to_owned())),
            Some(_) | None => Err(bad(text, "size", "write a quantity of at least 1Mi, such as 512Mi or 2Gi")),
        }
    }
}

checked_text!(MemorySize);

impl MemorySize {
    /// The size of /dev/shm in a pod with GPUs, if the job sets none: half of the memory limit, or 8 GiB without a limit.
    /// NCCL and data loaders fail with the usual 64 MiB.
    pub(super) fn of_gpus(memory: Option<&Amount>) -> Self {
        let half = memory.and_then(|memory| bytes_of_quantity(&memory.limit)).map(|limit| limit / 2);
        let half = half.map_or_else(|| "8Gi".to_owned(), |half| half.max(MIB).to_string());
        half.parse().expect("at least one MiB")
    }
}

const MIB: u64 = 1 << 20;

/// The bytes in a quantity of memory, rounded up. `None` when the text is not a quantity or exceeds Kubernetes'
/// maximum.
pub fn bytes_of_quantity(quantity: &str) -> Option<u64> {
    u64::try_from(thousandths(quantity)?.div_ceil(1000)).ok()
}

/// Maximum quantity, in thousandths. Kubernetes keeps 63 bits and truncates larger quantities.
const THOUSANDTHS_MAX: u128 = ((1 << 63) - 1) * 1000;

/// A quantity's value in thousandths. The notation is that of `k8s.io/apimachinery/pkg/api/resource/quantity.go`,
/// without exponents and suffixes below `m`. `None` when the text is not such a quantity, or the value is too large.
pub fn thousandths(text: &str) -> Option<u128> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let factor: u128 = match suffix {
        "m" => 1,
        "" => 1000,
        "k" => 1000_u128.pow(2),
        "M" => 1000_u128.pow(3),
        "G" => 1000_u128.pow(4),
        "T" => 1000_u128.pow(5),
        "P" => 1000_u128.pow(6),
        "E" => 1000_u128.pow(7),
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        "Pi" => 1000 << 50,
        "Ei" => 1000 << 60,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let parts = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    Some(digits.checked_mul(factor)? / parts).filter(|value| *value <= THOUSANDTHS_MAX)
}
