//! The token that a master wants with each request.

use std::fmt;
use std::str::FromStr;

use reqwest::header::HeaderValue;

/// A bearer token. `Debug` hides its text.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// A text that is not a token.
#[derive(Debug)]
pub struct BadToken;

impl FromStr for Token {
    type Err = BadToken;

    /// Accepts any visible ASCII without spaces, as the master does. Removes spaces and newlines at both ends.
    fn from_str(text: &str) -> Result<Self, BadToken> {
        let text = text.trim();
        let is_token = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if is_token { Ok(Self(text.to_owned())) } else { Err(BadToken) }
    }
}

impl Token {
    /// A new token of 244 random bits.
    pub fn random() -> Self {
        Self(format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple()))
    }

    /// The secret text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The value of the `Authorization` header.
    pub(crate) fn header(&self) -> HeaderValue {
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", self.0)).expect("every token consists of visible ASCII");
        value.set_sensitive(true);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_trimmed_and_hidden_in_debug_output() {
        let token: Token = "  s3cret\n".parse().unwrap();
        assert_eq!(token, Token("s3cret".to_owned()));
        assert!(!format!("{token:?} {:?}", token.header()).contains("s3cret"));
    }
}
