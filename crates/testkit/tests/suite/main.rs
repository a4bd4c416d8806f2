//! Tests that the fakes pass the conformance suites, and that no input of a corpus breaks its fuzz target.

mod fakes;
mod fuzz_corpus;
