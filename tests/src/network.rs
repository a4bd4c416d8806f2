//! The machines of a test. Each machine is a network namespace of this host, and has its own address. The switch that
//! connects the machines has its own namespace too, so the host's network does not change.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::processes::run_by;

/// The first three numbers of the addresses in the network that all machines share.
const SHARED: [u8; 3] = [10, 77, 0];

/// Machines that are connected by a switch. Dropping this removes the namespaces of the machines and of the
/// switch.
#[derive(Debug)]
pub struct Network {
    /// Distinguishes the networks of one process.
    number: u32,
    machines: u8,
}

impl Network {
    /// Connects this many machines, with numbers from 1.
    ///
    /// # Panics
    /// If this process may not create namespaces, or `ip` is not installed.
    pub fn new(machines: u8) -> Self {
        static NETWORKS: AtomicU32 = AtomicU32::new(0);
        // If one of the next steps panics, dropping `network` removes the namespaces.
        let network = Self { number: NETWORKS.fetch_add(1, Ordering::Relaxed), machines };
        let switch = network.switch();
        ip(&["netns", "add", &switch]);
        ip(&["-n", &switch, "link", "add", "switch", "type", "bridge"]);
        ip(&["-n", &switch, "link", "set", "switch", "up"]);
        for number in 1..=machines {
            let (machine, port) = (network.name(number), port(number));
            ip(&["netns", "add", &machine]);
            ip(&["-n", &machine, "link", "set", "lo", "up"]);
            network.connect(number, "shared", (&switch, &port), address(number));
            ip(&["-n", &switch, "link", "set", &port, "master", "switch", "up"]);
        }
        network
    }

    /// Connects two machines by a further network. Returns their addresses in this network.
    pub fn connect_two(&self, one: u8, other: u8) -> (Ipv4Addr, Ipv4Addr) {
        let (of_one, of_other) = (Ipv4Addr::new(10, 78, other, 1), Ipv4Addr::new(10, 78, other, 2));
        let (machine, device) = (self.name(one), format!("to{other}"));
        self.connect(other, "own", (&machine, &device), of_other);
        ip(&["-n", &machine, "address", "add", &format!("{of_one}/24"), "dev", &device]);
        ip(&["-n", &machine, "link", "set", &device, "up"]);
        (of_one, of_other)
    }

    fn connect(&self, number: u8, device: &str, (peer, peers_device): (&str, &str), address: Ipv4Addr) {
        let machine = self.name(number);
        let to_peer = ["type", "veth", "peer", "name", peers_device, "netns", peer];
        ip(&[&["-n", &machine, "link", "add", device], &to_peer[..]].concat());
        ip(&["-n", &machine, "address", "add", &format!("{address}/24"), "dev", device]);
        ip(&["-n", &machine, "link", "set", device, "up"]);
    }

    /// Returns a command that runs `command` on a machine.
    pub fn command_on(&self, number: u8, command: &Command) -> Command {
        run_by(&["ip", "netns", "exec", &self.name(number)], command)
    }

    /// Connects a machine to the switch (`state` is `up`), or disconnects it (`down`).
    pub fn set_link(&self, number: u8, state: &str) {
        ip(&["-n", &self.switch(), "link", "set", &port(number), state]);
    }

    fn switch(&self) -> String {
        self.name(0)
    }

    /// Returns the name of a namespace. The name contains the process id, so other tests use other names.
    fn name(&self, number: u8) -> String {
        format!("muster-{}-{}-{number}", std::process::id(), self.number)
    }
}

/// Returns the address of a machine in the shared network.
pub fn address(number: u8) -> Ipv4Addr {
    let [a, b, c] = SHARED;
    Ipv4Addr::new(a, b, c, number)
}

fn port(number: u8) -> String {
    format!("port{number}")
}

/// Runs `ip`.
///
/// # Panics
/// If `ip` fails. The message contains the stderr of `ip`.
fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().expect("cannot start ip");
    assert!(output.status.success(), "ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
}

impl Drop for Network {
    fn drop(&mut self) {
        for number in 0..=self.machines {
            // If `new` has panicked, some of the namespaces might not exist.
            let _ = Command::new("ip").args(["netns", "delete", &self.name(number)]).stderr(Stdio::null()).status();
        }
    }
}
