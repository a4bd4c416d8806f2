//! The code of a test, and an agent with a working directory for the code.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use protocol::code::{CodeId, Manifest, MissingBlobs, Sha256};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Agent, Response};

/// The code of a test: its manifest, and the contents of its blobs.
pub(crate) struct Code {
    pub(crate) manifest: Manifest,
    contents: BTreeMap<Sha256, Vec<u8>>,
}

impl Code {
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let contents = files.iter().map(|(_, text)| (Sha256::of(text.as_bytes()), text.as_bytes().to_vec())).collect();
        let files: Vec<Value> = files
            .iter()
            .map(|(path, text)| {
                json!({
                    "path": path, "sha256": Sha256::of(text.as_bytes()), "size": text.len(),
                    "executable": path.ends_with(".sh"),
                })
            })
            .collect();
        Self { manifest: serde_json::from_value(json!({ "files": files })).unwrap(), contents }
    }

    pub(crate) fn id(&self) -> CodeId {
        self.manifest.id()
    }

    pub(crate) fn stream(&self, blobs: &[Sha256]) -> Vec<u8> {
        blobs.iter().flat_map(|blob| [blob.as_bytes().as_slice(), &self.contents[blob]].concat()).collect()
    }
}

/// An agent with its working directory.
pub(crate) struct Place {
    pub(crate) folder: TempDir,
    pub(crate) agent: Agent,
}

impl Place {
    pub(crate) fn new(command: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let agent = Agent::start(&["--work-dir", folder.path().to_str().unwrap()], command);
        Self { folder, agent }
    }

    pub(crate) fn offer(&self, code: &Code) -> Vec<Sha256> {
        let answer = self.put(code.id(), "", serde_json::to_string(&code.manifest).unwrap().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_slice::<MissingBlobs>(&answer.body).unwrap().missing
    }

    pub(crate) fn put(&self, id: impl std::fmt::Display, route: &str, body: &[u8]) -> Response {
        self.agent.request_bytes("PUT", &format!("/code/{id}{route}"), body)
    }

    /// Delivers code as a whole, and returns the number of blobs that were sent.
    pub(crate) fn deliver(&self, code: &Code) -> usize {
        let missing = self.offer(code);
        if !missing.is_empty() {
            let answer = self.put(code.id(), "/blobs", &code.stream(&missing));
            assert_eq!((answer.status, answer.text()), (200, r#"{"missing":[]}"#.to_owned()));
        }
        missing.len()
    }

    pub(crate) fn configure(&self, code: &Code, generation: &str) -> Response {
        self.agent.post(&format!("/config?generation={generation}&code={}", code.id()), "{}")
    }

    /// Delivers code, and configures a start with it.
    pub(crate) fn push(&self, code: &Code, generation: &str) {
        self.deliver(code);
        assert_eq!(self.configure(code, generation).status, 200);
    }

    /// Another agent for the same working directory, with this folder for arriving code unless it is empty.
    pub(crate) fn next_agent(&self, code_dir: &str) -> Agent {
        let flags = ["--work-dir", self.folder.path().to_str().unwrap(), "--code-dir", code_dir];
        Agent::start(if code_dir.is_empty() { &flags[..2] } else { &flags }, &["python3", "train.py"])
    }

    /// An agent whose code arrives in this place's folder and belongs into `shared`.
    pub(crate) fn sharing(&self, shared: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["--work-dir", shared.to_str().unwrap(), "--code-dir", self.folder.path().to_str().unwrap()];
        Self { folder, agent: Agent::start(&flags, &["python3", "train.py"]) }
    }

    /// The files of the working directory with their contents, without the agent's own folder.
    pub(crate) fn files(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        collect(self.folder.path(), "", &mut found);
        found
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn collect(folder: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        match entry.file_type().unwrap() {
            kind if kind.is_dir() && name != ".muster" => collect(&entry.path(), &format!("{name}/"), found),
            kind if kind.is_file() => drop(found.insert(name, fs::read_to_string(entry.path()).unwrap())),
            _ => {}
        }
    }
}

pub(crate) fn files(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}
