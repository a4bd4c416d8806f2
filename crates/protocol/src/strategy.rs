//! How the replicas of a job train together.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::as_text::names;
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

names!(Strategy {
    AllReduce => "AllReduce",
    ParameterServer => "ParameterServer",
});

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
