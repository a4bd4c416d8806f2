//! Requests to the API of the cluster in KUBECONFIG. This process sends them itself, without kubectl, because each
//! start of kubectl takes a tenth of a second of processor time.

use std::sync::LazyLock;
use std::time::Duration;

use hyper::{Method, Request};
use kube::Client;
use serde_json::Value;
use tokio::time::timeout;

use crate::requests::wait_for;

/// Maximum time of a request.
const LIMIT: Duration = Duration::from_secs(60);

/// The connection.
static API: LazyLock<Client> = LazyLock::new(|| {
    // Fails if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    wait_for(Client::try_default()).expect("KUBECONFIG names no cluster")
});

/// Sends a request with this JSON body, and returns the object or the list in the answer. `path` may have a query.
///
/// # Errors
/// The error of the API.
pub(super) fn request(method: Method, path: &str, body: Option<&Value>) -> Result<Value, kube::Error> {
    let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
    let request = Request::builder().method(method).uri(path).header("Content-Type", "application/json").body(body);
    let request = request.expect("the path is not valid");
    let client = &*API;
    wait_for(async { timeout(LIMIT, client.request(request)).await }).expect("the API has not answered in time")
}
