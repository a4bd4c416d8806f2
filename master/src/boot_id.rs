//! The names of masters, in the order in which they began. The store says that order: a master counts on from those that it
//! finds on record. Clocks decide only between masters that began while no job was accepted in between.

/// Before the number. Names of masters without a number begin with a digit, so they count as earlier.
const MARK: char = 'm';

/// A name that is greater than each of these. `unique` tells masters with the same number apart.
pub(crate) fn after<'a>(holders: impl Iterator<Item = &'a str>, unique: &str) -> String {
    let newest = holders.filter_map(number).max().unwrap_or(0);
    // Ten digits hold every u32.
    format!("{MARK}{:010}-{unique}", newest.saturating_add(1))
}

fn number(holder: &str) -> Option<u32> {
    holder.strip_prefix(MARK)?.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::after;

    #[test]
    fn a_later_master_has_a_greater_name_whatever_its_clock_says() {
        let first = after(["0198-an-older-kind"].into_iter(), "z");
        let second = after([first.as_str(), "0198-an-older-kind"].into_iter(), "a");
        let tenth = (0..9).fold(second.clone(), |last, _| after([last.as_str()].into_iter(), "a"));
        assert!("0198-an-older-kind" < first.as_str() && first < second && second < tenth, "{first} {second} {tenth}");
    }

    #[test]
    fn names_that_no_master_has_given_count_for_nothing() {
        assert_eq!(after(["", "m", "m-", "mx-1", "m99999999999-1"].into_iter(), "u"), "m0000000001-u");
    }
}
