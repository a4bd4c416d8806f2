//! Tests of the Kubernetes back end and the Kubernetes store with a simulated API server. A test can choose the answers
//! of this server. So the tests cover behaviour that a real cluster shows only rarely.

mod admitting;
mod beginning;
mod code;
mod creating;
mod damaged;
mod deleting;
mod gated;
mod objects;
mod preparing;
mod programs;
mod record_watch;
mod records;
mod server;
mod silence;
mod tfjobs;
mod watching;
mod whole_master;
mod world;
