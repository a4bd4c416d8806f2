//! Reads the ENTRYPOINT, CMD and USER of images.

use std::collections::{BTreeMap, BTreeSet};

use protocol::image::ImageRef;
use protocol::tfjob::Entrypoint;
use serde_json::{Map, Value};

use super::engine::Engine;
use super::error::ImageError;
use crate::config::ImageConfig;

/// Returns ENTRYPOINT, CMD and USER of each image. Leaves out invalid names and images that the engine does not have.
pub(crate) async fn programs(
    images: &BTreeSet<String>,
    config: &ImageConfig,
) -> Result<BTreeMap<String, Entrypoint>, ImageError> {
    let mut known = BTreeMap::new();
    if images.is_empty() {
        return Ok(known);
    }
    let engine = Engine::connect(&config.docker).await?;
    for image in images {
        let Ok(name) = image.parse::<ImageRef>() else { continue };
        if let Some(found) = engine.inspect(&name).await? {
            known.insert(image.clone(), program(&found.base.config));
        }
    }
    Ok(known)
}

/// Reads the fields from an image's configuration.
fn program(config: &Map<String, Value>) -> Entrypoint {
    let words = |name: &str| {
        let list = config.get(name).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let user = config.get("User").and_then(Value::as_str).unwrap_or_default();
    Entrypoint { command: words("Entrypoint"), args: words("Cmd"), user: user.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_program_of_an_image_consists_of_entrypoint_and_cmd_and_user() {
        let config = json!({ "Entrypoint": ["python", "/mnist.py"], "Cmd": null, "User": "1000", "Env": [] });
        let command = vec!["python".to_owned(), "/mnist.py".to_owned()];
        let expected = Entrypoint { command, args: vec![], user: "1000".to_owned() };
        assert_eq!(program(config.as_object().unwrap()), expected);
        assert_eq!(program(&Map::new()), Entrypoint::default());
    }
}
