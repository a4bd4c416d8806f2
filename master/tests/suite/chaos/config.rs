//! How many rounds of the matrix run. Only this file reads the environment.

/// `CHAOS_ROUNDS`, by default 1. In round n, a fault strikes when a master passes its point for the n-th time.
pub(crate) fn rounds() -> u32 {
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the environment")]
    let rounds = std::env::var("CHAOS_ROUNDS");
    rounds.map_or(1, |text| text.parse().expect("CHAOS_ROUNDS is a whole number"))
}
