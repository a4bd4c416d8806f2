//! The back end and the store of Kubernetes over an API server that answers as a test says: what a real cluster does
//! only on its bad days.

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
mod watching;
mod whole_master;
mod world;
