//! Code that only the tests and the benchmark use: fakes of the master's two traits, conformance suites for these
//! traits, damaged records, registries of images, and injected faults.

pub mod chaos;
pub mod conformance;
pub mod damage;
pub mod fake;
pub mod registry;
