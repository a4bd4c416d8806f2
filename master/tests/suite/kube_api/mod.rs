//! The Kubernetes back end and the Kubernetes store over an API server whose answers a test can script. The tests cover
//! behaviour that a real cluster shows only rarely.

mod admitting;
mod beginning;
mod creating;
mod damaged;
mod deleting;
mod objects;
mod preparing;
mod record_watch;
mod records;
mod server;
mod tfjobs;
mod watching;
mod whole_master;
mod world;
