//! How the replicas of a job train together.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::spec_error::SpecError;

/// How the replicas train together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Strategy {
    /// `tf.distribute.MultiWorkerMirroredStrategy`: every worker stores the variables.
    AllReduce,
    /// `tf.distribute.ParameterServerStrategy`: parameter servers store the variables.
    ParameterServer,
}

impl Strategy {
    /// The name on the wire and the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllReduce => "AllReduce",
            Self::ParameterServer => "ParameterServer",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Strategy {
    type Err = SpecError;

    /// Case does not matter; `ps` is short for ParameterServer.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_lowercase().as_str() {
            "allreduce" => Ok(Self::AllReduce),
            "parameterserver" | "ps" => Ok(Self::ParameterServer),
            _ => Err(SpecError::Strategy(text.chars().take(80).collect())),
        }
    }
}
