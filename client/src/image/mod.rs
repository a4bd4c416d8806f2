//! Makes the image that pods run, called the wrapped image, and brings it to the nodes. Builds the training image if
//! needed, and adds the agent. Pushes or loads the result if the nodes do not share this machine's Docker. Only this
//! folder uses Docker.

mod agent;
mod build;
mod check;
mod context;
mod elf;
mod endpoint;
mod engine;
mod entrypoint;
mod layer;
mod load;
mod look;
mod names;
mod programs;
mod registry;
mod stall;
mod wrap;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use master_client::MasterClient;
use protocol::image::ImageRef;
use protocol::pod::{PodOptions, PullPolicy};
use tokio_util::sync::CancellationToken;

pub(crate) use self::agent::AgentSources;
use self::engine::Engine;
pub(crate) use self::layer::Reach;
use self::layer::Target;
use self::names::{exact, short};
pub(crate) use self::programs::programs;
use crate::address::config::{DockerVariables, ImageConfig};
use crate::args::{ImageArgs, Loader, Registry};
use crate::ending::error::Error;
use crate::interrupt::Interrupts;
use crate::output::{Notes, spelled};

/// The target under which Docker's library logs its requests.
pub(crate) const LOG_TARGET: &str = "bollard";

/// The image to make for the pods, and its destination. The flags and variables have been checked.
pub(crate) struct ImageOrder {
    source: ImageSource,
    destination: Destination,
    agents: AgentSources,
    docker: DockerVariables,
    users: Users,
    /// Who reaches the agent of a pod without a token.
    pub(crate) reach: Reach,
}

/// Where the training image comes from.
#[derive(Debug, PartialEq, Eq)]
enum ImageSource {
    /// The image with this name.
    Named(ImageRef),
    /// A build from this folder, under this name.
    Folder(PathBuf, ImageRef),
}

/// Which UNIX users an image may run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Users {
    /// Any user.
    All,
    /// Only users that Kubernetes can verify as non-root.
    KnownNotRoot,
}

/// How nodes get the wrapped image.
#[derive(Debug, PartialEq, Eq)]
enum Destination {
    /// The nodes share this machine's engine.
    Engine,
    /// The image is pushed to a registry, under this name.
    Registry(ImageRef),
    /// A tool loads the image into the named cluster, or into the tool's default cluster.
    Cluster(Loader, Option<String>),
}

impl ImageOrder {
    /// Checks the flags and the folder. Sends nothing to Docker yet.
    pub(crate) fn new(
        args: ImageArgs,
        config: &ImageConfig,
        folder: &Path,
        master: Option<MasterClient>,
    ) -> Result<Self, Error> {
        let ImageArgs { image, push, load, agent_binary } = args;
        let source = source(image, folder)?;
        let destination = destination(source.image(), push, load, config)?;
        let agents = AgentSources { named: agent_binary, master };
        Ok(Self {
            source,
            destination,
            agents,
            docker: config.docker.clone(),
            users: Users::All,
            reach: Reach::Loopback,
        })
    }

    /// Sets which UNIX users the pods allow. Checks the pull policy of the pods.
    pub(crate) fn for_pods(self, pod: &PodOptions) -> Result<Self, Error> {
        let is_in_registry = matches!(self.destination, Destination::Registry(_));
        if pod.image_pull_policy == Some(PullPolicy::Always) && !is_in_registry {
            let image = short(self.source.image());
            let sentence = format!(
                "--image-pull-policy Always: Muster adds its agent to the image {image}, and nodes cannot pull the \
                 result, because no registry has it"
            );
            return Err(Error::input(sentence).hint("give --push REGISTRY, or leave out --image-pull-policy"));
        }
        let users = if pod.allow_root { Users::All } else { Users::KnownNotRoot };
        Ok(Self { users, ..self })
    }

    /// The name, for people, of the image that [`prepare`] would make. The exact name contains a digest, which is not
    /// known yet.
    pub(crate) fn planned_name(&self) -> ImageRef {
        match &self.destination {
            Destination::Registry(there) => there.clone(),
            Destination::Engine | Destination::Cluster(..) => self.source.image().of_pods(),
        }
    }
}

impl ImageSource {
    fn image(&self) -> &ImageRef {
        match self {
            Self::Named(image) | Self::Folder(_, image) => image,
        }
    }
}

fn source(image: Option<ImageRef>, folder: &Path) -> Result<ImageSource, Error> {
    if let Some(image) = image {
        return Ok(ImageSource::Named(image));
    }
    if !folder.join(build::DOCKERFILE).is_file() {
        let missing = format!("--image is not given, and there is no Dockerfile in {}", folder.display());
        let hint = "give --image REF, or put a Dockerfile beside exec.py";
        return Err(Error::input(format!("no image to run: {missing}")).hint(hint));
    }
    let name = folder.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    Ok(ImageSource::Folder(folder.to_owned(), names::of_folder(&name)))
}

fn destination(
    image: &ImageRef,
    push: Option<Registry>,
    load: Option<Loader>,
    config: &ImageConfig,
) -> Result<Destination, Error> {
    if let Some(registry) = push {
        let (registry, target) = (registry.as_str(), image.of_pods());
        let there = target.below(registry);
        let no_name = || {
            let sentence = format!("--push {registry}: the result {registry}/{target} is not a valid image name");
            Error::input(sentence).hint("give a shorter --push, or another --image")
        };
        return Ok(Destination::Registry(there.ok_or_else(no_name)?));
    }
    let by_variable = |text: &String| {
        let sentence = format!("MUSTER_LOAD: invalid tool \"{text}\": use minikube, kind or k3d");
        let hint = "unset MUSTER_LOAD, or set it to minikube, kind or k3d";
        Loader::from_str(text, true).map_err(|_| Error::input(sentence).hint(hint))
    };
    let tool = match load {
        Some(tool) => Some(tool),
        None => config.load.as_ref().map(by_variable).transpose()?,
    };
    Ok(tool.map_or(Destination::Engine, |tool| Destination::Cluster(tool, config.load_cluster.clone())))
}

/// Checks that Docker's engine answers.
pub(crate) async fn engine_answers(variables: &DockerVariables) -> Result<(), Error> {
    Engine::connect(variables).await.map(drop)
}

/// Makes the image and brings it to the nodes. Returns the image's name for the pods' specification.
pub(crate) async fn prepare(order: &ImageOrder, notes: &Notes) -> Result<ImageRef, Error> {
    let mut interrupts = Interrupts::listen().map_err(|error| Error::image("listen for signals").because(error))?;
    let stop = CancellationToken::new();
    let mut work = std::pin::pin!(carry_out(order, &stop, notes));
    let outcome = tokio::select! {
        outcome = &mut work => outcome,
        () = interrupts.next() => {
            stop.cancel();
            // Waits until the work has removed its container and ended, unless the user presses Ctrl-C again.
            tokio::select! {
                _ = work => {}
                () = interrupts.next() => {}
            }
            Err(interrupted())
        }
    };
    notes.end_progress();
    outcome
}

/// Shared by all steps of making the image.
#[derive(Clone, Copy)]
struct Work<'a> {
    engine: &'a Engine,
    stop: &'a CancellationToken,
    notes: &'a Notes,
}

impl Work<'_> {
    /// Does `step`, but stops it when the user presses Ctrl-C.
    async fn unless_stopped<T>(self, step: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.stop.run_until_cancelled(step).await.unwrap_or_else(|| Err(interrupted()))
    }
}

fn interrupted() -> Error {
    Error::unsuccessful("interrupted: nothing was submitted")
}

async fn carry_out(order: &ImageOrder, stop: &CancellationToken, notes: &Notes) -> Result<ImageRef, Error> {
    let ImageOrder { source, destination, agents, docker, users, reach } = order;
    let connected = stop.run_until_cancelled(Engine::connect(docker)).await;
    let engine = connected.unwrap_or_else(|| Err(interrupted()))?;
    let work = Work { engine: &engine, stop, notes };
    let image = match source {
        ImageSource::Named(image) => image,
        ImageSource::Folder(folder, image) => {
            let begun = Instant::now();
            notes.show_step(&format!("image {}: building from ./Dockerfile", short(image)));
            work.unless_stopped(build::from_folder(&engine, folder, image, notes)).await?;
            let took = spelled(begun.elapsed());
            notes.say(&format!("image {}: built from ./Dockerfile in {took}", short(image)));
            image
        }
    };
    let wrapped = wrap::wrap(work, image, *users, *reach, agents).await?;
    work.unless_stopped(deliver(work, wrapped, destination)).await
}

async fn deliver(work: Work<'_>, wrapped: Target, destination: &Destination) -> Result<ImageRef, Error> {
    let Work { engine, stop: _, notes } = work;
    let begun = Instant::now();
    let Target { alias, content, .. } = wrapped;
    match destination {
        Destination::Engine => Ok(content),
        Destination::Registry(there) => {
            notes.show_step(&format!("image {}: pushing", short(there)));
            engine.tag(&exact(&content), there).await?;
            let pushed = registry::push(engine, there, notes).await?;
            notes.say(&format!("image {}: pushed in {}", short(there), spelled(begun.elapsed())));
            Ok(pushed)
        }
        Destination::Cluster(tool, cluster) => {
            notes.show_step(&format!("image {}: loading into the cluster", short(&alias)));
            load::load(*tool, cluster.as_deref(), &content).await?;
            notes.say(&format!("image {}: loaded in {}", short(&alias), spelled(begun.elapsed())));
            Ok(content)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str) -> ImageRef {
        name.parse().unwrap()
    }

    #[test]
    fn the_image_is_named_by_the_flag_or_built_from_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let digits = folder.path().join("My Digits");
        std::fs::create_dir(&digits).unwrap();
        std::fs::write(digits.join("Dockerfile"), "FROM x").unwrap();
        let built = ImageSource::Folder(digits.clone(), image("muster-my-digits:latest"));
        assert_eq!(source(None, &digits).unwrap(), built);
        assert_eq!(source(Some(image("other")), &digits).unwrap(), ImageSource::Named(image("other")));
    }

    #[test]
    fn the_flags_choose_the_destination_and_the_variable_is_the_default() {
        let of = |push: Option<&str>, load, variable: Option<&str>| {
            let variable = variable.map(str::to_owned);
            let config = ImageConfig { load: variable, load_cluster: Some("dev".to_owned()), ..ImageConfig::default() };
            destination(&image("h:1/digits:2"), push.map(|text| text.parse().unwrap()), load, &config)
                .map_err(|error| error.to_string())
        };
        let dev = || Some("dev".to_owned());
        assert_eq!(of(None, None, None), Ok(Destination::Engine));
        assert_eq!(of(None, Some(Loader::Kind), Some("helm")), Ok(Destination::Cluster(Loader::Kind, dev())));
        assert_eq!(of(None, None, Some("K3d")), Ok(Destination::Cluster(Loader::K3d, dev())));
        let pushed = Destination::Registry(image("r:5000/team/digits_pod:2"));
        assert_eq!(of(Some("r:5000/team"), None, Some("helm")), Ok(pushed));
    }

    #[test]
    fn without_push_the_value_always_of_image_pull_policy_is_refused() {
        let order = |push: Option<&str>| {
            let push = push.map(|text| text.parse().unwrap());
            let args = ImageArgs { image: Some(image("digits")), push, ..ImageArgs::default() };
            let pod = PodOptions { image_pull_policy: Some(PullPolicy::Always), ..PodOptions::default() };
            ImageOrder::new(args, &ImageConfig::default(), Path::new("/"), None).unwrap().for_pods(&pod)
        };
        assert!(order(Some("r:5000")).is_ok());
        let refused = order(None).err().unwrap().to_string();
        assert!(
            refused.starts_with("--image-pull-policy Always: Muster adds its agent to the image digits,"),
            "{refused}"
        );
    }

    #[test]
    fn a_registry_that_is_too_long_for_an_image_name_is_refused() {
        let long = format!("r:5000/{}", "a".repeat(240));
        let refused = destination(&image("digits"), Some(long.parse().unwrap()), None, &ImageConfig::default());
        assert_eq!(
            refused.unwrap_err().to_string(),
            format!("--push {long}: the result {long}/digits_pod:latest is not a valid image name")
        );
    }
}
