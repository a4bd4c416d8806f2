//! Tests of the pure part of the master: the state machine of a job, with tables and random events, and the rendezvous.

mod churn;
mod diagnosing;
mod elastic;
mod ending;
mod failing;
mod halting;
mod leaving;
//mod random_events;
mod rendezvous;
mod restarting;
mod rules;
mod same_failure;
mod starting;
mod support;
mod takeover;
mod turns;
//mod untruth;
mod warm;
//mod world;
//mod world_master;
//mod world_paths;
//mod world_pods;
