//! Finds the login for an image in a Secret of the type kubernetes.io/dockerconfigjson. Does no I/O, and runs no
//! credential helper.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image_program::Login;
use image_program::logins::{Fit, fit};
use protocol::image::ImageRef;
use serde::Deserialize;

/// The key of the Secret's data.
pub(super) const KEY: &str = ".dockerconfigjson";

/// What an entry of a Secret has.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SecretEntry {
    Login(Login),
    /// An identity token, with which only Docker can log in.
    IdentityToken,
}

/// The entry of a Secret for an image.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ImageEntry {
    pub(super) kept: SecretEntry,
    fit: Fit,
}

impl ImageEntry {
    /// The entry with the greatest rank is used. Any login is better than an identity token.
    pub(super) fn rank(&self) -> (bool, Fit) {
        (matches!(self.kept, SecretEntry::Login(_)), self.fit)
    }
}

#[derive(Deserialize)]
struct PullConfig {
    auths: BTreeMap<String, Auth>,
}

#[derive(Deserialize)]
struct Auth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

/// Finds the best entry for an image. `None` if no entry is for this image, or if no such entry can be read.
pub(super) fn find(config: &[u8], image: &ImageRef) -> Option<ImageEntry> {
    let config: PullConfig = serde_json::from_slice(config).ok()?;
    let of_image = config.auths.into_iter().filter_map(|(key, auth)| {
        let fit = fit(&key, image)?;
        Some(ImageEntry { kept: kept(auth)?, fit })
    });
    of_image.max_by_key(ImageEntry::rank)
}

fn kept(auth: Auth) -> Option<SecretEntry> {
    let Auth { auth, username, password, identitytoken } = auth;
    if identitytoken.is_some_and(|token| !token.is_empty()) {
        return Some(SecretEntry::IdentityToken);
    }
    let decoded = auth.and_then(|auth| String::from_utf8(STANDARD.decode(auth).ok()?).ok());
    let (user, password) = match &decoded {
        Some(decoded) if !decoded.is_empty() => decoded.split_once(':')?,
        Some(_) | None => (username.as_deref()?, password.as_deref()?),
    };
    Some(SecretEntry::Login(Login { user: user.to_owned(), password: password.to_owned() }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(auths: &Value, image: &str) -> Option<SecretEntry> {
        find(json!({ "auths": auths }).to_string().as_bytes(), &image.parse().unwrap()).map(|found| found.kept)
    }

    fn of(user: &str) -> Value {
        json!({ "auth": STANDARD.encode(format!("{user}:se:cret")) })
    }

    fn login(user: &str) -> Option<SecretEntry> {
        Some(SecretEntry::Login(Login { user: user.to_owned(), password: "se:cret".to_owned() }))
    }

    #[test]
    fn a_login_is_in_one_field_or_in_two_and_only_for_its_registry() {
        let named = json!({ "username": "team", "password": "se:cret" });
        for entry in [of("team"), named] {
            assert_eq!(found(&json!({ "r.example": entry }), "r.example/mnist"), login("team"));
            assert_eq!(found(&json!({ "r.example": entry }), "r.example:5000/mnist"), None);
        }
    }

    #[test]
    fn the_entry_with_the_longest_path_is_used_and_any_login_before_an_identity_token() {
        let token = json!({ "identitytoken": "abc" });
        let auths = json!({
            "*.example": of("everywhere"), "r.example": of("host"), "r.example/team": of("team"),
            "r.example/team/tokens": token, "r.example/team/broken": { "auth": "*" }, "t.example": token,
        });
        for (image, user) in [
            ("r.example/mnist", "host"),
            ("r.example/team/mnist", "team"),
            ("r.example/team/tokens/mnist", "team"),
            ("r.example/team/broken/mnist", "team"),
            ("r.example/teams/mnist", "host"),
            ("s.example/mnist", "everywhere"),
            ("t.example/mnist", "everywhere"),
        ] {
            assert_eq!(found(&auths, image), login(user), "{image}");
        }
    }

    #[test]
    fn an_identity_token_is_named_and_a_broken_entry_is_no_login() {
        let token = json!({ "auth": STANDARD.encode("00000000:"), "identitytoken": "abc" });
        assert_eq!(found(&json!({ "r.example": token }), "r.example/mnist"), Some(SecretEntry::IdentityToken));
        for entry in [json!({}), json!({ "auth": "*" }), json!({ "auth": STANDARD.encode("team") }), json!(1)] {
            assert_eq!(found(&json!({ "r.example": entry }), "r.example/mnist"), None);
        }
        assert_eq!(find(b"not JSON", &"mnist".parse().unwrap()), None);
    }
}
