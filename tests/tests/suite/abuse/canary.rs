//! Searches for tokens in the output, files, answers, arguments and environments of master, agents and client.

use std::fs;
use std::path::Path;

use e2e::processes::working_in;
use e2e::programs::files_in;
use e2e::{Master, Running, Scene};

const TOKEN: &str = "canary-of-the-master-7f3a9c52e8b1d604";
/// A wrong token.
const WRONG: &str = "canary-of-a-stranger-51be20";
/// A script that prints its environment, and the environment and arguments of its agent. Then the script
/// waits for the file `go`.
const EXEC_PY: &str = "\
import os, pathlib, time
parents = [pathlib.Path(f'/proc/{os.getppid()}/{name}').read_bytes() for name in ('environ', 'cmdline')]
print(dict(os.environ), parents, 'ready', flush=True)
while not os.path.exists('go'):
    time.sleep(0.01)
";

/// The places to search, with their content.
struct Seen(Vec<(String, Vec<u8>)>);

impl Seen {
    fn add(&mut self, place: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.push((place.into(), bytes.into()));
    }

    fn add_folder(&mut self, folder: &Path) {
        for path in files_in(folder) {
            if let Ok(bytes) = fs::read(&path) {
                self.add(path.display().to_string(), bytes);
            }
        }
    }

    /// Adds the arguments and environment of each process in this folder. Returns the number of processes.
    fn add_processes(&mut self, folder: &Path) -> usize {
        let processes = working_in(folder);
        for process in &processes {
            let pid = process.split(':').next().expect("no process id");
            for name in ["cmdline", "environ"] {
                self.add(format!("{name} of {process}"), fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default());
            }
        }
        processes.len()
    }

    fn assert_without(&self, secrets: &[&str]) {
        for (place, bytes) in &self.0 {
            let text = String::from_utf8_lossy(bytes).to_lowercase();
            let found = secrets.iter().find(|secret| text.contains(&secret.to_lowercase()));
            assert_eq!(found, None, "found in {place}");
        }
    }
}

/// Requests each path with the token, with a wrong token, and without a token. Adds all answers to `seen`, and returns
/// the answer with the job's view. curl reads the tokens from files, so that no process has a token in its arguments.
fn answers(scene: &Scene, master: &Master, seen: &mut Seen) -> String {
    for (file, token) in [("right", TOKEN), ("wrong", WRONG)] {
        fs::write(scene.path().join(file), format!("Authorization: Bearer {token}\n")).expect("cannot write the file");
    }
    let mut job = String::new();
    let paths =
        ["/v1/jobs", "/v1/jobs/canary", "/v1/jobs/canary/logs", "/v1/master", "/metrics", "/openapi.json", "/readyz"];
    for path in paths {
        let url = format!("{}{path}", master.url);
        for header in [&["-H", "@right"][..], &["-H", "@wrong"], &[]] {
            let answer = scene.curl(&[header, &["-i", &url]].concat());
            assert!(answer.starts_with("HTTP/1.1 "), "{path} {header:?}: {answer}");
            job = if path == "/v1/jobs/canary" && header.contains(&"@right") { answer.clone() } else { job };
            // The OpenAPI document contains this example, which is not a secret.
            seen.add(format!("{path} {header:?}"), answer.replace("Authorization: Bearer TOKEN", ""));
        }
    }
    job
}

#[test]
fn no_token_is_in_any_log_file_argument_environment_or_answer() {
    let scene = Scene::new(EXEC_PY);
    let outside = tempfile::tempdir().expect("cannot create a temporary folder");
    let file = outside.path().join("token");
    fs::write(&file, TOKEN).expect("cannot write the token");
    let file = file.to_str().expect("the path is not UTF-8");
    let master = Master::start(scene.path(), &["--state-dir", "state", "--token-file", file], &[("RUST_LOG", "trace")]);
    let flags = ["--master", &master.url, "--token-file", file, "--task", "canary", "--worker-num", "2"];
    let client = Running::of(scene.client(&flags).env("RUST_LOG", "trace"));
    client.until_printed(2, "ready");

    let mut seen = Seen(vec![]);
    let processes = seen.add_processes(scene.path());
    assert!(
        processes >= 6,
        "fewer processes than a master, a client, two agents and two scripts: {}",
        scene.processes()
    );
    let job = answers(&scene, &master, &mut seen);
    assert!(job.contains("\"running\""), "{job}");
    fs::write(scene.path().join("go"), "").expect("cannot write the file");
    let run = client.ended().code(0);
    seen.add("the client's stdout", run.stdout);
    seen.add("the client's stderr", run.stderr);
    answers(&scene, &master, &mut seen);
    assert!(master.log().contains("TRACE"), "the log has no trace lines: {}", master.log());
    seen.add("the master's log", master.log());
    seen.add_folder(&scene.path().join("state"));

    assert!(seen.0.iter().any(|(place, _)| place.ends_with(".sqlite")), "the file of records was not searched");
    let has_hash = |(_, bytes): &(String, Vec<u8>)| String::from_utf8_lossy(bytes).contains("TOKEN_SHA256");
    assert!(seen.0.iter().any(has_hash), "no environment with the token's hash was searched");
    // The test does not know the agents' tokens, so it searches for the word before a token.
    seen.assert_without(&[TOKEN, WRONG, "bearer "]);
    println!("{} places searched, no token found", seen.0.len());
}
