//! Tests of the look-up, with registries in this process and with docker-registry.

mod bad;
mod good;
mod memory;
mod registry;

use image_program::{Login, LookUpError, PlainHosts, Registries};
use protocol::image::Entrypoint;
use serde_json::json;
use testkit::registry::TestImage;

fn registries() -> Registries {
    Registries::new(PlainHosts::with_loopback(vec![])).expect("no HTTP client")
}

async fn program(image: &str, login: Option<&Login>) -> Result<Entrypoint, LookUpError> {
    registries().program(&image.parse().expect("not an image"), login).await
}

fn login() -> Login {
    Login { user: "team".to_owned(), password: "secret".to_owned() }
}

/// The header with this login.
const BASIC: &str = "Basic dGVhbTpzZWNyZXQ=";

/// An image that runs this program.
fn running(program: &str) -> TestImage {
    TestImage::new(&json!({ "Entrypoint": [program] }))
}

/// This machine's platform.
const HERE: &str = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };

fn entrypoint(command: &[&str], args: &[&str], user: &str) -> Entrypoint {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Entrypoint { command: words(command), args: words(args), user: user.to_owned() }
}
