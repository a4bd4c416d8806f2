//! Decides who may send requests: callers with the token. A master without a token accepts all programs of this
//! machine, or all programs that reach its port, but no browsers: see [`protocol::callers`].

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use protocol::callers::{Callers, ForeignRequest};
use protocol::error::ErrorCode;
use subtle::ConstantTimeEq;

use super::error::ApiError;
use crate::config::Guard;

impl Guard {
    /// Whether a request with this method, target and headers is allowed. Only for fuzzing.
    #[doc(hidden)]
    pub fn admits(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
        self.admit(method, uri, headers).is_ok()
    }

    fn admit(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        // axum answers HEAD with the handler of GET, and `GET /create` submits a job.
        if method == Method::HEAD {
            let detail = "HEAD is not supported: use GET";
            return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, ErrorCode::MethodNotAllowed, detail));
        }
        match self {
            Self::Token(token)
                if bearer(headers).is_some_and(|given| given.as_bytes().ct_eq(token.as_bytes()).into()) =>
            {
                Ok(())
            }
            Self::Token(_) => {
                let detail = "the token is missing or wrong: send Authorization: Bearer TOKEN";
                Err(ApiError::new(StatusCode::UNAUTHORIZED, ErrorCode::Unauthorized, detail))
            }
            Self::ThisMachine => tokenless(Callers::ThisMachine, uri, headers),
            Self::Anyone => tokenless(Callers::Anyone, uri, headers),
        }
    }
}

/// The middleware that refuses requests.
pub(super) async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    match guard.admit(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    only(headers, header::AUTHORIZATION)?.strip_prefix("Bearer ")
}

/// The value of a header that occurs exactly once.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok();
    if values.next().is_none() { value } else { None }
}

fn tokenless(callers: Callers, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let target = uri.authority().map(|authority| authority.as_str());
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let refused =
        |refusal: ForeignRequest| ApiError::new(StatusCode::FORBIDDEN, ErrorCode::Forbidden, refusal.to_string());
    callers.check(target, &headers).map_err(refused)
}
