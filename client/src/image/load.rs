//! Loads images into a local cluster whose nodes do not share this machine's Docker. Runs the cluster's tool at each
//! submit, because only the tool can find out which images the nodes still have.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::process::Stdio;

use protocol::image::ImageRef;
use tokio::process::Command;

use super::names::short;
use super::stall;
use crate::args::Loader;
use crate::ending::error::Error;
use crate::output::last_lines;

/// Maximum number of lines shown of a failed tool's output.
const LINES_MAX: usize = 10;

/// Loads an image of this machine's engine into the named cluster, or into the tool's default cluster.
pub(super) async fn load(loader: Loader, cluster: Option<&str>, image: &ImageRef) -> Result<(), Error> {
    let words = command(loader, cluster, image);
    let failed = |outcome: String| Error::image(format!("load {}: `{}` {outcome}", short(image), words.join(" ")));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let running = match command.spawn() {
        Ok(running) => running,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let hint = "install this program, or give --push REGISTRY";
            return Err(failed("could not be started".to_owned()).hint(hint).because(error));
        }
        Err(error) => return Err(failed(format!("could not be started: {error}"))),
    };
    let tool = running.id();
    // The tools print nothing while they copy gigabytes, so the copied bytes show their progress.
    match stall::while_changing(running.wait_with_output(), || tool.map(bytes_moved)).await {
        Ok(Ok(ended)) if ended.status.success() => Ok(()),
        Ok(Ok(ended)) => Err(failed(format!("failed ({}){}", ended.status, last_lines(&ended.stderr, LINES_MAX)))),
        Ok(Err(error)) => Err(failed(format!("could not be waited for: {error}"))),
        Err(stalled) => Err(failed(format!("was stopped: {stalled}"))),
    }
}

/// The bytes that a process and its descendants have read and written (proc(5), `/proc/PID/io`). The sum does not
/// include processes that have ended, so it may decrease.
fn bytes_moved(process: u32) -> u64 {
    family(process)
        .into_iter()
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/io")).ok())
        .map(|io| moved(&io))
        .sum()
}

fn moved(io: &str) -> u64 {
    let counted = io.lines().filter_map(|line| line.strip_prefix("rchar: ").or(line.strip_prefix("wchar: ")));
    counted.filter_map(|count| count.parse::<u64>().ok()).sum()
}

/// A process and its descendants.
fn family(process: u32) -> HashSet<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut family = HashSet::from([process]);
    // Each round adds the children of the processes found so far.
    loop {
        let known = family.len();
        let children = parents.iter().filter(|(_, parent)| family.contains(parent)).map(|(pid, _)| *pid);
        let children: Vec<u32> = children.collect();
        family.extend(children);
        if family.len() == known {
            return family;
        }
    }
}

/// The id of a process's parent (proc(5), `/proc/PID/stat`). It is the second field after the process's name. The name
/// is in parentheses, and may contain parentheses.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(1)?.parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tool_is_called_with_its_own_flags() {
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
    fn bytes_that_a_running_child_of_the_tool_reads_and_writes_are_counted() {
        use std::io::{BufRead, BufReader, Read, Write};
        let mut tool = std::process::Command::new("sh")
            .args(["-c", "echo ready; (cat; true); true"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut to_tool, mut from_tool) = (tool.stdin.take().unwrap(), BufReader::new(tool.stdout.take().unwrap()));
        from_tool.read_line(&mut String::new()).unwrap();
        let before = bytes_moved(tool.id());
        let mut block = [1; 4096];
        to_tool.write_all(&block).unwrap();
        from_tool.read_exact(&mut block).unwrap();
        assert!(
            bytes_moved(tool.id()) >= before + 2 * 4096,
            "the bytes that a child of the tool has read and written are not counted"
        );
        drop(to_tool);
        tool.wait().unwrap();
        assert_eq!(bytes_moved(tool.id()), 0);
    }

    #[test]
    fn a_failed_tools_last_lines_are_shown() {
        let output: String = (0..30).map(|number| format!("line {number}\n\n")).collect();
        let shown = last_lines(output.as_bytes(), LINES_MAX);
        assert!(shown.starts_with("\n  line 20\n") && shown.ends_with("line 29"), "{shown}");
    }
}
