//! Finds the field that a misspelt name probably means.

/// Minimum similarity of two names, from 0 to 1.
const SIMILAR: f64 = 0.8;
/// Minimum letters of a name that is the beginning of another name.
const BEGINNING: usize = 3;

/// The reason against a field that is not known. If one of the known names is similar, the reason names it.
pub(crate) fn not_known(name: &str, known: &[&str]) -> String {
    let lower = name.to_lowercase();
    let begins = |known: &str| {
        let known = known.to_lowercase();
        known.len().min(lower.len()) >= BEGINNING && (known.starts_with(&lower) || lower.starts_with(&known))
    };
    let similar = |known: &str| strsim::jaro(&lower, &known.to_lowercase());
    let most = || known.iter().max_by(|one, other| similar(one).total_cmp(&similar(other)));
    let beginning = known.iter().filter(|known| begins(known)).max_by_key(|known| known.len());
    match beginning.or_else(|| most().filter(|known| similar(known) > SIMILAR)) {
        Some(meant) => format!("this field is not known; did you mean {meant}?"),
        None => "this field is not known".to_owned(),
    }
}
