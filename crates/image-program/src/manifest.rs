//! The documents of a registry: the manifest of an image, the index of the images for several platforms, and the
//! configuration of an image (pure).

use std::fmt;
use std::marker::PhantomData;

use protocol::image::Entrypoint;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

/// Maximum size of a program with its arguments, in bytes. The record of a job contains them.
const PROGRAM_MAX: usize = 64 * 1024;
/// Maximum number of words in ENTRYPOINT, and in CMD.
const WORDS_MAX: usize = 1024;
/// Maximum number of images that are read from an index. The public images with the most platforms have about 30.
const ENTRIES_MAX: usize = 1000;
/// Maximum number of platforms in a message.
const SHOWN_MAX: usize = 10;

/// The manifest at a tag or a digest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ImageManifest {
    /// The image with this digest of its configuration.
    Image { config: String },
    /// Images for several platforms.
    Index(Vec<Entry>),
}

/// An image of an index.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Entry {
    #[serde(default)]
    digest: String,
    platform: Option<Platform>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Platform {
    os: String,
    architecture: String,
}

impl Entry {
    /// The platform, for a message: a few printable characters of what the registry has sent.
    fn shown(&self) -> String {
        let short = |text: &str| text.chars().filter(char::is_ascii_graphic).take(20).collect::<String>();
        let platform = self.platform.as_ref();
        platform
            .map_or_else(|| "any".to_owned(), |found| format!("{}/{}", short(&found.os), short(&found.architecture)))
    }
}

/// This machine's architecture, as images name it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The first items of a list, at most `MAX`. Skips the others, so that a short text cannot fill the memory with a million
/// small items.
#[derive(Debug, Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
struct First<T, const MAX: usize>(#[serde(deserialize_with = "first::<_, _, MAX>")] Vec<T>);

fn first<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MAX: usize>(list: D) -> Result<Vec<T>, D::Error> {
    list.deserialize_seq(FirstVisitor::<T, MAX>(PhantomData))
}

struct FirstVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for FirstVisitor<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut items = vec![];
        while items.len() < MAX {
            let Some(item) = list.next_element()? else { return Ok(items) };
            items.push(item);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(items)
    }
}

/// Reads a manifest. `None` if it has another format.
pub(crate) fn read(body: &[u8]) -> Option<ImageManifest> {
    #[derive(Deserialize)]
    struct Document {
        config: Option<Configuration>,
        manifests: Option<First<Entry, ENTRIES_MAX>>,
    }
    #[derive(Deserialize)]
    struct Configuration {
        digest: String,
    }
    let Document { config, manifests } = serde_json::from_slice(body).ok()?;
    let image = config.map(|config| ImageManifest::Image { config: config.digest });
    image.or_else(|| manifests.map(|entries| ImageManifest::Index(entries.0)))
}

/// The digest of the image for Linux on this architecture. If the index has no such image, but only one image for
/// Linux, chooses that image: the nodes may have another architecture than this machine. An image without a platform
/// may be for Linux.
///
/// # Errors
/// Describes the platforms of the index, without a subject.
pub(crate) fn choose(entries: Vec<Entry>, architecture: &str) -> Result<String, String> {
    // Indexes list signatures and lists of contents as images for an unknown platform.
    let may_be_for_linux = |entry: &Entry| entry.platform.as_ref().is_none_or(|platform| platform.os == "linux");
    let (of_linux, others): (Vec<Entry>, Vec<Entry>) = entries.into_iter().partition(may_be_for_linux);
    let is_own = |entry: &&Entry| entry.platform.as_ref().is_some_and(|found| found.architecture == architecture);
    match (of_linux.iter().find(is_own), &of_linux[..]) {
        (Some(chosen), _) | (None, [chosen]) => Ok(chosen.digest.clone()),
        (None, _) => {
            let shown: Vec<String> = of_linux.iter().chain(&others).take(SHOWN_MAX).map(Entry::shown).collect();
            let more = if of_linux.len() + others.len() > SHOWN_MAX { " and more" } else { "" };
            Err(format!("has no image for linux/{architecture}, but for: {}{more}", shown.join(", ")))
        }
    }
}

/// Reads ENTRYPOINT, CMD and USER from an image's configuration.
///
/// # Errors
/// Describes what is wrong, without a subject.
pub(crate) fn program(body: &[u8]) -> Result<Entrypoint, &'static str> {
    // One word more than a program may have.
    type Words = First<String, { WORDS_MAX + 1 }>;
    #[derive(Deserialize)]
    struct Configuration {
        config: Option<Defaults>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Defaults {
        entrypoint: Option<Words>,
        cmd: Option<Words>,
        user: Option<String>,
    }
    let found: Configuration =
        serde_json::from_slice(body).map_err(|_| "has a configuration that is not that of an image")?;
    let Defaults { entrypoint, cmd, user } = found.config.unwrap_or_default();
    let words = |list: Option<Words>| list.map(|words| words.0).unwrap_or_default();
    let (command, args, user) = (words(entrypoint), words(cmd), user.unwrap_or_default());
    let size: usize = command.iter().chain(&args).chain([&user]).map(String::len).sum();
    if command.len().max(args.len()) > WORDS_MAX {
        Err("has a program of more than 1,024 words")
    } else if size > PROGRAM_MAX {
        Err("has a program longer than 64 KiB")
    } else {
        Ok(Entrypoint { command, args, user })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    proptest! {
        #[test]
        fn no_document_makes_the_readers_panic(
            text in r#"\{("(config|manifests|digest|platform|os|Entrypoint|Cmd|User)":(\{|\[|"a"|1|null|\},|\],|,)?){0,9}[\]}]{0,5}"#,
        ) {
            if let Some(ImageManifest::Index(entries)) = read(text.as_bytes())
                && let digests = entries.iter().map(|entry| entry.digest.clone()).collect::<Vec<_>>()
                && let Ok(chosen) = choose(entries, "amd64")
            {
                prop_assert!(digests.contains(&chosen));
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
        let Some(ImageManifest::Index(entries)) = read else { panic!("{read:?}") };
        entries
    }

    #[test]
    fn an_index_gives_the_image_of_this_architecture_or_its_only_image() {
        let several = ["linux/arm64", "windows/amd64", "linux/amd64", "unknown/unknown"];
        assert_eq!(choose(index(&several), "amd64").unwrap(), "sha256:2");
        assert_eq!(choose(index(&["linux/arm64", "unknown/unknown"]), "amd64").unwrap(), "sha256:0");
        let error = choose(index(&["linux/arm64", "linux/s390x"]), "amd64").unwrap_err();
        assert_eq!(error, "has no image for linux/amd64, but for: linux/arm64, linux/s390x");
        assert!(choose(vec![], "amd64").is_err());
    }

    #[test]
    fn an_image_without_a_platform_is_chosen_if_no_other_is_for_linux() {
        let entries = |text: &str| match read(text.as_bytes()) {
            Some(ImageManifest::Index(entries)) => entries,
            other => panic!("{other:?}"),
        };
        let one = r#"{"manifests":[{"digest":"a"},{"digest":"b","platform":{"os":"windows","architecture":"amd64"}}]}"#;
        assert_eq!(choose(entries(one), "amd64").unwrap(), "a");
        let two = r#"{"manifests":[{"digest":"a"},{"digest":"b"}]}"#;
        assert_eq!(choose(entries(two), "amd64").unwrap_err(), "has no image for linux/amd64, but for: any, any");
    }

    #[test]
    fn a_long_index_is_read_in_part_and_its_platforms_make_a_short_message() {
        let long = format!("\u{1b}[2Jlinux/{}", "x".repeat(5000));
        let entries = index(&vec![long.as_str(); ENTRIES_MAX + 5]);
        assert_eq!(entries.len(), ENTRIES_MAX);
        let error = choose(entries, "amd64").unwrap_err();
        assert!(error.len() < 500 && error.ends_with(" and more") && !error.contains('\u{1b}'), "{error:?}");
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
        assert_eq!(read(json!({ "Cmd": ["a".repeat(PROGRAM_MAX + 1)] })), Err("has a program longer than 64 KiB"));
        assert_eq!(read(json!({ "Cmd": vec!["a"; WORDS_MAX] })).unwrap().args.len(), WORDS_MAX);
        let longer = read(json!({ "Entrypoint": vec!["a"; WORDS_MAX + 1] }));
        assert_eq!(longer, Err("has a program of more than 1,024 words"));
        assert!(program(b"<html>").is_err());
    }
}
