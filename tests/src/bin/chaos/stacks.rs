//! Asks for the stacks of scripts for which a signal is dangerous. No request may end or disturb a process.

use std::time::Instant;

use anyhow::ensure;
use e2e::Scene;
use e2e::programs::python_path;
use e2e::requests::wait_for;
use protocol::ids::JobName;
use protocol::job::{JobRequest, Strategy};
use protocol::stacks::{Answer, Dump};
use protocol::view::JobState;

use crate::api::Api;
use crate::say;

/// Worker 0 has busy threads that make and drop frames. Worker 1 forks children that end at once. Worker 2 starts
/// programs, also with a pause between fork and start. Worker 3 becomes a program without a handler. A worker prints a
/// violation if a child process ends in an unexpected way.
const EXEC_PY: &str = r#"
import os, subprocess, sys, threading, time

def sink(depth):
    return 0 if depth == 0 else 1 + sink(depth - 1)

def spin():
    while True: sink(50)

def fork():
    while True:
        child = os.fork()
        if child == 0: os._exit(7)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != 7: print("VIOLATION: a fork ended with", status, flush=True)

def start(pause):
    preexec = (lambda: time.sleep(pause)) if pause else None
    while True:
        code = subprocess.run(["sh", "-c", "exit 7"], preexec_fn=preexec).returncode
        if code != 7: print("VIOLATION: a program ended with", code, flush=True)

works = [
    [spin] * 4,
    [spin, fork, fork],
    [lambda: start(0), lambda: start(0.02)],
    [],
][int(os.environ["MUSTER_INDEX"])]
for work in works: threading.Thread(target=work, daemon=True).start()
print("begun", flush=True)
if not works: os.execvp("sh", ["sh", "-c", "while :; do sleep 0.1; done"])
while True: time.sleep(0.05)
"#;

/// Number of requests about one job. The first requests come while the job starts, and the last requests come while it
/// stops.
const REQUESTS_OF_JOB: u32 = 25;

/// Sends `requests` requests to agents, four for each request to the master.
pub(crate) fn campaign(requests: u32) -> anyhow::Result<()> {
    let scene = Scene::new(EXEC_PY);
    let master = scene.master_with(&[("PATH", &python_path())]);
    let api = Api { scene: &scene, url: &master.url };
    let (begin, mut asked, mut shown, mut number) = (Instant::now(), 0, 0, 0);
    while asked < requests {
        let name: JobName = format!("stacks-{number:04}").parse().expect("the name is invalid");
        number += 1;
        let of_job = job(api, &name)?;
        (asked, shown) = (asked + of_job.0, shown + of_job.1);
    }
    say(&format!(
        "{asked} requests to agents of {number} jobs, {shown} answers with stacks; {:.0} s",
        begin.elapsed().as_secs_f64()
    ));
    ensure!(shown * 3 > asked, "only {shown} of {asked} answers have stacks");
    Ok(())
}

/// Runs a job. Returns how many agents were asked, and how many answers had stacks.
fn job(api: Api<'_>, name: &JobName) -> anyhow::Result<(u32, u32)> {
    api.submit(&JobRequest { worker_num: Some(4), ..JobRequest::new(name.clone(), Strategy::AllReduce) })?;
    let (mut asked, mut shown) = (0, 0);
    for request in 0..REQUESTS_OF_JOB {
        if request + 3 == REQUESTS_OF_JOB {
            wait_for(api.client().cancel(name))?;
        }
        for replica in wait_for(api.client().stacks(name))?.replicas {
            if let Answer::Processes(processes) = &replica.answer {
                asked += 1;
                shown += u32::from(processes.iter().any(|process| matches!(process.dump, Dump::Text(_))));
            }
        }
    }
    let view = api.finished(name)?;
    let output = api.logs(name);
    let begun = output.matches("begun").count();
    ensure!(!output.contains("VIOLATION"), "{name}: {output}");
    ensure!(
        view.state == JobState::Cancelled && view.restarts.is_empty(),
        "{name}: a request ended a script: {view:?}"
    );
    ensure!(begun == 4, "{name}: {begun} of 4 scripts began: {output}");
    api.delete(name)?;
    Ok((asked, shown))
}
