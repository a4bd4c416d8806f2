//! Tests that a watch that reports no changes fails no job and hides no own write.

use std::time::Duration;

use master::agents::token::AgentKey;
use master::registry::{JobHandle, Submitted};
use master::store::Wish;
use protocol::job::JobSpec;
use protocol::view::{JobResult, JobState, JobView};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::server::{ApiServer, Asked, Kind, Silence};
use super::whole_master::{address, agents_of};
use super::world::{begin, foreign_pod, jobs};
use crate::service::harness;

/// How long the watch reports nothing.
const LENGTH: Duration = Duration::from_secs(100);
/// The longest jump of the virtual clock. Without it, the clock would jump over the time limits of requests to agents,
/// which use real sockets.
const TICK: Duration = Duration::from_millis(50);
const WORKERS: u32 = 2;
/// The addresses before this index belong to the tests in `whole_master`.
const FIRST_ADDRESS: u32 = 8;

/// A moment of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    BeforeTheSubmit,
    DryRun,
    Record,
    NetworkPolicy,
    FirstPod,
    LastPod,
    Nodes,
    FirstPodRuns,
    AllPodsRun,
    JobRuns,
}

const MOMENTS: [Moment; 10] = [
    Moment::BeforeTheSubmit,
    Moment::DryRun,
    Moment::Record,
    Moment::NetworkPolicy,
    Moment::FirstPod,
    Moment::LastPod,
    Moment::Nodes,
    Moment::FirstPodRuns,
    Moment::AllPodsRun,
    Moment::JobRuns,
];

fn spec() -> JobSpec {
    JobSpec { image: Some("digits:1".parse().expect("not an image")), ..harness::spec("digits", WORKERS) }
}

fn ticking() -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async {
        loop {
            sleep(TICK).await;
        }
    }))
}

async fn submit(jobs: &master::registry::Jobs) -> JobHandle {
    match jobs.requests.submit(spec()).await.expect("not accepted") {
        Submitted::Created(job) => job,
        Submitted::Existing(_) => panic!("not a new job"),
    }
}

/// Waits until the server has been asked for `count` objects of this kind.
async fn asked(server: &ApiServer, plural: &str, is_trial: bool, count: usize) {
    let is_meant = |asked: &&Asked| asked.kind == Kind::Create && asked.path == plural && asked.is_trial() == is_trial;
    server.until(plural, |all| all.iter().filter(is_meant).count() >= count).await;
}

fn change_pod(server: &ApiServer, index: u32, change: impl FnOnce(&mut Value)) {
    let mut pod = server.object("pods", &format!("digits-worker-{index}")).expect("no pod");
    change(&mut pod);
    server.put("pods", pod);
}

/// What the rest of the cluster does: each second, a step. Calls `at` at each moment.
async fn cluster(server: &ApiServer, first_address: u32, at: impl Fn(Moment)) {
    asked(server, "pods", true, 1).await;
    at(Moment::DryRun);
    asked(server, "configmaps", false, 1).await;
    at(Moment::Record);
    asked(server, "networkpolicies", false, 1).await;
    at(Moment::NetworkPolicy);
    asked(server, "pods", false, 1).await;
    at(Moment::FirstPod);
    asked(server, "pods", false, WORKERS as usize).await;
    at(Moment::LastPod);
    sleep(Duration::from_secs(1)).await;
    (0..WORKERS).for_each(|index| change_pod(server, index, |pod| pod["spec"]["nodeName"] = json!("node-1")));
    at(Moment::Nodes);
    for (index, moment) in [(0, Moment::FirstPodRuns), (1, Moment::AllPodsRun)] {
        sleep(Duration::from_secs(1)).await;
        let status = json!({ "phase": "Running", "podIP": address(first_address + index) });
        change_pod(server, index, |pod| pod["status"] = status);
        at(moment);
    }
}

/// Launches a job. From `moment` on, the watch of `plural` is silent. Returns how long after the beginning of the silence
/// the job ran.
async fn launch(case: u32, moment: Moment, plural: &str, silence: Silence) -> Duration {
    let (server, logs) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    let first_address = FIRST_ADDRESS + case * WORKERS;
    let _agents = agents_of(&spec(), first_address).await;
    let jobs = jobs(&server, begin(&server).await, AgentKey::random(), logs.path());
    jobs.complete().await;
    let begun = std::sync::Mutex::new(None);
    let at = |present: Moment| {
        if present == moment {
            server.silence(plural, silence);
            *begun.lock().expect("poisoned") = Some(Instant::now());
        }
    };
    at(Moment::BeforeTheSubmit);
    let (job, ()) = tokio::join!(submit(&jobs), cluster(&server, first_address, at));
    let running = async {
        let view = until(&job, |view| view.state == JobState::Running || view.result.is_some()).await;
        at(Moment::JobRuns);
        (view, Instant::now())
    };
    let until_heard = async {
        let begun = *begun.lock().expect("poisoned");
        sleep(LENGTH.saturating_sub(begun.map_or(Duration::ZERO, |begun| begun.elapsed()))).await;
        server.end_silence(plural);
    };
    let ((view, ran), ()) = tokio::join!(running, until_heard);
    assert_eq!(
        (view.state, view.restarts.total()),
        (JobState::Running, 0),
        "{moment:?} {plural} {silence:?}: {view:#?}"
    );
    let now = job.view.borrow().clone();
    assert_eq!((now.state, now.restarts.total()), (JobState::Running, 0), "{moment:?} {plural} {silence:?}: {now:#?}");
    let begun = begun.lock().expect("poisoned").expect("the moment has not come");
    ran.saturating_duration_since(begun)
}

async fn until(job: &JobHandle, test: impl FnMut(&JobView) -> bool) -> JobView {
    let mut view = job.view.clone();
    let found = timeout(5 * LENGTH, view.wait_for(test)).await.map(|view| view.expect("the driver has ended").clone());
    found.unwrap_or_else(|_| panic!("the expected view did not come: {:#?}", job.view.borrow()))
}

#[test]
fn no_job_fails_because_a_watch_is_silent_at_any_moment_of_its_launch() {
    let always = (Silence::Always, LENGTH + Duration::from_secs(15));
    let present = (Silence::Present, Duration::from_secs(30));
    let mut case = 0;
    for moment in MOMENTS {
        for plural in ["pods", "configmaps"] {
            for (silence, limit) in [always, present] {
                // The end of a runtime ends the case's master and its agents.
                let runtime =
                    Builder::new_current_thread().enable_all().start_paused(true).build().expect("no runtime");
                let took = runtime.block_on(async {
                    let _ticking = ticking();
                    launch(case, moment, plural, silence).await
                });
                assert!(took <= limit, "{moment:?} {plural} {silence:?}: {took:?}");
                case += 1;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_watch_of_records_is_silent_a_job_is_accepted_and_cancelled() {
    let (server, logs) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    let jobs = jobs(&server, begin(&server).await, AgentKey::random(), logs.path());
    jobs.complete().await;
    server.silence("configmaps", Silence::Always);
    let job = submit(&jobs).await;
    asked(&server, "pods", false, WORKERS as usize).await;
    jobs.requests.wish(&spec().name, Wish::Cancel).await.expect("not cancelled");
    let view = until(&job, |view| view.result.is_some()).await;
    assert_eq!(view.result, Some(JobResult::Cancelled));
}

#[tokio::test(start_paused = true)]
async fn a_foreign_pod_with_the_name_is_the_reason_of_the_wait_until_the_pod_is_deleted() {
    let (server, logs) = (ApiServer::new(), tempfile::tempdir().expect("no folder"));
    server.put("pods", foreign_pod());
    let jobs = jobs(&server, begin(&server).await, AgentKey::random(), logs.path());
    let job = submit(&jobs).await;
    let waiting = until(&job, |view| view.replicas[0].reason.is_some() || view.result.is_some()).await;
    let reason = waiting.replicas[0].reason.clone().unwrap_or_default();
    assert!(reason.contains("another pod has this name: delete that pod"), "{waiting:#?}");
    assert_eq!(waiting.state, JobState::Pending);
    let tries = server.count(Kind::Create);
    server.remove("pods", "digits-worker-0");
    server
        .until("the pod is requested again", |all| {
            all.iter().filter(|asked| asked.kind == Kind::Create).count() > tries
        })
        .await;
    assert_eq!(job.view.borrow().state, JobState::Pending);
}
