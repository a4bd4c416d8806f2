//! The memory that the largest answers of registries need.

use std::fs;

use image_program::LookUpError;
use serde_json::json;
use testkit::registry::{FakeAnswer, FakeRegistry, TestImage, digest};

use super::{entrypoint, program};

/// Bytes of the largest answer.
const ANSWER_MAX: usize = 4 * 1024 * 1024;
/// Memory for a look-up and for the registry of the test. The master has 512 MiB, and looks up eight programs at a time.
const KILOBYTES_MAX: u64 = 48 * 1024;

/// An answer of the largest size, with `item` as often as it fits between `begin` and `end`.
fn full(begin: &str, item: &str, end: &str) -> Vec<u8> {
    let count = (ANSWER_MAX - begin.len() - end.len()) / (item.len() + 1);
    let others = format!("{item},").repeat(count - 1);
    format!("{begin}{others}{item}{end}").into_bytes()
}

/// An image with this configuration.
fn configured(config: Vec<u8>) -> TestImage {
    let manifest = json!({ "config": { "digest": digest(&config) } }).to_string().into_bytes();
    TestImage { config, manifest }
}

/// Maximum memory of this process so far.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("cannot read the status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("no peak");
    line.trim().trim_end_matches(" kB").parse().expect("not a number")
}

/// A registry with the program `train`, which it gives only to callers with a token of this token server's answer.
async fn closed(registry: &FakeRegistry, answer: Vec<u8>) -> String {
    let train = TestImage::new(&json!({ "Cmd": ["train"] }));
    let name = registry.push("closed:1", &train).await;
    let realm = format!("Bearer realm=\"http://{}/token\"", registry.host());
    let headers = vec![("www-authenticate", realm)];
    let manifest = FakeAnswer { headers, wants: Some("Bearer abc".to_owned()), ..FakeAnswer::ok(train.manifest) };
    registry.set("/v2/closed/manifests/1", manifest).await;
    registry.set("/token", FakeAnswer::ok(answer)).await;
    name
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_answers_of_small_items_need_little_memory() {
    const MAP: &str = r#"{"a":0}"#;
    let registry = FakeRegistry::start().await;
    let push = async |name, config| registry.push(name, &configured(config)).await;
    let index = registry.push_manifest("index:1", &full(r#"{"manifests":["#, MAP, "]}")).await;
    let maps = push("maps:1", full(r#"{"config":{"Cmd":["#, MAP, "]}}")).await;
    let empty = push("empty:1", full(r#"{"config":{"Cmd":["#, r#""""#, "]}}")).await;
    let unread = push("unread:1", full(r#"{"config":{"Cmd":["train"],"Labels":["#, MAP, "]}}")).await;
    let closed = closed(&registry, full(r#"{"token":"abc","more":["#, MAP, "]}")).await;

    let before = peak();
    for name in [index, maps, empty, unread, closed] {
        match program(&name, None).await {
            Ok(program) => assert_eq!(program, entrypoint(&[], &["train"], "")),
            Err(error) => assert!(matches!(error, LookUpError::Unusable(_)), "{name}: {error}"),
        }
        let grown = peak() - before;
        assert!(grown < KILOBYTES_MAX, "{name} needed {grown} kB");
    }
}
