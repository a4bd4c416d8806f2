//! The fakes pass the suites of what they stand for, and the fuzz targets hold for the inputs that were found before.

mod fakes;
mod fuzz_corpus;
