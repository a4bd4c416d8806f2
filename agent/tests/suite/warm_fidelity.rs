//! A script behaves in a warm interpreter as in a new interpreter, apart from its speed.

use protocol::agent::ExitOutcome;
use protocol::warm::WarmState;
use serde_json::{Value, json};

use crate::support::Agent;
use crate::support::warm::{Folders, Ran};

/// Two agents for the same folder. Only one has a warm interpreter.
struct Pair {
    folders: Folders,
    cold: Agent,
    warm: Agent,
    env: Value,
}

impl Pair {
    fn new() -> Self {
        Self::with(&json!({}))
    }

    /// The script is "import standin" until it is replaced. `env` is the environment of all runs.
    fn with(env: &Value) -> Self {
        let folders = Folders::new();
        folders.write_script("import standin");
        let (cold, warm, env) = (folders.agent(), folders.agent(), folders.env(env));
        assert_eq!(warm.warm_up(&env, &json!(["standin"])), WarmState::Ready);
        Self { folders, cold, warm, env }
    }

    /// Runs a script with both agents, and compares the outcomes and the output.
    fn check(&self, script: impl AsRef<[u8]>) -> Ran {
        let [cold, warm] = self.run(script);
        assert_eq!(warm, cold);
        warm
    }

    /// Runs a script in a new interpreter, and in a warm interpreter.
    fn run(&self, script: impl AsRef<[u8]>) -> [Ran; 2] {
        self.folders.write_script(script);
        let cold = self.cold.ran(&self.env);
        let imports = self.folders.imports();
        let warm = self.warm.ran(&self.env);
        assert_eq!(self.folders.imports(), imports, "the warm run started cold");
        [cold, warm]
    }

    fn prints(&self, script: &str) -> String {
        let ran = self.check(script);
        assert_eq!((&ran.outcome, ran.stderr.as_str()), (&ExitOutcome::Code(0), ""), "{ran:?}");
        ran.stdout
    }

    fn exits(&self, script: &str, code: i32) {
        let ran = self.check(script);
        assert_eq!(ran.outcome, ExitOutcome::Code(code), "{script}: {ran:?}");
    }
}

#[test]
fn tracebacks_have_only_the_frames_of_the_script() {
    let pair = Pair::new();
    let chained =
        "import standin\ndef f():\n  try: {}['a']\n  except KeyError as e: raise ValueError('b') from e\nf()\n";
    let ran = pair.check(chained);
    assert!(ran.stderr.starts_with("Traceback (most recent call last):\n  File \""), "{}", ran.stderr);
    assert!(ran.stderr.ends_with("\nValueError: b\n") && !ran.stderr.contains("<string>"), "{}", ran.stderr);
    for script in [
        "import standin\ntry: 1 / 0\nexcept ZeroDivisionError: raise RuntimeError('c')",
        "import standin, sys\nsys.excepthook = lambda *error: print('hook', error[2].tb_next)\n1 / 0",
        "import standin, sys\ndef hook(*_): raise KeyError(1)\nsys.excepthook = hook\n1 / 0",
        "import standin, os\nexec('1 +')",
    ] {
        assert_eq!(pair.check(script).outcome, ExitOutcome::Code(1), "{script}");
    }
}

#[test]
fn a_warm_run_has_the_exit_codes_of_python() {
    let pair = Pair::new();
    for (argument, code) in
        [("", 0), ("None", 0), ("3", 3), ("-1", 255), ("256", 0), ("True", 1), ("'why'", 1), ("[2]", 1)]
    {
        pair.exits(&format!("import standin, sys\nsys.exit({argument})"), code);
    }
    pair.exits("import standin, os\nprint('lost', end='')\nos._exit(4)", 4);
    pair.exits("import standin", 0);
    // Versions of Python report the lost output in different words.
    let runs = pair.run("import standin, sys\nsys.stdout = open('/dev/full', 'w')\nprint('lost')");
    assert_eq!(runs.map(|ran| ran.outcome), [const { ExitOutcome::Code(120) }; 2]);
    pair.exits("import standin, sys\nsys.stdout = None\nsys.exit(5)", 5);
}

#[test]
fn a_keyboard_interrupt_ends_the_run_by_sigint() {
    let pair = Pair::new();
    let ran = pair.check("import standin, os, time\nos.kill(os.getpid(), 2)\ntime.sleep(100)");
    assert_eq!(ran.outcome, ExitOutcome::Signal(2));
    assert!(ran.stderr.ends_with("\nKeyboardInterrupt\n"), "{}", ran.stderr);
    assert_eq!(pair.check("import standin\nraise KeyboardInterrupt").outcome, ExitOutcome::Signal(2));
}

#[test]
fn signals_have_the_handlers_of_a_new_interpreter() {
    let pair = Pair::new();
    let all = "import signal, standin\nprint([str(signal.getsignal(each)).split(' at ')[0] for each in signal.Signals])\n\
               print(signal.pthread_sigmask(signal.SIG_BLOCK, []))";
    pair.prints(all);
    let ran = pair.check("import standin, os, time\nos.kill(os.getpid(), 15)\ntime.sleep(100)");
    assert_eq!(ran.outcome, ExitOutcome::Signal(15));
}

#[test]
fn the_main_module_has_the_attributes_of_a_script() {
    let pair = Pair::new();
    let printed = pair.prints(
        "import standin\nimport __main__\nfor name, value in sorted(vars(__main__).items()):\n  \
         if name not in ('name', 'value', '__main__', 'standin'): print(name, str(value).split(' at ')[0])",
    );
    assert!(printed.contains("__file__ /") && printed.contains("/exec.py\n"), "{printed}");
    pair.prints(
        "from __future__ import annotations\nimport dataclasses, pickle, standin, typing\n@dataclasses.dataclass\n\
         class Point:\n  x: int\nprint(typing.get_type_hints(Point), pickle.loads(pickle.dumps(Point(1))))\nn: int = 3\n\
         print(__annotations__)",
    );
}

#[test]
fn the_interpreter_looks_as_if_it_had_been_started_for_the_script() {
    for env in [json!({}), json!({"LC_ALL": "C"}), json!({"LANG": "C", "PYTHONUNBUFFERED": "1"})] {
        let pair = Pair::with(&env);
        // Each agent has its own folder of the helper.
        let printed = pair.prints(
            "import standin, sys\nprint(sys.argv, sys.orig_argv, ['/muster-' in each or each for each in sys.path], \
             sys.flags, sys.executable)",
        );
        assert!(printed.contains(", True, "), "{printed}");
        assert!(printed.starts_with("['exec.py', '-x', '1'] ['python3', 'exec.py', '-x', '1'] ['/"), "{printed}");
        pair.prints(
            "import locale, os, standin, sys\nprint(locale.getlocale(), sys.getfilesystemencoding())\n\
             for each in sys.stdin, sys.stdout, sys.stderr:\n  print(each, each.errors, each.seekable(), each.line_buffering, \
             each.write_through if each.name != '<stdin>' else repr(each.read()))\n\
             print(os.path.realpath('/proc/self/fd/0'), len(os.listdir('/proc/self/fd')))",
        );
        // Leave out `_`: Python does not set it, but shells do. Each run has its own address for posts.
        pair.prints(
            "import os, standin\nos.environ['PYTHONPATH'] = os.environ['PYTHONPATH'].rpartition(':')[0]\n\
             for name in 'URL', 'TOKEN':\n  name = 'KUBEFLOW_TRAINER_SERVER_' + name\n  os.environ[name] = os.environ[name][:4]\n\
             os.environ['MUSTER_FD'] = str(os.get_inheritable(int(os.environ['MUSTER_FD'].split(':')[0])))\n\
             print(sorted(item for item in os.environ.items() if item[0] != '_'))",
        );
    }
}

#[test]
fn other_processes_see_a_warm_run_like_a_cold_run() {
    let pair = Pair::new();
    let printed = pair.prints(
        "import os, standin\nprint(os.getpgrp() == os.getpid(), open('/proc/self/oom_score_adj').read(), \
         open('/proc/self/cmdline').read().replace('\\0', ' ').strip(), len(os.listdir('/proc/self/task')))",
    );
    assert!(printed.contains("python3 exec.py -x 1"), "{printed}");
}

#[test]
fn variables_that_python_itself_reads_have_their_effect() {
    let pair = Pair::with(&json!({"PYTHONWARNINGS": "error", "PYTHONHASHSEED": "7", "PYTHONOPTIMIZE": "1"}));
    pair.prints("import standin, sys\nassert False\nprint(hash('a'), sys.warnoptions, sys.flags)");
    let ran = pair.check("import standin, warnings\nwarnings.warn('careful')");
    assert_eq!(ran.outcome, ExitOutcome::Code(1));
}

#[test]
fn variables_that_the_script_sets_before_an_import_apply_to_this_import() {
    let folders = Folders::new();
    folders.write_script(
        "import os\nbefore = os.environ.get('TUNED'), os.environ.get('BY_STANDIN')\nos.environ['TUNED'] = 'finely'\n\
         os.environ.setdefault('OTHER', '2')\nos.environ.update({'MORE': '3'})\nimport standin\n\
         os.environ['TUNED'] = 'again'\nfrom second import SEEN\n\
         print(before[0], standin.SEEN, SEEN, os.environ['OTHER'], os.environ['BY_STANDIN'])",
    );
    std::fs::write(folders.installed().join("second.py"), "import os\nSEEN = os.environ['TUNED']").unwrap();
    let (agent, env) = (folders.agent(), folders.env(&json!({})));
    assert_eq!(agent.warm_up(&env, &json!(["second", "standin"])), WarmState::Ready);
    let warm = agent.ran(&env);
    assert_eq!(warm.stdout, "None finely again 2 set while it was imported\nstandin ends\n", "{warm:?}");
    assert_eq!((folders.agent().ran(&env), folders.imports()), (warm, 2));
}

#[test]
fn threads_exit_functions_and_destructors_end_as_in_python() {
    let pair = Pair::new();
    let printed = pair.prints(
        "import atexit, standin, threading\nclass Late:\n  def __del__(self): print('destroyed')\nlate = Late()\n\
         file = open('unclosed.txt', 'w')\nfile.write('written')\natexit.register(print, 'at exit')\n\
         def work():\n  threading.main_thread().join()\n  print('thread ends')\n\
         threading.Thread(target=work).start()\nprint('script ends')",
    );
    assert_eq!(printed, "script ends\nthread ends\nat exit\nstandin ends\ndestroyed\n");
    assert_eq!(std::fs::read_to_string(pair.folders.job().join("unclosed.txt")).unwrap(), "written");
    let endless = "import standin, threading\ndef work():\n  while True: len(data)\ndata = []\n\
                   threading.Thread(target=work, daemon=True).start()\nprint('done')";
    assert_eq!(pair.prints(endless), "done\nstandin ends\n");
}

#[test]
fn multiprocessing_works_with_each_start_method() {
    let pair = Pair::new();
    for method in ["fork", "spawn", "forkserver"] {
        let printed = pair.prints(&format!(
            "import multiprocessing, sys\ndef work(queue, n): queue.put((n, sys.argv))\n\
             if __name__ == '__main__':\n  import standin\n  context = multiprocessing.get_context('{method}')\n  queue = context.Queue()\n  \
             process = context.Process(target=work, args=(queue, 7))\n  process.start()\n  print(queue.get())\n  \
             process.join()\n  print(process.exitcode)\n  sys.stdout.flush()\n  sys.stdout = open('/dev/null', 'w')",
        ));
        assert!(printed.contains("(7, ['exec.py', '-x', '1'])\n0\n"), "{printed}");
    }
}

#[test]
fn each_run_has_its_own_random_numbers() {
    let folders = Folders::new();
    folders.write_script("import os, random, standin, uuid\nprint(random.random(), os.urandom(4), uuid.uuid4())");
    let (agent, env) = (folders.agent(), folders.env(&json!({})));
    assert_eq!(agent.warm_up(&env, &json!(["random", "standin"])), WarmState::Ready);
    let (first, second) = (agent.ran(&env).stdout, agent.ran(&env).stdout);
    assert_ne!(first.split(' ').next(), second.split(' ').next());
}
