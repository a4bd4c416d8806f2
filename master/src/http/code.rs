//! `/v1/code` receives the code that jobs bring. A caller sends the manifest first, and then the missing blobs.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use futures_util::StreamExt;
use listener::ConnectionSeat;
use protocol::code::{CodeId, Manifest, MissingBlobs, Sha256};
use protocol::error::ErrorCode;
use protocol::routes;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use super::AppState;
use super::error::ApiError;
use super::openapi::{BadBody, Down, Octets};
use super::request::parsed_body;
use crate::code::{CodeError, CodeStore, Piece};

/// Maximum uploads of blobs at a time. Further uploads wait.
const UPLOADS_AT_ONCE: usize = 16;
/// Maximum time of an upload. The master removes unused code only after a longer time.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Maximum time between two pieces of an upload.
const PIECE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an upload may be slower than [`RATE_MIN`].
const FREE_TIME: Duration = Duration::from_secs(10);
/// Minimum average bytes per second of an upload. A slower upload is refused after [`FREE_TIME`].
const RATE_MIN: u64 = 16 * 1024;
/// Maximum pieces of an upload that wait for the disk.
const PIECES_AHEAD: usize = 8;

static TURNS: Semaphore = Semaphore::const_new(UPLOADS_AT_ONCE);

/// Receives the manifest of a job's code. Answers with the blobs that the master does not have yet. Code that no job
/// uses is removed after 10 minutes.
#[utoipa::path(
    put,
    path = routes::CODE,
    params(("id" = CodeId, Path, description = "The manifest's id")),
    request_body(content = Manifest, description = "At most 8 MiB, within 10 seconds"),
    responses(
        (status = 200, description = "The master has the manifest, but not these blobs", body = MissingBlobs),
        (status = 422, description = "The manifest is invalid, or the id in the path is not the manifest's"),
        (status = 507, description = "No room for this code"),
        BadBody,
        Down,
    ),
)]
pub(super) async fn put_manifest(
    State(state): State<AppState>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Json<MissingBlobs>, ApiError> {
    let id = parse_id(id)?;
    let manifest: Manifest = parsed_body(request, "a manifest").await?;
    answered(state.jobs.code(), move |code| code.offer(id, &manifest)).await
}

/// Receives blobs of a job's code: for each blob, the 32 bytes of its SHA-256 and then its content. The blobs may come
/// in any order, each at most once. After an error, the master keeps no blob of this request. Answers with the
/// blobs that are still missing.
#[utoipa::path(
    put,
    path = routes::CODE_BLOBS,
    params(("id" = CodeId, Path, description = "The manifest's id")),
    request_body(content = inline(Octets), content_type = "application/octet-stream",
        description = "The blobs, within 5 minutes, without a pause of more than 10 seconds, and after 10 seconds with an \
            average of at least 16 KiB per second"),
    responses(
        (status = 200, description = "The blobs were stored; these are still missing", body = MissingBlobs),
        (status = 404, description = "The master does not have the manifest"),
        (status = 422, description = "The id or the stream is invalid, for example because a blob does not match its \
            SHA-256"),
        (status = 507, description = "No room for this code"),
        BadBody,
        Down,
    ),
)]
pub(super) async fn put_blobs(
    State(state): State<AppState>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Json<MissingBlobs>, ApiError> {
    let id = parse_id(id)?;
    let _awaited = request.extensions().get::<Arc<ConnectionSeat>>().map(ConnectionSeat::awaited);
    let receive = async {
        let _turn = TURNS.acquire().await;
        let (sender, mut pieces) = mpsc::channel(PIECES_AHEAD);
        let received = answered(state.jobs.code(), move |code| code.receive(id, || pieces.blocking_recv()));
        // If the blobs are refused, `send` ends early without an error, and the refusal is the answer.
        let (sent, received) = tokio::join!(send(request.into_body(), sender), received);
        sent.and(received)
    };
    timeout(UPLOAD_TIMEOUT, receive).await.unwrap_or_else(|_| Err(too_slow()))
}

/// Sends the body to the thread that writes it. Returns early if that thread stops reading.
async fn send(body: Body, to: mpsc::Sender<Piece>) -> Result<(), ApiError> {
    let mut body = body.into_data_stream();
    let (mut received, mut waited) = (0, Duration::ZERO);
    loop {
        let asked = Instant::now();
        let piece = timeout(PIECE_TIMEOUT, body.next()).await;
        // Include only the wait for the caller, and not the wait for the disk below.
        waited += asked.elapsed();
        let piece = match piece {
            Ok(Some(Ok(bytes))) => {
                received += bytes.len() as u64;
                if is_slow(received, waited) {
                    return Err(too_slow());
                }
                Piece::Bytes(bytes)
            }
            Ok(None) => Piece::End,
            Ok(Some(Err(error))) => {
                let detail = format!("the body cannot be read: {error}");
                return Err(ApiError::new(StatusCode::BAD_REQUEST, ErrorCode::BadRequest, detail));
            }
            Err(_) => return Err(too_slow()),
        };
        let is_end = matches!(piece, Piece::End);
        if to.send(piece).await.is_err() || is_end {
            return Ok(());
        }
    }
}

/// Whether a caller sends too slowly to keep its turn. `waited` is how long the master has waited for `received` bytes.
fn is_slow(received: u64, waited: Duration) -> bool {
    waited > FREE_TIME && received < RATE_MIN * waited.as_secs()
}

/// Runs `work` on a blocking thread, and answers with the blobs that are then missing.
async fn answered(
    code: &Arc<CodeStore>,
    work: impl FnOnce(&CodeStore) -> Result<Vec<Sha256>, CodeError> + Send + 'static,
) -> Result<Json<MissingBlobs>, ApiError> {
    let code = Arc::clone(code);
    let done = spawn_blocking(move || work(&code)).await;
    let missing = done.unwrap_or_else(|error| Err(CodeError::Disk(std::io::Error::other(error))))?;
    Ok(Json(MissingBlobs { missing }))
}

fn too_slow() -> ApiError {
    let detail =
        "the blobs arrived too slowly: send all within 5 minutes, at least 16 KiB per second, and never pause 10 s";
    ApiError::new(StatusCode::REQUEST_TIMEOUT, ErrorCode::BadRequest, detail)
}

fn parse_id(id: Result<Path<String>, PathRejection>) -> Result<CodeId, ApiError> {
    let bad = |detail: String| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::BadCode, detail);
    // The path may contain bytes that are not UTF-8.
    let Path(id) = id.map_err(|error| bad(error.body_text()))?;
    id.parse().map_err(|error| bad(format!("invalid id of code: {error}")))
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use axum::response::IntoResponse;
    use futures_util::stream;
    use tokio::time::sleep;

    use super::*;

    #[test]
    fn after_10_seconds_an_upload_is_slow_if_its_average_is_below_the_minimum() {
        let seconds = Duration::from_secs;
        assert!(!is_slow(1, seconds(10)), "an upload was judged as slow within its first 10 s");
        assert!(is_slow(11 * RATE_MIN - 1, seconds(11)));
        assert!(!is_slow(11 * RATE_MIN, seconds(11)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_of_a_byte_per_second_is_refused_after_11_seconds() {
        let drip = stream::unfold((), |()| async {
            sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        });
        let (sender, mut pieces) = mpsc::channel(PIECES_AHEAD);
        let read = async { while pieces.recv().await.is_some() {} };
        let begun = Instant::now();
        let (sent, ()) = tokio::join!(send(Body::from_stream(drip), sender), read);
        let refused = sent.expect_err("an upload of one byte per second was accepted").into_response();
        assert_eq!((refused.status(), begun.elapsed().as_secs()), (StatusCode::REQUEST_TIMEOUT, 11));
    }
}
