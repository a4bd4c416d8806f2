//! Masters of the cluster that KUBECONFIG names, killed at each instant at which they change something. The job of each goes
//! through two failed starts, the second of which costs a pod, and must end as if nobody had been killed.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use e2e::Scene;
use e2e::cluster::{Cluster, Image};
use master::chaos::{Deed, Fault, Point, Strike};
use protocol::job::{JobRequest, Strategy};
use protocol::run_policy::RunPolicy;
use protocol::view::{JobState, JobView};

use crate::history::History;
use crate::{lanes, output, say};

/// Jobs at the same time, each with masters of its own.
const LANES: usize = 4;
/// Most time that a job may take to come to its next step.
const PATIENCE: Duration = Duration::from_secs(120);
/// The signal of `kill -9`.
const SIGKILL: i32 = 9;
/// The variable that arms a master.
const CHAOS: &str = "MUSTER_CHAOS";
const STATE: [&str; 2] = ["--state-dir", "state"];
const JOB: &str = "/v1/jobs/struck";

/// In the first start a script fails; in the second its agent is asked to end, and its pod with it; the third ends well. What
/// a pod has been through lies in its file, for a job that has changed masters counts one restart from the beginning.
const EXEC_PY: &str = r#"
import json, os, signal, sys, time
generation, config = os.environ["MUSTER_GENERATION"], json.loads(os.environ["TF_CONFIG"])
is_last, fails = os.environ["MUSTER_RESTART_COUNT"] == "2", config["task"]["index"] == 1
print("begun", generation, json.dumps(config["cluster"], separators=(",", ":")), flush=True)
if fails and not is_last:
    if os.path.exists("failed"): os.kill(os.getppid(), signal.SIGTERM)
    else: sys.exit(open("failed", "w").close() or 3)
if not is_last: time.sleep(600)
print("done", generation, flush=True)
"#;

/// So many kills at each point.
pub(crate) fn campaign(kills: u32, seed: u64) -> anyhow::Result<()> {
    let points: Mutex<Vec<Point>> = Mutex::new(Point::all().collect());
    let counts = Mutex::new((0, 0));
    // Built once, and not once for each job.
    let image = Image::shared();
    let begin = Instant::now();
    let outcome = lanes::run(LANES, seed, |_, complaints| {
        while !complaints.are_too_many() {
            let Some(point) = points.lock().expect("nobody panics").pop() else { return };
            let mut left = kills;
            while left > 0 {
                let trial = Trial::run(point, left, &image).with_context(|| format!("killed {point}"));
                let Some(made) = complaints.take(trial) else { break };
                let mut counts = counts.lock().expect("nobody panics");
                (counts.0, counts.1, left) = (counts.0 + 1, counts.1 + made, left - made);
            }
        }
    });
    let (jobs, made) = counts.into_inner().expect("nobody panics");
    say(&format!(
        "{made} masters killed at {} points in {jobs} jobs, each of which came to its end; {:.0} s",
        Point::all().count(),
        begin.elapsed().as_secs_f64(),
    ));
    outcome
}

/// One job, and the masters that have it one after the other.
struct Trial<'a> {
    scene: &'a Scene,
    cluster: Cluster,
    point: Point,
    /// Where the master that runs now is killed.
    armed: Option<Point>,
    wanted: u32,
    made: u32,
}

impl Trial<'_> {
    /// How many masters were killed, at most as many as wanted and at least one.
    fn run(point: Point, wanted: u32, image: &Arc<Image>) -> anyhow::Result<u32> {
        // Nobody takes a job over whose first master lives.
        let is_of_the_next = matches!(point, Point::Before(Deed::Adopt) | Point::After(Deed::Adopt));
        let first = if is_of_the_next { Point::After(Deed::Accept) } else { point };
        let scene = Scene::new("");
        let cluster = Cluster::with_variables(&scene, Arc::clone(image), &STATE, &[(CHAOS, &killing(first))]);
        let history = History::follow(cluster.namespace.name())?;
        let mut trial = Trial { scene: &scene, cluster, point, armed: Some(first), wanted, made: 0 };
        trial.job().with_context(|| trial.cluster.to_string())?;
        let pods = BTreeMap::from([("struck-worker-0", 1), ("struck-worker-1", 2)]);
        history.judge(&pods).with_context(|| trial.cluster.to_string())?;
        // The last deed may be heard of before its master is killed.
        trial.ask(&[], JOB, |status, _| status == "404")?;
        ensure!(trial.made > 0, "no master ever comes there");
        Ok(trial.made)
    }

    /// Submits it, waits for its end, and has it forgotten.
    fn job(&mut self) -> anyhow::Result<()> {
        let body = serde_json::to_string(&self.request())?;
        let submit = ["-H", "content-type: application/json", "-d", &body];
        self.ask(&submit, "/v1/jobs", |status, _| matches!(status, "200" | "201"))?;
        let end = self.finished()?;
        let restarts = (end.restarts.counted, end.restarts.uncounted);
        ensure!(end.state == JobState::Succeeded && restarts.0 + restarts.1 == 2, "{end:?}");
        let logs = self.ask(&[], &format!("{JOB}/logs"), |status, _| status == "200")?;
        output::judge(&logs, &end)?;
        self.ask(&["-X", "DELETE"], JOB, |status, _| matches!(status, "202" | "404"))?;
        self.ask(&[], &format!("{JOB}?wait=1"), |status, _| status == "404")?;
        let left = self.cluster.objects();
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    }

    fn request(&self) -> JobRequest {
        JobRequest {
            image: Some(self.cluster.image.wrapped().parse().expect("it is an image")),
            env: BTreeMap::from([("EXEC_PY".parse().expect("it is a name"), EXEC_PY.to_owned())]),
            run_policy: RunPolicy { max_restarts: 2, backoff_seconds: 0, ..RunPolicy::default() },
            ..JobRequest::new("struck".parse().expect("it is a name"), Strategy::AllReduce)
        }
    }

    /// The job, once it has finished.
    fn finished(&mut self) -> anyhow::Result<JobView> {
        let mut seq = 0;
        loop {
            let view = self.ask(&[], &format!("{JOB}?after={seq}&wait=2"), |status, _| status == "200")?;
            let view: JobView = serde_json::from_str(&view).with_context(|| view)?;
            if view.state.is_finished() {
                return Ok(view);
            }
            seq = view.seq;
        }
    }

    /// Asks until `is_it` holds for the answer's status and body. Where none answers, the master has been killed, and
    /// the next takes its place.
    fn ask(&mut self, args: &[&str], path: &str, is_it: impl Fn(&str, &str) -> bool) -> anyhow::Result<String> {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let url = format!("{}{path}", self.cluster.master.url);
            let answer = self.scene.curl(&[args, &["--max-time", "60", "-w", "\n%{http_code}", &url]].concat());
            match answer.rsplit_once('\n') {
                Some((_, "000")) | None => self.replace()?,
                Some((body, status)) if is_it(status, body) => return Ok(body.to_owned()),
                Some(_) => {}
            }
        }
        bail!("not within {} s: what is asked of {path}", PATIENCE.as_secs())
    }

    /// Starts the next master, which is killed at the same point until there were enough of it.
    fn replace(&mut self) -> anyhow::Result<()> {
        let mut end = self.cluster.master.wait();
        loop {
            ensure!(end == Some(SIGKILL), "a master ended otherwise than as meant: {end:?}");
            self.made += u32::from(self.armed == Some(self.point));
            self.armed = (self.made < self.wanted).then_some(self.point);
            let strike = self.armed.map(killing);
            let variables = strike.as_ref().map(|strike| (CHAOS, strike.as_str()));
            match self.cluster.try_next_master(&STATE, variables.as_slice()) {
                Ok(()) => return Ok(()),
                Err(status) => end = status.signal(),
            }
        }
    }
}

fn killing(point: Point) -> String {
    Strike { point, fault: Fault::Kill, passing: 1 }.to_string()
}
