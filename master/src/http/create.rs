//! `GET /create`: a submit by query parameters, as the first prototype's client sends it.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use protocol::error::ErrorCode;
use protocol::ids::JobName;
use protocol::image::{BadImageRef, ImageRef};
use protocol::job::{JobRequest, JobSpec, Strategy};
use protocol::pod::PodOptions;
use protocol::routes;
use protocol::view::JobView;

use super::AppState;
use super::error::ApiError;
use super::jobs::accepted;
use super::openapi::Down;

/// The names of each parameter. If the first prototype and Muster use different names, the prototype's name is first.
const STRATEGY: [&str; 1] = ["strategy"];
const WORKERS: [&str; 2] = ["n_worker", "worker_num"];
const SERVERS: [&str; 2] = ["n_ps", "ps_num"];
const CHIEFS: [&str; 1] = ["chief_num"];
const IMAGE: [&str; 2] = ["img", "image"];
const NAME: [&str; 2] = ["name", "task"];
const ALLOW_ROOT: [&str; 1] = ["allow_root"];

/// The parameters, only for the API's description. `parse` reads the query itself, because some parameters have two
/// names.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by the derive alone")]
struct CreateQuery {
    /// The job's name. Alternative name: `task`.
    name: JobName,
    /// `AllReduce`, or `ParameterServer` (short: `ps`). Case does not matter.
    #[param(
        pattern = "^([Aa][Ll][Ll][Rr][Ee][Dd][Uu][Cc][Ee]|[Pp][Aa][Rr][Aa][Mm][Ee][Tt][Ee][Rr][Ss][Ee][Rr][Vv][Ee][Rr]|[Pp][Ss])$"
    )]
    strategy: String,
    /// Number of workers, 2 by default. Alternative name: `worker_num`.
    #[param(minimum = 1, maximum = 5457)]
    n_worker: Option<u32>,
    /// Number of parameter servers; default 1 with ParameterServer, else 0. Alternative name: `ps_num`.
    #[param(minimum = 0, maximum = 5457)]
    n_ps: Option<u32>,
    /// Number of chiefs, 0 by default.
    #[param(minimum = 0, maximum = 1)]
    chief_num: Option<u32>,
    /// The image, only if pods are containers. Alternative name: `image`.
    img: Option<ImageRef>,
    /// Whether the image may run as root, true by default; only with an image.
    allow_root: Option<bool>,
}

/// Submits a job by query parameters, as the first prototype's client does. The answer comes when the job is on record,
/// before the job has started. Each parameter may occur once, under one of its names. Unknown parameters are refused.
#[utoipa::path(
    get,
    path = routes::CREATE,
    params(CreateQuery),
    responses(
        (status = 200, description = "The job is on record, now or from an earlier submit", body = JobView),
        (status = 400, description = "A parameter is missing, unknown or wrong, or the job cannot run here"),
        (status = 409, description = "Another job has this name, or the record of this name cannot be read"),
        Down,
    ),
)]
pub(super) async fn create(
    State(state): State<AppState>,
    RawQuery(query): RawQuery,
) -> Result<Json<JobView>, ApiError> {
    let as_seed = |error| ApiError::from(error).with_status(StatusCode::UNPROCESSABLE_ENTITY, StatusCode::BAD_REQUEST);
    let spec = parse(&query.unwrap_or_default())?;
    let submitted = state.jobs.requests.submit(spec).await.map_err(as_seed)?;
    // The prototype's client accepts only 200 as success.
    let (_, view) = accepted(submitted);
    Ok(Json(view))
}

pub(super) fn parse(query: &str) -> Result<JobSpec, ApiError> {
    let bad = |code, detail: String| ApiError::new(StatusCode::BAD_REQUEST, code, detail);
    let known = [&STRATEGY[..], &WORKERS, &SERVERS, &CHIEFS, &IMAGE, &NAME, &ALLOW_ROOT];
    let mut values = known.map(|_| None);
    for (key, value) in form_urlencoded::parse(query.as_bytes()).into_owned() {
        let Some(place) = known.iter().position(|names| names.contains(&key.as_str())) else {
            let detail = format!(
                "parameter \"{key}\" is unknown: use strategy, n_worker, n_ps, chief_num, img, allow_root and name"
            );
            return Err(bad(ErrorCode::BadRequest, detail));
        };
        if values[place].replace(value).is_some() {
            return Err(bad(
                ErrorCode::BadRequest,
                format!("parameter \"{key}\" is given twice, perhaps under two names"),
            ));
        }
    }
    let [strategy, workers, servers, chiefs, image, name, allow_root] = values;
    let image = image.filter(|image| !image.is_empty());
    let name = name.ok_or_else(|| bad(ErrorCode::BadTask, "parameter \"name\" is missing".to_owned()))?;
    let strategy =
        strategy.ok_or_else(|| bad(ErrorCode::BadStrategy, "parameter \"strategy\" is missing".to_owned()))?;
    let number = |what: &str, value: Option<String>, code| {
        let wrong = |text| bad(code, format!("{what} \"{text}\" is not a whole number from 0 to {}", u32::MAX));
        value.map(|text| text.parse::<u32>().map_err(|_| wrong(text))).transpose()
    };
    let allow_root = match allow_root.as_deref() {
        // The prototype's images run as root, and its client cannot send this parameter.
        None => image.is_some(),
        Some("true") => true,
        Some("false") => false,
        Some(other) => {
            return Err(bad(ErrorCode::BadPod, format!("allow_root \"{other}\" is neither true nor false")));
        }
    };
    let bad_image = |error: BadImageRef| bad(ErrorCode::BadImage, error.to_string());
    let name = name.parse::<JobName>().map_err(|error| bad(ErrorCode::BadTask, error.to_string()))?;
    let strategy = strategy.parse::<Strategy>().map_err(|error| bad(error.code(), error.to_string()))?;
    let request = JobRequest {
        worker_num: number("n_worker", workers, ErrorCode::BadWorkerNum)?,
        ps_num: number("n_ps", servers, ErrorCode::BadPsNum)?,
        // The prototype's jobs have no chief, so a script for the prototype expects none.
        chief_num: number("chief_num", chiefs, ErrorCode::BadChiefNum)?.or(Some(0)),
        image: image.map(|image| image.parse()).transpose().map_err(bad_image)?,
        pod: PodOptions { allow_root, ..PodOptions::default() },
        ..JobRequest::new(name, strategy)
    };
    JobSpec::try_from(request).map_err(|error| bad(error.code(), error.to_string()))
}
