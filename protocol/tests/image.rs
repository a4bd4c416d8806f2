//! Names of images: the grammar, and the names that follow from one.

use protocol::image::ImageRef;

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn image(text: &str) -> ImageRef {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn names_are_written_as_they_were_read() {
    let with_digest = format!("r.example/a:1@{DIGEST}");
    for text in [
        "a",
        "a:1",
        "a/b_c/d__e/f--g.h:V1.0-x_y",
        "localhost/a",
        "r.example:5000/team/a:1",
        "10.0.0.1:5/a",
        &with_digest,
    ] {
        assert_eq!(image(text).to_string(), text);
    }
    assert_eq!((image("r.example:5000/a").repository(), image("r.example:5000/a").tag()), ("r.example:5000/a", None));
}

#[test]
fn what_is_no_name_is_refused() {
    let id = "a".repeat(64);
    let long = "a".repeat(256);
    for text in [
        "",
        " ",
        "A",
        "a b",
        "a\nRUN x",
        "a:",
        ":1",
        "a:-1",
        "a/",
        "/a",
        "a//b",
        "-a",
        "a-",
        "a..b",
        "a___b",
        "a._b",
        "a@",
        "a@sha256:12",
        "a:1:2",
        "https://r.example/a",
        "r.example:x/a",
        "a;b",
        "$a",
        "é",
        &id,
        &long,
    ] {
        assert!(text.parse::<ImageRef>().is_err(), "{text:?}");
    }
}

#[test]
fn the_image_of_the_pods_is_named_after_the_users() {
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
fn an_image_can_be_named_elsewhere_and_by_its_content() {
    let below = |name: &str, registry: &str| image(name).below(registry).map(|image| image.to_string());
    assert_eq!(below("a_pod:1", "r.example:5000/team/"), Some("r.example:5000/team/a_pod:1".to_owned()));
    assert_eq!(below("old.example/b/a_pod:1", "localhost:5000"), Some("localhost:5000/b/a_pod:1".to_owned()));
    assert_eq!(below("a", "No Registry"), None);
    assert_eq!(image("r.example/a:1").at(DIGEST), Some(image(&format!("r.example/a@{DIGEST}"))));
    assert_eq!(image("a").at("latest"), None);
}
