//! The helper `muster.py`: every run can import it, and what it reports is part of the status.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use protocol::agent::{ExitOutcome, HelperStatus, RunState, RunStatus};
use protocol::warm::WarmState;
use serde_json::{Value, json};

use crate::support::warm::Folders;
use crate::support::{Agent, children_of, wait_until};

/// A training of one step, STEP. It prints the folder of the helper.
const ONE_STEP: &str = "import os, muster, standin
job = muster.Job(global_batch=4)
job.started()
print(os.path.dirname(muster.__file__))
job.step(STEP, (0, 0))
job.done()";

const STEPPED: fn(u64) -> Option<HelperStatus> = |step| Some(HelperStatus { step: Some(step) });

/// A job's folder and two agents for it: one without a warm interpreter, and one with it.
fn cold_and_warm(script: &str) -> (Folders, [Agent; 2]) {
    let folders = Folders::new();
    folders.write_script(script);
    let agents = [folders.agent(), folders.agent()];
    assert_eq!(agents[1].warm_up(&folders.env(&json!({})), &json!(["standin"])), WarmState::Ready);
    (folders, agents)
}

/// A run with these variables. Returns its last status and its stdout.
fn ran(agent: &Agent, env: &Value) -> (RunStatus, String) {
    let ran = agent.ran(env);
    assert_eq!(ran.outcome, ExitOutcome::Code(0), "{}", ran.stderr);
    (agent.status(), ran.stdout.lines().next().unwrap_or_default().to_owned())
}

/// Makes [`ONE_STEP`] the script. Returns the variables of its run.
fn step(folders: &Folders, step: u64) -> Value {
    folders.write_script(ONE_STEP.replace("STEP", &step.to_string()));
    folders.env(&json!({}))
}

#[test]
fn every_run_can_import_the_helper_and_report_its_step() {
    let (folders, agents) = cold_and_warm("import standin");
    for agent in &agents {
        folders.write_script("import standin");
        assert_eq!(ran(agent, &folders.env(&json!({}))).0.helper, None);
        for number in [7, 8] {
            let (status, folder) = ran(agent, &step(&folders, number));
            assert_eq!(status.helper, STEPPED(number));
            assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700, "{folder}");
        }
        assert_eq!(agent.post("/config", "{}").status, 200);
        assert_eq!(agent.status().helper, None, "a new configuration resets it");
        assert_eq!(agent.post("/stop", "").status, 200);
        assert_eq!((agent.status().state, agent.status().helper), (RunState::Exited, None));
    }
    assert_eq!(folders.imports(), 4, "three runs without a warm interpreter, and the warm interpreter");
}

#[test]
fn the_folder_of_the_helper_is_removed_with_the_agent() {
    let (folders, agents) = cold_and_warm("import standin");
    for mut agent in agents {
        let (_, folder) = ran(&agent, &step(&folders, 1));
        assert!(Path::new(&folder).join("muster.py").exists());
        drop(agent.stdin.take());
        agent.wait_for_end();
        assert!(!Path::new(&folder).exists(), "{folder}");
    }
}

#[test]
fn hello_ends_a_long_poll_and_a_step_does_not() {
    let script = "import muster, standin, time\njob = muster.Job(4)\njob.started()\njob.step(3, (0, 0))\n\
                  while True: time.sleep(1000)";
    let (folders, agents) = cold_and_warm(script);
    for agent in &agents {
        agent.start_with(&folders.env(&json!({})));
        let mut greeted = agent.wait_for(RunState::Running);
        while greeted.helper.is_none() {
            let poll = agent.get(&format!("/status?after={}&wait=60", greeted.seq));
            greeted = serde_json::from_slice(&poll.body).unwrap();
        }
        let stepped = wait_until("the step", || Some(agent.status()).filter(|status| status.helper == STEPPED(3)));
        assert_eq!(stepped.seq, greeted.seq);
    }
}

#[test]
fn a_users_own_module_wins() {
    let own = "SIDE = 'own'\n";
    let (folders, agents) = cold_and_warm("import muster, standin\nprint(muster.SIDE)");
    for place in [folders.installed(), folders.job()] {
        let file = place.join("muster.py");
        fs::write(&file, own).unwrap();
        for agent in &agents {
            let (status, printed) = ran(agent, &folders.env(&json!({})));
            assert_eq!((status.helper, printed.as_str()), (None, "own"), "{file:?}");
        }
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn the_socket_is_closed_after_a_bad_line_and_the_run_continues() {
    let longest = r#"b'{"hello": 1, "x": "' + b'x' * (65536 - 22) + b'"}\n'"#;
    let too_long = r#"b'{"hello": 1, "x": "' + b'x' * (65537 - 22) + b'"}\n'"#;
    for (sent, is_read, is_closed) in [
        (longest, true, false),
        (too_long, false, true),
        ("b'x' * 65536", false, true),
        ("b'[]\\n'", false, true),
        (r#"b'{"hello": 1}\nnot JSON\n'"#, true, true),
        (r#"b'{"later": 1, "hello": 1}\n{}\n{"progress": null}\n{"progress": {"step": -1}}\n'"#, true, false),
    ] {
        let agent = Agent::of_python(&format!(
            "import os, socket\nagent = socket.socket(fileno=int(os.environ['MUSTER_FD']))\nagent.settimeout(0.3)\n\
             sent = {sent}\ntry:\n  agent.sendall(sent)\n  print(agent.recv(1) == b'')\n\
             except TimeoutError: print(False)\nexcept OSError: print(True)"
        ));
        assert_eq!(agent.outcome(), ExitOutcome::Code(0));
        let helper = is_read.then_some(HelperStatus { step: None });
        let closed = if is_closed { "True\n" } else { "False\n" };
        assert_eq!((agent.status().helper, agent.logs("stdout")), (helper, closed.into()), "{sent}");
    }
}

#[test]
fn runs_leave_no_descriptors_open() {
    let (folders, agents) = cold_and_warm("import standin");
    for agent in &agents {
        let count = |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        let counts = || [vec![agent.pid()], children_of(agent.pid())].concat().into_iter().map(count).collect();
        let env = step(&folders, 1);
        ran(agent, &env);
        let before: Vec<usize> = counts();
        for _ in 0..5 {
            ran(agent, &env);
        }
        wait_until("as many descriptors as before", || (before >= counts()).then_some(()));
    }
}
