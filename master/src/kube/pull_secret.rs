//! The login for a registry in a Secret of the type kubernetes.io/dockerconfigjson (pure). Runs no credential helper.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image_program::Login;
use protocol::image::ImageRef;
use serde_json::Value;

/// The key of the Secret's data.
pub(super) const KEY: &str = ".dockerconfigjson";
/// The names under which Secrets have the login of Docker Hub.
const HUB: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// What a Secret has for the registry of an image.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing, or nothing that can be read.
    Nothing,
    Login(Login),
    /// An identity token, with which only Docker can log in.
    IdentityToken,
}

/// Finds the login for the registry of an image. Other registries never get it.
pub(super) fn login(config: &[u8], image: &ImageRef) -> Found {
    let config: Value = serde_json::from_slice(config).unwrap_or_default();
    let auths = config["auths"].as_object().into_iter().flatten();
    let Some((_, auth)) = auths.into_iter().find(|(server, _)| is_of(server, image.host())) else {
        return Found::Nothing;
    };
    let text = |name: &str| auth[name].as_str().filter(|text| !text.is_empty());
    if text("identitytoken").is_some() {
        return Found::IdentityToken;
    }
    let decoded =
        text("auth").and_then(|auth| STANDARD.decode(auth).ok()).and_then(|auth| String::from_utf8(auth).ok());
    let parts = match (&decoded, text("username"), text("password")) {
        (Some(decoded), _, _) => decoded.split_once(':'),
        (None, Some(user), Some(password)) => Some((user, password)),
        (None, _, _) => None,
    };
    parts.map_or(Found::Nothing, |(user, password)| {
        Found::Login(Login { user: user.to_owned(), password: password.to_owned() })
    })
}

/// Whether an entry, such as `https://index.docker.io/v1/`, is for this host.
fn is_of(server: &str, host: Option<&str>) -> bool {
    let server = server.strip_prefix("https://").or(server.strip_prefix("http://")).unwrap_or(server);
    let server = server.split('/').next().unwrap_or_default();
    match host {
        Some(host) if !HUB.contains(&host) => server == host,
        Some(_) | None => HUB.contains(&server),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(auths: &Value, image: &str) -> Found {
        login(json!({ "auths": auths }).to_string().as_bytes(), &image.parse().unwrap())
    }

    #[test]
    fn only_the_entry_of_the_images_own_host_is_used() {
        let team = Login { user: "team".to_owned(), password: "se:cret".to_owned() };
        let auth = json!({ "auth": STANDARD.encode("team:se:cret") });
        let named = json!({ "username": "team", "password": "se:cret" });
        for (server, entry, image) in [
            ("r.example:5000", &auth, "r.example:5000/mnist"),
            ("https://r.example/v1/", &named, "r.example/mnist:1"),
            ("https://index.docker.io/v1/", &auth, "me/mnist"),
            ("docker.io", &auth, "registry-1.docker.io/me/mnist"),
        ] {
            assert_eq!(found(&json!({ server: entry }), image), Found::Login(team.clone()), "{server}");
        }
        for (server, image) in [
            ("r.example", "r.example:5000/mnist"),
            ("r.example", "evil.r.example/mnist"),
            ("r.example", "me/mnist"),
            ("https://index.docker.io/v1/", "r.example/mnist"),
            ("", "mnist"),
        ] {
            assert_eq!(found(&json!({ server: auth }), image), Found::Nothing, "{server}");
        }
    }

    #[test]
    fn an_identity_token_is_named_and_a_broken_entry_is_no_login() {
        let token = json!({ "auth": STANDARD.encode("00000000:"), "identitytoken": "abc" });
        assert_eq!(found(&json!({ "r.example": token }), "r.example/mnist"), Found::IdentityToken);
        for entry in [json!({}), json!({ "auth": "*" }), json!({ "auth": STANDARD.encode("team") }), json!(1)] {
            assert_eq!(found(&json!({ "r.example": entry }), "r.example/mnist"), Found::Nothing);
        }
        assert_eq!(login(b"not JSON", &"mnist".parse().unwrap()), Found::Nothing);
    }
}
