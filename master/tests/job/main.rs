//! The pure part of the master: the job's state machine by tables and by properties, and the rendezvous.

mod ending;
mod failing;
mod random_events;
mod rendezvous;
mod starting;
mod support;
mod takeover;
mod world;
mod world_paths;
