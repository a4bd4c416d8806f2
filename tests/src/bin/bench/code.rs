//! Measures launches and pushes of jobs that bring their code. Compares them with pods without Muster.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, ensure};
use e2e::Finished;
use e2e::cluster::Image;
use e2e::code::send_code;
use e2e::processes::within;
use e2e::requests::{client_of, wait_for};
use k8s_openapi::jiff::Timestamp;
use protocol::patch::JobPatch;
use protocol::view::JobState;
use serde_json::{Value, json};

use crate::cluster::{Writes, writes};
use crate::installed::{BASE, Installed, JOB, last_start, launch, script};
use crate::sample::{Figure, RUNS, Row};

/// Numbers of pods of the launches.
const LAUNCHED: [usize; 2] = [4, 16];
/// Number of launches of each kind.
const PAIRS: usize = 15;
/// Number of jobs whose end is measured.
const ENDS: usize = 20;
/// Number of pods of the job that gets new code.
const PUSHED: usize = 8;
/// Size of the large file that a job brings.
const LARGE_BYTES: usize = 5 * 1024 * 1024;

/// A web server that writes each request's body to a file.
const RECEIVER: &str = r#"
import http.server
class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_PUT(self):
        left = int(self.headers["Content-Length"])
        with open("/tmp/received", "wb") as file:
            while left: left -= file.write(self.rfile.read(min(left, 65536)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
http.server.HTTPServer(("", 8000), Receiver).serve_forever()
"#;

/// Returns all rows about code in a cluster.
pub(crate) fn compare() -> anyhow::Result<Vec<Row>> {
    let site = Installed::new(&[])?;
    let mut rows = launches(&site)?;
    rows.push(ends(&site)?);
    site.write(0)?;
    let (job, _) = launch(&mut site.client(&submit(&PUSHED.to_string())), 0, PUSHED)?;
    rows.extend(pushes(&site, || job.stdout())?);
    rows.extend(large(&site, || job.stdout())?);
    Ok(rows)
}

fn submit(count: &str) -> [&str; 7] {
    ["./bench", "--image", BASE, "--task", JOB, "--worker-num", count]
}

/// Measures in turn: launches, and bare pods of the same image that run the same script. With the smaller number of
/// pods, also launches through the API server, and launches whose agent an init container copies.
fn launches(site: &Installed) -> anyhow::Result<Vec<Row>> {
    let copying = Installed::new(&[])?;
    copying.copy_agents();
    let mut rows = vec![];
    for count in LAUNCHED {
        rows.extend(launches_of(site, &copying, count)?);
    }
    Ok(rows)
}

fn launches_of(site: &Installed, copying: &Installed, pods: usize) -> anyhow::Result<Vec<Row>> {
    let (mut direct, mut forwarded, mut copied) = (vec![], vec![], vec![]);
    let (mut bare, mut ready) = (vec![], vec![]);
    let count = pods.to_string();
    let mut fewest = u64::MAX;
    for start in 0..PAIRS {
        site.write(start)?;
        let before = writes()?;
        let (job, took) = launch(&mut site.client(&submit(&count)), start, pods)?;
        direct.push(took);
        fewest = fewest.min(until_running(site)?.without_bindings - before.without_bindings);
        site.delete_job();
        drop(job);

        if pods == LAUNCHED[0] {
            forwarded.push(launch(&mut site.client_by_api(&submit(&count)), start, pods)?.1);
            site.delete_job();
            copying.write(start)?;
            copied.push(launch(&mut copying.client(&submit(&count)), start, pods)?.1);
            copying.delete_job();
        }

        let begin = SystemTime::now();
        let name = format!("launch-{pods}-{start}");
        site.create_bare(&name, pods, &bare_spec(&script(start)));
        site.until_ready(&name);
        ready.push(begin.elapsed()?);
        bare.push(site.bare_started(&name, start, pods).duration_since(begin)?);
        site.end_bare(&name);
    }
    let row = |what: String, muster: &[Duration], bare: &[Duration], bare_is| {
        Row::new(what, Figure::Times(muster.to_vec())).against(Figure::Times(bare.to_vec()), bare_is)
    };
    let mut rows = vec![
        row(
            format!("launch of a script, {pods} pods (ratio at most 1.15)"),
            &direct,
            &bare,
            "kubectl apply of pods that run the script",
        ),
        // Muster needs the addresses of all pods, and the API shows an address when it also shows the pod as ready.
        row(format!("the same, {pods} pods"), &direct, &ready, "until the API shows them as ready"),
    ];
    if !forwarded.is_empty() {
        let what = "the same, with --master kube (ratio at most 1.5)".to_owned();
        rows.push(row(what, &forwarded, &direct, "through the node's port"));
        rows.push(row("the same, with --agent-image".to_owned(), &copied, &direct, "through the node's port"));
    }
    rows.push(count_of(&format!("API writes of this launch of {pods} pods"), fewest, pods as u64 + 4));
    Ok(rows)
}

/// A pod of the same image that runs this Python program. It has nothing that Muster adds.
fn bare_spec(program: &str) -> Value {
    let container = json!({
        "name": "bare", "image": BASE, "imagePullPolicy": "IfNotPresent", "command": ["python", "-c", program],
    });
    json!({ "containers": [container] })
}

/// Measures the time from the job's result until the client that follows the job exits. The master's log has the time
/// of the result by this machine's clock, if the master runs on this machine. A view has only the time by the API
/// server's clock, and the master knows this clock only to within a second.
fn ends(site: &Installed) -> anyhow::Result<Row> {
    let count = LAUNCHED[0].to_string();
    let mut times = vec![];
    for start in 0..ENDS {
        fs::write(site.scene.path().join(JOB).join("exec.py"), format!("print('end', {start})"))?;
        let finished = Finished::of(&mut site.client(&submit(&count)));
        let exited = Timestamp::now();
        finished.code(0);
        let took = exited.duration_since(last_end(site)?).try_into();
        times.push(took.context("the clock of the master's node is ahead of this machine's")?);
        site.delete_job();
    }
    Ok(Row::new("from the result of a job to the exit of its client (median at most 50 ms)", Figure::Times(times)))
}

/// Returns the time of the last job's end, from the master's log.
fn last_end(site: &Installed) -> anyhow::Result<Timestamp> {
    let log = site.namespace.kubectl(&["logs", "deployment/muster"]);
    let line = log.lines().rfind(|line| line.contains("job ended")).context("the log has no end of a job")?;
    Ok(line.split_whitespace().next().unwrap_or_default().parse()?)
}

/// Measures two ways to bring new code, in turn: a push by the client, and a new image with new pods.
fn pushes(site: &Installed, output: impl Fn() -> String) -> anyhow::Result<Vec<Row>> {
    let (mut times, mut bare) = (vec![], vec![]);
    let mut fewest = u64::MAX;
    // The images stay until the end of this function, because an image can be removed only when no pod uses it.
    let mut images = vec![rebuild(site, 0)?.0];
    for start in 1..=RUNS {
        site.write(start)?;
        let before = writes()?;
        let begin = SystemTime::now();
        Finished::of(&mut site.client(&["push", JOB, JOB])).code(0);
        times.push(last_start(&output, start, PUSHED).duration_since(begin)?);
        fewest = fewest.min(until_running(site)?.without_bindings - before.without_bindings);

        let (image, took) = rebuild(site, start)?;
        images.push(image);
        bare.push(took);
    }
    site.end_bare(&replacement(RUNS));
    let what = format!("push to {PUSHED} pods, until all scripts have started (at most 2 s, ratio at most 0.1)");
    Ok(vec![
        Row::new(what, Figure::Times(times)).against(Figure::Times(bare), "docker build, kubectl delete, apply"),
        count_of("API writes of the push", fewest, 3),
    ])
}

/// Returns the first part of the names of the pods that [`rebuild`] creates for this start.
fn replacement(start: usize) -> String {
    format!("image-{start}")
}

/// Builds an image with the script, and replaces the pods of the previous start with pods of this image. Returns the
/// image, and the time from the call until the last script has started. Does not wait until the old pods are gone.
fn rebuild(site: &Installed, start: usize) -> anyhow::Result<(Image, Duration)> {
    let context = site.scene.path().join("image");
    fs::create_dir_all(&context)?;
    fs::write(context.join("exec.py"), script(start))?;
    let dockerfile = format!("FROM {BASE}\nCOPY exec.py .\nCMD [\"python\", \"exec.py\"]\n");
    fs::write(context.join("Dockerfile"), dockerfile)?;
    let begin = SystemTime::now();
    let image = Image::unwrapped(&context);
    let container = json!({ "name": "bare", "image": image.of_nodes(), "imagePullPolicy": "IfNotPresent" });
    let name = replacement(start);
    if let Some(before) = start.checked_sub(1) {
        site.delete_bare(&replacement(before));
    }
    site.create_bare(&name, PUSHED, &json!({ "containers": [container] }));
    Ok((image, site.bare_started(&name, start, PUSHED).duration_since(begin)?))
}

/// Measures in turn: the time until all agents have code that the master already has, and uploads of the same bytes to
/// pods without a master.
fn large(site: &Installed, output: impl Fn() -> String) -> anyhow::Result<Vec<Row>> {
    let container = json!({ "name": "bare", "image": BASE, "command": ["python", "-c", RECEIVER] });
    site.create_bare("receiver", PUSHED, &json!({ "containers": [container] }));
    let receivers = site.until_ready("receiver");
    fs::write(site.scene.path().join("large"), "")?;
    let listen = || upload(site, &receivers).ok();
    within("the pods without a master listen", listen, || format!("{receivers:?}"));
    let (client, job) = (client_of(&site.url, Some(&site.token)), JOB.parse()?);
    let (mut times, mut bare) = (vec![], vec![]);
    for start in (RUNS + 1)..=(2 * RUNS) {
        let text: String = (0..LARGE_BYTES).map(|_| fastrand::alphanumeric()).collect();
        let script = script(start);
        let code = send_code(&site.url, Some(&site.token), &[("exec.py", &script), ("large", &text)]);
        let begin = Instant::now();
        // The master answers when all agents have the code.
        wait_for(client.patch(&job, JobPatch { code: Some(code), ..JobPatch::default() }))?;
        times.push(begin.elapsed());
        last_start(&output, start, PUSHED);

        fs::write(site.scene.path().join("large"), text)?;
        let begin = Instant::now();
        upload(site, &receivers)?;
        bare.push(begin.elapsed());
    }
    site.delete_bare("receiver");
    let what = format!("5 MiB of code to {PUSHED} pods, until the master answers (ratio at most 2)");
    Ok(vec![Row::new(what, Figure::Times(times)).against(Figure::Times(bare), "8 parallel curl -T")])
}

/// Sends the file `large` to all receivers at once.
fn upload(site: &Installed, receivers: &[String]) -> anyhow::Result<()> {
    let start = |address: &String| {
        let url = format!("http://{address}:8000/");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--noproxy", "*", "--upload-file", "large", &url]);
        curl.current_dir(site.scene.path()).stdin(Stdio::null()).stdout(Stdio::null()).spawn()
    };
    let uploads: Vec<Child> = receivers.iter().map(start).collect::<Result<_, _>>()?;
    for mut upload in uploads {
        ensure!(upload.wait()?.success(), "an upload failed");
    }
    Ok(())
}

/// Waits until the job is running. Returns the API server's counts of writes at that time.
fn until_running(site: &Installed) -> anyhow::Result<Writes> {
    let view = || Finished::of(&mut site.client(&["status", JOB, "-o", "json"])).code(0).view();
    within("the job runs", || (view().state == JobState::Running).then_some(()), || format!("{:#?}", view()));
    writes()
}

fn count_of(what: &str, count: u64, bound: u64) -> Row {
    Row::new(format!("{what} (at most {bound})"), Figure::Count(count))
}
