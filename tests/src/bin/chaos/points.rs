//! Kills masters on the cluster in KUBECONFIG, at every point that is not about pushed code ([`Point::without_push`]).
//! In each job, a script fails in the first start, and a pod ends in the second start. The kills must not change the
//! job's result. For points about code, the job brings its code, and each new master has lost the code on its disk.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use e2e::cluster::{Cluster, Image};
use e2e::code::send_code;
use e2e::{Scene, within};
use protocol::job::JobRequest;
use protocol::view::{JobState, JobView};
use testkit::chaos::{Deed, Fault, Point, STRIKE_VARIABLE, Strike};

use crate::cluster::request;
use crate::history::History;
use crate::lanes::{self, locked};
use crate::{output, say};

/// Maximum time until a repeated request gets the expected answer, and also until the job has finished.
const PATIENCE: Duration = Duration::from_secs(120);
/// Number of the signal of `kill -9`.
const SIGKILL: i32 = 9;
/// A master is killed when it passes its point for the Nth time. N is random, from 1 to this number.
const PASSINGS: u32 = 3;
/// Kills a master just after the master has accepted a job.
const LOSES_ITS_JOB: Strike = Strike { point: Point::After(Deed::Accept), fault: Fault::Kill, passing: 1 };
const JOB: &str = "/v1/jobs/struck";

/// In the first start, worker-0 fails. In the second start, worker-1 ends its agent, which ends its pod. The third
/// start succeeds. To distinguish the starts, worker-0 writes a file when it fails, and tells worker-1 whether the file
/// exists. worker-1 also writes a file, which shows whether its pod is new. MUSTER_RESTART_COUNT is of no use here,
/// because it includes starts that were lost with a master.
const EXEC_PY: &str = r#"
import json, os, signal, socket, sys, time
generation, config = os.environ["MUSTER_GENERATION"], json.loads(os.environ["TF_CONFIG"])
host, port = config["cluster"]["worker"][1].split(":")
print("begun", generation, json.dumps(config["cluster"], separators=(",", ":")), flush=True)
if config["task"]["index"] == 0:
    peer, has_failed = None, os.path.exists("failed")
    while peer is None:
        try: peer = socket.create_connection((host, int(port)))
        except OSError: time.sleep(0.02)
    peer.sendall(b"2" if has_failed else b"1")
    if not has_failed: sys.exit(open("failed", "w").close() or 3)
    try: answer = peer.recv(1)
    except OSError: answer = b""
    if not answer: time.sleep(600)
else:
    has_run = os.path.exists("has-run")
    open("has-run", "w").close()
    peer = socket.create_server(("", int(port))).accept()[0]
    if peer.recv(1) != b"2": time.sleep(600)
    if has_run: os.kill(os.getppid(), signal.SIGTERM) or time.sleep(600)
    peer.sendall(b"!")
print("done", generation, flush=True)
"#;

/// Kills `kills` masters at each point, in as many jobs as needed. N (see [`PASSINGS`]) is the same for all masters of
/// a job.
pub(crate) fn campaign(kills: u32, seed: u64) -> anyhow::Result<()> {
    let points: Mutex<Vec<Point>> = Mutex::new(Point::without_push().collect());
    let (jobs, made) = (AtomicU32::new(0), AtomicU32::new(0));
    // Build the image once for all jobs.
    let image = Image::shared();
    let begin = Instant::now();
    let kill_at = |point: Point, random: &mut fastrand::Rng| {
        let (mut left, mut passing) = (kills, random.u32(1..=PASSINGS));
        while left > 0 {
            let strike = Strike { point, fault: Fault::Kill, passing };
            let killed = Trial::run(strike, left, &image).with_context(|| strike.to_string())?;
            jobs.fetch_add(1, Ordering::Relaxed);
            made.fetch_add(killed, Ordering::Relaxed);
            left -= killed;
            // If no master passes the point that often, use the first passing in the next job.
            passing = if killed == 0 { 1 } else { random.u32(1..=PASSINGS) };
        }
        Ok(())
    };
    let outcome = lanes::run(seed, |random| {
        let point = locked(&points).pop()?;
        Some(kill_at(point, random))
    });
    say(&format!(
        "{} masters killed in {} jobs that ended as expected, at {} points; {:.0} s",
        made.into_inner(),
        jobs.into_inner(),
        Point::without_push().count(),
        begin.elapsed().as_secs_f64(),
    ));
    outcome
}

/// A job, and the masters that drive it one after another.
struct Trial<'a> {
    scene: &'a Scene,
    cluster: Cluster,
    strike: Strike,
    /// The strike that is set for the current master.
    armed: Option<Strike>,
    wanted: u32,
    made: u32,
}

impl Trial<'_> {
    /// Runs a job. Returns the number of killed masters, at most `wanted`. If the strike is at the first passing,
    /// fails when no master passes the point.
    fn run(strike: Strike, wanted: u32, image: &Arc<Image>) -> anyhow::Result<u32> {
        // Only a second master adopts the job, or lacks the code. So for these points, the first master is killed after
        // the submit.
        let is_of_the_next = matches!(strike.point.deed(), Deed::Adopt | Deed::ReadCode);
        let first = if is_of_the_next { LOSES_ITS_JOB } else { strike };
        let scene = Scene::new("");
        let variables = [(STRIKE_VARIABLE, first.to_string())];
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        let cluster = Cluster::with_variables(&scene, Arc::clone(image), &args(&image.wrapped()), &variables);
        let history = History::follow(&cluster.namespace, scene.path())?;
        let mut trial = Trial { scene: &scene, cluster, strike, armed: Some(first), wanted, made: 0 };
        trial.job().with_context(|| trial.cluster.to_string())?;
        let pods = BTreeMap::from([("struck-worker-0", 1), ("struck-worker-1", 2)]);
        history.judge(&pods).with_context(|| trial.cluster.to_string())?;
        // The master may have been killed after its last answer. In this case, `ask` starts the next master.
        trial.ask(&[], JOB, |status, _| status == "404")?;
        within("no object is left behind", || trial.remains().is_empty().then_some(()), || trial.remains().join(" "));
        ensure!(trial.made > 0 || strike.passing > 1, "no master passed this point");
        Ok(trial.made)
    }

    fn remains(&self) -> Vec<String> {
        [self.cluster.objects(), self.cluster.policies()].concat()
    }

    /// Submits the job, waits for its end, and deletes it.
    fn job(&mut self) -> anyhow::Result<()> {
        self.submit()?;
        let end = self.finished()?;
        // One counted restart after the script that failed, and one uncounted restart after the pod that ended.
        let restarts = (end.restarts.counted, end.restarts.uncounted);
        ensure!(end.state == JobState::Succeeded && restarts == (1, 1), "{restarts:?} restarts: {end:?}");
        let logs = self.ask(&[], &format!("{JOB}/logs"), |status, _| status == "200")?;
        output::judge(&logs, &end)?;
        self.ask(&["-X", "DELETE"], JOB, |status, _| matches!(status, "202" | "404"))?;
        self.ask(&[], &format!("{JOB}?wait=1"), |status, _| status == "404")?;
        Ok(())
    }

    /// Submits the job. If it brings its code, sends the code first, and again if a master has lost it.
    fn submit(&mut self) -> anyhow::Result<()> {
        let name = "struck".parse().expect("the name is invalid");
        let mut request = request(&self.cluster.image, &name, EXEC_PY, 2);
        for _ in 0..=self.wanted {
            if self.brings_code() {
                let code = send_code(&self.cluster.master.url, None, &[("exec.py", EXEC_PY)]);
                let image = Some(self.cluster.image.of_nodes().parse().expect("the image name is invalid"));
                request = JobRequest { image, code: Some(code), env: BTreeMap::new(), ..request };
            }
            let body = serde_json::to_string(&request)?;
            let submit = ["-H", "content-type: application/json", "-d", &body];
            let answer = self.ask(&submit, "/v1/jobs", |status, _| matches!(status, "200" | "201" | "409"))?;
            if !answer.contains("code_missing") {
                ensure!(answer.contains("\"uid\""), "{answer}");
                return Ok(());
            }
        }
        bail!("each master has lost the code before it accepted the job")
    }

    fn brings_code(&self) -> bool {
        self.strike.point.deed().is_about_code()
    }

    /// Waits until the job has finished, and returns its view.
    fn finished(&mut self) -> anyhow::Result<JobView> {
        let begin = Instant::now();
        let mut seq = 0;
        loop {
            let view = self.ask(&[], &format!("{JOB}?after={seq}&wait=2"), |status, _| status == "200")?;
            let view: JobView = serde_json::from_str(&view).with_context(|| view)?;
            if view.state.is_finished() {
                return Ok(view);
            }
            ensure!(begin.elapsed() < PATIENCE, "not finished within {} s: {view:?}", PATIENCE.as_secs());
            seq = view.seq;
        }
    }

    /// Repeats a request until `is_it` accepts the answer's status and body. If no answer comes, the master has been
    /// killed, and this function starts the next master.
    fn ask(&mut self, args: &[&str], path: &str, is_it: impl Fn(&str, &str) -> bool) -> anyhow::Result<String> {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let url = format!("{}{path}", self.cluster.master.url);
            // curl prints its exit code in the last line. The code shows whether the answer is complete.
            let format = "\n%{http_code} %{exitcode}";
            let answer = self.scene.curl(&[args, &["--max-time", "60", "-w", format, &url]].concat());
            let (body, end) = answer.rsplit_once('\n').with_context(|| format!("curl printed {answer:?}"))?;
            match end.split_once(' ') {
                Some((status, "0")) if is_it(status, body) => return Ok(body.to_owned()),
                Some((_, "0")) => {}
                Some(_) | None => self.replace()?,
            }
        }
        bail!("timeout after {} s, waiting for the answer of {path}", PATIENCE.as_secs())
    }

    /// Starts the next master. As long as too few masters were killed, the next master gets a strike too.
    fn replace(&mut self) -> anyhow::Result<()> {
        let mut end = within("a master that does not answer has ended", || self.cluster.master.end(), String::new);
        loop {
            ensure!(self.armed.is_some() && end.signal() == Some(SIGKILL), "the master ended without a strike: {end}");
            self.made += u32::from(self.armed == Some(self.strike));
            self.armed = (self.made < self.wanted).then_some(self.strike);
            let strike = self.armed.map(|strike| strike.to_string());
            let variables = strike.as_ref().map(|strike| (STRIKE_VARIABLE, strike.as_str()));
            let code = self.scene.path().join("state/code");
            if self.brings_code() && code.exists() {
                fs::remove_dir_all(code).context("remove the code on the disk")?;
            }
            let image = self.cluster.image.wrapped();
            match self.cluster.try_next_master(&args(&image), variables.as_slice()) {
                Ok(()) => return Ok(()),
                Err(status) => end = status,
            }
        }
    }
}

/// The arguments of a master that takes the agent from this image.
fn args(agent_image: &str) -> [&str; 4] {
    ["--state-dir", "state", "--agent-image", agent_image]
}
