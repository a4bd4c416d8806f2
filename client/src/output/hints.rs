//! Hints for common failures, which are recognised by their text. Pure.

use std::borrow::Cow;

use protocol::failure::{Failure, TooLargeBatch};
use protocol::run_policy::OnSameFailure;
use protocol::view::{JobResult, JobState, JobView};

/// Texts and a hint for each common failure. A job gets the hint if its failure or its last output contains one of the
/// texts.
const HINTS: [(&[&str], &str); 6] = [
    (
        &["PerReplica"],
        "model.fit of Keras 3 works with neither AllReduce nor ParameterServer: use tf_keras with \
         TF_USE_LEGACY_KERAS=1, or write your own training loop, as in examples/allreduce",
    ),
    (
        &["has no attribute 'reset_states'", "module 'keras.callbacks' has no attribute 'experimental'"],
        "the script is written for Keras 2, and Keras 3 is installed: pip install --no-deps tf_keras, and submit with \
         --env TF_USE_LEGACY_KERAS=1",
    ),
    (
        &["Could not start gRPC server"],
        "another program has taken TensorFlow's port: submit the job again to get other ports",
    ),
    (
        &["needed more memory than", "MemoryError", "ResourceExhaustedError", "OOM when allocating", "bad_alloc"],
        "the script ran out of memory: use a smaller batch or fewer workers on a machine, or raise --memory in a cluster",
    ),
    (
        &["EOFError: EOF when reading a line", "BdbQuit"],
        "scripts have no terminal, and their stdin is empty: leave out input() and breakpoint(), or run the script alone \
         with python",
    ),
    (
        &["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"],
        "if only this machine's Docker has the image, nodes cannot pull it: push it to a registry, or submit with --push \
         REGISTRY or --load TOOL",
    ),
];

/// The hint for a job that failed twice in a row with the same exception at the same step.
const SAME_AGAIN: &str = "the next start would fail in the same way: correct the script and submit the job again, or \
     submit with --retry-same to restart anyway";

/// The hint for a failed or halted job. `None` if there is none.
pub(crate) fn for_failure(view: &JobView) -> Option<Cow<'static, str>> {
    let failure = match (&view.result, view.restarts.failed_starts.last()) {
        (Some(JobResult::Failed { failure }), _) => failure,
        (None, Some(failed)) if view.state == JobState::Halted => &failed.failure,
        (Some(JobResult::Succeeded | JobResult::Cancelled) | None, _) => return None,
    };
    if let Some(batch) = view.restarts.failed_starts.last().and_then(|start| start.too_large.first()) {
        return Some(Cow::Owned(for_batch(batch)));
    }
    let mut texts = vec![failure.to_string()];
    if let Failure::ReplicaExited { exit, .. } = failure {
        texts.push(exit.stderr_tail.clone());
    }
    texts.extend(view.restarts.failed_starts.last().into_iter().flat_map(|start| start.last_lines.clone()));
    let is_said = |words: &[&str]| words.iter().any(|word| texts.iter().any(|text| text.contains(word)));
    let known = HINTS.into_iter().find(|(words, _)| is_said(words)).map(|(_, hint)| hint);
    known.or_else(|| (view.result.is_some() && would_fail_again(view)).then_some(SAME_AGAIN)).map(Cow::Borrowed)
}

/// The hint for a job that failed because the memory of a replica was too small for its batch.
fn for_batch(TooLargeBatch { replica, batch, most, possible }: &TooLargeBatch) -> String {
    let what = match possible {
        None => format!("submit with --max-restarts 3, and the next start gives it at most {most}"),
        Some(0) => "allow smaller batches, or use machines with more memory".to_owned(),
        Some(global) => format!("use --global-batch {global} or less, or machines with more memory"),
    };
    format!("{replica} has too little memory for a batch of {batch}: {what}")
}

/// Whether the job has failed only because its script failed twice in the same way.
fn would_fail_again(view: &JobView) -> bool {
    let Some((last, earlier)) = view.restarts.failed_starts.split_last() else { return false };
    let may_restart = last.counted && view.restarts.spent() < view.spec.run_policy.max_restarts;
    let is_stopped_by_rule = view.spec.on_same_failure() == OnSameFailure::Stop;
    may_restart && is_stopped_by_rule && last.fingerprint.as_ref().is_some_and(|failure| failure.would_recur(earlier))
}
