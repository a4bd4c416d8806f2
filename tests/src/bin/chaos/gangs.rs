//! Submits four jobs of four workers at once to the cluster in KUBECONFIG, whose node has room for four pods. All jobs
//! must succeed. Together, they may need only a little more time than one after another. Further rounds kill the master
//! between two yields, add an elastic job, and limit the pods by a quota instead of the room.

use std::time::{Duration, Instant};

use anyhow::ensure;
use e2e::processes::within;
use e2e::{Place, Stage};
use protocol::view::JobState;

use crate::say;

/// Number of jobs, and number of workers of each job.
const GANGS: u32 = 4;
/// How long each script runs.
const SCRIPT: &str = "import time; time.sleep(20)";
/// Maximum time of the jobs together, compared with the same jobs one after another.
const MOST_TIMES: f64 = 1.3;
/// The master's arguments.
const STATE: [&str; 2] = ["--state-dir", "state"];

/// What else happens in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Also {
    Nothing,
    /// The master is killed when the first gang has given its pods back.
    KilledMaster,
    /// An elastic job of one to four workers comes first.
    ElasticJob,
    /// A quota allows four pods, and the pods ask for no CPU.
    Quota,
}

/// Runs `rounds` rounds, and then one round of each other kind.
pub(crate) fn campaign(rounds: u32) -> anyhow::Result<()> {
    let mut stage = Stage::new(Place::Cluster, SCRIPT);
    let cpu = stage.cluster().namespace.cpu_for(GANGS.into());
    let room = ["--cpu", &cpu];
    let begin = Instant::now();
    for _ in 0..GANGS {
        stage
            .submit(&[&["--task", "alone", "--worker-num", &GANGS.to_string(), "--replace"], &room[..]].concat())
            .code(0);
    }
    let each = begin.elapsed() / GANGS;
    say(&format!("one after another, a job takes {:.1} s", each.as_secs_f64()));
    let plain = (0..rounds).map(|_| Also::Nothing);
    for (round, also) in plain.chain([Also::KilledMaster, Also::ElasticJob, Also::Quota]).enumerate() {
        let asks: &[&str] = if also == Also::Quota { &[] } else { &room };
        play(&mut stage, round, also, asks, each)?;
    }
    Ok(())
}

/// Runs the jobs of one round. Every pod asks for `room`. One job alone takes the time `each`.
fn play(stage: &mut Stage, round: usize, also: Also, room: &[&str], each: Duration) -> anyhow::Result<()> {
    let gangs = (0..GANGS).map(|gang| (format!("round-{round}-{gang}"), GANGS.to_string()));
    let elastic = (also == Also::ElasticJob).then(|| (format!("round-{round}-elastic"), format!("1:{GANGS}")));
    let jobs: Vec<(String, String)> = elastic.into_iter().chain(gangs).collect();
    let begin = Instant::now();
    if also == Also::Quota {
        stage.cluster().namespace.kubectl(&["create", "quota", "pods", &format!("--hard=pods={GANGS}")]);
    }
    for (name, workers) in &jobs {
        stage.submit(&[&["-d", "--task", name, "--worker-num", workers], room].concat()).code(0);
    }
    if also == Also::KilledMaster {
        let list = || stage.verb(&["list"]).stdout;
        within("a gang has given its pods back", || list().contains("queued behind").then_some(()), list);
        stage.kill_master();
        stage.next_master(&STATE);
    }
    for (name, _) in &jobs {
        let view = stage.finished(name);
        let is_right = view.state == JobState::Succeeded && view.restarts.counted == 0;
        ensure!(is_right, "round {round}, {also:?}: {view:#?}");
    }
    let (took, jobs) = (begin.elapsed(), u32::try_from(jobs.len())?);
    let times = took.as_secs_f64() / (each * jobs).as_secs_f64();
    say(&format!("round {round}, {also:?}: {jobs} jobs in {:.1} s, {times:.2} of the time alone", took.as_secs_f64()));
    ensure!(times <= MOST_TIMES, "round {round}, {also:?}: {times:.2} of the time one after another");
    Ok(())
}
