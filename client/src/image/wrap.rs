//! The image that pods run, made from a training image: the agent in a layer on top. One that is there already is
//! recognised by its labels and left alone.

use std::collections::BTreeMap;
use std::time::Instant;

use bollard::body_full;
use bollard::query_parameters::ImportImageOptionsBuilder;
use futures_util::StreamExt;
use protocol::image::ImageRef;
use tokio_util::sync::CancellationToken;

use super::agent::{AgentProgram, AgentSources};
use super::engine::{Engine, Listed, reason};
use super::error::ImageError;
use super::layer::{self, Base, labels};
use super::names::{listed, short};
use super::{build, check, registry, unless_stopped};
use crate::output::{Notes, spelled};

/// Makes sure that the engine has the image that pods run, and names it.
pub(super) async fn wrap(
    engine: &Engine,
    image: &ImageRef,
    agents: &AgentSources,
    (stop, notes): (&CancellationToken, &Notes),
) -> Result<ImageRef, ImageError> {
    let target = image.of_pods();
    let agent = unless_stopped(stop, agents.find(notes)).await?;
    let mut known = unless_stopped(stop, engine.list([image, &target])).await?;
    if find(&known, image).is_none() {
        pull(engine, image, (stop, notes)).await?;
        known = unless_stopped(stop, engine.list([image, &target])).await?;
    }
    let begun = Instant::now();
    let name = short(image);
    let missing = || ImageError::NotFound { image: name.clone(), reason: "it is gone after the pull".to_owned() };
    let base_id = find(&known, image).map(|listed| listed.id.clone()).ok_or_else(missing)?;
    if is_current(&known, &target, &labels(&base_id, &agent.sha256)) {
        notes.say(&format!("image {}: up to date", short(&target)));
        return Ok(target);
    }
    notes.show_step(&format!("image {}: wrapping", short(&target)));
    let base = unless_stopped(stop, engine.inspect(&base_id)).await?;
    let agent = unless_stopped(stop, agents.fitting(agent, (&name, &base.architecture))).await?;
    if is_current(&known, &target, &labels(&base_id, &agent.sha256)) {
        notes.say(&format!("image {}: up to date", short(&target)));
        return Ok(target);
    }
    put_together(engine, (&base, &name), &agent, &target, (stop, notes)).await?;
    notes.say(&format!("image {}: wrapped in {}", short(&target), spelled(begun.elapsed())));
    Ok(target)
}

/// Looks into the base, and then makes the image: one that has its name is taken for good from then on. The two at once
/// would not be faster, since an engine makes no container while it takes a layer.
async fn put_together(
    engine: &Engine,
    (base, name): (&Base, &str),
    agent: &AgentProgram,
    target: &ImageRef,
    (stop, notes): (&CancellationToken, &Notes),
) -> Result<(), ImageError> {
    check::check(engine, base, name, stop).await?;
    let labels = labels(&base.id, &agent.sha256);
    let unwritable =
        |error: std::io::Error| ImageError::Engine { doing: format!("pack {target}"), reason: error.to_string() };
    let archive = layer::archive(base, &agent.bytes, (target, &labels)).map_err(unwritable)?;
    match unless_stopped(stop, async { Ok(load(engine, archive).await) }).await? {
        Ok(()) => Ok(()),
        Err(reason) => {
            notes.say(&format!("image {}: Docker takes no single layer ({reason}); building", short(target)));
            unless_stopped(stop, build::wrap(engine, base, (target, &labels), &agent.bytes, notes)).await
        }
    }
}

/// Gives the engine an image whose other layers it has. One that keeps its images as registries do refuses, since it
/// wants the archive to be complete.
async fn load(engine: &Engine, tar: Vec<u8>) -> Result<(), String> {
    let options = ImportImageOptionsBuilder::default().quiet(true).build();
    let mut answers = std::pin::pin!(engine.docker.import_image(options, body_full(tar.into()), None));
    while let Some(answer) = answers.next().await {
        answer.map_err(|error| reason(&error))?;
    }
    Ok(())
}

async fn pull(
    engine: &Engine,
    image: &ImageRef,
    (stop, notes): (&CancellationToken, &Notes),
) -> Result<(), ImageError> {
    let begun = Instant::now();
    notes.say(&format!("image {}: not here, pulling it", short(image)));
    unless_stopped(stop, registry::pull(engine, image, notes)).await?;
    notes.say(&format!("image {}: pulled in {}", short(image), spelled(begun.elapsed())));
    Ok(())
}

fn find<'a>(known: &'a [Listed], image: &ImageRef) -> Option<&'a Listed> {
    let name = listed(image);
    known.iter().find(|known| known.names.contains(&name))
}

/// Whether the image of this name is what wrapping would make.
fn is_current(known: &[Listed], target: &ImageRef, labels: &BTreeMap<&str, String>) -> bool {
    let has = |image: &Listed| labels.iter().all(|(name, value)| image.labels.get(*name) == Some(value));
    find(known, target).is_some_and(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str) -> ImageRef {
        name.parse().unwrap()
    }

    fn known(id: &str, name: &str, labels: &BTreeMap<&str, String>) -> Listed {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Listed { id: id.to_owned(), names: vec![name.to_owned()], labels }
    }

    #[test]
    fn an_image_is_current_when_it_is_of_this_base_and_this_agent() {
        let now = labels("sha256:base", "sha256:agent");
        let target = image("digits_pod");
        for (name, of, current) in [
            ("digits_pod:latest", &now, true),
            ("digits_pod:latest", &labels("sha256:other", "sha256:agent"), false),
            ("digits_pod:latest", &labels("sha256:base", "sha256:other"), false),
            ("digits_pod:latest", &BTreeMap::new(), false),
            ("digits_pod:1", &now, false),
        ] {
            assert_eq!(is_current(&[known("sha256:x", name, of)], &target, &now), current, "{name} {of:?}");
        }
        assert!(!is_current(&[], &target, &now));
    }

    #[test]
    fn an_image_is_found_by_the_whole_of_its_name() {
        let list = [known("a", "digits:1", &BTreeMap::new()), known("b", "digits:latest", &BTreeMap::new())];
        assert_eq!(find(&list, &image("docker.io/library/digits")).unwrap().id, "b");
        assert_eq!(find(&list, &image("digits:1")).unwrap().id, "a");
        assert!(find(&list, &image("digits:2")).is_none());
    }
}
