//! How many rounds of the matrix run. Only this file reads the environment.

/// `CHAOS_ROUNDS`, by default 1. In round n, a fault strikes at the n-th passing of its point.
/// Mixed pairs always strike at the first passing.
pub(crate) fn rounds() -> u32 {
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the environment")]
    let rounds = std::env::var("CHAOS_ROUNDS");
    rounds.map_or(1, |text| text.parse().expect("CHAOS_ROUNDS is a whole number"))
}
