//! Registries of images: a registry in this process, whose answers a test chooses, and Debian's docker-registry.

mod fake;
mod real;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub use self::fake::{FakeAnswer, FakeRegistry, Received, Stops};
pub use self::real::{RealRegistry, Secured};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// The digest of these bytes.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// An image without layers.
pub struct TestImage {
    /// The image's configuration.
    pub config: Vec<u8>,
    /// The manifest.
    pub manifest: Vec<u8>,
}

impl TestImage {
    /// An image for Linux. `config` is the part of its configuration with ENTRYPOINT, CMD and USER.
    pub fn new(config: &Value) -> Self {
        let config =
            json!({ "architecture": "amd64", "os": "linux", "config": config, "rootfs": { "type": "layers" } });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "layers": [],
            "config": { "mediaType": CONFIG, "digest": digest(&config), "size": config.len() },
        });
        Self { config, manifest: manifest.to_string().into_bytes() }
    }

    /// The digest of the manifest.
    pub fn digest(&self) -> String {
        digest(&self.manifest)
    }
}

/// An index with these images, each for a platform such as `linux/amd64`.
pub fn index(images: &[(&str, &TestImage)]) -> Vec<u8> {
    let entries = images.iter().map(|(platform, image)| {
        let (os, architecture) = platform.split_once('/').expect("a platform has a slash");
        let platform = json!({ "os": os, "architecture": architecture });
        json!({ "mediaType": MANIFEST, "digest": image.digest(), "size": image.manifest.len(), "platform": platform })
    });
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries.collect::<Vec<_>>() });
    index.to_string().into_bytes()
}
