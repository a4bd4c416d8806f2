//! Reads files of an image through a container that is created but never started. Creating the container takes
//! hundredths of a second for an image of any size.

use std::io::Read;

use bollard::container::PathStatResponse;
use bollard::errors::Error as EngineError;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder, DownloadFromContainerOptionsBuilder,
    RemoveContainerOptionsBuilder,
};
use futures_util::TryStreamExt;

use super::engine::{Engine, refused};
use super::layer::AGENT_PATH;
use crate::ending::error::Error;

/// The bit for folders in Go's file modes (io/fs, `ModeDir`).
const GO_MODE_DIR: u32 = 1 << 31;
/// Maximum size of a text file that is read, in bytes.
const TEXT_MAX: i64 = 64 * 1024;

/// A container of an image. The caller must call [`Look::remove`].
pub(super) struct Look<'a> {
    engine: &'a Engine,
    container: String,
}

impl<'a> Look<'a> {
    /// Creates the container from the image with this id. `image` is the image's name for error messages.
    pub(super) async fn into_image(engine: &'a Engine, id: &str, image: &str) -> Result<Self, Error> {
        let container = format!("muster-look-{}", uuid::Uuid::new_v4().simple());
        let options = CreateContainerOptionsBuilder::default().name(&container).build();
        let body = ContainerCreateBody {
            image: Some(id.to_owned()),
            // An engine refuses to create a container without a command, but accepts a command that does not exist.
            entrypoint: Some(vec![AGENT_PATH.to_owned()]),
            ..ContainerCreateBody::default()
        };
        let doing = format!("inspect the files of {image}");
        engine.docker.create_container(Some(options), body).await.map_err(refused(&doing))?;
        Ok(Self { engine, container })
    }

    /// Removes the container.
    pub(super) async fn remove(self) -> Result<(), Error> {
        let Self { engine, container } = self;
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let removed = engine.docker.remove_container(&container, Some(options)).await;
        removed.map_err(refused(&format!("remove the container {container}")))
    }

    /// Whether the path exists and is not a folder.
    pub(super) async fn is_file(&self, path: &str) -> Result<bool, Error> {
        Ok(self.stat(path).await?.is_some_and(|found| !is_folder(&found)))
    }

    /// The text of a small file. `None` if the file does not exist, is larger than [`TEXT_MAX`] or is not UTF-8.
    pub(super) async fn text(&self, path: &str) -> Result<Option<String>, Error> {
        let Some(found) = self.stat(path).await? else { return Ok(None) };
        if found.link_target.is_empty() {
            return self.content(path, &found).await;
        }
        // The engine has followed a chain of links to its end, so the target is not a link.
        match self.stat(&found.link_target).await? {
            Some(target) => self.content(&found.link_target, &target).await,
            None => Ok(None),
        }
    }

    async fn content(&self, path: &str, found: &PathStatResponse) -> Result<Option<String>, Error> {
        if is_folder(found) || found.size > TEXT_MAX {
            return Ok(None);
        }
        let options = DownloadFromContainerOptionsBuilder::default().path(path).build();
        let tar = self.engine.docker.download_from_container(&self.container, Some(options));
        let tar: Vec<u8> = tar.map_ok(|piece| piece.to_vec()).try_concat().await.map_err(refused(&reading(path)))?;
        Ok(only_text(&tar))
    }

    async fn stat(&self, path: &str) -> Result<Option<PathStatResponse>, Error> {
        let options = ContainerArchiveInfoOptionsBuilder::default().path(path).build();
        match self.engine.docker.get_container_archive_info(&self.container, Some(options)).await {
            Ok(found) => Ok(Some(found)),
            Err(EngineError::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(error) => Err(refused(&reading(path))(error)),
        }
    }
}

fn is_folder(found: &PathStatResponse) -> bool {
    found.file_mode & GO_MODE_DIR != 0
}

fn reading(path: &str) -> String {
    format!("look for {path}")
}

/// The text of a tar's only file.
fn only_text(tar: &[u8]) -> Option<String> {
    let mut archive = tar::Archive::new(tar);
    let mut text = String::new();
    archive.entries().ok()?.next()?.ok()?.read_to_string(&mut text).ok()?;
    Some(text)
}
