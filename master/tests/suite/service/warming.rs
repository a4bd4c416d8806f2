//! Tests of the requests for warm interpreters.

use protocol::agent::ExitOutcome;
use protocol::ids::Generation;
use protocol::run_policy::{Preload, RunPolicy};
use protocol::view::JobState;

use crate::service::harness::{Master, in_time, reach, spec_with, until, worker};

#[tokio::test(flavor = "multi_thread")]
async fn each_agent_of_a_warm_job_is_asked_once_for_a_warm_interpreter() {
    for (preload, expected) in [(Some(Preload::Modules(vec![])), 1), (Some(Preload::Never), 0), (None, 0)] {
        let master = Master::new();
        let policy = RunPolicy { preload, max_restarts: 1, backoff_seconds: 0, ..RunPolicy::default() };
        let spec = spec_with("warm", 2, policy);
        let job = master.submit(spec.clone()).await;
        let agents =
            [master.backend.agent(&spec.name, worker(0)).await, master.backend.agent(&spec.name, worker(1)).await];
        reach(&job, JobState::Running).await;
        agents[0].exit(ExitOutcome::Code(1));
        let next = Some(Generation { epoch: 1, sequence: 2 });
        until(&job, |view| view.state == JobState::Running && view.generation == next).await;
        in_time("the agents are asked", async {
            while agents.iter().any(|agent| agent.history().warmed.len() < expected) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        agents.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
        reach(&job, JobState::Succeeded).await;
        assert_eq!(agents.map(|agent| agent.history().warmed.len()), [expected; 2]);
    }
}
