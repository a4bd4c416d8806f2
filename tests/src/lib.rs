//! What end-to-end tests stand on: the real programs, a folder with an exec.py, and a look at what still runs.

pub mod processes;
pub mod programs;
pub mod scene;

pub use processes::within;
pub use scene::{Finished, Master, Scene};
