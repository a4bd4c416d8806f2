//! Tests that the master shows over HTTP what scripts report with the helper module.

use protocol::agent::ExitOutcome;
use protocol::progress::{JobSeries, Progress, SeriesPoint};
use protocol::view::JobState;
use serde_json::json;

use crate::service::harness::{Master, in_time, reach, spec};

impl Master {
    /// Requests the series of the job with `query` until `test` accepts them.
    async fn series(&self, query: &str, test: impl Fn(&JobSeries) -> bool) -> JobSeries {
        let look = async {
            loop {
                let answer = self.get(&format!("/v1/jobs/reports/series{query}")).await.json();
                let series = serde_json::from_value(answer).expect("not a series");
                if test(&series) {
                    return series;
                }
            }
        };
        in_time("the expected series are shown", look).await
    }
}

/// The steps of each replica.
fn steps(series: &JobSeries) -> Vec<Vec<u64>> {
    let step = |point: &SeriesPoint| point.progress.as_ref()?.step;
    series.replicas.iter().map(|replica| replica.points.iter().filter_map(step).collect()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reports_of_each_replica_are_shown_while_the_job_runs_and_after_its_end() {
    let master = Master::serving(None).await;
    let spec = spec("reports", 2);
    let job = master.submit(spec.clone()).await;
    let agents = master.started(&spec).await;
    let [first, second] = &agents[..] else { panic!("there are not two agents") };
    reach(&job, JobState::Running).await;
    assert_eq!(steps(&master.series("", |_| true).await), [] as [Vec<u64>; 0]);

    let report = |step: u64, loss: f64| {
        serde_json::from_value::<Progress>(json!({"step": step, "values": {"loss": loss}})).expect("not a report")
    };
    second.report(report(1, 0.5));
    let series = master.series("", |series| !series.replicas.is_empty()).await;
    let shown = serde_json::to_value(&series).expect("not JSON");
    let point = &shown["replicas"][0]["points"][0];
    assert_eq!(shown["replicas"][0]["replica"], "worker-1");
    assert_eq!(
        (&point["generation"], &point["progress"]),
        (&json!("1.1"), &json!({"step": 1, "values": {"loss": 0.5}}))
    );
    first.report(report(2, 0.25));
    second.report(report(2, 0.25));
    // When a run ends, the master also receives the run's last report.
    agents.iter().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
    reach(&job, JobState::Succeeded).await;
    let series = master.series("", |series| steps(series) == [vec![2], vec![1, 2]]).await;
    let until = series.until.expect("no time").0;
    master.series(&format!("?after={until}"), |series| steps(series) == [[] as [u64; 0]; 2]).await;
    master.series("?after=0", |series| steps(series) == [vec![2], vec![1, 2]]).await;
    master.series("?tail=1", |series| steps(series) == [vec![2], vec![2]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_series_of_an_unknown_job_and_bad_parameters_are_refused() {
    let master = Master::serving(None).await;
    master.submit(spec("reports", 1)).await;
    for (path, status) in [("reports/series?tail=-1", 400), ("reports/series?until=1", 400), ("other/series", 404)] {
        assert_eq!(master.get(&format!("/v1/jobs/{path}")).await.status, status, "{path}");
    }
}
