//! Builds images for pods, and pushes them if the cluster's nodes do not use this machine's Docker.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::namespace::unique_name;
use crate::client::Finished;
use crate::config::registry;
use crate::programs::{built, root, static_agent};
use crate::scene::Scene;

/// Maximum time to remove an image. Pods of a failed test may still use the image, so the removal can take long.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);
/// An exec.py that runs the script in the variable `EXEC_PY`, or else `examples/hello`. So all tests can share an
/// image.
const EXEC_PY: &str = "import os\n\
    exec(compile(os.environ.get('EXEC_PY') or open('hello.py').read(), 'exec.py', 'exec'))\n";
/// The Dockerfile of the shared image. In this image, scripts can write to their working directory.
const DOCKERFILE: &str =
    "FROM python:3.11-slim\nWORKDIR /app\nRUN chown 1000 /app\nCOPY exec.py hello.py ./\nUSER 1000\n";

/// Label and first part of the name of the image of [`Image::shared`]. `scripts/test` removes images with this label.
const SHARED_LABEL: &str = "muster-test-shared";

/// A training image, like an image of a user, and the pod image that the client builds from it. An image of
/// [`Self::unwrapped`] has no pod image.
#[derive(Debug)]
pub struct Image {
    name: String,
    lifetime: Lifetime,
}

/// When and by whom an image is removed.
#[derive(Debug, PartialEq, Eq)]
enum Lifetime {
    /// The test that built the image removes the image when the test ends.
    Test,
    /// `scripts/test` removes the image after all tests.
    Run,
}

impl Image {
    /// Returns the shared image for scripts in the variable `EXEC_PY`. The first test builds the image. Meanwhile the
    /// other tests, which are separate processes, wait. If a program was built again, the image gets a new name.
    ///
    /// # Panics
    /// If the image cannot be built.
    pub fn shared() -> Arc<Self> {
        // Hash the files' times of change, not their contents: a debug build takes half a second to hash two programs.
        let files = [static_agent(), built("client"), root().join("examples/hello/exec.py")];
        let changes =
            files.map(|file| fs::metadata(file).and_then(|found| found.modified()).expect("cannot read the file"));
        let mut hasher = DefaultHasher::new();
        (changes, EXEC_PY, DOCKERFILE).hash(&mut hasher);
        let image = Self { name: format!("{SHARED_LABEL}-{:016x}", hasher.finish()), lifetime: Lifetime::Run };

        let lock = File::create(std::env::temp_dir().join(&image.name)).expect("cannot create the file to lock");
        lock.lock().expect("cannot lock the file");
        if docker(&["image", "inspect", &image.wrapped()]).is_err() {
            let context = context(DOCKERFILE);
            image.build(context.path());
            image.wrap(&[]);
        }
        Arc::new(image)
    }

    /// Builds an image from this Dockerfile. The build context contains the exec.py and hello.py of the shared image.
    ///
    /// # Panics
    /// If the image cannot be built.
    pub fn of_dockerfile(dockerfile: &str) -> Arc<Self> {
        Arc::new(Self::built(context(dockerfile).path()))
    }

    /// Builds an image like the shared image, whose agent listens on all addresses even without a token.
    ///
    /// # Panics
    /// If the image cannot be built.
    pub fn open() -> Self {
        let image = Self::unwrapped(context(DOCKERFILE).path());
        image.wrap(&["--open"]);
        image
    }

    /// Builds an image from the Dockerfile of an example.
    ///
    /// # Panics
    /// If the image cannot be built.
    pub fn of_example(name: &str) -> Arc<Self> {
        Arc::new(Self::built(&root().join("examples").join(name)))
    }

    /// Builds an image from the Dockerfile in the folder `context`. Builds no pod image.
    ///
    /// # Panics
    /// If the image cannot be built.
    pub fn unwrapped(context: &Path) -> Self {
        let image = Self { name: unique_name(), lifetime: Lifetime::Test };
        image.build(context);
        image
    }

    /// Builds the master's image from `images/master.Dockerfile`. Also copies libraries into the image, because the
    /// master under test is not statically linked, unlike a released master.
    ///
    /// # Panics
    /// If the image cannot be built.
    pub fn of_master() -> Self {
        let scene = Scene::new("");
        let context = scene.path();
        fs::create_dir(context.join("state")).expect("cannot create the folder");
        for (program, path) in [("master", built("master")), ("agent", static_agent())] {
            fs::copy(path, context.join(program)).expect("cannot copy the file");
        }
        for library in libraries(&built("master")) {
            let copy = context.join("libraries").join(library.strip_prefix("/").expect("not an absolute path"));
            fs::create_dir_all(copy.parent().expect("the library has no parent folder"))
                .expect("cannot create the folder");
            fs::copy(library, copy).expect("cannot copy the file");
        }
        let dockerfile =
            fs::read_to_string(root().join("images/master.Dockerfile")).expect("cannot read the Dockerfile");
        fs::write(context.join("Dockerfile"), dockerfile + "COPY libraries /\n").expect("cannot write the file");
        Self::unwrapped(context)
    }

    /// Builds an image from this Dockerfile, and gives it a name in the registry at `host`. The registry need not have
    /// the image. Returns the image's configuration too.
    ///
    /// # Panics
    /// If the image cannot be built.
    pub fn named_at(host: &str, dockerfile: &str) -> (Self, Value) {
        let image = Self { name: format!("{host}/{}:1", unique_name()), lifetime: Lifetime::Test };
        image.build(context(dockerfile).path());
        let config = docker(&["image", "inspect", "--format", "{{json .Config}}", &image.name]);
        let config = serde_json::from_str(&config.expect("the image has just been built")).expect("not JSON");
        (image, config)
    }

    fn built(context: &Path) -> Self {
        let image = Self::unwrapped(context);
        image.wrap(&[]);
        image
    }

    fn build(&self, context: &Path) {
        let label: &[&str] = match self.lifetime {
            Lifetime::Test => &[],
            Lifetime::Run => &["--label", SHARED_LABEL],
        };
        // With the cache, a build could use layers that another test removes meanwhile.
        let build = ["build", "--no-cache", "--quiet", "--tag", &self.name, &context.display().to_string()];
        docker(&[build.as_slice(), label].concat())
            .unwrap_or_else(|error| panic!("build {}: {error}", context.display()));
    }

    fn wrap(&self, flags: &[&str]) {
        let agent = static_agent().display().to_string();
        let scene = Scene::new("");
        let build = ["build", "--image", &self.name, "--agent-binary", &agent];
        Finished::of(&mut scene.client(&[&build[..], flags].concat())).code(0);
        if let Some(registry) = registry() {
            push(&self.local_wrapped(), &registry);
        }
    }

    /// Returns the name of the training image, for `client --image`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the client's flags to submit a job with this image.
    pub fn flags(&self) -> Vec<String> {
        let image = ["--image", &self.name, "--agent-binary"].map(str::to_owned).into_iter();
        let push = registry().map(|registry| ["--push".to_owned(), registry]);
        image.chain([static_agent().display().to_string()]).chain(push.into_iter().flatten()).collect()
    }

    /// Returns the name by which the cluster's nodes find the pod image.
    pub fn wrapped(&self) -> String {
        registry().map_or_else(|| self.local_wrapped(), |registry| format!("{registry}/{}", self.local_wrapped()))
    }

    fn local_wrapped(&self) -> String {
        format!("{}_pod:latest", self.name)
    }

    /// Returns the name by which the cluster's nodes find the training image. Pushes the image if there is a registry.
    ///
    /// # Panics
    /// If the image cannot be pushed.
    pub fn of_nodes(&self) -> String {
        registry().map_or_else(|| self.name.clone(), |registry| push(&self.name, &registry))
    }
}

/// Creates a build context with this Dockerfile, [`EXEC_PY`] as exec.py, and hello.py.
fn context(dockerfile: &str) -> Scene {
    let context = Scene::new(EXEC_PY);
    fs::write(context.path().join("Dockerfile"), dockerfile).expect("cannot write the Dockerfile");
    fs::copy(root().join("examples/hello/exec.py"), context.path().join("hello.py")).expect("cannot copy the example");
    context
}

/// Returns the paths of the libraries that a program loads. `ldd` lists them.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let ldd = Command::new("ldd").arg(program).output().expect("cannot start ldd");
    let listed = String::from_utf8(ldd.stdout).expect("a path is not UTF-8");
    listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// Pushes an image to a registry and returns its name there.
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
        // The pod image has several names, so remove it by id.
        let wrapped = docker(&["images", "--quiet", "--no-trunc", &format!("{}_pod", self.name)]).unwrap_or_default();
        for image in wrapped.lines().chain([self.name.as_str()]) {
            // Pods may still use the image, so poll.
            while let Err(error) = docker(&["rmi", "--force", image]) {
                if error.contains("No such image") || begin.elapsed() > REMOVAL_TIMEOUT {
                    break;
                }
                thread::sleep(Duration::from_millis(500));
            }
        }
    }
}

/// Runs docker. Returns docker's stdout or, if docker fails, its stderr.
fn docker(args: &[&str]) -> Result<String, String> {
    let output = Command::new("docker").args(args).output().expect("cannot start docker");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}
