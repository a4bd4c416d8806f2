//! Health checks of this master. They need no token.

use axum::extract::State;
use axum::http::StatusCode;
use protocol::routes;

use super::AppState;

/// Answers 200 while the process is alive.
#[utoipa::path(
    get,
    path = routes::HEALTHZ,
    responses((status = 200, description = "The process is alive", body = String, content_type = "text/plain")),
    security(()),
)]
pub(super) async fn healthz() -> &'static str {
    "OK"
}

/// Answers 200 until the master shuts down.
#[utoipa::path(
    get,
    path = routes::READYZ,
    responses(
        (status = 200, description = "The master serves requests", body = String, content_type = "text/plain"),
        (status = 503, description = "The master is shutting down", body = String, content_type = "text/plain"),
    ),
    security(()),
)]
pub(super) async fn readyz(State(state): State<AppState>) -> (StatusCode, &'static str) {
    if state.end.is_cancelled() { (StatusCode::SERVICE_UNAVAILABLE, "ending") } else { (StatusCode::OK, "OK") }
}
