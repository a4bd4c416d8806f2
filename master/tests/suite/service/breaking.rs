//! Tests of panics in handlers, and of the metrics.

use std::sync::Arc;

use testkit::fake::FakeStore;

use crate::faulty_store::{Bug, FaultyStore};
use crate::service::harness::Master;

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_handler_is_a_500_and_is_counted_and_the_next_request_is_served() {
    let store = FaultyStore { store: FakeStore::default(), bug: Bug::PanicInGet };
    let master = Master::serving_over(Arc::new(store)).await;
    for _ in 0..2 {
        let answer = master.get("/create?strategy=AllReduce&n_worker=1&name=breaks").await;
        assert_eq!((answer.status, answer.code().as_str()), (500, "internal"));
    }
    assert_eq!(master.get("/v1/jobs").await.status, 200);
    let metrics = master.get("/metrics").await;
    assert!(metrics.header("content-type").starts_with("application/openmetrics-text"), "{metrics:?}");
    for line in [
        "muster_http_handler_panics_total 2\n",
        "muster_http_requests_total{route=\"/create\",status=\"500\"} 2\n",
        "muster_http_requests_total{route=\"/v1/jobs\",status=\"200\"} 1\n",
    ] {
        assert!(metrics.body.contains(line), "no line {line}in {}", metrics.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_jobs_by_state_and_contain_no_job_name() {
    let master = Master::serving(Some("the-token")).await;
    let spec = crate::service::harness::spec("secret-plan", 2);
    master.succeed(&spec).await;
    let metrics = master.get("/metrics").await.body;
    assert!(metrics.contains("muster_jobs{state=\"succeeded\"} 1\n"), "{metrics}");
    assert!(metrics.contains("muster_jobs{state=\"running\"} 0\n"), "{metrics}");
    assert!(metrics.contains("muster_http_connections_open 1\n"), "{metrics}");
    assert_eq!(master.get("/v1/jobs/secret-plan").await.status, 401);
    let metrics = master.get("/metrics").await.body;
    assert!(metrics.contains("{route=\"/v1/jobs/{name}\",status=\"401\"} 1\n"), "{metrics}");
    assert!(!metrics.contains("secret-plan"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_what_happens_to_jobs_under_the_names_of_the_training_operator() {
    let master = Master::serving(None).await;
    let spec = crate::service::harness::spec("counted", 2);
    master.succeed(&spec).await;
    assert_eq!(master.delete("/v1/jobs/counted").await.status, 202);
    let counted = async |what: &str, count: u32| {
        let labels = "{job_namespace=\"default\",framework=\"tensorflow\"}";
        let line = format!("training_operator_jobs_{what}_total{labels} {count}\n");
        let metrics = master.get("/metrics").await.body;
        (!metrics.contains(&line)).then_some(metrics)
    };
    // The record is deleted after the answer.
    while counted("deleted", 1).await.is_some() {
        tokio::task::yield_now().await;
    }
    for (what, count) in [("created", 1), ("successful", 1), ("failed", 0), ("restarted", 0)] {
        assert_eq!(counted(what, count).await, None);
    }
    let metrics = master.get("/metrics").await.body;
    let spent = |what: &str| {
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix(&format!("muster_job_seconds_total{{spent=\"{what}\"}} ")));
        line.and_then(|number| number.parse::<f64>().ok()).unwrap_or_else(|| panic!("no {what} in {metrics}"))
    };
    assert!(spent("running") + spent("gathering") > 0.0 && spent("suspended") == 0.0, "{metrics}");
    for name in ["gather", "start"] {
        assert!(metrics.contains(&format!("\nmuster_{name}_seconds_count 1\n")), "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_for_grafana_reads_only_metrics_that_exist() {
    let dashboard = include_str!("../../../../packaging/grafana/muster.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).expect("not JSON");
    let master = Master::serving(None).await;
    master.succeed(&crate::service::harness::spec("shown", 2)).await;
    assert_eq!(master.get("/v1/jobs").await.status, 200);
    let metrics = master.get("/metrics").await.body;
    let panels = dashboard["panels"].as_array().expect("no panels");
    let queries = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("no targets"));
    for query in queries.map(|target| target["expr"].as_str().expect("no query")) {
        let names = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let mut names = names.filter(|name| name.starts_with("muster_") || name.starts_with("training_operator_"));
        let name = names.next().unwrap_or_else(|| panic!("{query} reads no metric"));
        assert!(metrics.contains(&format!("\n{name}{{")) || metrics.contains(&format!("\n{name} ")), "no {name}");
    }
}
