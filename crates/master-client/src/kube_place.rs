//! `kube[:[CONTEXT/]NAMESPACE]`: the cluster and the namespace of a master that is reached through the Kubernetes API.

use std::fmt;

/// A master's place. An omitted part is read from the kubeconfig.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubePlace {
    /// The context of the kubeconfig. If `None`, its current context.
    pub context: Option<String>,
    /// The namespace. If `None`, the namespace of the context.
    pub namespace: Option<String>,
}

impl KubePlace {
    /// Parses the value of `--master`. `None` if the text is not `kube` and does not begin with `kube:`. The error is a
    /// sentence.
    pub fn of_master(text: &str) -> Option<Result<Self, String>> {
        match text.strip_prefix("kube")? {
            "" => Some(Ok(Self::default())),
            rest => rest.strip_prefix(':').map(Self::parse),
        }
    }

    /// Splits at the last slash: the name of a context may contain slashes, and the name of a namespace must not.
    fn parse(text: &str) -> Result<Self, String> {
        let (context, namespace) = match text.rsplit_once('/') {
            Some(("", _)) => return Err("the context is empty".to_owned()),
            Some((context, "")) => return Ok(Self { context: Some(context.to_owned()), namespace: None }),
            Some((context, namespace)) => (Some(context.to_owned()), namespace),
            None => (None, text),
        };
        Ok(Self { context, namespace: Some(namespace_name(namespace)?) })
    }

    /// The name of the namespace; empty if the place has no namespace.
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    /// This place. If `namespace` is given, it replaces the place's namespace.
    pub fn or_namespace(self, namespace: Option<String>) -> Self {
        Self { namespace: namespace.or(self.namespace), ..self }
    }
}

/// Checks the name of a namespace (RFC 1123 label).
///
/// # Errors
/// A sentence with the name and the rule.
pub fn namespace_name(text: &str) -> Result<String, String> {
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    let is_label = (1..=63).contains(&text.len()) && text.as_bytes().iter().all(inner);
    if is_label && !text.starts_with('-') && !text.ends_with('-') {
        Ok(text.to_owned())
    } else {
        let shown: String = text.chars().take(80).collect();
        Err(format!("\"{shown}\" is not the name of a namespace: use 1 to 63 characters of a-z, 0-9 and '-'"))
    }
}

impl fmt::Display for KubePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.context.as_deref(), self.namespace.as_deref()) {
            (None, None) => f.write_str("kube"),
            (None, Some(namespace)) => write!(f, "kube:{namespace}"),
            (Some(context), namespace) => write!(f, "kube:{context}/{}", namespace.unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(context: Option<&str>, namespace: Option<&str>) -> KubePlace {
        KubePlace { context: context.map(str::to_owned), namespace: namespace.map(str::to_owned) }
    }

    #[test]
    fn a_place_is_read_and_written_in_the_same_form() {
        for (text, expected) in [
            ("kube", place(None, None)),
            ("kube:team", place(None, Some("team"))),
            ("kube:kind-dev/team", place(Some("kind-dev"), Some("team"))),
            ("kube:arn:aws:eks:eu:1:cluster/dev/team", place(Some("arn:aws:eks:eu:1:cluster/dev"), Some("team"))),
            ("kube:kind-dev/", place(Some("kind-dev"), None)),
        ] {
            assert_eq!(KubePlace::of_master(text), Some(Ok(expected.clone())));
            assert_eq!(expected.to_string(), text);
        }
    }

    #[test]
    fn addresses_and_other_words_are_not_places_and_bad_contexts_and_namespaces_are_refused() {
        for text in ["", "http://kube:1", "kubernetes", "local"] {
            assert_eq!(KubePlace::of_master(text), None, "{text}");
        }
        assert_eq!(KubePlace::of_master("kube:/team"), Some(Err("the context is empty".to_owned())));
        for name in ["", "Team", "-a", "a-", "a b"] {
            let refused = KubePlace::of_master(&format!("kube:{name}")).unwrap().unwrap_err();
            assert!(refused.starts_with(&format!("\"{name}\" is not the name of a namespace: ")), "{refused}");
        }
    }
}
