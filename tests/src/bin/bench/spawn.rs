//! Measures how fast a master starts processes. Compares this with a loop that spawns each process and waits for it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use e2e::{Finished, Scene, programs};

use crate::sample::{Figure, RUNS, Row, median};

const REPLICAS: u32 = 64;

/// An agent without a master. Dropping this closes the agent's stdin, so the agent ends.
pub(crate) struct BareAgent {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl BareAgent {
    pub(crate) fn start(dir: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(programs::built("agent"))
            .args(["--supervised", "--listen", "127.0.0.1:0"])
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("start the agent")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("the agent's stdout is not piped")?).read_line(&mut line)?;
        let address =
            line.trim().parse().with_context(|| format!("the agent printed {line:?} instead of its address"))?;
        Ok(Self { child, address })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for BareAgent {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Measures a job in which `python` is /bin/true, so all replicas end at once.
pub(crate) async fn compare() -> anyhow::Result<Vec<Row>> {
    let scene = Scene::new("");
    symlink("/bin/true", scene.path().join("python"))?;
    let (mut starts, mut wholes, mut bare_starts) = (vec![], vec![], vec![]);
    for _ in 0..RUNS {
        let args = ["--worker-num", &REPLICAS.to_string(), "-o", "json"];
        let client = Finished::of(scene.client(&args).env("PATH", scene.path()));
        let times = client.code(0).view().times;
        let since_accepted = |time: Option<protocol::ids::UnixMillis>| {
            let (begin, end) = times.accepted.zip(time).context("the job lacks a time")?;
            anyhow::Ok(Duration::from_millis(end.0 - begin.0))
        };
        starts.push(since_accepted(times.started)?);
        wholes.push(since_accepted(times.ended)?);
        bare_starts.push(spawn_loop()?);
    }
    let time = |times| Figure::Time(median(times));
    let bare = time(bare_starts);
    let bare_is = "a loop of 64 spawns and waits";
    Ok(vec![
        Row::new("64 × /bin/true, accepted to started", time(starts)).against(bare.clone(), bare_is),
        Row::new("64 × /bin/true, accepted to ended", time(wholes)).against(bare, bare_is),
    ])
}

fn spawn_loop() -> anyhow::Result<Duration> {
    let begin = Instant::now();
    for _ in 0..REPLICAS {
        ensure!(Command::new("/bin/true").status()?.success());
    }
    Ok(begin.elapsed())
}
