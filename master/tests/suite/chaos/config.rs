//! The number of rounds of the crash matrix. Of the matrix's files, only this file reads environment variables.

/// The value of `CHAOS_ROUNDS`, by default 1. In round n, a fault strikes when a master passes the fault's point for
/// the n-th time. Only the faults of `matrix::mixed_pairs` always strike the first time: there, each round has other
/// pairs.
pub(crate) fn rounds() -> u32 {
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the environment")]
    let rounds = std::env::var("CHAOS_ROUNDS");
    rounds.map_or(1, |text| text.parse().expect("CHAOS_ROUNDS is not a whole number"))
}
