//! Asks kubectl and minikube for the master's address, the master's token, and how images reach the nodes.

use std::path::Path;
use std::process::{Output, Stdio};

use tokio::process::Command;

use super::ShellVariables;
use crate::ending::error::Error;
use crate::output::Notes;
use crate::output::command_line::command;

/// The port of manifests/base/service.yaml.
const NODE_PORT: u16 = 31898;
/// Output format for kubectl: one line for each node, with its container runtime and its address.
const NODES: &str = r#"jsonpath={range .items[*]}{.status.nodeInfo.containerRuntimeVersion}{" "}{.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}"#;
const TOKEN: &str = "go-template={{with .data.token}}{{base64decode .}}{{end}}";

/// The hint for a cluster that does not give its nodes.
const TRY: &str = "try: kubectl get nodes";

/// Sets the variables for the cluster of kubectl's current context. Tells the user the master's address, how images
/// reach the nodes, and whether the token is set.
pub(crate) async fn set_up(env: &mut ShellVariables, notes: &Notes) -> Result<(), Error> {
    let minikube = is_installed("minikube", env);
    let failed = |sentence: String, otherwise: &str| {
        let start = "to start minikube: minikube start --container-runtime=docker";
        Error::master(sentence).hint(if minikube { start } else { otherwise })
    };
    let no_context = |reason: &str| {
        failed(format!("kubectl has no current context: {reason}"), "choose a cluster: kubectl config use-context NAME")
    };
    let context = match kubectl(&["config", "current-context"]).await? {
        Ok(context) if context.trim().is_empty() => return Err(no_context("its name is empty")),
        Ok(context) => context.trim().to_owned(),
        Err(reason) => return Err(no_context(&reason)),
    };
    match kubectl(&["get", "nodes", &format!("--output={NODES}")]).await? {
        Ok(nodes) => match nodes.trim().lines().next().and_then(NodeLine::parse) {
            Some(node) => name_master(env, &context, &node, notes).await,
            None => return Err(Error::master(format!("the cluster of context {context} has no nodes")).hint(TRY)),
        },
        // A user with rights in a single namespace cannot list nodes, but can perhaps read the token.
        Err(reason) if reason.contains("(Forbidden)") => {
            let master = env.get("MUSTER_MASTER").map_or("not set", String::as_str);
            notes.say(&format!("you are not allowed to list the nodes of context {context}: {reason}"));
            notes.say(&format!("set MUSTER_MASTER (now {master}) by hand, to kube or http://NODE:{NODE_PORT}"));
        }
        Err(reason) if reason.contains("(Unauthorized)") => {
            let sentence = format!("the cluster of context {context} refuses your login: {reason}");
            return Err(Error::master(sentence).hint(TRY));
        }
        Err(reason) => {
            return Err(failed(format!("the cluster of context {context} does not answer: {reason}"), TRY));
        }
    }
    read_token(env, notes).await
}

/// A line of [`NODES`].
#[derive(Debug, PartialEq, Eq)]
struct NodeLine<'a> {
    runtime: &'a str,
    address: &'a str,
}

impl<'a> NodeLine<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_whitespace();
        Some(Self { runtime: words.next()?, address: words.next()? })
    }
}

async fn name_master(env: &mut ShellVariables, context: &str, node: &NodeLine<'_>, notes: &Notes) {
    let how = choose_images(env, context, node.runtime, notes).await;
    if pass_proxy(env, node.address) {
        notes.say("a proxy is set: added the node to no_proxy and NO_PROXY");
    }
    let host = if node.address.contains(':') { format!("[{}]", node.address) } else { node.address.to_owned() };
    let master = format!("http://{host}:{NODE_PORT}");
    notes.say(&format!("MUSTER_MASTER={master} for context {context}; {how}"));
    set(env, "MUSTER_MASTER", &master);
    // The token of another master must not be sent to this master.
    env.remove("MUSTER_TOKEN");
}

/// Chooses how images reach the nodes. Returns a phrase about the choice, for the user.
async fn choose_images(env: &mut ShellVariables, context: &str, runtime: &str, notes: &Notes) -> String {
    let is_docker = runtime.starts_with("docker://");
    let loader = [("kind", "kind-"), ("k3d", "k3d-")]
        .into_iter()
        .find_map(|(tool, prefix)| context.strip_prefix(prefix).map(|cluster| (tool, cluster)));
    if let Some((tool, cluster)) = loader {
        return load_by(env, tool, cluster);
    }
    if is_minikube(context).await {
        if is_docker {
            match minikube(context, &["docker-env", "--shell=bash"]).await {
                Some(text) => {
                    env.extend(exports(&text));
                    return "images are built by minikube's Docker".to_owned();
                }
                None => notes.say("`minikube docker-env` failed, so images are loaded instead"),
            }
        }
        return load_by(env, "minikube", context);
    }
    let how = if is_docker {
        "the nodes are assumed to share this machine's Docker engine"
    } else {
        "the nodes do not use Docker, so give a registry with --push"
    };
    how.to_owned()
}

fn load_by(env: &mut ShellVariables, tool: &str, cluster: &str) -> String {
    set(env, "MUSTER_LOAD", tool);
    set(env, "MUSTER_LOAD_CLUSTER", cluster);
    format!("images are loaded into {tool}'s cluster {cluster}")
}

/// The assignments of `minikube docker-env`: lines such as `export DOCKER_TLS_VERIFY="1"`.
fn exports(text: &str) -> impl Iterator<Item = (String, String)> {
    let assignments = text.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
    assignments.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()))
}

/// Lets requests to the node go around a proxy, because these requests contain the token. Returns whether a proxy is
/// set.
fn pass_proxy(env: &mut ShellVariables, address: &str) -> bool {
    let value = |name: &str| env.get(name).filter(|value| !value.is_empty()).cloned();
    if ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"].into_iter().all(|name| value(name).is_none()) {
        return false;
    }
    // Some programs read no_proxy, others NO_PROXY. If only one of them is set, its value is used for both.
    let lower = value("no_proxy").or_else(|| value("NO_PROXY"));
    let upper = value("NO_PROXY").or_else(|| value("no_proxy"));
    for (name, old) in [("no_proxy", lower), ("NO_PROXY", upper)] {
        // `*` alone means every address. In a list with other hosts, `*` would lose this meaning.
        if old.as_deref() != Some("*") {
            let new = old.map_or_else(|| address.to_owned(), |old| format!("{old},{address}"));
            set(env, name, &new);
        }
    }
    true
}

async fn read_token(env: &mut ShellVariables, notes: &Notes) -> Result<(), Error> {
    match kubectl(&["get", "secret", "muster", &format!("--output={TOKEN}")]).await? {
        Ok(token) if token.trim().is_empty() => notes.say("the Secret muster contains no token"),
        Ok(token) => {
            set(env, "MUSTER_TOKEN", token.trim());
            notes.say("MUSTER_TOKEN is set from the Secret muster");
        }
        Err(reason) if reason.contains("(NotFound)") => {
            let install = command("install");
            notes.say(&format!("there is no Secret muster in this namespace yet: run `{install}`, or `make token`, then repeat this command"));
        }
        Err(reason) => notes.say(&format!("set MUSTER_TOKEN by hand: the Secret muster cannot be read: {reason}")),
    }
    Ok(())
}

fn set(env: &mut ShellVariables, name: &str, value: &str) {
    env.insert(name.to_owned(), value.to_owned());
}

/// kubectl's output, or the last line of its error text.
async fn kubectl(args: &[&str]) -> Result<Result<String, String>, Error> {
    let ended = output("kubectl", &[&["--request-timeout=10s"], args].concat()).await;
    let no_tool = || {
        Error::master("there is no kubectl on the PATH: cannot look for a cluster")
            .hint("install kubectl; without a cluster, client runs jobs on this machine")
    };
    let ended = ended.ok_or_else(no_tool)?;
    if ended.status.success() {
        return Ok(Ok(String::from_utf8_lossy(&ended.stdout).into_owned()));
    }
    let text = String::from_utf8_lossy(&ended.stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    Ok(Err(last.map_or_else(|| format!("kubectl ended with {}", ended.status), str::to_owned)))
}

async fn is_minikube(profile: &str) -> bool {
    let status = minikube(profile, &["status", "--format={{.Host}}"]).await;
    status.is_some_and(|status| status.starts_with("Running"))
}

async fn minikube(profile: &str, args: &[&str]) -> Option<String> {
    let ended = output("minikube", &[&[&*format!("--profile={profile}")], args].concat()).await?;
    ended.status.success().then(|| String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// A program's exit status and output; `None` if the program cannot be started.
async fn output(program: &str, args: &[&str]) -> Option<Output> {
    Command::new(program).args(args).stdin(Stdio::null()).kill_on_drop(true).output().await.ok()
}

fn is_installed(program: &str, env: &ShellVariables) -> bool {
    let path = env.get("PATH").map_or("", String::as_str);
    path.split(':').any(|folder| Path::new(folder).join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_added_to_both_no_proxy_variables_if_a_proxy_is_set() {
        for (before, after) in [
            (&[("NO_PROXY", "corp")][..], [Some("corp,n"), Some("corp,n")]),
            (&[("no_proxy", "a"), ("NO_PROXY", "b")], [Some("a,n"), Some("b,n")]),
            (&[("no_proxy", ""), ("NO_PROXY", "")], [Some("n"), Some("n")]),
            (&[("no_proxy", "*")], [Some("*"), None]),
        ] {
            let mut env: ShellVariables = before.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            let untouched = env.clone();
            assert!(!pass_proxy(&mut env, "n"));
            assert_eq!(env, untouched, "the variables changed although no proxy is set");
            set(&mut env, "all_proxy", "http://proxy:1");
            assert!(pass_proxy(&mut env, "n"));
            assert_eq!(["no_proxy", "NO_PROXY"].map(|name| env.get(name).map(String::as_str)), after, "{before:?}");
        }
    }
}
