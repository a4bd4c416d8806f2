//! The helper `muster.py`: every run can import it, and its reports are part of the status.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use protocol::agent::{ExitOutcome, RunState, RunStatus};
use protocol::progress::Progress;
use protocol::warm::WarmState;
use serde_json::{Value, json};

use crate::support::warm::Folders;
use crate::support::{Agent, children_of, wait_until};

/// A script that trains one step with the number STEP. It prints the folder of the helper.
const ONE_STEP: &str = "import os, muster, standin
job = muster.Job(global_batch=4)
job.started()
print(os.path.dirname(muster.__file__))
job.step(STEP, (0, 0))
job.done()";

/// The last step of the newest run. The outer `None` means that the script does not use the helper.
fn step_of(status: &RunStatus) -> Option<Option<u64>> {
    status.helper.as_ref().map(|progress| progress.step)
}

/// A job's folder and two agents for it. Only the second agent has a warm interpreter.
fn cold_and_warm(script: &str) -> (Folders, [Agent; 2]) {
    let folders = Folders::new();
    folders.write_script(script);
    let agents = [folders.agent(), folders.agent()];
    assert_eq!(agents[1].warm_up(&folders.env(&json!({})), &json!(["standin"])), WarmState::Ready);
    (folders, agents)
}

/// Completes a run with these variables. Returns its last status and the first line of its stdout.
fn ran(agent: &Agent, env: &Value) -> (RunStatus, String) {
    let ran = agent.ran(env);
    assert_eq!(ran.outcome, ExitOutcome::Code(0), "{}", ran.stderr);
    (agent.status(), ran.stdout.lines().next().unwrap_or_default().to_owned())
}

/// Writes the script: [`ONE_STEP`] with this step. Returns the variables of its run.
fn step(folders: &Folders, step: u64) -> Value {
    folders.write_script(ONE_STEP.replace("STEP", &step.to_string()));
    folders.env(&json!({}))
}

#[test]
fn every_run_can_import_the_helper_and_report_its_step() {
    let (folders, agents) = cold_and_warm("import standin");
    for agent in &agents {
        folders.write_script("import standin");
        assert_eq!(step_of(&ran(agent, &folders.env(&json!({}))).0), None);
        for number in [7, 8] {
            let (status, folder) = ran(agent, &step(&folders, number));
            assert_eq!(step_of(&status), Some(Some(number)));
            assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700, "{folder}");
        }
        assert_eq!(agent.post("/config", "{}").status, 200);
        assert_eq!(agent.status().helper, None, "the status after a new config has the report of the earlier run");
        assert_eq!(agent.post("/stop", "").status, 200);
        assert_eq!((agent.status().state, agent.status().helper), (RunState::Exited, None));
    }
    assert_eq!(folders.imports(), 4, "wrong number of imports by three cold runs and one warm interpreter");
}

#[test]
fn a_run_can_import_the_helper_although_a_cleaner_has_removed_its_folder() {
    let folders = Folders::new();
    let agent = folders.agent();
    let (_, first) = ran(&agent, &step(&folders, 1));
    fs::remove_dir_all(&first).unwrap();
    let (_, second) = ran(&agent, &step(&folders, 2));
    assert_ne!(second, first);
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
fn a_helpers_greeting_and_its_first_step_end_a_long_poll_and_later_steps_do_not() {
    let script = "import muster, standin, time\njob = muster.Job(4)\njob.started()\nstep = 0\nwhile step < 5:\n  \
                  step += 1\n  job.log(loss=1 / step, bad=float('nan'))\n  job.step(step, (0, 0))\n  time.sleep(0.3)\n\
                  while True: time.sleep(1000)";
    let (folders, agents) = cold_and_warm(script);
    for agent in &agents {
        agent.start_with(&folders.env(&json!({})));
        let mut newest = agent.wait_for(RunState::Running);
        while newest.helper.as_ref().is_none_or(|progress| !progress.has_stepped()) {
            let poll = agent.get(&format!("/status?after={}&wait=60", newest.seq));
            newest = serde_json::from_slice(&poll.body).unwrap();
        }
        let last =
            wait_until("the last step", || Some(agent.status()).filter(|status| step_of(status) == Some(Some(5))));
        assert_eq!(last.seq, newest.seq);
        let Progress { steps, samples, wall_us, values, .. } = last.helper.unwrap();
        assert_eq!((steps, samples, wall_us > 0), (4, 16, true));
        assert_eq!(values.iter().collect::<Vec<_>>(), [("loss", 0.2)]);
    }
}

#[test]
fn a_script_that_missed_sigterm_leaves_after_its_first_step() {
    let script = "import muster, signal, standin, time\nmissed = []\n\
                  signal.signal(signal.SIGTERM, lambda *_: missed.append(1))\nprint('ready', flush=True)\n\
                  while not missed: time.sleep(0.01)\njob = muster.Job(4)\njob.started()\nstep = 0\n\
                  while True:\n  step += 1\n  if job.step(step, job.signal()): job.leave()\n  time.sleep(0.01)";
    let (folders, agents) = cold_and_warm(script);
    for agent in &agents {
        agent.start_with(&folders.env(&json!({})));
        agent.wait_for_output("ready");
        assert_eq!(agent.post("/stop?grace=60", "").status, 202);
        let exited = agent.wait_for(RunState::Exited);
        assert_eq!(exited.exit.unwrap().outcome, ExitOutcome::Code(75));
    }
}

#[test]
fn a_chief_that_is_stopped_during_an_evaluation_saves_its_last_step_and_leaves() {
    let script = "import muster, standin, time\njob = muster.Job(4)\njob.started()\njob.saves(lambda: None)\n\
                  for step in range(1, 12):\n  job.signal()\n  job.step(step, (0, 0))\n\
                  print('evaluates', flush=True)\nwhile True: time.sleep(1000)";
    let (folders, agents) = cold_and_warm(script);
    for agent in &agents {
        agent.start_with(&folders.env(&json!({})));
        agent.wait_for_output("evaluates");
        assert_eq!(agent.post("/stop?grace=60", "").status, 202);
        let RunStatus { exit, helper, .. } = agent.wait_for(RunState::Exited);
        assert_eq!(exit.unwrap().outcome, ExitOutcome::Code(75));
        let Progress { step, saved, .. } = helper.unwrap();
        assert_eq!((step, saved), (Some(11), Some(11)));
    }
}

#[test]
fn a_module_named_muster_of_the_user_takes_precedence_over_the_helper() {
    let own = "SIDE = 'own'\n";
    let (folders, agents) = cold_and_warm("import muster, standin\nprint(muster.SIDE)");
    for place in [folders.installed(), folders.job()] {
        let file = place.join("muster.py");
        fs::write(&file, own).unwrap();
        for agent in &agents {
            let (status, printed) = ran(agent, &folders.env(&json!({})));
            assert_eq!((step_of(&status), printed.as_str()), (None, "own"), "{file:?}");
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
        (r#"b'{"hello": 1, "x": "' + b'x' * 2**20 + b'"}\n'"#, false, true),
        (r"b'\x00\xff' * 1000 + b'\n'", false, true),
        ("b'[]\\n'", false, true),
        (r#"b'{"hello": 1}\nnot JSON\n'"#, true, true),
        (r#"b'{"later": 1, "hello": 1}\n{}\n{"progress": null}\n{"progress": {"step": -1}}\n'"#, true, false),
    ] {
        let agent = Agent::of_python(&format!(
            "import os, socket\nagent = socket.socket(fileno=int(os.environ['MUSTER_FD'].split(':')[0]))\nagent.settimeout(0.3)\n\
             sent = {sent}\ntry:\n  agent.sendall(sent)\n  print(agent.recv(1) == b'')\n\
             except TimeoutError: print(False)\nexcept OSError: print(True)"
        ));
        assert_eq!(agent.outcome(), ExitOutcome::Code(0));
        let helper = is_read.then_some(None);
        let closed = if is_closed { "True\n" } else { "False\n" };
        assert_eq!((step_of(&agent.status()), agent.logs("stdout")), (helper, closed.into()), "{sent}");
    }
}

/// Completes a run that sends `hello` and then executes these lines of Python. Returns its last status.
fn after_sending(lines: &str) -> RunStatus {
    let agent = Agent::of_python(&format!(
        "import os, socket\nagent = socket.socket(fileno=int(os.environ['MUSTER_FD'].split(':')[0]))\n\
         send = lambda report: agent.sendall(b'{{\"progress\": ' + report + b'}}\\n')\n\
         agent.sendall(b'{{\"hello\": 1}}\\n')\n{lines}"
    ));
    ran(&agent, &json!({})).0
}

#[test]
fn a_report_that_goes_backwards_or_is_invalid_changes_nothing() {
    let lines = r#"
send(b'{"step": 7, "values": {"loss": 0.5}}')
send(b'{"step": 6}')
send(b'{"step": null}')
send(b'{"step": 8, "values": {"loss": "low"}}')
send(b'{"step": 9, "steps": -1}')
send(b'[]')"#;
    let progress = after_sending(lines).helper.unwrap();
    assert_eq!(progress.step, Some(7));
    assert_eq!(progress.values.iter().collect::<Vec<_>>(), [("loss", 0.5)]);
}

#[test]
fn thousands_of_reports_change_the_sequence_number_at_most_once_and_the_status_shows_the_newest() {
    let lines = "for step in range(1, 5001): send(b'{\"step\": %d}' % step)";
    let status = after_sending(lines);
    assert_eq!(step_of(&status), Some(Some(5000)));
    let changes_without_reports = after_sending("").seq;
    assert!(status.seq <= changes_without_reports + 1, "{status:?}");
}

#[test]
fn a_report_has_at_most_eight_values_with_short_names() {
    let lines = r#"
import json
values = {"x" * 65: 1, "": 1, "a\nb": 1} | {f"v{number}": number for number in range(20)}
send(json.dumps({"step": 1, "values": values}).encode())"#;
    assert_eq!(after_sending(lines).helper.unwrap().values.iter().count(), 8);
}

/// A script that waits for the file `read`, and prints the sizes that it then uses, and with `leave` why it leaves.
const SPLIT: &str = "import muster, os, standin, time
job = muster.Job(4)
while not os.path.exists('read'): time.sleep(0.01)
job.started()
step = 0
while job._split == 0:
  step += 1
  job.step(step, job.signal())
  time.sleep(0.01)
print(job._split, job.sizes)
job.done()";

#[test]
fn the_newest_notice_reaches_the_script_when_it_reads_also_if_the_notice_came_before_the_run() {
    let (folders, agents) = cold_and_warm(SPLIT);
    for (agent, before) in agents.iter().flat_map(|agent| [(agent, true), (agent, false)]) {
        let generation = if before { "1.1" } else { "1.2" };
        let notice = |version: u32| {
            let body = format!("{{\"split\": {{\"version\": {version},\n \"sizes\": [4]}}}}");
            assert_eq!(agent.post(&format!("/notice?generation={generation}"), &body).status, 200);
        };
        let env = folders.env(&json!({})).to_string();
        let read = folders.job().join("read");
        let _ = fs::remove_file(&read);
        assert_eq!(agent.post(&format!("/config?generation={generation}"), &env).status, 200);
        if before {
            (1..=3).for_each(notice);
        }
        assert_eq!(agent.get(&format!("/run?generation={generation}")).status, 200);
        agent.wait_for(RunState::Running);
        if !before {
            (1..=3).for_each(notice);
        }
        fs::write(&read, "").unwrap();
        let exited = agent.wait_for(RunState::Exited);
        assert_eq!(exited.exit.unwrap().outcome, ExitOutcome::Code(0));
        assert!(agent.logs("stdout").starts_with(b"3 [4]\n"));
        let Progress { split, batch, noticed, .. } = exited.helper.unwrap();
        assert_eq!((split, batch, noticed), (3, 4, 3));
    }
}

#[test]
fn a_notice_of_another_start_and_an_invalid_notice_are_refused() {
    let agent = Agent::of_python("import time\nwhile True: time.sleep(1000)");
    assert_eq!(agent.post("/config?generation=2.1", "{}").status, 200);
    assert_eq!(agent.get("/run?generation=2.1").status, 200);
    let long = format!("{{\"x\": \"{}\"}}", "x".repeat(64 * 1024));
    for (query, body, status) in [
        ("", "{}", 400),
        ("?generation=x", "{}", 400),
        ("?generation=2.1", "[]", 400),
        ("?generation=2.1", "{", 400),
        ("?generation=2.1", &long, 413),
        ("?generation=1.9", "{}", 412),
        ("?generation=2.1", "{}", 200),
        ("?generation=2.2", "{}", 409),
    ] {
        assert_eq!(agent.post(&format!("/notice{query}"), body).status, status, "{query} {body:.80}");
    }
}

#[test]
fn a_script_that_must_leave_gets_no_later_notice() {
    let script = "import muster, signal, standin, time\nsignal.signal(signal.SIGTERM, lambda *_: None)\n\
                  job = muster.Job(4)\njob.started()\nsignal.signal(signal.SIGTERM, lambda *_: None)\n\
                  print('ready', flush=True)\nwhile job._leave_reason is None: time.sleep(0.01)\n\
                  print('told', flush=True)\ntime.sleep(0.5)\nprint(job._leave_reason is None, job._noticed)";
    let (folders, agents) = cold_and_warm(script);
    for agent in &agents {
        assert_eq!(agent.post("/config?generation=1.1", &folders.env(&json!({})).to_string()).status, 200);
        assert_eq!(agent.get("/run?generation=1.1").status, 200);
        agent.wait_for_output("ready");
        assert_eq!(agent.post("/stop?grace=60", "").status, 202);
        agent.wait_for_output("told");
        assert_eq!(agent.post("/notice?generation=1.1", r#"{"split": {"version": 1, "sizes": [4]}}"#).status, 200);
        agent.wait_for(RunState::Exited);
        assert!(agent.logs("stdout").windows(11).any(|text| text == b"False None\n"));
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
