//! For tests with the engine of this machine: images that are removed after the test, and a socket that forwards
//! requests to the engine and records them.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

const ENGINE: &str = "/var/run/docker.sock";

fn ended(arguments: &[&str]) -> Output {
    Command::new("docker").args(arguments).env("DOCKER_BUILDKIT", "0").output().unwrap()
}

/// Runs the docker command and returns its output.
#[track_caller]
pub(crate) fn docker(arguments: &[&str]) -> String {
    stdout_of(arguments, ended(arguments))
}

#[track_caller]
fn stdout_of(arguments: &[&str], ended: Output) -> String {
    assert!(ended.status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap().trim().to_owned()
}

/// An image of a test. Dropping the value removes the image and the images made from it.
pub(crate) struct Image {
    pub(crate) name: String,
}

impl Image {
    /// An unused name, without an image.
    pub(crate) fn unnamed(purpose: &str) -> Self {
        Self { name: format!("muster-test-{purpose}-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]) }
    }

    /// Builds an image from python:3.11-slim with these instructions, and an exec.py in the context.
    #[track_caller]
    pub(crate) fn built(purpose: &str, instructions: &str) -> Self {
        let image = Self::unnamed(purpose);
        image.build(instructions);
        image
    }

    /// Builds an image with this name. A later build takes the name over.
    #[track_caller]
    pub(crate) fn build(&self, instructions: &str) {
        self.build_from("python:3.11-slim", instructions);
    }

    /// Like [`Self::build`], from another base image.
    #[track_caller]
    pub(crate) fn build_from(&self, base: &str, instructions: &str) {
        let context = tempfile::tempdir().unwrap();
        std::fs::write(context.path().join("exec.py"), "print('hello')\n").unwrap();
        let dockerfile = format!("FROM {base}\n{}\n{instructions}\n", self.label());
        std::fs::write(context.path().join("Dockerfile"), dockerfile).unwrap();
        let arguments = ["build", "--quiet", "--tag", &self.name, context.path().to_str().unwrap()];
        // Under load, the engine's old builder seldom loses the image of the previous step.
        let first = ended(&arguments);
        let is_lost = String::from_utf8_lossy(&first.stderr).contains("unable to find image");
        stdout_of(&arguments, if is_lost { ended(&arguments) } else { first });
    }

    /// The instruction that labels this test's images. `drop` finds the images by the label, even images without a
    /// name.
    pub(crate) fn label(&self) -> String {
        format!("LABEL muster.test={}", self.name)
    }

    /// The wrapped image's name with the tag `latest`.
    pub(crate) fn wrapped(&self) -> String {
        format!("{}_pod:latest", self.name)
    }

    /// The wrapped image's other name. The tag of this name is a digest of the content.
    #[track_caller]
    pub(crate) fn wrapped_by_content(&self) -> String {
        let names = self.inspect_wrapped()["RepoTags"].take();
        let mut names: Vec<String> = serde_json::from_value(names).unwrap();
        names.retain(|name| *name != self.wrapped());
        assert_eq!(names.len(), 1, "{names:?}");
        let tag = names[0].strip_prefix(&format!("{}_pod:", self.name)).unwrap_or_default();
        assert!(tag.len() == 12 && tag.bytes().all(|byte| byte.is_ascii_hexdigit()), "{names:?}");
        names.remove(0)
    }

    /// The engine's description of the wrapped image.
    #[track_caller]
    pub(crate) fn inspect_wrapped(&self) -> serde_json::Value {
        let text = docker(&["image", "inspect", &self.wrapped()]);
        serde_json::from_str::<serde_json::Value>(&text).unwrap()[0].take()
    }

    /// Whether the engine has the wrapped image.
    pub(crate) fn is_wrapped(&self) -> bool {
        !docker(&["images", "--quiet", &self.wrapped()]).is_empty()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let label = format!("label=muster.test={}", self.name);
        let named = Command::new("docker").args(["images", "--quiet", "--filter", &label]).output();
        let ids = named.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let ids: Vec<&str> = ids.lines().collect();
        let _ = Command::new("docker").args(["image", "rm", "--force"]).args(ids).output();
    }
}

/// Writes a static program for this machine that does nothing, with `text` at its end.
pub(crate) fn agent_file(folder: &Path, text: &str) -> PathBuf {
    program_file(folder, text, if cfg!(target_arch = "aarch64") { 183 } else { 62 })
}

/// Like [`agent_file`], for the processor with this ELF number.
pub(crate) fn program_file(folder: &Path, text: &str, machine: u8) -> PathBuf {
    let mut file = vec![0; 64];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[18] = machine;
    file.extend(text.as_bytes());
    let path = folder.join(format!("agent-{machine}"));
    std::fs::write(&path, file).unwrap();
    path
}

/// A socket that forwards all requests to the engine, except requests for the refused path.
pub(crate) struct Listener {
    folder: tempfile::TempDir,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Listener {
    pub(crate) fn start() -> Self {
        Self::refusing("none")
    }

    pub(crate) fn refusing(path: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let listener = UnixListener::bind(folder.path().join("docker.sock")).unwrap();
        let noted = Arc::clone(&asked);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let noted = Arc::clone(&noted);
                thread::spawn(move || pass_on(client, &noted, path));
            }
        });
        Self { folder, asked }
    }

    /// The value for DOCKER_HOST.
    pub(crate) fn address(&self) -> String {
        format!("unix://{}/docker.sock", self.folder.path().display())
    }

    /// Method and path of every request since the last call, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

/// Serves one connection, which the client uses for one request.
fn pass_on(mut client: UnixStream, asked: &Mutex<Vec<String>>, refused: &str) {
    let mut engine = UnixStream::connect(ENGINE).unwrap();
    let (mut answers, mut back) = (engine.try_clone().unwrap(), client.try_clone().unwrap());
    let returning = thread::spawn(move || {
        let _ = std::io::copy(&mut answers, &mut back);
        let _ = back.shutdown(Shutdown::Write);
    });
    let mut head = vec![0; 16 * 1024];
    let length = client.read(&mut head).unwrap_or(0);
    let line = String::from_utf8_lossy(&head[..length]);
    let words: Vec<&str> = line.split([' ', '?']).take(2).collect();
    asked.lock().unwrap().push(words.join(" "));
    if words.get(1) == Some(&refused) {
        let body = "{\"message\":\"refused by the test\"}";
        let answer = format!("HTTP/1.1 501 Not Implemented\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let _ = client.write_all(answer.as_bytes());
        // Reads the rest of the request, because closing the connection early could lose the answer.
        let _ = std::io::copy(&mut client, &mut std::io::sink());
        return;
    }
    let _ = engine.write_all(&head[..length]);
    let _ = std::io::copy(&mut client, &mut engine);
    let _ = engine.shutdown(Shutdown::Write);
    let _ = returning.join();
}
