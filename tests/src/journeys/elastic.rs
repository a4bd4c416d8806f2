//! Journeys of elastic jobs.
#![expect(missing_docs, reason = "the name of a journey is its description")]

use protocol::ids::ReplicaId;
use protocol::view::{JobState, JobView};

use crate::place::{Place, Stage};
use crate::processes::within;
use crate::scripts::{AWAITS_ITS_END, tell, with_peers};

/// Waits until the job runs with exactly these workers. `indexes` is in the order of the job's roster.
///
/// # Panics
/// If the deadline passes.
pub fn runs_with(stage: &Stage, job: &str, indexes: &[u32]) -> JobView {
    let roster: Vec<ReplicaId> =
        indexes.iter().map(|index| format!("worker-{index}").parse().expect("not a replica")).collect();
    let look = || Some(stage.status(job)).filter(|view| view.state == JobState::Running && view.roster == roster);
    within(&format!("{job} runs with {indexes:?}"), look, || format!("{:#?}", stage.status(job)))
}

/// Tells the script of each member to end. A view of a job with a fixed number of workers has no roster.
///
/// # Panics
/// If a member does not listen, or sends an answer.
pub fn end_all(view: &JobView) {
    for (place, replica) in view.replicas.iter().enumerate() {
        if view.roster.is_empty() || view.roster.contains(&replica.replica) {
            assert_eq!(tell(view, place, "end"), "");
        }
    }
}

pub fn an_elastic_job_shrinks_restarts_grows_and_is_suspended_and_resumed(place: Place) {
    let stage = Stage::new(place, &with_peers(AWAITS_ITS_END));
    stage.submit(&["-d", "--task", "heals", "--worker-num", "1:2", "--backoff", "0s"]).code(0);
    runs_with(&stage, "heals", &[0, 1]);
    stage.verb(&["scale", "heals", "--worker-num", "1"]).code(0).says(&["job heals may have 1 worker from"]);
    let view = runs_with(&stage, "heals", &[0]);
    assert_eq!(tell(&view, 0, "how are you"), "still here\n");
    stage.kill_agent("heals");
    let look = || Some(stage.status("heals")).filter(|view| view.restarts.counted == 1);
    within("the restart after the killed agent is counted", look, || format!("{:#?}", stage.status("heals")));
    runs_with(&stage, "heals", &[0]);
    stage.verb(&["scale", "heals", "--worker-num", "1:3"]).code(0).says(&["job heals may have 1 to 3 workers"]);
    runs_with(&stage, "heals", &[0, 1, 2]);
    stage.verb(&["status", "heals"]).code(0);
    stage.verb(&["suspend", "heals"]).code(0).says(&["job heals is being suspended"]);
    let look = || Some(stage.status("heals")).filter(|view| view.state == JobState::Suspended);
    within("the job heals is suspended", look, || format!("{:#?}", stage.status("heals")));
    stage.verb(&["resume", "heals"]).code(0).says(&["job heals is not suspended any more"]);
    let view = runs_with(&stage, "heals", &[0, 1, 2]);
    end_all(&view);
    assert_eq!(stage.finished("heals").state, JobState::Succeeded);
    stage.verb(&["scale", "heals", "--worker-num", "2"]).code(2).says(&["has ended"]);
    stage.verb(&["suspend", "heals"]).code(2).says(&["has ended"]);
    stage.assert_nothing_runs();
}
