//! Measures the time from a push to the start of the last script. Compares it with a shell's start of the same scripts.

use std::fs::{self, File};
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use e2e::code::send_code;
use e2e::{Master, Scene};
use protocol::patch::JobPatch;

use crate::elastic::site::{CODE, HELLO, JOB, STARTS, Site, patch};
use crate::elastic::{WORKERS, first_step};
use crate::sample::{Figure, Row};

/// Number of pushes by a request, and also of pushes by a client.
const PUSHES: usize = 30;
/// Number of files in the large folder.
const FILES: usize = 1000;

/// A job that has brought its code. Its scripts note when they start.
struct Job {
    // Declared before the folder, so the master is dropped first.
    master: Master,
    site: Site,
    workers: usize,
}

impl Job {
    fn start(site: Site, workers: usize, flags: &[&str]) -> anyhow::Result<Self> {
        let mut site = site.with_code()?;
        let folder = format!("./{CODE}");
        let master = site.muster(&[&["--worker-num", &workers.to_string(), &folder, "--snapshot"], flags].concat());
        site.gang_of(workers)?;
        Ok(Self { master, site, workers })
    }

    /// Changes the script, and pushes the folder. Returns the time until all scripts have started.
    fn push(&mut self) -> anyhow::Result<Duration> {
        let script = self.site.scene.path().join(CODE).join("exec.py");
        File::options().append(true).open(script)?.write_all(b"#\n")?;
        let begin = SystemTime::now();
        self.site.scene.run(&["--master", &self.master.url, "push", JOB, CODE]).code(0);
        self.site.gang_of(self.workers)?.since(begin)
    }

    /// Pushes code that the master already has, without a client. Returns the time until all scripts have started.
    fn push_known(&mut self, script: &str) -> anyhow::Result<Duration> {
        let starts = fs::read_to_string(self.site.scene.path().join(CODE).join(STARTS))?;
        let files = [("exec.py", script), (STARTS, &starts)];
        let code = send_code(&self.master.url, None, &files);
        let begin = SystemTime::now();
        patch(&self.master.url, JobPatch { code: Some(code), ..JobPatch::default() })?;
        self.site.gang_of(self.workers)?.since(begin)
    }
}

/// Measures pushes to 8 hello scripts, and counts the files that a push of a large folder sends.
pub(crate) fn processes() -> anyhow::Result<Vec<Row>> {
    let mut shell = Site::new(HELLO)?;
    let mut job = Job::start(Site::new(HELLO)?, WORKERS, &[])?;
    let (mut by_request, mut by_client, mut starts) = (vec![], vec![], vec![]);
    for push in 0..PUSHES {
        by_request.push(job.push_known(&format!("{HELLO}# {push}\n"))?);
        by_client.push(job.push()?);
        starts.push(shell.shell_start()?);
    }
    let row = |what: &str, times| {
        Row::new(what, Figure::Times(times)).against(Figure::Times(starts.clone()), "a shell's start of the same 8")
    };
    Ok(vec![
        row("push to 8, from the request until all scripts have started (at most 300 ms)", by_request),
        row("the same, from the start of `client push`", by_client),
        Row::new(format!("files sent by a push that changes 1 of {FILES}"), Figure::Count(files_sent()?))
            .against(Figure::Count(1), "files that have changed"),
    ])
}

fn files_sent() -> anyhow::Result<u64> {
    let scene = Scene::new(HELLO);
    // exec.py and starts.py are the first two of the files.
    for number in 2..FILES {
        fs::write(scene.path().join(format!("{number}.py")), format!("NUMBER = {number}\n"))?;
    }
    let job = Job::start(Site::of(scene)?, 1, &[])?;
    fs::write(job.site.scene.path().join(CODE).join("2.py"), "NUMBER = 'two'\n")?;
    let pushed = job.site.scene.run(&["--master", &job.master.url, "push", JOB, CODE]).code(0);
    let said = pushed.stderr.split_once(&format!("code of {FILES} files: sent ")).map(|(_, rest)| rest);
    let sent = said
        .and_then(|rest| rest.split(' ').next())
        .with_context(|| format!("no number of sent files: {}", pushed.stderr))?;
    Ok(sent.parse()?)
}

/// Measures pushes to trainings whose scripts use the helper `muster.py`, and then pushes to trainings without it.
/// Measures both kinds twice, with half of the pushes each time, so that a drift of the machine affects both kinds.
pub(crate) fn tensorflow(pairs: usize) -> anyhow::Result<Vec<Row>> {
    if pairs == 0 {
        return Ok(vec![]);
    }
    let (mut with, mut without) = (vec![], vec![]);
    for half in [pairs.div_ceil(2), pairs / 2] {
        with.extend(to_first_step("elastic", first_step::STEP, half)?);
        without.extend(to_first_step("allreduce", "    loss = float(train_step(iterator))\n", half)?);
    }
    let row = |what: &str, times| Row::new(format!("TensorFlow, push to 4 {what}"), Figure::Times(times));
    Ok(vec![
        row("with muster.py, until all have made a step (at most 3 s)", with),
        row("without muster.py, until all have made a step (at most 4.5 s)", without),
    ])
}

fn to_first_step(example: &str, step: &str, count: usize) -> anyhow::Result<Vec<Duration>> {
    let site = first_step::site(example, step)?;
    // All workers share this folder for checkpoints. The example without the helper writes no checkpoints.
    let checkpoints = format!("CHECKPOINTS={}", site.scene.path().join("checkpoints").display());
    let mut job = Job::start(site, first_step::WORKERS, &["--env", &checkpoints, "--env", "STEPS=100000000"])?;
    (0..count).map(|_| job.push()).collect()
}
