//! Images into the nodes of a local cluster that has no Docker to share: by the cluster's own tool, each time, since
//! only the tool knows whether its nodes still have an image.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use protocol::image::ImageRef;
use tokio::process::Command;

use super::error::ImageError;
use super::names::short;
use crate::args::Loader;

/// No tool may take longer.
const LIMIT: Duration = Duration::from_secs(600);
/// Lines of a failed tool's output that are shown.
const LINES_MAX: usize = 10;

/// Loads an image of this machine's engine into the cluster of this name, or the tool's default.
pub(super) async fn load(loader: Loader, cluster: Option<&str>, image: &ImageRef) -> Result<(), ImageError> {
    let words = command(loader, cluster, image);
    let shown = || format!("`{}`", words.join(" "));
    let failed = |outcome: String| ImageError::Load { image: short(image), command: shown(), outcome };
    let running = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).kill_on_drop(true).output();
    match tokio::time::timeout(LIMIT, running).await {
        Ok(Ok(ended)) if ended.status.success() => Ok(()),
        Ok(Ok(ended)) => Err(failed(format!("failed ({}){}", ended.status, last_lines(&ended.stderr)))),
        Ok(Err(source)) if source.kind() == io::ErrorKind::NotFound => {
            Err(ImageError::NoLoader { image: short(image), command: shown(), source })
        }
        Ok(Err(error)) => Err(failed(format!("could not be started: {error}"))),
        Err(_) => Err(failed(format!("was not done in {} s", LIMIT.as_secs()))),
    }
}

fn command(loader: Loader, cluster: Option<&str>, image: &ImageRef) -> Vec<String> {
    let (program, verb, cluster_flag) = match loader {
        Loader::Minikube => ("minikube", ["image", "load"], "-p"),
        Loader::Kind => ("kind", ["load", "docker-image"], "--name"),
        Loader::K3d => ("k3d", ["image", "import"], "-c"),
    };
    let named = cluster.map(|name| [cluster_flag.to_owned(), name.to_owned()]);
    let words = [program].into_iter().chain(verb).map(str::to_owned);
    words.chain([image.to_string()]).chain(named.into_iter().flatten()).collect()
}

fn last_lines(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(LINES_MAX);
    lines[first..].iter().map(|line| format!("\n  {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tool_is_called_in_its_own_words() {
        let image = "digits_pod:1".parse().unwrap();
        for (loader, cluster, line) in [
            (Loader::Minikube, None, "minikube image load digits_pod:1"),
            (Loader::Minikube, Some("dev"), "minikube image load digits_pod:1 -p dev"),
            (Loader::Kind, Some("dev"), "kind load docker-image digits_pod:1 --name dev"),
            (Loader::K3d, Some("dev"), "k3d image import digits_pod:1 -c dev"),
        ] {
            assert_eq!(command(loader, cluster, &image).join(" "), line);
        }
    }

    #[test]
    fn a_failed_tools_last_lines_are_shown() {
        let output: String = (0..30).map(|number| format!("line {number}\n\n")).collect();
        let shown = last_lines(output.as_bytes());
        assert!(shown.starts_with("\n  line 20\n") && shown.ends_with("line 29"), "{shown}");
    }
}
