//! A request must give its body's length in only one way. Otherwise a proxy and this master could disagree about the
//! start of the next request (RFC 9112, 11.2).

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use protocol::error::ErrorCode;

use super::error::ApiError;

/// Refuses Transfer-Encoding. If a request also has Content-Length, hyper silently drops Content-Length. So this code
/// cannot see that there were two lengths. hyper itself refuses an invalid Content-Length, and two different ones.
pub(super) async fn check(request: Request, next: Next) -> Response {
    if !request.headers().contains_key(header::TRANSFER_ENCODING) {
        return next.run(request).await;
    }
    let detail = "Transfer-Encoding is not supported: send the body in one piece, with Content-Length";
    let mut response = ApiError::new(StatusCode::BAD_REQUEST, ErrorCode::BadRequest, detail).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
