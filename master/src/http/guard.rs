//! Who may ask: whoever has the token, and, on a master without one, programs of this machine but no browser.
//! A page in a browser can make it send requests to loopback, and a GET is enough to submit a job.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use protocol::error::ErrorCode;
use subtle::ConstantTimeEq;

use super::error::ApiError;

/// Who may ask.
#[derive(Debug)]
pub enum Guard {
    /// Whoever has this token.
    Token(String),
    /// Programs of this machine.
    ThisMachine,
    /// Every program that reaches the port.
    Anyone,
}

/// Headers that browsers send and curl does not.
const OF_BROWSERS: [&str; 4] = ["origin", "referer", "sec-fetch-site", "sec-fetch-mode"];

impl Guard {
    /// Whether such a request is answered, for fuzzing.
    #[cfg(feature = "fake")]
    #[doc(hidden)]
    pub fn admits(&self, method: &Method, headers: &HeaderMap) -> bool {
        self.admit(method, headers).is_ok()
    }

    fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
        // GET has effects here (`/create`), so what answers GET must not answer HEAD too.
        if method == Method::HEAD {
            let detail = "HEAD is not answered here: use GET";
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
            Self::ThisMachine => no_browser(headers).and_then(|()| addressed_to_this_machine(headers)),
            Self::Anyone => no_browser(headers),
        }
    }
}

/// The middleware.
pub(super) async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    match guard.admit(request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

fn no_browser(headers: &HeaderMap) -> Result<(), ApiError> {
    if OF_BROWSERS.iter().any(|name| headers.contains_key(*name)) {
        return Err(forbidden("requests of browsers are not answered: this master has no token"));
    }
    Ok(())
}

fn addressed_to_this_machine(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) {
        (Some(host), None) if is_this_machine(host) => Ok(()),
        (_, _) => Err(forbidden("the Host header must name this machine by a loopback address or localhost")),
    }
}

fn forbidden(detail: &str) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, ErrorCode::Forbidden, detail)
}

/// Whether a Host header, port or not, names loopback. Any other name may have been made to point here.
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
