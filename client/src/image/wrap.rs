//! Wraps a training image: adds a layer with the agent on top. The result is the wrapped image. If an image with
//! matching labels exists, uses that image instead.

use std::time::Instant;

use bollard::body_full;
use bollard::query_parameters::ImportImageOptionsBuilder;
use protocol::image::ImageRef;
use serde_json::Value;

use super::agent::{AgentProgram, AgentSources};
use super::check::PodEntrypoint;
use super::engine::{Engine, Inspected, Way, each_answer};
use super::entrypoint::left_out;
use super::layer::{self, Base, Reach, Target, Wrap};
use super::look::Look;
use super::names::{familiar, short};
use super::{Users, Work, build, check, registry};
use crate::ending::error::Error;
use crate::output::{Notes, spelled};

/// Ensures that the engine has the image that pods run, under both names of the [`Target`].
pub(super) async fn wrap(
    work: Work<'_>,
    image: &ImageRef,
    users: Users,
    reach: Reach,
    agents: &AgentSources,
) -> Result<Target, Error> {
    let Work { engine, notes, .. } = work;
    let alias = image.of_pods();
    let name = short(image);
    let agent = work.unless_stopped(agents.find(notes)).await?;
    let base = get(work, image).await?;
    let begun = Instant::now();
    check::user(&base, &name, users)?;
    let agent = work.unless_stopped(agents.fitting(agent, &name, &base.architecture)).await?;
    let target = Target::new(image, &base.id, &agent.sha256, reach);
    if let Some(target) = work.unless_stopped(current(engine, &target)).await? {
        notes.say(&format!("image {}: up to date", short(&alias)));
        return Ok(target);
    }
    notes.show_step(&format!("image {}: wrapping", short(&alias)));
    put_together(work, &base, &name, &agent, &target).await?;
    notes.say(&format!("image {}: wrapped in {}", short(&alias), spelled(begun.elapsed())));
    let made = work.unless_stopped(current(engine, &target)).await?;
    made.ok_or_else(|| Error::image(format!("wrap {name}: Docker has no image {} after the build", target.content)))
}

/// Returns the training image. Pulls the image if the engine does not have it.
async fn get(work: Work<'_>, image: &ImageRef) -> Result<Base, Error> {
    let Work { engine, notes, .. } = work;
    if let Some(found) = work.unless_stopped(engine.inspect(image)).await? {
        return Ok(found.base);
    }
    let begun = Instant::now();
    notes.say(&format!("image {}: not on this machine, pulling it", short(image)));
    work.unless_stopped(registry::pull(engine, image, notes)).await?;
    notes.say(&format!("image {}: pulled in {}", short(image), spelled(begun.elapsed())));
    let found = work.unless_stopped(engine.inspect(image)).await?;
    let gone = || registry::not_found(image, "Docker has no such image after the pull");
    Ok(found.ok_or_else(gone)?.base)
}

/// Checks the base, and then makes the image.
async fn put_together(
    work: Work<'_>,
    base: &Base,
    name: &str,
    agent: &AgentProgram,
    target: &Target,
) -> Result<(), Error> {
    let Work { engine, notes, .. } = work;
    // An interrupt must not stop this step: `look` is needed to remove the container that the engine creates.
    let look = Look::into_image(engine, &base.id, name).await?;
    let seen = work.unless_stopped(async { tokio::try_join!(examine(&look, base, name), engine.way()) }).await;
    let (kept, way) = match seen {
        Ok(seen) => seen,
        Err(refusal) => {
            // The error of the check is more useful than the error of a failed removal.
            let _ = look.remove().await;
            return Err(refusal);
        }
    };
    let entrypoint = match kept {
        PodEntrypoint::Words(words) => words,
        PodEntrypoint::Nothing { left_out: words } => {
            notes.say(&format!("image {name}: {}", left_out(&words)));
            Vec::new()
        }
    };
    let wrap = Wrap { base, agent: &agent.bytes, entrypoint: &entrypoint, target };
    let made = work.unless_stopped(make(engine, &wrap, way, notes));
    let (removed, made) = tokio::join!(look.remove(), made);
    // The image is usable even if the container was not removed.
    if let Err(error) = removed {
        notes.say(&error.to_string());
    }
    made
}

async fn examine(look: &Look<'_>, base: &Base, name: &str) -> Result<PodEntrypoint, Error> {
    check::script_and_python(look, base, name).await?;
    check::entrypoint(look, base).await
}

async fn make(engine: &Engine, wrap: &Wrap<'_>, way: Way, notes: &Notes) -> Result<(), Error> {
    let alias = &wrap.target.alias;
    if way == Way::Load {
        let unwritable = |error| Error::image(format!("pack {alias}: {error}"));
        let archive = layer::archive(wrap).map_err(unwritable)?;
        let Err(reason) = load(engine, archive).await else { return Ok(()) };
        notes.say(&format!(
            "image {}: Docker cannot load an archive with only the agent's layer ({reason}); building instead",
            short(alias)
        ));
    }
    build::wrap(engine, wrap, notes).await
}

/// Loads an archive that contains only the agent's layer. The engine already has the other layers of the image.
async fn load(engine: &Engine, tar: Vec<u8>) -> Result<(), String> {
    let options = ImportImageOptionsBuilder::default().quiet(true).build();
    each_answer(engine.docker.import_image(options, body_full(tar.into()), None), drop).await
}

/// Returns the wrapped image if the engine already has it. Adds the alias if it is missing.
async fn current(engine: &Engine, target: &Target) -> Result<Option<Target>, Error> {
    let found = engine.inspect(&target.content).await?.filter(|found| is_made_of(found, target));
    let Some(found) = found else { return Ok(None) };
    if !has_name(&found, &target.alias) {
        engine.tag(&found.base.id, &target.alias).await?;
    }
    Ok(Some(Target { content: as_listed(&found, &target.content), ..target.clone() }))
}

/// Whether the labels match. The name proves nothing, because anyone can give the same name to another image.
fn is_made_of(found: &Inspected, target: &Target) -> bool {
    let labels = found.base.config.get("Labels").and_then(Value::as_object);
    let label = |name: &str| labels.and_then(|labels| labels.get(name)).and_then(Value::as_str);
    target.labels.iter().all(|(name, value)| label(name) == Some(value))
}

fn has_name(found: &Inspected, name: &ImageRef) -> bool {
    let name = name.to_string();
    found.tags.iter().any(|tag| familiar(tag) == familiar(&name))
}

/// The name as the engine lists it. podman adds `localhost/` to names without a host. A cluster that takes its
/// images from podman finds the image only under the listed name.
fn as_listed(found: &Inspected, name: &ImageRef) -> ImageRef {
    let local = format!("{PODMAN_HOST}/{name}");
    let is_listed = !has_name(found, name) && found.tags.contains(&local);
    let local = is_listed.then(|| local.parse().ok()).flatten();
    local.unwrap_or_else(|| name.clone())
}

/// The host that podman adds to names without a host.
const PODMAN_HOST: &str = "localhost";

#[cfg(test)]
mod tests {
    use super::*;

    fn inspected(tags: &[&str], labels: &Value) -> Inspected {
        let Value::Object(config) = serde_json::json!({ "Labels": labels }) else { unreachable!() };
        let base = Base { config, ..Base::default() };
        Inspected { base, tags: tags.iter().map(|tag| (*tag).to_owned()).collect(), digests: vec![] }
    }

    fn target(base: &str, agent: &str) -> Target {
        Target::new(&"digits".parse().unwrap(), base, agent, Reach::Loopback)
    }

    #[test]
    fn an_image_is_current_if_it_has_this_base_and_this_agent() {
        let now = target("sha256:base", "sha256:agent");
        for (labels, is_current) in [
            (serde_json::json!(now.labels), true),
            (serde_json::json!(target("sha256:other", "sha256:agent").labels), false),
            (serde_json::json!(target("sha256:base", "sha256:other").labels), false),
            (Value::Null, false),
        ] {
            assert_eq!(is_made_of(&inspected(&[], &labels), &now), is_current, "{labels}");
        }
    }

    #[test]
    fn the_name_by_content_is_replaced_only_by_a_name_that_podman_lists() {
        let content = target("a", "b").content;
        let (docker, hub) = (content.to_string(), format!("docker.io/library/{content}"));
        let podman = format!("localhost/{content}");
        for (listed, name) in [(&docker, &docker), (&hub, &docker), (&podman, &podman)] {
            assert_eq!(as_listed(&inspected(&[listed], &Value::Null), &content).to_string(), *name);
        }
        assert!(has_name(&inspected(&["x:1", &hub], &Value::Null), &content));
        assert!(!has_name(&inspected(&["x:1"], &Value::Null), &content));
    }
}
