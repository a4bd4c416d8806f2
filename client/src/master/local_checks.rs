//! The checks of `client doctor` for jobs with a local master: whether this machine can run them.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use protocol::agent::PYTHONS;
use tokio::process::Command;
use tokio::time::timeout;

use crate::cluster::{Check, Verdict};
use crate::master::announcement;
use crate::output::size;
use crate::programs;

/// Maximum time for Python to look for TensorFlow.
const PYTHON_TIMEOUT: Duration = Duration::from_secs(20);
/// Prints Python's version, and TensorFlow's version if TensorFlow is installed. Does not import TensorFlow.
const VERSIONS: &str = "
import sys
from importlib import metadata
found = [d.version for name in ('tensorflow', 'tensorflow-cpu') for d in metadata.distributions(name=name)]
print('.'.join(map(str, sys.version_info[:3])), *found[:1])
";
/// With less free space than this, the files of a job may not fit.
const SPACE_WANTED: u64 = 1 << 30;

/// Makes the checks.
pub(crate) async fn examine(run_folders: &[PathBuf]) -> Vec<Check> {
    vec![programs(), python(versions().await.as_deref()), temporary(&std::env::temp_dir()), announced(run_folders)]
}

fn check(name: &str, verdict: Verdict, detail: impl Into<String>, hint: Option<&str>) -> Check {
    Check { name: name.to_owned(), verdict, detail: detail.into(), hint: hint.map(str::to_owned) }
}

fn programs() -> Check {
    match programs::master() {
        Ok(master) => check("programs", Verdict::Ok, format!("{} and its agent", master.display()), None),
        Err(error) => check("programs", Verdict::Fail, error.to_string(), error.hint.as_deref()),
    }
}

/// The versions of the Python that runs scripts, and of its TensorFlow. `None` if no Python works.
async fn versions() -> Option<String> {
    for python in PYTHONS {
        if let Some(output) = run(python).await {
            let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            return output.status.success().then_some(text);
        }
    }
    None
}

async fn run(python: &str) -> Option<Output> {
    let mut command = Command::new(python);
    command.args(["-c", VERSIONS]).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    timeout(PYTHON_TIMEOUT, command.output()).await.ok()?.ok()
}

fn python(versions: Option<&str>) -> Check {
    let activate = "put a Python 3 first on the PATH, as an activated virtual environment does";
    match versions.map(|versions| versions.split_once(' ').ok_or(versions)) {
        None => check("Python", Verdict::Fail, "there is no working python or python3 on the PATH", Some(activate)),
        Some(Err(python)) => {
            let detail = format!("{python}, without TensorFlow");
            check("Python", Verdict::Warn, detail, Some("if your scripts need TensorFlow: pip install tensorflow"))
        }
        Some(Ok((python, tensorflow))) => {
            check("Python", Verdict::Ok, format!("{python}, TensorFlow {tensorflow}"), None)
        }
    }
}

/// Checks that files can be written to the folder for temporary files, and that it has space.
fn temporary(folder: &Path) -> Check {
    let hint = Some("set TMPDIR to a writable folder with free space");
    let name = "temporary folder";
    if let Err(error) = tempfile::tempfile_in(folder) {
        return check(name, Verdict::Fail, format!("{}: {error}", folder.display()), hint);
    }
    let free = rustix::fs::statvfs(folder).map(|found| found.f_bavail.saturating_mul(found.f_frsize));
    match free {
        Ok(free) if free < SPACE_WANTED => {
            check(name, Verdict::Warn, format!("{} has only {} free", folder.display(), size(free)), hint)
        }
        Ok(free) => check(name, Verdict::Ok, format!("{} has {} free", folder.display(), size(free)), None),
        Err(error) => check(name, Verdict::Warn, format!("the free space is not known: {error}"), None),
    }
}

/// Checks the folder of the files by which commands in other terminals find a local master.
fn announced(run_folders: &[PathBuf]) -> Check {
    let name = "other terminals";
    match announcement::usable(run_folders) {
        Ok(folder) => check(name, Verdict::Ok, format!("find local masters by files in {}", folder.display()), None),
        Err(error) => {
            let hint = "set XDG_RUNTIME_DIR to a folder that only you can use";
            check(name, Verdict::Warn, format!("cannot find local masters: {error}"), Some(hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_python_fails_and_a_missing_tensorflow_is_a_warning() {
        let verdict = |versions| python(versions).verdict;
        assert_eq!(verdict(None), Verdict::Fail);
        assert_eq!(verdict(Some("3.11.7")), Verdict::Warn);
        assert_eq!(python(Some("3.11.7 2.21.0")).detail, "3.11.7, TensorFlow 2.21.0");
    }
}
