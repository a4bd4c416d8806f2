//! How long a request's body is must be said in one way alone, or a proxy and this master could disagree about where
//! the next request begins (RFC 9112, 11.2).

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use protocol::error::ErrorCode;

use super::error::ApiError;

/// Refuses Transfer-Encoding. hyper takes it, and then drops a Content-Length beside it without a word, so that here the
/// two cannot be told from a plain chunked body. Two lengths that differ, and what is no length, hyper refuses itself.
pub(super) async fn check(request: Request, next: Next) -> Response {
    if !request.headers().contains_key(header::TRANSFER_ENCODING) {
        return next.run(request).await;
    }
    let detail = "Transfer-Encoding is not taken here: send the body in one piece, with Content-Length";
    let mut response = ApiError::new(StatusCode::BAD_REQUEST, ErrorCode::BadRequest, detail).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
