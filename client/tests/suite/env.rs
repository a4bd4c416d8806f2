//! `client env` and env.sh, in bash and, if installed, in zsh. Scripts replace kubectl and minikube.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Ended, finish};

/// A kubectl that answers from variables: CONTEXT, NODES (runtime and address) and TOKEN. If NODES_FAIL or TOKEN_FAIL
/// is set, kubectl prints the text of that variable as an error instead. In errors, each `_` means a space. In NODES,
/// only the first `_` does.
const KUBECTL: &str = r#"#!/bin/bash
echo "Warning: this is no reason" >&2
fail() {
    echo "${1//_/ }" >&2
    exit 1
}
case "$*" in
    *"config current-context"*) [ -n "${CONTEXT-}" ] || fail "error: current-context is not set"; echo "$CONTEXT" ;;
    *"get nodes"*) [ -z "${NODES_FAIL-}" ] || fail "$NODES_FAIL"; echo -n "${NODES/_/ }" ;;
    *"get secret muster"*)
        [ -z "${TOKEN_FAIL-}" ] || fail "$TOKEN_FAIL"
        [ -n "${TOKEN-}" ] || fail 'Error from server (NotFound): secrets "muster" not found'
        printf %s "$TOKEN" ;;
    *) fail "kubectl $*: not expected" ;;
esac
"#;
/// A minikube. The variable MINIKUBE names the running profile.
const MINIKUBE: &str = r#"#!/bin/bash
case "$*" in
    "--profile=${MINIKUBE-}"*) [ -n "${MINIKUBE-}" ] || exit 85 ;;
    *) echo "Profile not found"; exit 85 ;;
esac
case "$*" in
    *status*) echo Running ;;
    *docker-env*)
        [ -z "${DOCKER_ENV_FAILS-}" ] || { echo 'false exit code 14'; exit 14; }
        echo 'export DOCKER_TLS_VERIFY="1"'
        echo 'export DOCKER_HOST="tcp://192.168.49.2:2376"'
        echo 'export DOCKER_CERT_PATH="/home/you/.minikube/certs"'
        echo 'export MINIKUBE_ACTIVE_DOCKERD="minikube"'
        echo '# To point your shell to minikube'"'"'s docker-daemon, run:' ;;
    *) echo "minikube $*: not expected" >&2; exit 1 ;;
esac
"#;
/// A function for the scripts of the tests: checks a variable's value.
const CHECKS: &str = r#"
is() {
    eval "came=\${$1-<unset>}"
    [ "$came" = "$2" ] || { echo "$1 is $came, not $2"; exit 1; }
}
"#;

const DOCKER_NODE: &str = "NODES=docker://20.10.24_192.0.2.7";
const CONTAINERD_NODE: &str = "NODES=containerd://1.7.2_192.0.2.7";
const NO_ANSWER: &str = "NODES_FAIL=The_connection_was_refused";
const NO_RIGHT: &str = "Error_from_server_(Forbidden):_no_right";

/// A copy of the files that env.sh needs, and a PATH with kubectl and minikube.
struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        // The folder is in cargo's target folder, so that programs can be hard-linked instead of copied.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let at = |path: &str| folder.path().join(path);
        for name in ["dist", "bin", "few"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::hard_link(env!("CARGO_BIN_EXE_client"), at("dist/client")).unwrap();
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("../env.sh"), at("env.sh")).unwrap();
        symlink("/usr/bin/dirname", at("few/dirname")).unwrap();
        for (name, text) in [("kubectl", KUBECTL), ("minikube", MINIKUBE)] {
            let path = at("bin").join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a script with these variables. `$E` is the path of env.sh, and `$C` is the path of the client.
    fn run(&self, shell: &[&str], variables: &[&str], script: &str) -> Ended {
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).args(["-c", &format!("{CHECKS}{script}")]).env_clear().current_dir("/");
        command.env("E", self.path("env.sh")).env("C", self.path("dist/client")).env("HOME", self.path(""));
        command.env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()));
        command.envs(variables.iter().map(|variable| variable.split_once('=').unwrap()));
        finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }
}

fn shells() -> impl Iterator<Item = &'static [&'static str]> {
    let installed = |shell: &&[&str]| Path::new("/usr/bin").join(shell[0]).is_file();
    [&["bash"][..], &["zsh", "-f"]].into_iter().filter(installed)
}

/// Checks in each shell that the script reaches its end and that stderr contains these texts.
#[track_caller]
fn it(variables: &[&str], script: &str, says: &[&str]) {
    let scene = Scene::new();
    for shell in shells() {
        let ended = scene.run(shell, variables, &format!("{script}\necho came to its end"));
        assert_eq!(ended.stdout, "came to its end\n", "{shell:?} {variables:?} {script}\nstderr:\n{}", ended.stderr);
        for words in says {
            assert!(ended.stderr.contains(words), "{shell:?} does not say {words:?}, but:\n{}", ended.stderr);
        }
    }
}

#[test]
fn a_program_started_by_the_shell_gets_the_masters_address_and_token() {
    it(
        &["CONTEXT=testbed", DOCKER_NODE, "TOKEN=s3cret"],
        r#"source "$E"
        [ "$(sh -c 'echo $MUSTER_MASTER $MUSTER_TOKEN')" = "http://192.0.2.7:31898 s3cret" ] || exit 1
        is MUSTER_LOAD "<unset>"; is DOCKER_HOST "<unset>"
        case $PATH in "${E%/env.sh}/dist:"*) ;; *) echo "$PATH"; exit 1 ;; esac"#,
        &["MUSTER_MASTER=http://192.0.2.7:31898 for context testbed; the nodes are assumed to share this machine's"],
    );
}

#[test]
fn sh_can_evaluate_the_statements_of_client_env_without_env_sh() {
    let script = r#"set -eu
        eval "$("$C" env)"; is MUSTER_MASTER http://192.0.2.7:31898; is MUSTER_TOKEN "it's"
        eval "$("$C" env --unset)"; is MUSTER_MASTER "<unset>"; is MUSTER_TOKEN old"#;
    let ended = Scene::new().run(&["sh"], &["CONTEXT=t", DOCKER_NODE, "TOKEN=it's", "MUSTER_TOKEN=old"], script);
    ended.expect_code(0);
}

#[test]
fn env_sh_down_restores_the_environment() {
    it(
        &[
            "CONTEXT=minikube",
            "MINIKUBE=minikube",
            DOCKER_NODE,
            "TOKEN=s3cret",
            "MUSTER_MASTER=http://old:1",
            "DOCKER_HOST=unix:///old",
        ],
        r#"before=$PATH
        source "$E"
        is MUSTER_MASTER http://192.0.2.7:31898
        source "$E" down
        is MUSTER_MASTER http://old:1; is DOCKER_HOST unix:///old; is PATH "$before"
        is MUSTER_TOKEN "<unset>"; is DOCKER_TLS_VERIFY "<unset>"; is MINIKUBE_ACTIVE_DOCKERD "<unset>""#,
        &[],
    );
    it(
        &["CONTEXT=kind-dev", DOCKER_NODE, "MUSTER_TOKEN=old", "MUSTER_LOAD="],
        r#"before=$PATH
        source "$E"; source "$E"
        is MUSTER_LOAD kind
        source "$E" down
        is MUSTER_TOKEN old; is MUSTER_LOAD ""; is MUSTER_LOAD_CLUSTER "<unset>"; is PATH "$before"
        source "$E" down
        is MUSTER_TOKEN old; is PATH "$before"
        left=$(set | grep -i "^_\?muster_[ce]" || true)
        is left """#,
        &[],
    );
    it(
        &["CONTEXT=testbed", DOCKER_NODE],
        r#"before=$PATH
        source "$E"; PATH=/first:$PATH:/last; source "$E" down
        is PATH "/first:$before:/last""#,
        &[],
    );
}

#[test]
fn images_reach_the_nodes_in_the_way_that_fits_the_cluster() {
    it(
        &["CONTEXT=minikube", "MINIKUBE=minikube", DOCKER_NODE],
        r#"source "$E"
        is DOCKER_HOST tcp://192.168.49.2:2376; is DOCKER_TLS_VERIFY 1; is MUSTER_LOAD "<unset>""#,
        &["; images are built by minikube's Docker"],
    );
    it(
        &["CONTEXT=second", "MINIKUBE=second", CONTAINERD_NODE],
        r#"source "$E"
        is DOCKER_HOST "<unset>"; is MUSTER_LOAD minikube; is MUSTER_LOAD_CLUSTER second"#,
        &[],
    );
    it(
        &["CONTEXT=minikube", "MINIKUBE=minikube", DOCKER_NODE, "DOCKER_ENV_FAILS=1"],
        r#"source "$E"
        is DOCKER_HOST "<unset>"; is MUSTER_LOAD minikube"#,
        &["`minikube docker-env` failed"],
    );
    it(
        &["CONTEXT=other", "MINIKUBE=minikube", DOCKER_NODE],
        r#"source "$E"
        is DOCKER_HOST "<unset>"; is MUSTER_LOAD "<unset>""#,
        &[],
    );
    for (context, tool, cluster) in [("kind-dev", "kind", "dev"), ("k3d-my-lab", "k3d", "my-lab")] {
        it(
            &[&format!("CONTEXT={context}"), CONTAINERD_NODE],
            &format!("source \"$E\"\nis MUSTER_LOAD {tool}; is MUSTER_LOAD_CLUSTER {cluster}"),
            &[&format!("images are loaded into {tool}'s cluster {cluster}")],
        );
    }
    it(&["CONTEXT=other", CONTAINERD_NODE], r#"source "$E""#, &["give a registry with --push"]);
}

#[test]
fn an_ipv6_address_is_in_brackets_in_the_url_but_not_in_no_proxy() {
    it(
        &["CONTEXT=testbed", "NODES=docker://1_fd00::7", "all_proxy=http://proxy:1"],
        r#"source "$E"
        is MUSTER_MASTER "http://[fd00::7]:31898"; is no_proxy fd00::7; is NO_PROXY fd00::7"#,
        &[],
    );
}

#[test]
fn requests_to_the_master_bypass_a_proxy() {
    it(
        &["CONTEXT=testbed", DOCKER_NODE, "HTTP_PROXY=http://proxy:1", "NO_PROXY=corp.example"],
        r#"source "$E"; source "$E"
        is NO_PROXY corp.example,192.0.2.7; is no_proxy corp.example,192.0.2.7
        source "$E" down
        is NO_PROXY corp.example; is no_proxy "<unset>""#,
        &["a proxy is set"],
    );
}

#[test]
fn without_a_cluster_an_error_is_printed_and_only_the_path_changes() {
    for (variables, says) in [
        (&[][..], "error: kubectl has no current context: error: current-context is not set\nhint: to start minikube"),
        (
            &["CONTEXT=t", NO_ANSWER],
            "error: the cluster of context t does not answer: The connection was refused\nhint: ",
        ),
        (
            &["CONTEXT=t", "NODES_FAIL=error:_You_must_be_logged_in_(Unauthorized)"],
            "error: the cluster of context t refuses your login: error: You must be logged in (Unauthorized)",
        ),
        (&["CONTEXT=t"], "error: the cluster of context t has no nodes"),
    ] {
        let variables = [&["MUSTER_MASTER=http://old:1"], variables].concat();
        let script = r#"source "$E"; is MUSTER_MASTER http://old:1
            case $PATH in "${E%/env.sh}/dist:"*) ;; *) echo "$PATH"; exit 1 ;; esac"#;
        it(&variables, script, &[says]);
        Scene::new().run(&["sh"], &variables, "exec \"$C\" env").expect_code(3);
    }
    it(&[], "PATH=$HOME/few\nsource \"$E\"\nis MUSTER_MASTER \"<unset>\"", &["error: there is no kubectl on the PATH"]);
}

#[test]
fn without_the_right_to_list_nodes_the_masters_address_stays_and_a_readable_token_is_set() {
    let no_nodes = format!("NODES_FAIL={NO_RIGHT}");
    it(
        &["CONTEXT=testbed", &no_nodes, "MUSTER_MASTER=http://forward:7897", "TOKEN=s3cret"],
        r#"source "$E"
        is MUSTER_MASTER http://forward:7897; is MUSTER_TOKEN s3cret"#,
        &[
            "you are not allowed to list the nodes of context testbed: Error from server (Forbidden): no right",
            "set MUSTER_MASTER (now http://forward:7897) by hand",
        ],
    );
    it(
        &["CONTEXT=testbed", &no_nodes, &format!("TOKEN_FAIL={NO_RIGHT}"), "MUSTER_MASTER=m", "MUSTER_TOKEN=mine"],
        r#"source "$E"
        is MUSTER_MASTER m; is MUSTER_TOKEN mine"#,
        &[],
    );
}

#[test]
fn without_a_readable_secret_the_token_is_unset_and_the_reason_printed() {
    let unreadable = format!("TOKEN_FAIL={NO_RIGHT}");
    for (token, says) in [
        (
            "MUSTER_TOKEN=another",
            "there is no Secret muster in this namespace yet: run `client install`, or `make token`",
        ),
        (unreadable.as_str(), "cannot be read: Error from server (Forbidden): no right"),
    ] {
        let script = "source \"$E\"\nis MUSTER_TOKEN \"<unset>\"";
        it(&["CONTEXT=testbed", DOCKER_NODE, token], script, &[says]);
    }
}

#[test]
fn env_sh_works_in_a_strict_shell() {
    let no_nodes = format!("NODES_FAIL={NO_RIGHT}");
    for strict in ["set -eu", "set -eu -o pipefail; IFS=x"] {
        for variables in [
            &["CONTEXT=testbed", DOCKER_NODE][..],
            &[],
            &["CONTEXT=testbed", NO_ANSWER],
            &["CONTEXT=testbed", &no_nodes],
            &["CONTEXT=kind-dev", CONTAINERD_NODE, "TOKEN=t", "HTTP_PROXY=http://proxy:1"],
        ] {
            let script = r#"
                source "$E"; source "$E"; source "$E" down; source "$E" down
                is MUSTER_MASTER "<unset>"
                case $- in *e*u*|*u*e*) ;; *) echo "the options are $-"; exit 1 ;; esac"#;
            it(variables, &format!("{strict}{script}"), &[]);
        }
    }
}

#[test]
fn env_sh_only_prints_an_error_in_other_shells_or_without_a_client() {
    let scene = Scene::new();
    if Path::new("/usr/bin/dash").exists() {
        let ended = scene.run(&["dash"], &[], "set -eu; . \"$E\"; echo on").expect_code(0);
        assert_eq!((ended.stdout.as_str(), ended.stderr.lines().count()), ("on\n", 1), "{}", ended.stderr);
    }
    fs::remove_file(scene.path("dist/client")).unwrap();
    let ended = scene.run(&["bash"], &[], "set -eu; source \"$E\"; echo on").expect_code(0);
    assert_eq!(ended.stdout, "on\n");
    ended.expect_stderr("error: there is no client in dist/ and none on the PATH: run make build");
}
