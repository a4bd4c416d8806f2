//! Tests of the pure part of the master: the state machine of a job, with tables and random events, and the rendezvous.

mod batching;
mod diagnosing;
mod elastic;
mod ending;
mod evaluator;
mod failing;
mod halting;
mod leaving;
mod memory;
mod needing;
mod rendezvous;
mod restarting;
mod rules;
mod same_failure;
mod simulated;
mod starting;
mod support;
mod takeover;
mod tracking;
mod turns;
mod warm;
