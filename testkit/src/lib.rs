//! Code for the tests and the benchmark, not for programs: fakes of the master's two traits, the suites for every
//! implementation of them, damaged records, and injected faults.

pub mod chaos;
pub mod conformance;
pub mod damage;
pub mod fake;
