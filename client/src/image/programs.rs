//! Finds the ENTRYPOINT, CMD and USER of images: in this machine's Docker, or else in the registry of each image.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use docker_credential::DockerCredential;
use futures_util::future::join_all;
use image_program::{Login, LookUpError, PlainHosts, Registries};
use master_client::root_cause;
use protocol::image::{Entrypoint, ImageRef};
use serde_json::{Map, Value};

use super::engine::Engine;
use super::names::login_server;
use super::registry::stored_login;
use crate::address::config::ImageConfig;
use crate::output::Notes;

/// Maximum number of retries if a registry does not answer.
const RETRIES: usize = 2;
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Returns ENTRYPOINT, CMD and USER of each image. Leaves out images whose program cannot be found, and says why.
pub(crate) async fn programs(
    images: &BTreeSet<String>,
    config: &ImageConfig,
    notes: &Notes,
) -> BTreeMap<String, Entrypoint> {
    let mut known = BTreeMap::new();
    if images.is_empty() {
        return known;
    }
    let named: BTreeMap<&String, ImageRef> =
        images.iter().filter_map(|image| Some((image, image.parse().ok()?))).collect();
    // Without Docker, the registries are asked. Their errors say what to do.
    if let Ok(engine) = Engine::connect(&config.docker).await {
        for (image, name) in &named {
            if let Ok(Some(found)) = engine.inspect(name).await {
                known.insert((*image).clone(), program(&found.base.config));
            }
        }
    }
    let registries = match Registries::new(PlainHosts::with_loopback(config.plain_registries.clone())) {
        Ok(registries) => registries,
        Err(error) => {
            notes.say(&format!("{error}: {}", root_cause(&error)));
            return known;
        }
    };
    let others = named.into_iter().filter(|(image, _)| !known.contains_key(*image));
    let look_ups: Vec<_> = others
        .map(|(image, name)| {
            let registries = &registries;
            async move { (image, in_registry(registries, &name, config, notes).await) }
        })
        .collect();
    for (image, found) in join_all(look_ups).await {
        match found {
            Ok(program) => drop(known.insert(image.clone(), program)),
            Err(reason) => notes.say(&format!(
                "image {image}: its program is unknown: {reason}; add the field `command` to its containers"
            )),
        }
    }
    known
}

/// The program of an image in its registry, with the user's login for this registry.
async fn in_registry(
    registries: &Registries,
    image: &ImageRef,
    config: &ImageConfig,
    notes: &Notes,
) -> Result<Entrypoint, String> {
    let stored = stored_login(image, config.docker.folder.as_deref(), notes).await;
    let login = match stored.map_err(|error| error.to_string())? {
        Some(DockerCredential::UsernamePassword(user, password)) => Some(Login { user, password }),
        Some(DockerCredential::IdentityToken(_)) => {
            let server = login_server(image);
            return Err(format!("the login for {server} is an identity token, which only Docker can use"));
        }
        None => None,
    };
    let pauses = ExponentialBuilder::new().with_min_delay(RETRY_PAUSE).with_max_times(RETRIES);
    let look_up = || registries.program(image, login.as_ref());
    let found = look_up.retry(pauses).when(|error| matches!(error, LookUpError::Passing { .. })).await;
    found.map_err(|error| error.to_string())
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
