//! The warm interpreter of an agent: the user's choice, the master's request, and the interpreter's state.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::as_text::checked_text;
use crate::env::EnvName;

/// Maximum number of modules that a job can name.
pub const MODULES_MAX: usize = 64;

/// Maximum characters of a module's name.
const NAME_MAX: usize = 128;

/// Whether agents keep a warm interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Preload {
    /// No. Every run starts in a new interpreter.
    Never,
    /// Yes. The interpreter imports these modules. If the list is empty, the interpreter imports the slow modules that
    /// the script uses, such as tensorflow and numpy.
    Modules(Vec<ModuleName>),
}

/// The name of a Python module, such as `numpy` or `tensorflow.keras`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModuleName(String);

/// The text is not the name of a module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not the name of a Python module: use at most {NAME_MAX} letters, digits, '_' and '.', with a letter or \
     '_' first in each part"
)]
pub struct BadModuleName(String);

impl FromStr for ModuleName {
    type Err = BadModuleName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_identifier = |part: &str| {
            let starts_well = part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
            starts_well && part.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
        };
        if text.len() <= NAME_MAX && text.split('.').all(is_identifier) {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadModuleName(text.chars().take(NAME_MAX).collect()))
        }
    }
}

checked_text!(ModuleName);

/// The body of `POST /warm`, which starts a warm interpreter for later runs. Only the first request has an effect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmRequest {
    /// The variables that are the same in all runs. The interpreter gets the agent's own environment with these
    /// variables added or replaced.
    pub env: BTreeMap<EnvName, String>,
    /// The modules to import. Empty: the user asked for a warm interpreter without naming modules, so the interpreter
    /// chooses them. Absent: the user did not ask. The interpreter chooses the modules, but stays cold on a machine
    /// with NVIDIA devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modules: Option<Vec<ModuleName>>,
}

/// The state of an agent's warm interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum WarmState {
    /// The interpreter imports modules. A run that should start waits for the end of the imports.
    Importing,
    /// Runs start from the warm interpreter. A run that does not fit it, for example because the script has changed,
    /// starts in a new interpreter.
    Ready,
    /// The agent has no warm interpreter: it has ended, or it never started. Every run starts in a new interpreter.
    Cold {
        /// The cause, in one line or more.
        reason: String,
    },
}
