//! An engine with recorded answers, for cases that this machine's engine might not have: Docker 29, podman, an image
//! with a certain file. Records all requests.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::{parameter, serve_aside};

/// The answers of an engine. After a load or a build, the engine has the wrapped image.
#[derive(Default)]
pub(crate) struct Recording {
    /// `GET /version`.
    pub(crate) version: Value,
    /// `GET /info`.
    pub(crate) info: Value,
    /// Images by name.
    pub(crate) images: HashMap<String, Value>,
    /// The text of files of the training image, by path. The text `-> PATH` makes a link.
    pub(crate) files: HashMap<&'static str, &'static str>,
    /// The prefix that the engine adds to names in lists.
    pub(crate) lists_below: &'static str,
    /// The error with which the engine refuses to load an archive. `None` if the engine loads archives.
    pub(crate) refuses_load: Option<&'static str>,
}

/// A running engine. It ends with the test's process.
pub(crate) struct RecordedEngine {
    folder: tempfile::TempDir,
    shared: Arc<Shared>,
}

struct Shared {
    recording: Mutex<Recording>,
    asked: Mutex<Vec<String>>,
    /// The ENTRYPOINT of the wrapped image.
    made: Mutex<Option<Value>>,
}

impl Recording {
    /// Docker 20.10 to 28 with its own image store. Has the image `digits` with exec.py, Python and these files.
    pub(crate) fn docker(config: Value, files: &[(&'static str, &'static str)]) -> Self {
        let mut config = config;
        config["WorkingDir"] = json!("/work");
        config["Env"] = json!(["PATH=/usr/bin:/bin"]);
        let digits = json!({
            "Id": BASE, "RepoTags": ["digits:latest"], "Architecture": architecture(), "Os": "linux",
            "Config": config, "RootFS": {"Type": "layers", "Layers": ["sha256:one"]},
        });
        Self {
            version: json!({"Version": "20.10.24", "Components": [{"Name": "Engine", "Version": "20.10.24"}]}),
            info: json!({"Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "extfs"]]}),
            images: HashMap::from([("digits:latest".to_owned(), digits)]),
            files: [("/work/exec.py", ""), ("/usr/bin/python", "")].into_iter().chain(files.iter().copied()).collect(),
            ..Self::default()
        }
    }
}

/// The id of the training image.
pub(crate) const BASE: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

impl RecordedEngine {
    pub(crate) fn start(recording: Recording) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shared = Shared { recording: Mutex::new(recording), asked: Mutex::default(), made: Mutex::default() };
        let shared = Arc::new(shared);
        let router = Router::new().fallback(serve).with_state(shared.clone());
        let listener = std::os::unix::net::UnixListener::bind(folder.path().join("docker.sock")).unwrap();
        listener.set_nonblocking(true).unwrap();
        serve_aside(|| tokio::net::UnixListener::from_std(listener).unwrap(), router);
        Self { folder, shared }
    }

    /// The value for DOCKER_HOST.
    pub(crate) fn address(&self) -> String {
        format!("unix://{}/docker.sock", self.folder.path().display())
    }

    /// Method and path of every request since the last call, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.asked.lock().unwrap())
    }

    /// The ENTRYPOINT of the wrapped image.
    #[track_caller]
    pub(crate) fn entrypoint(&self) -> Value {
        self.shared.made.lock().unwrap().clone().expect("no wrapped image was made")
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (method, path) = (request.method().as_str().to_owned(), request.uri().path().to_owned());
    let query = request.uri().query().unwrap_or_default().to_owned();
    shared.asked.lock().unwrap().push(format!("{method} {path}"));
    let body = axum::body::to_bytes(request.into_body(), 1 << 24).await.unwrap();
    let mut recording = shared.recording.lock().unwrap();
    match (method.as_str(), path.as_str()) {
        ("GET", "/_ping") => "OK".into_response(),
        ("GET", "/version") => answer(&recording.version),
        ("GET", "/info") => answer(&recording.info),
        ("POST", "/containers/create") => with(StatusCode::CREATED, &json!({"Id": "c", "Warnings": []})),
        ("DELETE", _) => StatusCode::NO_CONTENT.into_response(),
        ("HEAD" | "GET", path) if path.ends_with("/archive") => recording.file(&parameter(&query, "path").unwrap()),
        ("GET", path) if path.starts_with("/images/") => recording.inspect(path),
        ("POST", "/images/load") => {
            if let Some(reason) = recording.refuses_load {
                return with(StatusCode::INTERNAL_SERVER_ERROR, &json!({"message": reason}));
            }
            let manifest: Value = serde_json::from_slice(&file_of(&body, "manifest.json")).unwrap();
            let config: Value = serde_json::from_slice(&file_of(&body, "config.json")).unwrap();
            *shared.made.lock().unwrap() = Some(config["config"]["Entrypoint"].clone());
            for name in manifest[0]["RepoTags"].as_array().unwrap() {
                recording.add(name.as_str().unwrap(), &config["config"]["Labels"]);
            }
            answer(&json!({"stream": "loaded"}))
        }
        ("POST", "/build") => {
            let dockerfile = String::from_utf8(file_of(&body, "Dockerfile")).unwrap();
            let command = dockerfile.lines().find_map(|line| line.strip_prefix("ENTRYPOINT ")).unwrap();
            *shared.made.lock().unwrap() = Some(serde_json::from_str(command).unwrap());
            let labels = dockerfile.lines().filter_map(|line| line.strip_prefix("LABEL ")?.split_once('='));
            let labels: Value = labels
                .map(|(name, value)| (name.to_owned(), json!(value.trim_matches('"'))))
                .collect::<serde_json::Map<_, _>>()
                .into();
            recording.add(&parameter(&query, "t").unwrap(), &labels);
            answer(&json!({"stream": "Successfully built\n"}))
        }
        ("POST", path) if path.ends_with("/tag") => {
            let [repository, tag] = ["repo", "tag"].map(|name| parameter(&query, name).unwrap());
            recording.tag(path, &format!("{repository}:{tag}"));
            StatusCode::CREATED.into_response()
        }
        (method, path) => panic!("{method} {path} is not recorded"),
    }
}

impl Recording {
    fn inspect(&self, path: &str) -> Response {
        let name = path.trim_start_matches("/images/").trim_end_matches("/json");
        match self.images.get(name) {
            Some(image) => answer(image),
            None => with(StatusCode::NOT_FOUND, &json!({"message": format!("No such image: {name}")})),
        }
    }

    /// Adds a wrapped image. An engine also finds an image by its name without the prefix.
    fn add(&mut self, name: &str, labels: &Value) {
        let mut made = self.images["digits:latest"].clone();
        made["Id"] = json!(BASE.replace("sha256:0", "sha256:f"));
        made["RepoTags"] = json!([format!("{}{name}", self.lists_below)]);
        made["Config"]["Labels"] = labels.clone();
        self.images.insert(name.to_owned(), made);
    }

    fn tag(&mut self, path: &str, name: &str) {
        let id = path.trim_start_matches("/images/").trim_end_matches("/tag");
        let listed = json!(format!("{}{name}", self.lists_below));
        let tagged = self.images.values_mut().find(|image| image["Id"] == id).expect("the image to tag does not exist");
        tagged["RepoTags"].as_array_mut().unwrap().push(listed);
        let tagged = tagged.clone();
        self.images.insert(name.to_owned(), tagged);
    }

    /// The answer to HEAD and GET of an archive: a tar with the file. A response header contains the file's size, mode
    /// and link target.
    fn file(&self, path: &str) -> Response {
        let Some(text) = self.files.get(path) else {
            return with(StatusCode::NOT_FOUND, &json!({"message": "no such file"}));
        };
        let link = text.strip_prefix("-> ").unwrap_or_default();
        let stat = json!({"name": path, "size": text.len(), "mode": 0o755, "mtime": "2026-01-01T00:00:00Z", "linkTarget": link});
        let mut header = tar::Header::new_ustar();
        header.set_size(text.len() as u64);
        let mut tar = tar::Builder::new(Vec::new());
        tar.append_data(&mut header, path.trim_start_matches('/'), text.as_bytes()).unwrap();
        let header = [("X-Docker-Container-Path-Stat", base64(stat.to_string().as_bytes()))];
        (header, Body::from(tar.into_inner().unwrap())).into_response()
    }
}

fn answer(value: &Value) -> Response {
    with(StatusCode::OK, value)
}

fn with(status: StatusCode, value: &Value) -> Response {
    (status, [("content-type", "application/json")], value.to_string()).into_response()
}

fn file_of(tar: &[u8], wanted: &str) -> Vec<u8> {
    let mut archive = tar::Archive::new(tar);
    let mut entries = archive.entries().unwrap().map(Result::unwrap);
    let mut content = Vec::new();
    let mut entry = entries.find(|entry| entry.path().unwrap().as_os_str() == wanted).expect("the tar lacks a file");
    entry.read_to_end(&mut content).unwrap();
    content
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letters = bytes.chunks(3).flat_map(|chunk| {
        let number = (0..3).fold(0_usize, |sum, place| sum << 8 | usize::from(*chunk.get(place).unwrap_or(&0)));
        (0..4).map(move |place| match place <= chunk.len() {
            true => char::from(LETTERS[number >> (18 - 6 * place) & 63]),
            false => '=',
        })
    });
    letters.collect()
}
