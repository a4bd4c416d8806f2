//! Names of Kubernetes objects, and keys and values of labels.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BadValue, bad};
use crate::as_text::checked_text;

/// Defines a text with a rule.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $form:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl FromStr for $name {
            type Err = BadValue;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let check: fn(&str) -> bool = $check;
                if check(text) { Ok(Self(text.to_owned())) } else { Err(bad(text, $what, $form)) }
            }
        }

        checked_text!($name);
    };
}

name!(
    /// Name of a Kubernetes object: a DNS subdomain (RFC 1123).
    ObjectName, "object name", "use a-z, 0-9, '-' and '.', beginning and ending with a letter or digit", is_subdomain
);

name!(
    /// Key of a label or taint: `[PREFIX/]NAME`.
    LabelKey, "label key", "write [PREFIX/]NAME, for example disk or example.com/disk", |text| {
        let (prefix, name) = match text.split_once('/') {
            Some((prefix, name)) => (Some(prefix), name),
            None => (None, text),
        };
        prefix.is_none_or(is_subdomain) && !name.is_empty() && is_label_text(name)
    }
);

name!(
    /// Value of a label or taint. May be empty.
    LabelValue, "label value", "use at most 63 letters, digits, '-', '_' and '.'", is_label_text
);

fn is_subdomain(text: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let label_ok = |label: &str| {
        !label.is_empty() && !label.starts_with('-') && !label.ends_with('-') && label.bytes().all(is_inner)
    };
    text.len() <= 253 && text.split('.').all(label_ok)
}

fn is_label_text(text: &str) -> bool {
    let is_edge = |b: Option<u8>| b.is_none_or(|b| b.is_ascii_alphanumeric());
    let edges_ok = is_edge(text.bytes().next()) && is_edge(text.bytes().last());
    let is_inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.len() <= 63 && edges_ok && text.bytes().all(is_inner)
}
