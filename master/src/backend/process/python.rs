//! Whether a folder holds an exec.py that this host's Python can begin to run: asked before anything is created, so
//! that a typing error costs no start.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use protocol::error::ErrorCode;
use tokio::process::Command;
use tokio::time::timeout;

use crate::backend::Refusal;

/// How long Python may take to parse one file.
const PARSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Parses, and does not run, the file it is given.
const PARSE: &str = "import ast,sys; ast.parse(open(sys.argv[1],'rb').read(), sys.argv[1])";

/// Checks the folder.
///
/// # Errors
/// A [`Refusal`] that names the folder, Python, or the line that does not parse.
pub(super) async fn check(work_dir: &Path) -> Result<(), Refusal> {
    let exec_py = work_dir.join("exec.py");
    if !exec_py.is_file() {
        let sentence = format!("there is no exec.py in {}", work_dir.display());
        return Err(Refusal { code: ErrorCode::BadWorkDir, sentence });
    }
    let parse = Command::new("python")
        .args(["-I", "-S", "-c", PARSE, "exec.py"])
        .current_dir(work_dir)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    match timeout(PARSE_TIMEOUT, parse).await {
        Err(_) => {
            let sentence = format!("python took more than {} s to parse exec.py", PARSE_TIMEOUT.as_secs());
            Err(Refusal { code: ErrorCode::BadWorkDir, sentence })
        }
        Ok(Err(error)) => {
            let sentence = format!("python cannot be started on the master's host ({error}): put one on its PATH");
            Err(Refusal { code: ErrorCode::NoPython, sentence })
        }
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            let sentence = format!("exec.py does not parse: {}", summary(&String::from_utf8_lossy(&output.stderr)));
            Err(Refusal { code: ErrorCode::BadWorkDir, sentence })
        }
    }
}

/// The place and the kind of the error, out of Python's traceback.
fn summary(traceback: &str) -> String {
    let lines = || traceback.lines().map(str::trim).filter(|line| !line.is_empty());
    let place = lines().rfind(|line| line.starts_with("File \"exec.py\""));
    let kind = lines().next_back().unwrap_or("python gave no reason");
    match place {
        Some(place) => format!("{kind} ({})", place.trim_start_matches("File ")),
        None => kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceback_is_summed_up_by_its_place_and_kind() {
        let traceback = "Traceback (most recent call last):\n  File \"<string>\", line 1, in <module>\n  File \"exec.py\", line 3\n    x = (\n        ^\nSyntaxError: '(' was never closed\n";
        assert_eq!(summary(traceback), "SyntaxError: '(' was never closed (\"exec.py\", line 3)");
        assert_eq!(summary(""), "python gave no reason");
    }
}
