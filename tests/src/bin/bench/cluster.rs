//! Measures the API writes and the time of a launch on the cluster in KUBECONFIG, and the time to wrap an image.
//! During the measurements, nothing else may use the cluster, because the API server counts the requests of all
//! clients.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use e2e::cluster::Namespace;
use e2e::master::Master;
use e2e::requests::{client_of, wait_for};
use e2e::{Scene, programs};
use master_client::LONG_POLL;
use protocol::view::JobView;

use crate::sample::{Figure, RUNS, Row, median};

/// For each launch: the number of replicas, and the number of API writes of Kubeflow's tf-operator 1.1 for as many
/// replicas. These writes concern jobs, pods, services and bindings. Their number is the smallest of several
/// measurements.
const LAUNCHES: [(u32, u64); 2] = [(4, 27), (16, 83)];
/// The first prototype's time from submit to four running scripts. It includes 18 s of sleep.
const PROTOTYPE: Duration = Duration::from_millis(24_900);
/// Base of the training image.
const BASE: &str = "python:3.11-slim";
/// Name of the training image.
const IMAGE: &str = "muster-bench";
/// Name of the image that `client build` makes from the training image.
const WRAPPED: &str = "muster-bench_pod";

/// Returns whether the cluster in KUBECONFIG is ready. If not, prints that the rows about a cluster are skipped.
pub(crate) fn is_there() -> anyhow::Result<bool> {
    let answer = done(kubectl(&["get", "--raw", "/readyz", "--request-timeout=10s"]).stderr(Stdio::null()));
    if let Err(error) = &answer {
        writeln!(std::io::stderr(), "skipped: the rows about a cluster: {error:#}")?;
    }
    Ok(answer.is_ok())
}

/// Measures launches of an image that contains the script, and the time to wrap the image.
pub(crate) fn compare() -> anyhow::Result<Vec<Row>> {
    let namespace = Namespace::new();
    // The script sleeps, so that the writes of the launch are counted before the job's end causes more writes.
    let scene = Scene::new("import time; time.sleep(3)");
    fs::write(scene.path().join("Dockerfile"), format!("FROM {BASE}\nWORKDIR /work\nCOPY exec.py .\nUSER 1000\n"))?;
    done(docker(&["build", "--quiet", "--tag", IMAGE, "."]).current_dir(scene.path()))?;
    let mut rows = wraps(&scene)?;
    let args = ["--backend", "kubernetes", "--namespace", namespace.name(), "--state-dir", "state"];
    let master = Master::start(scene.path(), &args, &[]);
    for (count, of_operator) in LAUNCHES {
        let (writes, took) = launch(&scene, &master.url, count)?;
        let row = Row::new(format!("API writes of a launch, {count} pods"), Figure::Count(writes));
        rows.push(row.against(Figure::Count(of_operator), "Kubeflow's tf-operator 1.1, measured earlier"));
        let row = Row::new(format!("submit until all have started, {count} pods"), Figure::Time(took));
        rows.push(match count {
            4 => row.against(Figure::Time(PROTOTYPE), "the first prototype, measured earlier"),
            _ => row,
        });
    }
    // The removal of the images can fail while containers still use them.
    unwrap().and_then(|()| done(&mut docker(&["image", "rm", "--force", IMAGE]))).ok();
    Ok(rows)
}

/// Runs a job. Returns the number of API writes, with the scheduler's bindings, and the time. Both are measured from
/// the submit until the client sees that all replicas have started.
fn launch(scene: &Scene, master: &str, count: u32) -> anyhow::Result<(u64, Duration)> {
    let before = writes()?;
    let submit = format!("{master}/create?strategy=AllReduce&n_worker={count}&img={WRAPPED}&name=bench-{count}");
    let client = client_of(master, None);
    let begin = Instant::now();
    let mut view: JobView = serde_json::from_str(&scene.curl(&[&submit]))?;
    while view.times.started.is_none() {
        ensure!(!view.state.is_finished(), "the job ended before all replicas had started: {:?}", view.result);
        view = wait_for(client.view_after(&view.name, view.seq, LONG_POLL))?;
    }
    let took = begin.elapsed();
    let written = writes()?.with_bindings - before.with_bindings;
    done(scene.client(&["--master", master, "wait", view.name.as_str()]).stdout(Stdio::null()))?;
    done(scene.client(&["--master", master, "delete", view.name.as_str()]).stderr(Stdio::null()))?;
    Ok((written, took))
}

/// Number of writes so far to pods, ConfigMaps, network policies and Services, and to the status of TFJobs. Excludes
/// dry runs, deletions of whole collections, and the nodes' updates of pod status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writes {
    /// Including the scheduler's bindings.
    pub(crate) with_bindings: u64,
    pub(crate) without_bindings: u64,
}

/// Reads these numbers from the API server, which counts the requests of all clients.
pub(crate) fn writes() -> anyhow::Result<Writes> {
    let metrics = done(kubectl(&["get", "--raw", "/metrics"]).stdout(Stdio::piped()))?;
    let of = |resources: &[&str], subresource: &str| -> u64 {
        let counts = |line: &&str| {
            let is =
                |key: &str, values: &[&str]| values.iter().any(|value| line.contains(&format!("{key}=\"{value}\"")));
            // Deletions of whole collections are left out: Kubernetes makes them when it deletes any namespace.
            let is_collection = is("verb", &["DELETE"]) && is("scope", &["namespace"]);
            line.starts_with("apiserver_request_total{")
                && !is_collection
                && is("verb", &["POST", "PUT", "PATCH", "APPLY", "DELETE"])
                && is("resource", resources)
                && is("dry_run", &[""])
                && is("subresource", &[subresource])
        };
        let count = |line: &str| line.rsplit_once(' ').and_then(|(_, count)| count.parse::<u64>().ok());
        metrics.lines().filter(counts).filter_map(count).sum()
    };
    let objects = of(&["pods", "configmaps", "networkpolicies", "services"], "");
    let without_bindings = objects + of(&["tfjobs"], "status");
    Ok(Writes { with_bindings: without_bindings + of(&["pods"], "binding"), without_bindings })
}

/// Measures how long it takes to wrap an image when no wrapped image exists (cold), and when it exists (warm). Compares
/// both times with `docker build` of a Dockerfile with the same instructions.
fn wraps(scene: &Scene) -> anyhow::Result<Vec<Row>> {
    let agent = programs::built("agent");
    let context = scene.path().join("by-hand");
    fs::create_dir(&context)?;
    fs::copy(&agent, context.join("agent"))?;
    let lines = format!("FROM {IMAGE}\nCOPY agent /muster/agent\nENTRYPOINT [\"/muster/agent\"]\n");
    fs::write(context.join("Dockerfile"), lines)?;
    let wrap = || timed(scene.client(&["build", "--image", IMAGE]).stdout(Stdio::null()).stderr(Stdio::null()));
    let (mut cold, mut warm, mut bare) = (vec![], vec![], vec![]);
    for run in 0..RUNS {
        if run > 0 {
            unwrap()?;
        }
        cold.push(wrap()?);
        warm.push(wrap()?);
        bare.push(timed(docker(&["build", "--no-cache", "--quiet", "."]).current_dir(Path::new(&context)))?);
    }
    let bare = Figure::Time(median(bare));
    let row = |what: &str, times: Vec<Duration>| {
        Row::new(what, Figure::Time(median(times))).against(bare.clone(), "docker build of the same instructions")
    };
    Ok(vec![row("wrap an image, cold", cold), row("wrap an image, warm", warm)])
}

/// Removes the wrapped image under all its names.
fn unwrap() -> anyhow::Result<()> {
    let id = done(&mut docker(&["image", "inspect", "--format", "{{.Id}}", WRAPPED]))?;
    done(&mut docker(&["image", "rm", "--force", id.trim()])).map(drop)
}

fn kubectl(args: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    command.args(args).stdout(Stdio::piped());
    command
}

fn docker(args: &[&str]) -> Command {
    let mut command = Command::new("docker");
    command.args(args).env("DOCKER_BUILDKIT", "0").stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

fn timed(command: &mut Command) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    done(command)?;
    Ok(begin.elapsed())
}

/// Runs a command to its end and returns its stdout.
fn done(command: &mut Command) -> anyhow::Result<String> {
    let output = command.spawn().and_then(std::process::Child::wait_with_output)?;
    if !output.status.success() {
        bail!("{command:?}: {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
