//! The answers to requests: the responses of successful requests, and the failures.

use std::io::ErrorKind;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, TRAILER};
use hyper::{Method, Response, StatusCode};
use protocol::callers::ForeignRequest;
use protocol::error::{ErrorCode, PROBLEM_JSON, Problem};
use protocol::routes::{AGED_OUTPUT, LOG_COMPLETE_TRAILER, LOG_DROPPED_HEADER, LOG_OFFSET_HEADER};
use serde::Serialize;

use super::body::{self, AgentBody, OutputForm};
use crate::activity::OpenRequest;
use crate::code::{CodeRequestError, HeldFiles};
use crate::follow::LogReader;
use crate::process::environment::ConfigError;
use crate::refusal::RequestRefusal;
use crate::token::Denied;

/// What a handler returns.
pub(crate) type Result = std::result::Result<Response<AgentBody>, RequestFailure>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestFailure {
    #[error("unknown route {0}")]
    UnknownRoute(String),
    #[error("Transfer-Encoding is not supported: send the body with Content-Length")]
    Framing,
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("this route accepts only {allowed}")]
    Method { allowed: Method },
    #[error("{0}")]
    Query(String),
    #[error("the body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the body did not arrive: {0}")]
    BodyLost(String),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Refused(#[from] RequestRefusal),
    #[error("{0}")]
    NoPython(String),
    #[error("the body is no trainer's status: {0}")]
    Post(#[source] serde_json::Error),
    #[error("the manifest is not valid: {0}")]
    Manifest(#[source] serde_json::Error),
    #[error(transparent)]
    Code(#[from] CodeRequestError),
    #[error("another agent listens at this address")]
    AnotherAgent,
    #[error("{0}")]
    OutOfReach(String),
    #[error("exec.py does not run in this start")]
    NotRunning,
    #[error("the agent is ending")]
    Ending,
}

impl RequestFailure {
    fn kind(&self) -> (StatusCode, ErrorCode) {
        match self {
            Self::UnknownRoute(_) => (StatusCode::NOT_FOUND, ErrorCode::UnknownRoute),
            Self::Denied(Denied::Token) => (StatusCode::UNAUTHORIZED, ErrorCode::Unauthorized),
            Self::Denied(Denied::Foreign(ForeignRequest::Browser | ForeignRequest::OtherHost)) => {
                (StatusCode::FORBIDDEN, ErrorCode::Forbidden)
            }
            Self::Method { .. } => (StatusCode::METHOD_NOT_ALLOWED, ErrorCode::MethodNotAllowed),
            Self::Framing
            | Self::Query(_)
            | Self::Config(ConfigError::NotAnObject(_) | ConfigError::Count { .. })
            | Self::Post(_)
            | Self::BodyLost(_) => (StatusCode::BAD_REQUEST, ErrorCode::BadRequest),
            Self::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::TooLarge),
            Self::Config(ConfigError::NotText { .. } | ConfigError::Env(_)) => {
                (StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::BadEnv)
            }
            Self::Refused(RequestRefusal::Stale { .. }) => {
                (StatusCode::PRECONDITION_FAILED, ErrorCode::StaleGeneration)
            }
            Self::Refused(
                RequestRefusal::ConfiguredOtherwise(_)
                | RequestRefusal::Active
                | RequestRefusal::NothingConfigured
                | RequestRefusal::GenerationNotConfigured(_),
            )
            | Self::AnotherAgent
            | Self::NotRunning => (StatusCode::CONFLICT, ErrorCode::Conflict),
            Self::OutOfReach(_) => (StatusCode::BAD_GATEWAY, ErrorCode::AgentUnreachable),
            Self::NoPython(_) => (StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::NoPython),
            Self::Manifest(_) => (StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::BadCode),
            Self::Code(error) => of_code(error),
            Self::Ending => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable),
        }
    }

    /// The problem+json response.
    pub(crate) fn to_response(&self) -> Response<AgentBody> {
        let (status, code) = self.kind();
        let problem = Problem { status: status.as_u16(), code, detail: self.to_string() };
        let mut response = full(status, PROBLEM_JSON, json(&problem));
        if let Self::Method { allowed } = self {
            let allowed = HeaderValue::from_str(allowed.as_str()).expect("a method is a token");
            response.headers_mut().insert(ALLOW, allowed);
        }
        if matches!(self, Self::Framing) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// `OK`, the answer of the first prototype's agent.
pub(crate) fn ok() -> Response<AgentBody> {
    text(StatusCode::OK, "OK")
}

/// A short text.
pub(crate) fn text(status: StatusCode, text: &'static str) -> Response<AgentBody> {
    full(status, "text/plain; charset=utf-8", text.into())
}

/// A message as JSON.
pub(crate) fn message(message: &impl Serialize) -> Response<AgentBody> {
    full(StatusCode::OK, "application/json", json(message))
}

/// Code, sent piece by piece. The body keeps `open` until it ends.
pub(crate) fn code(held: HeldFiles, open: OpenRequest) -> Response<AgentBody> {
    of_type("application/octet-stream", body::held(held, open))
}

/// Output, sent as it arrives. `dropped` is the number of missing bytes between the requested offset and the first
/// delivered byte. The body keeps `open` until it ends.
pub(crate) fn logs(follower: LogReader, form: OutputForm, dropped: u64, open: OpenRequest) -> Response<AgentBody> {
    let offset = follower.offset();
    let media_type = match form {
        OutputForm::Plain => "application/octet-stream",
        OutputForm::Aged => AGED_OUTPUT,
    };
    let mut response = of_type(media_type, body::following(follower, form, open));
    let headers = response.headers_mut();
    headers.insert(TRAILER, HeaderValue::from_static(LOG_COMPLETE_TRAILER));
    headers.insert(HeaderName::from_static(LOG_OFFSET_HEADER), offset.into());
    headers.insert(HeaderName::from_static(LOG_DROPPED_HEADER), dropped.into());
    response
}

fn of_code(error: &CodeRequestError) -> (StatusCode, ErrorCode) {
    match error {
        CodeRequestError::Missing(_) | CodeRequestError::Changed(_) => (StatusCode::CONFLICT, ErrorCode::CodeMissing),
        CodeRequestError::WrongId { .. } | CodeRequestError::Blobs(_) | CodeRequestError::InTheWay(_) => {
            (StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::BadCode)
        }
        CodeRequestError::File(error) if [ErrorKind::StorageFull, ErrorKind::QuotaExceeded].contains(&error.kind()) => {
            (StatusCode::INSUFFICIENT_STORAGE, ErrorCode::CodeStoreFull)
        }
        CodeRequestError::File(_) => (StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal),
    }
}

fn full(status: StatusCode, media_type: &'static str, body: Bytes) -> Response<AgentBody> {
    let mut response = of_type(media_type, AgentBody::Left(Full::new(body)));
    *response.status_mut() = status;
    response
}

fn of_type(media_type: &'static str, body: AgentBody) -> Response<AgentBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

fn json(message: &impl Serialize) -> Bytes {
    serde_json::to_vec(message).expect("messages have text keys and no failing parts").into()
}
