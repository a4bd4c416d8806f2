//! Tests of jobs on bare machines, whose agents join the master. In these tests, each machine is a loopback
//! address.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use e2e::journeys::RANKS_MEET;
use e2e::processes::signal;
use e2e::programs::built;
use e2e::{Finished, Master, Running, Scene, TOKEN, within};
use protocol::view::{JobState, JobView};
use rustix::process::Signal;

/// Prints the number of workers. When the folder contains the file `code`, exits with the number in this file.
const TRAIN: &str = "import os, sys, time\n\
                     print('world', os.environ['WORLD_SIZE'], flush=True)\n\
                     while not os.path.exists('code'): time.sleep(0.05)\n\
                     sys.exit(int(open('code').read()))\n";

/// The text that the agent of worker-0 prints.
const WORKER_0: &str = "joined the job as worker-0";

const JOINED: [&str; 4] = ["--state-dir", "state", "--backend", "joined"];

/// Returns a command that runs an agent on machine 127.0.0.`number`, with the master's token and further arguments.
fn agent(scene: &Scene, master: &Master, number: u8, args: &[&str]) -> Command {
    let address = format!("127.0.0.{number}:0");
    let mut command = Command::new(built("agent"));
    command.args(["--join", &master.url, "--task", "digits", "--lease", "2s", "--address", &address]).args(args);
    command.args(["--", "python", "exec.py"]).current_dir(scene.path()).env("MUSTER_TOKEN", TOKEN);
    command
}

fn status(scene: &Scene, master: &Master) -> Option<JobView> {
    let status = ["--master", &master.url, "status", "digits", "-o", "json"];
    let ended = Finished::of(scene.client(&status).env("MUSTER_TOKEN", TOKEN));
    serde_json::from_str(&ended.stdout).ok()
}

/// Waits until the job runs with these workers, in another start than the start of `before`.
fn until_running(scene: &Scene, master: &Master, workers: &[&str], before: Option<&JobView>) -> JobView {
    let runs = |view: &JobView| {
        // Sort, because the order of the roster depends on which worker was ready first.
        let mut roster: Vec<String> = view.roster.iter().map(ToString::to_string).collect();
        roster.sort();
        let is_new = before.is_none_or(|before| before.generation != view.generation);
        view.state == JobState::Running && roster == workers && is_new
    };
    let log = || format!("{:#?}\n{}", status(scene, master), master.log());
    within(&format!("{workers:?} run"), || status(scene, master).filter(runs), log)
}

#[test]
fn a_job_on_machines_survives_a_killed_master_and_goes_on_without_a_dead_machine() {
    let scene = Scene::new(TRAIN);
    let mut master = Master::start(scene.path(), &JOINED, &[]);
    let one = Running::of(&mut agent(&scene, &master, 2, &["--worker-num", "1:2"]));
    let two = Running::of(&mut agent(&scene, &master, 3, &["--nnodes", "1:2", "--monitor_interval", "5"]));
    one.until_printed(1, "world 2");
    two.until_printed(1, "world 2");
    let first = until_running(&scene, &master, &["worker-0", "worker-1"], None);

    master.kill();
    master.follow_up(&JOINED);
    let view = until_running(&scene, &master, &["worker-0", "worker-1"], None);
    assert_eq!((view.generation, view.restarts.total()), (first.generation, 0), "the scripts were restarted");

    // Either of the two agents may be the agent of worker-0.
    let is_first = |running: &Running| running.said(WORKER_0);
    let (stays, dies) = if is_first(&one) { (one, two) } else { (two, one) };
    dies.kill();
    let alone = until_running(&scene, &master, &["worker-0"], Some(&view));
    assert_eq!(alone.restarts.total(), 0, "the lost machine caused a recorded restart");
    let three = Running::of(&mut agent(&scene, &master, 4, &[]));
    three.until_printed(1, "world 2");
    until_running(&scene, &master, &["worker-0", "worker-1"], Some(&alone));
    fs::write(scene.path().join("code"), "0").expect("cannot write the file");
    stays.ended().code(0);
    three.ended().code(0);
    assert_eq!(status(&scene, &master).map(|view| view.state), Some(JobState::Succeeded));
}

#[test]
fn each_of_several_processes_on_each_machine_is_a_rank() {
    let scene = Scene::new(RANKS_MEET);
    let master = Master::start(scene.path(), &JOINED, &[]);
    let rules = ["--worker-num", "2", "--nproc-per-node", "2"];
    let agents = [2, 3].map(|number| Running::of(&mut agent(&scene, &master, number, &rules)));
    let ended = agents.map(|agent| agent.ended().code(0).stdout);
    let lines: BTreeSet<&str> = ended.iter().flat_map(|stdout| stdout.lines()).collect();
    for (process, rank) in [(0, 0), (1, 1), (0, 2), (1, 3)] {
        let line = format!("[rank{rank}] rank {rank} of 4 process {process} of 2");
        assert!(lines.contains(&*line), "{line}\n{ended:?}");
    }
}

#[test]
fn an_agent_that_was_stopped_for_longer_than_its_lease_joins_again() {
    let scene = Scene::new(TRAIN);
    let master = Master::start(scene.path(), &JOINED, &[]);
    let range = ["--worker-num", "1:2"];
    let one = Running::of(&mut agent(&scene, &master, 2, &range));
    one.until_printed(1, "world 1");
    let two = Running::of(&mut agent(&scene, &master, 3, &range));
    let whole = until_running(&scene, &master, &["worker-0", "worker-1"], None);
    signal(two.pid(), Signal::STOP);
    let alone = until_running(&scene, &master, &["worker-0"], Some(&whole));
    signal(two.pid(), Signal::CONT);
    let view = until_running(&scene, &master, &["worker-0", "worker-1"], Some(&alone));
    assert_eq!(view.restarts.total(), 0, "the stopped agent caused a recorded restart");
    // When a user ends one agent, the job goes on without the machine of this agent.
    signal(two.pid(), Signal::TERM);
    two.ended();
    until_running(&scene, &master, &["worker-0"], Some(&view));
    fs::write(scene.path().join("code"), "0").expect("cannot write the file");
    one.ended().code(0);
}

#[test]
fn an_agent_ends_with_its_job_and_an_agent_that_cannot_join_prints_the_reason() {
    let scene = Scene::new(TRAIN);
    fs::write(scene.path().join("token"), TOKEN).expect("cannot write the file");
    let with_token = [&JOINED[..], &["--token-file", "token"]].concat();
    let master = Master::start(scene.path(), &with_token, &[]);
    let refused = |number: u8, args: &[&str], says: &str| {
        Finished::of(&mut agent(&scene, &master, number, args)).code(2).says(&[says]);
    };
    refused(2, &[], "no job is named \"digits\": give --worker-num to create the job");
    refused(2, &["--worker-num", "0:1"], "worker-num is 0: use at least 1");
    let rules = ["--worker-num", "1", "--max-restarts", "0"];
    let one = Running::of(&mut agent(&scene, &master, 2, &rules));
    one.until_printed(1, "world 1");
    let spare = Running::of(&mut agent(&scene, &master, 3, &rules));
    spare.until_said("waits for a free place");
    let same = "job \"digits\" was created with --worker-num 1:1 --lease 2s --max-restarts 0: use the same \
         flags, or choose another --task";
    refused(4, &["--worker-num", "1:2"], same);
    refused(
        4,
        &["--listen", "127.0.0.4:0", "--address", "127.0.0.4:1"],
        "cannot reach the agent at 127.0.0.4:1 (--address)",
    );
    let mut without_token = agent(&scene, &master, 4, &rules);
    Finished::of(without_token.env_remove("MUSTER_TOKEN")).code(2).says(&["the token is missing or wrong"]);

    fs::write(scene.path().join("code"), "3").expect("cannot write the file");
    one.ended().code(3);
    spare.ended().code(1).says(&["the job has ended", "exited with code 3"]);
    refused(2, &rules, "job \"digits\" has ended: choose another --task, or remove the job with client delete digits");
    let submit = |args: &[&str]| {
        let mut client = scene.client(&[&["--master", &master.url, "--task", "other"], args].concat());
        Finished::of(client.env("MUSTER_TOKEN", TOKEN))
    };
    let hint = format!("leave it out; each machine has its own command: agent --join {} --task other", master.url);
    submit(&["exec.py"]).code(2).says(&["the script exec.py has no meaning here", &hint]);
    submit(&["--on-unreachable", "wait"]).code(2).says(&["on-unreachable must be \"replace\": this master runs"]);
    submit(&["--", "--steps", "3"]).code(2).says(&["an argument has no meaning here"]);
    drop(master);

    let processes = Master::start(scene.path(), &["--state-dir", "other"], &[]);
    let ended = Finished::of(&mut agent(&scene, &processes, 2, &rules)).code(2);
    ended.says(&["agents cannot join this master", "--backend joined"]);
}

#[test]
fn machines_join_a_job_that_a_client_has_submitted() {
    let scene = Scene::new("import os, sys\nsys.exit(int(os.environ['CODE']))\n");
    let master = Master::start(scene.path(), &JOINED, &[]);
    let rules = ["--worker-num", "1:2", "--on-unreachable", "replace", "--lease", "2s", "--max-restarts", "0"];
    let submit = [&["--master", &master.url, "--task", "digits", "--env", "CODE=7"][..], &rules].concat();
    let client = Running::of(&mut scene.client(&submit));
    client.until_said(&format!("run on each machine: agent --join {} --task digits", master.url));
    client.until_said(&format!("{} works only on this machine", master.url));
    let machines = [2, 3].map(|number| Running::of(&mut agent(&scene, &master, number, &[])));
    client.ended().code(1).says(&["exited with code 7"]);
    for machine in machines {
        machine.ended();
    }
}

/// Prints the files of all ranks, and writes its process id to its own. Then waits like [`TRAIN`].
const PARTS: &str = "import os, sys, time\n\
                     print('parts', *sorted(name for name in os.listdir() if name.startswith('part-')), flush=True)\n\
                     open('part-' + os.environ['RANK'], 'w').write(str(os.getpid()))\n\
                     while not os.path.exists('code'): time.sleep(0.05)\n\
                     sys.exit(int(open('code').read()))\n";

/// The column "joined machines" of the table in `docs/guides/code.md`.
#[test]
fn what_scripts_write_stays_in_the_folders_of_their_agents_and_a_push_sends_nothing() {
    let scene = Scene::new(PARTS);
    let mut master = Master::start(scene.path(), &JOINED, &[]);
    let client = |url: &str, args: &[&str]| {
        Finished::of(scene.client(&[&["--master", url], args].concat()).env("MUSTER_TOKEN", TOKEN)).code(0)
    };
    let agents = [2, 3].map(|number| Running::of(&mut agent(&scene, &master, number, &["--worker-num", "2"])));
    let both = ["worker-0", "worker-1"];
    let mut view = until_running(&scene, &master, &both, None);
    let parts = ["part-0", "part-1"].map(|name| scene.path().join(name));
    let id_in = |part: &Path| fs::read_to_string(part).ok()?.parse::<u32>().ok();
    let ids = within("both ranks write", || id_in(&parts[0]).zip(id_in(&parts[1])), String::new);

    signal(ids.1, Signal::KILL);
    view = until_running(&scene, &master, &both, Some(&view));
    agents.iter().for_each(|agent| agent.until_printed(1, "parts part-0 part-1"));
    client(&master.url, &["suspend", "digits"]);
    client(&master.url, &["resume", "digits"]);
    view = until_running(&scene, &master, &both, Some(&view));
    agents.iter().for_each(|agent| agent.until_printed(2, "parts part-0 part-1"));
    master.kill();
    master.follow_up(&JOINED);
    until_running(&scene, &master, &both, None);

    fs::write(scene.path().join("exec.py"), format!("print('edited')\n{PARTS}")).expect("cannot write the script");
    let pushed = client(&master.url, &["push", "digits"]);
    assert!(!pushed.stderr.contains("code of"), "{}", pushed.stderr);
    until_running(&scene, &master, &both, Some(&view));
    agents.iter().for_each(|agent| agent.until_printed(1, "edited"));
    fs::write(scene.path().join("code"), "0").expect("cannot write the file");
    agents.into_iter().for_each(|agent| drop(agent.ended().code(0)));
    client(&master.url, &["delete", "digits"]);
    assert!(parts.iter().all(|part| part.exists()), "a file of a script is deleted");
}
