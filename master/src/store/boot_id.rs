//! The boot ids of masters: a later master has a greater boot id. A boot id contains the greater of two numbers: the
//! seconds of the store's clock, and one more than the greatest number in the records' boot ids. All masters share the
//! store's clock, so a later master has a greater boot id even if records were deleted.

use protocol::ids::UnixMillis;

/// A boot id that is greater than all boot ids in `holders`. `unique` distinguishes masters with the same number.
pub(crate) fn after<'a>(holders: impl Iterator<Item = &'a str>, now: UnixMillis, unique: &str) -> String {
    let newest = holders.filter_map(number).max().unwrap_or(0);
    let seconds = u32::try_from(now.0 / 1000).unwrap_or(u32::MAX);
    // Every u32 has at most ten digits.
    format!("{:010}-{unique}", newest.saturating_add(1).max(seconds))
}

fn number(holder: &str) -> Option<u32> {
    holder.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{UnixMillis, after};

    const NOW: UnixMillis = UnixMillis(1_700_000_000_000);
    const EARLIER: UnixMillis = UnixMillis(1_600_000_000_000);

    #[test]
    fn a_later_master_has_a_greater_boot_id_even_if_the_clock_went_back() {
        let first = after([].into_iter(), NOW, "z");
        let second = after([first.as_str()].into_iter(), EARLIER, "a");
        let tenth = (0..9).fold(second.clone(), |last, _| after([last.as_str()].into_iter(), NOW, "a"));
        assert!(first < second && second < tenth, "{first} {second} {tenth}");
    }

    #[test]
    fn a_later_master_has_a_greater_boot_id_even_after_the_records_were_deleted() {
        let first = after(["0000000007-u"].into_iter(), NOW, "z");
        assert!(first < after([].into_iter(), UnixMillis(NOW.0 + 1000), "a"));
    }

    #[test]
    fn malformed_boot_ids_are_ignored() {
        let unknown = ["", "-", "x-1", "99999999999-1"];
        assert_eq!(after(unknown.into_iter(), UnixMillis(0), "u"), "0000000001-u");
    }
}
