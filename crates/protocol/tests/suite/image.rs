//! Image names: the grammar, and the names that Muster derives.

use proptest::prelude::*;
use protocol::image::ImageRef;

use crate::common::words;

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn image(text: &str) -> ImageRef {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_name_is_written_back_unchanged() {
    let with_digest = format!("r.example/a:1@{DIGEST}");
    let names = "a a:1 a/b_c/d__e/f--g.h:V1.0-x_y localhost/a r.example:5000/team/a:1 10.0.0.1:5/a [::1]/a \
        [fd00::1]:5000/a:1 Registry/a";
    for text in words(names).into_iter().chain([&*with_digest]) {
        assert_eq!(image(text).to_string(), text);
    }
    assert_eq!((image("r.example:5000/a").repository(), image("r.example:5000/a").tag()), ("r.example:5000/a", None));
}

#[test]
fn invalid_names_are_refused() {
    let id = "a".repeat(64);
    let long = "a".repeat(256);
    let names = "A a: :1 a:-1 a/ /a a//b -a a- a..b a___b a._b a@ a@sha256:12 a:1:2 https://r.example/a r.example:x/a \
        a;b $a [::1] []/a [::1]x/a [::1]:/a [r.example]/a Registry é";
    for text in words(names).into_iter().chain(["", " ", "a b", "a\nRUN x", &id, &long]) {
        assert!(text.parse::<ImageRef>().is_err(), "{text:?}");
    }
}

#[test]
fn an_image_has_the_host_of_its_name_unless_docker_hub_has_it() {
    let parts = |name: &str| (image(name).host().map(str::to_owned), image(name).path().to_owned());
    for (name, host, path) in [
        ("r.example:5000/team/a:1", Some("r.example:5000"), "team/a"),
        ("localhost/a", Some("localhost"), "a"),
        ("team/a", None, "team/a"),
        ("docker.io/team/a", None, "team/a"),
        ("index.docker.io/a", None, "a"),
        ("registry-1.docker.io/a", None, "a"),
    ] {
        assert_eq!(parts(name), (host.map(str::to_owned), path.to_owned()), "{name}");
    }
}

#[test]
fn the_wrapped_image_is_named_after_the_training_image() {
    for (base, pods) in [
        ("allreduce", "allreduce_pod:latest"),
        ("r.example:5000/team/a:1.2", "r.example:5000/team/a_pod:1.2"),
        (&format!("a@{DIGEST}"), "a_pod:e3b0c44298fc"),
        (&format!("a:1@{DIGEST}"), "a_pod:1"),
    ] {
        assert_eq!(image(base).of_pods(), image(pods));
    }
}

#[test]
fn an_image_can_be_named_in_another_registry_and_by_digest() {
    let below = |name: &str, registry: &str| image(name).below(registry).map(|image| image.to_string());
    assert_eq!(below("a_pod:1", "r.example:5000/team/"), Some("r.example:5000/team/a_pod:1".to_owned()));
    assert_eq!(below("old.example/b/a_pod:1", "localhost:5000"), Some("localhost:5000/b/a_pod:1".to_owned()));
    assert_eq!(below("a", "No Registry"), None);
    assert_eq!(image("r.example/a:1").at(DIGEST), Some(image(&format!("r.example/a@{DIGEST}"))));
    assert_eq!(image("a").at("latest"), None);
}

/// Names by the grammar in reference.go and regexp.go of `distribution/reference`.
fn by_the_grammar() -> impl Strategy<Value = String> {
    let host = "(localhost|[a-z0-9]{1,5}(\\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,5}[a-zA-Z0-9])?){1,3}|\\[[0-9a-f:]{2,9}\\])(:[0-9]{1,5})?/";
    let path =
        "[a-z0-9]{1,6}(([.]|_|__|-{1,3})[a-z0-9]{1,6}){0,2}(/[a-z0-9]{1,6}(([.]|_|__|-{1,3})[a-z0-9]{1,6}){0,2}){0,2}";
    let tag = ":[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}";
    let digest = "@sha(256:[0-9a-f]{64}|512:[0-9a-f]{128})";
    proptest::string::string_regex(&format!("({host})?{path}({tag})?({digest})?")).expect("an invalid pattern")
}

proptest! {
    #[test]
    fn every_name_of_the_grammar_reads_back(text in by_the_grammar()) {
        let image: ImageRef = text.parse().unwrap_or_else(|error| panic!("{error}"));
        prop_assert_eq!(image.to_string(), &*text);
        let pods = image.of_pods();
        prop_assert_eq!(pods.to_string().parse(), Ok(pods), "the name of the pod image does not read back");
    }

    #[test]
    fn parsed_text_is_unchanged(text in any::<String>().boxed().prop_union("[a-zA-Z0-9.:/@_\\[\\]-]{0,24}".boxed())) {
        if let Ok(image) = text.parse::<ImageRef>() {
            prop_assert_eq!(image.to_string(), &*text);
            prop_assert!(text.bytes().all(|b| b.is_ascii_graphic()));
        }
    }
}
