//! Images that pods run. Each is built here, and pushed where the cluster's nodes do not use this machine's Docker.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::namespace::unique_name;
use crate::client::Finished;
use crate::config::registry;
use crate::programs::{built, root, static_agent};
use crate::scene::Scene;

/// How long the pods of a test that failed may take to end, which still use an image.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);
/// What runs the script that a job brings along, so that one image serves all tests; `examples/hello` otherwise.
const EXEC_PY: &str = "import os\n\
    exec(compile(os.environ.get('EXEC_PY') or open('hello.py').read(), 'exec.py', 'exec'))\n";
/// The image that runs it. Scripts may write where they are.
const DOCKERFILE: &str =
    "FROM python:3.11-slim\nWORKDIR /app\nRUN chown 1000 /app\nCOPY exec.py hello.py ./\nUSER 1000\n";

/// The label of the image of [`Image::shared`]; `scripts/test` removes what has it.
const SHARED_LABEL: &str = "muster-test-shared";

/// A training image, as a user builds it, and what the client makes of it.
#[derive(Debug)]
pub struct Image {
    name: String,
    lifetime: Lifetime,
}

/// Who removes an image.
#[derive(Debug, PartialEq, Eq)]
enum Lifetime {
    /// The test that built it.
    Test,
    /// `scripts/test`, when all tests have ended.
    Run,
}

impl Image {
    /// The image for scripts that come as the variable `EXEC_PY`. Each test is a process of its own, so its name says what
    /// is in it, and the first test that needs it builds it while the others wait.
    ///
    /// # Panics
    /// When it cannot be built.
    pub fn shared() -> Arc<Self> {
        let content = [static_agent(), built("client"), root().join("examples/hello/exec.py")].map(fs::read);
        let mut hasher = DefaultHasher::new();
        content.into_iter().for_each(|file| file.expect("a readable file").hash(&mut hasher));
        (EXEC_PY, DOCKERFILE).hash(&mut hasher);
        let image = Self { name: format!("{SHARED_LABEL}-{:016x}", hasher.finish()), lifetime: Lifetime::Run };

        let lock = File::create(std::env::temp_dir().join(&image.name)).expect("a file to lock");
        lock.lock().expect("the file can be locked");
        if docker(&["image", "inspect", &image.wrapped()]).is_err() {
            let context = context(DOCKERFILE);
            image.build(context.path());
            image.wrap();
        }
        Arc::new(image)
    }

    /// The image that this Dockerfile makes, beside which lie an exec.py, as in the image that is shared, and hello.py.
    ///
    /// # Panics
    /// When it cannot be built.
    pub fn of_dockerfile(dockerfile: &str) -> Arc<Self> {
        Arc::new(Self::built(context(dockerfile).path()))
    }

    /// The image of an example, by its own Dockerfile.
    ///
    /// # Panics
    /// When it cannot be built.
    pub fn of_example(name: &str) -> Arc<Self> {
        Arc::new(Self::built(&root().join("examples").join(name)))
    }

    /// The image of a folder's Dockerfile, without an agent of ours.
    ///
    /// # Panics
    /// When it cannot be built.
    pub fn unwrapped(context: &Path) -> Self {
        let image = Self { name: unique_name(), lifetime: Lifetime::Test };
        image.build(context);
        image
    }

    fn built(context: &Path) -> Self {
        let image = Self::unwrapped(context);
        image.wrap();
        image
    }

    fn build(&self, context: &Path) {
        let label: &[&str] = match self.lifetime {
            Lifetime::Test => &[],
            Lifetime::Run => &["--label", SHARED_LABEL],
        };
        // Layers that are another image's as well go away with that one, also while this one is built on them.
        let build = ["build", "--no-cache", "--quiet", "--tag", &self.name, &context.display().to_string()];
        docker(&[build.as_slice(), label].concat())
            .unwrap_or_else(|error| panic!("build {}: {error}", context.display()));
    }

    fn wrap(&self) {
        let agent = static_agent().display().to_string();
        let scene = Scene::new("");
        Finished::of(&mut scene.client(&["build", "--image", &self.name, "--agent-binary", &agent])).code(0);
        if let Some(registry) = registry() {
            push(&self.local_wrapped(), &registry);
        }
    }

    /// The user's image, for `client --image`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The flags of a client that submits a job in it.
    pub fn flags(&self) -> Vec<String> {
        let image = ["--image", &self.name, "--agent-binary"].map(str::to_owned).into_iter();
        let push = registry().map(|registry| ["--push".to_owned(), registry]);
        image.chain([static_agent().display().to_string()]).chain(push.into_iter().flatten()).collect()
    }

    /// The client's, as the cluster's nodes name it.
    pub fn wrapped(&self) -> String {
        registry().map_or_else(|| self.local_wrapped(), |registry| format!("{registry}/{}", self.local_wrapped()))
    }

    fn local_wrapped(&self) -> String {
        format!("{}_pod:latest", self.name)
    }

    /// The user's image, as the cluster's nodes name it.
    ///
    /// # Panics
    /// When it cannot be pushed.
    pub fn of_nodes(&self) -> String {
        registry().map_or_else(|| self.name.clone(), |registry| push(&self.name, &registry))
    }
}

/// A folder for `docker build`, with an exec.py that runs the script of the variable `EXEC_PY`, and hello.py.
fn context(dockerfile: &str) -> Scene {
    let context = Scene::new(EXEC_PY);
    fs::write(context.path().join("Dockerfile"), dockerfile).expect("write the Dockerfile");
    fs::copy(root().join("examples/hello/exec.py"), context.path().join("hello.py")).expect("copy hello");
    context
}

/// Pushes an image to a registry, under the name that is returned.
fn push(image: &str, registry: &str) -> String {
    let name = format!("{registry}/{image}");
    for step in [["tag", image, &name].as_slice(), &["push", &name]] {
        docker(step).unwrap_or_else(|error| panic!("docker {}: {error}", step.join(" ")));
    }
    name
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.lifetime == Lifetime::Run {
            return;
        }
        let begin = Instant::now();
        // What pods run has a second name, by what is in it, so that it is removed by its id.
        let wrapped = docker(&["images", "--quiet", "--no-trunc", &format!("{}_pod", self.name)]).unwrap_or_default();
        for image in wrapped.lines().chain([self.name.as_str()]) {
            // Other programs' ends cannot be waited for, only looked at.
            while let Err(error) = docker(&["rmi", "--force", image]) {
                if error.contains("No such image") || begin.elapsed() > REMOVAL_TIMEOUT {
                    break;
                }
                thread::sleep(Duration::from_millis(500));
            }
        }
    }
}

/// Runs the docker command: what it prints, or what it complains about.
fn docker(args: &[&str]) -> Result<String, String> {
    let output = Command::new("docker").args(args).output().expect("docker is on the path");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}
