//! The fakes pass the conformance suites, and no input of a corpus breaks its fuzz target.

mod fakes;
mod fuzz_corpus;
