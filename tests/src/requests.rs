//! Async requests in code that is not async.

use std::sync::LazyLock;
use std::thread;

use master_client::{MasterClient, Token};
use tokio::runtime::Runtime;

/// The runtime on which connections work.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("cannot create a runtime")
});

/// Waits for an answer.
///
/// # Panics
/// If the request panics.
pub fn wait_for<T: Send>(request: impl Future<Output = T> + Send) -> T {
    // The thread of an async test cannot wait for another runtime, so a new thread does.
    let wait = || RUNTIME.block_on(request);
    thread::scope(|scope| scope.spawn(wait).join()).expect("the thread of the request has panicked")
}

/// A client of the master at this URL. Its first request opens a new connection, so a master that was killed before does
/// not matter.
///
/// # Panics
/// If the URL or the token is invalid.
pub fn client_of(url: &str, token: Option<&str>) -> MasterClient {
    let token: Option<Token> = token.map(|token| token.parse().expect("not a token"));
    MasterClient::new(url.parse().expect("not a URL"), token.as_ref()).expect("cannot set up HTTP")
}
