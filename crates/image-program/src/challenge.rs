//! The challenge of a registry that wants a login (RFC 7235), and the token server that it names (pure).

use http_auth::ChallengeParser;
use reqwest::Url;
use serde::Deserialize;

/// Maximum number of challenges that are read.
const CHALLENGES_MAX: usize = 8;

/// How to log in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// With a user and a password.
    Basic,
    /// With a token from the server at this address. The address has the service in its query.
    Bearer(Url),
}

/// Reads the headers `WWW-Authenticate`. `None` if all challenges are of unknown kinds. Prefers a token server, as
/// Docker does.
pub(crate) fn read<'a>(headers: impl IntoIterator<Item = &'a str>) -> Option<Challenge> {
    let challenges = headers.into_iter().flat_map(|header| ChallengeParser::new(header).map_while(Result::ok));
    let all: Vec<_> = challenges.take(CHALLENGES_MAX).collect();
    let token_server = all.iter().find(|one| one.scheme.eq_ignore_ascii_case("bearer")).and_then(|bearer| {
        let value = |wanted: &str| {
            let found = bearer.params.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.to_unescaped())
        };
        let mut realm = Url::parse(&value("realm")?).ok()?;
        if let Some(service) = value("service") {
            realm.query_pairs_mut().append_pair("service", &service);
        }
        Some(Challenge::Bearer(realm))
    });
    let is_basic = all.iter().any(|one| one.scheme.eq_ignore_ascii_case("basic"));
    token_server.or_else(|| is_basic.then_some(Challenge::Basic))
}

/// The answer of a token server. Servers for OAuth 2 name the token `access_token`.
#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

/// Reads the token in the answer of a token server.
pub(crate) fn token(body: &[u8]) -> Option<String> {
    let TokenAnswer { token, access_token } = serde_json::from_slice(body).ok()?;
    token.into_iter().chain(access_token).find(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_header_makes_the_reader_panic_and_a_token_server_keeps_its_scheme(
            header in r#"(?i)(bearer|basic|x) ?((realm|service|scope|r) ?= ?("[ -~\\"]{0,20}"|(https|data|file):[ -~]{0,20}|[ -~é]{0,9}),? ?){0,4}"#,
        ) {
            if let Some(Challenge::Bearer(server)) = read([header.as_str()]) {
                prop_assert!(header.to_lowercase().contains(&format!("{}:", server.scheme())), "{server}");
            }
        }
    }

    #[test]
    fn a_challenge_names_a_token_server_or_asks_for_a_password() {
        let bearer = r#"Bearer realm="https://auth.example.com/token?a=1",service="registry.example.com",scope="x""#;
        let server = "https://auth.example.com/token?a=1&service=registry.example.com".parse().unwrap();
        for header in [bearer.to_owned(), format!("Basic realm=\"r\", {bearer}")] {
            let Some(Challenge::Bearer(found)) = read([header.as_str()]) else { panic!("{header}") };
            assert_eq!(found, Url::clone(&server));
        }
        assert_eq!(read(["Basic realm=\"r\""]), Some(Challenge::Basic));
        assert!(matches!(read(["Basic realm=\"r\"", bearer, "\""]), Some(Challenge::Bearer(_))));
        for header in ["", "Negotiate", "Bearer", "Bearer realm=\"no address\"", "\"", "Bearer realm="] {
            assert_eq!(read([header]), None, "{header}");
        }
    }

    #[test]
    fn a_token_has_one_of_two_names_and_is_not_empty() {
        for answer in [r#"{"token":"a","access_token":"b"}"#, r#"{"token":"","access_token":"a"}"#] {
            assert_eq!(token(answer.as_bytes()).as_deref(), Some("a"), "{answer}");
        }
        for answer in ["{}", r#"{"token":1}"#, r#"{"token":""}"#, "[]", "<html>"] {
            assert_eq!(token(answer.as_bytes()), None, "{answer}");
        }
    }
}
