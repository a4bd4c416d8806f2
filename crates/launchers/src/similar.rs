//! Finds the name that a misspelt name probably means.

/// Minimum similarity of two names, from 0 to 1.
const SIMILAR: f64 = 0.8;
/// Minimum letters of a name that is the beginning of another name.
const BEGINNING: usize = 3;

/// The known name that is similar, or of which one is the beginning of the other. Ignores case.
pub fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let lower = name.to_lowercase();
    let begins = |known: &str| {
        let known = known.to_lowercase();
        known.len().min(lower.len()) >= BEGINNING && (known.starts_with(&lower) || lower.starts_with(&known))
    };
    let similar = |known: &str| strsim::jaro(&lower, &known.to_lowercase());
    let most = || known.iter().max_by(|one, other| similar(one).total_cmp(&similar(other)));
    let beginning = known.iter().filter(|known| begins(known)).max_by_key(|known| known.len());
    beginning.or_else(|| most().filter(|known| similar(known) > SIMILAR)).copied()
}

/// The reason against a field that is not known. If one of the known names is similar, the reason names it.
pub(crate) fn not_known(name: &str, known: &[&str]) -> String {
    let meant = nearest(name, known).map(|meant| format!("; did you mean {meant}?"));
    format!("this field is not known{}", meant.unwrap_or_default())
}
