//! Checks whether pods can train with an image. The image needs a user that pods may run as, exec.py in its working
//! directory, and python on its PATH. Also decides which words of the image's ENTRYPOINT are kept.

use serde_json::Value;

use super::Users;
use super::entrypoint::{EntrypointKind, passes_on};
use super::layer::Base;
use super::look::Look;
use crate::ending::error::Error;
use protocol::agent::PYTHONS;
use protocol::code::SCRIPT;

/// The PATH of an image that sets no PATH (moby, `oci/defaults.go`).
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Refuses an image if Kubernetes would refuse its user. Kubernetes cannot look up the name of a user, so it refuses
/// every named user (kubelet, `verifyRunAsNonRoot`). The group after the colon does not matter.
pub(super) fn user(base: &Base, name: &str, users: Users) -> Result<(), Error> {
    let named = base.config.get("User").and_then(Value::as_str).unwrap_or_default();
    let is_root = |user: &str| matches!(user, "" | "root") || user.parse() == Ok(0_u32);
    let refused = |sentence: String| {
        let hint = "set a numeric, non-zero USER at the end of the Dockerfile, such as USER 1000, or give --allow-root";
        Err(Error::input(sentence).hint(hint))
    };
    match (users, named.split(':').next().unwrap_or_default()) {
        (Users::All, _) => Ok(()),
        (Users::KnownNotRoot, user) if is_root(user) => refused(format!("the image {name} runs as root")),
        (Users::KnownNotRoot, user) if user.parse::<u32>().is_ok() => Ok(()),
        (Users::KnownNotRoot, user) => refused(format!(
            "the image {name} runs as the user \"{user}\": Kubernetes cannot verify that a named user is not root"
        )),
    }
}

/// Refuses an image whose pods could not run exec.py. `name` is the image's name, for the error.
pub(super) async fn script_and_python(look: &Look<'_>, base: &Base, name: &str) -> Result<(), Error> {
    let folder = working_directory(base);
    if !look.is_file(&in_folder(&folder, SCRIPT)).await? {
        let sentence = format!("the image {name} has no {SCRIPT} in its working directory {folder}");
        return Err(Error::input(sentence).hint("add WORKDIR and COPY exec.py ./ to the image's Dockerfile"));
    }
    for python in PYTHONS {
        if first_on_path(look, base, python).await?.is_some() {
            return Ok(());
        }
    }
    let path = search_path(base);
    let sentence = format!("the image {name} has neither python nor python3 on its PATH ({path})");
    let hint = "in the image's Dockerfile, begin FROM an image that has Python, or set ENV PATH";
    Err(Error::input(sentence).hint(hint))
}

/// The part of an image's ENTRYPOINT that pods run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PodEntrypoint {
    /// The agent puts these words in front of the command that it starts. The list may be empty.
    Words(Vec<String>),
    /// Pods run without these words.
    Nothing { left_out: Vec<String> },
}

/// Decides which words of the ENTRYPOINT are kept. If the ENTRYPOINT runs a shell script, reads that script.
pub(super) async fn entrypoint(look: &Look<'_>, base: &Base) -> Result<PodEntrypoint, Error> {
    let words: Vec<String> = strings(base, "Entrypoint").map(str::to_owned).collect();
    let kept = match EntrypointKind::of(&words) {
        EntrypointKind::Unneeded => Some(Vec::new()),
        EntrypointKind::Other => None,
        EntrypointKind::Script { words, script } => {
            let text = match place(look, base, script).await? {
                Some(path) => look.text(&path).await?,
                None => None,
            };
            text.filter(|text| passes_on(text)).map(|_| words.to_vec())
        }
    };
    Ok(kept.map_or(PodEntrypoint::Nothing { left_out: words }, PodEntrypoint::Words))
}

/// The path of a program as an engine finds it: on the PATH, or from the working directory.
async fn place(look: &Look<'_>, base: &Base, program: &str) -> Result<Option<String>, Error> {
    if !program.contains('/') {
        return first_on_path(look, base, program).await;
    }
    let path = if program.starts_with('/') {
        program.to_owned()
    } else {
        in_folder(&working_directory(base), program.trim_start_matches("./"))
    };
    Ok(Some(path))
}

async fn first_on_path(look: &Look<'_>, base: &Base, program: &str) -> Result<Option<String>, Error> {
    let path = search_path(base);
    for file in path.split(':').filter(|folder| !folder.is_empty()).map(|folder| in_folder(folder, program)) {
        if look.is_file(&file).await? {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

fn working_directory(base: &Base) -> String {
    let named = base.config.get("WorkingDir").and_then(Value::as_str).filter(|folder| !folder.is_empty());
    named.unwrap_or("/").to_owned()
}

fn search_path(base: &Base) -> String {
    let path = strings(base, "Env").filter_map(|variable| variable.strip_prefix("PATH=")).last();
    path.unwrap_or(DEFAULT_PATH).to_owned()
}

fn strings<'a>(base: &'a Base, field: &str) -> impl Iterator<Item = &'a str> {
    base.config.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn in_folder(folder: &str, file: &str) -> String {
    format!("{}/{file}", folder.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn base(config: Value) -> Base {
        let Value::Object(config) = config else { panic!("not a JSON object") };
        Base { config, ..Base::default() }
    }

    #[test]
    fn an_image_can_set_its_working_directory_and_path_and_otherwise_uses_the_root_and_dockers_default() {
        for (config, script, path) in [
            (json!({ "WorkingDir": "", "Env": ["LANG=C"] }), "/exec.py", DEFAULT_PATH),
            (json!({ "WorkingDir": "/work/", "Env": ["PATH=/opt/bin:/bin", "A=b"] }), "/work/exec.py", "/opt/bin:/bin"),
        ] {
            let base = base(config);
            assert_eq!(
                (in_folder(&working_directory(&base), SCRIPT), search_path(&base)),
                (script.into(), path.into())
            );
        }
    }

    #[test]
    fn only_a_user_with_a_non_zero_number_is_accepted_when_root_is_forbidden() {
        let of = |user: &str, users| {
            self::user(&base(json!({ "User": user })), "digits", users).map_err(|error| error.to_string())
        };
        for user in ["1000", "65532:65532", "1000:trainers", "1000:0"] {
            assert_eq!(of(user, Users::KnownNotRoot), Ok(()), "{user}");
        }
        for user in ["", "0", "00", "root", "0:1000", "root:root", ":1000"] {
            assert_eq!(of(user, Users::KnownNotRoot).unwrap_err(), "the image digits runs as root", "{user}");
        }
        let named = of("trainer:1000", Users::KnownNotRoot).unwrap_err();
        assert!(named.starts_with("the image digits runs as the user \"trainer\": "), "{named}");
        assert!(user(&base(json!({})), "digits", Users::KnownNotRoot).is_err());
        for user in ["", "root", "trainer"] {
            assert_eq!(of(user, Users::All), Ok(()), "{user}");
        }
    }
}
