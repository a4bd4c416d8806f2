//! The batch sizes of a job, as `status` shows them, and the sentence about a change.

use protocol::batching::Batches;
use protocol::ids::UnixMillis;
use protocol::view::JobView;

use super::spelled;

/// Maximum sizes on one line.
const SIZES_MAX: usize = 16;

/// A text such as `256 = 32 + 32 + 21 + 171, changed 41.0 s ago: a step takes 0.34 of its earlier time`.
pub(super) fn in_use(batches: &Batches, now: UnixMillis) -> String {
    let mut text = format!("{} = {}", batches.global, listed(&batches.sizes, " + "));
    if let Some(changed) = &batches.changed {
        text += &format!(", changed {} ago", spelled(now.since(changed.at)));
        text +=
            &changed.step_time.map(|time| format!(": a step takes {time:.2} of its earlier time")).unwrap_or_default();
    }
    text + &batches.held.as_ref().map(|held| format!("; the sizes stay: {held}")).unwrap_or_default()
}

/// The sentence about a change of the sizes between `before` and `now`, in the same start.
pub(super) fn changed(before: Option<&JobView>, now: &JobView) -> Option<String> {
    let before = before.filter(|view| view.generation == now.generation)?;
    let (old, new) = (before.batches.as_ref()?, now.batches.as_ref()?);
    let change = new.changed.as_ref().filter(|_| old.sizes != new.sizes)?;
    let (from, to) = (listed(&old.sizes, ", "), listed(&new.sizes, ", "));
    let (slowest, fastest, ratio) = (change.slowest, change.fastest, change.ratio);
    let why = format!("{slowest} needed {ratio:.1} times as long as {fastest} for a sample");
    Some(format!("--- batch sizes {from} → {to}: {why} ---"))
}

fn listed(sizes: &[u32], between: &str) -> String {
    let shown: Vec<String> = sizes.iter().take(SIZES_MAX).map(u32::to_string).collect();
    let more = if sizes.len() > SIZES_MAX { format!("{between}…") } else { String::new() };
    shown.join(between) + &more
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_sizes_are_shown_with_the_effect_of_their_change_and_with_what_prevents_a_change() {
        let change = json!({"at": 1_000, "from": [64, 64], "slowest": "worker-1", "fastest": "worker-0", "ratio": 2.0});
        let mut measured = change.clone();
        measured["step_time"] = json!(0.664);
        let held = json!({"reason": "no_helper", "replica": "worker-1"});
        for (batches, text) in [
            (json!({"global": 128, "sizes": [85, 43]}), "128 = 85 + 43"),
            (json!({"global": 128, "sizes": [85, 43], "changed": change}), "128 = 85 + 43, changed 41.0 s ago"),
            (
                json!({"global": 128, "sizes": [85, 43], "changed": measured}),
                "128 = 85 + 43, changed 41.0 s ago: a step takes 0.66 of its earlier time",
            ),
            (
                json!({"global": 128, "sizes": [64, 64], "held": held}),
                "128 = 64 + 64; the sizes stay: worker-1 sends no reports: its script does not use muster.py",
            ),
            (
                json!({"global": 34, "sizes": vec![2; 17]}),
                "34 = 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + …",
            ),
        ] {
            assert_eq!(in_use(&serde_json::from_value(batches).unwrap(), UnixMillis(42_000)), text);
        }
    }
}
