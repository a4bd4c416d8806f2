//! This master's metrics, in the text format of OpenMetrics. The metrics name no job, so a collector needs no token. A
//! collector with a token could submit jobs, and jobs can run any code.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use listener::SeatChange;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry, Unit};
use protocol::routes;
use protocol::spent::Spent;
use protocol::view::JobState;

use super::AppState;
use crate::registry::Jobs;
use crate::tally::Tally;

/// The format's media type (OpenMetrics 1.0).
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The route label of requests without a route.
const NO_ROUTE: &str = "none";

pub(super) struct Metrics {
    registry: Registry,
    jobs: Family<OfJobs, Gauge>,
    tasks: Gauge,
    requests: Family<OfRequests, Counter>,
    pub(super) handler_panics: Counter,
    connections_open: Gauge<i64, AtomicI64>,
    connections_refused: Counter,
    connections_evicted: Counter,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfJobs {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRequests {
    route: String,
    status: u16,
}

impl Metrics {
    /// `namespace` is where the pods of this master are, if there are pods.
    pub(super) fn new(tally: &Tally, namespace: Option<&str>) -> Arc<Self> {
        let mut all = Registry::default();
        show_tally(&mut all, tally, namespace);
        let registry = all.sub_registry_with_prefix("muster");
        // Otherwise Prometheus would not count the first job: a series begins with its first value.
        tally.spend(&Spent::default());
        let seconds = "How the time of the jobs that ended under this master was spent, in seconds";
        registry.register("job_seconds", seconds, tally.seconds.clone());
        let gathering = "Time from the acceptance of a job, or the end of its last start, until its gang was complete; \
            includes the queue and pauses";
        registry.register_with_unit("gather", gathering, Unit::Seconds, tally.gathering.0.clone());
        let starting = "Time from a complete gang until every exec.py of the start was started";
        registry.register_with_unit("start", starting, Unit::Seconds, tally.starting.0.clone());
        let refused = "Connections refused because every open connection had a request that was being answered";
        let evicted = "Connections without a complete request that were closed to make room for new ones";
        Arc::new(Self {
            jobs: registered(registry, "jobs", "Jobs on record, by state"),
            tasks: registered(registry, "tasks", "Running tasks of this master's runtime"),
            requests: registered(registry, "http_requests", "Requests answered, by route and status"),
            handler_panics: registered(registry, "http_handler_panics", "Panicked handlers; each panic is a bug"),
            connections_open: registered(registry, "http_connections_open", "Connections that are open"),
            connections_refused: registered(registry, "http_connections_refused", refused),
            connections_evicted: registered(registry, "http_connections_evicted", evicted),
            registry: all,
        })
    }

    pub(super) fn count_connection(&self, change: SeatChange) {
        match change {
            SeatChange::Open(count) => drop(self.connections_open.set(i64::try_from(count).unwrap_or(i64::MAX))),
            SeatChange::Refused => drop(self.connections_refused.inc()),
            SeatChange::Evicted => drop(self.connections_evicted.inc()),
        }
    }

    fn show_jobs(&self, jobs: &Jobs) {
        let states = jobs.table.states();
        for state in JobState::ALL {
            let count = states.iter().filter(|of_job| **of_job == state).count();
            self.jobs.get_or_create(&OfJobs { state: state.as_str() }).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    fn show_tasks(&self) {
        let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        self.tasks.set(i64::try_from(alive).unwrap_or(i64::MAX));
    }
}

/// Shows the tally under the names of Kubeflow's training operator
/// (`training-operator/pkg/common/metrics.go`), with its labels. Dashboards for TFJobs read these names.
fn show_tally(registry: &mut Registry, tally: &Tally, namespace: Option<&str>) {
    let namespace = namespace.unwrap_or("default").to_owned();
    let labels = [("job_namespace".into(), namespace.into()), ("framework".into(), "tensorflow".into())];
    let labelled = registry.sub_registry_with_labels(labels.into_iter());
    for (what, help, counter) in [
        ("created", "Jobs that this master has accepted", &tally.created),
        ("deleted", "Jobs that this master has deleted", &tally.deleted),
        ("successful", "Jobs that succeeded under this master", &tally.successful),
        ("failed", "Jobs that failed under this master", &tally.failed),
        ("restarted", "Restarts of jobs after a failure under this master", &tally.restarted),
    ] {
        labelled.register(format!("training_operator_jobs_{what}"), help, counter.clone());
    }
}

/// A new metric that the registry shows.
fn registered<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// The middleware that counts requests.
pub(super) async fn count(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or(NO_ROUTE, MatchedPath::as_str).to_owned();
    let response = next.run(request).await;
    metrics.requests.get_or_create(&OfRequests { route, status: response.status().as_u16() }).inc();
    response
}

/// Returns metrics for Prometheus: jobs by state, requests, connections. The metrics name no job. No token is needed.
#[utoipa::path(
    get,
    path = routes::METRICS,
    responses((status = 200, description = "Metrics in the OpenMetrics text format", body = String, content_type = "application/openmetrics-text")),
    security(()),
)]
pub(super) async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    state.metrics.show_jobs(&state.jobs);
    state.metrics.show_tasks();
    let mut shown = String::new();
    text::encode(&mut shown, &state.metrics.registry).expect("writing to a String cannot fail");
    ([(header::CONTENT_TYPE, OPENMETRICS)], shown)
}
