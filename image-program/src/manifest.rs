//! The documents of a registry: the manifest of an image, the index of the images for several platforms, and the
//! configuration of an image (pure).

use protocol::image::Entrypoint;
use serde_json::Value;

/// Maximum size of a program with its arguments, in bytes. The record of a job contains them.
const PROGRAM_MAX: usize = 64 * 1024;

/// The manifest at a tag or a digest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Manifest {
    /// The image with this digest of its configuration.
    Image { config: String },
    /// Images for several platforms.
    Index(Vec<Entry>),
}

/// An image of an index.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    digest: String,
    os: String,
    architecture: String,
}

/// This machine's architecture, as images name it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Reads a manifest. `None` if it has another format.
pub(crate) fn read(body: &[u8]) -> Option<Manifest> {
    let manifest: Value = serde_json::from_slice(body).ok()?;
    if let Some(digest) = manifest["config"]["digest"].as_str() {
        return Some(Manifest::Image { config: digest.to_owned() });
    }
    let entries = manifest["manifests"].as_array()?.iter().filter_map(|entry| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let platform = &entry["platform"];
        let (os, architecture) = (text(&platform["os"]), text(&platform["architecture"]));
        Some(Entry { digest: entry["digest"].as_str()?.to_owned(), os, architecture })
    });
    Some(Manifest::Index(entries.collect()))
}

/// The digest of the image for Linux on this architecture. If the index has one image for Linux, chooses this image:
/// the nodes may have another architecture than this machine.
///
/// # Errors
/// Describes the platforms of the index, without a subject.
pub(crate) fn choose(entries: &[Entry], architecture: &str) -> Result<String, String> {
    // Indexes list signatures and lists of contents as images for an unknown platform.
    let of_linux: Vec<&Entry> = entries.iter().filter(|entry| entry.os == "linux").collect();
    let own = of_linux.iter().find(|entry| entry.architecture == architecture);
    match (own, &of_linux[..]) {
        (Some(chosen), _) | (None, [chosen]) => Ok(chosen.digest.clone()),
        (None, _) => {
            let others: Vec<String> =
                entries.iter().map(|entry| format!("{}/{}", entry.os, entry.architecture)).collect();
            Err(format!("has no image for linux/{architecture}, but for: {}", others.join(", ")))
        }
    }
}

/// Reads ENTRYPOINT, CMD and USER from an image's configuration.
///
/// # Errors
/// Describes what is wrong, without a subject.
pub(crate) fn program(body: &[u8]) -> Result<Entrypoint, &'static str> {
    const NO_IMAGE: &str = "has a configuration that is not that of an image";
    let found: Value = serde_json::from_slice(body).map_err(|_| NO_IMAGE)?;
    let words = |list: &Value| match list {
        Value::Null => Ok(vec![]),
        Value::Array(words) => words.iter().map(|word| word.as_str().map(str::to_owned).ok_or(NO_IMAGE)).collect(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => Err(NO_IMAGE),
    };
    let config = &found["config"];
    let (command, args) = (words(&config["Entrypoint"])?, words(&config["Cmd"])?);
    let user = config["User"].as_str().unwrap_or_default().to_owned();
    let size: usize = command.iter().chain(&args).chain([&user]).map(String::len).sum();
    if size > PROGRAM_MAX { Err("has a program longer than 64 KiB") } else { Ok(Entrypoint { command, args, user }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn no_document_makes_the_readers_panic(
            text in r#"\{("(config|manifests|digest|platform|os|Entrypoint|Cmd|User)":(\{|\[|"a"|1|null|\},|\],|,)?){0,9}[\]}]{0,5}"#,
        ) {
            if let Some(Manifest::Index(entries)) = read(text.as_bytes())
                && let Ok(chosen) = choose(&entries, "amd64")
            {
                prop_assert!(entries.iter().any(|entry| entry.digest == chosen));
            }
            let _ = program(text.as_bytes());
        }
    }

    fn index(platforms: &[&str]) -> Vec<Entry> {
        let of_platform = |(place, name): (usize, &&str)| {
            let (os, architecture) = name.split_once('/').unwrap();
            json!({ "digest": format!("sha256:{place}"), "platform": { "os": os, "architecture": architecture } })
        };
        let entries: Vec<Value> = platforms.iter().enumerate().map(of_platform).collect();
        let read = read(json!({ "schemaVersion": 2, "manifests": entries }).to_string().as_bytes());
        let Some(Manifest::Index(entries)) = read else { panic!("{read:?}") };
        entries
    }

    #[test]
    fn an_index_gives_the_image_of_this_architecture_or_its_only_image() {
        let several = ["linux/arm64", "windows/amd64", "linux/amd64", "unknown/unknown"];
        assert_eq!(choose(&index(&several), "amd64").unwrap(), "sha256:2");
        assert_eq!(choose(&index(&["linux/arm64", "unknown/unknown"]), "amd64").unwrap(), "sha256:0");
        let error = choose(&index(&["linux/arm64", "linux/s390x"]), "amd64").unwrap_err();
        assert_eq!(error, "has no image for linux/amd64, but for: linux/arm64, linux/s390x");
        assert!(choose(&[], "amd64").is_err());
    }

    #[test]
    fn a_program_of_words_is_read_and_any_other_configuration_is_refused() {
        let read = |config: Value| program(json!({ "config": config }).to_string().as_bytes());
        let found = read(json!({ "Entrypoint": ["python"], "Cmd": ["/train.py", "-v"], "User": "tf" })).unwrap();
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(found, Entrypoint { command: words("python"), args: words("/train.py -v"), user: "tf".to_owned() });
        assert_eq!(read(Value::Null).unwrap(), Entrypoint::default());
        assert!(read(json!({ "Cmd": "python" })).is_err());
        assert!(read(json!({ "Cmd": [1] })).is_err());
        assert!(read(json!({ "Cmd": ["a".repeat(PROGRAM_MAX + 1)] })).is_err());
        assert!(program(b"<html>").is_err());
    }
}
