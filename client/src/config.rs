//! Where the master is and by which token it is spoken to. The only reader of the environment.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use protocol::env::{EnvName, MUSTER_PREFIX};
use reqwest::header::HeaderValue;

use crate::args::ConnectionArgs;
use crate::master_url::{BadMasterUrl, MasterUrl};

/// The master's address, when no flag gives one.
const MASTER_VARIABLE: &str = "MUSTER_MASTER";
/// The master's token. There is no flag for it, because every user of a machine can read everyone's arguments.
const TOKEN_VARIABLE: &str = "MUSTER_TOKEN";

/// Which master a command speaks to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MasterChoice {
    /// One that this command runs for its own job.
    Local(LocalBecause),
    /// One that runs somewhere.
    At(MasterUrl),
}

/// Who chose a local master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalBecause {
    /// The user.
    Asked,
    /// Nobody said anything else.
    Default,
}

/// A bearer token. Its text is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// One that nobody can guess: 244 random bits.
    pub(crate) fn random() -> Self {
        Self(format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple()))
    }

    /// The secret itself, for the file that the master reads it from.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// The value of the `Authorization` header.
    pub(crate) fn header(&self) -> HeaderValue {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.0))
            .expect("a token is checked to be visible ASCII when it is read");
        value.set_sensitive(true);
        value
    }
}

/// What a command needs to know beside its own arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// Which master.
    pub(crate) master: MasterChoice,
    /// The token, when there is one.
    pub(crate) token: Option<Token>,
}

/// Why the master cannot be spoken to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// No address.
    #[error("{origin}: {error}")]
    Url {
        /// The flag or variable.
        origin: &'static str,
        /// What is wrong.
        error: BadMasterUrl,
    },
    /// The token's file is missing or unreadable.
    #[error("read the token file {}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It does not go into a header.
    #[error("the token in {0} is empty, or has spaces or other characters than visible ASCII")]
    Token(String),
    /// A variable that holds no text.
    #[error("the variable {0} is not valid UTF-8")]
    NotUnicode(String),
}

impl ConfigError {
    /// What to do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Url { error, .. } => Some(error.hint()),
            Self::TokenFile { .. } | Self::Token(_) | Self::NotUnicode(_) => None,
        }
    }
}

impl Config {
    /// From the flags, and from the environment for what they leave out.
    pub(crate) fn read(args: ConnectionArgs) -> Result<Self, ConfigError> {
        Self::from_parts(args, own_variable)
    }

    fn from_parts(
        args: ConnectionArgs,
        variable: impl Fn(&str) -> Result<Option<String>, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let ConnectionArgs { master, token_file } = args;
        // An empty variable is how shells and manifests say "unset".
        let set = |name| variable(name).map(|value| value.filter(|text| !text.is_empty()));
        let master = match master {
            Some(text) => choice("--master", &text)?,
            None => match set(MASTER_VARIABLE)? {
                Some(text) => choice(MASTER_VARIABLE, &text)?,
                None => MasterChoice::Local(LocalBecause::Default),
            },
        };
        let token = match token_file {
            Some(path) => Some(read_token(&path)?),
            None => set(TOKEN_VARIABLE)?.map(|text| token(TOKEN_VARIABLE.to_owned(), &text)).transpose()?,
        };
        Ok(Self { master, token })
    }
}

fn choice(origin: &'static str, text: &str) -> Result<MasterChoice, ConfigError> {
    if text == "local" {
        return Ok(MasterChoice::Local(LocalBecause::Asked));
    }
    text.parse().map(MasterChoice::At).map_err(|error| ConfigError::Url { origin, error })
}

fn read_token(path: &Path) -> Result<Token, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::TokenFile { path: path.to_owned(), source })?;
    token(path.display().to_string(), &text)
}

/// Any text without spaces that a header can carry, as the master accepts it; an editor may have ended it with a line.
fn token(origin: String, text: &str) -> Result<Token, ConfigError> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ConfigError::Token(origin));
    }
    Ok(Token(text.to_owned()))
}

/// A variable of the client's own environment, for `--env NAME`.
pub(crate) fn variable_to_pass_on(name: &EnvName) -> Result<Option<String>, ConfigError> {
    own_variable(name.as_str())
}

/// The names of the client's own variables that configure Muster's programs, so that a child can be started without them.
#[expect(clippy::disallowed_methods, reason = "config.rs is the place that reads the environment")]
pub(crate) fn muster_variables() -> Vec<OsString> {
    let names = std::env::vars_os().map(|(name, _)| name);
    names.filter(|name| name.as_encoded_bytes().starts_with(MUSTER_PREFIX.as_bytes())).collect()
}

#[expect(clippy::disallowed_methods, reason = "config.rs is the place that reads the environment")]
fn own_variable(name: &str) -> Result<Option<String>, ConfigError> {
    match std::env::var_os(name) {
        None => Ok(None),
        Some(value) => value.into_string().map(Some).map_err(|_| ConfigError::NotUnicode(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(flag: Option<&str>, variable: Option<&str>) -> Result<MasterChoice, String> {
        let args = ConnectionArgs { master: flag.map(str::to_owned), token_file: None };
        let lookup = |name: &str| Ok(variable.filter(|_| name == MASTER_VARIABLE).map(str::to_owned));
        Config::from_parts(args, lookup).map(|config| config.master).map_err(|error| error.to_string())
    }

    #[test]
    fn the_flag_wins_over_the_variable_and_the_variable_over_local() {
        let at = |text: &str| Ok(MasterChoice::At(text.parse().unwrap()));
        assert_eq!(read(Some("http://a:1"), Some("http://b:2")), at("http://a:1"));
        assert_eq!(read(None, Some("http://b:2")), at("http://b:2"));
        assert_eq!(read(Some("local"), Some("http://b:2")), Ok(MasterChoice::Local(LocalBecause::Asked)));
        assert_eq!(read(None, None), Ok(MasterChoice::Local(LocalBecause::Default)));
        assert_eq!(read(None, Some("")), Ok(MasterChoice::Local(LocalBecause::Default)));
    }

    #[test]
    fn an_error_names_the_flag_or_the_variable_that_was_wrong() {
        assert!(read(Some(""), None).unwrap_err().starts_with("--master: "));
        assert!(read(None, Some("nonsense")).unwrap_err().starts_with("MUSTER_MASTER: "));
    }

    #[test]
    fn a_token_is_trimmed_and_never_shown() {
        let token = token("f".to_owned(), "  s3cret\n").unwrap();
        assert_eq!(token, Token("s3cret".to_owned()));
        assert!(!format!("{token:?} {:?}", token.header()).contains("s3cret"));
    }

    #[test]
    fn any_visible_ascii_is_a_token() {
        let all: String = ('!'..='~').collect();
        for text in ["x", "YWJj/+==", &all] {
            assert_eq!(token("f".to_owned(), text).unwrap().text(), text);
        }
    }

    #[test]
    fn a_token_that_no_header_can_carry_is_refused() {
        for bad in ["", "  \n", "two words", "two\nlines", "bell\u{7}", "smörgås"] {
            assert!(matches!(token("f".to_owned(), bad), Err(ConfigError::Token(origin)) if origin == "f"), "{bad:?}");
        }
    }
}
