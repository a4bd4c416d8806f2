//! Whether an image can train: a user that pods may run as, exec.py in its working directory, python on its PATH. A container that is made for it
//! and never started lets the engine look, which takes hundredths of a second whatever the size of the image.

use bollard::errors::Error as EngineError;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::engine::{Engine, refused};
use super::error::ImageError;
use super::layer::{AGENT_PATH, Base};
use super::{Users, unless_stopped};
use crate::request::SCRIPT;

const PYTHON: &str = "python";
/// What programs are looked for in when an image does not say (moby, `oci/defaults.go`).
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The bit by which Go marks a folder in a file's mode (io/fs, `ModeDir`).
const GO_MODE_DIR: u32 = 1 << 31;

/// Refuses an image that Kubernetes would not run as it is. It knows no names, and takes whom it does not know for root
/// (kubelet, `verifyRunAsNonRoot`); a group behind the user does not matter.
pub(super) fn user(base: &Base, name: &str, users: Users) -> Result<(), ImageError> {
    let named = base.config.get("User").and_then(Value::as_str).unwrap_or_default();
    let is_root = |user: &str| matches!(user, "" | "root") || user.parse() == Ok(0_u32);
    let image = name.to_owned();
    match (users, named.split(':').next().unwrap_or_default()) {
        (Users::All, _) => Ok(()),
        (Users::KnownNotRoot, user) if is_root(user) => Err(ImageError::Root(image)),
        (Users::KnownNotRoot, user) if user.parse::<u32>().is_ok() => Ok(()),
        (Users::KnownNotRoot, user) => Err(ImageError::UserByName { image, user: user.to_owned() }),
    }
}

/// A container that serves to look into an image.
pub(super) struct LookContainer<'a> {
    engine: &'a Engine,
    name: String,
}

/// Refuses an image whose pods could not run exec.py. `name` is what the user calls it. The container that was looked into
/// is the caller's to remove, which may take its time.
pub(super) async fn check<'a>(
    engine: &'a Engine,
    base: &Base,
    name: &str,
    stop: &CancellationToken,
) -> Result<LookContainer<'a>, ImageError> {
    let container = format!("muster-look-{}", uuid::Uuid::new_v4().simple());
    let options = CreateContainerOptionsBuilder::default().name(&container).build();
    let body = ContainerCreateBody {
        image: Some(base.id.clone()),
        // An image without a command is refused, and this one need not exist.
        entrypoint: Some(vec![AGENT_PATH.to_owned()]),
        ..ContainerCreateBody::default()
    };
    let doing = format!("look into {name}");
    // Not given up half way, so that the container that it makes is always known to be there.
    engine.docker.create_container(Some(options), body).await.map_err(refused(&doing))?;
    let outcome = unless_stopped(stop, look(engine, &container, base, name)).await;
    let container = LookContainer { engine, name: container };
    match outcome {
        Ok(()) => Ok(container),
        Err(refusal) => {
            // The refusal says more than what else goes wrong.
            let _ = container.remove().await;
            Err(refusal)
        }
    }
}

impl LookContainer<'_> {
    /// Removes it.
    pub(super) async fn remove(self) -> Result<(), ImageError> {
        let Self { engine, name } = self;
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let removed = engine.docker.remove_container(&name, Some(options)).await;
        removed.map_err(refused(&format!("remove the container {name}")))
    }
}

async fn look(engine: &Engine, container: &str, base: &Base, name: &str) -> Result<(), ImageError> {
    let folder = working_directory(base);
    if !is_file(engine, container, &in_folder(&folder, SCRIPT)).await? {
        return Err(ImageError::NoScript { image: name.to_owned(), folder });
    }
    let path = search_path(base);
    for program in path.split(':').filter(|folder| !folder.is_empty()).map(|folder| in_folder(folder, PYTHON)) {
        if is_file(engine, container, &program).await? {
            return Ok(());
        }
    }
    Err(ImageError::NoPython { image: name.to_owned(), path })
}

async fn is_file(engine: &Engine, container: &str, path: &str) -> Result<bool, ImageError> {
    let options = ContainerArchiveInfoOptionsBuilder::default().path(path).build();
    match engine.docker.get_container_archive_info(container, Some(options)).await {
        Ok(found) => Ok(found.file_mode & GO_MODE_DIR == 0),
        Err(EngineError::DockerResponseServerError { status_code: 404, .. }) => Ok(false),
        Err(error) => Err(refused(&format!("look for {path}"))(error)),
    }
}

fn working_directory(base: &Base) -> String {
    let named = base.config.get("WorkingDir").and_then(Value::as_str).filter(|folder| !folder.is_empty());
    named.unwrap_or("/").to_owned()
}

fn search_path(base: &Base) -> String {
    let variables = base.config.get("Env").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let path = variables.filter_map(|variable| variable.strip_prefix("PATH=")).next_back();
    path.unwrap_or(DEFAULT_PATH).to_owned()
}

fn in_folder(folder: &str, file: &str) -> String {
    format!("{}/{file}", folder.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(config: Value) -> Base {
        let Value::Object(config) = config else { panic!("no object") };
        let text = String::new;
        Base { id: text(), architecture: text(), variant: None, os: text(), created: None, config, layers: vec![] }
    }

    #[test]
    fn an_image_that_says_nothing_works_at_its_root_with_dockers_path() {
        let silent = base(serde_json::json!({ "WorkingDir": "", "Env": ["LANG=C"] }));
        assert_eq!(working_directory(&silent), "/");
        assert_eq!(in_folder(&working_directory(&silent), SCRIPT), "/exec.py");
        assert_eq!(search_path(&silent), DEFAULT_PATH);
    }

    #[test]
    fn only_a_number_other_than_0_is_known_not_to_be_root() {
        let of = |user: &str, users| {
            self::user(&base(serde_json::json!({ "User": user })), "digits", users).map_err(|error| error.to_string())
        };
        for user in ["1000", "65532:65532", "1000:trainers", "1000:0"] {
            assert_eq!(of(user, Users::KnownNotRoot), Ok(()), "{user}");
        }
        for user in ["", "0", "00", "root", "0:1000", "root:root", ":1000"] {
            assert_eq!(of(user, Users::KnownNotRoot).unwrap_err(), "the image digits runs as root", "{user}");
        }
        let named = of("trainer:1000", Users::KnownNotRoot).unwrap_err();
        assert!(named.starts_with("the image digits runs as the user \"trainer\", and "), "{named}");
        assert!(user(&base(serde_json::json!({})), "digits", Users::KnownNotRoot).is_err());
        for user in ["", "root", "trainer"] {
            assert_eq!(of(user, Users::All), Ok(()), "{user}");
        }
    }

    #[test]
    fn the_working_directory_and_the_path_are_the_images_own() {
        let own = base(serde_json::json!({ "WorkingDir": "/work/", "Env": ["PATH=/opt/bin:/bin", "A=b"] }));
        assert_eq!(in_folder(&working_directory(&own), SCRIPT), "/work/exec.py");
        assert_eq!(search_path(&own), "/opt/bin:/bin");
    }
}
