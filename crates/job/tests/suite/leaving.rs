//! Tests of pods that are being evicted while their runs have a grace period, and of gangs whose scripts
//! leave with exit code 75.

use std::time::Duration;

use job::gang::{HelperUse, Place};
use job::observation::Presence::{Absent, Ended, Live};
use job::observation::{AgentState, Enrolled, LostRun, Observation, PodDeletion, PodState, Wait};
use job::phase::{Action, Ending, JobEvent, JobPhase, PodSelection, Restart, Seen};
use job::policy::{GangKind, Policy, RELEASE_TIMEOUT, STOP_GRACE};
use job::replica::ReplicaPhase::{self, Exited, Running};
use job::roster::grow_interval;
use protocol::agent::{ExitReport, Membership, RunState, RunStatus};
use protocol::progress::Progress;
use protocol::run_policy::RunPolicy;

use crate::support::{
    FIRST, POLICY, SOON, changed, exit, exited, fixed, found_place, id, look, look_at, lost, observed, place, reported,
    running, running_pod, seen, status, step as step_of, stop_with, stopped, stopping, with_progress, workers,
};

#[test]
fn a_leaving_pod_does_not_serve_another_start() {
    let leaving = |agent| Observation {
        pod: Some(PodState::Leaving { reason: "its node is drained".to_owned() }),
        agent,
        ..Observation::NEW
    };
    for agent in [AgentState::Silent, AgentState::Configured(FIRST), AgentState::Started(FIRST)] {
        let member = found_place(id("worker-0"), leaving(agent), None);
        assert_eq!(member.phase, ReplicaPhase::Lost(LostRun::disrupted("its node is drained")));
        assert_eq!((member.seen.presence(), member.is_fit()), (Live, false));
    }
}

#[test]
fn an_unusable_pod_is_hopeless_only_before_the_first_start() {
    let unusable = PodState::Unusable { reason: "there is no image".to_owned() };
    let member = |pod| {
        let seen = Observation { pod: Some(pod), agent: AgentState::Silent, ..Observation::NEW };
        found_place(id("worker-0"), seen, None)
    };
    assert_eq!(member(unusable.clone()).phase, ReplicaPhase::Lost(LostRun::hopeless("there is no image")));
    let again = member(unusable.after_a_start());
    let wait = Wait::Other("there is no image".to_owned());
    assert_eq!((again.phase.clone(), again.seen.waits_for()), (ReplicaPhase::Requested, Some(&wait)));
    let running = running_pod().pod.expect("no pod");
    assert_eq!(running.clone().after_a_start(), running);
}

#[test]
fn a_run_that_ends_because_its_pod_is_leaving_is_lost() {
    let phase = |exit: ExitReport, deletion| {
        let pod = Some(PodState::Leaving { reason: "its node is drained".to_owned() });
        ReplicaPhase::of(&Observation { pod, agent: ended(exit), deletion, ..Observation::NEW }, Some(FIRST))
    };
    let drained = ReplicaPhase::Lost(LostRun::disrupted("its node is drained"));
    assert_eq!(phase(with_its_pod(stopped(9)), PodDeletion::NotAsked), drained);
    assert_eq!(phase(with_its_pod(exit(0, 9)), PodDeletion::NotAsked), drained);
    for by_itself in [exit(3, 9), exit(0, 9), stopped(9)] {
        assert_eq!(phase(by_itself.clone(), PodDeletion::NotAsked), Exited(FIRST, by_itself));
    }
    let by_us = ReplicaPhase::Lost(LostRun::broken("its node is drained"));
    assert_eq!(phase(with_its_pod(stopped(9)), PodDeletion::Asked), by_us);
}

#[test]
fn a_terminated_agent_does_not_serve_another_start_while_its_pod_still_runs() {
    let fit = |exit: ExitReport| {
        let seen = Observation { agent: ended(exit), ..running_pod() };
        Place::of(id("worker-0"), &seen, Some(FIRST.next())).is_fit()
    };
    assert_eq!((fit(with_its_pod(stopped(9))), fit(stopped(9)), fit(exit(3, 9))), (false, true, true));
}

#[test]
fn a_pod_that_this_master_deleted_does_not_serve_another_start_while_it_still_exists() {
    let fit = |deletion| {
        let seen = Observation { agent: ended(stopped(9)), deletion, ..running_pod() };
        Place::of(id("worker-0"), &seen, Some(FIRST.next())).is_fit()
    };
    assert_eq!((fit(PodDeletion::Asked), fit(PodDeletion::NotAsked)), (false, true));
}

#[test]
fn the_other_runs_get_the_leaving_grace_only_while_the_evicted_pod_still_lives() {
    let with_pod = |pod| {
        let drained = ReplicaPhase::Lost(LostRun::disrupted("its node is drained"));
        let gang = fixed(vec![place("worker-0", drained, pod), place("worker-1", Running(FIRST), Live)]);
        look(running(), &gang).1
    };
    assert_eq!(with_pod(Live), stop_with(POLICY.rules.graces.leaving));
    assert_eq!(with_pod(Ended), stop_with(Duration::ZERO));
    assert_eq!(with_pod(Absent), stop_with(Duration::ZERO));
}

/// A replica with a live pod. `helper` is how the script of the replica uses the helper module.
fn with_helper(name: &str, phase: ReplicaPhase, helper: HelperUse) -> Place<'static> {
    let place = place(name, phase, Live);
    match helper {
        HelperUse::None => place,
        HelperUse::Begun => with_progress(&place, Progress::default()),
        HelperUse::Stepped => with_progress(&place, Progress { step: Some(4), ..Progress::default() }),
    }
}

#[test]
fn a_script_that_only_posts_its_progress_counts_as_one_without_the_helper() {
    let progress = Some(Progress { step: Some(4), ..Progress::default() });
    let member = |status: RunStatus| {
        let seen = Observation { agent: reported(status), ..Observation::NEW };
        let place = Place::of(id("worker-0"), &seen, None);
        (place.helper(), place.reported(), place.unsaved())
    };
    let running = status(RunState::Running, FIRST, None);
    let posts = RunStatus { posted: progress.clone(), ..running.clone() };
    assert_eq!(member(posts), (HelperUse::None, None, None));
    assert_eq!(member(RunStatus { helper: progress, ..running }), (HelperUse::Stepped, Some((4, 0)), None));
}

#[test]
fn the_other_runs_have_time_to_save_during_an_eviction_if_every_script_uses_the_helper() {
    let drained = ReplicaPhase::Lost(LostRun::disrupted("its node is drained"));
    let of = |evicted, helper| {
        let evicted = with_helper("worker-0", drained.clone(), evicted);
        let gang = fixed(vec![evicted, with_helper("worker-1", Running(FIRST), helper)]);
        look(running(), &gang).1
    };
    assert_eq!(of(HelperUse::Begun, HelperUse::Begun), stop_with(POLICY.rules.graces.saving));
    assert_eq!(of(HelperUse::Begun, HelperUse::None), stop_with(POLICY.rules.graces.leaving));
    assert_eq!(of(HelperUse::None, HelperUse::Begun), stop_with(POLICY.rules.graces.leaving));
}

#[test]
fn a_pod_whose_run_does_not_end_is_deleted_after_the_longest_grace_that_a_run_was_given() {
    let evicted = |pod| {
        let drained = ReplicaPhase::Lost(LostRun::disrupted("its node is drained"));
        let evicted = with_progress(&place("worker-0", drained, pod), Progress::default());
        fixed(vec![evicted, with_helper("worker-1", Running(FIRST), HelperUse::Begun)])
    };
    let (saving, _) = look(running(), &evicted(Live));
    let limit = SOON + POLICY.rules.graces.saving + RELEASE_TIMEOUT;
    // The evicted pod has ended. The other script may still save.
    let (saving, actions) = look_at(limit - Duration::from_nanos(1), saving, &evicted(Ended));
    assert_eq!((saving.deadline(&POLICY), actions), (Some(limit), stop_with(Duration::ZERO)));
    assert_eq!(look_at(limit, saving, &evicted(Ended)).1, [Action::DeletePods(PodSelection::Unended)]);

    let failing = workers(&[Exited(FIRST, exit(1, 9)), Running(FIRST)]);
    let (failed, actions) = look(running(), &failing);
    let limit = SOON + RELEASE_TIMEOUT;
    assert_eq!((failed.deadline(&POLICY), actions), (Some(limit), stop_with(Duration::ZERO)));
    assert_eq!(look_at(limit, failed, &failing).1, [Action::DeletePods(PodSelection::Unended)]);

    let leaving = fixed(vec![with_helper("worker-0", Running(FIRST), HelperUse::Begun)]);
    let (regrouping, _) = look(stopping(Ending::Regroup), &leaving);
    assert_eq!(regrouping.deadline(&POLICY), Some(SOON + POLICY.rules.graces.saving + RELEASE_TIMEOUT));
}

#[test]
fn a_gang_that_regroups_has_time_to_leave_if_every_running_script_uses_the_helper() {
    let used = HelperUse::Begun;
    let of = |helper, other| {
        let gang = fixed(vec![with_helper("worker-0", Running(FIRST), helper), other]);
        look(stopping(Ending::Regroup), &gang).1
    };
    let beside = |other| of(used, other);
    let has_left = with_helper("worker-1", Exited(FIRST, exit(75, 9)), HelperUse::None);
    assert_eq!(beside(with_helper("worker-1", Running(FIRST), used)), stop_with(POLICY.rules.graces.saving));
    assert_eq!(beside(has_left), stop_with(POLICY.rules.graces.saving));
    let silent = |name| with_helper(name, Running(FIRST), HelperUse::None);
    assert_eq!(beside(silent("worker-1")), stop_with(STOP_GRACE));
    assert_eq!(
        of(HelperUse::Stepped, silent("worker-1")),
        stop_with(POLICY.rules.graces.saving),
        "wrong grace: worker-0 has reported a step, worker-1 has not"
    );
    assert_eq!(of(HelperUse::Stepped, silent("ps-0")), stop_with(STOP_GRACE));
}

#[test]
fn a_new_master_leaves_runs_that_are_being_stopped_for_an_eviction_their_grace_after_the_evicted_pod_has_ended() {
    let drained = || ReplicaPhase::Lost(LostRun::disrupted("its node is drained"));
    let grace = |loss, is_stopping, epoch| {
        let state = if is_stopping { RunState::Stopping } else { RunState::Running };
        let helped = RunStatus { helper: Some(Progress::default()), ..status(state, FIRST, None) };
        let other = observed(&place("worker-1", Running(FIRST), Live), |seen| seen.agent = reported(helped));
        let evicted = with_progress(&place("worker-0", loss, Ended), Progress::default());
        let gang = fixed(vec![evicted, other]);
        step_of(running(), JobEvent::Observed, Seen { epoch, ..seen(&gang, &POLICY, SOON) }).1
    };
    assert_eq!(grace(drained(), true, 2), stop_with(POLICY.rules.graces.saving));
    assert_eq!(grace(drained(), false, 2), stop_with(Duration::ZERO));
    assert_eq!(grace(drained(), true, 1), stop_with(Duration::ZERO));
    assert_eq!(grace(lost(), true, 2), stop_with(Duration::ZERO), "a failure gives no time");
}

#[test]
fn an_agent_reports_that_its_run_is_being_stopped() {
    let is_stopping = |state| {
        let seen = Observation { agent: reported(status(state, FIRST, None)), ..Observation::NEW };
        Place::of(id("worker-0"), &seen, None).is_stopping()
    };
    assert_eq!([RunState::Running, RunState::Stopping, RunState::Exited].map(is_stopping), [false, true, false]);
}

/// The policy of an elastic job.
fn elastic() -> Policy {
    changed(POLICY, |policy| policy.rules.kind = GangKind::Elastic)
}

/// One step of a gang after worker-1 has left with exit code 75. `helper` is how both scripts use the helper
/// module.
fn after_leaving(policy: &Policy, helper: HelperUse, worker_0: ReplicaPhase) -> (JobPhase, Vec<Action>) {
    let left = Exited(FIRST, exit(75, 9));
    let members = [("worker-0", worker_0), ("worker-1", left)].map(|(name, phase)| {
        let place = with_helper(name, phase, helper);
        let membership = Membership { seat: place.id.index, of: 2, start: 0, pushes: 0 };
        observed(&place, |seen| seen.enrolled = Some(Enrolled { generation: FIRST, membership }))
    });
    let failed = Ending::Failed(exited("worker-1", exit(75, 9)));
    step_of(stopping(failed), JobEvent::Observed, seen(&fixed(members.into()), policy, SOON))
}

#[test]
fn the_first_rank_has_time_to_save_when_another_member_has_left_after_a_step() {
    for policy in [POLICY, elastic()] {
        let grace = |helper| after_leaving(&policy, helper, Running(FIRST)).1;
        assert_eq!(grace(HelperUse::Stepped), stop_with(POLICY.rules.graces.saving));
        assert_eq!(grace(HelperUse::Begun), stop_with(Duration::ZERO));
    }
}

#[test]
fn an_elastic_gang_that_has_left_after_a_step_starts_again_at_once() {
    let policy = elastic();
    let after = |helper| after_leaving(&policy, helper, Exited(FIRST, exit(75, 10)));
    let next = FIRST.next();
    let again = JobPhase::Restarting(Restart { next, is_empty: false, until: SOON, since: SOON });
    let (phase, actions) = after(HelperUse::Stepped);
    assert_eq!(phase, again);
    assert!(!actions.iter().any(|action| matches!(action, Action::RecordRestart(_))), "{actions:?}");
    assert!(
        matches!(after(HelperUse::Begun).0, JobPhase::Releasing { .. }),
        "the job goes on although its policy allows no restart that counts"
    );
}

#[test]
fn a_fixed_gang_that_has_left_after_a_step_starts_again_and_the_restart_is_recorded() {
    let after = |helper| after_leaving(&POLICY, helper, Exited(FIRST, exit(75, 10)));
    let (phase, actions) = after(HelperUse::Stepped);
    assert!(
        matches!(phase, JobPhase::Restarting(Restart { until, .. }) if until == SOON + POLICY.rules.retries.backoff),
        "{phase:?}"
    );
    let record = Action::RecordRestart(exited("worker-1", exit(75, 9)));
    assert_eq!(actions, [record]);
    assert!(
        matches!(after(HelperUse::Begun).0, JobPhase::Releasing { .. }),
        "the job goes on although its policy allows no restart that counts"
    );
}

#[test]
fn a_script_is_not_the_cause_if_it_leaves_because_a_peer_failed() {
    let crash = exited("worker-0", exit(1, 11));
    let policy = changed(POLICY, |policy| policy.rules.retries.max_restarts = 1);
    let (_, actions) = after_leaving(&policy, HelperUse::Stepped, Exited(FIRST, exit(1, 11)));
    assert_eq!(
        actions[0],
        Action::RecordRestart(crash),
        "the crash is not the cause, although the script with code 75 ended because of it"
    );
}

#[test]
fn new_workers_join_sooner_if_every_script_reports_its_steps() {
    let of = |helpers: &[HelperUse], policy: &RunPolicy| {
        let workers: Vec<String> = (0..helpers.len()).map(|index| format!("worker-{index}")).collect();
        let members = workers.iter().zip(helpers).map(|(name, helper)| with_helper(name, Running(FIRST), *helper));
        let chosen = policy.grow_interval_seconds.map(|seconds| Duration::from_secs(seconds.into()));
        grow_interval(&fixed(members.collect()), &changed(elastic(), |policy| policy.rules.grow_interval = chosen))
            .as_secs()
    };
    let default = RunPolicy::default();
    let chosen = RunPolicy { grow_interval_seconds: Some(300), ..RunPolicy::default() };
    assert_eq!(of(&[HelperUse::Stepped, HelperUse::Stepped], &default), 30);
    assert_eq!(of(&[HelperUse::Stepped, HelperUse::Begun], &default), 300);
    assert_eq!(of(&[HelperUse::Stepped, HelperUse::None], &default), 300);
    assert_eq!(of(&[HelperUse::Stepped, HelperUse::Stepped], &chosen), 300);
}

/// The state of an agent whose run in the first start ended with `exit`.
fn ended(exit: ExitReport) -> AgentState {
    reported(status(RunState::Exited, FIRST, Some(exit)))
}

/// Turns `exit` into the exit of a run that the agent stopped because the pod was being removed.
fn with_its_pod(exit: ExitReport) -> ExitReport {
    ExitReport { stopped: true, terminated: true, ..exit }
}
