//! What the tests and the benchmark need and no program contains: fakes of the master's two seams, the suites that every
//! implementation of a seam passes, records as no master writes them, and faults on purpose.

pub mod chaos;
pub mod conformance;
pub mod damage;
pub mod fake;
