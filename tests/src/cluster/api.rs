//! Requests to the API of the cluster in KUBECONFIG. This process sends them itself, without kubectl, because each
//! start of kubectl takes a tenth of a second of processor time.

use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use hyper::{Method, Request};
use kube::Client;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Maximum time of a request.
const LIMIT: Duration = Duration::from_secs(60);

/// The connection, and the runtime on which it works.
static API: LazyLock<(Runtime, Client)> = LazyLock::new(|| {
    // Fails if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("cannot create a runtime");
    let client = runtime.block_on(Client::try_default()).expect("KUBECONFIG names no cluster");
    (runtime, client)
});

/// Sends a request with this JSON body, and returns the object or the list in the answer. `path` may have a query.
///
/// # Errors
/// The error of the API.
pub(super) fn request(method: Method, path: &str, body: Option<&Value>) -> Result<Value, kube::Error> {
    let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
    let request = Request::builder().method(method).uri(path).header("Content-Type", "application/json").body(body);
    let request = request.expect("the path is not valid");
    let send = || {
        API.0
            .block_on(async { timeout(LIMIT, API.1.request(request)).await })
            .expect("the API has not answered in time")
    };
    // The thread of an async test cannot wait for another runtime, so a new thread sends the request.
    thread::scope(|scope| scope.spawn(send).join()).expect("the thread of the request has panicked")
}
