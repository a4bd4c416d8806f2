//! What is promised of a job's record from one version to the next, whoever writes it and whatever happens to them. It is
//! told by the record alone.

use master::store::JobRecord;

/// Every promise about a job's record that is broken by what came after what, as a sentence.
pub fn broken_promises(before: &JobRecord, now: &JobRecord) -> Vec<String> {
    let has_ended_otherwise = before.ended.is_some() && before.ended != now.ended;
    let is_other_holder = before.holder != now.holder;
    let wrong = [
        (before.uid != now.uid, "two jobs have one name"),
        (before.spec != now.spec || before.accepted_at != now.accepted_at, "what was asked for has changed"),
        (before.wish > now.wish, "a wish has sunk"),
        // It rises as well when a master's own driver broke and the same one goes on.
        (now.epoch < before.epoch + u32::from(is_other_holder), "the epoch does not count the holders"),
        (now.epoch > before.epoch + 1, "the epoch leaps"),
        (now.holder < before.holder, "a master has taken the job from one that began after it"),
        (has_ended_otherwise, "how the job ended has changed"),
        (now.restarts.total() < before.restarts.total(), "a restart was forgotten"),
        (now.restarts.failed_starts.len() < before.restarts.failed_starts.len(), "a failed start was forgotten"),
    ];
    wrong.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, what)| what.to_owned()).collect()
}
