//! Kills containers and deletes pods on the cluster in KUBECONFIG. Every job must succeed. The number of its
//! counted restarts must equal the number of kills. Deleted pods must not be counted.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use e2e::Scene;
use e2e::cluster::{Cluster, Image};
use protocol::ids::{JobName, PodName};
use protocol::job::{JobRequest, Strategy};
use protocol::run_policy::RunPolicy;
use protocol::view::{JobState, ReplicaView};

use crate::api::{Api, pid_of};
use crate::lanes::{self, locked};
use crate::{output, say};

/// Maximum kills and deletions in one job.
const QUOTA: usize = 5;

/// A script that runs for 4 s, long enough for a kill.
const EXEC_PY: &str = r#"
import json, os, time
generation, config = os.environ["MUSTER_GENERATION"], json.loads(os.environ["TF_CONFIG"])
print("begun", generation, json.dumps(config["cluster"], separators=(",", ":")), flush=True)
time.sleep(4)
print("done", generation, flush=True)
"#;

/// A way to kill a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// `kill -9` of the agent, the first process of the replica's container.
    Container,
    /// `kill -9` of exec.py.
    Script,
    /// `kubectl delete pod`.
    Deletion,
}

/// Kills `kills` processes: agents and scripts. Also deletes pods; their number is two fifths of `kills`.
pub(crate) fn campaign(kills: u32, seed: u64) -> anyhow::Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let kills = kills as usize;
    let ways = [(Way::Container, kills - kills / 3), (Way::Script, kills / 3), (Way::Deletion, kills * 2 / 5)];
    let mut deck: Vec<Way> = ways.iter().flat_map(|(way, count)| vec![*way; *count]).collect();
    random.shuffle(&mut deck);
    let (deck, counts) = (Mutex::new(deck), Mutex::new(BTreeMap::<(Way, bool), u32>::new()));
    let scene = Scene::new("");
    let cluster = Cluster::new(&scene, Image::shared(), &["--state-dir", "state"]);
    let site = Site { api: Api { scene: &scene, url: &cluster.master.url }, cluster: &cluster };
    let number = AtomicU32::new(0);
    let begin = Instant::now();
    let outcome = lanes::run(seed, |random| {
        let hand: Vec<Way> = {
            let mut deck = locked(&deck);
            let from = deck.len().saturating_sub(QUOTA);
            deck.drain(from..).collect()
        };
        if hand.is_empty() {
            return None;
        }
        let name = format!("shot-{:04}", number.fetch_add(1, Ordering::Relaxed) + 1);
        let shots = site.job(&name.parse().expect("the name is invalid"), hand, random);
        Some(shots.map(|shots| {
            for (way, has_hit) in shots {
                *locked(&counts).entry((way, has_hit)).or_default() += 1;
                if !has_hit {
                    locked(&deck).push(way);
                }
            }
        }))
    });
    let count = |way: Way, has_hit: bool| locked(&counts).get(&(way, has_hit)).copied().unwrap_or(0);
    let late: u32 = ways.iter().map(|(way, _)| count(*way, false)).sum();
    say(&format!(
        "{} kills in containers ({} of agents, {} of exec.py) and {} pod deletions in {} jobs; {late} further kills or \
         deletions came too late; {:.0} s",
        count(Way::Container, true) + count(Way::Script, true),
        count(Way::Container, true),
        count(Way::Script, true),
        count(Way::Deletion, true),
        number.into_inner(),
        begin.elapsed().as_secs_f64(),
    ));
    let left = cluster.objects();
    ensure!(outcome.is_err() || left.is_empty(), "left behind: {left:?}");
    outcome
}

#[derive(Clone, Copy)]
struct Site<'a> {
    api: Api<'a>,
    cluster: &'a Cluster,
}

impl Site<'_> {
    /// Runs a job and kills its replicas in the ways of `hand`. Returns each way, and whether the kill made a start
    /// fail.
    fn job(self, name: &JobName, hand: Vec<Way>, random: &mut fastrand::Rng) -> anyhow::Result<Vec<(Way, bool)>> {
        self.api.submit(&request(&self.cluster.image, name, EXEC_PY, 100))?;
        let mut shots = vec![];
        let mut last = None;
        for way in hand {
            let view = self.api.running_anew(name, last)?;
            last = view.generation;
            if view.state.is_finished() {
                shots.push((way, false));
                continue;
            }
            thread::sleep(Duration::from_millis(random.u64(0..=2000)));
            let target = &view.replicas[random.usize(..view.replicas.len())];
            self.end(way, name, target)?;
            let judged = self.api.judged(&view)?;
            let failed = judged.restarts.failed_starts.iter().find(|failed| failed.generation == view.generation);
            shots.push((way, failed.is_some()));
            if let Some(failed) = failed {
                let is_right =
                    failed.failure.replica() == Some(target.replica) && failed.counted == (way != Way::Deletion);
                ensure!(is_right, "{name}: {way:?} of {}, but the failure is {failed:?}", target.replica);
            }
        }
        let end = self.api.finished(name)?;
        let hits = |test: fn(Way) -> bool| shots.iter().filter(|(way, has_hit)| *has_hit && test(*way)).count();
        let (kills, deletions) = (hits(|way| way != Way::Deletion), hits(|way| way == Way::Deletion));
        let is_right = end.restarts.counted as usize == kills && end.restarts.uncounted as usize == deletions;
        ensure!(end.state == JobState::Succeeded && is_right, "{name}: {shots:?}, but the job is {end:?}");
        output::judge(&self.api.logs(name), &end)?;
        self.api.delete(name)?;
        Ok(shots)
    }

    /// Kills a replica. If the replica has already ended, does nothing.
    fn end(self, way: Way, job: &JobName, target: &ReplicaView) -> anyhow::Result<()> {
        let pod = PodName::new(job, target.replica);
        if way == Way::Deletion {
            self.cluster.namespace.try_kubectl(&["delete", "pod", pod.as_str(), "--wait=false"]);
            return Ok(());
        }
        let label = |key: &str, value: &str| format!("label=io.kubernetes.{key}={value}");
        let filters = [
            label("pod.namespace", self.cluster.namespace.name()),
            label("pod.name", pod.as_str()),
            label("container.name", "agent"),
        ];
        let filters: Vec<&str> = filters.iter().flat_map(|filter| ["--filter", filter]).collect();
        let found = docker(&[&["ps", "--quiet"], filters.as_slice()].concat())?;
        let Some(container) = found.lines().next() else { return Ok(()) };
        let kill = format!("kill -9 {}", pid_of(target)?);
        let args = match way {
            Way::Container => vec!["kill", "--signal", "KILL", container],
            Way::Script => vec!["exec", container, "sh", "-c", &kill],
            Way::Deletion => return Ok(()),
        };
        docker(&args).map(drop)
    }
}

/// A request for a job that runs this script in the shared image.
pub(crate) fn request(image: &Image, name: &JobName, script: &str, max_restarts: u32) -> JobRequest {
    JobRequest {
        image: Some(image.wrapped().parse().expect("the image name is invalid")),
        env: BTreeMap::from([("EXEC_PY".parse().expect("the name is invalid"), script.to_owned())]),
        run_policy: RunPolicy { max_restarts, backoff_seconds: 0, ..RunPolicy::default() },
        ..JobRequest::new(name.clone(), Strategy::AllReduce)
    }
}

/// Runs docker and returns its stdout. Ignores docker's exit status, because the container or process may have ended.
fn docker(args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("docker").args(args).output().context("docker did not start")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
