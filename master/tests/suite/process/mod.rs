//! Tests of the master's program with real agents and a real Python: how the program starts, what it refuses, and
//! what it leaves behind.

mod admitting;
pub(crate) mod harness;
mod refusing_to_start;
mod starting;
mod stopped;
mod struck;
