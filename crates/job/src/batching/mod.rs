//! How the samples of a step are divided among the ranks: sizes for given speeds, speeds from the reports of scripts, and
//! the rule that decides when other sizes are worth a change.
//!
//! Each rank computes the gradients of its own batch, and then all ranks wait for the slowest. The sum of the sizes is
//! the same at every step, so the sizes do not change the mathematics of the training.

mod balancer;
mod first;
mod law;
mod memory;
mod sizes;
mod windows;

pub use balancer::{Balancer, Changed, Order};
pub use first::{rules, sizes_by_rank};
pub use law::{Change, Decision, decide};
pub use memory::{Tried, too_large};
pub use sizes::BatchRules;
pub use windows::{Window, Windows};
