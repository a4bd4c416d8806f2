//! Errors as problem+json.

use std::any::Any;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use protocol::error::{ErrorCode, PROBLEM_JSON, Problem};
use protocol::job::SpecError;
use tracing::{error, warn};

use crate::backend::Refusal;
use crate::code::CodeError;
use crate::error_chain::error_chain;
use crate::registry::JobsError;

#[derive(Debug)]
pub(super) struct ApiError(Problem);

impl ApiError {
    pub(super) fn new(status: StatusCode, code: ErrorCode, detail: impl Into<String>) -> Self {
        Self(Problem { status: status.as_u16(), code, detail: detail.into() })
    }

    /// The error of a request that may succeed later. Logs its causes.
    pub(super) fn unavailable(error: &(dyn std::error::Error + 'static)) -> Self {
        let detail = error_chain(error);
        warn!(detail, "could not serve a request");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable, detail)
    }

    /// The same error, with the status `to` instead of `from`. `/create` answers 400 where other routes answer 422.
    pub(super) fn with_status(mut self, from: StatusCode, to: StatusCode) -> Self {
        if self.0.status == from.as_u16() {
            self.0.status = to.as_u16();
        }
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.0).expect("numbers and strings always serialize");
        let mut response = (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("2"));
        }
        response
    }
}

impl From<SpecError> for ApiError {
    fn from(error: SpecError) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, error.code(), error.to_string())
    }
}

impl From<JobsError> for ApiError {
    fn from(error: JobsError) -> Self {
        let (status, code) = match error {
            JobsError::Spec(SpecError::NotElastic) | JobsError::Over(_) => {
                (StatusCode::CONFLICT, ErrorCode::CannotScale)
            }
            JobsError::Spec(error) => return error.into(),
            JobsError::Code(error) => return error.into(),
            JobsError::Refused(Refusal { code, sentence }) => {
                return Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, sentence);
            }
            JobsError::Exists(_)
            | JobsError::OtherTfJob { .. }
            | JobsError::OtherCode(_)
            | JobsError::EndedTfJob(_)
            | JobsError::Unreadable { .. } => (StatusCode::CONFLICT, ErrorCode::JobExists),
            JobsError::NotPushable(_) | JobsError::TakesNoCode(_) => (StatusCode::CONFLICT, ErrorCode::CannotPush),
            JobsError::NotStaged(_) => (StatusCode::CONFLICT, ErrorCode::CodeNotTaken),
            JobsError::Underway { .. } => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::CodeUnderway),
            JobsError::NoMachines | JobsError::OtherRules { .. } | JobsError::Ended(_) => {
                (StatusCode::CONFLICT, ErrorCode::CannotJoin)
            }
            JobsError::NotBegun(_) | JobsError::Unknown(_) => (StatusCode::NOT_FOUND, ErrorCode::UnknownJob),
            JobsError::AgentUnreachable { .. } => (StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::AgentUnreachable),
            JobsError::OtherFormat(_) => (StatusCode::CONFLICT, ErrorCode::Conflict),
            JobsError::NotKept(_) => (StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::BadRequest),
            JobsError::Pods(_)
            | JobsError::Store(_)
            | JobsError::NotWritten(_)
            | JobsError::Late { .. }
            | JobsError::NotDriven(_)
            | JobsError::Slow(_) => return Self::unavailable(&error),
        };
        Self::new(status, code, error.to_string())
    }
}

impl From<CodeError> for ApiError {
    fn from(error: CodeError) -> Self {
        let (status, code) = match &error {
            CodeError::NoManifest(_) => (StatusCode::NOT_FOUND, ErrorCode::CodeMissing),
            CodeError::Missing(_) => (StatusCode::CONFLICT, ErrorCode::CodeMissing),
            CodeError::NoScript(_) | CodeError::OtherId(_) | CodeError::Blobs(_) => {
                (StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::BadCode)
            }
            CodeError::Aborted => (StatusCode::BAD_REQUEST, ErrorCode::BadRequest),
            CodeError::Full { .. } => (StatusCode::INSUFFICIENT_STORAGE, ErrorCode::CodeStoreFull),
            CodeError::Disk(_) => return Self::unavailable(&error),
        };
        Self::new(status, code, error_chain(&error))
    }
}

pub(super) async fn unknown_route() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, ErrorCode::UnknownRoute, "no route has this path")
}

pub(super) async fn method_not_allowed() -> ApiError {
    let detail = "method not allowed on this path";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, ErrorCode::MethodNotAllowed, detail)
}

/// Answers a request whose handler panicked. A panic is a bug of the master, and affects no other request.
#[expect(clippy::needless_pass_by_value, reason = "the signature that tower-http asks for")]
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason");
    error!(panic = text, "a handler panicked");
    let detail = "the master failed while it handled the request: please report this";
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, detail).into_response()
}
