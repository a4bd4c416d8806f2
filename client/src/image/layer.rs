//! Makes the wrapped image as bytes: an archive for `docker load`, or the context of a build. Both add a layer with the
//! agent. The engine must already have the layers of the base, which is the training image. The same base and agent
//! always give the same archive.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use protocol::image::ImageRef;
use protocol::routes::AGENT_PORT;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// The agent's folder in an image.
pub(super) const AGENT_FOLDER: &str = "muster";
/// The program that pods run.
pub(super) const AGENT_PATH: &str = "/muster/agent";
/// The flag that gives the agent one word of the base's ENTRYPOINT.
const ENTRYPOINT_FLAG: &str = "--entrypoint";

/// Label: the id of the image below the agent's layer.
const BASE_LABEL: &str = "muster.base";
/// Label: the SHA-256 of the agent.
const AGENT_LABEL: &str = "muster.agent";
/// Label of an image whose agent listens on all addresses even without a token.
const OPEN_LABEL: &str = "muster.open";
/// Label: the version of the image's layout. Increase `WRAP_VERSION` when the same base and agent must
/// give a different image.
const WRAP_LABEL: &str = "muster.wrap";
const WRAP_VERSION: &str = "2";

/// The variable that names the agent's address, and its value in an open image.
const LISTEN: &str = "MUSTER_LISTEN";
const OPEN_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, AGENT_PORT);

/// Who reaches the agent of a pod without a token. Pods of Muster's master have a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Only the pod itself.
    Loopback,
    /// Everyone in the pod's network, as the first prototype's master needs it.
    Network,
}

/// Length of a content tag, which is a prefix of a digest.
const CONTENT_TAG_CHARACTERS: usize = 12;

/// Names and labels of a wrapped image. They are known before the image is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// The name for people. A later wrapped image may take this name over.
    pub(super) alias: ImageRef,
    /// The name whose tag is a digest of the content. This name always names the same image, so pods that start later
    /// still run the submitted image.
    pub(super) content: ImageRef,
    /// The base, the agent, and the version of the layout.
    pub(super) labels: BTreeMap<&'static str, String>,
    pub(super) reach: Reach,
}

impl Target {
    /// Computes the names and labels from the training image's name and id and the agent's digest.
    pub(super) fn new(image: &ImageRef, base_id: &str, agent_sha256: &str, reach: Reach) -> Self {
        let labels = labels(base_id, agent_sha256, reach);
        let content = format!("{}:{}", image.repository(), content_tag(&labels));
        let content: ImageRef = content.parse().expect("a valid repository and a hexadecimal tag");
        Self { alias: image.of_pods(), content: content.of_pods(), labels, reach }
    }
}

/// A short digest of the labels, which describe the content.
fn content_tag(labels: &BTreeMap<&'static str, String>) -> String {
    let text: String = labels.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    let mut tag = hex::encode(Sha256::digest(text));
    tag.truncate(CONTENT_TAG_CHARACTERS);
    tag
}

fn labels(base_id: &str, agent_sha256: &str, reach: Reach) -> BTreeMap<&'static str, String> {
    let open = match reach {
        Reach::Loopback => None,
        Reach::Network => Some((OPEN_LABEL, "true")),
    };
    let labels = [(BASE_LABEL, base_id), (AGENT_LABEL, agent_sha256), (WRAP_LABEL, WRAP_VERSION)];
    labels.into_iter().chain(open).map(|(name, value)| (name, value.to_owned())).collect()
}

/// The training image.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Base {
    pub(super) id: String,
    /// The processor's name in Docker.
    pub(super) architecture: String,
    /// The processor's variant, such as `v8`.
    pub(super) variant: Option<String>,
    pub(super) os: String,
    /// The date of the training image. The image in the archive gets the same date instead of the current time.
    pub(super) created: Option<String>,
    /// The configuration of the training image, with the field names of the image specification.
    pub(super) config: Map<String, Value>,
    /// The digests of the training image's layers, from the lowest.
    pub(super) layers: Vec<String>,
}

/// The inputs of a wrapped image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wrap<'a> {
    pub(super) base: &'a Base,
    pub(super) agent: &'a [u8],
    /// The words of the base's ENTRYPOINT that the agent puts in front of the command that it starts.
    pub(super) entrypoint: &'a [String],
    pub(super) target: &'a Target,
}

impl Wrap<'_> {
    /// The ENTRYPOINT of the wrapped image. Kubernetes appends the pod's arguments.
    fn command(&self) -> Vec<String> {
        let kept = self.entrypoint.iter().map(|word| format!("{ENTRYPOINT_FLAG}={word}"));
        std::iter::once(AGENT_PATH.to_owned()).chain(kept).collect()
    }

    /// The variable that opens the agent to the network.
    fn variable(&self) -> Option<String> {
        match self.target.reach {
            Reach::Loopback => None,
            Reach::Network => Some(format!("{LISTEN}={OPEN_ADDRESS}")),
        }
    }
}

/// The image as an archive for `docker load`. The image has the user, working directory and variables of the base. The
/// archive names the base's layers but does not contain them.
pub(super) fn archive(wrap: &Wrap<'_>) -> io::Result<Vec<u8>> {
    let Wrap { base, agent, entrypoint: _, target: Target { alias, content, .. } } = wrap;
    let layer = layer(agent)?;
    let config = config(wrap, &digest(&layer)).to_string();
    // The archive does not contain these files. An engine opens the file of a layer only if the engine lacks the layer.
    let layers: Vec<String> = (0..base.layers.len()).map(|place| format!("base/{place}.tar")).collect();
    let layers: Vec<&str> = layers.iter().map(String::as_str).chain(["layer.tar"]).collect();
    let manifest = json!([{ "Config": "config.json", "RepoTags": [content, alias], "Layers": layers }]).to_string();
    let mut tar = tar::Builder::new(Vec::new());
    for (path, content) in
        [("config.json", config.as_bytes()), ("layer.tar", &layer), ("manifest.json", manifest.as_bytes())]
    {
        tar.append_data(&mut file_header(0o644, content.len()), path, content)?;
    }
    tar.into_inner()
}

/// A tar with the agent, owned by root and dated 1970.
fn layer(agent: &[u8]) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut folder = file_header(0o755, 0);
    folder.set_entry_type(tar::EntryType::Directory);
    tar.append_data(&mut folder, format!("{AGENT_FOLDER}/"), io::empty())?;
    tar.append_data(&mut file_header(0o755, agent.len()), AGENT_PATH.trim_start_matches('/'), agent)?;
    tar.into_inner()
}

/// The context of a build that makes an equal image, for an engine that refuses the [`archive`].
pub(super) fn build_context(wrap: &Wrap<'_>) -> io::Result<Vec<u8>> {
    let Wrap { base: _, agent, entrypoint: _, target } = wrap;
    // The values of the labels are digests, a number and `true`, which need no escaping. The base is a build argument.
    let labels: String = target.labels.iter().map(|(name, value)| format!("LABEL {name}=\"{value}\"\n")).collect();
    let command = json!(wrap.command());
    let open = wrap.variable().map(|variable| format!("ENV {variable}\n")).unwrap_or_default();
    let dockerfile = format!("ARG BASE\nFROM ${{BASE}}\nCOPY agent {AGENT_PATH}\nENTRYPOINT {command}\n{open}{labels}");
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_data(&mut file_header(0o644, dockerfile.len()), "Dockerfile", dockerfile.as_bytes())?;
    tar.append_data(&mut file_header(0o755, agent.len()), "agent", *agent)?;
    tar.into_inner()
}

/// A header without date and user, so that the same files always give the same tar.
fn file_header(mode: u32, bytes: usize) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(bytes as u64);
    header
}

/// The image's configuration (`opencontainers/image-spec`, config.md).
fn config(wrap: &Wrap<'_>, layer: &str) -> Value {
    let Wrap { base, agent: _, entrypoint: _, target: Target { labels, .. } } = wrap;
    let Base { id, architecture, variant, os, created, config, layers } = base;
    let mut running = config.clone();
    running.insert("Entrypoint".to_owned(), json!(wrap.command()));
    // Pods would pass CMD to the agent as arguments.
    running.remove("Cmd");
    if let Some(variable) = wrap.variable() {
        let mut variables = running.get("Env").and_then(Value::as_array).cloned().unwrap_or_default();
        // The last value of a variable counts.
        variables.push(json!(variable));
        running.insert("Env".to_owned(), variables.into());
    }
    let mut all_labels = running.get("Labels").and_then(Value::as_object).cloned().unwrap_or_default();
    all_labels.extend(labels.iter().map(|(name, value)| ((*name).to_owned(), json!(value))));
    running.insert("Labels".to_owned(), all_labels.into());
    let of_base = layers.iter().map(|_| json!({ "created_by": format!("a layer of {id}") }));
    let own = json!({ "created_by": format!("muster: {AGENT_PATH}") });
    let mut image = json!({
        "architecture": architecture,
        "os": os,
        "config": running,
        "rootfs": { "type": "layers", "diff_ids": layers.iter().map(String::as_str).chain([layer]).collect::<Vec<_>>() },
        "history": of_base.chain([own]).collect::<Vec<_>>(),
    });
    for (name, value) in [("variant", variant), ("created", created)] {
        if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
            image[name] = json!(value);
        }
    }
    image
}

/// The SHA-256 as `sha256:` and 64 hexadecimal digits.
pub(super) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn base() -> Base {
        let config = json!({
            "User": "1000", "WorkingDir": "/work", "Env": ["PATH=/bin"], "Entrypoint": ["/init"], "Cmd": ["bash"],
            "Labels": {"mine": "kept", "muster.base": "of a wrap below"}, "ExposedPorts": {"80/tcp": {}},
        });
        let Value::Object(config) = config else { unreachable!() };
        Base {
            id: "sha256:base".to_owned(),
            architecture: "arm64".to_owned(),
            variant: Some("v8".to_owned()),
            os: "linux".to_owned(),
            created: Some("2026-01-01T00:00:00Z".to_owned()),
            config,
            layers: vec!["sha256:one".to_owned(), "sha256:two".to_owned()],
        }
    }

    fn files(tar: &[u8]) -> BTreeMap<String, (tar::Header, Vec<u8>)> {
        let mut archive = tar::Archive::new(tar);
        let read = |entry: io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (entry.path().unwrap().display().to_string(), (entry.header().clone(), content))
        };
        archive.entries().unwrap().map(read).collect()
    }

    fn target(image: &str, base_id: &str, agent_sha256: &str) -> Target {
        Target::new(&image.parse().unwrap(), base_id, agent_sha256, Reach::Loopback)
    }

    fn wrapped(agent: &[u8]) -> Vec<u8> {
        let target = target("digits:1", "sha256:base", "abc");
        archive(&Wrap { base: &base(), agent, entrypoint: &[], target: &target }).unwrap()
    }

    /// The configuration in an archive.
    fn configured(archive: &[u8]) -> Value {
        serde_json::from_slice(&files(archive)["config.json"].1).unwrap()
    }

    fn dockerfile(wrap: &Wrap<'_>) -> String {
        String::from_utf8(files(&build_context(wrap).unwrap())["Dockerfile"].1.clone()).unwrap()
    }

    #[test]
    fn the_content_tag_depends_only_on_the_base_and_the_agent() {
        let content = |image: &str, base: &str, agent: &str| target(image, base, agent).content.to_string();
        let name = content("h:5000/digits:1", "sha256:base", "sha256:agent");
        let tag = name.strip_prefix("h:5000/digits_pod:").unwrap();
        assert!(tag.len() == 12 && tag.bytes().all(|byte| byte.is_ascii_hexdigit()), "{tag}");
        assert_eq!(content("h:5000/digits:2", "sha256:base", "sha256:agent"), name);
        assert_ne!(content("h:5000/digits:1", "sha256:other", "sha256:agent"), name);
        assert_ne!(content("h:5000/digits:1", "sha256:base", "sha256:other"), name);
        assert_eq!(target("h:5000/digits:1", "sha256:base", "sha256:agent").alias.to_string(), "h:5000/digits_pod:1");
    }

    #[test]
    fn the_same_base_and_agent_give_the_same_image_and_another_agent_another_image() {
        assert_eq!(wrapped(b"the agent"), wrapped(b"the agent"));
        assert_ne!(
            configured(&wrapped(b"the agent")),
            configured(&wrapped(b"another")),
            "another agent did not change the image's id, which is the digest of the configuration"
        );
    }

    #[test]
    fn the_image_runs_the_agent_without_cmd_and_keeps_the_other_settings_of_the_base() {
        let archive = wrapped(b"the agent");
        let config = configured(&archive);
        let expected = json!({
            "User": "1000", "WorkingDir": "/work", "Env": ["PATH=/bin"], "Entrypoint": ["/muster/agent"],
            "Labels": {"mine": "kept", "muster.base": "sha256:base", "muster.agent": "abc", "muster.wrap": "2"},
            "ExposedPorts": {"80/tcp": {}},
        });
        assert_eq!(config["config"], expected);
        assert_eq!((&config["architecture"], &config["variant"]), (&json!("arm64"), &json!("v8")));
        let layers = json!(["sha256:one", "sha256:two", digest(&files(&archive)["layer.tar"].1)]);
        assert_eq!(config["rootfs"]["diff_ids"], layers);
        assert_eq!(config["history"].as_array().unwrap().len(), 3, "the number of history entries is wrong");
    }

    #[test]
    fn an_open_image_has_another_tag_and_an_agent_that_listens_on_all_addresses() {
        let base = base();
        let [closed, open] = [Reach::Loopback, Reach::Network]
            .map(|reach| Target::new(&"digits:1".parse().unwrap(), "sha256:base", "abc", reach));
        assert_ne!(closed.content, open.content);
        let wrap = Wrap { base: &base, agent: b"the agent", entrypoint: &[], target: &open };
        let config = configured(&archive(&wrap).unwrap());
        assert_eq!(config["config"]["Env"], json!(["PATH=/bin", "MUSTER_LISTEN=0.0.0.0:7896"]));
        assert!(dockerfile(&wrap).contains("\nENV MUSTER_LISTEN=0.0.0.0:7896\n"), "{}", dockerfile(&wrap));
    }

    #[test]
    fn the_archive_names_every_layer_and_contains_only_the_last() {
        let files = files(&wrapped(b"the agent"));
        assert_eq!(files.keys().collect::<Vec<_>>(), ["config.json", "layer.tar", "manifest.json"]);
        let manifest: Value = serde_json::from_slice(&files["manifest.json"].1).unwrap();
        assert_eq!(manifest[0]["Layers"], json!(["base/0.tar", "base/1.tar", "layer.tar"]));
        let content = target("digits:1", "sha256:base", "abc").content;
        assert_eq!(manifest[0]["RepoTags"], json!([content, "digits_pod:1"]));
    }

    #[test]
    fn the_layer_contains_only_the_agent_with_owner_root_and_without_a_date() {
        let files = files(&layer(b"the agent").unwrap());
        assert_eq!(files.keys().collect::<Vec<_>>(), ["muster/", "muster/agent"]);
        for (header, _) in files.values() {
            let owner = (header.uid().unwrap(), header.gid().unwrap());
            assert_eq!((header.mode().unwrap(), owner, header.mtime().unwrap()), (0o755, (0, 0), 0));
        }
        assert_eq!(files["muster/agent"].1, b"the agent");
    }

    #[test]
    fn the_dockerfile_for_a_build_takes_the_base_as_an_argument() {
        let (base, target) = (base(), target("digits:1", "sha256:base", "abc"));
        let wrap = Wrap { base: &base, agent: b"the agent", entrypoint: &[], target: &target };
        let dockerfile = dockerfile(&wrap);
        let begin = "ARG BASE\nFROM ${BASE}\nCOPY agent /muster/agent\nENTRYPOINT [\"/muster/agent\"]\n";
        assert!(dockerfile.starts_with(begin) && dockerfile.contains("LABEL muster.agent=\"abc\"\n"), "{dockerfile}");
        assert_eq!(files(&build_context(&wrap).unwrap())["agent"].0.mode().unwrap(), 0o755);
    }
}
