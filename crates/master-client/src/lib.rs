//! The requests to a master, and the types with which programs name a master: its address, its place in a cluster and
//! its token. This crate prints nothing, does not retry, and reads neither files nor the environment.

mod client;
pub mod clock;
mod error;
mod kube_place;
pub mod log_stream;
mod master_url;
pub mod tfjobs;
mod token;
mod transport;

pub use client::{MasterClient, OldJob, SubmitOutcome};
pub use error::{MasterError, TunnelTrouble, root_cause};
pub use kube_place::{KubePlace, namespace_name};
pub use master_url::{BadMasterUrl, MasterUrl};
pub use token::{BadToken, Token};
pub use transport::{LOG_TARGET, LONG_POLL, Tunnel, http};
