//! The parts of a request that several routes read: the job, the query and the body. A handler's arguments are read in
//! their order, and the first bad one decides the answer.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use listener::ConnectionSeat;
use protocol::error::ErrorCode;
use protocol::ids::JobName;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::AppState;
use super::error::ApiError;
use crate::registry::{JobHandle, JobsError};

/// Maximum time for a request's whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the body as JSON. `what` names the expected content in the error.
pub(super) async fn parsed_body<T: DeserializeOwned>(request: Request, what: &str) -> Result<T, ApiError> {
    let body = whole_body(request).await?;
    serde_json::from_slice(&body).map_err(|error| {
        let detail = format!("the body is not {what}: {error}");
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::BadRequest, detail)
    })
}

async fn whole_body(request: Request) -> Result<Bytes, ApiError> {
    let too_slow = |_| {
        let detail = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, ErrorCode::BadRequest, detail)
    };
    let _awaited = request.extensions().get::<Arc<ConnectionSeat>>().map(ConnectionSeat::awaited);
    timeout(BODY_TIMEOUT, Bytes::from_request(request, &())).await.map_err(too_slow)?.map_err(bad_body)
}

/// The query of a request.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<AppState> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        let bad =
            |error: QueryRejection| ApiError::new(StatusCode::BAD_REQUEST, ErrorCode::BadRequest, error.body_text());
        Query::try_from_uri(&parts.uri).map(|Query(query)| Self(query)).map_err(bad)
    }
}

/// The job's name in the path. No job can have an invalid name, so the answer to such a name is 404.
pub(super) struct NamedJob(pub(super) JobName);

impl FromRequestParts<AppState> for NamedJob {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let unknown = |name: &str| {
            let shown: String = name.chars().take(80).collect();
            ApiError::new(StatusCode::NOT_FOUND, ErrorCode::UnknownJob, format!("no job is named \"{shown}\""))
        };
        // The path may contain bytes that are not UTF-8.
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = path.map_err(|_| unknown("\u{fffd}"))?;
        name.parse().map(Self).map_err(|_| unknown(&name))
    }
}

/// The job whose name is in the path.
pub(super) struct FoundJob(pub(super) JobHandle);

impl FromRequestParts<AppState> for FoundJob {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let NamedJob(name) = NamedJob::from_request_parts(parts, state).await?;
        state.jobs.table.find(&name).map(Self).ok_or_else(|| JobsError::Unknown(name).into())
    }
}

/// The error for a body that is too long or incomplete.
#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes the error by value")]
fn bad_body(error: BytesRejection) -> ApiError {
    let code = match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::TooLarge,
        _ => ErrorCode::BadRequest,
    };
    ApiError::new(error.status(), code, format!("the body cannot be read: {}", error.body_text()))
}
