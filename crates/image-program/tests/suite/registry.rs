//! Look-ups in docker-registry (a package of Debian): `cargo test -p image-program --test suite registry -- --ignored`.

use image_program::LookUpError;
use serde_json::json;
use testkit::registry::{RealRegistry, Secured, TestImage, index};

use super::{HERE, entrypoint, login, program, running};

#[tokio::test]
#[ignore = "needs docker-registry"]
async fn docker_registry_gives_the_programs_of_images_and_of_an_index() {
    let registry = RealRegistry::start(Secured::No);
    let both = TestImage::new(&json!({ "Entrypoint": ["python"], "Cmd": ["/train.py"], "User": "1000" }));
    let name = registry.push("team/mnist:1", &both);
    assert_eq!(program(&name, None).await, Ok(entrypoint(&["python"], &["/train.py"], "1000")));
    let other = running("other");
    registry.push("team/mnist:other", &other);
    let name = registry.push_manifest("team/mnist:2", &index(&[("linux/s390x", &other), (HERE, &both)]));
    assert_eq!(program(&name, None).await, Ok(entrypoint(&["python"], &["/train.py"], "1000")));
    let absent = format!("{}/team/mnist:3", registry.host());
    assert_eq!(program(&absent, None).await, Err(LookUpError::Refused { host: registry.host(), status: 404 }));
}

#[tokio::test]
#[ignore = "needs docker-registry"]
async fn docker_registry_with_a_password_gives_the_program_only_with_the_login() {
    let registry = RealRegistry::start(Secured::ByPassword);
    let name = registry.push("mnist:1", &running("train"));
    let refused = LookUpError::Refused { host: registry.host(), status: 401 };
    assert_eq!(program(&name, None).await, Err(refused.clone()));
    assert_eq!(program(&name, Some(&login())).await, Ok(entrypoint(&["train"], &[], "")));
    let wrong = image_program::Login { password: "other".to_owned(), ..login() };
    assert_eq!(program(&name, Some(&wrong)).await, Err(refused));
}
