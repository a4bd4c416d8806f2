//! The tests of the master, in one program: linking it is most of what building tests costs.

mod captured_log;
mod chaos;
mod conformance;
mod damaged_records;
mod faulty_store;
mod job;
mod kube_api;
mod process;
mod service;
