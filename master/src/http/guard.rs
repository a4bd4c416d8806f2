//! Decides who may send requests: callers with the token. A master without a token accepts all programs of this
//! machine, or all programs that reach its port, but no browsers. A web page can make a browser send requests to
//! loopback, and one GET can submit a job.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use protocol::error::ErrorCode;
use subtle::ConstantTimeEq;

use super::error::ApiError;

/// Who may send requests.
#[derive(Debug)]
pub enum Guard {
    /// Callers with this token.
    Token(String),
    /// Programs of this machine, except browsers.
    ThisMachine,
    /// All programs that reach the port, except browsers.
    Anyone,
}

/// Prefixes of the names of headers that browsers send and curl does not. A page can neither omit nor set a header
/// that begins with `sec-` (Fetch, 2.2.2).
const OF_BROWSERS: [&str; 3] = ["origin", "referer", "sec-"];
/// The start of every browser's User-Agent, including browsers that are too old for `sec-` headers.
const BROWSER_NAME: &[u8] = b"Mozilla/";

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
            Self::ThisMachine => no_browser(headers).and_then(|()| addressed_to_this_machine(uri, headers)),
            Self::Anyone => no_browser(headers),
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

fn no_browser(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_of_browsers = |name: &HeaderName| OF_BROWSERS.iter().any(|begin| name.as_str().starts_with(begin));
    let is_browser = |name: &HeaderValue| name.as_bytes().starts_with(BROWSER_NAME);
    if headers.keys().any(is_of_browsers) || headers.get_all(header::USER_AGENT).iter().any(is_browser) {
        return Err(forbidden("this master has no token, so it refuses requests from browsers"));
    }
    Ok(())
}

/// Checks the Host header, and the target if it names a host: `GET http://HOST/create` (RFC 9112, 3.2.2).
fn addressed_to_this_machine(uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let target_fits = uri.authority().is_none_or(|authority| is_this_machine(authority.as_str()));
    match only(headers, header::HOST) {
        Some(host) if target_fits && is_this_machine(host) => Ok(()),
        Some(_) | None => Err(forbidden("the Host header must name this machine by a loopback address or localhost")),
    }
}

fn forbidden(detail: &str) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, ErrorCode::Forbidden, detail)
}

/// Whether a Host header, with or without a port, names loopback by address or as `localhost`. An attacker's DNS can
/// resolve any other name to loopback.
fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        Some(_) | None => host,
    };
    let is_loopback = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse().is_ok_and(|address: Ipv6Addr| address.is_loopback()),
        None => name.parse().is_ok_and(|address: Ipv4Addr| address.is_loopback()),
    };
    is_loopback || name.eq_ignore_ascii_case("localhost")
}
