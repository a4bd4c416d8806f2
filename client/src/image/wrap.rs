//! The image that pods run, made from a training image: the agent in a layer on top. One that is there already is
//! recognised by its labels and left alone.

use std::time::Instant;

use bollard::body_full;
use bollard::query_parameters::ImportImageOptionsBuilder;
use futures_util::StreamExt;
use protocol::image::ImageRef;
use tokio_util::sync::CancellationToken;

use super::agent::{AgentProgram, AgentSources};
use super::engine::{Engine, Listed, reason};
use super::error::ImageError;
use super::layer::{self, Base, Target};
use super::names::{listed, listed_repository, short};
use super::{Users, build, check, registry, unless_stopped};
use crate::output::{Notes, spelled};

/// Makes sure that the engine has the image that pods run, by both of its names.
pub(super) async fn wrap(
    engine: &Engine,
    (image, users): (&ImageRef, Users),
    agents: &AgentSources,
    (stop, notes): (&CancellationToken, &Notes),
) -> Result<Target, ImageError> {
    let alias = image.of_pods();
    let (of_base, of_pods) = (listed(image), listed_repository(&alias));
    let agent = unless_stopped(stop, agents.find(notes)).await?;
    let mut known = unless_stopped(stop, engine.list([&of_base, of_pods])).await?;
    if find(&known, image).is_none() {
        pull(engine, image, (stop, notes)).await?;
        known = unless_stopped(stop, engine.list([&of_base, of_pods])).await?;
    }
    let begun = Instant::now();
    let name = short(image);
    let missing = || ImageError::NotFound { image: name.clone(), reason: "it is gone after the pull".to_owned() };
    let base_id = find(&known, image).map(|listed| listed.id.clone()).ok_or_else(missing)?;
    let base = unless_stopped(stop, engine.inspect(&base_id)).await?;
    check::user(&base, &name, users)?;
    let target = Target::new(image, &base_id, &agent.sha256);
    if unless_stopped(stop, is_there(engine, &known, &target)).await? {
        notes.say(&format!("image {}: up to date", short(&alias)));
        return Ok(target);
    }
    notes.show_step(&format!("image {}: wrapping", short(&alias)));
    let agent = unless_stopped(stop, agents.fitting(agent, (&name, &base.architecture))).await?;
    let target = Target::new(image, &base_id, &agent.sha256);
    if unless_stopped(stop, is_there(engine, &known, &target)).await? {
        notes.say(&format!("image {}: up to date", short(&alias)));
        return Ok(target);
    }
    put_together(engine, (&base, &name), &agent, &target, (stop, notes)).await?;
    notes.say(&format!("image {}: wrapped in {}", short(&alias), spelled(begun.elapsed())));
    Ok(target)
}

/// Looks into the base, and then makes the image: one that has its name is taken for good from then on. The two at once
/// would save little, and leave a nameless image where the base is refused; to remove the container that was looked into
/// takes its time, and need not be waited for before.
async fn put_together(
    engine: &Engine,
    (base, name): (&Base, &str),
    agent: &AgentProgram,
    target: &Target,
    (stop, notes): (&CancellationToken, &Notes),
) -> Result<(), ImageError> {
    let container = check::check(engine, base, name, stop).await?;
    let made = unless_stopped(stop, make(engine, base, agent, target, notes));
    let (removed, made) = tokio::join!(container.remove(), made);
    // The image is none the worse for it.
    if let Err(error) = removed {
        notes.say(&error.to_string());
    }
    made
}

async fn make(
    engine: &Engine,
    base: &Base,
    agent: &AgentProgram,
    target: &Target,
    notes: &Notes,
) -> Result<(), ImageError> {
    let doing = || format!("pack {}", target.alias);
    let unwritable = |error: std::io::Error| ImageError::Engine { doing: doing(), reason: error.to_string() };
    let archive = layer::archive(base, &agent.bytes, target).map_err(unwritable)?;
    let Err(reason) = load(engine, archive).await else { return Ok(()) };
    notes.say(&format!("image {}: Docker takes no single layer ({reason}); building", short(&target.alias)));
    build::wrap(engine, base, target, &agent.bytes, notes).await
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

/// Whether the engine has what wrapping would make; if so, by both names from then on.
async fn is_there(engine: &Engine, known: &[Listed], target: &Target) -> Result<bool, ImageError> {
    let Some(current) = current(known, target) else { return Ok(false) };
    for name in [&target.content, &target.alias] {
        if !current.names.contains(&listed(name)) {
            engine.tag(&current.id, name).await?;
        }
    }
    Ok(true)
}

/// What wrapping would make, under either of its names. A name alone proves nothing, since anyone can give it away.
fn current<'a>(known: &'a [Listed], target: &Target) -> Option<&'a Listed> {
    let is_same = |image: &&Listed| target.labels.iter().all(|(name, value)| image.labels.get(*name) == Some(value));
    [&target.content, &target.alias].into_iter().filter_map(|name| find(known, name)).find(is_same)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn image(name: &str) -> ImageRef {
        name.parse().unwrap()
    }

    fn known(id: &str, name: &str, labels: &BTreeMap<&str, String>) -> Listed {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Listed { id: id.to_owned(), names: vec![name.to_owned()], labels }
    }

    #[test]
    fn an_image_is_current_when_it_is_of_this_base_and_this_agent_under_either_name() {
        let of = |base: &str, agent: &str| Target::new(&image("digits"), base, agent);
        let now = of("sha256:base", "sha256:agent");
        let content = now.content.to_string();
        for (name, labels, is_current) in [
            ("digits_pod:latest", &now.labels, true),
            (&content, &now.labels, true),
            ("digits_pod:latest", &of("sha256:other", "sha256:agent").labels, false),
            ("digits_pod:latest", &of("sha256:base", "sha256:other").labels, false),
            (&content, &BTreeMap::new(), false),
            ("digits_pod:1", &now.labels, false),
        ] {
            assert_eq!(current(&[known("x", name, labels)], &now).is_some(), is_current, "{name} {labels:?}");
        }
        assert!(current(&[], &now).is_none());
    }

    #[test]
    fn the_image_named_by_its_content_is_found_beside_an_older_one_with_the_alias() {
        let now = Target::new(&image("digits"), "sha256:base", "sha256:agent");
        let older = known("older", "digits_pod:latest", &BTreeMap::new());
        let list = [older, known("now", &now.content.to_string(), &now.labels)];
        assert_eq!(current(&list, &now).unwrap().id, "now");
    }

    #[test]
    fn an_image_is_found_by_the_whole_of_its_name() {
        let list = [known("a", "digits:1", &BTreeMap::new()), known("b", "digits:latest", &BTreeMap::new())];
        assert_eq!(find(&list, &image("docker.io/library/digits")).unwrap().id, "b");
        assert_eq!(find(&list, &image("digits:1")).unwrap().id, "a");
        assert!(find(&list, &image("digits:2")).is_none());
    }
}
