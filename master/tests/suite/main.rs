//! All tests of the master, in one program. Linking takes most of the build time of tests, so all tests are
//! linked only once.

mod captured_log;
mod chaos;
mod code;
mod conformance;
mod damaged_fields;
mod damaged_records;
mod disk_faults;
mod faulty_store;
mod joined;
mod kube_api;
mod process;
mod service;
