//! How much of the matrix is played, as the environment says; its only reader.

/// `CHAOS_ROUNDS`: in each round every point is struck when it is passed once more.
pub(crate) fn rounds() -> u32 {
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the environment")]
    let rounds = std::env::var("CHAOS_ROUNDS");
    rounds.map_or(1, |text| text.parse().expect("CHAOS_ROUNDS is a whole number"))
}
