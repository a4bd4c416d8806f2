//! The OpenAPI document. Each route is described beside its handler. This file contains the parts that routes share.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use protocol::error::{PROBLEM_JSON, Problem};
use protocol::routes;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr};
use utoipa::{IntoResponses, Modify};

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
    components(schemas(Problem)),
    modifiers(&TokenScheme),
)]
pub(super) struct ApiDocument;

struct TokenScheme;

impl Modify for TokenScheme {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
        let scheme = scheme.description(Some("The token of --token-file, if the master has one"));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme.build()));
    }
}

/// Adds the errors of the guard to every operation.
pub(super) fn describe_guard(document: &mut OpenApi) {
    for operation in operations(document) {
        operation.responses.responses.extend(NotLetIn::responses());
    }
}

/// Describes the body of each error: it is a problem, unless the route describes another body.
pub(super) fn describe_problems(document: &mut OpenApi) {
    for operation in operations(document) {
        for (status, response) in &mut operation.responses.responses {
            if let RefOr::T(error) = response
                && status.starts_with(['4', '5'])
                && error.content.is_empty()
            {
                let problem = Content::new(Some(Ref::from_schema_name("Problem")));
                error.content.insert(PROBLEM_JSON.to_owned(), RefOr::T(problem));
            }
        }
    }
}

fn operations(document: &mut OpenApi) -> impl Iterator<Item = &mut Operation> {
    let items = document.paths.paths.values_mut();
    items.flat_map(|item| [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete]).flatten()
}

/// Any bytes.
#[derive(utoipa::ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "read by the derive alone")]
pub(super) struct Octets(Vec<u8>);

/// The errors of the guard.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "read by the derive alone")]
enum NotLetIn {
    /// The token is missing or wrong.
    #[response(status = 401)]
    NoToken,
    /// The master has no token, and the request comes from a browser or names another host.
    #[response(status = 403)]
    Browser,
}

/// No job has this name, or the name is invalid.
#[derive(IntoResponses)]
#[response(status = 404)]
pub(super) struct NoSuchJob;

/// The errors of a request's body.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "read by the derive alone")]
pub(super) enum BadBody {
    /// The body is cut off, or is sent with Transfer-Encoding.
    #[response(status = 400)]
    CutOff,
    /// The body arrives too slowly.
    #[response(status = 408)]
    Slow,
    /// The body is too long.
    #[response(status = 413)]
    Long,
}

/// A parameter is unknown or malformed, or cannot be combined with another parameter.
#[derive(IntoResponses)]
#[response(status = 400)]
pub(super) struct BadQuery;

/// The master cannot serve the request now, for example because the store does not answer. Try again later.
#[derive(IntoResponses)]
#[response(
    status = 503,
    headers(("Retry-After" = u32, description = "Seconds to wait before the next try"))
)]
pub(super) struct Down;

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
