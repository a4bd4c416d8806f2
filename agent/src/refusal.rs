//! Why the agent refuses a request that the state of its run does not allow.

use protocol::ids::Generation;

/// Why a request changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefusal {
    /// The agent has already received a message of a newer generation.
    #[error("generation {asked} is older than {newest}, the newest that this agent has seen")]
    Stale {
        /// The generation of the message.
        asked: Generation,
        /// The newest generation.
        newest: Generation,
    },
    /// The generation has another environment already.
    #[error("generation {0} has another environment already; a generation is configured once")]
    ConfiguredOtherwise(Generation),
    /// A run is active.
    #[error("a run is active; stop it first")]
    Active,
    /// No environment is configured.
    #[error("nothing is configured; post the environment to /config first")]
    NothingConfigured,
    /// No environment is configured for this generation.
    #[error("generation {0} is not configured; post its environment to /config first")]
    GenerationNotConfigured(Generation),
}
