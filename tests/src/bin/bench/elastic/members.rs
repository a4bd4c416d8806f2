//! Measures elastic jobs of hello scripts after an agent is killed, and after the number of workers is changed.

use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use e2e::processes::{parent, pids, signal, within};
use protocol::ids::Generation;
use protocol::patch::JobPatch;
use rustix::process::Signal;

use super::site::{Gang, HELLO, Site, kill, patch};
use super::torchrun::{self, Torchruns, Tuning};
use super::{PEER_LOSSES, WORKERS};
use crate::sample::{Figure, Row};

/// Number of workers of one job that lose their agent, each twice. The pause before a third replacement would be
/// longer.
const LOSERS: usize = WORKERS;

/// Kills two agents `pairs` times, in jobs with 4 to 8 workers: first an agent, then its replacement. The master
/// replaces the first agent at once, usually before the next start. It creates the second replacement after 1 s, so the
/// next start has 7 workers.
pub(crate) fn lost(pairs: usize) -> anyhow::Result<Vec<Row>> {
    let (mut with_7, mut with_8) = (vec![], vec![]);
    for first in (0..pairs).step_by(LOSERS) {
        let mut site = Site::new(HELLO)?;
        let _master = site.muster(&["--worker-num", "4:8"]);
        let mut gang = site.gang_of(WORKERS)?;
        for _ in first..pairs.min(first + LOSERS) {
            // The other workers move up by one rank, and the replacement gets the last rank. So each worker gets rank
            // 0 in turn.
            for rank in [0, WORKERS - 1] {
                let event = kill(parent(gang.pids[rank]).context("the script has no agent")?);
                gang = site.next_gang()?;
                let times = if gang.world == WORKERS { &mut with_8 } else { &mut with_7 };
                times.push(gang.since(event)?);
                if gang.world < WORKERS {
                    gang = site.gang_of(WORKERS)?;
                }
            }
        }
    }
    let row = |what: &str, times: Vec<Duration>| {
        Row::new(format!("4:8, agent killed, {what}, {} times", times.len()), Figure::Times(times))
    };
    let without = with_7.clone();
    let mut rows = vec![
        row("replaced in time, until 8 scripts have started", with_8),
        row("until 7 scripts have started", with_7),
    ];
    if torchrun::version().is_ok() {
        for (tuning, bare_is) in [
            (Tuning::Default, "8 torchruns 4:8, default intervals"),
            (Tuning::Fast, "8 torchruns 4:8, last_call_timeout=1"),
        ] {
            let bare = Figure::Times(peer(tuning, pairs)?);
            rows.push(row("until 7 scripts have started", without.clone()).against(bare, bare_is));
        }
    }
    Ok(rows)
}

/// Kills torchruns, each with its script. The other torchruns notice only failures of their own scripts. In a training,
/// the other scripts would fail because a connection breaks. Hello scripts have no connections, so the benchmark also
/// kills one of the other scripts.
fn peer(tuning: Tuning, pairs: usize) -> anyhow::Result<Vec<Duration>> {
    let mut site = Site::new(HELLO)?;
    let mut torchruns = Torchruns::start(&site, tuning)?;
    let mut times = vec![];
    for _ in 0..pairs.min(PEER_LOSSES) {
        let gang = site.gang_of(WORKERS)?;
        let newest = torchruns.newest();
        let own = gang.pids.iter().find(|pid| parent(**pid) == newest).context("the newest torchrun has no script")?;
        let event = kill(*own);
        torchruns.kill_newest();
        let other = gang.pids.iter().find(|pid| *pid != own).context("the gang has no other script")?;
        signal(*other, Signal::KILL);
        times.push(site.gang_of(WORKERS - 1)?.since(event)?);
        torchruns.add(&site)?;
    }
    Ok(times)
}

/// Measures changes of the number of workers of one job.
pub(crate) fn scaled(pairs: usize) -> anyhow::Result<Vec<Row>> {
    let mut shell = Site::new(HELLO)?;
    let mut site = Site::new(HELLO)?;
    let master = site.muster(&["--worker-num", "4:8"]);
    site.gang_of(WORKERS)?;
    let (mut shrinks, mut grows, mut starts) = (vec![], vec![], vec![]);
    let mut scale = |workers: usize| -> anyhow::Result<(Duration, Gang)> {
        let event = SystemTime::now();
        patch(&master.url, JobPatch { worker_num: u32::try_from(workers).ok(), ..JobPatch::default() })?;
        let gang = site.gang_of(workers)?;
        // A worker can join only when the earlier pod of its name has ended.
        let agents = || pids(site.scene.path(), "--supervised --listen");
        within(
            "the other agents have ended",
            || (agents().len() == workers).then_some(()),
            || format!("{:?}", agents()),
        );
        Ok((gang.since(event)?, gang))
    };
    for _ in 0..pairs {
        shrinks.push(scale(WORKERS - 1)?.0);
        grows.push(scale(WORKERS)?.0);
        starts.push(shell.shell_start()?);
    }
    let before: Generation = scale(WORKERS / 2)?.1.generation.parse()?;
    let after: Generation = scale(WORKERS)?.1.generation.parse()?;
    let row = |what: &str, times| {
        Row::new(format!("{what}, until all scripts have started"), Figure::Times(times))
            .against(Figure::Times(starts.clone()), "a shell's start of 8")
    };
    Ok(vec![
        row("scale 8 to 7", shrinks),
        row("scale 7 to 8, with the agent's start", grows),
        Row::new(
            "number of starts after 4 workers join at once",
            Figure::Count((after.sequence - before.sequence).into()),
        ),
    ])
}
