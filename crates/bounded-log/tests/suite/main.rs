//! The tests of the file format, in one program.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod against_a_model;
mod files;
