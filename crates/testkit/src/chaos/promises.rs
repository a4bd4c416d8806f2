//! Rules that each change of a job's record must obey, also if faults strike the masters that write the record. A rule
//! compares the record before the change with the record after the change.

use master::store::JobRecord;

/// The rules that the change from `before` to `now` breaks, each as a sentence.
pub fn broken_promises(before: &JobRecord, now: &JobRecord) -> Vec<String> {
    let has_ended_otherwise = before.ended.is_some() && before.ended != now.ended;
    let is_other_holder = before.holder != now.holder;
    let wrong = [
        (before.uid != now.uid, "two jobs have one name"),
        (before.spec != now.spec || before.accepted_at != now.accepted_at, "the request has changed"),
        (before.wish > now.wish, "a wish was lowered"),
        // The epoch also rises when a driver of the same master panics and another driver continues.
        (now.epoch < before.epoch + u32::from(is_other_holder), "the epoch fell, or did not rise with a new holder"),
        (now.epoch > before.epoch + 1, "the epoch rose by more than one"),
        (now.holder < before.holder, "a master has taken the job from a master that began later"),
        (has_ended_otherwise, "the recorded end of the job has changed"),
        (now.pushes < before.pushes, "a push was forgotten"),
        (now.restarts.total() < before.restarts.total(), "a restart was forgotten"),
        (now.restarts.failed_starts.len() < before.restarts.failed_starts.len(), "a failed start was forgotten"),
    ];
    wrong.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, what)| what.to_owned()).collect()
}
