//! The life of a warm interpreter: when it is used, what ends it, and what a stop or a kill leaves behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use protocol::agent::{ExitOutcome, RunState};
use protocol::warm::WarmState;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::warm::Folders;
use crate::support::{Agent, children_of, process_state, signal, supervised, wait_until, wait_until_gone};

const ENDLESS: &str =
    "import os, standin, time\nos.write(1, f'main={os.getpid()}\\n'.encode())\nwhile True: time.sleep(1000)";

/// An agent with a warm interpreter for this script, and the variables of its runs.
fn warm(script: &str) -> (Folders, Agent, Value) {
    let folders = Folders::new();
    folders.write_script(script);
    let (agent, env) = (folders.agent(), folders.env(&json!({})));
    assert_eq!(agent.warm_up(&env, &json!(["standin"])), WarmState::Ready);
    (folders, agent, env)
}

/// The only child of an agent without a run.
fn interpreter_of(agent: &Agent) -> u32 {
    wait_until("the interpreter to be the agent's only child", || match children_of(agent.pid())[..] {
        [interpreter] => Some(interpreter),
        _ => None,
    })
}

fn reason_of(script: &str, modules: &Value) -> String {
    let folders = Folders::new();
    folders.write_script(script);
    match folders.agent().warm_up(&folders.env(&json!({})), modules) {
        WarmState::Cold { reason } => reason,
        state @ (WarmState::Importing | WarmState::Ready) => panic!("{state:?}: {script}"),
    }
}

#[test]
fn a_script_is_read_again_for_each_run() {
    let (folders, agent, env) = warm("import standin\nprint('first')");
    assert_eq!(agent.ran(&env).stdout, "first\nstandin ends\n");
    folders.write_script("import helper, standin\nprint('second', helper.VALUE)");
    for value in 1..4 {
        fs::write(folders.job().join("helper.py"), format!("VALUE = '{}'", "x".repeat(value))).unwrap();
        assert_eq!(agent.ran(&env).stdout, format!("second {}\nstandin ends\n", "x".repeat(value)));
    }
    folders.write_script("print('imports nothing')");
    assert!(agent.ran(&env).stdout.starts_with("imports nothing\n"));
    assert_eq!(folders.imports(), 1);
}

#[test]
fn a_second_or_invalid_request_for_a_warm_interpreter_has_no_effect() {
    let (_folders, agent, _) = warm("import standin");
    let interpreter = interpreter_of(&agent);
    assert_eq!(agent.warm_up(&json!({}), &json!(["no_such_module"])), WarmState::Ready);
    assert_eq!(interpreter_of(&agent), interpreter);
    for body in ["", "[]", "{}", r#"{"env":{"1":"a"}}"#, r#"{"env":{"A":1}}"#, r#"{"env":{},"modules":["a-b"]}"#] {
        assert_eq!(agent.post("/warm", body).status, 400, "{body}");
    }
    assert_eq!(agent.post("/warm", r#"{"env":{"A":"\u0000"}}"#).status, 422);
}

#[test]
fn a_script_or_module_that_cannot_be_preloaded_makes_the_interpreter_cold_with_a_reason() {
    let standin = json!(["standin"]);
    for (script, modules, expected) in [
        ("import standin", json!(["no_such_module"]), "No module named 'no_such_module'"),
        ("print(1)", Value::Null, "exec.py imports none of tensorflow, "),
        ("import standin\nif True print()", standin.clone(), "SyntaxError: "),
        ("import os\nos.environ['A'] = str(1)\nimport standin", standin.clone(), "line 2 of exec.py may change"),
        ("import os\nif True: os.environ['A'] = '1'\nimport standin", standin.clone(), "line 2 of exec.py may change"),
        (
            "import os\ndef f(): os.environ.pop('A')\nf()\nimport standin",
            standin.clone(),
            "line 2 of exec.py may change",
        ),
        ("import sys\nsys.path.insert(0, 'lib')\nimport standin", standin, "line 2 of exec.py may change"),
    ] {
        let reason = reason_of(script, &modules);
        assert!(reason.contains(expected), "{reason}: {script}");
    }
}

#[test]
fn without_named_modules_the_heavy_imports_of_the_script_are_preloaded_if_possible() {
    for (script, expected) in [
        ("import PIL, json\nimport helper", None),
        ("try:\n  import PIL\nexcept ImportError: pass", None),
        ("import PIL, os\nos.environ['A'] = str(1)\nimport h5py", None),
        ("import helper\nimport PIL", Some("exec.py imports helper, a module in its folder, before a heavy module")),
        ("def later():\n  import PIL", Some("exec.py imports none of tensorflow, ")),
    ] {
        let folders = Folders::new();
        folders.write_script(script);
        fs::write(folders.job().join("helper.py"), "").unwrap();
        fs::write(folders.installed().join("PIL.py"), "import standin").unwrap();
        fs::write(folders.installed().join("h5py.py"), "import os; assert os.environ['A'] == '1'").unwrap();
        let (agent, env) = (folders.agent(), folders.env(&json!({})));
        match (agent.warm_up(&env, &json!([])), expected) {
            (WarmState::Ready, None) => {
                assert_eq!((agent.ran(&env).outcome, folders.imports()), (ExitOutcome::Code(0), 1))
            }
            (WarmState::Cold { reason }, Some(expected)) => assert!(reason.starts_with(expected), "{reason}"),
            (state, _) => panic!("{state:?}: {script}"),
        }
    }
}

#[test]
fn an_interpreter_that_does_not_answer_is_killed_and_the_run_starts_cold() {
    let (folders, agent, env) = warm("import standin");
    signal(interpreter_of(&agent), Signal::STOP);
    assert_eq!((agent.ran(&env).outcome, folders.imports()), (ExitOutcome::Code(0), 2));
    assert_eq!(agent.wait_until_cold(), "a run could not be forked: no answer within 2 s");
    assert_eq!(children_of(agent.pid()), [0; 0]);
}

#[test]
fn a_start_that_is_abandoned_runs_no_line_of_the_script() {
    let (folders, agent, env) = warm("import standin\nopen('ran', 'w')");
    let interpreter = interpreter_of(&agent);
    signal(interpreter, Signal::STOP);
    agent.start_with(&env);
    assert_eq!(agent.status().state, RunState::Configured);
    assert_eq!(agent.post("/stop", "").status, 200);
    assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::NotStarted("stopped before it started".into()));
    assert!(!folders.job().join("ran").exists());
    signal(interpreter, Signal::CONT);
    // The next start kills the process that the abandoned start has left.
    assert_eq!(agent.ran(&env).outcome, ExitOutcome::Code(0));
    assert_eq!((children_of(agent.pid()), folders.imports()), (vec![interpreter], 1));
}

#[test]
fn an_interpreter_whose_modules_have_started_a_thread_is_not_used() {
    let folders = Folders::new();
    folders.write_script("import threaded");
    let threaded = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()";
    fs::write(folders.installed().join("threaded.py"), threaded).unwrap();
    let agent = folders.agent();
    assert!(matches!(agent.warm_up(&folders.env(&json!({})), &json!(["threaded"])), WarmState::Cold { .. }));
    assert!(agent.wait_until_cold().contains("threads of the imported modules run (1)"));
    assert_eq!(agent.ran(&folders.env(&json!({}))).outcome, ExitOutcome::Code(0));
}

#[test]
fn a_run_starts_cold_if_its_command_is_not_python_with_a_script() {
    let folders = Folders::new();
    folders.write_script("print('ran')");
    for command in [&["python3", "-u", "exec.py"][..], &["sh", "-c", "python3 exec.py"], &["env", "python3", "exec.py"]]
    {
        let agent = folders.agent_of(command);
        let reason = "the command is not `python SCRIPT.py`".to_owned();
        assert_eq!(agent.warm_up(&folders.env(&json!({})), &Value::Null), WarmState::Cold { reason });
        assert_eq!(agent.ran(&folders.env(&json!({}))).stdout, "ran\n");
    }
}

#[test]
fn an_old_python_runs_the_script_cold_and_the_agent_logs_this_once() {
    // Python 2 cannot parse the interpreter's program. Python 3.6 can.
    let cannot_parse = "[ \"$1\" = -c ] && exit 1; exec python3 \"$@\"";
    let old = "import sys; sys.version_info = (3, 6, 15, 'final', 0)";
    for (python, site, expected) in [
        (cannot_parse, "", "Python ended without an answer"),
        ("exec python3 \"$@\"", old, "a warm interpreter needs Python 3.10 or newer; this is 3.6"),
    ] {
        let folders = Folders::new();
        folders.write_script("print('ran')");
        fs::write(folders.installed().join("sitecustomize.py"), site).unwrap();
        let (program_of_python, log) = (folders.job().join("python2"), folders.job().join("log"));
        fs::write(&program_of_python, format!("#!/bin/sh\n{python}\n")).unwrap();
        fs::set_permissions(&program_of_python, fs::Permissions::from_mode(0o755)).unwrap();
        let mut agent = supervised();
        agent.arg("--work-dir").arg(folders.job()).arg("--");
        agent.arg(&program_of_python).arg("exec.py").stderr(fs::File::create(&log).unwrap());
        let agent = Agent::from_program(agent);
        let env = folders.env(&json!({}));
        assert_eq!(agent.warm_up(&env, &Value::Null), WarmState::Cold { reason: expected.to_owned() });
        for _ in 0..2 {
            assert_eq!(agent.ran(&env).stdout, "ran\n");
        }
        let log = fs::read_to_string(log).unwrap();
        assert_eq!(log.matches("start cold").count(), 1, "{log}");
    }
}

#[test]
fn a_run_with_other_variables_or_imports_than_the_interpreter_starts_cold_and_the_next_run_is_warm() {
    let (folders, agent, env) = warm("import standin\nprint('ran')");
    let run = |env: &Value, expected: usize| {
        let ran = agent.ran(env);
        assert_eq!((&ran.outcome, folders.imports()), (&ExitOutcome::Code(0), expected), "{ran:?}");
    };
    run(&env, 1);
    let of_a_start = json!({"RANK": "1", "TF_CONFIG": {"a": [1]}, "MUSTER_GENERATION": "1.2", "JAX_PROCESS_ID": 1});
    run(&folders.env(&of_a_start), 1);
    run(&folders.env(&json!({"OMP_NUM_THREADS": "3"})), 2);
    // A local module of the same name takes precedence in a new interpreter.
    fs::write(folders.job().join("standin.py"), "").unwrap();
    run(&env, 2);
    fs::remove_file(folders.job().join("standin.py")).unwrap();
    run(&env, 2);
    assert_eq!(agent.status().warm, Some(WarmState::Ready));
}

#[test]
fn a_rank_that_shares_its_machine_starts_warm_with_the_threads_that_the_modules_have_seen() {
    let folders = Folders::new();
    folders.write_script("import os, standin\nprint(os.environ['OMP_NUM_THREADS'])");
    let (agent, env) = (folders.agent(), folders.env(&json!({"LOCAL_WORLD_SIZE": "3"})));
    assert_eq!(agent.warm_up(&env, &json!(["standin"])), WarmState::Ready);
    // An elastic job has fewer ranks in some starts.
    for ranks in ["3", "2"] {
        let ran = agent.ran(&folders.env(&json!({"LOCAL_WORLD_SIZE": ranks})));
        assert_eq!((ran.stdout.as_str(), folders.imports()), ("1\nstandin ends\n", 1));
    }
}

#[test]
fn after_a_change_of_the_imports_one_run_is_cold_and_another_interpreter_serves_the_next() {
    let (folders, agent, env) = warm("import standin");
    let first = interpreter_of(&agent);
    folders.write_script("import os\nos.environ['TUNED'] = '1'\nimport standin\nassert standin.SEEN == '1'");
    assert_eq!(agent.ran(&env).outcome, ExitOutcome::Code(0));
    wait_until("the new interpreter", || (agent.status().warm == Some(WarmState::Ready)).then_some(()));
    assert_eq!((process_state(first), folders.imports()), (None, 3));
    assert_eq!((agent.ran(&env).outcome, folders.imports()), (ExitOutcome::Code(0), 3));
    // A syntax error says nothing about the imports.
    folders.write_script("import standin\nif True print()");
    let second = interpreter_of(&agent);
    assert!(matches!(agent.ran(&env).outcome, ExitOutcome::NotStarted(_)));
    assert_eq!(interpreter_of(&agent), second);
}

#[test]
fn each_warm_run_has_the_arguments_of_its_own_start() {
    let folders = Folders::new();
    folders.write_script("import standin, sys\nprint(sys.argv, sys.orig_argv[1:] == sys.argv)");
    let agent = folders.agent_of(&["python3", "exec.py", "--rank=$(RANK)", "$$(RANK) é"]);
    assert_eq!(agent.warm_up(&folders.env(&json!({})), &json!(["standin"])), WarmState::Ready);
    for rank in ["0", "1"] {
        let printed = agent.ran(&folders.env(&json!({ "RANK": rank }))).stdout;
        assert_eq!(printed, format!("['exec.py', '--rank={rank}', '$(RANK) é'] True\nstandin ends\n"));
    }
    assert_eq!(folders.imports(), 1);
}

#[test]
fn a_warm_script_that_python_cannot_parse_or_open_is_reported_as_not_started() {
    let (folders, agent, env) = warm("import standin");
    let not_started = |expected: &str| match agent.ran(&env).outcome {
        ExitOutcome::NotStarted(reason) => assert!(reason.contains(expected), "{reason}"),
        other @ (ExitOutcome::Code(_) | ExitOutcome::Signal(_) | ExitOutcome::OutOfMemory { .. }) => {
            panic!("{other:?}")
        }
    };
    for script in [&b"import standin\nif True print()"[..], b"import standin\nreturn 5", b"import standin\nx = '\xff'"]
    {
        folders.write_script(script);
        not_started("exec.py has a syntax error: ");
    }
    fs::remove_file(folders.job().join("exec.py")).unwrap();
    not_started("can't open file");
}

#[test]
fn a_run_waits_for_the_imports() {
    let folders = Folders::new();
    folders.write_script("import slow, standin");
    let pipe = folders.job().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::write(folders.installed().join("slow.py"), format!("open({pipe:?}).read()")).unwrap();
    let (agent, env) = (folders.agent(), folders.env(&json!({})));
    let body = json!({"env": env, "modules": ["slow", "standin"]}).to_string();
    assert_eq!(agent.post("/warm", &body).status, 200);
    agent.start_with(&env);
    assert_eq!((agent.status().state, agent.status().warm), (RunState::Configured, Some(WarmState::Importing)));
    assert_eq!(agent.post("/stop", "").status, 200);
    let report = agent.wait_for_exit();
    assert_eq!((report.outcome, report.stopped), (ExitOutcome::NotStarted("stopped before it started".into()), true));
    agent.start_with(&env);
    assert_eq!(agent.status().state, RunState::Configured);
    fs::write(&pipe, "go").unwrap();
    assert_eq!((agent.wait_for_exit().outcome, folders.imports()), (ExitOutcome::Code(0), 1));
}

#[test]
fn a_warm_run_is_stopped_and_reaped_with_its_descendants_and_its_interpreter_stays() {
    let script = "import os, signal, standin, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
        if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    os.write(1, f'detached={os.getpid()}\\n'.encode())\n    \
        while True: time.sleep(1000)\n  os._exit(0)\nos.write(1, f'main={os.getpid()}\\n'.encode())\nwhile True: time.sleep(1000)";
    let (_folders, agent, env) = warm(script);
    let interpreter = interpreter_of(&agent);
    agent.start_with(&env);
    let pids = ["main", "detached"].map(|name| agent.wait_for_pid(name));
    assert_eq!(agent.status().pid, Some(pids[0]));
    assert_eq!(agent.post("/stop?grace=0.1", "").status, 202);
    assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Signal(9));
    assert_eq!(pids.map(process_state), [None; 2]);
    assert_eq!(children_of(agent.pid()), [interpreter]);
}

#[test]
fn a_warm_run_handles_sigterm() {
    let script = "import signal, standin, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n\
        print('ready', flush=True)\nwhile True: signal.pause()";
    let (_folders, agent, env) = warm(script);
    agent.start_with(&env);
    agent.wait_for_output("ready");
    assert_eq!(agent.post("/stop?grace=60", "").status, 202);
    assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Code(75));
}

#[test]
fn the_end_of_the_agent_ends_the_interpreter_and_its_run() {
    for kill in [true, false] {
        let (_folders, mut agent, env) = warm(ENDLESS);
        let interpreter = interpreter_of(&agent);
        agent.start_with(&env);
        let main = agent.wait_for_pid("main");
        if kill {
            signal(agent.pid(), Signal::KILL);
        } else {
            drop(agent.stdin.take());
        }
        agent.wait_for_end();
        [interpreter, main].into_iter().for_each(wait_until_gone);
    }
}

#[test]
fn a_killed_interpreter_leaves_its_run_alone_and_later_runs_start_cold() {
    let (folders, agent, env) = warm(ENDLESS);
    let interpreter = interpreter_of(&agent);
    agent.start_with(&env);
    let main = agent.wait_for_pid("main");
    signal(interpreter, Signal::KILL);
    assert_eq!(agent.wait_until_cold(), "the warm interpreter has ended");
    assert_eq!((agent.status().pid, agent.status().state), (Some(main), RunState::Running));
    agent.post("/stop?grace=0", "");
    assert_eq!(agent.wait_for_exit().outcome, ExitOutcome::Signal(9));
    folders.write_script("import standin");
    assert_eq!((agent.ran(&env).outcome, folders.imports()), (ExitOutcome::Code(0), 2));
    assert_eq!(children_of(agent.pid()), [0; 0]);
}

#[test]
fn two_hundred_kills_or_stops_leave_no_process_behind() {
    let mut dice = fastrand::Rng::with_seed(11);
    for _ in 0..20 {
        let (_folders, agent, env) = warm(ENDLESS);
        for _ in 0..10 {
            agent.start_with(&env);
            // Kill the run sometimes before its process is forked, sometimes after.
            for _ in 0..dice.usize(..20) {
                agent.status();
            }
            match (dice.usize(..8), agent.status().pid) {
                (0, _) => children_of(agent.pid()).into_iter().for_each(kill),
                (1 | 2, Some(main)) => kill(main),
                (_, _) => assert!([200, 202].contains(&agent.post("/stop?grace=0", "").status)),
            }
            agent.post("/stop?grace=0", "");
            agent.wait_for_exit();
            let is_ready = agent.status().warm == Some(WarmState::Ready);
            wait_until("the end of all processes except the interpreter", || {
                (children_of(agent.pid()).len() <= usize::from(is_ready)).then_some(())
            });
        }
    }
}

/// Kills a process that may have ended meanwhile.
fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    let _ = rustix::process::kill_process(pid, Signal::KILL);
}
