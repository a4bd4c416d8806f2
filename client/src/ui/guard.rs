//! Decides which requests the page answers: only requests that have the page's address, and that no other page has
//! caused. Pure, except for the key.
//!
//! The address contains a key. Every program of this machine can connect to the port, and every page in the user's
//! browser can send requests to the port. Neither knows the key. The checks of headers also stop pages that have
//! learned the key.

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, Method, Uri};
use master_client::Token;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Bytes of the key: 128 random bits.
const KEY_BYTES: usize = 16;

/// The key and the port of the page.
pub(crate) struct PageGuard {
    key: String,
    port: u16,
}

/// A header occurs twice, or is not visible ASCII.
struct Unclear;

impl PageGuard {
    /// A guard with a new random key.
    pub(crate) fn new(port: u16) -> Self {
        Self { key: hex::encode(&Sha256::digest(Token::random().text())[..KEY_BYTES]), port }
    }

    /// The address of the page.
    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.key)
    }

    /// The first part of the path of every request, with its slash.
    pub(super) fn prefix(&self) -> String {
        format!("/{}", self.key)
    }

    /// Whether the page answers a request with this method, target and headers.
    pub(super) fn admits(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
        self.check(method, uri, headers).unwrap_or(false)
    }

    fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<bool, Unclear> {
        let host = only(headers, &HOST)?.unwrap_or_default();
        // Other names are refused: an attacker can let a domain resolve to 127.0.0.1 (DNS rebinding).
        let names = ["127.0.0.1", "localhost"];
        let is_own_host = names.iter().any(|name| host == format!("{name}:{}", self.port)) && uri.authority().is_none();
        let comes_from_page = matches!(only(headers, &FETCH_SITE)?, None | Some("none" | "same-origin"));
        let is_own_origin = match (only(headers, &ORIGIN)?, method) {
            (None, &Method::GET) => true,
            (Some(origin), &Method::POST) => origin == format!("http://{host}"),
            (_, _) => false,
        };
        let is_welcome = comes_from_page || *method == Method::GET && is_visit(headers)?;
        Ok(is_own_host && is_welcome && is_own_origin && self.has_key(uri.path()))
    }

    /// Compares in constant time, so that the time of an answer does not show how much of a guessed key is right.
    fn has_key(&self, path: &str) -> bool {
        let given = path.strip_prefix('/').and_then(|rest| rest.split_once('/')).map_or("", |(first, _)| first);
        given.as_bytes().ct_eq(self.key.as_bytes()).into()
    }
}

/// Whether the user opens the page in a tab. `client ui` opens a local file that redirects to the page (`browser.rs`).
/// For a browser, this file is another site, so a visit from another site is allowed.
fn is_visit(headers: &HeaderMap) -> Result<bool, Unclear> {
    Ok(only(headers, &FETCH_MODE)? == Some("navigate") && only(headers, &FETCH_DEST)? == Some("document"))
}

/// The value of a header that occurs at most once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Unclear> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => value.map(|value| value.to_str()).transpose().map_err(|_| Unclear),
        (_, Some(_)) => Err(Unclear),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a request is admitted, its method, and its headers.
    type Case<'a> = (bool, &'a str, &'a [(&'static str, &'a str)]);

    const KEY: &str = "00112233445566778899aabbccddeeff";

    fn admitted(method: &str, target: &str, headers: &[(&'static str, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let guard = PageGuard { key: KEY.to_owned(), port: 4711 };
        guard.admits(&method.parse().unwrap(), &target.parse().unwrap(), &map)
    }

    #[test]
    fn keys_have_128_bits_and_differ() {
        let (one, other) = (PageGuard::new(1), PageGuard::new(1));
        assert_eq!(one.key.len(), 32, "{}", one.key);
        assert_ne!(one.key, other.key);
        assert!(one.admits(
            &Method::GET,
            &one.address().trim_start_matches("http://127.0.0.1:1").parse().unwrap(),
            &HeaderMap::from_iter([(HOST, "127.0.0.1:1".parse().unwrap())])
        ));
    }

    #[test]
    fn only_a_browser_that_has_the_address_is_answered() {
        let (page, host) = (format!("/{KEY}/jobs/digits"), ("host", "127.0.0.1:4711"));
        let own = ("origin", "http://127.0.0.1:4711");
        let site = |site| ("sec-fetch-site", site);
        let visit = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        let cases: &[Case<'_>] = &[
            (true, "GET", &[host]),
            (true, "GET", &[("host", "localhost:4711")]),
            (true, "GET", &[host, site("none")]),
            (true, "GET", &[host, site("same-origin")]),
            (true, "GET", &[host, site("cross-site"), visit[0], visit[1]]),
            (true, "GET", &[host, site("same-site"), visit[0], visit[1]]),
            (true, "POST", &[host, own]),
            (true, "POST", &[host, own, site("same-origin"), visit[0], visit[1]]),
            (true, "POST", &[("host", "localhost:4711"), ("origin", "http://localhost:4711")]),
            // Another host, also one that is bound to this address.
            (false, "GET", &[]),
            (false, "GET", &[("host", "127.0.0.1")]),
            (false, "GET", &[("host", "127.0.0.1:4712")]),
            (false, "GET", &[("host", "evil.example:4711")]),
            (false, "GET", &[("host", "127.0.0.1.evil.example:4711")]),
            (false, "GET", &[("host", "LOCALHOST:4711")]),
            (false, "GET", &[host, host]),
            // Another page: a script, a frame, an image, a form.
            (false, "GET", &[host, site("cross-site")]),
            (false, "GET", &[host, site("same-site")]),
            (false, "GET", &[host, site("cross-site"), visit[0], ("sec-fetch-dest", "iframe")]),
            (false, "GET", &[host, site("cross-site"), ("sec-fetch-mode", "no-cors"), visit[1]]),
            (false, "GET", &[host, site("cross-site"), visit[0]]),
            (false, "GET", &[host, site("same-origin"), site("cross-site")]),
            (false, "GET", &[host, own]),
            (false, "POST", &[host]),
            (false, "POST", &[host, ("origin", "null")]),
            (false, "POST", &[host, ("origin", "http://evil.example")]),
            (false, "POST", &[host, ("origin", "http://localhost:4711")]),
            (false, "POST", &[host, ("origin", "https://127.0.0.1:4711")]),
            (false, "POST", &[host, own, own]),
            (false, "POST", &[host, own, site("cross-site"), visit[0], visit[1]]),
            // Methods without a use.
            (false, "HEAD", &[host]),
            (false, "OPTIONS", &[host, own]),
            (false, "DELETE", &[host, own]),
            (false, "CONNECT", &[host]),
        ];
        for (expected, method, headers) in cases {
            assert_eq!(admitted(method, &page, headers), *expected, "{method} {headers:?}");
            for guess in [
                "/",
                "",
                "//",
                "/jobs/digits",
                &format!("/{}/", &KEY[1..]),
                &format!("/{KEY}"),
                "/00112233445566778899aabbccddeefe/",
            ] {
                let guess = if guess.is_empty() { "/?" } else { guess };
                assert!(!admitted(method, guess, headers), "{method} {guess} {headers:?}");
            }
        }
        assert!(!admitted("GET", &format!("http://127.0.0.1:4711{page}"), &[host]), "the target names a host");
        assert!(!admitted("GET", &format!("/{}/", KEY.to_uppercase()), &[host]));
    }
}
