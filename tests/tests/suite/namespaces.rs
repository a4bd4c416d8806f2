//! Tests of jobs on bare machines. In these tests, each machine is a network namespace of this host.

use std::fs;
use std::process::Command;

use e2e::network::{Network, address};
use e2e::programs::built;
use e2e::{Finished, Running, Scene, TOKEN, within};
use protocol::view::{JobState, JobView};

/// The machine of the master. All other machines have agents.
const MASTER: u8 = 1;

/// Prints the number of workers, and runs until the folder contains the file `code`.
const TRAIN: &str = "import os, sys, time\n\
                     print('world', os.environ['WORLD_SIZE'], flush=True)\n\
                     while not os.path.exists('code'): time.sleep(0.05)\n";

/// A network, and a master on its first machine.
struct Site {
    scene: Scene,
    network: Network,
    url: String,
    /// The job's minimum and maximum number of workers. The maximum is the number of machines with agents.
    range: String,
    master: Running,
}

impl Site {
    fn new(machines: u8) -> Self {
        let (scene, network) = (Scene::new(TRAIN), Network::new(machines));
        fs::write(scene.path().join("token"), TOKEN).expect("cannot write the file");
        let mut master = Command::new(built("master"));
        let listen = format!("{}:7897", address(MASTER));
        master.args(["--listen", &listen, "--state-dir", "state", "--backend", "joined", "--token-file", "token"]);
        let master =
            Running::of(&mut network.command_on(MASTER, master.current_dir(scene.path()).env_remove("RUST_LOG")));
        master.until_printed(1, "listening on");
        Self { scene, network, url: format!("http://{listen}"), range: format!("1:{}", machines - 1), master }
    }

    /// Returns a command that runs an agent on a machine. By default, the agent finds its address itself.
    fn agent(&self, number: u8, args: &[&str]) -> Command {
        let mut agent = Command::new(built("agent"));
        agent.args(["--join", &self.url, "--task", "digits", "--worker-num", &self.range, "--lease", "2"]).args(args);
        agent.args(["--", "python", "exec.py"]).current_dir(self.scene.path()).env("MUSTER_TOKEN", TOKEN);
        self.network.command_on(number, &agent)
    }

    fn status(&self) -> Option<JobView> {
        let mut client = self.scene.client(&["--master", &self.url, "status", "digits", "-o", "json"]);
        let client = self.network.command_on(MASTER, client.env("MUSTER_TOKEN", TOKEN));
        serde_json::from_str(&Finished::of(&mut { client }).stdout).ok()
    }

    /// Waits until the job runs with this many workers.
    fn until_running(&self, workers: usize) -> JobView {
        let runs = |view: &JobView| view.state == JobState::Running && view.roster.len() == workers;
        let state = || format!("{:#?}\n{}", self.status(), self.master.said_so_far());
        within(&format!("{workers} workers run"), || self.status().filter(runs), state)
    }
}

#[test]
#[ignore = "needs root and ip, for network namespaces"]
fn a_job_goes_on_without_a_machine_whose_link_is_down_and_uses_the_machine_again_when_the_link_is_up() {
    let site = Site::new(4);
    let agents = [2, 3, 4].map(|number| Running::of(&mut site.agent(number, &[])));
    let whole = site.until_running(3);
    let addresses: Vec<&str> = whole.replicas.iter().filter_map(|replica| replica.address.as_deref()).collect();
    for number in [2, 3, 4] {
        let host = format!("{}:", address(number));
        assert!(addresses.iter().any(|address| address.starts_with(&host)), "{host} is not in {addresses:?}");
    }

    site.network.set_link(4, "down");
    let alone = site.until_running(2);
    assert_eq!(alone.restarts.total(), 0, "the lost machine caused a recorded restart");
    site.network.set_link(4, "up");
    let again = site.until_running(3);
    assert_eq!(again.restarts.total(), 0, "the machine that joined again caused a recorded restart");

    fs::write(site.scene.path().join("code"), "").expect("cannot write the file");
    for agent in agents {
        agent.ended().code(0);
    }
}

#[test]
#[ignore = "needs root and ip, for network namespaces"]
fn an_agent_that_the_master_or_another_agent_cannot_reach_is_refused_and_the_error_names_its_address() {
    let site = Site::new(3);
    // No machine has this address.
    let unknown = Finished::of(&mut site.agent(2, &["--listen", "0.0.0.0:7896", "--address", "10.77.0.200"])).code(2);
    unknown.says(&["the master cannot reach the agent at 10.77.0.200:7896 (--address)"]);
    let one = Running::of(&mut site.agent(2, &[]));
    one.until_printed(1, "world 1");
    // Among the other machines, only the master can reach this address.
    let (_, own) = site.network.connect_two(MASTER, 3);
    let own = own.to_string();
    let hidden = Finished::of(&mut site.agent(3, &["--listen", "0.0.0.0:7896", "--address", &own])).code(2);
    let sentence = format!("worker-0 at {}:7896 cannot reach the agent at {own}:7896 (--address)", address(2));
    hidden.says(&[&sentence]);
    let two = Running::of(&mut site.agent(3, &[]));
    site.until_running(2);
    fs::write(site.scene.path().join("code"), "").expect("cannot write the file");
    one.ended().code(0);
    two.ended().code(0);
}
