//! The OpenAPI document. Each route is described beside its handler. This file contains the parts that routes share.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use protocol::error::Problem;
use protocol::routes;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{IntoResponses, Modify, OpenApi as _};

use super::AppState;

/// The document without its routes.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Muster's master",
        description = "Submits, shows and ends distributed TensorFlow jobs. Every error is an application/problem+json \
            with a stable code, except on /readyz. A request that is not valid HTTP gets a status without a body. Send \
            bodies with Content-Length. Routes that need a token refuse HEAD with 405.",
    ),
    security((), ("token" = [])),
    modifiers(&TokenScheme),
)]
struct Document;

struct TokenScheme;

impl Modify for TokenScheme {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
        let scheme = scheme.description(Some("The token of --token-file, if the master has one"));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme.build()));
    }
}

/// The document to which the routes are added.
pub(super) fn without_routes() -> OpenApi {
    Document::openapi()
}

/// Any bytes.
#[derive(utoipa::ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "read by the derive alone")]
pub(super) struct Octets(Vec<u8>);

/// The errors of the guard.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "read by the derive alone")]
pub(super) enum NotLetIn {
    /// The token is missing or wrong.
    #[response(status = 401, content_type = "application/problem+json")]
    NoToken(Problem),
    /// The master has no token, and the request comes from a browser or names another host.
    #[response(status = 403, content_type = "application/problem+json")]
    Browser(Problem),
}

/// No job has this name, or the name is invalid.
#[derive(IntoResponses)]
#[response(status = 404, content_type = "application/problem+json")]
#[expect(dead_code, reason = "read by the derive alone")]
pub(super) struct NoSuchJob(Problem);

/// The errors of a request's body.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "read by the derive alone")]
pub(super) enum BadBody {
    /// The body is cut off, or is sent with Transfer-Encoding.
    #[response(status = 400, content_type = "application/problem+json")]
    CutOff(Problem),
    /// The body arrives too slowly.
    #[response(status = 408, content_type = "application/problem+json")]
    Slow(Problem),
    /// The body is too long.
    #[response(status = 413, content_type = "application/problem+json")]
    Long(Problem),
}

/// A parameter is unknown or malformed, or cannot be combined with another parameter.
#[derive(IntoResponses)]
#[response(status = 400, content_type = "application/problem+json")]
#[expect(dead_code, reason = "read by the derive alone")]
pub(super) struct BadQuery(Problem);

/// The master cannot serve the request now, for example because the store does not answer. Try again later.
#[derive(IntoResponses)]
#[response(
    status = 503,
    content_type = "application/problem+json",
    headers(("Retry-After" = u32, description = "Seconds to wait before the next try"))
)]
#[expect(dead_code, reason = "read by the derive alone")]
pub(super) struct Down(Problem);

/// Returns this description. All masters of a version return the same description. No token is needed.
#[utoipa::path(
    get,
    path = routes::OPENAPI,
    responses((status = 200, description = "An OpenAPI 3.1 document", body = Object, content_type = "application/json")),
    security(()),
)]
pub(super) async fn openapi(State(state): State<AppState>) -> impl IntoResponse {
    let document: Bytes = state.openapi;
    ([(header::CONTENT_TYPE, "application/json")], document)
}
