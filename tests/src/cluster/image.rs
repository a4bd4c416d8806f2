//! Images that pods run, built here and removed when the last test has done with them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::namespace::unique_name;
use crate::client::Finished;
use crate::programs::{root, static_agent};
use crate::scene::Scene;

/// How long the pods of a test that failed may take to end, which still use an image.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);
/// What runs the script that a job brings along, so that one image serves all tests; `examples/hello` otherwise.
const EXEC_PY: &str = "import os\n\
    exec(compile(os.environ.get('EXEC_PY') or open('hello.py').read(), 'exec.py', 'exec'))\n";
/// The image that runs it. Scripts may write where they are.
const DOCKERFILE: &str =
    "FROM python:3.11-slim\nWORKDIR /app\nRUN chown 1000 /app\nCOPY exec.py hello.py ./\nUSER 1000\n";

/// The image of [`Image::shared`], while a test uses it.
static SHARED: Mutex<Weak<Image>> = Mutex::new(Weak::new());

/// A training image, as a user builds it, and what the client makes of it.
#[derive(Debug)]
pub struct Image {
    name: String,
}

impl Image {
    /// The image for scripts that come as the variable `EXEC_PY`. Tests that run at the same time share it.
    ///
    /// # Panics
    /// When it cannot be built.
    pub fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(image) = shared.upgrade() {
            return image;
        }
        let image = Self::of_dockerfile(DOCKERFILE);
        *shared = Arc::downgrade(&image);
        image
    }

    /// The image that this Dockerfile makes, beside which lie an exec.py, as in the image that is shared, and hello.py.
    ///
    /// # Panics
    /// When it cannot be built.
    pub fn of_dockerfile(dockerfile: &str) -> Arc<Self> {
        let context = Scene::new(EXEC_PY);
        fs::write(context.path().join("Dockerfile"), dockerfile).expect("write the Dockerfile");
        fs::copy(root().join("examples/hello/exec.py"), context.path().join("hello.py")).expect("copy hello");
        Arc::new(Self::built(context.path()))
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
        let image = Self { name: unique_name() };
        // Layers that are another image's as well go away with that one, also while this one is built on them.
        docker(&["build", "--no-cache", "--quiet", "--tag", &image.name, &context.display().to_string()])
            .unwrap_or_else(|error| panic!("build {}: {error}", context.display()));
        image
    }

    fn built(context: &Path) -> Self {
        let image = Self::unwrapped(context);
        let agent = static_agent().display().to_string();
        let scene = Scene::new("");
        Finished::of(&mut scene.client(&["build", "--image", &image.name, "--agent-binary", &agent])).code(0);
        image
    }

    /// The user's image, for `client --image`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The client's, which pods run.
    pub fn wrapped(&self) -> String {
        format!("{}_pod:latest", self.name)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
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
