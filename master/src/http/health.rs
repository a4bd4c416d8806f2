//! Whether this master lives and can serve. These need no token.

use axum::extract::State;
use axum::http::StatusCode;

use super::AppState;

/// 200 while the process answers.
pub(super) async fn healthz() -> &'static str {
    "OK"
}

/// 200 until the master ends.
pub(super) async fn readyz(State(state): State<AppState>) -> (StatusCode, &'static str) {
    if state.end.is_cancelled() { (StatusCode::SERVICE_UNAVAILABLE, "ending") } else { (StatusCode::OK, "OK") }
}
