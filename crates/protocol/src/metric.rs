//! Numbers that the master reads from the output of a script.

use std::fmt;
use std::str::FromStr;

use regex_lite::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::as_text::serde_as_string;
use crate::ensure::ensure;

/// Maximum bytes of a [`Pattern`].
pub const PATTERN_BYTES: usize = 256;

/// Maximum bytes of a compiled [`Pattern`]. The time of a search grows with this size.
const COMPILED_BYTES: usize = 64 * 1024;

/// A regular expression with exactly one group, which matches a number in a line, such as `loss: ([0-9.]+)`. The syntax
/// is that of the crate `regex-lite`, which is like Python's `re` without look-around and back-references. A search
/// takes time in proportion to the length of the line multiplied by the size of the compiled expression.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(Regex);

impl Pattern {
    /// The finite number of the first match in this line.
    pub fn number_in(&self, line: &str) -> Option<f64> {
        let number: f64 = self.0.captures(line)?.get(1)?.as_str().parse().ok()?;
        number.is_finite().then_some(number)
    }
}

/// The text is not a [`Pattern`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// The text is too long.
    #[error("the regular expression has {0} bytes: use at most {PATTERN_BYTES}")]
    Long(usize),
    /// The text is no regular expression.
    #[error("not a regular expression: {0}")]
    Syntax(String),
    /// There is no group, or there are several.
    #[error(
        "the regular expression has {0} groups: put exactly one pair of parentheses around the number, such as \
         loss: ([0-9.]+), and write (?:…) for others"
    )]
    Groups(usize),
}

impl FromStr for Pattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        ensure!(text.len() <= PATTERN_BYTES, BadPattern::Long(text.len()));
        let regex = RegexBuilder::new(text)
            .size_limit(COMPILED_BYTES)
            .build()
            .map_err(|error| BadPattern::Syntax(error.to_string()))?;
        // The whole match counts as a group too.
        match regex.captures_len() - 1 {
            1 => Ok(Self(regex)),
            groups => Err(BadPattern::Groups(groups)),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

serde_as_string!(Pattern);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.as_str())
    }
}
